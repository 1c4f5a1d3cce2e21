//! nginx's body filters, with one more: the moment at which a backend has done its part.
//!
//! A response is handed from filter to filter as the backend sends it. nginx reads the backend's
//! answer to its end, into a file if need be, and hands on the last of it, however slowly the
//! client reads; a request whose client does not read lives on for minutes. So this filter looks
//! for the buffer that is marked as the last. It changes nothing, and calls the next one whatever
//! happens.
//!
//! As every filter module does, it puts itself before the one that is the first, and keeps that
//! one's address; but in each worker, when the chain is complete: behind nginx's copy filter, which
//! reads files no faster than the client does, the last would come too late. nginx builds the
//! chain anew for every configuration.
use super::access::with_request;
use crate::engine::pools;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// `ngx_http_output_body_filter_pt`.
pub type BodyFilter = unsafe extern "C" fn(*mut c_void, *mut Chain) -> isize;

/// `ngx_chain_t`.
#[repr(C)]
pub struct Chain {
    buf: *const Buf,
    next: *mut Chain,
}

/// `ngx_buf_t`, up to its flags: as it has been since nginx 0.5.
#[repr(C)]
struct Buf {
    pos: *const c_char,
    last: *const c_char,
    file_pos: libc::off_t,
    file_last: libc::off_t,
    start: *const c_char,
    end: *const c_char,
    tag: *const c_void,
    file: *const c_void,
    shadow: *const Buf,
    /// temporary, memory, mmap, recycled, in_file, flush, sync, last_buf, …
    flags: u32,
}

const LAST_BUF: u32 = 1 << 7;
/// No chain that nginx hands on is longer; one that is has a loop in it.
const LONGEST: usize = 1 << 20;

/// The filter that was the first before this one.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// This one. A constant of the program: the same function taken twice may be two addresses.
static OURS: BodyFilter = last_buffer;

/// Puts the filter before nginx's others.
///
/// # Safety
/// `top` is null or nginx's `ngx_http_top_body_filter`, and this is called once for each chain
/// that nginx builds, on nginx's thread, before a request is answered.
pub unsafe fn install(top: *mut Option<BodyFilter>) -> bool {
    if top.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let first = unsafe { *top };
    match first {
        // There would be no way out of it.
        Some(first) if first as usize == OURS as usize => true,
        Some(first) => {
            // Relaxed: nginx's thread only.
            NEXT.store(first as *mut c_void, Ordering::Relaxed);
            // SAFETY: the caller's promise.
            unsafe { *top = Some(OURS) };
            true
        }
        None => false,
    }
}

/// Is this request's answer complete?
///
/// # Safety
/// `chain` is null or a chain of buffers that live during the call.
unsafe fn has_last(mut chain: *const Chain) -> bool {
    for _ in 0..LONGEST {
        // SAFETY: the caller's promise.
        let Some(link) = (unsafe { chain.as_ref() }) else {
            return false;
        };
        // SAFETY: the caller's promise.
        if unsafe { link.buf.as_ref() }.is_some_and(|buf| buf.flags & LAST_BUF != 0) {
            return true;
        }
        chain = link.next;
    }
    false
}

/// # Safety
/// nginx's promise to a body filter: a living request and its chain.
unsafe extern "C" fn last_buffer(r: *mut c_void, chain: *mut Chain) -> isize {
    // SAFETY: nginx's promise.
    if pools::any() && unsafe { has_last(chain) } {
        // SAFETY: nginx's promise; a request that Sluice has not decided is only looked up.
        unsafe { with_request(r, pools::answered) };
    }
    let next = NEXT.load(Ordering::Relaxed);
    debug_assert!(!next.is_null(), "installed");
    // SAFETY: the address of a filter, put there before this one could be called; the arguments
    // are nginx's own.
    unsafe {
        let next = std::mem::transmute::<*mut c_void, BodyFilter>(next);
        next(r, chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn other(_: *mut c_void, chain: *mut Chain) -> isize {
        // SAFETY: the test's chain.
        isize::from(unsafe { has_last(chain) }) + 40
    }

    fn buf(flags: u32) -> Buf {
        // SAFETY: null pointers and zeros are a buffer of nothing.
        let mut buf: Buf = unsafe { std::mem::zeroed() };
        buf.flags = flags;
        buf
    }

    #[test]
    fn the_next_filter_is_called_with_what_came() {
        assert_eq!(std::mem::offset_of!(Buf, flags), 72);
        let mut top: Option<BodyFilter> = Some(other);
        // SAFETY: a chain of this test's own.
        assert!(unsafe { install(&mut top) } && unsafe { install(&mut top) });
        let (more, last) = (buf(0x7f), buf(LAST_BUF));
        let mut second = Chain {
            buf: &last,
            next: std::ptr::null_mut(),
        };
        let mut first = Chain {
            buf: &more,
            next: &mut second,
        };
        let filter = top.expect("a filter");
        let nobody = std::ptr::without_provenance_mut(8);
        // SAFETY: the test's own chain; nothing is done with the request but to look for it.
        unsafe {
            assert_eq!(filter(nobody, &mut first), 41);
            first.next = std::ptr::null_mut();
            assert_eq!(filter(nobody, &mut first), 40);
            assert_eq!(filter(nobody, std::ptr::null_mut()), 40);
            assert!(!install(std::ptr::null_mut()) && !install(&mut None));
        }
    }
}
