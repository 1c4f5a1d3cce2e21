//! `access{…}`: what the caller wants to be different for this request.
use super::worker::Worker;

/// As Lua hands it over; `None` where not given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'r> {
    pub user: Option<&'r [u8]>,
    pub raise: Option<i32>,
    pub cost: Option<f64>,
    /// Names, each ended by NUL but the last.
    pub rules: Option<&'r [u8]>,
    pub pool: Option<&'r [u8]>,
    pub decline: bool,
}

/// What of it holds.
#[derive(Clone, Debug, Default)]
pub struct Asked<'r> {
    pub user: Option<&'r [u8]>,
    pub raise: i32,
    pub cost: Option<u32>,
    /// Indices of the rules to apply instead of matching.
    pub rules: Option<Vec<usize>>,
    /// Index of the pool to use instead of matching.
    pub pool: Option<usize>,
}

/// A user that can be a key: 1 to 256 bytes without control characters.
pub fn is_user(user: &[u8]) -> bool {
    (1..=256).contains(&user.len()) && !user.iter().any(u8::is_ascii_control)
}

impl<'r> Options<'r> {
    /// Leaves out what is wrong, with a line about it: the request is decided without it.
    pub fn check(&self, w: &mut Worker) -> Asked<'r> {
        let mut asked = Asked::default();
        if let Some(user) = self.user {
            if is_user(user) {
                asked.user = Some(user);
            } else if !user.is_empty() {
                w.complain(
                    "access{ user } must be 1 to 256 bytes without control characters; the option \
                     is ignored",
                );
            }
        }
        if let Some(raise) = self.raise {
            if asked.user.is_some() {
                asked.raise = raise;
            } else {
                w.complain("access{ raise } counts only together with user; the option is ignored");
            }
        }
        if let Some(cost) = self.cost {
            if cost >= 1.0 && cost.fract() == 0.0 && cost <= f64::from(u32::MAX) {
                asked.cost = Some(cost as u32);
            } else {
                w.complain(&format!(
                    "access{{ cost }} must be a whole number from 1, not {cost}; the option is \
                     ignored"
                ));
            }
        }
        if let Some(names) = self.rules {
            asked.rules = named(names, w);
        }
        if let Some(name) = self.pool {
            asked.pool = std::str::from_utf8(name)
                .ok()
                .and_then(|n| w.force.rules.pool_by_name(n));
            if asked.pool.is_none() {
                w.complain(&format!(
                    "access{{ pool }} names \"{}\", which is no pool in force; the option is ignored",
                    name.escape_ascii()
                ));
            }
        }
        asked
    }
}

fn named(names: &[u8], w: &mut Worker) -> Option<Vec<usize>> {
    let mut out = Vec::new();
    if names.is_empty() {
        return Some(out);
    }
    for name in names.split(|b| *b == 0) {
        let found = std::str::from_utf8(name)
            .ok()
            .and_then(|n| w.force.rules.by_name(n));
        match found {
            Some(i) if out.contains(&i) => {}
            Some(i) => out.push(i),
            None => {
                w.complain(&format!(
                    "access{{ rules }} names \"{}\", which is no rule in force; the option is \
                     ignored",
                    name.escape_ascii()
                ));
                return None;
            }
        }
    }
    Some(out)
}
