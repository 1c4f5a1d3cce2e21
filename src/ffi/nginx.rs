//! nginx and lua-nginx-module, as far as a request is read and answered
//! through them: the same functions that lua-resty-core calls, found by name
//! in the running process.
//!
//! Invariant: these pointers are only called after the Lua side has compared
//! the signatures that lua-resty-core declares with those here (`direct`), and
//! only from nginx's own thread, inside a call that Lua made for that request.
use super::filter::BodyFilter;
use super::variables::{self, Get, Known, Learnt, Trust};
use crate::engine::exchange::{
    Exchange, Out, Text, Var, note_missing_variables, variables_missing,
};
use once_cell::sync::OnceCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::MaybeUninit;
use std::ptr;

/// nginx's `ngx_str_t` as lua-nginx-module passes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Str {
    len: c_int,
    data: *const u8,
}

/// `ngx_http_lua_ffi_table_elt_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    key: Str,
    value: Str,
}

/// `ngx_http_cleanup_t`.
#[repr(C)]
struct Cleanup {
    handler: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
    next: *mut Cleanup,
}

type VarGet = unsafe extern "C" fn(
    *mut c_void,
    *const u8,
    usize,
    *mut u8,
    c_int,
    *mut *const u8,
    *mut usize,
    *mut *const c_char,
) -> c_int;
type VarSet = unsafe extern "C" fn(
    *mut c_void,
    *const u8,
    usize,
    *mut u8,
    *const u8,
    usize,
    *mut u8,
    *mut usize,
) -> c_int;
type SetHeader = unsafe extern "C" fn(
    *mut c_void,
    *const u8,
    usize,
    c_int,
    *const u8,
    usize,
    *mut Str,
    usize,
    c_int,
    *mut *const c_char,
) -> c_int;
type HeadersCount = unsafe extern "C" fn(*mut c_void, c_int, *mut c_int) -> c_int;
type Headers = unsafe extern "C" fn(*mut c_void, *mut Header, c_int, c_int) -> c_int;
type SetRequestHeader = unsafe extern "C" fn(
    *mut c_void,
    *const u8,
    usize,
    *const u8,
    usize,
    *mut Str,
    usize,
    c_int,
    *mut *const c_char,
) -> c_int;
type IsSubrequest = unsafe extern "C" fn(*mut c_void) -> c_int;
type Phase = unsafe extern "C" fn(*mut c_void, *mut *const c_char) -> c_int;
type CleanupAdd = unsafe extern "C" fn(*mut c_void, usize) -> *mut Cleanup;

/// What lua-nginx-module offers.
struct Api {
    var_get: VarGet,
    var_set: VarSet,
    set_header: SetHeader,
    headers_count: HeadersCount,
    headers: Headers,
    set_request_header: SetRequestHeader,
    is_subrequest: IsSubrequest,
    phase: Phase,
}

const PEER: Known = Known::new("realip_remote_addr");
const REMOTE: Known = Known::new("remote_addr");
const URI: Known = Known::new("uri");
const REQUEST_URI: Known = Known::new("request_uri");
const METHOD: Known = Known::new("request_method");
const HOST: Known = Known::new("host");
const CONTENT_LENGTH: Known = Known::new("content_length");
const TRANSFER_ENCODING: Known = Known::new("http_transfer_encoding");

/// No variable that is read or set here has a longer name.
const LONGEST_NAME: usize = 128;
const NGX_OK: c_int = 0;
/// `NGX_HTTP_LUA_CONTEXT_` `REWRITE`, `ACCESS` and `SERVER_REWRITE`: where `access()` decides.
const DECIDING_PHASES: c_int = 0x0002 | 0x0004 | 0x8000;

static API: OnceCell<Option<Api>> = OnceCell::new();
static GET_VARIABLE: OnceCell<Option<Get>> = OnceCell::new();
static CLEANUP_ADD: OnceCell<Option<CleanupAdd>> = OnceCell::new();
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is NUL-terminated; RTLD_DEFAULT searches what is loaded globally, which
    // nginx's modules are. The result is only compared and converted here.
    let p = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!p.is_null()).then_some(p)
}

macro_rules! function {
    ($name:literal as $type:ty) => {
        symbol($name).map(|p| {
            // SAFETY: the symbol is a function of that name; that its signature is `$type` is what
            // the Lua side compares before `direct` is switched on (for ngx_http_cleanup_add, which
            // no Lua declares, it has been the same since nginx 0.5).
            unsafe { std::mem::transmute::<*mut c_void, $type>(p) }
        })
    };
}

fn find() -> Option<Api> {
    Some(Api {
        var_get: function!(c"ngx_http_lua_ffi_var_get" as VarGet)?,
        var_set: function!(c"ngx_http_lua_ffi_var_set" as VarSet)?,
        set_header: function!(c"ngx_http_lua_ffi_set_resp_header" as SetHeader)?,
        headers_count: function!(c"ngx_http_lua_ffi_req_get_headers_count" as HeadersCount)?,
        headers: function!(c"ngx_http_lua_ffi_req_get_headers" as Headers)?,
        set_request_header: function!(c"ngx_http_lua_ffi_req_set_header" as SetRequestHeader)?,
        is_subrequest: function!(c"ngx_http_lua_ffi_is_subrequest" as IsSubrequest)?,
        phase: function!(c"ngx_http_lua_ffi_get_phase" as Phase)?,
    })
}

/// Looks the functions up. False where this nginx does not show them.
pub fn available() -> bool {
    api().is_some()
}

fn api() -> Option<&'static Api> {
    API.get_or_init(find).as_ref()
}

fn cleanup_add() -> Option<CleanupAdd> {
    *CLEANUP_ADD.get_or_init(|| function!(c"ngx_http_cleanup_add" as CleanupAdd))
}

fn get_variable() -> Option<Get> {
    *GET_VARIABLE.get_or_init(|| function!(c"ngx_http_get_variable" as Get))
}

/// Where nginx keeps the first of its body filters; null where that is not visible.
pub fn top_body_filter() -> *mut Option<BodyFilter> {
    symbol(c"ngx_http_top_body_filter").map_or(ptr::null_mut(), |p| p.cast())
}

/// nginx's own flag that this worker has been told to quit, where it is visible.
pub fn exiting() -> bool {
    static FLAG: OnceCell<usize> = OnceCell::new();
    let p = *FLAG.get_or_init(|| symbol(c"ngx_exiting").map_or(0, |p| p as usize));
    // SAFETY: `ngx_exiting` is an aligned `ngx_uint_t` that lives as long as the process; it is
    // written by nginx's thread only, and a stale read merely delays what a later one does.
    p != 0 && unsafe { ptr::read_volatile(p as *const usize) } != 0
}

/// A living request of this worker, for the length of one call.
pub struct Request {
    r: *mut c_void,
    api: &'static Api,
    /// Where this request's first variable of ours stands; null until it is asked for.
    first: *mut variables::Value,
    learnt: *const Learnt,
}

impl Request {
    /// # Safety
    /// `r` is the request for which Lua made this call, on nginx's thread.
    pub unsafe fn new(r: *mut c_void) -> Option<Request> {
        if r.is_null() {
            return None;
        }
        Some(Request {
            r,
            api: api()?,
            first: ptr::null_mut(),
            learnt: variables::here(),
        })
    }

    fn learnt<'l>(&self) -> &'l Learnt {
        // SAFETY: a thread's own value without a destructor lives as long as its thread, which is
        // the one that this request is used on (see `new`); it has no parts that are borrowed.
        unsafe { &*self.learnt }
    }

    fn phase(&self) -> c_int {
        let mut err = ptr::null();
        // SAFETY: `r` lives (see `new`); `err` is written with a pointer to static text.
        unsafe { (self.api.phase)(self.r, &mut err) }
    }

    /// In a phase in which a request can be decided?
    pub fn deciding(&self) -> bool {
        let phase = self.phase();
        phase > 0 && phase & DECIDING_PHASES != 0
    }

    fn get<'r>(&mut self, name: &[u8]) -> Option<&'r [u8]> {
        let mut low = [const { MaybeUninit::<u8>::uninit() }; LONGEST_NAME];
        if name.len() > low.len() {
            return None;
        }
        let (mut value, mut len, mut err) = (ptr::null(), 0usize, ptr::null());
        // SAFETY: `r` lives; `low` has room for the lower-cased name; the three results are
        // written before NGX_OK is returned.
        let rc = unsafe {
            (self.api.var_get)(
                self.r,
                name.as_ptr(),
                name.len(),
                low.as_mut_ptr().cast(),
                0,
                &mut value,
                &mut len,
                &mut err,
            )
        };
        if rc != NGX_OK || value.is_null() {
            return None;
        }
        // SAFETY: nginx keeps a variable's bytes in the request's pool (or in static memory) until
        // the request ends; 'r is one call made while it lives.
        Some(unsafe { std::slice::from_raw_parts(value, len) })
    }

    /// A variable of which the name is known beforehand. `index`: which of them.
    fn known<'r>(&mut self, index: u8, known: &Known) -> Option<&'r [u8]> {
        let Some(get) = get_variable() else {
            return self.get(known.name);
        };
        let r = self.r;
        // SAFETY: `r` lives (see `new`); the result is used while it does.
        let short = || unsafe { variables::read(get, r, known) };
        let l = self.learnt();
        if l.reads_proven(index) {
            return short();
        }
        let long = self.get(known.name);
        if l.reading.get() != Trust::Never {
            l.compare_read(index, long == short());
        }
        long
    }

    /// Writes a variable into the request itself, where that is proven to work.
    #[inline]
    fn set_where_it_stands(&mut self, var: Out, value: &[u8]) -> bool {
        let l = self.learnt();
        if self.first.is_null() || !l.writes_proven(var) {
            return self.learn_to_set(var, value);
        }
        // SAFETY: `first` is this living request's; the places were learnt in this worker, under
        // this configuration (`started`, which also forgets what is proven); `value` is static or
        // the request's own.
        unsafe { l.write(self.first, var, value) };
        true
    }

    /// The same with what comes before: where the request has its variables, and the proof.
    #[inline(never)]
    fn learn_to_set(&mut self, var: Out, value: &[u8]) -> bool {
        let Some(get) = get_variable() else {
            return false;
        };
        let l = self.learnt();
        match l.writing.get() {
            Trust::Proven => {}
            Trust::Never => return false,
            Trust::Untried => {
                // SAFETY: `r` lives (see `new`).
                let indexed = unsafe { l.places(get, self.r) };
                l.writing
                    .set(if indexed { Trust::Proven } else { Trust::Never });
                return false;
            }
        }
        if self.first.is_null() {
            // SAFETY: `r` lives (see `new`).
            self.first = unsafe { Learnt::first(get, self.r) };
        }
        if self.first.is_null() {
            return false;
        }
        // SAFETY: as in `set_where_it_stands`.
        unsafe { l.write(self.first, var, value) };
        if l.writes_proven(var) {
            return true;
        }
        let same = self.get(var.name().as_bytes()) == Some(value);
        l.compare_write(var, same);
        same
    }

    /// Sets a variable through lua-nginx-module, which copies the value.
    fn set_by_name(&mut self, var: Out, value: &[u8]) {
        let name = var.name();
        let mut low = [const { MaybeUninit::<u8>::uninit() }; LONGEST_NAME];
        let mut err = [0u8; 128];
        let mut err_len = err.len();
        // SAFETY: `r` lives; `low` has room for the name; the value is copied into the request's
        // pool; at most `err_len` bytes of an error are written.
        let rc = unsafe {
            (self.api.var_set)(
                self.r,
                name.as_ptr(),
                name.len(),
                low.as_mut_ptr().cast(),
                value.as_ptr(),
                value.len(),
                err.as_mut_ptr(),
                &mut err_len,
            )
        };
        if rc != NGX_OK {
            note_missing_variables();
        }
    }
}

impl<'r> Exchange<'r> for Request {
    fn id(&self) -> usize {
        self.r as usize
    }

    fn serial(&mut self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.get(b"connection").hash(&mut hasher);
        self.get(b"connection_requests").hash(&mut hasher);
        hasher.finish() | 1
    }

    fn is_subrequest(&mut self) -> bool {
        // SAFETY: `r` lives (see `new`).
        unsafe { (self.api.is_subrequest)(self.r) == 1 }
    }

    fn var(&mut self, var: Var<'_>) -> Option<&'r [u8]> {
        match var {
            // Without the realip module nginx cannot have replaced the address.
            Var::Peer => self.known(0, &PEER).or_else(|| self.known(1, &REMOTE)),
            Var::Remote => self.known(1, &REMOTE),
            Var::Uri => self.known(2, &URI),
            Var::RequestUri => self.known(3, &REQUEST_URI),
            Var::Method => self.known(4, &METHOD),
            Var::Host => self.known(5, &HOST),
            Var::ContentLength => self.known(6, &CONTENT_LENGTH),
            Var::TransferEncoding => self.known(7, &TRANSFER_ENCODING),
            Var::RequestLength => self.get(b"request_length"),
            Var::Status => self.get(b"status"),
            Var::UpstreamStatus => self.get(b"upstream_status"),
            Var::UpstreamTime => self.get(b"upstream_response_time"),
            Var::UpstreamHeaderTime => self.get(b"upstream_header_time"),
            Var::Arg(name) => {
                let mut full = [0u8; 128];
                let n = 4 + name.len();
                if n > full.len() {
                    return None;
                }
                full[..4].copy_from_slice(b"arg_");
                full[4..n].copy_from_slice(name.as_bytes());
                self.get(&full[..n])
            }
        }
    }

    fn header(&mut self, name: &str, out: &mut Vec<u8>) -> bool {
        // nginx joins the lines of these two itself, in every version.
        let joined: Option<&[u8]> = match name {
            "cookie" => Some(b"http_cookie"),
            "x-forwarded-for" => Some(b"http_x_forwarded_for"),
            // nginx goes by one line of several; so does the checked fallback.
            "user-agent" => Some(b"http_user_agent"),
            _ => None,
        };
        if let Some(var) = joined {
            return match self.get(var) {
                Some(value) => {
                    out.extend_from_slice(value);
                    true
                }
                None => false,
            };
        }
        let mut truncated = 0;
        // SAFETY: `r` lives; 0 lifts the limit on the number of headers.
        let n = unsafe { (self.api.headers_count)(self.r, 0, &mut truncated) };
        if n <= 0 {
            return false;
        }
        let empty = Str {
            len: 0,
            data: ptr::null(),
        };
        let mut headers = vec![
            Header {
                key: empty,
                value: empty
            };
            n as usize
        ];
        // SAFETY: `headers` has room for the `n` headers that were counted a moment ago, on the
        // same thread. raw = 1: no lower-casing, so no copies are made in the request's pool.
        let rc = unsafe { (self.api.headers)(self.r, headers.as_mut_ptr(), n, 1) };
        if rc != NGX_OK {
            return false;
        }
        let mut found = false;
        for h in &headers {
            if bytes(&h.key).eq_ignore_ascii_case(name.as_bytes()) {
                if found {
                    out.extend_from_slice(b", ");
                }
                found = true;
                out.extend_from_slice(bytes(&h.value));
            }
        }
        found
    }

    fn set_var(&mut self, var: Out, value: Text<'r, '_>) {
        if variables_missing() {
            return;
        }
        if let Text::Static(bytes) | Text::Request(bytes) = value
            && self.set_where_it_stands(var, bytes)
        {
            return;
        }
        self.set_by_name(var, value.bytes());
    }

    fn set_header(&mut self, name: &'static str, value: &[u8]) {
        let mut err = ptr::null();
        // SAFETY: `r` lives; key and value are copied into the request's pool. A failure (no
        // memory, header sent) leaves the response without the field, nothing more.
        unsafe {
            (self.api.set_header)(
                self.r,
                name.as_ptr(),
                name.len(),
                0,
                value.as_ptr(),
                value.len(),
                ptr::null_mut(),
                0,
                1,
                &mut err,
            );
        }
    }

    fn set_request_header(&mut self, name: &'static str, value: Option<&[u8]>) {
        // lua-nginx-module wants the value NUL-terminated within its length plus one, as
        // lua-resty-core passes it; null removes the header.
        let mut err = ptr::null();
        let copy: Vec<u8>;
        let (p, n) = match value {
            Some(v) => {
                copy = [v, b"\0"].concat();
                (copy.as_ptr(), v.len())
            }
            None => (ptr::null(), 0),
        };
        // SAFETY: `r` lives; key and value are copied into the request's pool.
        unsafe {
            (self.api.set_request_header)(
                self.r,
                name.as_ptr(),
                name.len(),
                p,
                n,
                ptr::null_mut(),
                0,
                1,
                &mut err,
            );
        }
    }

    fn client_gone(&mut self) -> bool {
        // SAFETY: `r` lives (see `new`).
        unsafe { super::socket::peer_gone(self.r) }
    }

    fn at_end(&mut self, ticket: u64) -> bool {
        // SAFETY: `r` is the living request that this value was made for.
        unsafe { add_cleanup(self.r, ticket) }
    }
}

fn bytes<'r>(s: &Str) -> &'r [u8] {
    if s.data.is_null() || s.len <= 0 {
        return &[];
    }
    // SAFETY: as lua-nginx-module filled it in: `len` bytes in the request's pool.
    unsafe { std::slice::from_raw_parts(s.data, s.len as usize) }
}

/// Has `ticket` given back at the end of the request `r`.
///
/// # Safety
/// `r` is a living request, on nginx's thread.
pub unsafe fn add_cleanup(r: *mut c_void, ticket: u64) -> bool {
    let Some(add) = cleanup_add() else {
        return false;
    };
    // SAFETY: `r` lives (caller); size 0 leaves `data` to us.
    let cleanup = unsafe { add(r, 0) };
    if cleanup.is_null() {
        return false;
    }
    // SAFETY: a fresh entry in the request's pool, which nginx has linked in already.
    unsafe {
        (*cleanup).data = ticket as *mut c_void;
        (*cleanup).handler = Some(super::ended);
    }
    true
}
