//! What names a bucket.
use crate::domain::client::Address;

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

impl KeyPart {
    pub fn parse(_text: &str) -> Result<KeyPart, String> {
        todo!()
    }

    pub fn chosen_by_client(&self) -> bool {
        todo!()
    }
}

/// A part that is absent or blank has no value.
pub fn is_blank(value: &[u8]) -> bool {
    value.iter().all(u8::is_ascii_whitespace)
}

/// Injective encoding of a key's parts.
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

    pub fn push(&mut self, _part: &KeyPart, _value: &[u8]) {
        todo!()
    }

    /// The part `ip`, or the address in place of another part.
    pub fn push_address(&mut self, _address: Address) {
        todo!()
    }

    pub fn push_ip(&mut self, address: std::net::IpAddr) {
        self.push_address(Address::Ip(address));
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Writes the Redis key of a bucket into `out` (cleared first).
pub fn redis_key(_prefix: &str, _rule: &str, _key: &[u8], _out: &mut String) {
    todo!()
}
