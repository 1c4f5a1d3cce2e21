//! Sluice stands in the access phase of nginx and keeps a site's core business
//! running through an HTTP flood: token buckets, block- and allowlists,
//! priorities, and an ordered queue before a backend that is full, in this
//! gateway's shared memory or in Redis for all gateways.
//!
//! # Layers
//!
//! An arrow points at what may be imported; `.ci/layers` keeps it so.
//!
//! ```text
//!  lua/resty/sluice.lua          hands over the request, acts on the answer
//!          │  LuaJIT FFI: one call a request
//!          ▼
//!         ffi                    checks arguments, calls, translates
//!          │
//!          ▼
//!        engine ◀──────── bin    one decision from beginning to end;
//!     ┌────┼─────────┐           what surrounds it in a worker's life
//!     ▼    ▼         ▼
//!    shm  redis    bridge        this gateway's memory; the store of all
//!     └────┼─────────┘           gateways; waking nginx from a thread
//!          ▼
//!        domain                  pure: arithmetic, rules, matching, units
//! ```
//!
//! # The way of one request
//!
//! `ffi::access` → `engine::decide::access` → `engine::client` (who asks) →
//! `engine::lists` → `engine::level` (how important) → `engine::buckets` (all
//! rules, all or nothing) → `engine::pools` (a slot of the backend, or a place
//! in its queue) → `engine::decide::admit`, `limited` or `shed` (fields,
//! variables, refusal). Two things make a request wait: what has to ask Redis is
//! handed to `engine::thread` after the local buckets, and what is queued hears
//! from whoever frees a slot, in any worker. Both go on in
//! `engine::decide::resume`. nginx's cleanup ends in `engine::worker::end`, the
//! log phase in `engine::pools::log`.
//!
//! # Where to look for what
//!
//! - what a token bucket is: `domain::bucket` (`word` in shared memory, `spent`
//!   in Redis); where it lies: `shm::table`, `redis::scripts`
//! - the configuration's schema and errors: `domain::config`
//! - which requests a rule is for: `domain::matcher`; the key: `domain::key`;
//!   the client's address: `domain::client`
//! - pools: the queue and the limiter as a pure state machine, `domain::pool`;
//!   where it lies and who may touch it, `shm::pool`; what time and dead workers
//!   bring about, `engine::watch`; one limit for several gateways,
//!   `engine::cluster`
//! - how important a request is: `domain::priority`, `engine::level`; what is
//!   remembered of clients: `shm::behaviour`
//! - lists and bans: `shm::lists`, `shm::bans`; how they arrive:
//!   `redis::sync`, `engine::publish`, `engine::files`
//! - changes while everything runs: `engine::sync`
//! - a region's life over reloads, crashes and upgrades: `shm::life`
//! - what operators see: `engine::status`, `engine::metrics`

pub mod bridge;
pub mod domain;
pub mod engine;
pub mod ffi;
pub mod redis;
pub mod shm;
