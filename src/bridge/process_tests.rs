//! The bridge between threads and processes, as nginx uses it: the background
//! thread has a runtime of its own, the reader blocks elsewhere.
use super::*;
use std::io::Read;
use std::thread;

struct Bridge {
    waker: Waker,
    path: PathBuf,
    thread: thread::JoinHandle<()>,
    _directory: tempfile::TempDir,
}

fn bridge() -> Bridge {
    let directory = tempfile::tempdir().expect("a directory");
    let path = socket_path(&directory.path().join("sluice"));
    let listener = Listener::bind(&path).expect("bound");
    let waker = Waker::default();
    let thread = thread::spawn({
        let waker = waker.clone();
        move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            runtime.block_on(listener.serve(waker));
        }
    });
    Bridge {
        waker,
        path,
        thread,
        _directory: directory,
    }
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).expect("it listens");
    let patience = Some(Duration::from_secs(10));
    stream.set_read_timeout(patience).expect("set");
    stream
}

#[test]
fn carries_everything_in_order_with_few_bytes() {
    let Bridge {
        waker,
        path,
        thread,
        _directory,
    } = bridge();
    let outbox = Arc::new(Outbox::new(waker.clone()));
    let mut reader = connect(&path);
    let sender = thread::spawn({
        let outbox = outbox.clone();
        move || (0..100_000u32).for_each(|item| outbox.push(item))
    });
    let (mut taken, mut bytes) = (Vec::new(), 0);
    while taken.len() < 100_000 {
        bytes += reader.read(&mut [0; 1]).expect("a byte");
        outbox.drain(&mut taken);
    }
    sender.join().expect("sent");
    assert!(taken.iter().copied().eq(0..100_000));
    assert!(bytes < 100_000, "one byte for many");
    waker.close();
    // One byte that was on its way, and the one that greeted the reader.
    let left = reader.read_to_end(&mut Vec::new());
    assert!(left.expect("closed") <= 2);
    thread.join().expect("ended");
    assert!(!path.exists());
    // A late push is no harm.
    outbox.push(0);
}

#[test]
fn closing_before_a_reader_came_ends_it() {
    let Bridge {
        waker,
        path,
        thread,
        _directory,
    } = bridge();
    waker.close();
    thread.join().expect("ended");
    assert!(!path.exists());
}

/// Another process: a child made for it, which does nothing but connect and read.
#[test]
fn no_other_process_is_let_in() {
    let Bridge {
        waker,
        path,
        thread,
        _directory,
    } = bridge();
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a name");
    // SAFETY: the child calls only async-signal-safe functions and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; the address is zeroed and at least as long as what is copied into it.
        unsafe {
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            address.sun_family = libc::AF_UNIX as u16;
            let bytes = name.as_bytes_with_nul();
            let room = address.sun_path.len();
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr().cast(),
                address.sun_path.as_mut_ptr(),
                bytes.len().min(room),
            );
            let socket = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0);
            let length = std::mem::size_of::<libc::sockaddr_un>() as u32;
            let connected = libc::connect(socket, (&raw const address).cast(), length);
            let mut byte = 0u8;
            let read = libc::read(socket, (&raw mut byte).cast(), 1);
            libc::_exit(if connected == 0 && read <= 0 { 42 } else { 1 });
        }
    }
    let mut status = 0;
    // SAFETY: our own child, a valid out pointer.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    let code = libc::WEXITSTATUS(status);
    assert_eq!(code, 42, "connected, and closed without a byte");
    // This process is.
    waker.wake();
    let mut reader = connect(&path);
    reader.read_exact(&mut [0; 1]).expect("a byte");
    waker.close();
    thread.join().expect("ended");
}

#[test]
fn a_dead_namesake_is_replaced_and_a_long_name_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("stale.sock");
    std::mem::forget(Listener::bind(&path).expect("bound"));
    assert!(Listener::bind(&path).is_ok());
    let long = directory.path().join("x".repeat(200));
    assert!(Listener::bind(&long).is_err());
}
