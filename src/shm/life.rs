//! The life of the region's file: made, found again, replaced, or left alone.
//!
//! | what is at `path` | nobody lives in it | workers of ours live | others live |
//! |---|---|---|---|
//! | nothing | made | made | refused |
//! | this layout, this size | attached | attached | refused |
//! | this layout, another size | replaced | attached: the old size stays | refused |
//! | another layout | replaced | `path.<layout>` is used beside it | refused |
//! | of another boot, unfinished, damaged | replaced | replaced | refused |
//! | a link, or another user's | refused | refused | refused |
//!
//! Ours are the workers whose parent is this process (a reload) or its parent
//! (an upgraded binary). A `path.<layout>` that an upgrade left is preferred to
//! starting anew. Bans are files of their own and outlive all of it.
use super::bans::{self, Bans};
use super::error::{Error, error};
use super::file;
use super::layout::{Header, LAYOUT, Layout, MAGIC, size_text};
use super::lock::{LockFile, OPENING};
use super::memory::Memory;
use super::pool::Place;
use super::published::Kind;
use super::users::Users;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// What happened to the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    Created,
    Attached,
    /// What was there could not be used and nobody lived in it.
    Replaced,
    /// Another size or path is configured; the old stays until a restart.
    Kept,
    /// Workers of another layout live: `path.<layout>` is used.
    Beside,
}

/// What [`Region::open`](super::Region::open) found and did; `Display` is the
/// line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    pub case: Case,
    pub said: String,
    /// Further things worth a word.
    pub warnings: Vec<String>,
    warns: bool,
}

impl Attach {
    pub(super) fn new(case: Case, warns: bool, said: String) -> Attach {
        Attach {
            case,
            said,
            warnings: Vec::new(),
            warns,
        }
    }

    /// Worth a line at `warn`, and a place in `status`.
    pub fn is_warning(&self) -> bool {
        self.warns || !self.warnings.is_empty()
    }
}

impl std::fmt::Display for Attach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.said)?;
        self.warnings.iter().try_for_each(|w| write!(f, "; {w}"))
    }
}

/// A region, open.
pub struct Opened {
    pub path: PathBuf,
    pub memory: Memory,
    pub layout: Layout,
    pub lock: LockFile,
    pub inode: u64,
    pub bans: Bans,
    pub attach: Attach,
}

/// What is at a path.
enum Look {
    Nothing,
    Region(File),
    OtherSize(File, u64),
    OtherLayout(u64),
    /// Of no use, and why; and whether that is worth a warning.
    Useless(String, bool),
}

/// Opens the region of `path`, or makes it. `layout` is [`LAYOUT`] but in tests.
pub fn open(path: &Path, size_bytes: u64, layout: u64) -> Result<Opened, Error> {
    let wanted = Layout::for_size(size_bytes)?;
    if !path.is_absolute() || path.file_name().is_none() {
        return Err(error!(
            "shm.path is {}; it must be an absolute path of a file",
            path.display()
        ));
    }
    open_at(path, wanted, layout, None)
}

/// `from`: the path that this one stands in for.
fn open_at(path: &Path, wanted: Layout, layout: u64, from: Option<&Path>) -> Result<Opened, Error> {
    let shown = path.display();
    let lock = LockFile::open(&file::beside(path, "lock"))?;
    // Held for this call only, by this process: init may be followed by a fork,
    // which no record lock survives.
    let opening = lock.hold(OPENING, Duration::from_secs(5))?;
    let ours_live = ours_live(&lock, path)?;
    let beside = file::beside(path, layout);
    let look = look(path, wanted, layout, lock.inode)?;
    let usable = matches!(look, Look::Region(_) | Look::OtherSize(..));
    let go_beside = from.is_none()
        && !usable
        && (ours_live && matches!(look, Look::OtherLayout(_))
            || beside_is_usable(&beside, wanted, layout)?);
    if go_beside {
        if !ours_live {
            // The older generation is gone: what it left is nobody's.
            let _ = std::fs::remove_file(path);
            remove_published(path);
        }
        drop(opening);
        let mut opened = open_at(&beside, wanted, layout, Some(path))?;
        if matches!(opened.attach.case, Case::Created | Case::Attached) {
            opened.attach.said = format!(
                "shared memory: {} is used, which has layout {layout} of this version, beside {shown} of another",
                beside.display()
            );
            // Worth a warning the first time, not at every reload.
            opened.attach.warns = opened.attach.case == Case::Created;
            opened.attach.case = Case::Beside;
        }
        return Ok(opened);
    }
    let (file, size, attach) = match look {
        Look::Nothing => {
            let said = format!(
                "shared memory: created {shown}, {}",
                size_text(wanted.size as u64)
            );
            (None, wanted, Attach::new(Case::Created, false, said))
        }
        Look::Region(file) => {
            let said = format!(
                "shared memory: attached to {shown}, {}",
                size_text(wanted.size as u64)
            );
            (Some(file), wanted, Attach::new(Case::Attached, false, said))
        }
        Look::OtherSize(file, size) if ours_live => {
            let said = format!(
                "shared memory: {shown} stays at {} until nginx is stopped and started; {} is configured",
                size_text(size),
                size_text(wanted.size as u64)
            );
            (
                Some(file),
                Layout::for_size(size)?,
                Attach::new(Case::Kept, true, said),
            )
        }
        Look::OtherSize(_, size) => {
            let why = format!("it had {}", size_text(size));
            (None, wanted, replaced(path, wanted, &why, true))
        }
        Look::OtherLayout(other) => {
            let why = format!("it had layout {other} of another version, this one has {layout}");
            (None, wanted, replaced(path, wanted, &why, true))
        }
        Look::Useless(why, warns) => (None, wanted, replaced(path, wanted, &why, warns)),
    };
    let (file, fresh) = match file {
        Some(file) => (file, false),
        None => (make(path, size)?, true),
    };
    let memory = Memory::map(file.as_fd(), size.size, true)?;
    if fresh {
        format(&memory, size, layout, lock.inode);
    }
    let inode = file.metadata().map_err(|e| error!("{shown}: {e}"))?.ino();
    let mut attach = attach;
    let bans = open_bans(path, from, ours_live, &mut attach.warnings)?;
    drop(opening);
    Ok(Opened {
        path: path.into(),
        memory,
        layout: size,
        lock,
        inode,
        bans,
        attach,
    })
}

fn replaced(path: &Path, wanted: Layout, why: &str, warns: bool) -> Attach {
    let said = format!(
        "shared memory: replaced {} by a new one of {}: {why}; buckets and counters start anew",
        path.display(),
        size_text(wanted.size as u64)
    );
    Attach::new(Case::Replaced, warns, said)
}

/// Whether workers of ours live; an error when any other does.
fn ours_live(lock: &LockFile, path: &Path) -> Result<bool, Error> {
    let mut any = false;
    for pid in lock.living() {
        if !is_ours(pid) {
            // It may have died while we looked.
            if !lock.living().contains(&pid) {
                continue;
            }
            let who = match pid {
                0 => "a process of another PID namespace".to_string(),
                pid => format!("process {pid}"),
            };
            return Err(error!(
                "{} is in use by {who}, a worker of another nginx; stop that one, or give each its own shm.path",
                path.display()
            ));
        }
        any = true;
    }
    Ok(any)
}

fn is_ours(pid: u32) -> bool {
    let me = std::process::id();
    if pid == me {
        return true;
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // "pid (name) state ppid …", and the name may hold anything.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let parent = after_name
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|p| p.parse::<u32>().ok());
    parent.is_some_and(|parent| parent == me || parent == std::os::unix::process::parent_id())
}

fn look(path: &Path, wanted: Layout, layout: u64, lock_inode: u64) -> Result<Look, Error> {
    let Some(file) = file::open(path, true)? else {
        return Ok(Look::Nothing);
    };
    // The first nine words of `Header`.
    let mut bytes = [0u8; 72];
    let unfinished = || Ok(Look::Useless("it was never finished".into(), false));
    if file.read_exact_at(&mut bytes, 0).is_err() {
        return unfinished();
    }
    let mut words = bytes
        .chunks_exact(8)
        .map(|w| u64::from_ne_bytes(w.try_into().expect("8 bytes")));
    let mut next = || words.next().unwrap_or(0);
    let (magic, found, size, inode) = (next(), next(), next(), next());
    let _seed = (next(), next());
    let (boot, created_ns) = ([next(), next()], next());
    let length = file
        .metadata()
        .map_err(|e| error!("{}: {e}", path.display()))?
        .len();
    if magic == 0 {
        return unfinished();
    }
    Ok(if magic != MAGIC || length < size {
        Look::Useless("it was damaged".into(), true)
    } else if boot != file::boot_id() || created_ns > super::region::monotonic().0 {
        Look::Useless("it was of another boot of the machine".into(), false)
    } else if inode != lock_inode {
        Look::Useless("its lock file was removed".into(), true)
    } else if found != layout {
        Look::OtherLayout(found)
    } else if size != wanted.size as u64 {
        match Layout::for_size(size) {
            Ok(known) if known.size as u64 == size => Look::OtherSize(file, size),
            _ => Look::Useless("it was damaged".into(), true),
        }
    } else {
        Look::Region(file)
    })
}

fn beside_is_usable(beside: &Path, wanted: Layout, layout: u64) -> Result<bool, Error> {
    let Some(lock) = file::open(&file::beside(beside, "lock"), false)? else {
        return Ok(false);
    };
    // Closing it again loses no lock: this process holds none on this file.
    let inode = lock
        .metadata()
        .map_err(|e| error!("{}: {e}", beside.display()))?
        .ino();
    Ok(matches!(
        look(beside, wanted, layout, inode)?,
        Look::Region(_) | Look::OtherSize(..)
    ))
}

/// A new file with its space reserved, after what was there before is removed.
fn make(path: &Path, layout: Layout) -> Result<File, Error> {
    let shown = path.display();
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(error!(
                "cannot remove {shown}, which has to be replaced: {e}"
            ));
        }
        _ => remove_published(path),
    }
    let file = file::create(path)?
        .ok_or_else(|| error!("{shown} was made by another process at this very moment"))?;
    if let Err(e) = file::reserve(&file, path, layout.size as u64) {
        let _ = std::fs::remove_file(path);
        return Err(e);
    }
    Ok(file)
}

/// Numbers start anew with a region, so the files of the old one go.
fn remove_published(path: &Path) {
    for kind in Kind::ALL {
        file::remove_numbered(path, kind.name(), |_| true);
    }
}

/// Writes the header and the locks of fresh memory.
pub fn format(memory: &Memory, layout: Layout, number: u64, lock_inode: u64) {
    let header: &Header = memory.at(0);
    // Relaxed: all published by the magic.
    header.layout.store(number, Relaxed);
    header.size.store(layout.size as u64, Relaxed);
    header.lock_inode.store(lock_inode, Relaxed);
    header
        .created_ns
        .store(super::region::monotonic().0, Relaxed);
    for (into, words) in [
        (&header.seed, file::random()),
        (&header.boot, file::boot_id()),
    ] {
        into.iter()
            .zip(words)
            .for_each(|(into, word)| into.store(word, Relaxed));
    }
    for index in 0..layout.pools {
        let at = layout.pools_at + index * layout.pool_bytes;
        Place::at(memory, at, layout.entries).format();
    }
    Users::at(memory, layout.users_at, layout.users).format();
    // Release: a region with its magic is finished. Read back through the file
    // by `look`, under the lock that is held while it is made.
    header.magic.store(MAGIC, Release);
}

/// Opens `path.bans`, or makes it: from the bans of `from` when there are any.
fn open_bans(
    path: &Path,
    from: Option<&Path>,
    ours_live: bool,
    warnings: &mut Vec<String>,
) -> Result<Bans, Error> {
    let bans_path = file::beside(path, "bans");
    let shown = bans_path.display();
    if let Some(file) = file::open(&bans_path, true)? {
        let whole = file.metadata().is_ok_and(|m| m.len() == bans::BYTES as u64);
        let known = if whole {
            Bans::attach(Memory::map(file.as_fd(), bans::BYTES, true)?)
        } else {
            None
        };
        if let Some(bans) = known {
            if !ours_live {
                bans.compact(super::region::unix_now());
            }
            return Ok(bans);
        }
        // One that nobody finished making held no bans yet.
        let mut magic = [0; 8];
        if file.read_exact_at(&mut magic, 0).is_ok() && magic != [0; 8] {
            warnings.push(format!(
                "{shown} was damaged or of another version: its bans are lost"
            ));
        }
        std::fs::remove_file(&bans_path).map_err(|e| error!("cannot remove {shown}: {e}"))?;
    }
    let made = file::create(&bans_path)?
        .ok_or_else(|| error!("{shown} was made by another process at this very moment"))?;
    let filled = file::reserve(&made, &bans_path, bans::BYTES as u64).and_then(|()| {
        if let Some(from) = from {
            carry_bans(from, &made)?;
        }
        Memory::map(made.as_fd(), bans::BYTES, true)
    });
    let memory = filled.inspect_err(|_| drop(std::fs::remove_file(&bans_path)))?;
    Ok(match Bans::attach(memory) {
        Some(carried) => carried,
        None => Bans::format(Memory::map(made.as_fd(), bans::BYTES, true)?),
    })
}

/// Copies the bans of the region at `from`, whose layout is another, as they
/// stand: their file has a format of its own.
fn carry_bans(from: &Path, into: &File) -> Result<(), Error> {
    let Some(old) = file::open(&file::beside(from, "bans"), false)? else {
        return Ok(());
    };
    let mut bytes = vec![0; bans::BYTES];
    if old.read_exact_at(&mut bytes, 0).is_ok() && Bans::attach(Memory::copy_of(&bytes)).is_some() {
        into.write_all_at(&bytes, 0)
            .map_err(|e| error!("cannot carry bans over: {e}"))?;
    }
    Ok(())
}

/// What a reload finds: the region that is mapped stays, whatever is configured.
pub fn ensure(
    configured: &Path,
    path: &Path,
    inode: u64,
    layout: Layout,
    cfg: &crate::domain::config::Shm,
) -> Result<Attach, Error> {
    let wanted = Layout::for_size(cfg.size_bytes)?;
    let mut attach = if cfg.path != configured {
        let said = format!(
            "shared memory: {} stays in force until nginx is stopped and started; {} is configured",
            path.display(),
            cfg.path.display()
        );
        Attach::new(Case::Kept, true, said)
    } else if wanted.size != layout.size {
        let said = format!(
            "shared memory: {} stays at {} until nginx is stopped and started; {} is configured",
            path.display(),
            size_text(layout.size as u64),
            size_text(wanted.size as u64)
        );
        Attach::new(Case::Kept, true, said)
    } else {
        Attach::new(
            Case::Attached,
            false,
            format!("shared memory: {} is in use", path.display()),
        )
    };
    if std::fs::symlink_metadata(path).map(|m| m.ino()).ok() != Some(inode) {
        attach.warnings.push(format!(
            "{} was removed or replaced while in use: what it holds will be lost when nginx stops",
            path.display()
        ));
    }
    Ok(attach)
}

const _: () = assert!(LAYOUT > 0);
