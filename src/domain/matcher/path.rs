//! The path of a request line as nginx makes `$uri` of it, so that a rewrite
//! does not change what a rule is matched against.
//!
//! Follows `ngx_http_parse_complex_uri` with `merge_slashes on`, to the byte:
//! what one escape means is decided by the same states.

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Usual,
    /// After `/`.
    Slash,
    /// After `/.`
    Dot,
    /// After `/..`
    DotDot,
}

/// Writes the path of `request_uri` (`$request_uri`: path and query) into `out`
/// (cleared first): query and fragment cut, `%XX` decoded, slashes merged, `.` and
/// `..` resolved. `false`: nginx refuses such a request, `out` is of no use.
pub fn normalise_path(request_uri: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    match request_uri.first() {
        Some(b'/') => {}
        // `GET http://host?x`: the path is empty.
        None | Some(b'?' | b'#') => {
            out.push(b'/');
            return true;
        }
        Some(_) => return false,
    }
    let mut state = State::Usual;
    let mut rest = request_uri;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let mut byte = byte;
        if byte == b'%' {
            let Some((decoded, after)) = decode(after) else {
                return false;
            };
            rest = after;
            match decoded {
                0 => return false,
                // Decoded, these are plain characters.
                b'%' | b'#' | b'?' => {
                    out.push(decoded);
                    state = State::Usual;
                    continue;
                }
                _ => byte = decoded,
            }
        } else if byte == b'?' || byte == b'#' {
            break;
        }
        state = match (state, byte) {
            (State::Usual, b'/') => {
                out.push(b'/');
                State::Slash
            }
            (State::Slash, b'/') => State::Slash,
            (State::Dot, b'/') => {
                out.pop();
                State::Slash
            }
            (State::DotDot, b'/') => {
                if !parent(out) {
                    return false;
                }
                State::Slash
            }
            (State::Slash, b'.') => {
                out.push(b'.');
                State::Dot
            }
            (State::Dot, b'.') => {
                out.push(b'.');
                State::DotDot
            }
            (_, byte) => {
                out.push(byte);
                State::Usual
            }
        };
    }
    match state {
        State::Usual | State::Slash => true,
        State::Dot => {
            out.pop();
            true
        }
        State::DotDot => parent(out),
    }
}

fn decode(digits: &[u8]) -> Option<(u8, &[u8])> {
    let ([high, low], rest) = digits.split_first_chunk::<2>()?;
    let high = char::from(*high).to_digit(16)?;
    let low = char::from(*low).to_digit(16)?;
    Some(((high * 16 + low) as u8, rest))
}

/// Cuts `/..` and the segment before it; there must be one.
fn parent(out: &mut Vec<u8>) -> bool {
    out.truncate(out.len() - 3);
    match memchr::memrchr(b'/', out) {
        Some(slash) => {
            out.truncate(slash + 1);
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn normal(uri: &str) -> Option<String> {
        let mut out = b"rest of the last".to_vec();
        normalise_path(uri.as_bytes(), &mut out)
            .then(|| out.iter().map(|byte| char::from(*byte)).collect())
    }

    #[test]
    fn as_nginx_does_it() {
        let rows = [
            ("/", Some("/")),
            ("/a?b", Some("/a")),
            ("/a#b", Some("/a")),
            ("/?", Some("/")),
            ("", Some("/")),
            ("?x", Some("/")),
            ("/a/", Some("/a/")),
            ("//a///b", Some("/a/b")),
            ("/a/./b", Some("/a/b")),
            ("/a/.", Some("/a/")),
            ("/.", Some("/")),
            ("/.?x", Some("/")),
            ("/a/../b", Some("/b")),
            ("/a/..", Some("/")),
            ("/a/..?x", Some("/")),
            ("/a/b/../..", Some("/")),
            ("/a//../b", Some("/b")),
            ("/..", None),
            ("/../a", None),
            ("/a/../..", None),
            ("/...", Some("/...")),
            ("/..a", Some("/..a")),
            ("/.a", Some("/.a")),
            ("/a.", Some("/a.")),
            ("/a..", Some("/a..")),
            ("/a/..b/", Some("/a/..b/")),
            ("/%61pi", Some("/api")),
            ("/%2e%2E/a", None),
            ("/a/%2e%2e/b", Some("/b")),
            ("/a%2fb", Some("/a/b")),
            ("/a%2f%2f/b", Some("/a/b")),
            ("/a%2F..%2Fb", Some("/b")),
            // Escaped, a question mark, a hash and a percent sign are themselves.
            ("/a%3fb", Some("/a?b")),
            ("/a%3Fb?c", Some("/a?b")),
            ("/a%23b", Some("/a#b")),
            ("/a%2541", Some("/a%41")),
            ("/%3f/../b", Some("/b")),
            ("/.%3f", Some("/.?")),
            ("/..%25/a", Some("/..%/a")),
            ("/a%0ab", Some("/a\nb")),
            ("/a%ffb", Some("/a\u{ff}b")),
            ("/a+b%2b", Some("/a+b+")),
            ("/a%00", None),
            ("/a%", None),
            ("/a%4", None),
            ("/a%4g", None),
            ("/a%g4", None),
            ("/a%?4", None),
            ("a", None),
            ("*", None),
        ];
        for (uri, expected) in rows {
            assert_eq!(normal(uri).as_deref(), expected, "{uri}");
        }
    }

    /// Decoded at once, split at slashes, resolved with a stack.
    fn naive(uri: &str) -> Option<String> {
        let path = uri.split(['?', '#']).next().unwrap();
        let mut decoded = String::new();
        let mut chars = path.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                decoded.push(c);
                continue;
            }
            let (high, low) = (chars.next()?.to_digit(16)?, chars.next()?.to_digit(16)?);
            decoded.push(char::from((high * 16 + low) as u8));
        }
        if decoded.contains('\0') {
            return None;
        }
        let mut stack: Vec<&str> = Vec::new();
        let segments: Vec<&str> = decoded.split('/').skip(1).collect();
        for segment in &segments {
            match *segment {
                "" | "." => {}
                ".." => {
                    stack.pop()?;
                }
                name => stack.push(name),
            }
        }
        let open = matches!(segments.last(), None | Some(&"" | &"." | &".."));
        let end = if open && !stack.is_empty() { "/" } else { "" };
        Some(format!("/{}{end}", stack.join("/")))
    }

    proptest! {
        #[test]
        fn as_a_stack_does_it(
            uri in "(/|/|\\.|\\.|a|%2[eEfF35]|%3f|%61|%00|%|\\?|#){0,24}"
        ) {
            let uri = format!("/{uri}");
            prop_assert_eq!(normal(&uri), naive(&uri));
        }

        #[test]
        fn once_is_enough(uri in "/([a/.]|%2[ef]){0,24}") {
            if let Some(path) = normal(&uri) {
                prop_assert_eq!(normal(&path), Some(path));
            }
        }

        #[test]
        fn any_bytes(uri in proptest::collection::vec(any::<u8>(), 0..64)) {
            normalise_path(&uri, &mut Vec::new());
        }
    }
}
