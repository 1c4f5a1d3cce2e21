//! As much of an HTTP/1.1 answer as a load generator has to understand.

/// In the body of the page that a gateway gives instead of the backend's: what tells a
/// degraded answer from a bare 503.
pub const DEGRADED: &[u8] = b"<!-- degraded -->";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The backend's own.
    Full,
    /// The gateway's page in its place.
    Degraded,
    /// A bare refusal or a failure.
    Unavailable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub kind: Kind,
    /// Whether the connection can take another request.
    pub keep: bool,
    /// The worker that answered, if it says so in `X-Worker`.
    pub worker: Option<u32>,
    /// Bytes that belong to it.
    pub length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The answer at the beginning of `bytes`; `None`: not all of it is there. `closed`: nothing
/// will follow, so what has no length ends here.
pub fn parse(bytes: &[u8], closed: bool) -> Result<Option<Answer>, Malformed> {
    let Some(head) = memchr::memmem::find(bytes, b"\r\n\r\n") else {
        return Ok(None);
    };
    let mut lines = bytes[..head].split(|&byte| byte == b'\n');
    let status = lines
        .next()
        .and_then(|line| line.get(9..12))
        .and_then(number)
        .ok_or(Malformed)?;
    let (mut keep, mut worker, mut length, mut chunked) = (true, None, None, false);
    for line in lines {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(colon) = memchr::memchr(b':', line) else {
            continue;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            length = Some(number(value).ok_or(Malformed)?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            chunked = true;
        } else if name.eq_ignore_ascii_case(b"connection") {
            keep = !value.eq_ignore_ascii_case(b"close");
        } else if name.eq_ignore_ascii_case(b"x-worker") {
            worker = number(value).and_then(|pid| u32::try_from(pid).ok());
        }
    }
    let begin = head + 4;
    let end = if chunked {
        chunks_end(bytes, begin)?
    } else if let Some(length) = length {
        Some(begin + length).filter(|&end| end <= bytes.len())
    } else if status == 204 || status == 304 {
        Some(begin)
    } else {
        keep = false;
        closed.then_some(bytes.len())
    };
    let Some(end) = end else {
        return Ok(None);
    };
    let kind = if status < 400 {
        Kind::Full
    } else if memchr::memmem::find(&bytes[begin..end], DEGRADED).is_some() {
        Kind::Degraded
    } else {
        Kind::Unavailable
    };
    Ok(Some(Answer {
        kind,
        keep,
        worker,
        length: end,
    }))
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Where a chunked body that begins at `at` ends.
fn chunks_end(bytes: &[u8], mut at: usize) -> Result<Option<usize>, Malformed> {
    loop {
        let Some(line) = bytes.get(at..).and_then(|rest| {
            let end = memchr::memmem::find(rest, b"\r\n")?;
            Some(&rest[..end])
        }) else {
            return Ok(None);
        };
        let digits = line.split(|&byte| byte == b';').next().unwrap_or(line);
        let size = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| usize::from_str_radix(digits.trim(), 16).ok())
            .ok_or(Malformed)?;
        // The blank line after a chunk, or after the last.
        at += line.len() + 2 + size + 2;
        if at > bytes.len() {
            return Ok(None);
        }
        if size == 0 {
            return Ok(Some(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_whatever_their_framing_and_cut_anywhere() {
        let cases: [(&[u8], Kind, bool, Option<u32>); 5] = [
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nx-worker: 71\r\n\r\nabc",
                Kind::Full,
                true,
                Some(71),
            ),
            (
                b"HTTP/1.1 429 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxx\r\n0\r\n\r\n",
                Kind::Unavailable,
                true,
                None,
            ),
            (
                b"HTTP/1.1 204 No\r\nConnection: close\r\n\r\n",
                Kind::Full,
                false,
                None,
            ),
            (
                b"HTTP/1.1 503 Busy\r\nContent-Length: 19\r\n\r\n<!-- degraded -->ok",
                Kind::Degraded,
                true,
                None,
            ),
            (
                b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno",
                Kind::Unavailable,
                true,
                None,
            ),
        ];
        for (bytes, kind, keep, worker) in cases {
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut], false), Ok(None), "{cut} of {bytes:?}");
            }
            let mut more = bytes.to_vec();
            more.extend_from_slice(b"HTTP/1.1");
            let length = bytes.len();
            let answer = Answer {
                kind,
                keep,
                worker,
                length,
            };
            assert_eq!(parse(&more, false), Ok(Some(answer)));
        }
    }

    #[test]
    fn without_a_length_the_answer_ends_with_the_connection() {
        let bytes = b"HTTP/1.1 502 Bad Gateway\r\n\r\nhello";
        assert_eq!(parse(bytes, false), Ok(None));
        let answer = parse(bytes, true).unwrap().unwrap();
        assert_eq!((answer.kind, answer.keep), (Kind::Unavailable, false));
        assert_eq!(parse(b"nonsense\r\n\r\n", false), Err(Malformed));
        assert_eq!(
            parse(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                false
            ),
            Err(Malformed)
        );
    }
}
