//! Files of the region: made exclusively, opened without following links, and
//! believed only when root or this process's user owns them.
//!
//! `/dev/shm` is open to everybody and the names can be guessed. With
//! `fs.protected_regular` even root is refused an `O_CREAT` open of another
//! user's file there, so what exists is opened without it.
use super::error::{Error, error};
use super::layout::size_text;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub fn euid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// `path` with `.suffix` after its last component.
pub fn beside(path: &Path, suffix: impl std::fmt::Display) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{suffix}"));
    name.into()
}

/// Opens a file that is ours. `None`: there is none.
pub fn open(path: &Path, write: bool) -> Result<Option<File>, Error> {
    let shown = path.display();
    // Not blocking: a pipe in its place must not stop us.
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = match OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(flags)
        .open(path)
    {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
            return Err(error!(
                "{shown} is a symbolic link, which is not followed; remove it"
            ));
        }
        Err(e) => return Err(error!("cannot open {shown}: {e}")),
    };
    let meta = file.metadata().map_err(|e| error!("{shown}: {e}"))?;
    let user = euid();
    if meta.uid() != 0 && meta.uid() != user {
        return Err(error!(
            "{shown} belongs to user {}, not to root or user {user}, and is not trusted; remove it or choose another shm.path",
            meta.uid()
        ));
    }
    if !meta.is_file() || meta.mode() & 0o077 != 0 {
        return Err(error!(
            "{shown} is not a regular file of mode 0600 (its mode is {:o}) and is not trusted; remove it or choose another shm.path",
            meta.mode()
        ));
    }
    Ok(Some(file))
}

/// Makes a file of mode 0600. `None`: there is one already.
pub fn create(path: &Path) -> Result<Option<File>, Error> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(flags);
    match options.open(path) {
        Ok(file) => {
            // Whatever the umask took away is given back.
            let mode = std::fs::Permissions::from_mode(0o600);
            file.set_permissions(mode)
                .map_err(|e| error!("{}: {e}", path.display()))?;
            Ok(Some(file))
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(e) => Err(error!("cannot create {}: {e}", path.display())),
    }
}

/// Reserves the space, so that no later touch of a mapped page can fail for
/// want of it (a SIGBUS).
pub fn reserve(file: &File, path: &Path, size_bytes: u64) -> Result<(), Error> {
    let length = i64::try_from(size_bytes).map_err(|e| error!("{}: {e}", path.display()))?;
    let code = loop {
        // SAFETY: the descriptor is open as long as `file`; nothing else is passed.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            libc::EINTR => {}
            code => break code,
        }
    };
    if code == 0 {
        return Ok(());
    }
    let free = free_bytes(path).map_or(String::new(), |free| {
        format!(", where {} are free", size_text(free))
    });
    Err(error!(
        "cannot reserve {} for {}{free}: {}; make room there, enlarge that file system (containers: --shm-size) or lower shm.size",
        size_text(size_bytes),
        path.display(),
        io::Error::from_raw_os_error(code)
    ))
}

fn free_bytes(path: &Path) -> Option<u64> {
    let dir = CString::new(path.parent()?.as_os_str().as_bytes()).ok()?;
    // SAFETY: a C structure of integers: all zeroes is a value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a string with its NUL, and a structure of the right type, both
    // alive during the call.
    let code = unsafe { libc::statvfs(dir.as_ptr(), &raw mut stat) };
    (code == 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Whether this process may make files in the directory of `path`.
pub fn check_directory(path: &Path) -> Result<(), Error> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let text = CString::new(dir.as_os_str().as_bytes()).map_err(|e| error!("shm.path: {e}"))?;
    // SAFETY: a string with its NUL, alive during the call.
    let code = unsafe {
        libc::faccessat(
            libc::AT_FDCWD,
            text.as_ptr(),
            libc::W_OK | libc::X_OK,
            libc::AT_EACCESS,
        )
    };
    if code == 0 {
        return Ok(());
    }
    Err(error!(
        "nginx's workers (user {}) cannot write in {}, the directory of shm.path, where lists are published: {}; choose a directory they can write in, such as /dev/shm",
        euid(),
        dir.display(),
        io::Error::last_os_error()
    ))
}

/// Removes `<path>.<kind>.<number>` for every number that `gone` says. What
/// cannot be removed is another user's and in nobody's way.
pub fn remove_numbered(path: &Path, kind: &str, gone: impl Fn(u64) -> bool) {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return;
    };
    let mut start = name.as_bytes().to_vec();
    start.extend(format!(".{kind}.").bytes());
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name
            .as_bytes()
            .strip_prefix(&start[..])
            .and_then(|n| std::str::from_utf8(n).ok());
        if number.and_then(|n| n.parse().ok()).is_some_and(&gone) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Identifies this boot of the machine; zeroes where the kernel does not say.
pub fn boot_id() -> [u64; 2] {
    // Miri warns of every file in /proc.
    if cfg!(miri) {
        return [0; 2];
    }
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).unwrap_or(0);
    [(id >> 64) as u64, id as u64]
}

/// 128 bits of the system's randomness.
pub fn random() -> [u64; 2] {
    let mut bytes = [0u8; 16];
    let mut have = 0;
    while have < bytes.len() {
        let rest = &mut bytes[have..];
        // SAFETY: writes at most `rest.len()` bytes at `rest`.
        let n = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        // It fails for a signal only, or where a kernel of before 2014 lacks it.
        assert!(n >= 0 || io::Error::last_os_error().kind() == io::ErrorKind::Interrupted);
        have += n.max(0) as usize;
    }
    let number = u128::from_ne_bytes(bytes);
    [(number >> 64) as u64, number as u64]
}
