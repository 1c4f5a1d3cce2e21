//! Token buckets.
pub mod spent;
pub mod word;
