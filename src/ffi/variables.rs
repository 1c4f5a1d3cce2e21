//! nginx's variables without the detour through a name's hash, where it has
//! been seen to be the same.
//!
//! lua-nginx-module's functions lower and hash a variable's name at every call,
//! which costs more than the rest of reading it. nginx's own
//! `ngx_http_get_variable` takes the hash, so it can be computed once; and what
//! it returns for an indexed variable (those of `sluice.conf` are) is the place
//! in the request where its value stands, so it can be written there.
//!
//! Nothing of that is promised, so it is proven in each worker before it is
//! used: each variable is first read both ways; the first request shows where
//! the variables stand; the next one writes there and reads back the long way.
//! Whatever differs, the long way stays.
use crate::engine::exchange::Out;
use std::cell::Cell;
use std::ffi::c_void;

/// `ngx_str_t`.
#[repr(C)]
struct Name {
    len: usize,
    data: *const u8,
}

/// `ngx_http_variable_value_t`:
///
/// ```text
/// [ escape:1 | not_found:1 | no_cacheable:1 | valid:1 | len:28 ]  32 bits, then 32 unused
/// [ data ]                                                        a pointer
/// ```
#[repr(C)]
pub struct Value {
    bits: u32,
    _unused: u32,
    data: *const u8,
}

const LEN: u32 = (1 << 28) - 1;
const VALID: u32 = 1 << 28;
const NOT_FOUND: u32 = 1 << 30;

pub type Get = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut Value;

/// nginx's `ngx_hash_key`, of a lower-case name.
pub const fn key(name: &[u8]) -> usize {
    let mut key = 0usize;
    let mut i = 0;
    while i < name.len() {
        key = key.wrapping_mul(31).wrapping_add(name[i] as usize);
        i += 1;
    }
    key
}

/// A variable's name with its hash.
#[derive(Clone, Copy)]
pub struct Known {
    pub name: &'static [u8],
    key: usize,
}

impl Known {
    pub const fn new(name: &'static str) -> Known {
        Known {
            name: name.as_bytes(),
            key: key(name.as_bytes()),
        }
    }
}

/// The variables that are set, in the order of `Out`.
const OUTS: [Known; 5] = [
    Known::new(Out::Verdict.name()),
    Known::new(Out::Rule.name()),
    Known::new(Out::Level.name()),
    Known::new(Out::Client.name()),
    Known::new(Out::WaitMs.name()),
];

/// How far the proof has come; for each variable beside that its own bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    Untried,
    Proven,
    Never,
}

/// What this worker has found out. nginx's thread only.
pub struct Learnt {
    pub reading: Cell<Trust>,
    pub writing: Cell<Trust>,
    /// A bit for each variable whose value came out the same both ways.
    read: Cell<u8>,
    written: Cell<u8>,
    /// Where each variable stands, in values behind the first.
    places: Cell<[isize; 5]>,
}

thread_local! {
    static LEARNT: Learnt = const {
        Learnt {
            reading: Cell::new(Trust::Untried),
            writing: Cell::new(Trust::Untried),
            read: Cell::new(0),
            written: Cell::new(0),
            places: Cell::new([0; 5]),
        }
    };
}

/// What this thread has learnt; good as long as the thread.
pub fn here() -> *const Learnt {
    LEARNT.with(std::ptr::from_ref)
}

/// A worker starts. A second start in one process is a reload without a master: requests of two
/// configurations live side by side then, and their variables stand in different places.
#[cfg(any(feature = "module", feature = "embed"))]
pub fn started(again: bool) {
    LEARNT.with(|l| {
        let trust = if again { Trust::Never } else { Trust::Untried };
        l.writing.set(trust);
        l.reading.set(trust);
        l.read.set(0);
        l.written.set(0);
    });
}

/// # Safety
/// `r` is a living request, on nginx's thread, and `get` is nginx's function.
pub unsafe fn find(get: Get, r: *mut c_void, known: &Known) -> *mut Value {
    let name = Name {
        len: known.name.len(),
        data: known.name.as_ptr(),
    };
    // SAFETY: the caller's promise; nginx only reads the name.
    unsafe { get(r, (&raw const name).cast(), known.key) }
}

/// # Safety
/// As [`find`]; the bytes live as long as the request.
pub unsafe fn read<'r>(get: Get, r: *mut c_void, known: &Known) -> Option<&'r [u8]> {
    // SAFETY: the caller's promise.
    let value = unsafe { find(get, r, known).as_ref() }?;
    if value.bits & NOT_FOUND != 0 || value.bits & VALID == 0 || value.data.is_null() {
        return None;
    }
    // SAFETY: nginx's value: so many bytes, in the request's pool or in static memory.
    Some(unsafe { std::slice::from_raw_parts(value.data, (value.bits & LEN) as usize) })
}

impl Learnt {
    pub fn reads_proven(&self, index: u8) -> bool {
        self.read.get() & 1 << index != 0
    }

    pub fn compare_read(&self, index: u8, same: bool) {
        if same {
            self.read.set(self.read.get() | 1 << index);
        } else {
            self.reading.set(Trust::Never);
            self.read.set(0);
        }
    }

    pub fn writes_proven(&self, var: Out) -> bool {
        self.written.get() & 1 << var as u8 != 0
    }

    pub fn compare_write(&self, var: Out, same: bool) {
        if same {
            self.written.set(self.written.get() | 1 << var as u8);
        } else {
            self.writing.set(Trust::Never);
            self.written.set(0);
        }
    }

    /// Notes where the variables stand in a request. False: they are not indexed.
    ///
    /// # Safety
    /// As [`find`].
    pub unsafe fn places(&self, get: Get, r: *mut c_void) -> bool {
        let mut places = [0; 5];
        let mut first = std::ptr::null_mut::<Value>();
        for (place, known) in places.iter_mut().zip(&OUTS) {
            // SAFETY: the caller's promise.
            let (at, again) = unsafe { (find(get, r, known), find(get, r, known)) };
            // A variable that is not indexed is made anew at every call.
            if at.is_null() || at != again {
                return false;
            }
            if first.is_null() {
                first = at;
            }
            let bytes = (at as isize).wrapping_sub(first as isize);
            if bytes % size_of::<Value>() as isize != 0 {
                return false;
            }
            *place = bytes / size_of::<Value>() as isize;
        }
        self.places.set(places);
        true
    }

    /// Where the first variable stands in this request.
    ///
    /// # Safety
    /// As [`find`].
    pub unsafe fn first(get: Get, r: *mut c_void) -> *mut Value {
        // SAFETY: the caller's promise.
        unsafe { find(get, r, &OUTS[0]) }
    }

    /// Writes a variable where it stands.
    ///
    /// # Safety
    /// `first` came from [`Learnt::first`] for a living request of the configuration in which the
    /// places were learnt; `value` lives at least as long as that request.
    pub unsafe fn write(&self, first: *mut Value, var: Out, value: &[u8]) {
        let place = self.places.get()[var as usize];
        let new = Value {
            bits: (value.len() as u32 & LEN) | VALID,
            _unused: 0,
            data: value.as_ptr(),
        };
        // SAFETY: all five are in the request's one array of variables, so many values apart (the
        // caller's promise); nobody else runs.
        unsafe { first.offset(place).write(new) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_nginxs() {
        // ngx_hash(key, c) is key * 31 + c.
        assert_eq!(key(b""), 0);
        assert_eq!(key(b"a"), 97);
        assert_eq!(key(b"ab"), 97 * 31 + 98);
    }

    #[test]
    fn a_value_is_two_words() {
        assert_eq!(size_of::<Value>(), 16);
        assert_eq!(std::mem::offset_of!(Value, data), 8);
    }

    const NOTHING: Value = Value {
        bits: NOT_FOUND,
        _unused: 0,
        data: std::ptr::null(),
    };

    /// A request is an array of values here, ours in it from behind.
    unsafe extern "C" fn indexed(r: *mut c_void, name: *const c_void, hash: usize) -> *mut Value {
        // SAFETY: what `find` hands over.
        let name = unsafe {
            let name = &*name.cast::<Name>();
            std::slice::from_raw_parts(name.data, name.len)
        };
        assert_eq!(hash, key(name));
        let Some(place) = OUTS.iter().rev().position(|known| known.name == name) else {
            return std::ptr::null_mut();
        };
        // SAFETY: the test's array has one more.
        unsafe { r.cast::<Value>().add(place + 1) }
    }

    /// Each time elsewhere, as those that are not indexed.
    unsafe extern "C" fn made_anew(r: *mut c_void, _: *const c_void, _: usize) -> *mut Value {
        let first = r.cast::<Value>();
        // SAFETY: the test's array.
        unsafe {
            (*first).bits ^= 1;
            first.add(1 + (*first).bits as usize % 2)
        }
    }

    #[test]
    fn what_is_written_where_a_variable_stands_is_read_there() {
        let mut values = [const { NOTHING }; 6];
        let r = (&raw mut values).cast::<c_void>();
        let outs = [
            Out::Verdict,
            Out::Rule,
            Out::Level,
            Out::Client,
            Out::WaitMs,
        ];
        // SAFETY: the array lives as long as this test; `here` is this thread's.
        unsafe {
            let learnt = &*here();
            assert!(!learnt.places(made_anew, r) && learnt.places(indexed, r));
            let first = Learnt::first(indexed, r);
            assert_eq!(first, r.cast::<Value>().add(5));
            for (var, known) in outs.into_iter().zip(&OUTS) {
                assert_eq!(read(indexed, r, known), None);
                learnt.write(first, var, known.name);
                assert_eq!(read(indexed, r, known), Some(known.name));
            }
            learnt.write(first, Out::Rule, b"");
            assert_eq!(read(indexed, r, &OUTS[1]), Some(&b""[..]));
            assert_eq!(read(indexed, r, &Known::new("uri")), None, "there is none");
        }
        assert_eq!(values[0].bits & LEN, 0, "what is another's is as it was");
    }
}
