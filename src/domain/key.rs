//! What names a bucket.

/// One part of a rule's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    Ip,
    User,
    Cookie(String),
    Header(String),
    Arg(String),
    Host,
    Path,
    Method,
    Ua,
}
