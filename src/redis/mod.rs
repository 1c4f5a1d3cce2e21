//! Redis or Valkey: where one limit for all gateways lives, and where live
//! configuration, lists and bans come from.
//!
//! - [`client`]: decisions, within a request's budget; [`breaker`] keeps an outage from costing more.
//! - [`group`]: decisions that come while a call is under way share the next one.
//! - [`scripts`]: `bucket.lua` and how it is called. Its specification is
//!   [`crate::domain::bucket::spent`].
//! - [`lease`]: one pool's limit for all gateways, shared out by `lease.lua` and `slot.lua`;
//!   `embedded`: the two without a Redis, for tests and the simulator.
//! - [`sync`]: what changes in Redis reaches the gateway. Connections of its own, so
//!   that its slowness is nobody else's.
//!
//! All of it runs in the worker's background threads, each a current-thread
//! runtime with a `LocalSet`; nothing here blocks one.
pub mod breaker;
pub mod client;
mod connect;
#[cfg(feature = "embed")]
pub mod embedded;
mod errors;
pub mod group;
mod health;
mod keeper;
pub mod lease;
pub mod scripts;
pub mod sync;
mod tls;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

pub use client::{Client, Health, StoreError};
pub use group::{Answered, Door, Question, Whom};
pub use scripts::{Asks, BucketAsk, BucketSays, Reply};
