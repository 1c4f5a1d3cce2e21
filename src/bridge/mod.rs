//! Waking nginx's event loop from a thread that nginx does not know.
//!
//! The thread puts what is finished into an outbox and writes a byte to a Unix
//! socket; a light thread of this worker reads it with a cosocket and collects
//! the outbox. At most one byte is on its way, so a thousand results wake nginx
//! once. No patch to nginx and no call into Lua: the kernel carries the news.
//!
//! The socket's file lies beside the region. It takes one peer, this very
//! process, and is unlinked while that peer is connected.
use parking_lot::Mutex;
use std::io::{ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;

/// `path.<pid>.sock`, where nginx's light thread connects.
pub fn socket_path(shm_path: &Path) -> PathBuf {
    let mut name = shm_path.as_os_str().to_owned();
    name.push(format!(".{}.sock", std::process::id()));
    name.into()
}

#[derive(Default)]
struct State {
    /// A byte has been written that the reader has not answered with a `drain` yet.
    pending: AtomicBool,
    /// Our end of the connection, while there is one.
    peer: Mutex<Option<UnixStream>>,
    closed: AtomicBool,
    closing: Notify,
}

/// Wakes the reader: at most one byte is on its way.
#[derive(Clone, Default)]
pub struct Waker {
    state: Arc<State>,
}

impl Waker {
    /// Never blocks. Without a reader nothing happens: it collects when it connects.
    pub fn wake(&self) {
        // AcqRel, with the swap in `taken`: whoever finds the flag set knows that a collection
        // begins after this point, and what was put into the outbox before is seen by it.
        if !self.state.pending.swap(true, Ordering::AcqRel) {
            self.write();
        }
    }

    fn write(&self) {
        if let Some(peer) = &mut *self.state.peer.lock() {
            // A full socket has bytes that wake the reader; a broken one is noticed by `serve`.
            let _ = peer.write(b"!");
        }
    }

    /// The reader has woken and collects from here on.
    fn taken(&self) {
        self.state.pending.swap(false, Ordering::AcqRel); // with `wake`
    }

    /// The reader ends; `serve` returns.
    pub fn close(&self) {
        self.state.closed.store(true, Ordering::Release); // read by `closed`
        // Shut down, so that the reader sees the end even if our descriptor lives a little longer.
        if let Some(peer) = self.state.peer.lock().take() {
            let _ = peer.shutdown(std::net::Shutdown::Both);
        }
        self.state.closing.notify_one();
    }

    fn closed(&self) -> bool {
        self.state.closed.load(Ordering::Acquire) // written by `close`
    }
}

/// The listening socket; made in init_worker, before the thread and the light thread.
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Gone already while a reader is connected.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Listener {
    /// Errors: the directory is not writable, the path is too long for a socket.
    pub fn bind(path: &Path) -> Result<Listener, String> {
        let said = |e: std::io::Error| e.to_string();
        // Left by a process of the same number that was killed.
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(said(e)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(said)?;
        // Between bind and chmod others could connect; they are turned away by their number.
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).map_err(said)?;
        listener.set_nonblocking(true).map_err(said)?;
        Ok(Listener {
            listener,
            path: path.into(),
        })
    }

    /// Runs in the thread: takes this process's connection, unlinks the
    /// socket, and listens again when the reader has gone, until `waker.close()`.
    pub async fn serve(self, waker: Waker) {
        let mut this = self;
        while !waker.closed() {
            let Some(peer) = this.accept(&waker).await else {
                return;
            };
            // One peer is all there will be; a new reader finds a new socket.
            let _ = std::fs::remove_file(&this.path);
            if !attend(peer, &waker).await {
                return;
            }
            let path = this.path.clone();
            loop {
                if waker.closed() {
                    return;
                }
                match Listener::bind(&path) {
                    Ok(l) => {
                        // The old one's drop would unlink the new one's file.
                        let mut old = std::mem::replace(&mut this, l);
                        old.path = PathBuf::new();
                        break;
                    }
                    // Waiters look themselves meanwhile.
                    Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
                }
            }
        }
    }

    /// The next connection of this process. `None`: closed, or the socket is of no use.
    async fn accept(&self, waker: &Waker) -> Option<UnixStream> {
        let listener = self.listener.try_clone().ok()?;
        let listener = tokio::net::UnixListener::from_std(listener).ok()?;
        loop {
            if waker.closed() {
                return None;
            }
            tokio::select! {
                () = waker.state.closing.notified() => return None,
                taken = listener.accept() => match taken {
                    Ok((stream, _)) => {
                        let own = stream.peer_cred().ok().and_then(|c| c.pid())
                            == i32::try_from(std::process::id()).ok();
                        if own {
                            return stream.into_std().ok();
                        }
                    }
                    // Out of descriptors: later.
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                },
            }
        }
    }
}

/// Lets the waker use the connection until the reader goes. False: closed.
async fn attend(peer: UnixStream, waker: &Waker) -> bool {
    let Ok(ours) = peer.try_clone() else {
        return true;
    };
    *waker.state.peer.lock() = Some(ours);
    // What was put into the outbox before there was a reader.
    waker.write();
    let gone = async {
        let Ok(mut stream) = tokio::net::UnixStream::from_std(peer) else {
            return;
        };
        let mut byte = [0u8; 16];
        // The reader never writes; anything but its end is ignored.
        while !matches!(stream.read(&mut byte).await, Ok(0) | Err(_)) {}
    };
    tokio::select! {
        () = waker.state.closing.notified() => false,
        () = gone => {
            *waker.state.peer.lock() = None;
            // The next reader has to be woken anew.
            waker.taken();
            true
        }
    }
}

/// What the thread hands to nginx.
pub struct Outbox<T> {
    items: Mutex<Vec<T>>,
    waker: Waker,
}

impl<T> Outbox<T> {
    pub fn new(waker: Waker) -> Outbox<T> {
        Outbox {
            items: Mutex::new(Vec::new()),
            waker,
        }
    }

    /// From the thread.
    pub fn push(&self, item: T) {
        self.items.lock().push(item);
        self.waker.wake();
    }

    /// From the thread: many at once, for one wake-up.
    pub fn extend(&self, items: impl Iterator<Item = T>) {
        self.items.lock().extend(items);
        self.waker.wake();
    }

    /// In nginx's thread: everything so far, in order, appended to `into`.
    pub fn drain(&self, into: &mut Vec<T>) {
        // First the flag, then the items: what comes in between wakes again.
        self.waker.taken();
        into.append(&mut self.items.lock());
    }
}

#[cfg(test)]
mod process_tests;
#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn with_runtime(test: impl AsyncFnOnce(PathBuf)) {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("s.sock");
        let rt = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let local = tokio::task::LocalSet::new();
        local.block_on(&rt, test(path));
    }

    async fn until(what: &str, mut f: impl FnMut() -> bool) {
        for _ in 0..500 {
            if f() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{what} did not come about");
    }

    fn connect(path: &Path) -> UnixStream {
        let s = UnixStream::connect(path).expect("a listener");
        s.set_nonblocking(true).expect("a socket");
        s
    }

    #[test]
    fn many_results_wake_the_reader_once_until_it_collects() {
        with_runtime(async |path| {
            let waker = Waker::default();
            let outbox = Outbox::new(waker.clone());
            outbox.push(0);
            let l = Listener::bind(&path).expect("bind");
            tokio::task::spawn_local(l.serve(waker.clone()));
            let mut reader = connect(&path);
            until("the unlinking", || !path.exists()).await;
            let mut got = Vec::new();
            let mut buf = [0u8; 64];
            until("the first byte", || {
                reader.read(&mut buf).is_ok_and(|n| n == 1)
            })
            .await;
            outbox.drain(&mut got);
            for i in 1..1000 {
                outbox.push(i);
            }
            assert_eq!(reader.read(&mut buf).expect("a byte"), 1);
            assert_eq!(
                reader.read(&mut buf).map_err(|e| e.kind()),
                Err(ErrorKind::WouldBlock)
            );
            outbox.drain(&mut got);
            assert_eq!(got, (0..1000).collect::<Vec<_>>());
            waker.close();
            until("the end", || reader.read(&mut buf).is_ok_and(|n| n == 0)).await;
        });
    }

    #[test]
    fn a_reader_that_goes_can_come_again() {
        with_runtime(async |path| {
            let waker = Waker::default();
            let l = Listener::bind(&path).expect("bind");
            let serving = tokio::task::spawn_local(l.serve(waker.clone()));
            for _ in 0..3 {
                let reader = connect(&path);
                until("the unlinking", || !path.exists()).await;
                drop(reader);
                until("the next socket", || path.exists()).await;
            }
            waker.close();
            serving.await.expect("serve ends");
            assert!(!path.exists(), "nothing is left behind");
        });
    }
}
