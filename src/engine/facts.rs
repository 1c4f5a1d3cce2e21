//! A request's properties, each read from nginx once, when first asked for.
use super::exchange::{Exchange, Var};
use crate::domain::cookie::cookie;
use crate::domain::key::KeyPart;
use crate::domain::matcher::{self, normalise_path};

/// Buffers that outlive a request, so that reading one allocates nothing.
#[derive(Default)]
pub struct Buffers {
    line: Vec<u8>,
    headers: Vec<(String, Option<Vec<u8>>)>,
    header_count: usize,
    arg: Vec<u8>,
}

/// Where the path of the request line stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Unread,
    /// Nothing was rewritten, nothing escaped: it is `$uri`.
    Uri,
    Buffer,
}

pub struct Facts<'x, 'r, X: Exchange<'r>> {
    pub x: &'x mut X,
    buffers: &'x mut Buffers,
    uri: Option<&'r [u8]>,
    host: Option<&'r [u8]>,
    method: Option<&'r [u8]>,
    line: Line,
}

impl<'x, 'r, X: Exchange<'r>> Facts<'x, 'r, X> {
    pub fn new(x: &'x mut X, buffers: &'x mut Buffers) -> Self {
        buffers.header_count = 0;
        Facts {
            x,
            buffers,
            uri: None,
            host: None,
            method: None,
            line: Line::Unread,
        }
    }

    pub fn uri(&mut self) -> &'r [u8] {
        let x = &mut *self.x;
        self.uri
            .get_or_insert_with(|| x.var(Var::Uri).unwrap_or_default())
    }

    pub fn host(&mut self) -> &'r [u8] {
        let x = &mut *self.x;
        self.host
            .get_or_insert_with(|| x.var(Var::Host).unwrap_or_default())
    }

    pub fn method(&mut self) -> &'r [u8] {
        let x = &mut *self.x;
        self.method
            .get_or_insert_with(|| x.var(Var::Method).unwrap_or_default())
    }

    /// All lines of a header, joined.
    pub fn header(&mut self, name: &str) -> Option<&[u8]> {
        let b = &mut *self.buffers;
        if let Some(i) = b.headers[..b.header_count]
            .iter()
            .position(|(n, _)| n == name)
        {
            return b.headers[i].1.as_deref();
        }
        if b.headers.len() == b.header_count {
            b.headers.push((String::new(), None));
        }
        let slot = &mut b.headers[b.header_count];
        b.header_count += 1;
        slot.0.clear();
        slot.0.push_str(name);
        let mut value = slot.1.take().unwrap_or_default();
        value.clear();
        if self.x.header(name, &mut value) {
            slot.1 = Some(value);
        }
        slot.1.as_deref()
    }

    /// The value of a key part that is read from the request. `None`: absent.
    /// `pattern` is the path pattern that matched.
    pub fn key_part<'s>(&'s mut self, part: &KeyPart, pattern: &'s str) -> Option<&'s [u8]> {
        match part {
            KeyPart::Cookie(name) => cookie(self.header("cookie")?, name.as_bytes()),
            KeyPart::Header(name) => self.header(name),
            KeyPart::Arg(name) => {
                let raw = self.x.var(Var::Arg(name))?;
                if memchr::memchr2(b'%', b'+', raw).is_none() {
                    return Some(raw);
                }
                // However it is spelt, it is one value and one bucket.
                let spaced: Vec<u8> = raw
                    .iter()
                    .map(|b| if *b == b'+' { b' ' } else { *b })
                    .collect();
                self.buffers.arg.clear();
                self.buffers
                    .arg
                    .extend(percent_encoding::percent_decode(&spaced));
                Some(&self.buffers.arg)
            }
            KeyPart::Host => Some(self.host()),
            KeyPart::Method => Some(self.method()),
            KeyPart::Ua => self.header("user-agent"),
            // A rule for every path has one bucket for all of them.
            KeyPart::Path if pattern.is_empty() => Some(b"*"),
            KeyPart::Path => Some(pattern.as_bytes()),
            KeyPart::Ip | KeyPart::User => None,
        }
    }
}

impl<'r, X: Exchange<'r>> matcher::Facts for Facts<'_, 'r, X> {
    fn host(&mut self) -> &[u8] {
        Facts::host(self)
    }

    fn uri(&mut self) -> &[u8] {
        Facts::uri(self)
    }

    fn line_path(&mut self) -> &[u8] {
        if self.line == Line::Unread {
            let uri = self.uri();
            let target = self.x.var(Var::RequestUri).unwrap_or_default();
            let same =
                target.starts_with(uri) && matches!(target.get(uri.len()), None | Some(b'?'));
            // Equal text is no proof where the text itself would be normalised, but then `$uri`
            // could not have come out of it; and where it was rewritten to that, it matches anyway.
            self.line = if same || !normalise_path(target, &mut self.buffers.line) {
                Line::Uri
            } else {
                Line::Buffer
            };
        }
        match self.line {
            Line::Buffer => &self.buffers.line,
            _ => Facts::uri(self),
        }
    }

    fn method(&mut self) -> &[u8] {
        Facts::method(self)
    }

    fn header(&mut self, lower_name: &str) -> Option<&[u8]> {
        Facts::header(self, lower_name)
    }
}
