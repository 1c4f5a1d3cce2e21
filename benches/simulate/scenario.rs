//! What is played: traffic, limiter, what happens to the backend; and what came
//! of it against the same core traffic at the same backend without a flood.
use sluice::domain::pool::{LEVELS, Settings};

use crate::model::{Change, Control, Outcome, SECOND, SERVICE_S, Setup, Span, run};
use crate::traffic::{ATTACK, CORE, OTHER, Shape, Stream};

/// When the flood begins.
pub const FLOOD_S: f64 = 30.0;
/// Levels of those who ask. Attack and other traffic look alike.
const CORE_LEVEL: u8 = 0;
const OTHER_LEVEL: u8 = 2;
/// Core and other traffic before the flood, as shares of the capacity.
const CORE_SHARE: f64 = 0.2;
const OTHER_SHARE: f64 = 0.4;
/// A flood of five times that.
pub const FIVE: f64 = 3.0;
pub const TEN: f64 = 6.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// What the backend can do.
    Fixed,
    Adaptive,
    Gradient2,
    Vegas,
}

impl Limit {
    pub const ALL: [Limit; 4] = [
        Limit::Fixed,
        Limit::Adaptive,
        Limit::Gradient2,
        Limit::Vegas,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Limit::Fixed => "fixed",
            Limit::Adaptive => "adaptive",
            Limit::Gradient2 => "gradient2",
            Limit::Vegas => "vegas",
        }
    }
}

#[derive(Clone)]
pub struct Scenario {
    pub workers: u32,
    pub shape: Shape,
    pub limit: Limit,
    /// The flood, as a share of the capacity.
    pub attack: f64,
    /// How much of the flood passes for core traffic.
    pub leak: f64,
    /// How much longer others take than core.
    pub longer: f64,
    /// Share of the attackers that leave after 2 ms: of waiting, or at the backend.
    /// And whether the gateway holds on to their slots then.
    pub leaves: f64,
    pub leaves_backend: bool,
    pub ghosts: bool,
    /// The flood is there from the beginning.
    pub cold: bool,
    pub until_s: f64,
    pub changes: Vec<(f64, Change)>,
    /// The first five seconds, what is judged, and what else is looked at.
    pub spans: Vec<(f64, f64)>,
    pub gateways: u32,
    pub cluster: bool,
    /// Instead of K, where fixed.
    pub fixed: Option<u32>,
}

impl Scenario {
    pub fn new(workers: u32, shape: Shape, limit: Limit) -> Scenario {
        Scenario {
            workers,
            shape,
            limit,
            attack: FIVE,
            leak: 0.0,
            longer: 1.0,
            leaves: 0.0,
            leaves_backend: false,
            ghosts: true,
            cold: false,
            until_s: 95.0,
            changes: Vec::new(),
            spans: vec![(FLOOD_S, FLOOD_S + 5.0), (FLOOD_S + 5.0, 90.0)],
            gateways: 1,
            cluster: false,
            fixed: None,
        }
    }

    fn settings(&self) -> Settings {
        let mut weights = [1; LEVELS];
        (weights[1], weights[2], weights[3]) = (8, 2, 1);
        Settings {
            adaptive: u32::from(self.limit == Limit::Adaptive),
            limit: self.fixed.unwrap_or(self.workers),
            min: 1,
            max: 1000,
            start: 20,
            capacity: 1000,
            levels: 4,
            cluster: u32::from(self.cluster),
            weights,
            max_wait_ns: 5 * SECOND,
            timeout_ns: 60 * SECOND,
        }
    }

    fn setup(&self, seed: u64) -> Setup {
        let capacity = f64::from(self.workers) / SERVICE_S;
        let flood_s = if self.cold { 0.0 } else { FLOOD_S };
        let flood = |level, share: f64| Stream {
            leaves: self.leaves,
            leaves_after_s: 0.002,
            leaves_backend: self.leaves_backend,
            ghosts: self.ghosts,
            longer: self.longer,
            ..Stream::new(ATTACK, level, share * capacity / self.longer).between(flood_s, f64::MAX)
        };
        let other = OTHER_SHARE * capacity / self.longer;
        let streams = vec![
            Stream::new(CORE, CORE_LEVEL, CORE_SHARE * capacity),
            Stream {
                longer: self.longer,
                ..Stream::new(OTHER, OTHER_LEVEL, other)
            },
            flood(OTHER_LEVEL, self.attack * (1.0 - self.leak)),
            flood(CORE_LEVEL, self.attack * self.leak),
        ];
        Setup {
            seed,
            shape: self.shape,
            workers: self.workers,
            control: match self.limit {
                Limit::Gradient2 => Control::Gradient2,
                Limit::Vegas => Control::Vegas,
                _ => Control::Own,
            },
            settings: self.settings(),
            streams: streams.into_iter().filter(|it| it.per_s > 0.0).collect(),
            changes: self.changes.clone(),
            until_s: self.until_s,
            spans: self.spans.clone(),
            gateways: self.gateways,
        }
    }

    /// Without a flood, and without a gateway that would hold anybody back.
    fn calm(&self) -> Scenario {
        Scenario {
            attack: 0.0,
            limit: Limit::Fixed,
            fixed: Some(1000),
            changes: Vec::new(),
            gateways: 1,
            cluster: false,
            ..self.clone()
        }
    }

    pub fn play(&self, seed: u64) -> Played {
        Played {
            calm: run(&self.calm().setup(seed)),
            flooded: run(&self.setup(seed)),
            spans: self.spans.clone(),
        }
    }
}

/// One seed.
pub struct Played {
    calm: Outcome,
    pub flooded: Outcome,
    spans: Vec<(f64, f64)>,
}

impl Played {
    fn span(&self, span: usize) -> &Span {
        &self.flooded.spans[span]
    }

    /// Core's mean response against what it is without a flood.
    pub fn ratio(&self, span: usize) -> f64 {
        self.span(span).got[CORE].mean_s() / self.calm.spans[span].got[CORE].mean_s()
    }

    /// Core's mean response against the service time.
    pub fn against_service(&self, span: usize) -> f64 {
        self.span(span).got[CORE].mean_s() / SERVICE_S
    }

    /// Of core's requests, those that were shed.
    pub fn core_shed(&self) -> u64 {
        let spans = self.flooded.spans.iter();
        spans.map(|span| span.got[CORE].shed).sum()
    }

    pub fn core_success(&self, span: usize) -> f64 {
        let got = self.span(span).got[CORE];
        1.0 - got.shed as f64 / got.asked.max(1) as f64
    }

    pub fn other_served(&self, span: usize) -> f64 {
        let got = self.span(span).got[OTHER];
        got.served as f64 / got.asked.max(1) as f64
    }

    /// Useful work at the backend, as a share of what `workers` could do.
    pub fn throughput(&self, span: usize, workers: u32) -> f64 {
        let (from, until) = self.spans[span];
        let done = self.span(span);
        (done.busy_s - done.wasted_s) / (until - from) / f64::from(workers)
    }

    pub fn mean_limit(&self, span: usize) -> f64 {
        self.span(span).mean_limit()
    }

    pub fn peak(&self, span: usize) -> u32 {
        self.span(span).peak
    }
}
