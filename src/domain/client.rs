//! Who is asking.
pub use ipnet::IpNet as Cidr;
