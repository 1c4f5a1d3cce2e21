//! What Sluice decides by, without anything it decides with: pure functions and
//! plain data, which every other layer may use and which uses none of them.
//!
//! No clock, no I/O, no atomics, no unsafe. Time comes in as an argument, state
//! goes out as a return value, and what a request is comes in through
//! [`matcher::Facts`]. (The one exception is `config::load`, which reads the
//! configuration's files.) So this is where most tests are: tables with a reason
//! for each odd row, and random input against a model that is obviously right.
//!
//! In the order in which a request meets them:
//!
//! | module | question |
//! |---|---|
//! | [`config`] | what is allowed to be asked for, and what is wrong with it |
//! | [`client`] | who is asking, behind which proxies |
//! | [`entry`] | whom an entry of a list is about |
//! | [`matcher`] | which requests a rule is for |
//! | [`cookie`], [`key`] | which bucket of the rule it is |
//! | [`bucket`] | how many tokens are in it, and how long until more are |
//! | [`priority`] | how important the request is |
//! | [`answer`] | what the client is told |
//! | [`units`] | how much of what: durations, rates, sizes |
//!
//! Nothing here panics on what came from outside, whether a client, a file or
//! Redis sent it; what cannot be read is an error that names its place, or absent.
#![forbid(unsafe_code)]

pub mod answer;
pub mod bucket;
pub mod client;
pub mod config;
pub mod cookie;
pub mod entry;
pub mod key;
pub mod matcher;
pub mod pool;
pub mod priority;
pub mod units;
