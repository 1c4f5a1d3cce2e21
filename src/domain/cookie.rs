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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn b45_cookie_grammar() {
        let rows = [
            ("sid=abc", Some("abc")),
            ("x=1 ; sid=abc", Some("abc")),
            ("x=1;sid=abc", Some("abc")),
            ("x=1;\tsid = abc \t; y=2", Some("abc")),
            ("bad; sid=abc", Some("abc")),
            ("a=b=c; sid=abc", Some("abc")),
            ("sid=\"abc\"", Some("abc")),
            // Two header lines, and what HTTP/2 splits, are joined by nginx.
            ("x=1; sid=abc; y=2", Some("abc")),
            ("; ;sid=abc;", Some("abc")),
            // The first wins everywhere.
            ("sid=abc; sid=zzz", Some("abc")),
            ("sid=; sid=zzz", Some("")),
            ("sid=a=b", Some("a=b")),
            ("sid=a b", Some("a b")),
            ("sid=\"", Some("\"")),
            ("sid=\"\"", Some("")),
            ("sid=\" \"", Some("")),
            ("sid=\"abc", Some("\"abc")),
            ("SID=abc", None),
            ("xsid=abc", None),
            ("sid", None),
            ("sidx=abc", None),
            ("x=\"; sid=abc", Some("abc")),
            ("", None),
        ];
        for (header, expected) in rows {
            assert_eq!(
                cookie(header.as_bytes(), b"sid"),
                expected.map(str::as_bytes),
                "{header}"
            );
        }
    }

    proptest! {
        #[test]
        fn as_a_split_does_it(header in "[a-b=; \"]{0,16}") {
            let naive = header.split(';').find_map(|pair| {
                let (name, value) = pair.split_once('=')?;
                (name.trim() == "a").then(|| value.trim())
            });
            let naive = naive.map(|value| {
                let inner = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
                inner.map_or(value, str::trim)
            });
            prop_assert_eq!(cookie(header.as_bytes(), b"a"), naive.map(str::as_bytes));
        }
    }
}
