//! One limit for all gateways: this one's share of it, for a second at a time.
//!
//! `lease.lua` shares out, `slot.lua` hands out small limits slot by slot. Both
//! forgive lost replies: what was promised to a gateway counts against the
//! others until it has said that it knows better, or its lease has ended.
//!
//! ```text
//! <prefix>:pool:{<name>}:gateways   hash: who is there, the leader, what it found
//! <prefix>:pool:{<name>}:requests   list: finished requests, for the leader
//! <prefix>:pool:{<name>}:slots      ZSET: slots of a small limit, until when
//! ```
use super::client::{Client, StoreError};
use super::scripts::{Arguments, Script};
use crate::domain::pool::limiter::{Done, Found, Sample};
use crate::domain::pool::{LEVELS, Report};
use crate::domain::units::Nanos;
use redis::Value;
use std::fmt::Write;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// How long a share holds, counted from before it was asked for.
pub const LEASE: Duration = Duration::from_secs(1);

static LEASES: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lease.lua")));
static SLOTS: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("slot.lua")));

/// A pool in the store.
#[derive(Clone, Debug)]
pub struct Keys {
    gateways: String,
    requests: String,
    slots: String,
}

impl Keys {
    /// The braces keep a pool's keys on one node of a Redis Cluster.
    pub fn new(prefix: &str, pool: &str) -> Keys {
        let key = |what: &str| format!("{prefix}:pool:{{{pool}}}:{what}");
        Keys {
            gateways: key("gateways"),
            requests: key("requests"),
            slots: key("slots"),
        }
    }
}

/// What this gateway says.
#[derive(Clone, Debug)]
pub struct Told<'a> {
    /// The same after a restart, and no other's.
    pub gateway: &'a str,
    pub report: Report,
    pub weights: [u32; LEVELS],
    /// The pool's longest answer.
    pub timeout_ns: u64,
    /// 99 of 100 responses take no longer; `None`: not known.
    pub p99_ns: Option<u64>,
    /// Gateways, as far as is known here.
    pub known: u32,
    /// Number of the last reply that arrived.
    pub heard: u64,
    /// In force at the limiter, and what it found.
    pub limit: u32,
    pub found: Found,
    /// Requests that have ended since the last call, and the clock of their times.
    pub samples: &'a [Sample],
    pub now: Nanos,
}

/// What it is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// In flight here, at most, for `LEASE` from before the call.
    pub share: u32,
    pub limit: u32,
    /// Live ones, this one included.
    pub gateways: u32,
    pub number: u64,
    /// This gateway's limiter finds the limit.
    pub leads: bool,
    /// Configured limits are not the same everywhere.
    pub differs: bool,
    /// The limit is so small that each slot is taken by itself.
    pub strict: bool,
    /// For a new leader: what the one before it found.
    pub found: Option<Found>,
    /// For the leader, in the order in which they ended.
    pub ended: Vec<Ended>,
}

/// A request that ended at some gateway.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ended {
    /// Before the reply.
    pub completed_ago_ns: u64,
    pub dispatched_ago_ns: u64,
    pub response_ns: Option<u64>,
    pub route: u8,
    pub level: u8,
    pub found_waiter: bool,
    pub error: bool,
}

impl Ended {
    /// For a limiter whose clock showed `now` at the reply, and when it ended there.
    pub fn done(&self, now: Nanos) -> (Done, Nanos) {
        let at = |ago: u64| Nanos(now.0.saturating_sub(ago));
        let done = Done {
            dispatched: at(self.dispatched_ago_ns),
            response: self.response_ns.map(Nanos),
            error: self.error,
            route: self.route,
            level: self.level,
            found_waiter: self.found_waiter,
        };
        (done, at(self.completed_ago_ns))
    }
}

/// The call of `lease.lua`.
pub fn arguments(keys: &Keys, told: &Told<'_>) -> Arguments {
    let report = &told.report;
    let us = |ns: u64| (ns / 1000).to_string();
    let found = &told.found;
    let mut values = vec![
        told.gateway.to_owned(),
        LEASE.as_micros().to_string(),
        us(told.timeout_ns),
        told.heard.to_string(),
        report.held.to_string(),
        report.in_force.to_string(),
        report.cap.to_string(),
        u8::from(report.adaptive).to_string(),
        // 0 would be "not known".
        told.p99_ns.map_or("0".to_owned(), |ns| us(ns.max(1000))),
        told.known.to_string(),
        format!(
            "{} {} {} {}",
            told.limit, found.limit, found.knee, found.healthy
        ),
        match report.adaptive {
            true => push(told.samples, told.now),
            false => String::new(),
        },
        report.levels.to_string(),
    ];
    let levels = report.levels.min(LEVELS);
    // A weight of 0 would be none.
    values.extend(
        told.weights[..levels]
            .iter()
            .map(|it| it.max(&1).to_string()),
    );
    values.extend(report.demand[..levels].iter().map(u32::to_string));
    Arguments {
        keys: vec![keys.gateways.clone(), keys.requests.clone()],
        values: values.into_iter().map(String::into_bytes).collect(),
    }
}

/// Finished requests: `dispatched completed response route level flags;` each, times as µs before
/// now; no response is `-`.
fn push(samples: &[Sample], now: Nanos) -> String {
    let mut text = String::new();
    for sample in samples {
        let ago = |at: u64| now.0.saturating_sub(at) / 1000;
        let (dispatched, completed) = (ago(sample.dispatched), ago(sample.completed));
        let _ = write!(text, "{dispatched} {completed} ");
        match sample.response_ns {
            u64::MAX => text.push('-'),
            ns => drop(write!(text, "{}", ns / 1000)),
        }
        let flags = sample.found_waiter & 1 | (sample.error & 1) << 1;
        let _ = write!(text, " {} {} {flags};", sample.route, sample.level);
    }
    text
}

/// What `push` made, behind the time at which it arrived; what is not that is left out.
fn pull(text: &str, now_us: u64, into: &mut Vec<Ended>) {
    let Some((arrived, requests)) = text.split_once(' ') else {
        return;
    };
    let Ok(arrived) = arrived.parse::<u64>() else {
        return;
    };
    let since = now_us.saturating_sub(arrived);
    let one = |request: &str| {
        let mut words = request.split(' ');
        let mut ago = || {
            let us: u64 = words.next()?.parse().ok()?;
            us.checked_add(since)?.checked_mul(1000)
        };
        let (dispatched_ago_ns, completed_ago_ns) = (ago()?, ago()?);
        let response_ns = match words.next()? {
            "-" => None,
            us => Some(us.parse::<u64>().ok()?.checked_mul(1000)?),
        };
        let (route, level) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let flags: u8 = words.next()?.parse().ok()?;
        Some(Ended {
            completed_ago_ns,
            dispatched_ago_ns,
            response_ns,
            route,
            level,
            found_waiter: flags & 1 != 0,
            error: flags & 2 != 0,
        })
    };
    into.extend(requests.split(';').filter_map(one));
}

/// Reads the reply. `None`: it is not one.
pub fn share(value: &Value) -> Option<Share> {
    let Value::Array(items) = value else {
        return None;
    };
    let number = |at: usize| match items.get(at)? {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    let found = text(items.get(8)?)?;
    let now_us = number(0)?;
    let mut ended = Vec::new();
    for batch in &items[9..] {
        pull(&text(batch)?, now_us, &mut ended);
    }
    ended.sort_by_key(|it| std::cmp::Reverse(it.completed_ago_ns));
    let count = |at| u32::try_from(number(at)?).ok();
    Some(Share {
        share: count(1)?,
        limit: count(2)?,
        gateways: count(3)?,
        number: number(4)?,
        leads: number(5)? == 1,
        differs: number(6)? == 1,
        strict: number(7)? == 1,
        found: what_was_found(&found),
        ended,
    })
}

fn what_was_found(text: &str) -> Option<Found> {
    let numbers: Option<Vec<f64>> = text.split(' ').map(|it| it.parse().ok()).collect();
    match numbers?.as_slice() {
        [_, limit, knee, healthy] => Some(Found {
            limit: *limit,
            knee: *knee,
            healthy: *healthy,
        }),
        _ => None,
    }
}

pub fn slot_arguments(keys: &Keys, gateway: &str, limit: u32, wanted: u32) -> Arguments {
    let lease = LEASE.as_micros().to_string();
    Arguments {
        keys: vec![keys.slots.clone()],
        values: [
            gateway.to_owned(),
            lease,
            limit.to_string(),
            wanted.to_string(),
        ]
        .map(String::into_bytes)
        .into(),
    }
}

impl Client {
    /// This gateway's share of a pool. Counts for this client's breaker only.
    pub async fn lease(
        &self,
        keys: &Keys,
        told: &Told<'_>,
        deadline: Instant,
    ) -> Result<Share, StoreError> {
        let value = self.run(&LEASES, &arguments(keys, told), deadline).await?;
        share(&value).ok_or_else(|| foreign("lease"))
    }

    /// Takes, renews and gives back slots of a small limit, so that there are `wanted`, or as many
    /// as there can be: the answer.
    pub async fn slots(
        &self,
        keys: &Keys,
        gateway: &str,
        limit: u32,
        wanted: u32,
        deadline: Instant,
    ) -> Result<u32, StoreError> {
        let arguments = slot_arguments(keys, gateway, limit, wanted);
        match self.run(&SLOTS, &arguments, deadline).await? {
            Value::Int(n) => u32::try_from(n).map_err(|_| foreign("slot")),
            _ => Err(foreign("slot")),
        }
    }
}

fn foreign(script: &str) -> StoreError {
    StoreError::Script(format!(
        "Redis answers the {script} script with something else"
    ))
}
