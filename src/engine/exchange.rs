//! How a decision reads a request and answers it.
//!
//! Two implementations stand in `ffi`: one that calls nginx's own functions,
//! and one over values that the Lua side has read, for an nginx whose
//! functions the library does not know.

use std::sync::atomic::{AtomicBool, Ordering};

/// What is read from the request by name, as nginx spells its variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Var<'a> {
    /// The address of the other end of the connection.
    Peer,
    /// The client's address as nginx has it: the peer's unless nginx resolved it.
    Remote,
    Uri,
    /// The target of the request line, before any rewriting.
    RequestUri,
    Method,
    Host,
    ContentLength,
    /// Bytes of the request that have been read, those of its body not counted while it waits.
    RequestLength,
    TransferEncoding,
    /// Of the answer, once there is one.
    Status,
    /// Of the backend's answer, like the times: one for each backend that was tried.
    UpstreamStatus,
    UpstreamTime,
    UpstreamHeaderTime,
    /// An argument of the query string.
    Arg(&'a str),
}

/// The variables that a decision sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Out {
    Verdict,
    Rule,
    Level,
    Client,
    WaitMs,
}

impl Out {
    /// The variable's name without `$`.
    pub const fn name(self) -> &'static str {
        match self {
            Out::Verdict => "sluice_verdict",
            Out::Rule => "sluice_rule",
            Out::Level => "sluice_level",
            Out::Client => "sluice_client",
            Out::WaitMs => "sluice_wait_ms",
        }
    }
}

/// Set once a variable could not be assigned: the include is missing, and no
/// request needs to find that out again.
static NO_VARIABLES: AtomicBool = AtomicBool::new(false);

/// Is the `sluice.conf` include missing, as far as requests have shown?
pub fn variables_missing() -> bool {
    // Relaxed: a flag on its own, nothing is published through it.
    NO_VARIABLES.load(Ordering::Relaxed)
}

/// A variable could not be assigned.
pub fn note_missing_variables() {
    NO_VARIABLES.store(true, Ordering::Relaxed);
}

/// A variable's new value, by how long its bytes live.
#[derive(Clone, Copy, Debug)]
pub enum Text<'r, 'a> {
    /// As long as the process.
    Static(&'static [u8]),
    /// As long as the request: nginx's own bytes.
    Request(&'r [u8]),
    /// No longer than the call.
    Brief(&'a [u8]),
}

impl Text<'_, '_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Text::Static(b) | Text::Request(b) | Text::Brief(b) => b,
        }
    }
}

/// One request, as long as one call lasts: `'r` is that call.
pub trait Exchange<'r> {
    /// Names the request for as long as it lives; unique among living ones.
    fn id(&self) -> usize;
    /// Tells this request from a later one that nginx puts at the same address: never 0.
    fn serial(&mut self) -> u64;
    fn is_subrequest(&mut self) -> bool;
    /// `None`: absent.
    fn var(&mut self, var: Var<'_>) -> Option<&'r [u8]>;
    /// Appends all lines of that name (lower case), joined as RFC 9110 section
    /// 5.3 says (`; ` for Cookie). False: absent.
    fn header(&mut self, name: &str, out: &mut Vec<u8>) -> bool;
    fn set_var(&mut self, var: Out, value: Text<'r, '_>);
    fn set_header(&mut self, name: &'static str, value: &[u8]);
    /// Sets a header of the request itself, for the backend; `None` removes it.
    fn set_request_header(&mut self, name: &'static str, value: Option<&[u8]>);
    /// The client has closed its connection, as far as the socket tells, whatever has been read
    /// of the request. For those that nginx itself does not see leave.
    fn client_gone(&mut self) -> bool;
    /// Has `ticket` given back at the request's end. False: nobody will call.
    fn at_end(&mut self, ticket: u64) -> bool;
}
