//! Version, layout, and the guard.
use crate::engine::answer::Answer;
use crate::engine::worker;
use std::mem::{offset_of, size_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Raised with every change of a function or struct; the Lua side's is in
/// `lua/resty/sluice/library.lua`.
pub const ABI: i32 = 3;

/// Status codes; never reused.
pub const OK: i32 = 0;
/// A null pointer where none may be, or a length out of range.
pub const BAD_ARGUMENT: i32 = -1;
/// A panic was caught.
pub const PANIC: i32 = -2;
/// No worker: `start()` has not run here.
pub const NOT_STARTED: i32 = -3;
/// Not in this phase.
pub const WRONG_PHASE: i32 = -4;

/// `sluice_bytes_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    pub data: *const u8,
    pub len: usize,
}

/// The most bytes that a call takes as one argument.
const MOST_BYTES: usize = 1 << 20;

impl Bytes {
    /// # Safety
    /// `data` points to `len` bytes that live as long as `'r`, or is null.
    pub unsafe fn get<'r>(self) -> Option<&'r [u8]> {
        if self.data.is_null() || self.len > MOST_BYTES {
            return None;
        }
        // SAFETY: the caller's promise.
        Some(unsafe { std::slice::from_raw_parts(self.data, self.len) })
    }
}

/// `sluice_options_t`.
#[repr(C)]
pub struct RawOptions {
    pub user: Bytes,
    pub rules: Bytes,
    pub pool: Bytes,
    pub cost: f64,
    pub raise: i32,
    /// Which of them are given: `USER` and so on.
    pub given: u32,
}

pub const USER: u32 = 1;
pub const RAISE: u32 = 2;
pub const COST: u32 = 4;
pub const RULES: u32 = 8;
pub const POOL: u32 = 16;
pub const DECLINE: u32 = 32;

/// What the Lua side compares, in its order.
const LAYOUT: [usize; 19] = [
    size_of::<Bytes>(),
    offset_of!(Bytes, len),
    size_of::<RawOptions>(),
    offset_of!(RawOptions, rules),
    offset_of!(RawOptions, pool),
    offset_of!(RawOptions, cost),
    offset_of!(RawOptions, raise),
    offset_of!(RawOptions, given),
    size_of::<Answer>(),
    offset_of!(Answer, status),
    offset_of!(Answer, ticket),
    offset_of!(Answer, generation),
    offset_of!(Answer, seconds),
    offset_of!(Answer, remaining),
    offset_of!(Answer, body_len),
    offset_of!(Answer, message_len),
    offset_of!(Answer, file),
    offset_of!(Answer, body),
    offset_of!(Answer, message),
];

/// The library's ABI number.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_abi() -> i32 {
    ABI
}

/// The `index`-th number of the layout, or -1 behind the last.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_layout(index: u32) -> i32 {
    LAYOUT.get(index as usize).map_or(-1, |n| *n as i32)
}

/// Writes the version; its length, or -1.
///
/// # Safety
/// `buf` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_version(buf: *mut u8, size: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { write(env!("CARGO_PKG_VERSION").as_bytes(), buf, size) }
}

/// Copies `text` out; its length, or -1 where it does not fit.
///
/// # Safety
/// `buf` has room for `size` bytes.
pub unsafe fn write(text: &[u8], buf: *mut u8, size: usize) -> i32 {
    if buf.is_null() || text.len() > size {
        return -1;
    }
    // SAFETY: `text` fits, and a Rust slice does not overlap a buffer of Lua's.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buf, text.len()) };
    text.len() as i32
}

/// Runs `body`; a panic becomes `PANIC`, is counted, and leaves the worker alive.
pub fn guard(body: impl FnOnce() -> i32) -> i32 {
    // Unwind safety: a body that panics may leave the worker's scratch buffers in any state, and
    // each use clears them first; tickets and buckets are changed by single calls.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        worker::with(|w| w.region.my().guard_panic());
        PANIC
    })
}

/// As [`guard`], for calls that answer: after a panic, or without a worker, the
/// answer is an admission, with a line about it once a second.
///
/// # Safety
/// `out` points to an answer that nothing else uses during the call.
pub unsafe fn guard_answer(out: *mut Answer, body: impl FnOnce(&mut Answer) -> i32) -> i32 {
    if out.is_null() {
        return BAD_ARGUMENT;
    }
    // SAFETY: the caller's promise; any bytes are a valid `Answer`.
    let out = unsafe { &mut *out };
    let status = guard(|| body(&mut *out));
    if status == OK {
        return OK;
    }
    out.proceed();
    if status != WRONG_PHASE && once_a_second() {
        out.say(match status {
            PANIC => "sluice: an internal error was caught; the request passes undecided",
            NOT_STARTED => {
                "sluice: this worker has not been started: call require(\"resty.sluice\").start() \
                 in init_worker_by_lua_block; requests pass undecided"
            }
            _ => "sluice: a call had a bad argument; the request passes undecided",
        });
    }
    status
}

fn once_a_second() -> bool {
    static LAST: AtomicI64 = AtomicI64::new(i64::MIN);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs() as i64);
    // Relaxed: one number, nothing is published through it.
    LAST.swap(now, Ordering::Relaxed) != now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status_and_an_admission() {
        assert_eq!(guard(|| panic!("on purpose")), PANIC);
        // SAFETY: all-zero bytes are a valid Answer.
        let mut out: Answer = unsafe { std::mem::zeroed() };
        out.action = 2;
        // SAFETY: `out` is ours.
        let status = unsafe { guard_answer(&mut out, |_| panic!("on purpose")) };
        assert_eq!((status, out.action), (PANIC, 0));
    }

    #[test]
    fn bytes_are_as_many_as_is_said_or_none() {
        let get = |data: *const u8, len| {
            // SAFETY: null, or so many bytes unless they are too many to be looked at.
            unsafe { Bytes { data, len }.get() }
        };
        let text = b"text";
        assert_eq!(get(text.as_ptr(), 4), Some(&text[..]));
        assert_eq!(get(text.as_ptr(), 0), Some(&b""[..]));
        assert_eq!(get(std::ptr::null(), 4), None);
        assert_eq!(get(text.as_ptr(), MOST_BYTES + 1), None);
        let mut room = [b'x'; 5];
        let mut put = |text: &[u8], size| {
            // SAFETY: there is room for five.
            unsafe { write(text, room.as_mut_ptr(), size) }
        };
        assert_eq!((put(text, 3), put(text, 4), put(b"", 0)), (-1, 4, 0));
        assert_eq!(&room, b"textx");
        // SAFETY: nothing is written.
        assert_eq!(unsafe { write(text, std::ptr::null_mut(), 9) }, -1);
    }

    #[test]
    fn layout_ends_with_minus_one() {
        assert_eq!(sluice_layout(0), 16);
        assert_eq!(sluice_layout(LAYOUT.len() as u32), -1);
    }
}
