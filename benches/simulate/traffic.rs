//! Who asks for what: Poisson streams, each with numbers of its own, so that
//! one stream is the same whatever the others do. Core traffic with a flood and
//! without one is then the same traffic, and the two can be compared to a percent.

/// splitmix64.
#[derive(Clone)]
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64, of: u64) -> Numbers {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ of.rotate_left(32));
        numbers.next();
        numbers
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Over 0, up to 1.
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    pub fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// How service times are spread around their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All the same.
    Deterministic,
    Exponential,
    /// σ = 1: the squared coefficient of variation is 1.7.
    Lognormal,
    /// A heavy tail: Pareto with α = 2.2, cut at a hundred times the mean.
    Pareto,
}

impl Shape {
    pub const ALL: [Shape; 4] = [
        Shape::Deterministic,
        Shape::Exponential,
        Shape::Lognormal,
        Shape::Pareto,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Shape::Deterministic => "determ.",
            Shape::Exponential => "exponent.",
            Shape::Lognormal => "lognormal",
            Shape::Pareto => "pareto",
        }
    }

    /// Of mean 1.
    pub fn draw(self, numbers: &mut Numbers) -> f64 {
        const SIGMA: f64 = 1.0;
        const ALPHA: f64 = 2.2;
        const LEAST: f64 = (ALPHA - 1.0) / ALPHA;
        const CUT: f64 = 100.0;
        match self {
            Shape::Deterministic => 1.0,
            Shape::Exponential => numbers.exponential(),
            Shape::Lognormal => (SIGMA * numbers.normal() - SIGMA * SIGMA / 2.0).exp(),
            Shape::Pareto => {
                let cut_off = LEAST.powf(ALPHA) * CUT.powf(1.0 - ALPHA) / (ALPHA - 1.0);
                let drawn = LEAST * numbers.unit().powf(-1.0 / ALPHA);
                drawn.min(CUT) / (1.0 - cut_off)
            }
        }
    }
}

pub const CORE: usize = 0;
pub const OTHER: usize = 1;
pub const ATTACK: usize = 2;
pub const CLASSES: usize = 3;

#[derive(Clone, Debug)]
pub struct Stream {
    /// For the report.
    pub class: usize,
    pub level: u8,
    pub route: u8,
    pub per_s: f64,
    pub from_s: f64,
    pub until_s: f64,
    /// Mean service time against that of the scenario.
    pub longer: f64,
    /// Clients, as sub-queues.
    pub cohorts: u32,
    /// The share of requests whose client leaves, so long after it asked, or after
    /// its request was sent to the backend.
    pub leaves: f64,
    pub leaves_after_s: f64,
    pub leaves_backend: bool,
    /// A gateway that knows that its backend works on.
    pub ghosts: bool,
}

impl Stream {
    pub fn new(class: usize, level: u8, per_s: f64) -> Stream {
        Stream {
            class,
            level,
            // A route is a priority rule, and so is a level: who floods asks for what others
            // ask for.
            route: level + 1,
            per_s,
            from_s: 0.0,
            until_s: f64::MAX,
            longer: 1.0,
            cohorts: 200,
            leaves: 0.0,
            leaves_after_s: 0.0,
            leaves_backend: false,
            ghosts: true,
        }
    }

    pub fn between(self, from_s: f64, until_s: f64) -> Stream {
        Stream {
            from_s,
            until_s,
            ..self
        }
    }
}
