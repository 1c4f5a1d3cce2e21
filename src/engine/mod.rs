//! One decision from beginning to end, and what surrounds it in a worker's life.
//!
//! - `setup`: the master's part, at start and reload.
//! - `worker`: what one worker's requests share; `start()`.
//! - `decide`: the way of one request. Its stations: `client`, `lists`, `buckets`, `level` (how
//!   important it is), `pools` (a slot of a backend that may be full). `facts` and `exchange` are
//!   how it reads and answers, `ticket` how it is found again.
//! - `check`: `check()`, `ban()`, `unban()`.
//! - `thread`: asking Redis beside nginx; `sync`: following configuration and
//!   lists, with `rules`, `publish`, `files`, `degrade`, `room`,
//!   `current`.
//! - `watch`: what pools need beside nginx, and waking it for them.
//! - `status`, `metrics`: what operators see; `tool`: what the tool does beside nginx.

pub mod answer;
pub mod buckets;
pub mod check;
pub mod client;
pub mod cluster;
pub mod current;
pub mod decide;
pub mod degrade;
pub mod exchange;
pub mod facts;
pub mod files;
pub mod level;
pub mod lists;
pub mod messages;
pub mod metrics;
pub mod options;
pub mod pools;
pub mod publish;
pub mod room;
pub mod rules;
pub mod setup;
pub mod status;
pub mod sync;
pub mod thread;
pub mod ticket;
pub mod tool;
pub mod waiters;
pub mod watch;
pub mod worker;

#[cfg(test)]
mod decide_tests;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod pools_tests;
