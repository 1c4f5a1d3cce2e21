//! Redis or Valkey: scripts, client, synchronisation (skeleton).
pub mod breaker;
pub mod client;
mod connect;
mod errors;
pub mod scripts;
pub mod sync;
mod tls;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

pub use client::{Client, Health, StoreError};
pub use scripts::{BucketAsk, BucketSays, Reply};
