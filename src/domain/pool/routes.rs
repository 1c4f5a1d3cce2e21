//! What each kind of request usually takes: by route, an average of the
//! backend's response times while it had room. Queue and limiter divide by it,
//! so that ten long requests are not taken for a slow backend.
use super::ROUTES;

/// The weight of one response in a route's usual time: at ten times this the usual time
/// itself is off by an eighth where service times are exponential, and so is what the
/// limiter makes of a flood whose mix of routes is another.
const WEIGHT: f64 = 0.003;
/// Fewer responses than this are averaged evenly: one alone says little.
const EVEN: u32 = 333;

/// What is known of other routes counts as so many responses of a new one: its
/// first may be far from usual, and a flood may begin right after it.
const BORROWED: u32 = 10;

/// Any bits are valid; all 0 is what `new` makes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Routes {
    routes: [Usual; ROUTES],
    /// Of all routes together.
    any: Usual,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Usual {
    ns: f64,
    /// Responses that were averaged, up to `EVEN`.
    learned: u32,
    unused: u32,
}

impl Routes {
    pub const fn new() -> Routes {
        Routes {
            routes: [Usual::UNKNOWN; ROUTES],
            any: Usual::UNKNOWN,
        }
    }

    /// Forgets everything.
    pub fn format(&mut self) {
        *self = Routes::new();
    }

    /// The route's usual response time; of one never seen, the common route's,
    /// else that of all.
    pub fn usual_ns(&self, route: u8) -> Option<f64> {
        let own = self.routes[usize::from(route)].get();
        own.or_else(|| self.routes[0].get())
            .or_else(|| self.any.get())
    }

    /// One response more. The limiter calls it, and never while the pool is
    /// saturated: what a request waits at a full backend is not its usual time.
    pub fn learn(&mut self, route: u8, response_ns: f64) {
        if !response_ns.is_finite() || response_ns <= 0.0 {
            return;
        }
        let borrowed = self.usual_ns(route);
        self.any.learn(response_ns);
        let usual = &mut self.routes[usize::from(route)];
        if usual.get().is_none() {
            *usual = match borrowed {
                Some(ns) => Usual {
                    ns,
                    learned: BORROWED,
                    unused: 0,
                },
                None => Usual::UNKNOWN,
            };
        }
        usual.learn(response_ns);
    }
}

impl Usual {
    const UNKNOWN: Usual = Usual {
        ns: 0.0,
        learned: 0,
        unused: 0,
    };

    fn get(&self) -> Option<f64> {
        (self.ns.is_finite() && self.ns > 0.0).then_some(self.ns)
    }

    fn learn(&mut self, ns: f64) {
        let Some(before) = self.get() else {
            (self.ns, self.learned) = (ns, 1);
            return;
        };
        self.learned = self.learned.min(EVEN - 1) + 1;
        let weight = (1.0 / f64::from(self.learned)).max(WEIGHT);
        self.ns = before + weight * (ns - before);
    }
}

impl Default for Routes {
    fn default() -> Routes {
        Routes::new()
    }
}
