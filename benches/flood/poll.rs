//! The kernel's side of the generator: connections from an address of one's own, and
//! waiting for whatever happens on any of them. All the unsafe code of this program.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// As many happenings as one wait brings.
const BATCH: usize = 256;

pub struct Poller {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

impl Poller {
    pub fn new() -> io::Result<Poller> {
        // SAFETY: no memory is handed over.
        let epoll = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Poller {
            // SAFETY: just opened, and nobody else has it.
            epoll: unsafe { OwnedFd::from_raw_fd(epoll) },
            events: vec![libc::epoll_event { events: 0, u64: 0 }; BATCH],
        })
    }

    /// Once for a connection's life; `token` comes back with whatever happens on it. Each
    /// happening is told once, so all that there is has to be read.
    pub fn add(&self, stream: &TcpStream, token: u64) -> io::Result<()> {
        let wanted = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let mut event = libc::epoll_event {
            events: wanted as u32,
            u64: token,
        };
        // SAFETY: both descriptors are open as long as they are borrowed, and the kernel
        // copies the event.
        checked(unsafe {
            libc::epoll_ctl(
                self.epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                stream.as_raw_fd(),
                &mut event,
            )
        })?;
        Ok(())
    }

    /// Waits for at most `longest`, to the microsecond (epoll's own timeout has steps of a
    /// millisecond), and puts the tokens of those on which something happened into `tokens`.
    pub fn wait(&mut self, longest: Duration, tokens: &mut Vec<u64>) -> io::Result<()> {
        tokens.clear();
        let mut ready = libc::pollfd {
            fd: self.epoll.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let timeout = libc::timespec {
            tv_sec: longest.as_secs() as libc::time_t,
            tv_nsec: longest.subsec_nanos().into(),
        };
        // SAFETY: one pollfd and one timespec, both alive during the call; no signal mask.
        let number = checked(unsafe { libc::ppoll(&mut ready, 1, &timeout, std::ptr::null()) });
        match number {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        };
        // SAFETY: room for BATCH events, which the kernel fills from the front.
        let number = checked(unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                BATCH as libc::c_int,
                0,
            )
        })?;
        tokens.extend(self.events[..number as usize].iter().map(|event| event.u64));
        Ok(())
    }
}

/// Begins a connection from an address of this machine; what is written before it stands
/// gives `WouldBlock`.
pub fn connect(from: Ipv4Addr, to: SocketAddrV4) -> io::Result<TcpStream> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is handed over.
    let fd = checked(unsafe { libc::socket(libc::AF_INET, kind, 0) })?;
    // SAFETY: just opened, and nobody else has it.
    let stream = unsafe { TcpStream::from_raw_fd(fd) };
    // Without it a request would wait for the acknowledgement of the one before.
    stream.set_nodelay(true)?;
    // The port is chosen by connect(), which knows the other end: only then may two
    // connections to different ends have the same.
    let one: libc::c_int = 1;
    set_option(
        &stream,
        libc::IPPROTO_IP,
        libc::IP_BIND_ADDRESS_NO_PORT,
        &one,
    )?;
    let (from, size) = (address(SocketAddrV4::new(from, 0)), ADDRESS_SIZE);
    // SAFETY: an address of that size, alive during the call.
    checked(unsafe { libc::bind(fd, (&raw const from).cast(), size) })?;
    let to = address(to);
    // SAFETY: as above.
    match checked(unsafe { libc::connect(fd, (&raw const to).cast(), size) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(stream),
    }
}

/// Closes with a reset and not in the polite way.
pub fn reset(stream: TcpStream) {
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let _ = set_option(&stream, libc::SOL_SOCKET, libc::SO_LINGER, &at_once);
}

/// Ends a process at once.
pub fn kill(pid: u32) -> io::Result<()> {
    // SAFETY: no memory is handed over.
    checked(unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) }).map(|_| ())
}

const ADDRESS_SIZE: libc::socklen_t = size_of::<libc::sockaddr_in>() as libc::socklen_t;

fn address(of: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: of.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*of.ip()).to_be(),
        },
        sin_zero: [0; 8],
    }
}

fn set_option<T: Copy>(
    stream: &TcpStream,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: a plain value of that size, which the kernel copies.
    checked(unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size,
        )
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Instant;

    #[test]
    fn a_connection_comes_from_the_address_asked_for_and_is_told_of() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let std::net::SocketAddr::V4(to) = listener.local_addr().unwrap() else {
            panic!("no IPv4 address");
        };
        let mut poller = Poller::new().unwrap();
        let mut stream = connect(Ipv4Addr::new(127, 20, 3, 4), to).unwrap();
        poller.add(&stream, 77).unwrap();
        let (mut peer, from) = listener.accept().unwrap();
        assert_eq!(from.ip(), Ipv4Addr::new(127, 20, 3, 4));
        let mut tokens = Vec::new();
        poller.wait(Duration::from_secs(5), &mut tokens).unwrap();
        assert_eq!(tokens, [77]);

        // Told once: nothing new until the peer sends something.
        poller.wait(Duration::from_millis(2), &mut tokens).unwrap();
        assert!(tokens.is_empty());
        peer.write_all(b"x").unwrap();
        poller.wait(Duration::from_secs(5), &mut tokens).unwrap();
        assert_eq!(tokens, [77]);

        reset(stream.try_clone().unwrap());
        stream.write_all(b"y").unwrap();
        drop(stream);
        let mut got = Vec::new();
        let end = peer.read_to_end(&mut got).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn waits_are_finer_than_a_millisecond() {
        let mut poller = Poller::new().unwrap();
        let best = (0..20)
            .map(|_| {
                let begun = Instant::now();
                poller
                    .wait(Duration::from_micros(200), &mut Vec::new())
                    .unwrap();
                begun.elapsed()
            })
            .min()
            .unwrap();
        assert!(best >= Duration::from_micros(200), "{best:?}");
        assert!(best < Duration::from_micros(900), "{best:?}");
    }
}
