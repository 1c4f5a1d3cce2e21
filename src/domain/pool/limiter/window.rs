//! What the last 100 ms were like, or the last 30 samples if they took longer.
use super::super::ROUTES;
use super::super::routes::Routes;
use super::{MS, S};

/// The shortest window.
pub(super) const LEAST_NS: u64 = 100 * MS;
pub(super) const LEAST_SAMPLES: u32 = 30;
/// How far back the peak in flight is known: a minute.
const PEAKS: usize = 12;
const PEAK_NS: u64 = 5 * S;
/// Samples of a window that teach routes, at most.
const PENDING: usize = 256;

/// An exponentially weighted mean, even over its first values.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Mean {
    value: f64,
    /// Values so far.
    n: u32,
    unused: u32,
}

impl Mean {
    pub(super) const fn new() -> Mean {
        Mean {
            value: 0.0,
            n: 0,
            unused: 0,
        }
    }

    pub(super) fn get(&self) -> Option<f64> {
        (self.n > 0 && self.value.is_finite()).then_some(self.value)
    }

    /// How many values it is made of, at least.
    pub(super) fn values(&self) -> u32 {
        self.n
    }

    /// 1/n for the first `even` values, then `weight`.
    pub(super) fn learn(&mut self, value: f64, even: u32, weight: f64) {
        if !value.is_finite() {
            return;
        }
        let Some(before) = self.get() else {
            return self.set(value);
        };
        self.n = self.n.saturating_add(1);
        let weight = if self.n <= even {
            1.0 / f64::from(self.n)
        } else {
            weight
        };
        self.value = before + weight * (value - before);
    }

    pub(super) fn set(&mut self, value: f64) {
        (self.value, self.n) = (value, self.n.max(1));
    }

    pub(super) fn shift(&mut self, by: f64) {
        if by.is_finite() {
            self.value += by;
        }
    }

    pub(super) fn scale(&mut self, by: f64) {
        if by.is_finite() {
            self.value *= by;
        }
    }
}

/// A response against what is usual on its route.
#[derive(Clone, Copy)]
pub(super) struct Response {
    pub(super) ns: f64,
    pub(super) usual_ns: f64,
    /// ln(ns / usual_ns): whether responses are slower is told best by its mean.
    pub(super) x: f64,
}

impl Response {
    pub(super) fn new(ns: f64, usual_ns: f64) -> Response {
        Response {
            ns,
            usual_ns,
            x: (ns / usual_ns).ln(),
        }
    }

    /// How many times as long as usual.
    pub(super) fn ratio(&self) -> f64 {
        self.ns / self.usual_ns
    }
}

/// Of some requests: how long they took, and how long such requests usually take, ns.
///
/// By Little's law what is in flight is the throughput times the mean of what they take,
/// whatever their routes; so the ratio of the two sums says how many are too many. The mean
/// of their ratios would not: a wait is many times what a quick one takes, and the quick are
/// most of those that end.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    ns: f64,
    usual_ns: f64,
}

impl Took {
    pub(super) const NOTHING: Took = Took {
        ns: 0.0,
        usual_ns: 0.0,
    };

    pub(super) fn add(&mut self, it: &Response) {
        self.ns += it.ns;
        self.usual_ns += it.usual_ns;
    }

    /// How many times as long as usual; no number where nothing is known.
    pub(super) fn ratio(&self) -> f64 {
        self.ns / self.usual_ns
    }
}

#[cfg(test)]
impl Took {
    pub(super) fn scramble(&mut self, bits: &mut impl FnMut() -> u64) {
        (self.ns, self.usual_ns) = (f64::from_bits(bits()), f64::from_bits(bits()));
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) start: u64,
    /// What was dispatched since then counts: since the beginning of the window
    /// before, where that is at the same limit, or only the quick would.
    since: u64,
    /// All that ended, and of them those that found a waiter, that failed, and
    /// that are samples.
    pub(super) ended: u32,
    pub(super) waited: u32,
    pub(super) errors: u32,
    pub(super) answered: u32,
    /// Samples.
    pub(super) n: u32,
    /// The most in flight.
    pub(super) peak: u32,
    sum_x: f64,
    took: Took,
    /// Samples dispatched since `start`.
    sent_n: u32,
    unused: u32,
    sent_x: f64,
    sent_took: Took,
    /// All that were answered, whenever they were dispatched.
    all: Took,
    /// Samples dispatched since windows have been calm: the slowest are among
    /// what is usual, too.
    calm_n: u32,
    unused_too: u32,
    calm_x: f64,
    calm_took: Took,
}

impl Window {
    pub(super) const fn new() -> Window {
        Window {
            start: 0,
            since: 0,
            ended: 0,
            waited: 0,
            errors: 0,
            answered: 0,
            n: 0,
            peak: 0,
            sum_x: 0.0,
            took: Took::NOTHING,
            sent_n: 0,
            unused: 0,
            sent_x: 0.0,
            sent_took: Took::NOTHING,
            all: Took::NOTHING,
            calm_n: 0,
            unused_too: 0,
            calm_x: 0.0,
            calm_took: Took::NOTHING,
        }
    }

    /// Nothing before `now` counts.
    pub(super) fn begin(&mut self, now: u64) {
        *self = Window::new();
        (self.start, self.since) = (now, now);
    }

    /// The next one, in the same circumstances.
    pub(super) fn next(&mut self, now: u64) {
        let since = self.start;
        self.begin(now);
        self.since = since;
    }

    pub(super) fn add(&mut self, dispatched: u64, sample: Option<&Response>, calm_since: u64) {
        let Some(it) = sample else {
            return;
        };
        self.answered = self.answered.saturating_add(1);
        self.all.add(it);
        if dispatched >= self.since {
            self.n = self.n.saturating_add(1);
            self.sum_x += it.x;
            self.took.add(it);
        }
        if dispatched >= self.start {
            self.sent_n = self.sent_n.saturating_add(1);
            self.sent_x += it.x;
            self.sent_took.add(it);
        }
        if dispatched >= calm_since {
            self.calm_n = self.calm_n.saturating_add(1);
            self.calm_x += it.x;
            self.calm_took.add(it);
        }
    }

    pub(super) fn is_over(&self, now: u64) -> bool {
        let enough = self.n.saturating_add(self.errors) >= LEAST_SAMPLES;
        // A start ahead of time was not set by this code.
        enough && (now.saturating_sub(self.start) >= LEAST_NS || self.start > now)
    }

    /// The share of completions that found a waiter.
    pub(super) fn share_waited(&self) -> f64 {
        f64::from(self.waited) / f64::from(self.ended.max(1))
    }

    /// The share of failures among what the backend answered or failed to.
    pub(super) fn share_errors(&self) -> f64 {
        let all = self.errors.saturating_add(self.answered);
        f64::from(self.errors) / f64::from(all.max(1))
    }

    pub(super) fn has_samples(&self) -> bool {
        self.n >= LEAST_SAMPLES / 2
    }

    pub(super) fn mean_x(&self) -> f64 {
        self.sum_x / f64::from(self.n.max(1))
    }

    /// How many times as long as usual they took.
    pub(super) fn ratio(&self) -> f64 {
        self.took.ratio()
    }

    pub(super) fn mean_ns(&self) -> f64 {
        self.took.ns / f64::from(self.n.max(1))
    }

    /// How many of those that were sent in the window have ended, their sum of x,
    /// and how long they took.
    pub(super) fn sent(&self) -> (u32, f64, Took) {
        (self.sent_n, self.sent_x, self.sent_took)
    }

    pub(super) fn per_s(&self, now: u64) -> f64 {
        let ns = now.saturating_sub(self.start).max(1);
        f64::from(self.answered) * 1e9 / ns as f64
    }

    /// What the backend has done, ns a ns: as many slots as were truly at work, where it takes
    /// as long as usual.
    pub(super) fn work(&self, now: u64) -> f64 {
        self.all.usual_ns / now.saturating_sub(self.start).max(1) as f64
    }

    /// Of a calm window.
    pub(super) fn usual(&self, now: u64) -> Option<Usual> {
        if self.calm_n < LEAST_SAMPLES / 2 {
            return None;
        }
        let n = f64::from(self.calm_n);
        let ns = self.calm_took.ns / n;
        let window_ns = now.saturating_sub(self.start).max(1) as f64;
        Some(Usual {
            x: self.calm_x / n,
            ratio: self.calm_took.ratio(),
            ns,
            in_flight: f64::from(self.answered) / window_ns * ns,
        })
    }
}

/// What a calm window was like.
#[derive(Clone, Copy)]
pub(super) struct Usual {
    /// Means over its samples; of `ratio`, of their sums.
    pub(super) x: f64,
    pub(super) ratio: f64,
    pub(super) ns: f64,
    /// Throughput × response.
    pub(super) in_flight: f64,
}

/// The most in flight in the last minute, of windows that were not saturated:
/// of a saturated one it is the limit itself, which would then lift itself.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Peaks {
    most: [u32; PEAKS],
    /// Which five seconds the newest are, since the clock began.
    at: u64,
}

impl Peaks {
    pub(super) const fn new() -> Peaks {
        Peaks {
            most: [0; PEAKS],
            at: 0,
        }
    }

    pub(super) fn add(&mut self, peak: u32, now: u64) {
        let at = now / PEAK_NS;
        // What lies between was without any window.
        let passed = at.saturating_sub(self.at).min(PEAKS as u64);
        for back in 0..passed {
            self.most[slot(at - back)] = 0;
        }
        self.at = at;
        let newest = &mut self.most[slot(at)];
        *newest = (*newest).max(peak);
    }

    pub(super) fn most(&self) -> u32 {
        self.most.iter().copied().max().unwrap_or(0)
    }
}

fn slot(at: u64) -> usize {
    (at % PEAKS as u64) as usize
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Lesson {
    ns: f64,
    dispatched: u64,
    route: u32,
    unused: u32,
}

/// Responses that teach their routes once their window turns out not to have
/// been saturated: at the beginning of a flood a whole window's are in doubt. And
/// not before all that were sent with them can have ended: of a route that is new
/// with the flood there would be the quick ones only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    lessons: [Lesson; PENDING],
    len: u64,
}

impl Pending {
    pub(super) const fn new() -> Pending {
        const NONE: Lesson = Lesson {
            ns: 0.0,
            dispatched: 0,
            route: 0,
            unused: 0,
        };
        Pending {
            lessons: [NONE; PENDING],
            len: 0,
        }
    }

    pub(super) fn push(&mut self, route: u8, ns: f64, dispatched: u64) {
        if let Some(free) = usize::try_from(self.len)
            .ok()
            .and_then(|at| self.lessons.get_mut(at))
        {
            (free.route, free.ns) = (u32::from(route), ns);
            free.dispatched = dispatched;
            self.len += 1;
        }
    }

    pub(super) fn forget(&mut self) {
        self.len = 0;
    }

    /// Teaches the routes what was sent until `until`, and keeps the rest; by how
    /// much the mean of ln(response / usual) is less for it, is returned. Of
    /// nothing usual, `unknown_ns` is.
    pub(super) fn teach(&mut self, routes: &mut Routes, until: u64, unknown_ns: f64) -> f64 {
        let all = usize::try_from(self.len).unwrap_or(PENDING).min(PENDING);
        let mut len = 0;
        for at in 0..all {
            if self.lessons[at].dispatched <= until {
                self.lessons.swap(len, at);
                len += 1;
            }
        }
        let lessons = &self.lessons[..len];
        let mut count = [0u32; ROUTES];
        let route = |lesson: &Lesson| (lesson.route % ROUTES as u32) as u8;
        for lesson in lessons {
            count[usize::from(route(lesson))] += 1;
        }
        let usual = |routes: &Routes| -> f64 {
            let of = |route: u8| routes.usual_ns(route).unwrap_or(unknown_ns).ln();
            let all = (0..=u8::MAX).zip(count).filter(|&(_, n)| n > 0);
            all.map(|(route, n)| f64::from(n) / len as f64 * of(route))
                .sum()
        };
        let before = usual(routes);
        for lesson in lessons {
            routes.learn(route(lesson), lesson.ns);
        }
        let less = if len > 0 { usual(routes) - before } else { 0.0 };
        self.lessons.copy_within(len..all, 0);
        self.len = (all - len) as u64;
        less
    }
}

#[cfg(test)]
impl Window {
    pub(super) fn scramble(&mut self, bits: &mut impl FnMut() -> u64) {
        (self.start, self.since) = (bits(), bits());
        for number in [
            &mut self.n,
            &mut self.ended,
            &mut self.errors,
            &mut self.answered,
            &mut self.sent_n,
            &mut self.calm_n,
        ] {
            *number = bits() as u32;
        }
        for number in [&mut self.sum_x, &mut self.sent_x, &mut self.calm_x] {
            *number = f64::from_bits(bits());
        }
        for took in [
            &mut self.took,
            &mut self.sent_took,
            &mut self.all,
            &mut self.calm_took,
        ] {
            took.scramble(bits);
        }
    }
}

#[cfg(test)]
impl Pending {
    pub(super) fn scramble(&mut self, bits: &mut impl FnMut() -> u64) {
        for lesson in &mut self.lessons {
            (lesson.ns, lesson.route) = (f64::from_bits(bits()), bits() as u32);
            lesson.dispatched = bits();
        }
        self.len = bits();
    }
}
