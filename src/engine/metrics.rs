//! `metrics()`: Prometheus text, the sum over all workers of this gateway.
//!
//! Labels come from the configuration only, so there are as many series as
//! rules, whatever clients send.
use super::status::look;
use super::worker::{self, Worker};
use crate::domain::pool::{Counts, View, WAIT_BOUNDS_NS};
use crate::shm::{LATENCY_BOUNDS_NS, Region, Totals};
use std::fmt::Write;

/// The text; an error where this process is not set up.
pub fn text() -> Result<String, String> {
    worker::with(|w| {
        w.refresh();
        render(w)
    })
    .ok_or_else(|| "sluice: metrics() needs a worker that start() has attached".into())
}

/// The order of `Verdict`.
const VERDICTS: [&str; 5] = ["pass", "limited", "blocked", "error", "shed"];
/// The order of `StoreResult`.
const RESULTS: [&str; 4] = ["ok", "error", "timeout", "skipped"];

pub(super) fn render(w: &mut Worker) -> String {
    let up = w.setup.config.store.url.is_none() || (w.region.store_up() && w.store_up());
    let lists = || w.lists.iter().map(|l| l.counts());
    let blocked: u64 = lists().map(|c| c.block).sum();
    let store_bans: u64 = lists().map(|c| c.bans).sum();
    let allowed: u64 = lists().map(|c| c.allow).sum();
    let local = w.setup.config.store.url.is_none();
    let bans = store_bans + if local { w.region.bans_count() } else { 0 };
    let (_, used) = w.region.bucket_slots();
    let totals = w.region.totals();
    let pools = pools(w);
    let mut out = String::with_capacity(4096);
    counters(&mut out, &totals);
    pool_series(&mut out, &pools);
    let mut gauge = |name: &str, help: &str, value: u64| head(&mut out, name, "gauge", help, value);
    gauge(
        "sluice_store_up",
        "1 while the store is thought to answer, 0 while it is not asked",
        u64::from(up),
    );
    gauge(
        "sluice_config_generation",
        "Number of the configuration in force",
        w.force.rules.generation,
    );
    gauge(
        "sluice_config_errors",
        "Entries of the configuration that are refused",
        w.force.rules.errors.len() as u64,
    );
    gauge(
        "sluice_blocklist_entries",
        "Entries of all blocklists",
        blocked,
    );
    gauge(
        "sluice_allowlist_entries",
        "Entries of all allowlists",
        allowed,
    );
    gauge("sluice_bans_entries", "Bans", bans);
    gauge(
        "sluice_lists_rejected",
        "Entries of lists that are skipped because they are none",
        w.force.rejected,
    );
    gauge(
        "sluice_bucket_slots_used",
        "Buckets that hold information, of this gateway's memory",
        used,
    );
    gauge(
        "sluice_workers",
        "Workers of this gateway that live",
        living(w.region),
    );
    out
}

/// Each pool in force and how it stands. One whose lock is not to be had is left out for once: what
/// was known last may be less than another worker has shown since.
fn pools(w: &Worker) -> Vec<(&'static str, View)> {
    let pools = w.force.rules.pools.iter();
    pools
        .filter_map(|p| {
            let (mut view, _) = look(w.region, p)?;
            // And those that were refused without the lock.
            let beside = w.region.sheds(p.id);
            let both = view.counts.shed.iter_mut().flatten();
            for (n, more) in both.zip(beside.iter().flatten()) {
                *n = n.wrapping_add(*more);
            }
            Some((p.name, view))
        })
        .collect()
}

/// The order of `Reason`.
const REASONS: [&str; 4] = ["full", "evicted", "timeout", "hopeless"];

fn pool_series(out: &mut String, pools: &[(&'static str, View)]) {
    if pools.is_empty() {
        return;
    }
    describe(
        out,
        "sluice_pool_in_flight",
        "gauge",
        "Requests with a slot, those included whose client has left while the backend works",
    );
    for (name, view) in pools {
        let _ = writeln!(
            out,
            "sluice_pool_in_flight{{pool=\"{name}\"}} {}",
            view.in_flight
        );
    }
    describe(
        out,
        "sluice_pool_limit",
        "gauge",
        "Requests that may have a slot at once",
    );
    for (name, view) in pools {
        let _ = writeln!(out, "sluice_pool_limit{{pool=\"{name}\"}} {}", view.limit);
    }
    describe(
        out,
        "sluice_pool_saturated",
        "gauge",
        "1 while requests have to wait for a slot",
    );
    for (name, view) in pools {
        let _ = writeln!(
            out,
            "sluice_pool_saturated{{pool=\"{name}\"}} {}",
            u8::from(view.saturated)
        );
    }
    describe(out, "sluice_queue_waiting", "gauge", "Requests that wait");
    for (name, view) in pools {
        for (level, n) in view.waiting.iter().enumerate() {
            let _ = writeln!(
                out,
                "sluice_queue_waiting{{pool=\"{name}\",level=\"{level}\"}} {n}"
            );
        }
    }
    describe(
        out,
        "sluice_queue_wait_seconds",
        "histogram",
        "How long requests waited that were given a slot",
    );
    for (name, view) in pools {
        for level in 0..view.waiting.len() {
            wait_histogram(out, name, level, &view.counts);
        }
    }
    describe(
        out,
        "sluice_shed_total",
        "counter",
        "Requests refused because the backend was full",
    );
    for (name, view) in pools {
        for level in 0..view.waiting.len() {
            for (reason, n) in REASONS.iter().zip(view.counts.shed[level]) {
                let _ = writeln!(
                    out,
                    "sluice_shed_total{{pool=\"{name}\",level=\"{level}\",reason=\"{reason}\"}} {n}"
                );
            }
        }
    }
}

fn wait_histogram(out: &mut String, pool: &str, level: usize, counts: &Counts) {
    let labels = format!("pool=\"{pool}\",level=\"{level}\"");
    let buckets = &counts.waits[level];
    let mut below = 0;
    for (bound_ns, n) in WAIT_BOUNDS_NS.iter().zip(buckets) {
        below += n;
        let le = *bound_ns as f64 / 1e9;
        let _ = writeln!(
            out,
            "sluice_queue_wait_seconds_bucket{{{labels},le=\"{le}\"}} {below}"
        );
    }
    let all: u64 = buckets.iter().sum();
    let sum = counts.waits_sum_ns[level] as f64 / 1e9;
    let _ = writeln!(
        out,
        "sluice_queue_wait_seconds_bucket{{{labels},le=\"+Inf\"}} {all}\n\
         sluice_queue_wait_seconds_sum{{{labels}}} {sum}\n\
         sluice_queue_wait_seconds_count{{{labels}}} {all}"
    );
}

fn living(region: &Region) -> u64 {
    region.workers().len() as u64
}

/// A series without labels.
fn head(out: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    describe(out, name, kind, help);
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{name} {value}");
}

fn describe(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}.\n# TYPE {name} {kind}");
}

fn counters(out: &mut String, t: &Totals) {
    describe(
        out,
        "sluice_requests_total",
        "counter",
        "Requests decided, by verdict",
    );
    for (name, n) in VERDICTS.iter().zip(t.verdicts) {
        let _ = writeln!(out, "sluice_requests_total{{verdict=\"{name}\"}} {n}");
    }
    describe(
        out,
        "sluice_rule_decisions_total",
        "counter",
        "What each rule said of the requests that it was asked about",
    );
    for r in t.rules.iter().filter(|r| !r.name.contains('~')) {
        for (verdict, n) in [
            ("pass", r.pass),
            ("limited", r.limited),
            ("shadow", r.shadow),
        ] {
            let rule = escape(&r.name);
            let _ = writeln!(
                out,
                "sluice_rule_decisions_total{{rule=\"{rule}\",verdict=\"{verdict}\"}} {n}"
            );
        }
    }
    describe(
        out,
        "sluice_store_requests_total",
        "counter",
        "Decisions asked of the store",
    );
    for (name, n) in RESULTS.iter().zip(t.store) {
        let _ = writeln!(out, "sluice_store_requests_total{{result=\"{name}\"}} {n}");
    }
    describe(
        out,
        "sluice_store_latency_seconds",
        "histogram",
        "Time from asking the store to its answer",
    );
    let mut below = 0;
    for (bound_ns, n) in LATENCY_BOUNDS_NS.iter().zip(t.store_latency.buckets) {
        below += n;
        let le = *bound_ns as f64 / 1e9;
        let _ = writeln!(
            out,
            "sluice_store_latency_seconds_bucket{{le=\"{le}\"}} {below}"
        );
    }
    // Count and last bucket from the same sum: they must be equal while others count on.
    let all: u64 = t.store_latency.buckets.iter().sum();
    let sum = t.store_latency.sum_ns as f64 / 1e9;
    let _ = writeln!(
        out,
        "sluice_store_latency_seconds_bucket{{le=\"+Inf\"}} {all}\n\
         sluice_store_latency_seconds_sum {sum}\n\
         sluice_store_latency_seconds_count {all}"
    );
    head(
        out,
        "sluice_bucket_evictions_total",
        "counter",
        "Buckets that still held information and had to make room",
        t.evictions,
    );
    head(
        out,
        "sluice_internal_errors_total",
        "counter",
        "Internal errors that were caught; each let a request pass undecided",
        t.guard_panics,
    );
}

/// A label's value: backslash, quote and line break escaped.
fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_buckets_are_cumulative_and_end_in_the_count() {
        let mut t = Totals::default();
        t.store_latency.buckets[0] = 2;
        t.store_latency.buckets[3] = 1;
        let mut out = String::new();
        counters(&mut out, &t);
        assert!(out.contains("sluice_store_latency_seconds_bucket{le=\"0.0001\"} 2\n"));
        assert!(out.contains("sluice_store_latency_seconds_bucket{le=\"0.001\"} 3\n"));
        assert!(out.contains("sluice_store_latency_seconds_bucket{le=\"+Inf\"} 3\n"));
        assert!(out.contains("sluice_store_latency_seconds_count 3\n"));
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
