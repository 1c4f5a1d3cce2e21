//! The C boundary: what LuaJIT calls. Each function checks its arguments,
//! calls the engine and translates; nothing is decided here.
//!
//! - `abi`: version, layout and the guard that no panic crosses.
//! - `access`: the way of a request. `given`: the same for an nginx whose
//!   functions the library does not know.
//! - `check`: `check()`, `ban()`, `unban()`.
//! - `bridge`: waking and messages.
//! - `nginx`: nginx's own functions; `variables`: a shorter way to its variables, where it is
//!   proven to be the same.
//! - `filter`: when a backend has done its part.
//! - `socket`: whether a client has left whom nginx does not see leave.
//! - `module`: the control plane, a Lua module made with mlua.

mod abi;
mod access;
mod bridge;
mod check;
mod filter;
mod given;
#[cfg(any(feature = "module", feature = "embed"))]
pub mod module;
pub mod nginx;
mod socket;
mod variables;

pub use access::ended;
