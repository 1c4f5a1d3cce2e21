//! Lists and bans, in the order of the contract: allow beats block, addresses
//! come before users.
use super::worker::Worker;
use crate::domain::client::Address;
use crate::domain::units::Nanos;
use crate::shm::lists::{Lists, Standing};
use std::time::{SystemTime, UNIX_EPOCH};

/// What the lists say of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    Nowhere,
    Allowed,
    Blocked,
}

/// Unix time, ns.
pub fn unix_ns() -> u64 {
    // Before 1970 every entry is still in force.
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

pub fn standing(w: &mut Worker, who: Address, user: Option<&[u8]>, now: Nanos) -> Listed {
    // With a store, its bans are among its lists.
    let own_bans = w.setup.config.store.url.is_none() && w.region.any_bans();
    if w.lists.is_empty() && !own_bans {
        return Listed::Nowhere;
    }
    let now = w.unix(now);
    let by_address = match who {
        Address::Ip(ip) => ask(w, |l| l.address(ip, now)),
        Address::None => Standing::None,
    };
    if by_address == Standing::Allowed {
        return Listed::Allowed;
    }
    let by_user = match user {
        Some(u) if w.lists.iter().any(|l| l.has_users()) => ask(w, |l| l.user(u, now)),
        _ => Standing::None,
    };
    if by_user == Standing::Allowed {
        return Listed::Allowed;
    }
    let banned_address = |ip| own_bans && w.region.banned_address(ip, now);
    let blocked = by_address == Standing::Blocked
        || matches!(who, Address::Ip(ip) if banned_address(ip))
        || by_user == Standing::Blocked
        || user.is_some_and(|u| own_bans && w.region.banned_user(u, now));
    if blocked {
        Listed::Blocked
    } else {
        Listed::Nowhere
    }
}

/// All lists together: allow beats block wherever each stands.
fn ask(w: &Worker, f: impl Fn(&Lists) -> Standing) -> Standing {
    let mut standing = Standing::None;
    for l in &w.lists {
        match f(l) {
            Standing::Allowed => return Standing::Allowed,
            Standing::Blocked => standing = Standing::Blocked,
            Standing::None => {}
        }
    }
    standing
}
