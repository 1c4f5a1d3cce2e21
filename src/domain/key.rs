//! What names a bucket: the parts of a rule's key, in an encoding in which no
//! two different keys are the same bytes.
//!
//! Kinds never mix: a user `203.0.113.9`, a cookie of that value and the address
//! are three keys, whatever bytes a client sends.
use crate::domain::client::Address;
use crate::domain::units::quoted;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::net::IpAddr;

/// One part of a rule's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's address, grouped by prefix.
    Ip,
    /// The verified user.
    User,
    Cookie(String),
    /// Lower case.
    Header(String),
    Arg(String),
    /// `$host`.
    Host,
    /// The text of the path pattern that matched.
    Path,
    Method,
    /// The `User-Agent`.
    Ua,
}

/// The longest name of a cookie, header or argument in a key.
const MAX_NAME_BYTES: usize = 128;

impl KeyPart {
    /// Reads one element of `key`. The error is a sentence about the text.
    pub fn parse(text: &str) -> Result<KeyPart, String> {
        let part = match text.split_once(':') {
            None => match text {
                "ip" => KeyPart::Ip,
                "user" => KeyPart::User,
                "host" => KeyPart::Host,
                "path" => KeyPart::Path,
                "method" => KeyPart::Method,
                "ua" => KeyPart::Ua,
                _ => return Err(unknown(text)),
            },
            Some(("cookie", name)) if is_token(name) => KeyPart::Cookie(name.to_string()),
            Some(("header", name)) if is_token(name) => KeyPart::Header(name.to_ascii_lowercase()),
            Some(("arg", name)) if is_argument(name) => KeyPart::Arg(name.to_string()),
            Some((kind @ ("cookie" | "header" | "arg"), name)) => {
                let (what, such) = match kind {
                    "arg" => ("an argument", "arg:page"),
                    "cookie" => ("a cookie", "cookie:session"),
                    _ => ("a header", "header:X-Api-Key"),
                };
                return Err(format!(
                    "{} is not the name of {what}; write one such as \"{such}\"",
                    quoted(name)
                ));
            }
            Some(_) => return Err(unknown(text)),
        };
        Ok(part)
    }

    /// The client can send another value with every request, and so gets a fresh
    /// bucket each time where nothing else is in the key.
    pub fn chosen_by_client(&self) -> bool {
        match self {
            KeyPart::Ip | KeyPart::User | KeyPart::Method => false,
            KeyPart::Cookie(_)
            | KeyPart::Header(_)
            | KeyPart::Arg(_)
            | KeyPart::Host
            | KeyPart::Path
            | KeyPart::Ua => true,
        }
    }

    /// The kind's byte in the encoding, and its name.
    fn code(&self) -> (u8, &str) {
        match self {
            KeyPart::Ip => (KIND_IP, ""),
            KeyPart::User => (b'u', ""),
            KeyPart::Cookie(name) => (b'c', name),
            KeyPart::Header(name) => (b'h', name),
            KeyPart::Arg(name) => (b'a', name),
            KeyPart::Host => (b'o', ""),
            KeyPart::Path => (b'p', ""),
            KeyPart::Method => (b'm', ""),
            KeyPart::Ua => (b'g', ""),
        }
    }
}

const KIND_IP: u8 = b'i';
const KIND_CUSTOM: u8 = b'k';

fn kind_text(code: u8) -> &'static str {
    match code {
        KIND_IP => "ip",
        b'u' => "user",
        b'c' => "cookie:",
        b'h' => "header:",
        b'a' => "arg:",
        b'o' => "host",
        b'p' => "path",
        b'm' => "method",
        b'g' => "ua",
        _ => "key",
    }
}

fn unknown(text: &str) -> String {
    format!(
        "{} is not a part of a key; there are ip, user, cookie:NAME, header:NAME, arg:NAME, host, path, method and ua",
        quoted(text)
    )
}

/// A token of RFC 9110, which is what names of headers and cookies are.
pub(super) fn is_token(name: &str) -> bool {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(token)
}

fn is_argument(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"&=?#".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(plain)
}

/// A part whose value is blank counts as absent.
pub fn is_blank(value: &[u8]) -> bool {
    value.iter().all(u8::is_ascii_whitespace)
}

/// The encoded key of one request, to be reused for the next.
///
/// ```text
/// part:  kind (1) | name length (1) | name | value length (4, LE) | value
/// ```
///
/// The value of `ip` is the 4 or 16 bytes of the address, none for a client
/// without one.
#[derive(Clone, Debug, Default)]
pub struct KeyBuf {
    bytes: Vec<u8>,
}

impl KeyBuf {
    pub fn new() -> KeyBuf {
        KeyBuf::default()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Appends a part that is present. A part of kind `ip` is appended with
    /// [`KeyBuf::push_address`] instead.
    pub fn push(&mut self, part: &KeyPart, value: &[u8]) {
        let (kind, name) = part.code();
        debug_assert_ne!(kind, KIND_IP);
        self.append(kind, name, value);
    }

    /// Appends the part `ip`, or the address in the place of an absent part; the
    /// address is [grouped](crate::domain::client::group) already.
    pub fn push_address(&mut self, address: Address) {
        match address {
            Address::Ip(IpAddr::V4(v4)) => self.append(KIND_IP, "", &v4.octets()),
            Address::Ip(IpAddr::V6(v6)) => self.append(KIND_IP, "", &v6.octets()),
            Address::None => self.append(KIND_IP, "", &[]),
        }
    }

    pub fn push_ip(&mut self, address: IpAddr) {
        self.push_address(Address::Ip(address));
    }

    /// Appends the key that a caller of `check()` gives.
    pub fn push_custom(&mut self, value: &[u8]) {
        self.append(KIND_CUSTOM, "", value);
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn append(&mut self, kind: u8, name: &str, value: &[u8]) {
        // Names are bounded where they are parsed, values by nginx's buffers.
        self.bytes.push(kind);
        self.bytes.push(name.len() as u8);
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes
            .extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(value);
    }
}

/// The longest key in Redis.
pub const MAX_REDIS_KEY_BYTES: usize = 200;
/// What stands for a key without parts.
const NO_PARTS: &str = "-";
/// Before a digest; no readable part starts with it.
const DIGEST_MARK: char = '#';

/// Writes the Redis key of a bucket into `out` (cleared first):
/// `<prefix>:b:<rule>:<readable>`, such as
/// `sluice:b:login:ip=203.0.113.9,cookie:sid=abc`.
///
/// `key` is [`KeyBuf::as_bytes`]. Every byte of a client's outside
/// `[A-Za-z0-9_.:=-]` is written `%XX`, so that nothing in it means anything to
/// Redis (a brace would choose the slot) or to the reader. Where the whole would
/// pass [`MAX_REDIS_KEY_BYTES`], 128 bits of the key's SHA-256 take the place of
/// the readable part: the same on all gateways, and nobody can make two keys
/// meet.
pub fn redis_key(prefix: &str, rule: &str, key: &[u8], out: &mut String) {
    out.clear();
    for text in [prefix, ":b:", rule, ":"] {
        out.push_str(text);
    }
    let start = out.len();
    if key.is_empty() {
        out.push_str(NO_PARTS);
    }
    let mut rest = key;
    while let Some((part, after)) = next_part(rest) {
        if out.len() > start {
            out.push(',');
        }
        out.push_str(kind_text(part.kind));
        escape(part.name, b"_.-", out);
        out.push('=');
        if part.kind == KIND_IP {
            push_ip_text(part.value, out);
        } else if part.value.len() <= MAX_REDIS_KEY_BYTES {
            escape(part.value, b"_.:=-", out);
        }
        if out.len() > MAX_REDIS_KEY_BYTES || part.value.len() > MAX_REDIS_KEY_BYTES {
            out.truncate(start);
            out.push(DIGEST_MARK);
            for byte in &Sha256::digest(key)[..16] {
                let _ = write!(out, "{byte:02x}");
            }
            return;
        }
        rest = after;
    }
}

struct Part<'a> {
    kind: u8,
    name: &'a [u8],
    value: &'a [u8],
}

fn next_part(bytes: &[u8]) -> Option<(Part<'_>, &[u8])> {
    let (kind, rest) = bytes.split_first()?;
    let (name_len, rest) = rest.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*name_len))?;
    let (value_len, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value_len) as usize)?;
    Some((
        Part {
            kind: *kind,
            name,
            value,
        },
        rest,
    ))
}

fn push_ip_text(octets: &[u8], out: &mut String) {
    // Writing into a String cannot fail.
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        let _ = write!(out, "{}", IpAddr::from(v4));
    } else if let Ok(v6) = <[u8; 16]>::try_from(octets) {
        let _ = write!(out, "{}", IpAddr::from(v6));
    }
}

fn escape(bytes: &[u8], plain: &[u8], out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || plain.contains(byte) {
            out.push(char::from(*byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Parts<'a> = &'a [(KeyPart, &'a [u8])];

    fn encoded(parts: Parts<'_>) -> Vec<u8> {
        let mut key = KeyBuf::new();
        for (part, value) in parts {
            match part {
                KeyPart::Ip => key.push_ip(std::str::from_utf8(value).unwrap().parse().unwrap()),
                part => key.push(part, value),
            }
        }
        key.as_bytes().to_vec()
    }

    fn in_redis(parts: Parts<'_>) -> String {
        let mut out = "rest of the last".to_string();
        redis_key("sluice", "login", &encoded(parts), &mut out);
        out
    }

    #[test]
    fn parts_as_written() {
        let good = [
            ("ip", KeyPart::Ip, false),
            ("user", KeyPart::User, false),
            ("cookie:sid", KeyPart::Cookie("sid".into()), true),
            ("cookie:SID", KeyPart::Cookie("SID".into()), true),
            (
                "header:X-Api-Key",
                KeyPart::Header("x-api-key".into()),
                true,
            ),
            ("arg:id", KeyPart::Arg("id".into()), true),
            ("arg:a:b[]", KeyPart::Arg("a:b[]".into()), true),
            ("host", KeyPart::Host, true),
            ("path", KeyPart::Path, true),
            ("method", KeyPart::Method, false),
            ("ua", KeyPart::Ua, true),
        ];
        for (text, part, chosen) in good {
            assert_eq!(part.chosen_by_client(), chosen, "{text}");
            assert_eq!(KeyPart::parse(text), Ok(part), "{text}");
        }
        // B87: an unknown kind is refused, never replaced by the address.
        for text in [
            "",
            "IP",
            "ip:",
            "adress",
            "cookie",
            "cookie:",
            "cookie:a b",
            "cookie:a=b",
            "header:",
            "header:x:y",
            "arg:",
            "arg:a&b",
            "path:x",
            "geo:country",
        ] {
            assert!(KeyPart::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn b39_kinds_never_mix() {
        let address = b"203.0.113.9".as_slice();
        let keys = [
            encoded(&[(KeyPart::Ip, address)]),
            encoded(&[(KeyPart::User, address)]),
            encoded(&[(KeyPart::User, &[203, 0, 113, 9])]),
            encoded(&[(KeyPart::Cookie("sid".into()), address)]),
            encoded(&[(KeyPart::Header("sid".into()), address)]),
            encoded(&[(KeyPart::Host, address)]),
            encoded(&[]),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn redis_keys_are_readable() {
        let sid = || KeyPart::Cookie("sid".into());
        let rows: [(Parts<'_>, &str); 8] = [
            (&[(KeyPart::Ip, b"203.0.113.9")], "ip=203.0.113.9"),
            (&[(KeyPart::Ip, b"2001:db8::")], "ip=2001:db8::"),
            (&[], "-"),
            (&[(KeyPart::User, b"a:b")], "user=a:b"),
            (
                &[(KeyPart::User, b"a"), (KeyPart::Path, b"/api/*")],
                "user=a,path=%2Fapi%2F%2A",
            ),
            // B18, B47: nothing in a value means anything.
            (
                &[(sid(), b"{a},b*? \r\n\0\xff")],
                "cookie:sid=%7Ba%7D%2Cb%2A%3F%20%0D%0A%00%FF",
            ),
            (&[(KeyPart::Arg("a=,".into()), b"1")], "arg:a%3D%2C=1"),
            (&[(KeyPart::Header("x-a".into()), b"1")], "header:x-a=1"),
        ];
        for (parts, readable) in rows {
            assert_eq!(in_redis(parts), format!("sluice:b:login:{readable}"));
        }
        let mut key = KeyBuf::new();
        key.push_custom(b"order 7");
        let mut out = String::new();
        redis_key("p", "r", key.as_bytes(), &mut out);
        assert_eq!(out, "p:b:r:key=order%207");
        key.clear();
        key.push_address(Address::None);
        redis_key("p", "r", key.as_bytes(), &mut out);
        assert_eq!(out, "p:b:r:ip=");
    }

    #[test]
    fn b47_long_values_become_digests() {
        let long = vec![b'x'; 8192];
        let mut other = long.clone();
        other[8191] = b'y';
        let (a, b) = (
            in_redis(&[(KeyPart::User, &long)]),
            in_redis(&[(KeyPart::User, &other)]),
        );
        assert_ne!(a, b);
        assert_eq!(a.len(), "sluice:b:login:#".len() + 32);
        assert!(a.starts_with("sluice:b:login:#"));
        // One byte decides which it is.
        let fits = MAX_REDIS_KEY_BYTES - "sluice:b:login:user=".len();
        assert_eq!(
            in_redis(&[(KeyPart::User, &long[..fits])]).len(),
            MAX_REDIS_KEY_BYTES
        );
        assert!(in_redis(&[(KeyPart::User, &long[..fits + 1])]).contains('#'));
    }

    #[test]
    fn the_digest_is_sha256_cut() {
        // SHA-256 is what other gateways, of other versions, must agree on.
        let key = encoded(&[(KeyPart::User, &[b'x'; 300])]);
        let mut out = String::new();
        redis_key("sluice", "login", &key, &mut out);
        assert_eq!(key[..6], [b'u', 0, 44, 1, 0, 0]);
        assert_eq!(out, "sluice:b:login:#a5b8881fb3efd0dab7d0fa72006f176b");
    }

    fn any_part() -> impl Strategy<Value = (KeyPart, Vec<u8>)> {
        let name = "[a-z,=:]{1,3}";
        let part = prop_oneof![
            Just(KeyPart::User),
            Just(KeyPart::Host),
            Just(KeyPart::Path),
            name.prop_map(KeyPart::Arg),
            name.prop_map(KeyPart::Cookie),
        ];
        (
            part,
            proptest::collection::vec(prop_oneof![Just(b','), Just(b'='), any::<u8>()], 0..12),
        )
    }

    proptest! {
        /// Two keys are the same bytes, in memory and in Redis, only if they are
        /// the same parts.
        #[test]
        fn encodings_are_injective(
            a in proptest::collection::vec(any_part(), 0..4),
            b in proptest::collection::vec(any_part(), 0..4),
        ) {
            fn parts(list: &[(KeyPart, Vec<u8>)]) -> Vec<(KeyPart, &[u8])> {
                list.iter().map(|(part, value)| (part.clone(), value.as_slice())).collect()
            }
            let (a, b) = (parts(&a), parts(&b));
            prop_assert_eq!(a == b, encoded(&a) == encoded(&b));
            prop_assert_eq!(a == b, in_redis(&a) == in_redis(&b));
        }

        #[test]
        fn redis_keys_are_short_and_plain(parts in proptest::collection::vec(any_part(), 0..20),
                                          rule in "[A-Za-z0-9_.-]{1,64}") {
            let parts: Vec<_> =
                parts.iter().map(|(part, value)| (part.clone(), value.as_slice())).collect();
            let mut out = String::new();
            redis_key("sluice", &rule, &encoded(&parts), &mut out);
            prop_assert!(out.len() <= MAX_REDIS_KEY_BYTES);
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:=,-%#".contains(&byte);
            prop_assert!(out.bytes().all(plain));
        }
    }
}
