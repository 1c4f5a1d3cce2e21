//! Of a pool with one limit for all gateways: what this gateway tells of it,
//! and what it was told last.
use super::measure::TenSeconds;
use super::{LEVELS, Nanos, Pool};

/// What status shows, as the last reply of the store said. Any bits are valid.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Live ones, this one included; 0: nothing was heard yet.
    pub gateways: u32,
    /// The limit of all of them together.
    pub limit: u32,
    /// 1: they are not configured alike.
    pub differs: u32,
    /// 1: each slot is taken by itself.
    pub strict: u32,
}

/// What a gateway reports for the sharing out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// In flight, ghosts included.
    pub held: u32,
    /// What may be in flight here now.
    pub in_force: u32,
    /// It was told a share before.
    pub leased: bool,
    /// The configured limit, or the maximum.
    pub cap: u32,
    pub adaptive: bool,
    /// By level: in flight, waiting, and of level 0 at least what is expected.
    pub demand: [u32; LEVELS],
    pub levels: usize,
}

impl Pool<'_> {
    /// The limit as it is shown: this gateway's, but where each slot is taken by itself that of all
    /// gateways, since the share is then no more than what is in flight just now.
    pub fn limit_shown(&self, now: Nanos) -> u32 {
        let state = &*self.state;
        let now = now.0.max(state.now);
        let told = state.settings.cluster != 0 && state.leased != 0 && now < state.share_until;
        if told && state.cluster.strict == 1 {
            state.cluster.limit
        } else {
            self.limit(now)
        }
    }

    pub fn report(&self, now: Nanos) -> Report {
        let state = &*self.state;
        let now = now.0.max(state.now);
        let levels = self.arrival_level(u8::MAX) + 1;
        let mut demand = [0u32; LEVELS];
        for (level, class) in state.classes.iter().enumerate() {
            let asks = &mut demand[level.min(levels - 1)];
            let all = state.in_flight[level].saturating_add(class.waiting);
            *asks = asks.saturating_add(all);
        }
        // Level 0 finds its slots there: by Little's law, and room for it to vary.
        let arrivals = state.core_arrivals.sum(now);
        if arrivals > 0.0 {
            let slot_s = state.core_slot_s.any().or(state.slot_s.any());
            let span = TenSeconds::span(now, state.born).max(1.0);
            let mean = arrivals / span * slot_s.unwrap_or(0.0);
            demand[0] = demand[0].max((mean + mean.sqrt()).ceil().max(1.0) as u32);
        }
        let settings = &state.settings;
        let adaptive = settings.adaptive == 1;
        Report {
            held: state.taken,
            in_force: self.limit(now),
            leased: state.leased != 0,
            cap: settings.most().max(1),
            adaptive,
            demand,
            levels,
        }
    }
}
