//! Pure: no clock, no I/O, no atomics, no unsafe. Time comes in as an
//! argument, state goes out as a return value.
#![forbid(unsafe_code)]

pub mod answer;
pub mod bucket;
pub mod client;
pub mod config;
pub mod cookie;
pub mod entry;
pub mod key;
pub mod matcher;
pub mod priority;
pub mod units;
