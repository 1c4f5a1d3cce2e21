//! How important a request is, and who it is of, as far as the queue and the
//! limiter want to know.
//!
//! Asked once a request that no list blocks, whether its rules admit it or not:
//! an event of a verified user is noted here, and a client's request is counted.
use super::exchange::Exchange;
use super::facts::Facts;
use super::options::Asked;
use super::worker::Worker;
use crate::domain::client::{Address, group};
use crate::domain::key::KeyPart;
use crate::domain::priority;
use crate::domain::units::Nanos;

/// What becomes of the level, and what the pool wants to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scored {
    pub level: u8,
    /// Which usual response time the request has: that of the priority rule that
    /// matched, 0 without one.
    pub route: u8,
    /// Which clients share its sub-queue and are shed together. Changes hourly,
    /// the same on a retry, and not to be chosen by a client.
    pub cohort: u8,
    /// The verified user, else the address grouped by prefix. 0 while nothing
    /// asks for it, and so is the cohort.
    pub client: u64,
    pub user: Option<u64>,
}

/// Cohorts are dealt anew this often.
const COHORT_NS: u64 = 3600 * 1_000_000_000;
/// What parts a client's name from its cohorts.
const NAME: u64 = 0;

pub fn score<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    asked: &Asked<'r>,
    who: Address,
    now: Nanos,
) -> Scored {
    let rules = &w.force.rules;
    let mut scored = Scored::default();
    if rules.watches() || !rules.pools.is_empty() || asked.user.is_some() {
        let key = &mut w.scratch.key;
        key.clear();
        match asked.user {
            Some(user) => key.push(&KeyPart::User, user),
            None => key.push_address(grouped(who, &w.setup.config.client)),
        }
        let hash = |salt| w.region.identity(salt, key.as_bytes());
        scored.client = hash(NAME);
        scored.user = asked.user.map(|_| scored.client);
        // The high bits: the low ones choose among what a client's name chooses.
        scored.cohort = (hash(1 + now.0 / COHORT_NS) >> 56) as u8;
    }

    let mut facts = Facts::new(x, &mut w.scratch.facts);
    let named = rules.priority.iter().position(|p| p.applies(&mut facts));
    scored.route = named.map_or(0, |i| rules.routes[i]);

    let mut intent = false;
    if let Some(user) = scored.user.filter(|_| !rules.events.is_empty()) {
        let behaviour = w.region.behaviour();
        for event in rules.events.iter().filter(|e| e.applies(&mut facts)) {
            let until = now.0.saturating_add(Nanos::from(event.for_).0);
            behaviour.note_event(user, Nanos(until));
        }
        intent = behaviour.intent(user, now);
    }
    let suspicion = rules.suspicion.as_ref();
    let suspicion = suspicion.map_or(0, |bounds| {
        let behaviour = w.region.behaviour();
        behaviour.note_request(scored.client, now, bounds)
    });
    scored.level = priority::level(
        named.map(|i| rules.priority[i].level),
        asked.raise,
        intent.into(),
        suspicion,
        asked.user.is_some(),
        &rules.levels,
    );
    scored
}

/// The end of a request that was scored; `status` is what the client got, or 499
/// where it left before, and is not Sluice's own.
pub fn ended(w: &Worker, client: u64, status: u16, now: Nanos) {
    const LEFT: u16 = 499;
    if let Some(bounds) = &w.force.rules.suspicion
        && client != 0
    {
        let error = (400..LEFT).contains(&status);
        let behaviour = w.region.behaviour();
        behaviour.note_end(client, error, status == LEFT, now, bounds);
    }
}

fn grouped(who: Address, config: &crate::domain::config::Client) -> Address {
    match who {
        Address::Ip(ip) => Address::Ip(group(ip, config.ipv4_prefix, config.ipv6_prefix)),
        Address::None => Address::None,
    }
}

#[cfg(test)]
#[path = "level_tests.rs"]
mod tests;
