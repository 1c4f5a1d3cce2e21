//! Cookies, cut out of the whole `Cookie` header: nginx's own `$cookie_x` is
//! blind to case and keeps the quotes.

/// The value of cookie `name`: case-sensitive, the first of several, without
/// surrounding blanks and one pair of double quotes. A part without `=` is
/// skipped. Several header lines arrive joined by `; `, as nginx does it.
pub fn cookie<'a>(header: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut rest = header;
    loop {
        let end = memchr::memchr(b';', rest).unwrap_or(rest.len());
        let pair = &rest[..end];
        if let Some(equals) = memchr::memchr(b'=', pair)
            && pair[..equals].trim_ascii() == name
        {
            return Some(unquoted(pair[equals + 1..].trim_ascii()));
        }
        rest = rest.get(end + 1..)?;
    }
}

fn unquoted(value: &[u8]) -> &[u8] {
    match value {
        [b'"', inner @ .., b'"'] => inner.trim_ascii(),
        _ => value,
    }
}
