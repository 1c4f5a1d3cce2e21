//! What each kind of request usually takes: by route, an average of the
//! backend's response times while it had room. Queue and limiter divide by it,
//! so that ten long requests are not taken for a slow backend.
use super::ROUTES;

/// The weight of one response in a route's usual time.
const WEIGHT: f64 = 0.03;
/// Fewer responses than this are averaged evenly: one alone says little.
const EVEN: u32 = 33;

/// Any bits are valid; all 0 is what `new` makes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Routes {
    usual_ns: [f64; ROUTES],
    /// Responses that were averaged, up to `EVEN`.
    learned: [u32; ROUTES],
}

impl Routes {
    pub const fn new() -> Routes {
        Routes {
            usual_ns: [0.0; ROUTES],
            learned: [0; ROUTES],
        }
    }

    /// Forgets everything.
    pub fn format(&mut self) {
        *self = Routes::new();
    }

    /// The route's usual response time; of one never seen, the common route's.
    pub fn usual_ns(&self, route: u8) -> Option<f64> {
        self.own(route).or_else(|| self.own(0))
    }

    /// One response more. The limiter calls it, and never while the pool is
    /// saturated: what a request waits at a full backend is not its usual time.
    pub fn learn(&mut self, route: u8, response_ns: f64) {
        let at = usize::from(route);
        if !response_ns.is_finite() || response_ns <= 0.0 {
            return;
        }
        let known = self.own(route);
        let learned = match known {
            Some(_) => self.learned[at].min(EVEN - 1) + 1,
            None => 1,
        };
        let weight = (1.0 / f64::from(learned)).max(WEIGHT);
        let before = known.unwrap_or(response_ns);
        self.usual_ns[at] = before + weight * (response_ns - before);
        self.learned[at] = learned;
    }

    fn own(&self, route: u8) -> Option<f64> {
        let usual = self.usual_ns[usize::from(route)];
        (usual.is_finite() && usual > 0.0).then_some(usual)
    }
}

impl Default for Routes {
    fn default() -> Routes {
        Routes::new()
    }
}
