//! Waking nginx: finished tickets, lines for its log, the worker's end.
use super::abi::{NOT_STARTED, OK, guard, write};
use super::nginx;
use crate::engine::{pools, worker};
use std::os::unix::ffi::OsStrExt;

/// Switches between nginx's own functions (1) and values that Lua reads (0).
/// OK, or -1 where this nginx does not show its functions.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_direct(on: i32) -> i32 {
    guard(|| {
        if on == 0 || nginx::available() {
            OK
        } else {
            -1
        }
    })
}

/// Has nginx say when a backend has done its part. Once for each configuration, in
/// `init_worker_by_lua`. OK, or -1 where this nginx does not show where its filters begin: then a
/// slot is given back at the request's end.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_filter() -> i32 {
    guard(|| {
        // What is not there costs nothing.
        if !pools::possible() {
            return OK;
        }
        // SAFETY: nginx's own variable; that this is its thread, and once, is what Lua promises.
        if unsafe { super::filter::install(nginx::top_body_filter()) } {
            OK
        } else {
            -1
        }
    })
}

/// Writes up to `capacity` indices of tickets whose wait is over; how many.
///
/// # Safety
/// `tickets` has room for `capacity` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_finished(tickets: *mut u32, capacity: u32) -> i32 {
    let body = || {
        let mut n = 0;
        let each = |index| {
            // SAFETY: `finished` calls at most `capacity` times; the caller has room for that.
            unsafe { tickets.add(n).write(index) };
            n += 1;
        };
        worker::with(|w| w.finished(capacity as usize, each)).map_or(0, |n| n as i32)
    };
    if tickets.is_null() {
        0
    } else {
        guard(body).max(0)
    }
}

/// Writes the next line for the error log and its level; its length, or -1.
///
/// # Safety
/// `buf` has room for `size` bytes; `level` for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_message(buf: *mut u8, size: usize, level: *mut i32) -> i32 {
    let body = || {
        let Some(Some((kind, mut line))) = worker::with(|w| w.shared.messages.pop()) else {
            return -1;
        };
        let mut n = line.len().min(size);
        while !line.is_char_boundary(n) {
            n -= 1;
        }
        line.truncate(n);
        // SAFETY: the caller's promise.
        unsafe {
            level.write(kind as i32);
            write(line.as_bytes(), buf, size)
        }
    };
    if level.is_null() {
        -1
    } else {
        guard(body).max(-1)
    }
}

/// Writes the path of the socket that wakes this worker; its length, or -1.
///
/// # Safety
/// `buf` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_bridge_path(buf: *mut u8, size: usize) -> i32 {
    let body = || {
        let path = worker::with(|w| w.shared.socket().clone());
        // SAFETY: the caller's promise.
        path.map_or(-1, |p| unsafe {
            write(p.as_os_str().as_bytes(), buf, size)
        })
    };
    guard(body).max(-1)
}

/// nginx has told this worker to quit.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_quit() -> i32 {
    guard(|| worker::with(|w| w.shared.quit()).map_or(NOT_STARTED, |()| OK))
}
