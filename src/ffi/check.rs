//! `check()`, `ban()` and `unban()`.
use super::abi::{BAD_ARGUMENT, Bytes, NOT_STARTED, OK, guard_answer};
use crate::engine::answer::Answer;
use crate::engine::check;
use crate::engine::ticket::TicketId;
use crate::engine::worker::{self, Worker};

fn with(f: impl FnOnce(&mut Worker)) -> i32 {
    worker::with(f).map_or(NOT_STARTED, |()| OK)
}

/// # Safety
/// Each pointer has so many bytes behind it for the length of the call; `out` is
/// an answer of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_check(
    rule: *const u8,
    rule_len: usize,
    key: *const u8,
    key_len: usize,
    cost: f64,
    out: *mut Answer,
) -> i32 {
    let body = |out: &mut Answer| {
        let (rule, key) = (
            Bytes {
                data: rule,
                len: rule_len,
            },
            Bytes {
                data: key,
                len: key_len,
            },
        );
        // SAFETY: the caller's promise.
        let (Some(rule), Some(key)) = (unsafe { (rule.get(), key.get()) }) else {
            return BAD_ARGUMENT;
        };
        with(|w| check::check(w, rule, key, cost, out))
    };
    // SAFETY: the caller's promise.
    unsafe { guard_answer(out, body) }
}

/// # Safety
/// `out` is an answer of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_check_resume(
    index: u32,
    generation: u32,
    timed_out: i32,
    out: *mut Answer,
) -> i32 {
    let ticket = TicketId { index, generation };
    let body = |out: &mut Answer| with(|w| check::check_resume(w, ticket, timed_out != 0, out));
    // SAFETY: the caller's promise.
    unsafe { guard_answer(out, body) }
}

/// `seconds` -1: for ever.
///
/// # Safety
/// As [`sluice_check`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_ban(
    subject: *const u8,
    len: usize,
    seconds: f64,
    out: *mut Answer,
) -> i32 {
    let body = |out: &mut Answer| {
        // SAFETY: the caller's promise.
        let Some(subject) = (unsafe { Bytes { data: subject, len }.get() }) else {
            return BAD_ARGUMENT;
        };
        with(|w| check::ban(w, subject, seconds, out))
    };
    // SAFETY: the caller's promise.
    unsafe { guard_answer(out, body) }
}

/// # Safety
/// As [`sluice_check`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_unban(subject: *const u8, len: usize, out: *mut Answer) -> i32 {
    let body = |out: &mut Answer| {
        // SAFETY: the caller's promise.
        let Some(subject) = (unsafe { Bytes { data: subject, len }.get() }) else {
            return BAD_ARGUMENT;
        };
        with(|w| check::unban(w, subject, out))
    };
    // SAFETY: the caller's promise.
    unsafe { guard_answer(out, body) }
}

/// # Safety
/// `out` is an answer of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_ban_resume(
    index: u32,
    generation: u32,
    timed_out: i32,
    out: *mut Answer,
) -> i32 {
    let ticket = TicketId { index, generation };
    let body = |out: &mut Answer| with(|w| check::ban_resume(w, ticket, timed_out != 0, out));
    // SAFETY: the caller's promise.
    unsafe { guard_answer(out, body) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::answer::Action;

    /// No worker is started in a test's thread.
    #[test]
    fn without_a_worker_all_passes_and_nothing_is_read() {
        let (text, null) = (b"text", std::ptr::null());
        // SAFETY: all-zero bytes are a valid Answer.
        let mut out: Answer = unsafe { std::mem::zeroed() };
        out.action = Action::Refuse as i32;
        // SAFETY: four bytes and an answer, this test's own.
        let said = unsafe {
            let text = text.as_ptr();
            [
                sluice_check(text, 4, text, 4, 1.0, &mut out),
                sluice_check(text, 4, null, 4, 1.0, &mut out),
                sluice_check_resume(0, 0, 0, &mut out),
                sluice_ban(text, 4, -1.0, &mut out),
                sluice_ban(null, 4, -1.0, &mut out),
                sluice_unban(text, 4, &mut out),
                sluice_unban(null, 4, &mut out),
                sluice_ban_resume(0, 0, 1, &mut out),
            ]
        };
        let (none, bad) = (NOT_STARTED, BAD_ARGUMENT);
        assert_eq!(said, [none, bad, none, none, bad, none, bad, none]);
        assert_eq!(out.action, Action::Proceed as i32);
    }
}
