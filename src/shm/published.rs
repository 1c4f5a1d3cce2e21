//! What one worker publishes for all: immutable files `path.<kind>.<n>`, and
//! in the region the number in force.
use super::error::{Error, error};
use super::file;
use super::memory::Memory;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// What is published as immutable files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Config,
    Files,
    Allow,
    Block,
    Bans,
}

impl Kind {
    pub const ALL: [Kind; 5] = [
        Kind::Config,
        Kind::Files,
        Kind::Allow,
        Kind::Block,
        Kind::Bans,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Config => "config",
            Kind::Files => "lists.files",
            Kind::Allow => "lists.allow",
            Kind::Block => "lists.block",
            Kind::Bans => "lists.bans",
        }
    }
}

/// The bytes of a published file. They stay when the file is replaced.
pub struct Mapped(Memory);

impl std::ops::Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the file was written before its number was published, and is
        // never written again; only its owner or root could.
        unsafe { self.0.bytes() }
    }
}

impl Mapped {
    /// The same bytes on the heap, for tests and for what was never published.
    pub fn from_bytes(bytes: &[u8]) -> Mapped {
        Mapped(Memory::copy_of(bytes))
    }
}

fn path_of(base: &Path, kind: Kind, number: u64) -> PathBuf {
    file::beside(base, format_args!("{}.{number}", kind.name()))
}

/// Writes a new file, puts its number in force, and removes all but it and the
/// one before it, which a worker may be about to map.
pub fn publish(base: &Path, kind: Kind, number: &AtomicU64, bytes: &[u8]) -> Result<u64, Error> {
    // A name that is taken is a leftover, or a squatter's, who cannot guess far.
    for _ in 0..16 {
        // Acquire: with the release below, of the publisher before us.
        let current = number.load(Acquire);
        let mut next = current + 1;
        let (path, mut new) = loop {
            let path = path_of(base, kind, next);
            match file::create(&path)? {
                Some(file) => break (path, file),
                None => next += 1 + file::random()[0] % (1 << 20),
            }
        };
        if let Err(e) = new.write_all(bytes) {
            let _ = std::fs::remove_file(&path);
            return Err(error!(
                "cannot write {} bytes to {}: {e}; what was published before stays in force",
                bytes.len(),
                path.display()
            ));
        }
        // Release: with the acquire of whoever reads the number and maps the file.
        if number
            .compare_exchange(current, next, AcqRel, Relaxed)
            .is_ok()
        {
            file::remove_numbered(base, kind.name(), |n| n < next && n != current);
            return Ok(next);
        }
        let _ = std::fs::remove_file(&path);
    }
    Err(error!(
        "cannot publish {}: others publish at the same time",
        kind.name()
    ))
}

/// Maps a published file.
pub fn open(base: &Path, kind: Kind, number: u64) -> Result<Mapped, Error> {
    let path = path_of(base, kind, number);
    let Some(file) = file::open(&path, false)? else {
        return Err(error!(
            "{} is gone; a newer one has been published",
            path.display()
        ));
    };
    let length = file
        .metadata()
        .map_err(|e| error!("{}: {e}", path.display()))?
        .len() as usize;
    if length == 0 {
        return Ok(Mapped::from_bytes(b""));
    }
    Ok(Mapped(Memory::map(file.as_fd(), length, false)?))
}
