//! `path.lock`: who lives, as POSIX record locks of one byte each.
//!
//! ```text
//!  byte 0 … 2^20-1   a worker each: it lives as long as the byte is locked
//!  byte 2^20         held by the one worker that synchronises with the store
//!  byte 2^20 + 1     held while the region is looked for or made
//!  byte 2^20 + 2     held while a rule's entry is given to another name
//!  byte 2^20 + 3     held while a pool's place is
//!  byte 2^20 + 4     held while a lock that is lost is made anew
//!  byte 2^20 + 5     held by the one worker that speaks for the gateway's pools
//! ```
//!
//! The kernel drops them when their process dies, however it dies, so no mark
//! can outlive its owner. Locks of `flock` or of open file descriptions belong
//! to the open file, which the master keeps open; they would outlive a worker.
//!
//! Record locks belong to the process: a child does not inherit them, threads
//! share them, and a process that closes any descriptor of the file loses them
//! all. So the file is opened once, in init, and never again in that process.
use super::error::{Error, error};
use super::file;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of workers. The same in every layout, so that each can see whether
/// another's workers live.
pub const WORKERS: Range<i64> = 0..1 << 20;
pub const SYNC: i64 = 1 << 20;
pub const OPENING: i64 = SYNC + 1;
pub const RULES: i64 = SYNC + 2;
pub const POOLS: i64 = SYNC + 3;
pub const RENEW: i64 = SYNC + 4;
pub const CLUSTER: i64 = SYNC + 5;

/// The open file.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    path: PathBuf,
    pub inode: u64,
}

/// A byte held for a while; given back when dropped.
pub struct Held<'a> {
    file: &'a LockFile,
    byte: i64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.file.unlock(self.byte);
    }
}

impl LockFile {
    /// Opens the file, or makes it.
    pub fn open(path: &Path) -> Result<LockFile, Error> {
        let file = loop {
            if let Some(file) = file::open(path, true)? {
                break file;
            }
            match file::create(path)? {
                Some(file) => break file,
                None => continue, // made by another in between
            }
        };
        let inode = file
            .metadata()
            .map_err(|e| error!("{}: {e}", path.display()))?
            .ino();
        Ok(LockFile {
            file,
            path: path.into(),
            inode,
        })
    }

    fn fcntl(
        &self,
        command: libc::c_int,
        kind: libc::c_int,
        bytes: Range<i64>,
    ) -> io::Result<libc::flock> {
        // SAFETY: a C structure of integers: all zeroes is a value.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = bytes.start;
        lock.l_len = bytes.end - bytes.start;
        loop {
            // SAFETY: the descriptor is open as long as `self`, and the third
            // argument of these commands is a pointer to a `flock`.
            if unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw mut lock) } == 0 {
                return Ok(lock);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Whether this process now holds the byte. Never waits.
    pub fn try_lock(&self, byte: i64) -> Result<bool, Error> {
        match self.fcntl(libc::F_SETLK, libc::F_WRLCK, byte..byte + 1) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(e) => Err(error!("cannot lock a byte of {}: {e}", self.path.display())),
        }
    }

    pub fn unlock(&self, byte: i64) {
        // It can only fail for a descriptor that is not open.
        let _ = self.fcntl(libc::F_SETLK, libc::F_UNLCK, byte..byte + 1);
    }

    /// Waits up to `most` for a byte that is only ever held for moments.
    pub fn hold(&self, byte: i64, most: Duration) -> Result<Held<'_>, Error> {
        let until = Instant::now() + most;
        while !self.try_lock(byte)? {
            if Instant::now() > until {
                let pid = self.owner(byte..byte + 1).map_or(0, |(pid, _)| pid);
                return Err(error!(
                    "process {pid} has been at work on {} for more than {most:?}; is it stopped?",
                    self.path.display()
                ));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(Held { file: self, byte })
    }

    /// One process, other than this one, that holds any of the bytes, and which.
    /// Its pid is 0 when it lives in another PID namespace.
    pub fn owner(&self, bytes: Range<i64>) -> Option<(u32, Range<i64>)> {
        if bytes.is_empty() {
            return None;
        }
        let lock = self.fcntl(libc::F_GETLK, libc::F_WRLCK, bytes).ok()?;
        if lock.l_type == libc::F_UNLCK as libc::c_short {
            return None;
        }
        let end = if lock.l_len == 0 {
            i64::MAX
        } else {
            lock.l_start + lock.l_len
        };
        Some((lock.l_pid.max(0) as u32, lock.l_start..end))
    }

    /// All living workers other than this process.
    pub fn living(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        let mut unknown = vec![WORKERS];
        while let Some(range) = unknown.pop() {
            if let Some((pid, held)) = self.owner(range.clone()) {
                pids.push(pid);
                unknown.push(range.start..held.start);
                unknown.push(held.end..range.end);
            }
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }
}
