//! Token buckets.
pub mod word;
