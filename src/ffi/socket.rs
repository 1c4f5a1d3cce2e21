//! Has a client left whom nginx does not see leave?
//!
//! nginx looks for the end of a connection by reading from it, and finds there
//! what it has not read yet of a request's body. The kernel knows all the same
//! that the other side has closed. What is asked for is the request's socket:
//!
//! ```text
//! ngx_http_request_t  [ signature:32 "HTTP" | … ] [ connection ] …
//! ngx_connection_t    [ data: the request ] [ read ] [ write ] [ fd:32 ] …
//! ```
//!
//! Both begin like that in every nginx so far; the signature and the way back
//! from connection to request are looked at before the number is believed.
use std::ffi::c_void;

/// `NGX_HTTP_MODULE`'s signature, "HTTP" in the machine's order.
const SIGNATURE: u32 = u32::from_le_bytes(*b"HTTP");

#[repr(C)]
struct RequestHead {
    signature: u32,
    connection: *const ConnectionHead,
}

#[repr(C)]
struct ConnectionHead {
    data: *const c_void,
    read: *const c_void,
    write: *const c_void,
    fd: libc::c_int,
}

/// The other side has closed the connection, or it is broken.
///
/// # Safety
/// `r` is a living request, on nginx's thread.
pub unsafe fn peer_gone(r: *const c_void) -> bool {
    // SAFETY: the caller's promise; a request begins with its signature.
    let head = unsafe { &*r.cast::<RequestHead>() };
    if head.signature != SIGNATURE || head.connection.is_null() {
        return false;
    }
    // SAFETY: with that signature this is nginx's request, which has a connection while it lives.
    let connection = unsafe { &*head.connection };
    if connection.data != r || connection.fd < 0 {
        return false;
    }
    closed(connection.fd)
}

fn closed(fd: libc::c_int) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: one entry, ours; it does not wait.
    let n = unsafe { libc::poll(&raw mut poll, 1, 0) };
    n > 0 && poll.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let client = TcpStream::connect(listener.local_addr().expect("an address"));
        (
            client.expect("connected"),
            listener.accept().expect("one").0,
        )
    }

    /// As nginx lays them out: the signature, two words on.
    struct Pretended {
        request: Box<[usize; 2]>,
        connection: Box<[usize; 4]>,
    }

    fn pretend(fd: libc::c_int) -> Pretended {
        let mut p = Pretended {
            request: Box::new([SIGNATURE as usize, 0]),
            connection: Box::new([0, 0, 0, fd as usize]),
        };
        p.request[1] = p.connection.as_ptr() as usize;
        p.connection[0] = p.request.as_ptr() as usize;
        p
    }

    impl Pretended {
        fn gone(&self) -> bool {
            // SAFETY: laid out as nginx's, and alive.
            unsafe { peer_gone(self.request.as_ptr().cast()) }
        }
    }

    #[test]
    fn a_client_that_left_is_seen_behind_what_it_sent() {
        let (mut client, server) = pair();
        client.write_all(b"a body that nobody reads").expect("sent");
        let p = pretend(server.as_raw_fd());
        assert!(!p.gone());
        drop(client);
        let seen = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            p.gone()
        });
        assert!(seen);
    }

    #[test]
    fn what_is_no_request_has_not_left() {
        let (client, server) = pair();
        drop(client);
        let mut p = pretend(server.as_raw_fd());
        p.request[0] = 7;
        assert!(!p.gone(), "another signature");
        let mut p = pretend(server.as_raw_fd());
        p.connection[0] = 0;
        assert!(!p.gone(), "a connection that is another's");
        let mut p = pretend(server.as_raw_fd());
        p.request[1] = 0;
        assert!(!p.gone(), "no connection");
    }
}
