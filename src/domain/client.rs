//! Who is asking: the address behind trusted proxies.
//!
//! A forwarding header is a chain that everybody may have written except for
//! what our own proxies appended at its right end. So it is walked from the
//! right, and only as far as trust reaches; nothing that is malformed is
//! stepped over, since what lies behind it is older, and the caller's choice.
use crate::domain::config;
use crate::domain::entry::{parse_v4, parse_v6, unmapped};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use ipnet::IpNet as Cidr;

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `::ffff:a.b.c.d` is already `a.b.c.d`.
    Ip(IpAddr),
    /// A Unix socket, or unreadable.
    None,
}

/// Reads an address as proxies write it: `1.2.3.4`, `1.2.3.4:80`, `2001:db8::1`,
/// `[2001:db8::1]`, `[2001:db8::1]:443`, with blanks around. A zone
/// (`fe80::1%eth0`) is dropped: it names an interface of the proxy.
pub fn parse_ip(text: &[u8]) -> Option<IpAddr> {
    if let Some(plain) = plain_v4(text) {
        return Some(IpAddr::V4(plain));
    }
    let text = text.trim_ascii();
    if let Some(rest) = text.strip_prefix(b"[") {
        let close = memchr::memchr(b']', rest)?;
        let port = &rest[close + 1..];
        if !port.is_empty() && !port.strip_prefix(b":").is_some_and(is_port) {
            return None;
        }
        return parse_zoned(&rest[..close]);
    }
    match memchr::memchr(b':', text) {
        None => parse_v4(text).ok().map(IpAddr::V4),
        // One colon: a port. More: IPv6, which cannot carry one unbracketed.
        Some(colon) if memchr::memchr(b':', &text[colon + 1..]).is_none() => {
            let address = parse_v4(&text[..colon]).ok()?;
            is_port(&text[colon + 1..]).then_some(IpAddr::V4(address))
        }
        Some(_) => parse_zoned(text),
    }
}

/// The form in which nginx itself writes an IPv4 address, in a third of the
/// instructions of a general parser; `None` for every other form, right or wrong.
fn plain_v4(text: &[u8]) -> Option<Ipv4Addr> {
    let (mut address, mut octet) = (0u32, 0u32);
    let (mut digits, mut dots) = (0, 0);
    for &byte in text {
        if byte == b'.' {
            if digits == 0 || dots == 3 || octet > 255 {
                return None;
            }
            address = address << 8 | octet;
            (octet, digits) = (0, 0);
            dots += 1;
            continue;
        }
        let digit = byte.wrapping_sub(b'0');
        // No fourth digit, and none behind a leading zero.
        if digit > 9 || digits == 3 || (digits > 0 && octet == 0) {
            return None;
        }
        octet = octet * 10 + u32::from(digit);
        digits += 1;
    }
    (octet <= 255 && digits > 0 && dots == 3).then(|| Ipv4Addr::from(address << 8 | octet))
}

fn parse_zoned(text: &[u8]) -> Option<IpAddr> {
    let address = match memchr::memchr(b'%', text) {
        Some(percent) => {
            let zone = &text[percent + 1..];
            let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
            if zone.is_empty() || !zone.iter().all(plain) {
                return None;
            }
            &text[..percent]
        }
        None => text,
    };
    parse_v6(address).map(|v6| unmapped(IpAddr::V6(v6)))
}

fn is_port(text: &[u8]) -> bool {
    (1..=5).contains(&text.len())
        && text.iter().all(u8::is_ascii_digit)
        && text
            .iter()
            .fold(0u32, |port, digit| port * 10 + u32::from(digit - b'0'))
            <= 65535
}

/// Which peers' forwarding header is believed.
#[derive(Clone, Debug)]
pub struct ProxyTrust {
    /// First and last addresses, disjoint and sorted.
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
    unix: bool,
    /// The header is RFC 7239's `Forwarded`.
    forwarded: bool,
}

impl ProxyTrust {
    pub fn new(client: &config::Client) -> ProxyTrust {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for net in &client.trusted_proxies {
            match net {
                Cidr::V4(net) => v4.push((net.network().into(), net.broadcast().into())),
                Cidr::V6(net) => v6.push((net.network().into(), net.broadcast().into())),
            }
        }
        ProxyTrust {
            v4: disjoint(v4),
            v6: disjoint(v6),
            unix: client.trust_unix,
            forwarded: client.header.eq_ignore_ascii_case("forwarded"),
        }
    }

    /// Anybody is trusted at all; else the header need not be read.
    pub fn any(&self) -> bool {
        self.unix || !self.v4.is_empty() || !self.v6.is_empty()
    }

    /// Whether the address is a trusted proxy's; [`Address::None`] is `unix:`.
    pub fn trusts(&self, address: Address) -> bool {
        match address {
            Address::Ip(IpAddr::V4(v4)) => within(&self.v4, v4.into()),
            Address::Ip(IpAddr::V6(v6)) => within(&self.v6, v6.into()),
            Address::None => self.unix,
        }
    }

    /// The client behind `peer`; `chain` is all lines of the forwarding header
    /// joined by `, `.
    ///
    /// The chain is walked from the right while the hops are trusted; the first
    /// that is not is the client. A malformed hop ends the walk at the last good
    /// one, or the peer. All trusted: the leftmost.
    pub fn client(&self, peer: Address, chain: &[u8]) -> Address {
        if !self.trusts(peer) || chain.trim_ascii().is_empty() {
            return peer;
        }
        let mut client = peer;
        let mut rest = Some(chain);
        while let Some(chain) = rest {
            let hop = if self.forwarded {
                let start = last_element(chain);
                rest = start.checked_sub(1).map(|comma| &chain[..comma]);
                forwarded_for(&chain[start..]).and_then(parse_ip)
            } else {
                let comma = memchr::memrchr(b',', chain);
                rest = comma.map(|comma| &chain[..comma]);
                parse_ip(&chain[comma.map_or(0, |comma| comma + 1)..])
            };
            let Some(hop) = hop else { return client };
            client = Address::Ip(hop);
            if !self.trusts(client) {
                return client;
            }
        }
        client
    }
}

/// Sorts ranges and joins those that overlap.
fn disjoint<T: Copy + Ord>(mut ranges: Vec<(T, T)>) -> Vec<(T, T)> {
    ranges.sort_unstable();
    let mut joined: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, end)) if first <= *end => *end = (*end).max(last),
            _ => joined.push((first, last)),
        }
    }
    joined
}

fn within<T: Copy + Ord>(ranges: &[(T, T)], address: T) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= address);
    after > 0 && address <= ranges[after - 1].1
}

/// Where the last element of a `Forwarded` value starts. Quotes are tracked from
/// the right, as only the right end is our proxies': a stray quote that a caller
/// put before it must not swallow what they appended.
fn last_element(chain: &[u8]) -> usize {
    let mut quoted = false;
    let mut end = chain.len();
    while let Some(at) = memchr::memrchr2(b',', b'"', &chain[..end]) {
        if chain[at] == b'"' {
            let before = &chain[..at];
            let backslashes = before
                .iter()
                .rev()
                .take_while(|byte| **byte == b'\\')
                .count();
            quoted ^= backslashes % 2 == 0;
        } else if !quoted {
            return at + 1;
        }
        end = at;
    }
    0
}

/// The value of the one parameter `for` of a `Forwarded` element, unquoted.
/// Addresses need neither escapes nor separators, so what has them is none, and
/// splitting inside quotes can only make a bad element worse.
fn forwarded_for(element: &[u8]) -> Option<&[u8]> {
    let mut found = None;
    for pair in element.split(|byte| *byte == b';') {
        let Some(equals) = memchr::memchr(b'=', pair) else {
            continue;
        };
        if !pair[..equals].trim_ascii().eq_ignore_ascii_case(b"for") {
            continue;
        }
        if found.is_some() {
            return None;
        }
        found = Some(match pair[equals + 1..].trim_ascii() {
            [b'"', inner @ .., b'"'] => inner,
            bare => bare,
        });
    }
    found
}

/// The address with all but the first `ipv4_prefix` or `ipv6_prefix` bits
/// cleared: what keys are made of, as one customer has a whole IPv6 network.
pub fn group(address: IpAddr, ipv4_prefix: u8, ipv6_prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let host_bits = 32u32.saturating_sub(u32::from(ipv4_prefix));
            let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(v4) & mask))
        }
        IpAddr::V6(v6) => {
            let host_bits = 128u32.saturating_sub(u32::from(ipv6_prefix));
            let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trust(proxies: &[&str], header: &str) -> ProxyTrust {
        ProxyTrust::new(&config::Client {
            trusted_proxies: proxies
                .iter()
                .filter(|proxy| **proxy != "unix:")
                .map(|proxy| proxy.parse().unwrap())
                .collect(),
            trust_unix: proxies.contains(&"unix:"),
            header: header.to_string(),
            ipv4_prefix: 32,
            ipv6_prefix: 64,
        })
    }

    fn usual() -> ProxyTrust {
        trust(
            &["127.0.0.1/32", "10.0.0.0/8", "fd00::/8"],
            "x-forwarded-for",
        )
    }

    fn ip(text: &str) -> Address {
        Address::Ip(text.parse().unwrap())
    }

    #[test]
    fn b48_forms_of_one_address() {
        let rows = [
            ("203.0.113.7", Some("203.0.113.7")),
            ("203.0.113.7:51234", Some("203.0.113.7")),
            (" 203.0.113.7:1 ", Some("203.0.113.7")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("[2001:db8::1]:443", Some("2001:db8::1")),
            ("2001:0DB8:0:0::1", Some("2001:db8::1")),
            ("::1", Some("::1")),
            ("::ffff:203.0.113.7", Some("203.0.113.7")),
            ("[::ffff:203.0.113.7]:80", Some("203.0.113.7")),
            ("fe80::1%eth0", Some("fe80::1")),
            ("[fe80::1%2]:80", Some("fe80::1")),
            // An unbracketed IPv6 address cannot carry a port.
            ("2607:fea8:bba0:7c00:cd88:f5a6:5fb0:2a56:51108", None),
            ("", None),
            (" ", None),
            ("unknown", None),
            ("_hidden", None),
            ("garbage", None),
            ("unix:", None),
            ("300.1.1.1", None),
            ("010.0.0.1", None),
            ("1.2.3", None),
            ("1.2.3.4:", None),
            ("1.2.3.4:65536", None),
            ("1.2.3.4:8x", None),
            ("1.2.3.4 5", None),
            ("[1.2.3.4]", None),
            ("[2001:db8::1", None),
            ("[2001:db8::1]443", None),
            ("[2001:db8::1]:", None),
            ("2001:db8::1]", None),
            ("fe80::1%", None),
            ("fe80::1%et h", None),
        ];
        for (text, expected) in rows {
            let expected = expected.map(|address| address.parse::<IpAddr>().unwrap());
            assert_eq!(parse_ip(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn b49_b50_b52_b53_the_walk() {
        let commas = ",".repeat(500);
        let token = "x".repeat(7000);
        let rows = [
            (
                "a trusted peer's last hop is the client",
                "198.51.100.7",
                "198.51.100.7",
            ),
            (
                "B49: what the caller wrote before it",
                "1.2.3.4, 198.51.100.7",
                "198.51.100.7",
            ),
            (
                "trusted hops in between",
                "198.51.100.7, 10.1.1.1, 10.2.2.2",
                "198.51.100.7",
            ),
            ("with ports", "198.51.100.7:1,10.1.1.1:2", "198.51.100.7"),
            (
                "all trusted: the leftmost",
                "10.1.1.1, 10.2.2.2, fd00::1",
                "10.1.1.1",
            ),
            (
                "a mapped trusted hop",
                "198.51.100.7, ::ffff:10.2.2.2",
                "198.51.100.7",
            ),
            ("no header", "", "127.0.0.1"),
            ("a blank header", "  ", "127.0.0.1"),
            (
                "B52: garbage at the end",
                "198.51.100.7, garbage",
                "127.0.0.1",
            ),
            ("B52", "198.51.100.7, unknown", "127.0.0.1"),
            ("B52", "198.51.100.7,,", "127.0.0.1"),
            ("B52", "198.51.100.7, 300.1.1.1", "127.0.0.1"),
            ("B52", "_hidden", "127.0.0.1"),
            (
                "B52: at the last good hop",
                "198.51.100.7, junk, 10.1.1.1",
                "10.1.1.1",
            ),
            ("B53: 500 commas", &commas, "127.0.0.1"),
            ("B53: one long token", &token, "127.0.0.1"),
        ];
        for (why, chain, client) in rows {
            assert_eq!(
                usual().client(ip("127.0.0.1"), chain.as_bytes()),
                ip(client),
                "{why}"
            );
        }
        let long = (0..500)
            .map(|n| format!("10.0.{}.1", n % 256))
            .collect::<Vec<_>>()
            .join(", ");
        assert_eq!(
            usual().client(ip("127.0.0.1"), long.as_bytes()),
            ip("10.0.0.1")
        );
    }

    #[test]
    fn b57_the_header_is_ignored_unless_the_peer_is_trusted() {
        let chain = b"1.2.3.4";
        let nobody = trust(&[], "x-forwarded-for");
        assert!(!nobody.any());
        assert_eq!(nobody.client(ip("127.0.0.1"), chain), ip("127.0.0.1"));
        assert_eq!(nobody.client(Address::None, chain), Address::None);
        assert!(usual().any());
        assert_eq!(usual().client(ip("192.0.2.1"), chain), ip("192.0.2.1"));
        assert_eq!(usual().client(ip("::1"), chain), ip("::1"));
        assert_eq!(usual().client(Address::None, chain), Address::None);
        let unix = trust(&["unix:"], "x-forwarded-for");
        assert!(unix.any());
        assert_eq!(unix.client(Address::None, chain), ip("1.2.3.4"));
        assert_eq!(unix.client(ip("127.0.0.1"), chain), ip("127.0.0.1"));
    }

    #[test]
    fn forwarded_is_walked_by_its_for_parameters() {
        let trust = trust(&["127.0.0.1/32", "10.0.0.0/8"], "forwarded");
        let rows = [
            ("for=198.51.100.7", "198.51.100.7"),
            (
                "For=198.51.100.7;proto=http;by=203.0.113.43",
                "198.51.100.7",
            ),
            ("proto=http; for=\"198.51.100.7:4711\"", "198.51.100.7"),
            (
                "for=1.2.3.4, for=\"[2001:db8::1]:80\", for=10.1.1.1",
                "2001:db8::1",
            ),
            ("for=10.1.1.1, for=10.2.2.2", "10.1.1.1"),
            // A hop that hides itself ends the walk.
            ("for=1.2.3.4, for=_hidden", "127.0.0.1"),
            ("for=1.2.3.4, for=unknown, for=10.1.1.1", "10.1.1.1"),
            ("for=1.2.3.4, proto=https", "127.0.0.1"),
            ("for=1.2.3.4;for=5.6.7.8", "127.0.0.1"),
            ("198.51.100.7", "127.0.0.1"),
            // A caller's stray quote does not swallow what the proxy appended.
            ("for=\", for=198.51.100.7", "198.51.100.7"),
            ("for=\"x\\\", for=198.51.100.7", "198.51.100.7"),
            ("host=\"a,b;for=1.2.3.4\";for=198.51.100.7", "127.0.0.1"),
            ("host=\"a,b\";for=198.51.100.7", "198.51.100.7"),
        ];
        for (chain, client) in rows {
            assert_eq!(
                trust.client(ip("127.0.0.1"), chain.as_bytes()),
                ip(client),
                "{chain}"
            );
        }
    }

    #[test]
    fn b54_addresses_are_grouped_by_prefix() {
        let rows = [
            ("203.0.113.7", 32, 64, "203.0.113.7"),
            ("203.0.113.7", 24, 64, "203.0.113.0"),
            ("203.0.113.7", 0, 64, "0.0.0.0"),
            ("2001:db8:1:1:2:3:4:5", 32, 64, "2001:db8:1:1::"),
            ("2001:db8:1:1:2:3:4:5", 32, 128, "2001:db8:1:1:2:3:4:5"),
            ("2001:db8:1:1:2:3:4:5", 32, 0, "::"),
        ];
        for (address, v4, v6, expected) in rows {
            assert_eq!(
                Address::Ip(group(address.parse().unwrap(), v4, v6)),
                ip(expected)
            );
        }
    }

    proptest! {
        /// Against a scan of the networks.
        #[test]
        fn trust_is_membership(
            nets in proptest::collection::vec((any::<IpAddr>(), 0u8..=32), 0..12),
            probe in any::<IpAddr>(),
        ) {
            let nets: Vec<Cidr> =
                nets.into_iter().map(|(address, len)| Cidr::new(address, len).unwrap()).collect();
            let texts: Vec<String> = nets.iter().map(|net| net.trunc().to_string()).collect();
            let trust = trust(&texts.iter().map(String::as_str).collect::<Vec<_>>(), "x");
            let edges = nets.iter().flat_map(|net| [net.network(), net.broadcast()]);
            for address in edges.chain([probe]) {
                let naive = nets.iter().any(|net| net.contains(&address));
                prop_assert_eq!(trust.trusts(Address::Ip(address)), naive);
            }
        }

        /// The client is the peer, or a hop with only trusted ones after it.
        #[test]
        fn nobody_untrusted_is_passed(hops in proptest::collection::vec(
            prop_oneof![Just("10.1.1.1"), Just("198.51.100.7"), Just("junk"), Just("")], 0..6)) {
            let chain = hops.join(",");
            let mut naive = ip("127.0.0.1");
            for hop in hops.iter().rev() {
                let Ok(address) = hop.parse::<IpAddr>() else { break };
                naive = Address::Ip(address);
                if *hop != "10.1.1.1" { break }
            }
            prop_assert_eq!(usual().client(ip("127.0.0.1"), chain.as_bytes()), naive);
        }

        #[test]
        fn any_bytes_are_walked(chain in proptest::collection::vec(any::<u8>(), 0..200)) {
            usual().client(ip("127.0.0.1"), &chain);
            trust(&["127.0.0.1/32"], "forwarded").client(ip("127.0.0.1"), &chain);
        }
    }
}
