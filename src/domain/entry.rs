//! One entry of a list.

/// Whom an entry is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A single address is a /32 or a /128.
    Net(ipnet::IpNet),
    User(Vec<u8>),
}
