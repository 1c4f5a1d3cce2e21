//! Sluice stands in the access phase of nginx and keeps a site's core business
//! running through an HTTP flood: token buckets, block- and allowlists and
//! priorities, in this gateway's shared memory or in Redis for all gateways.
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
//! `engine::lists` → `engine::buckets` (all rules, all or nothing) →
//! `engine::decide::finish` (fields, variables, refusal). What has to ask Redis
//! stops after the local buckets, is handed to `engine::thread`, and goes on in
//! `engine::decide::resume`.
//!
//! # Where to look for what
//!
//! - what a token bucket is: `domain::bucket` (`word` in shared memory, `spent`
//!   in Redis); where it lies: `shm::table`, `redis::scripts`
//! - the configuration's schema and errors: `domain::config`
//! - which requests a rule is for: `domain::matcher`; the key: `domain::key`;
//!   the client's address: `domain::client`
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
