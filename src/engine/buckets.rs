//! The rules of one request and their buckets, all or nothing.
//!
//! The buckets of this gateway are tested without spending, so that the answer
//! names the longest wait; then they are spent in rule order, the first that no
//! longer admits undoing the earlier ones. What Redis refuses undoes the local
//! ones. A shadow rule that would refuse spends nothing and changes nothing.
use super::exchange::Exchange;
use super::facts::Facts;
use super::options::Asked;
use super::rules::{Compiled, RuleSet};
use crate::domain::answer::Said;
use crate::domain::client::{Address, group};
use crate::domain::config::{self, MissingKey};
use crate::domain::key::{KeyBuf, KeyPart, is_blank, redis_key};
use crate::domain::units::Nanos;
use crate::redis::{Asks, BucketAsk, Reply};
use crate::shm::{KeyHash, Outcome, Region, RuleId};

/// One rule that applies to the request, and what became of it.
#[derive(Clone, Debug)]
pub struct Item {
    /// Index into the rule set that the decision began with.
    pub rule: usize,
    pub place: Place,
    pub hash: KeyHash,
    pub cost: u32,
    pub shadow: bool,
    /// `None`: not asked.
    pub said: Option<Said>,
    /// Of a bucket that was asked.
    pub outcome: Outcome,
    /// The local bucket that was charged.
    spent: Option<RuleId>,
}

/// What stands in an item until its bucket has been asked.
const NOT_ASKED: Outcome = Outcome {
    admitted: false,
    remaining: 0,
    wait_ns: 0,
    capacity: 0,
    emission_ns: 0,
};

/// Where an item's bucket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Local,
    /// In Redis, under this key.
    Store(String),
    /// A key part is missing, and the rule refuses for that.
    Nowhere,
}

impl Item {
    pub fn new(rule: usize, place: Place, hash: KeyHash, cost: u32, shadow: bool) -> Item {
        Item {
            rule,
            place,
            hash,
            cost,
            shadow,
            said: None,
            outcome: NOT_ASKED,
            spent: None,
        }
    }

    /// Refuses the request, as far as is known.
    fn refuses(&self) -> bool {
        !self.shadow && self.admits() == Some(false)
    }

    fn admits(&self) -> Option<bool> {
        self.said.map(|s| matches!(s, Said::Admitted { .. }))
    }

    fn note(&mut self, outcome: Outcome) {
        self.said = Some(if outcome.admitted {
            Said::Admitted {
                remaining: outcome.remaining,
                capacity: outcome.capacity,
            }
        } else {
            Said::Refused {
                wait_ns: outcome.wait_ns,
            }
        });
        self.outcome = outcome;
    }

    pub fn in_store(&self) -> bool {
        matches!(self.place, Place::Store(_))
    }
}

/// What a key is made of, beside the request itself.
pub struct Keys<'a> {
    pub region: &'static Region,
    pub config: &'a config::Config,
    pub who: Address,
    pub key: &'a mut KeyBuf,
}

/// Collects the rules that apply to the request.
pub fn gather<'r, X: Exchange<'r>>(
    rules: &RuleSet,
    facts: &mut Facts<'_, 'r, X>,
    asked: &Asked<'r>,
    keys: &mut Keys<'_>,
    items: &mut Vec<Item>,
) {
    match &asked.rules {
        Some(chosen) => {
            for &i in chosen {
                let pattern = rules.rules[i].matcher.hit(facts).unwrap_or_default();
                add(rules, i, pattern, facts, asked, keys, items);
            }
        }
        None => {
            for (i, rule) in rules.rules.iter().enumerate() {
                let Some(pattern) = rule.matcher.hit(facts) else {
                    continue;
                };
                if rule.unless.as_ref().is_some_and(|u| u.hit(facts).is_some()) {
                    continue;
                }
                add(rules, i, pattern, facts, asked, keys, items);
            }
        }
    }
}

fn add<'r, X: Exchange<'r>>(
    rules: &RuleSet,
    index: usize,
    pattern: &str,
    facts: &mut Facts<'_, 'r, X>,
    asked: &Asked<'r>,
    keys: &mut Keys<'_>,
    items: &mut Vec<Item>,
) {
    let rule = &rules.rules[index];
    keys.key.clear();
    for part in &rule.key {
        let value = match part {
            KeyPart::Ip => {
                push_address(keys);
                continue;
            }
            KeyPart::User => asked.user,
            _ => facts.key_part(part, pattern),
        };
        match value.filter(|v| !is_blank(v)) {
            Some(v) => keys.key.push(part, v),
            None => match rule.missing_key {
                MissingKey::Ip => push_address(keys),
                MissingKey::Skip => return,
                MissingKey::Deny => {
                    let mut item = Item::new(
                        index,
                        Place::Nowhere,
                        keys.region.hash(rule.id, b""),
                        0,
                        rule.shadow,
                    );
                    item.said = Some(Said::Denied);
                    items.push(item);
                    return;
                }
            },
        }
    }
    let cost = asked.cost.unwrap_or(rule.cost);
    items.push(item(index, rule, cost, keys));
}

/// The address as a key part, grouped by prefix.
fn push_address(keys: &mut Keys<'_>) {
    let client = &keys.config.client;
    match keys.who {
        Address::Ip(ip) => keys
            .key
            .push_ip(group(ip, client.ipv4_prefix, client.ipv6_prefix)),
        Address::None => keys.key.push_address(Address::None),
    }
}

/// An item for the key that has been collected.
pub fn item(index: usize, rule: &Compiled, cost: u32, keys: &Keys<'_>) -> Item {
    let key = keys.key.as_bytes();
    // "Above a rule's capacity the capacity is charged."
    let cost = cost.min(rule.capacity);
    match &rule.cluster {
        None => {
            let hash = keys.region.hash(rule.id, key);
            Item::new(index, Place::Local, hash, cost, rule.shadow)
        }
        Some(cluster) => {
            // Most keys fit: a longer one grows.
            let mut name = String::with_capacity(96);
            redis_key(&keys.config.store.prefix, rule.name, key, &mut name);
            let hash = keys.region.hash(cluster.share, key);
            Item::new(index, Place::Store(name), hash, cost, rule.shadow)
        }
    }
}

/// Whether those items would be admitted whose buckets are here. Nothing is spent.
pub fn would_admit(region: &Region, rules: &RuleSet, items: &[Item], now: Nanos) -> bool {
    let admits = |i: &Item| match i.place {
        Place::Local => {
            region
                .peek(rules.rules[i.rule].id, i.hash, i.cost, now)
                .admitted
        }
        Place::Store(_) => true,
        Place::Nowhere => false,
    };
    items.iter().all(|i| i.shadow || admits(i))
}

/// Decides the items whose buckets are here. True: none refuses, and they are charged.
pub fn local(region: &Region, rules: &RuleSet, items: &mut [Item], now: Nanos) -> bool {
    let bucket = |i: &Item| (i.place == Place::Local).then(|| rules.rules[i.rule].id);
    charge(region, items, now, bucket)
}

/// Decides the items that Redis did not, by this gateway's share of their limits.
pub fn shares(region: &Region, rules: &RuleSet, items: &mut [Item], now: Nanos) -> bool {
    let bucket = |i: &Item| {
        let cluster = rules.rules[i.rule].cluster.as_ref()?;
        i.in_store().then_some(cluster.share)
    };
    let largest = |i: &Item| {
        rules.rules[i.rule]
            .cluster
            .as_ref()
            .map(|c| c.share_capacity)
    };
    for i in items.iter_mut().filter(|i| i.in_store()) {
        i.cost = i.cost.min(largest(i).unwrap_or(u32::MAX));
    }
    let admitted = charge(region, items, now, bucket);
    if !admitted {
        undo(region, items, now);
    }
    admitted
}

fn charge(
    region: &Region,
    items: &mut [Item],
    now: Nanos,
    bucket: impl Fn(&Item) -> Option<RuleId>,
) -> bool {
    // A single bucket is spent at once: its refusal spends nothing, so the answer is the same.
    if items.len() > 1 {
        for i in items.iter_mut() {
            if let Some(id) = bucket(i) {
                i.note(region.peek(id, i.hash, i.cost, now));
            }
        }
        if items.iter().any(Item::refuses) {
            return false;
        }
    }
    for n in 0..items.len() {
        let i = &mut items[n];
        let Some(id) = bucket(i) else { continue };
        if i.admits() == Some(false) {
            continue;
        }
        let outcome = region.spend(id, i.hash, i.cost, now);
        i.note(outcome);
        if outcome.admitted {
            i.spent = Some(id);
        } else if !i.shadow {
            undo(region, items, now);
            return false;
        }
    }
    !items.iter().any(Item::refuses)
}

/// Gives back what this request has taken here.
pub fn undo(region: &Region, items: &mut [Item], now: Nanos) {
    for i in items {
        if let Some(id) = i.spent.take() {
            region.undo(id, i.hash, i.cost, now);
        }
    }
}

/// The question for Redis. It takes the keys: nobody needs them afterwards.
pub fn asks(rules: &RuleSet, items: &mut [Item]) -> Asks {
    let ask = |i: &mut Item| {
        let Place::Store(key) = &mut i.place else {
            return None;
        };
        let rule = &rules.rules[i.rule];
        let cluster = rule.cluster.as_ref()?;
        Some(BucketAsk {
            key: std::mem::take(key),
            emission_us: cluster.emission_us,
            capacity: rule.capacity,
            cost: i.cost,
            since_us: cluster.since_us,
            shadow: i.shadow,
        })
    };
    items.iter_mut().filter_map(ask).collect()
}

/// Files Redis's answer, which is in the order of `asks`. True: admitted.
pub fn hear(
    region: &Region,
    rules: &RuleSet,
    items: &mut [Item],
    reply: &Reply,
    now: Nanos,
) -> bool {
    let asked = items.iter_mut().filter(|i| i.in_store());
    for (i, says) in asked.zip(&reply.buckets) {
        let rule = &rules.rules[i.rule];
        i.note(Outcome {
            admitted: says.admitted,
            remaining: says.remaining,
            wait_ns: says.wait_us.saturating_mul(1000),
            capacity: rule.capacity,
            emission_ns: rule.emission_ns,
        });
    }
    if !reply.admitted {
        undo(region, items, now);
    }
    reply.admitted
}
