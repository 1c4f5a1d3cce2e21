//! A request whose values Lua has read, for an nginx whose functions the
//! library does not know: slower, with the same answers. What the decision sets
//! is collected, and Lua carries it out.
use super::abi::{BAD_ARGUMENT, Bytes, NOT_STARTED, OK, RawOptions, guard, guard_answer, write};
use super::access::options;
use super::nginx::add_cleanup;
use crate::domain::key::KeyPart;
use crate::engine::answer::Answer;
use crate::engine::exchange::{Exchange, Out, Text, Var};
use crate::engine::ticket::TicketId;
use crate::engine::worker::Worker;
use crate::engine::{decide, pools, worker};
use std::cell::RefCell;
use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Wanted of every request, in this order; what rules and keys need comes behind.
const ALWAYS: [&str; 11] = [
    "v realip_remote_addr",
    "v remote_addr",
    "v uri",
    "v request_uri",
    "v request_method",
    "v host",
    "v connection",
    "v connection_requests",
    "v content_length",
    "v request_length",
    "v http_transfer_encoding",
];
const CONNECTION: usize = 6;
const CONNECTION_REQUESTS: usize = 7;

thread_local! {
    /// What is wanted, as it was last told to Lua.
    static WANTED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// What the last decision sets: kind, name, NUL, value.
    static EFFECTS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

fn wanted(w: &Worker) -> Vec<String> {
    let mut out: Vec<String> = ALWAYS.iter().map(|s| (*s).to_owned()).collect();
    let mut add = |name: String| {
        if !out.contains(&name) {
            out.push(name);
        }
    };
    let client = &w.setup.config.client;
    if w.trust.any() {
        add(format!("h {}", client.header));
    }
    let rules = &w.force.rules;
    for name in &rules.needs.headers {
        add(format!("h {name}"));
    }
    for part in rules.rules.iter().flat_map(|r| &r.key) {
        match part {
            KeyPart::Cookie(_) => add("h cookie".into()),
            KeyPart::Header(name) => add(format!("h {name}")),
            KeyPart::Arg(name) => add(format!("v arg_{name}")),
            KeyPart::Ua => add("h user-agent".into()),
            _ => {}
        }
    }
    out
}

/// Changes whenever the list of wanted values may have.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_wanted_version() -> u32 {
    guard(|| {
        worker::with(|w| {
            w.refresh();
            WANTED.with(|l| *l.borrow_mut() = wanted(w));
            // Any number that differs from the last will do.
            (w.version() & 0x7fff_ffff) as i32
        })
        .unwrap_or(0)
    })
    .max(0) as u32
}

/// Writes the `index`-th wanted value: `v NAME` for a variable, `h NAME` for all
/// lines of a header; its length, or -1 behind the last.
///
/// # Safety
/// `buf` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_wanted(index: u32, buf: *mut u8, size: usize) -> i32 {
    guard(|| {
        WANTED.with(|l| {
            // SAFETY: the caller's promise.
            l.borrow()
                .get(index as usize)
                .map_or(-1, |n| unsafe { write(n.as_bytes(), buf, size) })
        })
    })
    .max(-1)
}

struct Values<'r> {
    r: *mut c_void,
    subrequest: bool,
    /// The values are those of `ANSWERED`.
    answered: bool,
    values: &'r [Bytes],
    effects: Vec<Vec<u8>>,
}

impl<'r> Values<'r> {
    fn at(&self, index: usize) -> Option<&'r [u8]> {
        // SAFETY: Lua holds every string that it passed until the call returns; 'r is the call.
        self.values.get(index).and_then(|v| unsafe { v.get() })
    }

    fn answered(&self, index: usize) -> Option<&'r [u8]> {
        self.at(index).filter(|_| self.answered)
    }

    fn named(&self, name: &str) -> Option<&'r [u8]> {
        WANTED.with(|l| self.at(l.borrow().iter().position(|n| n == name)?))
    }

    fn effect(&mut self, kind: u8, name: &str, value: &[u8]) {
        let mut e = vec![kind];
        e.extend_from_slice(name.as_bytes());
        e.push(0);
        e.extend_from_slice(value);
        self.effects.push(e);
    }
}

impl<'r> Exchange<'r> for Values<'r> {
    fn id(&self) -> usize {
        self.r as usize
    }

    fn serial(&mut self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.at(CONNECTION).hash(&mut hasher);
        self.at(CONNECTION_REQUESTS).hash(&mut hasher);
        hasher.finish() | 1
    }

    fn is_subrequest(&mut self) -> bool {
        self.subrequest
    }

    fn var(&mut self, var: Var<'_>) -> Option<&'r [u8]> {
        match var {
            Var::Peer => self.at(0).or_else(|| self.at(1)),
            Var::Remote => self.at(1),
            Var::Uri => self.at(2),
            Var::RequestUri => self.at(3),
            Var::Method => self.at(4),
            Var::Host => self.at(5),
            Var::ContentLength => self.at(8),
            Var::RequestLength => self.at(9),
            Var::TransferEncoding => self.at(10),
            Var::Status => self.answered(0),
            Var::UpstreamStatus => self.answered(1),
            Var::UpstreamTime => self.answered(2),
            Var::UpstreamHeaderTime => self.answered(3),
            Var::Arg(name) => self.named(&format!("v arg_{name}")),
        }
    }

    fn header(&mut self, name: &str, out: &mut Vec<u8>) -> bool {
        let Some(value) = self.named(&format!("h {name}")) else {
            return false;
        };
        out.extend_from_slice(value);
        true
    }

    fn set_var(&mut self, var: Out, value: Text<'r, '_>) {
        self.effect(b'v', var.name(), value.bytes());
    }

    fn set_header(&mut self, name: &'static str, value: &[u8]) {
        self.effect(b'h', name, value);
    }

    fn set_request_header(&mut self, name: &'static str, value: Option<&[u8]>) {
        match value {
            Some(v) => self.effect(b'q', name, v),
            None => self.effect(b'c', name, b""),
        }
    }

    fn client_gone(&mut self) -> bool {
        // SAFETY: `r` is the living request that this call is for (`sluice_resume_given`).
        unsafe { super::socket::peer_gone(self.r) }
    }

    fn at_end(&mut self, ticket: u64) -> bool {
        // SAFETY: `r` is the living request that this call is for (`sluice_access_given`).
        unsafe { add_cleanup(self.r, ticket) }
    }
}

/// Runs a decision over values and leaves what it sets for `sluice_effect`.
fn collect(mut x: Values<'_>, f: impl FnOnce(&mut Worker, &mut Values<'_>)) -> i32 {
    let status = worker::with(|w| f(w, &mut x)).map_or(NOT_STARTED, |()| OK);
    EFFECTS.with(|e| *e.borrow_mut() = x.effects);
    status
}

/// Decides the request `r` by values that Lua has read, in the order of
/// `sluice_wanted`.
///
/// # Safety
/// As `sluice_access`; `values` points to `count` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_access_given(
    r: *mut c_void,
    values: *const Bytes,
    count: u32,
    subrequest: i32,
    raw: *const RawOptions,
    out: *mut Answer,
) -> i32 {
    let body = |out: &mut Answer| {
        if r.is_null() || values.is_null() {
            return BAD_ARGUMENT;
        }
        // SAFETY: the caller's promise.
        let (values, options) = unsafe {
            (
                std::slice::from_raw_parts(values, count as usize),
                options(raw),
            )
        };
        let x = Values {
            r,
            subrequest: subrequest != 0,
            answered: false,
            values,
            effects: Vec::new(),
        };
        collect(x, |w, x| decide::access(w, x, &options, out))
    };
    // SAFETY: the caller's promise.
    unsafe { guard_answer(out, body) }
}

/// Goes on with a request that waited.
///
/// # Safety
/// As `sluice_resume`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_resume_given(
    r: *mut c_void,
    index: u32,
    generation: u32,
    timed_out: i32,
    out: *mut Answer,
) -> i32 {
    let ticket = TicketId { index, generation };
    let body = |out: &mut Answer| {
        let x = Values {
            r,
            subrequest: false,
            answered: false,
            values: &[],
            effects: Vec::new(),
        };
        collect(x, |w, x| decide::resume(w, x, ticket, timed_out != 0, out))
    };
    // SAFETY: the caller's promise.
    unsafe { guard_answer(out, body) }
}

/// What the log phase and the header filter read, in the order in which Lua hands it over:
/// `status`, `upstream_status`, `upstream_response_time`, `upstream_header_time`.
const ANSWERED: usize = 4;

/// # Safety
/// As `sluice_log`; `values` points to [`ANSWERED`] of them.
unsafe fn with_answered(
    r: *mut c_void,
    values: *const Bytes,
    f: impl FnOnce(&mut Worker, &mut Values<'_>),
) -> i32 {
    guard(|| {
        if r.is_null() || values.is_null() {
            return BAD_ARGUMENT;
        }
        let x = Values {
            r,
            subrequest: false,
            answered: true,
            // SAFETY: the caller's promise.
            values: unsafe { std::slice::from_raw_parts(values, ANSWERED) },
            effects: Vec::new(),
        };
        collect(x, f)
    })
}

/// The request's log phase.
///
/// # Safety
/// As `sluice_log`; `values` points to four of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_log_given(r: *mut c_void, values: *const Bytes) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { with_answered(r, values, |w, x| pools::log(w, x)) }
}

/// The response's header has arrived.
///
/// # Safety
/// As [`sluice_log_given`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_header_given(r: *mut c_void, values: *const Bytes) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { with_answered(r, values, |w, x| pools::header(w, x)) }
}

/// Writes the `index`-th thing that the last decision sets: `v` (variable), `h`
/// (response header), `q` (request header) or `c` (request header to remove),
/// then name, NUL, value; its length, or -1 behind the last.
///
/// # Safety
/// `buf` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_effect(index: u32, buf: *mut u8, size: usize) -> i32 {
    guard(|| {
        EFFECTS.with(|e| {
            // SAFETY: the caller's promise.
            e.borrow()
                .get(index as usize)
                .map_or(-1, |v| unsafe { write(v, buf, size) })
        })
    })
    .max(-1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::answer::Action;

    fn bytes(texts: &[&'static str]) -> Vec<Bytes> {
        let one = |text: &&'static str| Bytes {
            data: text.as_ptr(),
            len: text.len(),
        };
        texts.iter().map(one).collect()
    }

    #[test]
    fn values_are_told_by_their_order_and_by_their_name() {
        WANTED.with(|l| *l.borrow_mut() = vec!["v uri".into(), "h cookie".into()]);
        let mut given = bytes(&["/a", "b=c", "/", "/?q"]);
        given[2].data = std::ptr::null();
        let mut x = Values {
            r: std::ptr::without_provenance_mut(8),
            subrequest: false,
            answered: false,
            values: &given,
            effects: Vec::new(),
        };
        assert_eq!(x.var(Var::Remote), Some(&b"b=c"[..]));
        assert_eq!(x.var(Var::Uri), None, "null");
        assert_eq!(x.var(Var::RequestUri), Some(&b"/?q"[..]));
        assert_eq!((x.var(Var::Host), x.var(Var::Status)), (None, None));
        let mut cookie = Vec::new();
        assert!(x.header("cookie", &mut cookie) && !x.header("other", &mut cookie));
        assert_eq!(cookie, b"b=c");
        x.answered = true;
        assert_eq!(x.var(Var::Status), Some(&b"/a"[..]));
    }

    /// No worker is started in a test's thread.
    #[test]
    fn without_a_worker_a_request_passes() {
        let given = bytes(&["200", "200", "0.1", "0.1"]);
        let (values, r) = (given.as_ptr(), std::ptr::without_provenance_mut(8));
        let rules = "a,b";
        let raw = RawOptions {
            user: bytes(&["u"])[0],
            rules: bytes(&[rules])[0],
            pool: bytes(&["p"])[0],
            cost: 1.0,
            raise: 0,
            given: super::super::abi::RULES,
        };
        // SAFETY: values, options, room and answer are this test's own; without a worker nothing
        // is asked of the request.
        unsafe {
            assert_eq!(options(&raw).rules, Some(rules.as_bytes()));
            assert!(options(std::ptr::null()).rules.is_none() && options(&raw).user.is_none());
            let mut out: Answer = std::mem::zeroed();
            out.action = Action::Refuse as i32;
            let status = sluice_access_given(r, values, 4, 0, &raw, &mut out);
            assert_eq!((status, out.action), (NOT_STARTED, Action::Proceed as i32));
            let null = std::ptr::null_mut();
            let status = sluice_access_given(null, values, 4, 0, &raw, &mut out);
            assert_eq!(status, BAD_ARGUMENT);
            let status = sluice_access_given(r, values, 4, 0, &raw, std::ptr::null_mut());
            assert_eq!(status, BAD_ARGUMENT);
            let status = sluice_resume_given(r, 0, 0, 0, &mut out);
            assert_eq!((status, out.action), (NOT_STARTED, Action::Proceed as i32));
            assert_eq!(sluice_log_given(r, values), NOT_STARTED);
            assert_eq!(sluice_header_given(r, std::ptr::null()), BAD_ARGUMENT);
            let mut room = [0; 8];
            EFFECTS.with(|e| *e.borrow_mut() = vec![b"vname\0".to_vec()]);
            assert_eq!(sluice_effect(0, room.as_mut_ptr(), 8), 6);
            assert_eq!(sluice_effect(1, room.as_mut_ptr(), 8), -1);
            assert_eq!(&room[..6], b"vname\0");
        }
    }
}
