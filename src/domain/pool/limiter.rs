//! Finds the limit of an adaptive pool.
