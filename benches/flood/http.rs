//! As much HTTP/1.1 as a demo shop needs.

use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A head longer than this is refused.
const HEAD_MAX_BYTES: usize = 16 * 1024;

/// A connection and what has been read of it but not used.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// A request, as the shop reads it.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub level: Option<String>,
    /// What the load generator says it is; for counting only.
    pub kind: Option<String>,
    pub keep: bool,
}

impl Connection {
    pub fn new(stream: TcpStream) -> Connection {
        // Without it a request would wait for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        Connection {
            stream,
            buffer: Vec::new(),
        }
    }

    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads until the blank line, and cuts the head off the buffer. `None`: the peer has
    /// closed without beginning another.
    async fn head(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                self.buffer.drain(..end + 4);
                return Ok(Some(head));
            }
            if self.buffer.len() > HEAD_MAX_BYTES {
                return Err(io::Error::other("head too long"));
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    async fn skip(&mut self, length: usize) -> io::Result<()> {
        while self.buffer.len() < length {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.buffer.drain(..length);
        Ok(())
    }

    async fn skip_chunks(&mut self) -> io::Result<()> {
        loop {
            let line = loop {
                if let Some(end) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                    let line = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                    self.buffer.drain(..end + 2);
                    break line;
                }
                if self.stream.read_buf(&mut self.buffer).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            };
            let digits = line.split(';').next().unwrap_or("").trim();
            let length = usize::from_str_radix(digits, 16)
                .map_err(|_| io::Error::other("chunk without a length"))?;
            // The blank line after a chunk, or after the last.
            self.skip(length + 2).await?;
            if length == 0 {
                return Ok(());
            }
        }
    }

    /// Reads one request, its body too. `None`: the client is done.
    pub async fn request(&mut self) -> io::Result<Option<Request>> {
        let Some(head) = self.head().await? else {
            return Ok(None);
        };
        let mut words = head.lines().next().unwrap_or("").split(' ');
        let (Some(method), Some(path), Some(version)) = (words.next(), words.next(), words.next())
        else {
            return Err(io::Error::other("no request line"));
        };
        let asked = field(&head, "connection").map(str::to_ascii_lowercase);
        let keep = match asked.as_deref() {
            Some("close") => false,
            Some("keep-alive") => true,
            _ => version == "HTTP/1.1",
        };
        let request = Request {
            method: method.to_owned(),
            path: path.to_owned(),
            level: field(&head, "x-sluice-level").map(str::to_owned),
            kind: field(&head, "x-kind").map(str::to_owned),
            keep,
        };
        if let Some(length) = field(&head, "content-length") {
            let length = length.parse().map_err(|_| io::Error::other("bad length"))?;
            self.skip(length).await?;
        } else if field(&head, "transfer-encoding").is_some() {
            self.skip_chunks().await?;
        }
        Ok(Some(request))
    }
}

/// The first field of that (lower-case) name.
fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// A connection on which the peer has sent `bytes` and closed.
    async fn sent(bytes: &'static [u8]) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::task::spawn_local(async move {
            let mut peer = TcpStream::connect(address).await.unwrap();
            peer.write_all(bytes).await.unwrap();
        });
        Connection::new(listener.accept().await.unwrap().0)
    }

    #[test]
    fn requests_with_a_body_and_without() {
        crate::on_this_thread(async {
            let mut connection = sent(
                b"POST /api/order HTTP/1.1\r\nContent-Length: 2\r\nX-Sluice-Level: 1\r\n\r\n{}\
                  POST / HTTP/1.1\r\nX-Kind: core\r\nTransfer-Encoding: chunked\r\n\r\n\
                  2\r\nxx\r\n0\r\n\r\nGET / HTTP/1.0\r\n\r\n",
            )
            .await;
            let first = connection.request().await.unwrap().unwrap();
            assert_eq!((first.path.as_str(), first.keep), ("/api/order", true));
            assert_eq!(first.level.as_deref(), Some("1"));
            let chunked = connection.request().await.unwrap().unwrap();
            assert_eq!(chunked.kind.as_deref(), Some("core"));
            let second = connection.request().await.unwrap().unwrap();
            assert_eq!((second.method.as_str(), second.keep), ("GET", false));
            assert_eq!(connection.request().await.unwrap(), None);
        })
        .unwrap();
    }
}
