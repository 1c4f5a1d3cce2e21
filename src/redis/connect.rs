//! One connection to Redis: how it is made, and what is known of it.
//!
//! The `redis` crate speaks the protocol and matches replies to requests (one
//! whose request has given up is dropped); the socket is made here, so that
//! TLS is set up once, a dead connection is known at once and not by its next
//! request, and it is known whether anything of a request has left.
use super::tls;
use crate::domain::config::Store;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, RedisResult,
};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet, spawn_local};

/// Where a store is and how to log in.
pub struct Connector {
    address: Address,
    login: RedisConnectionInfo,
    tls: Option<tokio_rustls::TlsConnector>,
    resolver: Resolver,
}

enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl Connector {
    /// Errors are sentences that name the field.
    pub fn new(store: &Store) -> Result<Connector, String> {
        let url = store.url.as_deref().ok_or("store.url is not set")?;
        // The crate's own TLS is not built in, so it would not take the scheme.
        let secure = ["rediss://", "valkeys://"]
            .iter()
            .find_map(|it| url.strip_prefix(it));
        let plain = secure.map(|rest| format!("redis://{rest}"));
        let info = plain.as_deref().unwrap_or(url).into_connection_info();
        let info = info.map_err(|error| format!("store.url: {error}"))?;
        // `CLIENT SETINFO` is younger than many servers and forbidden by many users.
        let mut login = info.redis_settings().clone().set_skip_set_lib_name();
        if let Some(username) = &store.username {
            login = login.set_username(username);
        }
        if let Some(password) = &store.password {
            login = login.set_password(&password.0);
        }
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Address::Tcp(host.clone(), *port),
            ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
            _ => return Err("store.url: not a kind of address that is known here".to_owned()),
        };
        let tls = match secure {
            Some(_) => Some(tls::client_config(store.tls.as_ref())?.into()),
            None => None,
        };
        Ok(Connector {
            address,
            login,
            tls,
            resolver: Resolver::default(),
        })
    }

    /// Connects and logs in; sends `SELECT` only for another database than 0. No
    /// time-out of its own. Inside a `LocalSet`.
    pub async fn open(&self) -> RedisResult<Link> {
        let written = Arc::new(AtomicU64::new(0));
        let socket;
        let inner: Box<dyn Stream> = match &self.address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                socket = stream.as_raw_fd();
                Box::new(stream)
            }
            Address::Tcp(host, port) => {
                let stream = connect(self.resolver.resolve(host, *port).await?).await?;
                socket = stream.as_raw_fd();
                match &self.tls {
                    None => Box::new(stream),
                    Some(tls) => {
                        let name = host.clone().try_into().map_err(|_| {
                            let what = "the host is not a name that a certificate can have";
                            RedisError::from((ErrorKind::InvalidClientConfig, what))
                        })?;
                        Box::new(tls.connect(name, stream).await?)
                    }
                }
            }
        };
        let stream = Counted {
            inner,
            written: written.clone(),
        };
        // Time-outs are the callers', who know their budgets.
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(4096);
        let (mux, driver) =
            MultiplexedConnection::new_with_config(&self.login, stream, config).await?;
        let end = Rc::new(End::default());
        let driver = spawn_local({
            let end = end.clone();
            async move {
                driver.await;
                end.closed.set(true);
                end.notify.notify_waiters();
            }
        });
        let (driver, now) = (driver.abort_handle(), Instant::now());
        Ok(Link {
            mux,
            written,
            end,
            driver,
            socket,
            under_way: Cell::new(0),
            opened: now,
            last_reply: Cell::new(now),
        })
    }
}

#[derive(Default)]
struct End {
    closed: Cell<bool>,
    notify: Notify,
}

/// A connection. Dropping it closes it.
pub struct Link {
    mux: MultiplexedConnection,
    written: Arc<AtomicU64>,
    end: Rc<End>,
    driver: AbortHandle,
    /// The driver's, open as long as `end` is not set.
    socket: RawFd,
    /// Calls without a reply yet.
    under_way: Cell<u32>,
    opened: Instant,
    last_reply: Cell<Instant>,
}

impl Link {
    pub fn mux(&self) -> MultiplexedConnection {
        self.mux.clone()
    }

    pub fn opened(&self) -> Instant {
        self.opened
    }

    pub fn is_closed(&self) -> bool {
        self.end.closed.get()
    }

    pub async fn closed(&self) {
        while !self.is_closed() {
            self.end.notify.notified().await;
        }
    }

    /// Bytes handed to the socket so far. While it stands still nothing has left.
    pub fn written(&self) -> u64 {
        // Relaxed: written and read by one thread.
        self.written.load(Ordering::Relaxed)
    }

    /// Counts a call until the guard is dropped.
    pub fn call(&self) -> impl Drop + '_ {
        self.under_way.set(self.under_way.get() + 1);
        Call(&self.under_way)
    }

    /// The other side has closed and nothing is under way that would notice.
    /// The runtime may learn of that later than the next request comes.
    pub fn is_dropped(&self) -> bool {
        if self.is_closed() || self.under_way.get() > 0 {
            return self.is_closed();
        }
        let mut poll = libc::pollfd {
            fd: self.socket,
            events: libc::POLLRDHUP,
            revents: 0,
        };
        // SAFETY: one valid structure, the descriptor is open (the driver, whose it is, closes it
        // in this thread and sets `end` in the same breath).
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
    }

    pub fn note_reply(&self) {
        self.last_reply.set(Instant::now());
    }

    /// The last reply, or else the connecting.
    pub fn last_reply(&self) -> Instant {
        self.last_reply.get()
    }

    /// What is under way on it fails.
    pub fn close(&self) {
        self.driver.abort();
        self.end.closed.set(true);
        self.end.notify.notify_waiters();
    }
}

struct Call<'a>(&'a Cell<u32>);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The first of the addresses that answers.
async fn connect(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    for address in addresses {
        attempts.spawn(async move {
            let socket = match address {
                SocketAddr::V4(_) => TcpSocket::new_v4()?,
                SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            socket.set_keepalive(true)?;
            socket.set_nodelay(true)?;
            socket.connect(address).await
        });
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => {}
        }
    }
    Err(last)
}

/// A dead name server answers after half a minute, each look-up is a thread
/// all that while: one at a time, whoever asks meanwhile waits for the same.
#[derive(Default)]
struct Resolver {
    under_way: RefCell<Option<watch::Receiver<Option<Found>>>>,
}

type Found = Result<Vec<SocketAddr>, String>;

impl Resolver {
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let mut under_way = self.under_way.borrow().clone();
        // A finished look-up is not a cache.
        if under_way
            .as_ref()
            .is_none_or(|look_up| look_up.borrow().is_some())
        {
            let (send, receive) = watch::channel(None);
            let host = host.to_owned();
            spawn_local(async move {
                let found = tokio::net::lookup_host((host, port)).await;
                let found = found
                    .map(Iterator::collect)
                    .map_err(|error| error.to_string());
                send.send_replace(Some(found));
            });
            self.under_way.replace(Some(receive.clone()));
            under_way = Some(receive);
        }
        let mut under_way = under_way.ok_or(io::ErrorKind::Other)?;
        let found = under_way
            .wait_for(Option::is_some)
            .await
            .map_err(io::Error::other)?
            .clone();
        found.unwrap_or(Ok(Vec::new())).map_err(io::Error::other)
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Counts what is written.
struct Counted {
    inner: Box<dyn Stream>,
    written: Arc<AtomicU64>,
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = done {
            // Relaxed: written and read by one thread.
            self.written.fetch_add(count as u64, Ordering::Relaxed);
        }
        done
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}
