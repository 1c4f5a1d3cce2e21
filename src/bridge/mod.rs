//! Waking nginx's event loop from the background thread (skeleton).
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `path.<pid>.sock`, where nginx's light thread connects.
pub fn socket_path(shm_path: &Path) -> PathBuf {
    let mut name = shm_path.as_os_str().to_owned();
    name.push(format!(".{}.sock", std::process::id()));
    name.into()
}

/// Wakes the reader: at most one byte is on its way.
#[derive(Clone, Default)]
pub struct Waker {}

impl Waker {
    pub fn wake(&self) {
        todo!()
    }
    /// The reader ends; `serve` returns.
    pub fn close(&self) {
        todo!()
    }
}

/// The listening socket; made in init_worker, before the thread and the light thread.
pub struct Listener {}

impl Listener {
    pub fn bind(_path: &Path) -> Result<Listener, String> {
        todo!()
    }
    /// Runs in the thread: takes this process's connection, unlinks the
    /// socket, and listens again when the reader has gone, until `waker.close()`.
    pub async fn serve(self, _waker: Waker) {
        todo!()
    }
}

/// What the thread hands to nginx.
pub struct Outbox<T> {
    _items: Arc<std::sync::Mutex<Vec<T>>>,
}

impl<T> Outbox<T> {
    pub fn new(_waker: Waker) -> Outbox<T> {
        todo!()
    }
    /// From the thread.
    pub fn push(&self, _item: T) {
        todo!()
    }
    /// In nginx's thread: everything so far, in order, appended to `into`.
    pub fn drain(&self, _into: &mut Vec<T>) {
        todo!()
    }
}
