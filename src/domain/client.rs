//! Who is asking.
use crate::domain::config;
use std::net::IpAddr;

pub use ipnet::IpNet as Cidr;

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `::ffff:a.b.c.d` is already `a.b.c.d`.
    Ip(IpAddr),
    /// A Unix socket, or unreadable.
    None,
}

/// Reads an address as proxies write it.
pub fn parse_ip(_text: &[u8]) -> Option<IpAddr> {
    todo!()
}

/// Which peers' forwarding header is believed.
#[derive(Clone, Debug)]
pub struct ProxyTrust {}

impl ProxyTrust {
    pub fn new(_client: &config::Client) -> ProxyTrust {
        todo!()
    }

    /// Anybody is trusted at all; else the header need not be read.
    pub fn any(&self) -> bool {
        todo!()
    }

    pub fn trusts(&self, _address: Address) -> bool {
        todo!()
    }

    /// The client behind `peer`; `chain` is all lines of the forwarding header
    /// joined by `, `.
    pub fn client(&self, _peer: Address, _chain: &[u8]) -> Address {
        todo!()
    }
}

/// The address with all but the first `ipv4_prefix` or `ipv6_prefix` bits cleared.
pub fn group(_address: IpAddr, _ipv4_prefix: u8, _ipv6_prefix: u8) -> IpAddr {
    todo!()
}
