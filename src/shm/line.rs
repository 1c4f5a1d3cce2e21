//! A worker's line: who it is, and what it has counted.
//!
//! Each counter has one writer, the thread of that worker that runs nginx's
//! loop, so counting is a plain load and store; readers sum over all lines. The
//! line of a dead worker keeps its numbers, and the worker that takes it over
//! goes on from there: no sum ever falls. Who owns a line is not written in it:
//! that is a record lock (see [`lock`](super::lock)).
use super::memory::Shared;
use super::rules::RuleId;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Limited,
    Blocked,
    Error,
    /// The pool was full.
    Shed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleVerdict {
    Pass,
    Limited,
    Shadow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreResult {
    Ok,
    Error,
    Timeout,
    Skipped,
}

/// Upper bounds of the latency histogram, ns; a last bucket has none.
pub const LATENCY_BOUNDS_NS: [u64; 12] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    1_000_000_000,
];

/// 1 KiB before the counters of rules.
#[repr(C, align(64))]
pub struct LineHead {
    /// Of the worker that holds the line's byte, or held it last.
    pub pid: AtomicU64,
    pub setup_generation: AtomicU64,
    /// In force in this worker; 0: none yet.
    pub config_generation: AtomicU64,
    /// Not 0: whoever had the line may hold something in pools or of users.
    pub holds: AtomicU64,
    /// Counts what its worker was woken for; its thread sleeps on it.
    pub wakes: AtomicU32,
    /// Not 0: that thread sleeps, or is about to.
    pub asleep: AtomicU32,
    _who: [AtomicU64; 3],
    verdicts: [AtomicU64; 16],
    store: [AtomicU64; 8],
    latency: [AtomicU64; 16],
    latency_sum_ns: AtomicU64,
    latency_count: AtomicU64,
    evictions: AtomicU64,
    guard_panics: AtomicU64,
    slots_taken: AtomicU64,
    slots_freed: AtomicU64,
    /// For counters of later versions: 0 in all that came before.
    spare: [AtomicU64; 74],
}

const _: () = assert!(size_of::<LineHead>() == 1024);

#[repr(C)]
pub struct RuleCounters {
    /// By `RuleVerdict as usize`.
    verdicts: [AtomicU64; 3],
}

// SAFETY: repr(C), atomics and nothing else.
unsafe impl Shared for LineHead {}
// SAFETY: repr(C), atomics and nothing else.
unsafe impl Shared for RuleCounters {}

/// Relaxed throughout this module: a counter stands for itself, and nothing is
/// read on the strength of it.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

/// One line. Counting on it is for its worker's nginx thread alone.
#[derive(Clone, Copy)]
pub struct Line<'a> {
    pub(super) head: &'a LineHead,
    pub(super) rules: &'a [RuleCounters],
}

impl Line<'_> {
    pub fn verdict(&self, v: Verdict) {
        add(&self.head.verdicts[v as usize], 1);
    }

    /// Names with `~` have no counters.
    pub fn rule(&self, rule: RuleId, v: RuleVerdict) {
        if let Some(counters) = self.rules.get(rule.index()) {
            add(&counters.verdicts[v as usize], 1);
        }
    }

    pub fn store(&self, r: StoreResult) {
        add(&self.head.store[r as usize], 1);
    }

    pub fn store_latency(&self, ns: u64) {
        add(
            &self.head.latency[LATENCY_BOUNDS_NS.partition_point(|&bound| bound < ns)],
            1,
        );
        add(&self.head.latency_sum_ns, ns);
        add(&self.head.latency_count, 1);
    }

    pub fn guard_panic(&self) {
        add(&self.head.guard_panics, 1);
    }

    /// A counter of the engine's own, 0 to 73.
    pub fn spare(&self, index: usize) -> &AtomicU64 {
        &self.head.spare[index]
    }

    pub(super) fn eviction(&self) {
        add(&self.head.evictions, 1);
    }

    pub(super) fn slot_taken(&self) {
        add(&self.head.slots_taken, 1);
    }

    pub(super) fn slots_freed(&self, n: u64) {
        add(&self.head.slots_freed, n);
    }
}

/// Not cumulative: `buckets[i]` counts what fell between two bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    pub buckets: [u64; LATENCY_BOUNDS_NS.len() + 1],
    pub sum_ns: u64,
    pub count: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleTotals {
    pub name: String,
    pub pass: u64,
    pub limited: u64,
    pub shadow: u64,
}

/// The sum over all lines, of the living and the dead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// By `Verdict as usize`.
    pub verdicts: [u64; 5],
    /// By `StoreResult as usize`.
    pub store: [u64; 4],
    pub store_latency: Histogram,
    /// Every rule that has counters, in the order in which they came.
    pub rules: Vec<RuleTotals>,
    /// Only of buckets that still held information.
    pub evictions: u64,
    pub guard_panics: u64,
}

/// All lines of a region.
#[derive(Clone, Copy)]
pub struct Lines<'a> {
    pub(super) memory: &'a super::memory::Memory,
    pub(super) layout: &'a super::layout::Layout,
}

impl<'a> Lines<'a> {
    /// `index` up to and including `layout.lines`, the line of no worker.
    pub fn get(self, index: usize) -> Line<'a> {
        let at = self.layout.lines_at + index.min(self.layout.lines) * self.layout.line_bytes;
        Line {
            head: self.memory.at(at),
            rules: self
                .memory
                .slice(at + size_of::<LineHead>(), self.layout.rules / 2),
        }
    }

    pub fn iter(self) -> impl Iterator<Item = Line<'a>> {
        (0..=self.layout.lines).map(move |i| self.get(i))
    }

    /// Everything but the rules.
    pub fn totals(self) -> Totals {
        let mut totals = Totals::default();
        for Line { head, .. } in self.iter() {
            let sum =
                |into: &mut u64, from: &AtomicU64| *into = into.wrapping_add(from.load(Relaxed));
            totals
                .verdicts
                .iter_mut()
                .zip(&head.verdicts)
                .for_each(|(t, c)| sum(t, c));
            totals
                .store
                .iter_mut()
                .zip(&head.store)
                .for_each(|(t, c)| sum(t, c));
            let latency = &mut totals.store_latency;
            latency
                .buckets
                .iter_mut()
                .zip(&head.latency)
                .for_each(|(t, c)| sum(t, c));
            sum(&mut latency.sum_ns, &head.latency_sum_ns);
            sum(&mut latency.count, &head.latency_count);
            sum(&mut totals.evictions, &head.evictions);
            sum(&mut totals.guard_panics, &head.guard_panics);
        }
        // The three of a histogram are not read at one instant; what is shown
        // is a histogram all the same.
        totals.store_latency.count = totals.store_latency.buckets.iter().sum();
        totals
    }

    /// By `RuleVerdict as usize`, since the region was made.
    pub fn rule(self, rule: RuleId) -> [u64; 3] {
        let mut sums = [0u64; 3];
        for line in self.iter() {
            if let Some(counters) = line.rules.get(rule.index()) {
                for (sum, counter) in sums.iter_mut().zip(&counters.verdicts) {
                    *sum = sum.wrapping_add(counter.load(Relaxed));
                }
            }
        }
        sums
    }

    /// Slots of the bucket table that are not empty. A worker killed in between
    /// leaves it wrong by one.
    pub fn slots_used(self) -> u64 {
        self.iter().fold(0u64, |used, Line { head, .. }| {
            let (taken, freed) = (
                head.slots_taken.load(Relaxed),
                head.slots_freed.load(Relaxed),
            );
            used.wrapping_add(taken).wrapping_sub(freed)
        })
    }
}
