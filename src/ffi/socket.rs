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
    use std::cell::Cell;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::ptr::{null, without_provenance};
    use std::rc::Rc;

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
        request: Rc<[Word; 2]>,
        connection: Rc<[Word; 4]>,
    }

    type Word = Cell<*const c_void>;

    fn number(n: usize) -> Word {
        Cell::new(without_provenance(n))
    }

    fn pretend(fd: libc::c_int) -> Pretended {
        let p = Pretended {
            request: Rc::new([number(SIGNATURE as usize), number(0)]),
            connection: Rc::new([number(0), number(0), number(0), number(fd as usize)]),
        };
        p.request[1].set(p.connection.as_ptr().cast());
        p.connection[0].set(p.request.as_ptr().cast());
        p
    }

    impl Pretended {
        fn gone(&self) -> bool {
            // SAFETY: laid out as nginx's, and alive.
            unsafe { peer_gone(self.request.as_ptr().cast()) }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no poll")]
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
        let (client, server) = UnixStream::pair().expect("a pair");
        drop(client);
        let p = pretend(server.as_raw_fd());
        p.request[0].set(without_provenance(7));
        assert!(!p.gone(), "another signature");
        let p = pretend(server.as_raw_fd());
        p.connection[0].set(null());
        assert!(!p.gone(), "a connection that is another's");
        let p = pretend(server.as_raw_fd());
        p.request[1].set(null());
        assert!(!p.gone(), "no connection");
    }
}
