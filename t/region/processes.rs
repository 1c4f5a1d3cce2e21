//! Masters, workers, and what passes between them.
use sluice::domain::config;
use sluice::shm::{Attach, Error, Limit, Region};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const MIB: u64 = 1 << 20;
pub const DAY_NS: u64 = 86_400_000_000_000;

/// A child process. Killed and reaped when dropped.
pub struct Child {
    pub pid: i32,
    /// A byte in either direction says "go on".
    link: UnixStream,
    reaped: bool,
}

/// Runs `body` in a child; the process ends with it, 101 if it panics.
pub fn fork(body: impl FnOnce(&mut UnixStream)) -> Child {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    // SAFETY: this process has one thread, so the child is a whole copy.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            drop(ours);
            // A child whose parent is gone must not stay behind.
            // SAFETY: takes integers only.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let done = catch_unwind(AssertUnwindSafe(|| body(&mut theirs)));
            // SAFETY: ends the process at once, without what the parent has to
            // do at exit.
            unsafe { libc::_exit(if done.is_ok() { 0 } else { 101 }) }
        }
        pid => Child {
            pid,
            link: ours,
            reaped: false,
        },
    }
}

/// In a child: tells the parent, then waits to be told.
pub fn ready(link: &mut UnixStream) {
    say(link);
    hear(link);
}

pub fn send_pid(link: &mut UnixStream, pid: i32) {
    link.write_all(&pid.to_ne_bytes())
        .expect("the other side is there");
}

pub fn say(link: &mut UnixStream) {
    link.write_all(b".").expect("the other side is there");
}

pub fn hear(link: &mut UnixStream) {
    link.read_exact(&mut [0]).expect("the other side is there");
}

impl Child {
    pub fn wait_ready(&mut self) {
        hear(&mut self.link);
    }

    pub fn read_pid(&mut self) -> i32 {
        let mut bytes = [0; 4];
        self.link
            .read_exact(&mut bytes)
            .expect("the child is there");
        i32::from_ne_bytes(bytes)
    }

    pub fn go(&mut self) {
        say(&mut self.link);
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a child of ours that has not been reaped: the pid is its.
        assert_eq!(unsafe { libc::kill(self.pid, signal) }, 0);
    }

    /// Exit code; 128 + signal of a child that was killed.
    pub fn reap(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: a child of ours, and an integer to write to.
        assert_eq!(
            unsafe { libc::waitpid(self.pid, &raw mut status, 0) },
            self.pid
        );
        self.reaped = true;
        if libc::WIFEXITED(status) {
            libc::WEXITSTATUS(status)
        } else {
            128 + libc::WTERMSIG(status)
        }
    }

    /// `kill -9`, and gone.
    pub fn kill(mut self) {
        self.signal(libc::SIGKILL);
        assert_eq!(self.reap(), 128 + libc::SIGKILL);
    }

    /// Waits for an end without a panic.
    pub fn join(mut self) {
        assert_eq!(self.reap(), 0, "child {} failed", self.pid);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            self.signal(libc::SIGKILL);
            self.reap();
        }
    }
}

/// A directory with a region's path in it.
pub struct Place(tempfile::TempDir);

impl Place {
    /// In `/dev/shm`, as in production, where there is one.
    pub fn new() -> Place {
        let shm = Path::new("/dev/shm");
        let dir = if shm.is_dir() {
            tempfile::tempdir_in(shm)
        } else {
            tempfile::tempdir()
        };
        Place(dir.expect("a directory"))
    }

    pub fn dir(&self) -> &Path {
        self.0.path()
    }

    pub fn path(&self) -> PathBuf {
        self.dir().join("sluice")
    }

    pub fn with(&self, suffix: &str) -> PathBuf {
        self.dir().join(format!("sluice{suffix}"))
    }

    pub fn cfg(&self, size_bytes: u64) -> config::Shm {
        config::Shm {
            path: self.path(),
            size_bytes,
        }
    }

    pub fn open(&self) -> Region {
        self.try_open(MIB).expect("a region").0
    }

    pub fn try_open(&self, size_bytes: u64) -> Result<(Region, Attach), Error> {
        Region::open(&self.cfg(size_bytes))
    }

    /// As a version with layout `n` would.
    pub fn open_as(&self, n: u64) -> (Region, Attach) {
        Region::open_as(&self.cfg(MIB), n).expect("a region")
    }
}

/// A worker of this process, attached, that lives until it is killed.
pub fn idle_worker(region: &Region) -> Child {
    let mut worker = fork(|link| {
        region.attach_worker(1).expect("a line");
        ready(link);
        hear(link);
    });
    worker.wait_ready();
    worker
}

/// A limit that the clock does not touch during a test.
pub fn slow(capacity: u32) -> Limit {
    Limit::new(DAY_NS, capacity)
}

/// Small pseudo-random numbers for when to kill.
pub fn dice(state: &mut u64, most: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % most
}

pub fn pause(us: u64) {
    std::thread::sleep(Duration::from_micros(us));
}
