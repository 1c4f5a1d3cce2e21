//! The rules in force, compiled: what one decision looks at.
//!
//! Made by a worker from its setup's file and what is published from Redis,
//! swapped in whole, never changed. Limits stand in the region under the
//! rule's name; here is only the way to them.
use super::degrade::{Degraded, Pages};
use crate::domain::answer::{Reported, whole_s};
use crate::domain::config::{
    self, Config, Effective, EventRule, Field, FieldError, MissingKey, Mode, PoolConfig,
    PriorityRule, Release, Rule, Scope,
};
use crate::domain::key::KeyPart;
use crate::domain::matcher::{self, Matcher, Needs};
use crate::domain::pool::Settings;
use crate::domain::priority::Levels;
use crate::domain::priority::suspicion::Bounds;
use crate::shm::{Limit, PoolId, Region, RuleId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// One rule, ready to be asked.
#[derive(Debug)]
pub struct Compiled {
    /// As long-lived as the process, since nginx's variables point to it.
    pub name: &'static str,
    pub matcher: Matcher,
    pub unless: Option<Matcher>,
    pub key: Vec<KeyPart>,
    pub missing_key: MissingKey,
    pub capacity: u32,
    pub emission_ns: u64,
    /// Seconds an empty bucket takes to fill, exact.
    pub fill_s: u64,
    /// The value of `RateLimit-Policy`, the same for every answer.
    pub policy: Vec<u8>,
    pub cost: u32,
    /// Counted and logged, never refused: the rule's own mode, or Sluice's.
    pub shadow: bool,
    pub status: u16,
    /// The bucket in this gateway's memory; for a cluster rule only its counters and log cell.
    pub id: RuleId,
    pub cluster: Option<Cluster>,
}

/// What a rule needs whose buckets live in Redis.
#[derive(Debug)]
pub struct Cluster {
    pub emission_us: f64,
    /// Redis's time, µs, when this gateway took the rate.
    pub since_us: u64,
    /// This gateway's share, for when Redis is out of reach.
    pub share: RuleId,
    pub share_capacity: u32,
}

/// One pool, ready to be asked.
#[derive(Debug)]
pub struct CompiledPool {
    /// As [`Compiled::name`].
    pub name: &'static str,
    pub matcher: Matcher,
    pub unless: Option<Matcher>,
    /// Its place in the region.
    pub id: PoolId,
    pub settings: Settings,
    /// In place of a bare 503.
    pub degrade: Option<Degraded>,
    pub release: Release,
    /// The body is read before the slot is asked for.
    pub request_buffering: bool,
    /// One limit for all gateways.
    pub cluster: bool,
    /// The backend's longest answer.
    pub timeout_ns: u64,
}

/// Everything a decision needs of the configuration.
#[derive(Debug)]
pub struct RuleSet {
    /// The region's number of this configuration.
    pub generation: u64,
    pub mode: Mode,
    pub rules: Vec<Compiled>,
    by_name: HashMap<String, usize>,
    /// The first that matches takes a request.
    pub pools: Vec<CompiledPool>,
    /// A pool found no place in the region yet: old workers hold what it is to have.
    pub incomplete: bool,
    pub priority: Vec<PriorityRule>,
    /// Of each priority rule.
    pub routes: Vec<u8>,
    pub events: Vec<EventRule>,
    pub suspicion: Option<Bounds>,
    pub levels: Levels,
    pub needs: Needs,
    pub errors: Vec<FieldError>,
    /// Those of `errors` that the entries alone do not show, only all of them in this region.
    pub found_late: Vec<FieldError>,
    pub warnings: Vec<FieldError>,
}

/// What is published from Redis, as far as rules are concerned.
#[derive(Clone, Debug, Default)]
pub struct Live {
    pub fields: BTreeMap<Vec<u8>, Field>,
    /// Redis's time, µs, at which it was read.
    pub now_us: u64,
}

/// Which generation compiles, for whom, and what came before.
pub struct Context<'a> {
    pub region: &'a Region,
    pub config: &'a Config,
    pub setup_generation: u64,
    pub config_generation: u64,
    pub gateways: u32,
    pub previous: Option<&'a RuleSet>,
    pub pages: &'a Pages,
}

impl RuleSet {
    pub fn compile(live: &Live, cx: &Context<'_>) -> RuleSet {
        let Effective {
            rules,
            priority,
            pools,
            mode,
            mut errors,
            surplus: mut late,
            warnings,
        } = config::merge(cx.config, &live.fields, &cx.region.pool_room());
        let mut needs = Needs::default();
        let mut out = Vec::with_capacity(rules.len());
        for rule in rules {
            needs.add(&rule.matcher.needs());
            if let Some(u) = &rule.unless {
                needs.add(&u.needs());
            }
            match compile_one(rule, mode, live.now_us, cx) {
                Ok(c) => out.push(c),
                Err(e) => late.push(e),
            }
        }
        let events = cx.config.priority.events.clone();
        let others = priority.iter().map(|p| (&p.matcher, &p.unless));
        let others = others.chain(events.iter().map(|e| (&e.matcher, &e.unless)));
        for (matcher, unless) in others.chain(pools.iter().map(|p| (&p.matcher, &p.unless))) {
            needs.add(&matcher.needs());
            if let Some(u) = unless {
                needs.add(&u.needs());
            }
        }
        let wanted = pools.len();
        let pools: Vec<_> = pools
            .into_iter()
            .filter_map(|pool| compile_pool(pool, cx, &mut late))
            .collect();
        errors.extend(late.iter().cloned());
        let incomplete = pools.len() < wanted;
        let by_name = out
            .iter()
            .enumerate()
            .map(|(i, r)| (r.name.to_owned(), i))
            .collect();
        RuleSet {
            generation: cx.config_generation,
            mode,
            rules: out,
            by_name,
            incomplete,
            pools,
            routes: priority.iter().map(|p| route(&p.name)).collect(),
            priority,
            events,
            suspicion: cx.config.priority.suspicion.as_ref().map(Bounds::from),
            levels: Levels {
                levels: cx.config.priority.levels,
                default: cx.config.priority.default,
            },
            needs,
            errors,
            found_late: late,
            warnings,
        }
    }

    pub fn by_name(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The pool that a request belongs to.
    pub fn first_pool(&self, facts: &mut impl matcher::Facts) -> Option<usize> {
        self.pools
            .iter()
            .position(|p| config::applies(&p.matcher, p.unless.as_ref(), facts).is_some())
    }

    pub fn pool_by_name(&self, name: &str) -> Option<usize> {
        self.pools.iter().position(|p| p.name == name)
    }

    /// Whether what a client does is remembered.
    pub fn watches(&self) -> bool {
        self.suspicion.is_some() || !self.events.is_empty()
    }
}

/// The number under which the usual time of a priority rule's requests is known; 0 is that of all
/// others. By its name, so that it means the same to every worker, whatever rules come and go.
fn route(name: &str) -> u8 {
    // FNV-1a: rules are an operator's, and two that share a number share a usual time.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    1 + (hash % 255) as u8
}

fn unix_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

fn compile_one(
    rule: Rule,
    mode: Mode,
    now_us: u64,
    cx: &Context<'_>,
) -> Result<Compiled, FieldError> {
    let take = |name: &str, limit: Limit| {
        cx.region
            .take_rule_as_of(name, limit, cx.setup_generation, cx.config_generation)
            .map_err(|e| FieldError {
                field: format!("rule:{}", rule.name),
                problem: e.to_string(),
            })
    };
    let limit = Limit {
        emission_ns: rule.rate.emission_ns(),
        capacity: rule.capacity,
    };
    let id = take(&rule.name, limit)?;
    let in_redis =
        cx.config.store.backend == config::Backend::Redis && rule.scope == Scope::Cluster;
    let cluster = if in_redis {
        let n = cx.gateways.max(1);
        let emission_us = rule.rate.emission_us();
        // "max(capacity/n, largest cost)": what one request may take must fit.
        let share_capacity = (rule.capacity / n).max(rule.cost).max(1);
        let share_limit = Limit {
            // A share of a slow rate may take longer to fill than a word can count.
            emission_ns: rule
                .rate
                .scaled(n)
                .emission_ns()
                .min(LONGEST_FILL_NS / u64::from(share_capacity)),
            capacity: share_capacity,
        };
        // '~' cannot stand in a rule's own name.
        let share = take(&format!("{}~share", rule.name), share_limit)?;
        let before = cx
            .previous
            .and_then(|p| Some(&p.rules[p.by_name(&rule.name)?]));
        // A change in Redis has Redis's time, one of the file has no other than this machine's;
        // one that is ahead counts as Redis's now. A new setup counts as a change: where the limit
        // is the same the time makes no difference.
        let since_us = before
            .filter(|b| b.capacity == rule.capacity)
            .and_then(|b| b.cluster.as_ref())
            .filter(|c| c.emission_us == emission_us)
            .map_or_else(|| now_us.max(unix_us()), |c| c.since_us);
        Some(Cluster {
            emission_us,
            since_us,
            share,
            share_capacity,
        })
    } else {
        None
    };
    let fill_s = whole_s(rule.rate.fill(rule.capacity));
    let mut policy = Vec::new();
    Reported::new(&rule.name, rule.capacity, fill_s, 0, true, 0).rate_limit_policy(&mut policy);
    Ok(Compiled {
        shadow: rule.shadow || mode == Mode::Shadow,
        name: intern(&rule.name),
        matcher: rule.matcher,
        unless: rule.unless,
        key: rule.key,
        missing_key: rule.missing_key,
        capacity: rule.capacity,
        emission_ns: limit.emission_ns,
        fill_s,
        policy,
        cost: rule.cost,
        status: rule.status,
        id,
        cluster,
    })
}

/// A pool without its page is better than none: what is wrong with the page is an error, and shed
/// requests get the bare 503.
fn compile_pool(
    pool: PoolConfig,
    cx: &Context<'_>,
    errors: &mut Vec<FieldError>,
) -> Option<CompiledPool> {
    let field = format!("pool:{}", pool.name);
    let settings = pool.settings(cx.config.priority.levels);
    let degrade = pool.degrade.as_ref().map(|degrade| {
        let (degraded, error) = cx.pages.compile(degrade, &field);
        errors.extend(error);
        degraded
    });
    let (setup, config) = (cx.setup_generation, cx.config_generation);
    let id = cx
        .region
        .take_pool(&pool.name, &settings, setup, config)
        .map_err(|e| {
            errors.push(FieldError {
                field,
                problem: e.to_string(),
            });
        })
        .ok()?;
    Some(CompiledPool {
        name: intern(&pool.name),
        id,
        cluster: pool.scope == Scope::Cluster,
        timeout_ns: settings.timeout_ns,
        settings,
        degrade,
        release: pool.release,
        request_buffering: pool.request_buffering,
        matcher: pool.matcher,
        unless: pool.unless,
    })
}

/// A twelfth of what a bucket's word can count: 3 years.
const LONGEST_FILL_NS: u64 = (1 << 60) / 12;

/// The same text for the life of the process. Names come from configurations only, so there are as
/// many as an operator has ever written.
pub(super) fn intern(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock();
    if let Some(known) = names.get(name) {
        return known;
    }
    let kept: &'static str = Box::leak(name.into());
    names.insert(kept);
    kept
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
