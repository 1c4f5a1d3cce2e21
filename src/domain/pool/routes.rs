//! What each kind of request usually takes.
