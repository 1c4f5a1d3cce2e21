//! One entry of a list: an address, a network, or a verified user.
//!
//! Strict on purpose: a lenient reader turns one bad line (`0.0.0.0/x`) into a
//! block of everybody. Used for the configuration, list files, the members of
//! Redis's sets, and the subjects of `ban` and `unban`.
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whom an entry is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A single address is a /32 or a /128. Host bits are zero, and
    /// `::ffff:a.b.c.d` is `a.b.c.d`.
    Net(IpNet),
    /// 1 to [`MAX_USER_BYTES`] bytes without control characters.
    User(Vec<u8>),
}

/// The longest user.
pub const MAX_USER_BYTES: usize = 256;
/// What stands before a user.
const USER_PREFIX: &[u8] = b"user:";
/// How many bad lines of a file are described; the rest is only counted.
const REJECTED_KEPT: usize = 10;

/// Why a text is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryError {
    Empty,
    /// The part before `/` is no address.
    Address,
    /// An IPv4 octet such as `010`, which some read as octal.
    LeadingZero,
    /// The part after `/` is no prefix length up to this.
    Prefix(u8),
    /// A user is empty, too long, or has control characters.
    User,
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryError::Empty => f.write_str("is empty"),
            EntryError::Address => {
                f.write_str("is not an address, a network (10.0.0.0/8) or user:<id>")
            }
            EntryError::LeadingZero => {
                f.write_str("has a number with a leading zero; write it in decimal without")
            }
            EntryError::Prefix(most) => {
                write!(
                    f,
                    "has a bad prefix length; it must be a number from 0 to {most}"
                )
            }
            EntryError::User => write!(
                f,
                "is not a user; one has 1 to {MAX_USER_BYTES} bytes and no control characters"
            ),
        }
    }
}

impl std::error::Error for EntryError {}

impl fmt::Display for Subject {
    /// [`Subject::member`] as text; a user's bytes that are not UTF-8 are
    /// replaced.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Net(net) if net.prefix_len() == net.max_prefix_len() => {
                write!(f, "{}", net.addr())
            }
            Subject::Net(net) => write!(f, "{net}"),
            Subject::User(user) => write!(f, "user:{}", String::from_utf8_lossy(user)),
        }
    }
}

impl Subject {
    /// The canonical member of a list, which [`parse`] reads back:
    /// `203.0.113.9`, `10.0.0.0/8`, `user:alice`.
    pub fn member(&self) -> Vec<u8> {
        match self {
            Subject::Net(_) => self.to_string().into_bytes(),
            Subject::User(user) => [USER_PREFIX, user].concat(),
        }
    }
}

impl From<IpAddr> for Subject {
    fn from(address: IpAddr) -> Subject {
        Subject::Net(IpNet::from(unmapped(address)))
    }
}

/// `::ffff:a.b.c.d` as `a.b.c.d`.
pub(super) fn unmapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Reads an address, a CIDR (host bits are dropped) or `user:<id>`; ASCII blanks
/// around it are ignored.
pub fn parse(text: &[u8]) -> Result<Subject, EntryError> {
    let text = text.trim_ascii();
    if let Some(user) = text.strip_prefix(USER_PREFIX) {
        return parse_user(user);
    }
    match text.first() {
        None => Err(EntryError::Empty),
        Some(_) => parse_net(text).map(Subject::Net),
    }
}

fn parse_user(user: &[u8]) -> Result<Subject, EntryError> {
    let control = user.iter().any(|byte| byte.is_ascii_control());
    if user.is_empty() || user.len() > MAX_USER_BYTES || control {
        return Err(EntryError::User);
    }
    Ok(Subject::User(user.to_vec()))
}

/// Reads an address or a CIDR.
pub fn parse_net(text: &[u8]) -> Result<IpNet, EntryError> {
    let (address, prefix) = match memchr::memchr(b'/', text) {
        Some(slash) => (&text[..slash], Some(&text[slash + 1..])),
        None => (text, None),
    };
    if memchr::memchr(b':', address).is_none() {
        let address = parse_v4(address)?;
        let prefix_len = prefix.map_or(Ok(32), |prefix| parse_prefix(prefix, 32))?;
        return v4_net(address, prefix_len);
    }
    let address = parse_v6(address).ok_or(EntryError::Address)?;
    let prefix_len = prefix.map_or(Ok(128), |prefix| parse_prefix(prefix, 128))?;
    match address.to_ipv4_mapped() {
        // A shorter prefix reaches beyond the mapped addresses, and means IPv6.
        Some(v4) if prefix_len >= 96 => v4_net(v4, prefix_len - 96),
        _ => Ipv6Net::new(address, prefix_len)
            .map(|net| IpNet::V6(net.trunc()))
            .map_err(|_| EntryError::Prefix(128)),
    }
}

fn v4_net(address: Ipv4Addr, prefix_len: u8) -> Result<IpNet, EntryError> {
    Ipv4Net::new(address, prefix_len)
        .map(|net| IpNet::V4(net.trunc()))
        .map_err(|_| EntryError::Prefix(32))
}

fn parse_prefix(text: &[u8], most: u8) -> Result<u8, EntryError> {
    let wrong = EntryError::Prefix(most);
    if text.is_empty() || text.len() > 3 || (text.len() > 1 && text[0] == b'0') {
        return Err(wrong);
    }
    let mut number = 0u16;
    for digit in text {
        if !digit.is_ascii_digit() {
            return Err(wrong);
        }
        number = number * 10 + u16::from(digit - b'0');
    }
    u8::try_from(number)
        .ok()
        .filter(|number| *number <= most)
        .ok_or(wrong)
}

/// Four decimal numbers without leading zeros.
pub(super) fn parse_v4(text: &[u8]) -> Result<Ipv4Addr, EntryError> {
    let mut octets = [0u8; 4];
    let mut index = 0;
    let mut number = 0u16;
    let mut digits = 0;
    for byte in text {
        match byte {
            b'0'..=b'9' => {
                if digits == 1 && number == 0 {
                    return Err(EntryError::LeadingZero);
                }
                number = number * 10 + u16::from(byte - b'0');
                digits += 1;
                if number > 255 {
                    return Err(EntryError::Address);
                }
            }
            b'.' if digits > 0 && index < 3 => {
                octets[index] = number as u8;
                index += 1;
                number = 0;
                digits = 0;
            }
            _ => return Err(EntryError::Address),
        }
    }
    if index != 3 || digits == 0 {
        return Err(EntryError::Address);
    }
    octets[3] = number as u8;
    Ok(Ipv4Addr::from(octets))
}

pub(super) fn parse_v6(text: &[u8]) -> Option<Ipv6Addr> {
    // The longest is `ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255`.
    if text.len() > 45 {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// What a list file holds.
#[derive(Clone, Debug, Default)]
pub struct FileEntries {
    pub subjects: Vec<Subject>,
    /// The first 10 bad lines: their numbers, from 1, and what is wrong with them.
    pub rejected: Vec<(usize, String)>,
    pub rejected_count: usize,
    /// Lines that are neither blank nor only a comment.
    pub lines: usize,
}

impl FileEntries {
    /// More than half of the lines are bad: the list's old content should stay.
    pub fn mostly_bad(&self) -> bool {
        self.rejected_count > self.lines / 2
    }
}

/// Reads a list file: one entry a line, `#` starts a comment, a bad line is
/// counted and skipped. Line ends may be `\n` or `\r\n`.
pub fn parse_file(bytes: &[u8]) -> FileEntries {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut entries = FileEntries::default();
    let mut rest = bytes;
    let mut line_no = 0;
    while !rest.is_empty() {
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let line = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or_default();
        line_no += 1;
        let line = memchr::memchr(b'#', line).map_or(line, |comment| &line[..comment]);
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        entries.lines += 1;
        match parse(line) {
            Ok(subject) => entries.subjects.push(subject),
            Err(error) => {
                entries.rejected_count += 1;
                if entries.rejected.len() < REJECTED_KEPT {
                    entries.rejected.push((line_no, describe(line, error)));
                }
            }
        }
    }
    entries
}

/// A sentence about a text that is no entry.
pub fn describe(text: &[u8], error: EntryError) -> String {
    format!(
        "{} {error}",
        super::units::quoted(&String::from_utf8_lossy(text))
    )
}

/// `0.0.0.0/0` or `::/0`, which deserve a warning.
pub fn is_everything(subject: &Subject) -> bool {
    matches!(subject, Subject::Net(net) if net.prefix_len() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(entry: &str) -> Result<String, EntryError> {
        parse(entry.as_bytes()).map(|subject| subject.to_string())
    }

    #[test]
    fn good_entries_in_their_canonical_form() {
        let rows = [
            ("203.0.113.9", "203.0.113.9"),
            ("203.0.113.9/32", "203.0.113.9"),
            (" 203.0.113.10 ", "203.0.113.10"),
            ("\t0.0.0.0\r", "0.0.0.0"),
            // Host bits are dropped.
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("255.255.255.255/1", "128.0.0.0/1"),
            ("2001:DB8:0:0::1", "2001:db8::1"),
            ("2001:db8::1/128", "2001:db8::1"),
            ("2001:db8:0:7:1::/64", "2001:db8:0:7::/64"),
            ("::/0", "::/0"),
            ("::", "::"),
            // A mapped address is the IPv4 one, with the prefix that is left.
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("::ffff:c000:201", "192.0.2.1"),
            ("::ffff:10.9.9.9/104", "10.0.0.0/8"),
            ("::ffff:0.0.0.0/96", "0.0.0.0/0"),
            // Not all of it is mapped, so it is IPv6.
            ("::ffff:0.0.0.0/95", "::fffe:0:0/95"),
            ("user:alice", "user:alice"),
            ("user:203.0.113.9", "user:203.0.113.9"),
            ("user:a b:c", "user:a b:c"),
        ];
        for (written, canonical) in rows {
            assert_eq!(text(written), Ok(canonical.to_string()), "{written}");
            assert_eq!(text(canonical), Ok(canonical.to_string()), "{canonical}");
        }
    }

    /// B58: each of these would block the world in one lenient reader or another.
    #[test]
    fn b58_bad_entries() {
        let rows = [
            ("10.0.0.0/33", EntryError::Prefix(32)),
            ("0.0.0.0/-1", EntryError::Prefix(32)),
            ("0.0.0.0/+1", EntryError::Prefix(32)),
            ("0.0.0.0/x", EntryError::Prefix(32)),
            ("0.0.0.0/", EntryError::Prefix(32)),
            ("0.0.0.0/00", EntryError::Prefix(32)),
            ("0.0.0.0/0.", EntryError::Prefix(32)),
            ("10.0.0.0/256", EntryError::Prefix(32)),
            ("10.0.0.0/4294967304", EntryError::Prefix(32)),
            ("10.0.0.0/8/8", EntryError::Prefix(32)),
            ("10.0.0.0/255.0.0.0", EntryError::Prefix(32)),
            ("10.0.0.0 /8", EntryError::Address),
            ("1.2.3", EntryError::Address),
            ("1.2.3.4.5", EntryError::Address),
            ("1.2.3.", EntryError::Address),
            (".1.2.3", EntryError::Address),
            ("1..2.3", EntryError::Address),
            ("300.1.1.1", EntryError::Address),
            ("1.2.3.4:80", EntryError::Address),
            ("0x7f.1", EntryError::Address),
            ("16909060", EntryError::Address),
            ("010.0.0.1", EntryError::LeadingZero),
            ("10.00.0.1", EntryError::LeadingZero),
            ("2001:db8::/129", EntryError::Prefix(128)),
            ("2001:db8::/x", EntryError::Prefix(128)),
            ("2001:db8:::", EntryError::Address),
            ("[2001:db8::1]", EntryError::Address),
            ("fe80::1%eth0", EntryError::Address),
            ("1:2:3:4:5:6:7:8:9", EntryError::Address),
            ("", EntryError::Empty),
            ("  ", EntryError::Empty),
            ("user:", EntryError::User),
            ("user:a\u{1}b", EntryError::User),
            ("User:alice", EntryError::Address),
            ("example.com", EntryError::Address),
        ];
        for (written, error) in rows {
            assert_eq!(text(written), Err(error), "{written}");
        }
        assert_eq!(parse(b"\xff\xfe"), Err(EntryError::Address));
        let long = |length| [USER_PREFIX, &vec![b'u'; length]].concat();
        assert!(parse(&long(MAX_USER_BYTES)).is_ok());
        assert_eq!(parse(&long(MAX_USER_BYTES + 1)), Err(EntryError::User));
    }

    #[test]
    fn a_file_counts_and_skips_its_bad_lines() {
        let file = b"\xef\xbb\xbf# head\n203.0.113.9/32\r\n\n10.0.0.0/33\n 203.0.113.10 # why\n\
                     user:bob#no\n1.2.3\n2001:db8::/32";
        let entries = parse_file(file);
        let subjects: Vec<_> = entries.subjects.iter().map(Subject::to_string).collect();
        assert_eq!(
            subjects,
            ["203.0.113.9", "203.0.113.10", "user:bob", "2001:db8::/32"]
        );
        assert_eq!((entries.lines, entries.rejected_count), (6, 2));
        let rejected: Vec<_> = entries.rejected.iter().map(|(line, _)| *line).collect();
        assert_eq!(rejected, [4, 7]);
        assert!(
            entries.rejected[0]
                .1
                .starts_with("\"10.0.0.0/33\" has a bad prefix length")
        );
        assert!(!entries.mostly_bad());
    }

    #[test]
    fn a_file_of_something_else_is_mostly_bad() {
        let entries = parse_file(&b"\x7fELF\x01\n".repeat(1000));
        assert_eq!(
            (entries.rejected_count, entries.rejected.len()),
            (1000, REJECTED_KEPT)
        );
        assert!(entries.mostly_bad());
        assert!(!parse_file(b"").mostly_bad());
        assert!(
            !parse_file(b"x\n1.2.3.4").mostly_bad(),
            "half is not more than half"
        );
        assert!(parse_file(b"x\n1.2.3.4\ny").mostly_bad());
    }

    #[test]
    fn only_whole_families_are_everything() {
        for (entry, expected) in [
            ("0.0.0.0/0", true),
            ("::/0", true),
            ("0.0.0.0/1", false),
            ("0.0.0.0", false),
        ] {
            assert_eq!(
                is_everything(&parse(entry.as_bytes()).unwrap()),
                expected,
                "{entry}"
            );
        }
    }

    proptest! {
        /// Dotted quads are read as the standard library reads them.
        #[test]
        fn v4_as_std(text in "[0-9.]{0,16}|([0-9]{1,3}\\.){3}[0-9]{1,3}") {
            prop_assert_eq!(parse_v4(text.as_bytes()).ok(), text.parse::<Ipv4Addr>().ok());
        }

        /// What is displayed is read back, and any bytes are read without a panic.
        #[test]
        fn members_round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..300),
                              address in any::<IpAddr>(), prefix in 0u8..=128) {
            if let Ok(subject) = parse(&bytes) {
                prop_assert_eq!(parse(&subject.member()), Ok(subject));
            }
            parse_file(&bytes);
            if let Ok(subject) = parse(format!("{address}/{prefix}").as_bytes()) {
                let Subject::Net(net) = &subject else { panic!("a network") };
                prop_assert_eq!(net.addr(), net.network());
                // `::ffff:1.2.3.4/64` reaches beyond the mapped addresses.
                prop_assert!(net.contains(&unmapped(address)) || net.contains(&address));
                prop_assert_eq!(parse(&subject.member()), Ok(subject));
            }
        }
    }
}
