//! The way of a request: `access()`, its resumption, its end, `log()`.
use super::abi::{
    BAD_ARGUMENT, COST, DECLINE, NOT_STARTED, OK, POOL, RAISE, RULES, RawOptions, USER,
    WRONG_PHASE, guard, guard_answer,
};
use super::nginx::Request;
use crate::engine::answer::Answer;
use crate::engine::options::Options;
use crate::engine::ticket::TicketId;
use crate::engine::worker::Worker;
use crate::engine::{decide, pools, worker};
use std::ffi::c_void;

/// # Safety
/// `raw` is null or points to options whose bytes live as long as `'r`.
pub unsafe fn options<'r>(raw: *const RawOptions) -> Options<'r> {
    // SAFETY: the caller's promise.
    let Some(raw) = (unsafe { raw.as_ref() }) else {
        return Options::default();
    };
    let given = |bit| raw.given & bit != 0;
    // SAFETY: the caller's promise, for each.
    unsafe {
        Options {
            user: given(USER).then(|| raw.user.get().unwrap_or_default()),
            raise: given(RAISE).then_some(raw.raise),
            cost: given(COST).then_some(raw.cost),
            rules: given(RULES).then(|| raw.rules.get().unwrap_or_default()),
            pool: given(POOL).then(|| raw.pool.get().unwrap_or_default()),
            decline: given(DECLINE),
        }
    }
}

/// Decides the request `r`.
///
/// # Safety
/// `r` is the request for which Lua makes this call, `raw` null or good for the
/// length of it, `out` an answer of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_access(
    r: *mut c_void,
    raw: *const RawOptions,
    out: *mut Answer,
) -> i32 {
    let body = |out: &mut Answer| {
        // SAFETY: the caller's promise.
        let (Some(mut x), options) = (unsafe { (Request::new(r), options(raw)) }) else {
            return BAD_ARGUMENT;
        };
        if !x.deciding() {
            return WRONG_PHASE;
        }
        worker::with(|w| decide::access(w, &mut x, &options, out)).map_or(NOT_STARTED, |()| OK)
    };
    // SAFETY: the caller's promise.
    unsafe { guard_answer(out, body) }
}

/// Goes on with a request that waited.
///
/// # Safety
/// As [`sluice_access`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_resume(
    r: *mut c_void,
    index: u32,
    generation: u32,
    timed_out: i32,
    out: *mut Answer,
) -> i32 {
    let body = |out: &mut Answer| {
        // SAFETY: the caller's promise.
        let Some(mut x) = (unsafe { Request::new(r) }) else {
            return BAD_ARGUMENT;
        };
        let ticket = TicketId { index, generation };
        worker::with(|w| decide::resume(w, &mut x, ticket, timed_out != 0, out))
            .map_or(NOT_STARTED, |()| OK)
    };
    // SAFETY: the caller's promise.
    unsafe { guard_answer(out, body) }
}

/// nginx's request cleanup: gives the ticket back. `data` is the ticket itself,
/// never a pointer, so nothing of the request is touched.
///
/// # Safety
/// None is asked for; nginx's type wants it.
pub unsafe extern "C" fn ended(data: *mut c_void) {
    guard(|| {
        let ticket = TicketId::unpack(data as u64);
        worker::with(|w| w.end(ticket)).map_or(NOT_STARTED, |()| OK)
    });
}

/// The request's log phase: what its end says of the backend.
///
/// # Safety
/// `r` is the request for which Lua makes this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_log(r: *mut c_void) -> i32 {
    guard(|| {
        if worker::with(|w| pools::logs_nothing(w, r as usize)) == Some(true) {
            return OK;
        }
        // SAFETY: the caller's promise.
        unsafe { with_request(r, pools::log) }
    })
}

/// The response's header has arrived.
///
/// # Safety
/// As [`sluice_log`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_header(r: *mut c_void) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { with_request(r, pools::header) }
}

/// # Safety
/// `r` is a living request, on nginx's thread.
pub unsafe fn with_request(r: *mut c_void, f: impl FnOnce(&mut Worker, &mut Request)) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let Some(mut x) = (unsafe { Request::new(r) }) else {
            return BAD_ARGUMENT;
        };
        worker::with(|w| f(w, &mut x)).map_or(NOT_STARTED, |()| OK)
    })
}
