//! The hash of Redis over the file (section 4 of the contract): `rule:<name>`,
//! `priority:<name>`, `pool:<name>` and `mode`.
//!
//! An entry is whole: it replaces the file's of its name and is never merged
//! with it. A bad one is refused alone; its last good value stays in force, else
//! the file's entry, else none.
use super::reader::{Node, Object, Problems, shown};
use super::{
    Config, FieldError, MAX_POOLS, MAX_PRIORITY_RULES, MAX_RULES, Mode, PoolConfig, PriorityRule,
    Rule,
};
use super::{json, pools, priority, rules, warn};
use serde_json::Value;
use std::collections::BTreeMap;

/// One entry of the hash.
#[derive(Clone, Debug)]
pub enum Entry {
    Rule(Rule),
    Priority(PriorityRule),
    Pool(PoolConfig),
    /// `{"enabled": false}`: the file's entry of that name is switched off.
    Off,
}

/// A field of the hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub raw: Vec<u8>,
    /// Its last value that was good.
    pub good: Option<Vec<u8>>,
}

/// What is in force: the file's entries with the hash's over them.
#[derive(Clone, Debug)]
pub struct Effective {
    /// In the file's order, then new ones by name; disabled ones left out.
    pub rules: Vec<Rule>,
    /// In the order in which they are tried.
    pub priority: Vec<PriorityRule>,
    /// As `rules`.
    pub pools: Vec<PoolConfig>,
    pub mode: Mode,
    /// What is wrong in the hash now, whether or not a last good value stands in.
    pub errors: Vec<FieldError>,
    /// Good entries that there is no room for beside the others.
    pub surplus: Vec<FieldError>,
    pub warnings: Vec<FieldError>,
}

/// What the shared memory has room for. An entry of the hash that does not fit is a bad one.
pub trait Room {
    /// How many pools.
    fn pools(&self) -> usize;
    /// What is wrong with one; `field` is its place.
    fn pool(&self, pool: &PoolConfig, field: &str) -> Option<FieldError>;
    /// Where there would be room for so many pools.
    fn advice(&self, pools: usize) -> String;
}

/// Reads the value of `rule:<name>`.
pub fn rule_entry(name: &str, json: &[u8]) -> Result<Entry, Vec<FieldError>> {
    entry(&format!("rule:{}", shown(name)), json, |object| {
        rules::read_rule(object, checked_name(object, name)?).map(Entry::Rule)
    })
}

/// Reads the value of `priority:<name>`; `levels` is the file's.
pub fn priority_entry(name: &str, json: &[u8], levels: u8) -> Result<Entry, Vec<FieldError>> {
    entry(&format!("priority:{}", shown(name)), json, |object| {
        let name = checked_name(object, name)?;
        priority::read_rule(object, name, None, levels).map(Entry::Priority)
    })
}

/// Reads the value of `pool:<name>`; `file` says how many levels there are.
pub fn pool_entry(
    name: &str,
    json: &[u8],
    file: &Config,
    room: &dyn Room,
) -> Result<Entry, Vec<FieldError>> {
    let frame = pools::Frame {
        levels: file.priority.levels,
        has_store: file.store.url.is_some(),
    };
    let field = format!("pool:{}", shown(name));
    let entry = entry(&field, json, |object| {
        let name = checked_name(object, name)?;
        pools::read_pool(object, name, frame).map(Entry::Pool)
    })?;
    let wrong = match &entry {
        Entry::Pool(pool) if pool.enabled => room.pool(pool, &field),
        _ => None,
    };
    wrong.map_or(Ok(entry), |wrong| Err(vec![wrong]))
}

fn checked_name(object: &Object<'_>, name: &str) -> Option<String> {
    if let Some(node) = object.get("name") {
        node.error("does not belong here; the name is in the hash's field");
    }
    rules::check_name(name)
        .map_err(|problem| object.error_here(problem))
        .ok()
}

fn entry(
    path: &str,
    bytes: &[u8],
    read: impl FnOnce(&Object<'_>) -> Option<Entry>,
) -> Result<Entry, Vec<FieldError>> {
    let value = json::from_json(bytes, path).map_err(|error| vec![error])?;
    let problems = Problems::default();
    let node = Node::root(&value, path, &problems);
    let entry = node.object().and_then(|object| {
        if object.only_field("enabled") == Some(&Value::Bool(false)) {
            return Some(Entry::Off);
        }
        read(&object)
    });
    drop(node);
    match (entry, problems.into_errors()) {
        (Some(entry), errors) if errors.is_empty() => Ok(entry),
        (_, errors) => Err(errors),
    }
}

fn mode(raw: &[u8]) -> Result<Mode, Vec<FieldError>> {
    match raw.trim_ascii() {
        b"enforce" => Ok(Mode::Enforce),
        b"shadow" => Ok(Mode::Shadow),
        b"off" => Ok(Mode::Off),
        other => {
            let text = String::from_utf8_lossy(other);
            let found = crate::domain::units::quoted(&text);
            let problem = format!("must be enforce, shadow or off, not {found}");
            Err(vec![FieldError {
                field: "mode".to_string(),
                problem,
            }])
        }
    }
}

/// What a field of the hash is about.
enum About<'f> {
    Rule(&'f str),
    Priority(&'f str),
    Pool(&'f str),
    Mode,
}

fn about(field: &[u8]) -> Result<About<'_>, Vec<FieldError>> {
    let wrong = |problem: &str| {
        let field = shown(&String::from_utf8_lossy(field));
        Err(vec![FieldError {
            field,
            problem: problem.to_string(),
        }])
    };
    let Ok(text) = std::str::from_utf8(field) else {
        return wrong("is not UTF-8 text");
    };
    if text == "mode" {
        return Ok(About::Mode);
    }
    match text.split_once(':') {
        Some(("rule", name)) => Ok(About::Rule(name)),
        Some(("priority", name)) => Ok(About::Priority(name)),
        Some(("pool", name)) => Ok(About::Pool(name)),
        _ => wrong(
            "is not a known field; there are rule:<name>, priority:<name>, pool:<name> and mode",
        ),
    }
}

/// Whether `raw` would be taken as the value of `field`.
pub fn check_field(
    file: &Config,
    field: &[u8],
    raw: &[u8],
    room: &dyn Room,
) -> Result<(), Vec<FieldError>> {
    match about(field)? {
        About::Rule(name) => rule_entry(name, raw).map(drop),
        About::Priority(name) => priority_entry(name, raw, file.priority.levels).map(drop),
        About::Pool(name) => pool_entry(name, raw, file, room).map(drop),
        About::Mode => mode(raw).map(drop),
    }
}

/// Puts the hash over the file.
pub fn merge(file: &Config, fields: &BTreeMap<Vec<u8>, Field>, room: &dyn Room) -> Effective {
    let (mut errors, mut surplus) = (Vec::new(), Vec::new());
    let mut rules: BTreeMap<&str, Option<Rule>> = BTreeMap::new();
    let mut priority: BTreeMap<&str, Option<PriorityRule>> = BTreeMap::new();
    let mut pools: BTreeMap<&str, Option<PoolConfig>> = BTreeMap::new();
    let mut mode_now = Mode::default();
    for (name, field) in fields {
        let about = match about(name) {
            Ok(about) => about,
            Err(wrong) => {
                errors.extend(wrong);
                continue;
            }
        };
        match about {
            About::Rule(name) => match in_force(field, &mut errors, |raw| rule_entry(name, raw)) {
                Some(Entry::Rule(rule)) => drop(rules.insert(name, Some(rule))),
                Some(_) => drop(rules.insert(name, None)),
                None => {}
            },
            About::Priority(name) => {
                let read = |raw: &[u8]| priority_entry(name, raw, file.priority.levels);
                match in_force(field, &mut errors, read) {
                    Some(Entry::Priority(rule)) => drop(priority.insert(name, Some(rule))),
                    Some(_) => drop(priority.insert(name, None)),
                    None => {}
                }
            }
            About::Pool(name) => {
                let read = |raw: &[u8]| pool_entry(name, raw, file, room);
                match in_force(field, &mut errors, read) {
                    Some(Entry::Pool(pool)) => drop(pools.insert(name, Some(pool))),
                    Some(_) => drop(pools.insert(name, None)),
                    None => {}
                }
            }
            About::Mode => mode_now = in_force(field, &mut errors, mode).unwrap_or_default(),
        }
    }

    let mut placed: Vec<(String, Rule)> = Vec::with_capacity(file.rules.len() + rules.len());
    for (path, rule) in warn::of_file(&file.rules) {
        match rules.remove(rule.name.as_str()) {
            Some(Some(over)) => placed.push((format!("rule:{}", over.name), over)),
            Some(None) => {}
            None => placed.push((path, rule.clone())),
        }
    }
    placed.retain(|(_, rule)| rule.enabled);
    for rule in rules.into_values().flatten().filter(|rule| rule.enabled) {
        let path = format!("rule:{}", rule.name);
        if placed.len() < MAX_RULES {
            placed.push((path, rule));
        } else {
            let problem = format!("is one rule too many; there may be at most {MAX_RULES}");
            surplus.push(FieldError {
                field: path,
                problem,
            });
        }
    }

    let mut in_order: Vec<PriorityRule> = Vec::with_capacity(file.priority.rules.len());
    for rule in &file.priority.rules {
        match priority.remove(rule.name.as_str()) {
            Some(over) => in_order.extend(over),
            None => in_order.push(rule.clone()),
        }
    }
    for rule in priority.into_values().flatten() {
        if in_order.len() < MAX_PRIORITY_RULES {
            in_order.push(rule);
        } else {
            surplus.push(FieldError {
                field: format!("priority:{}", rule.name),
                problem: format!("is one too many; there may be at most {MAX_PRIORITY_RULES}"),
            });
        }
    }
    in_order.sort_by(|a, b| {
        a.order
            .total_cmp(&b.order)
            .then_with(|| a.name.cmp(&b.name))
    });

    let standing = standing_pools(file, pools, room, &mut surplus);

    let mut warnings = warn::of_sections(file);
    let seen = placed
        .iter()
        .map(|(path, rule)| (path.clone(), rule))
        .collect();
    warnings.extend(warn::of_rules(&seen));
    let seen = standing
        .iter()
        .map(|(path, pool)| (path.clone(), pool))
        .collect();
    warnings.extend(warn::of_pools(&seen));
    let pools = standing.into_iter().map(|(_, pool)| pool).collect();
    let rules = placed.into_iter().map(|(_, rule)| rule).collect();
    Effective {
        rules,
        priority: in_order,
        pools,
        mode: mode_now,
        errors,
        surplus,
        warnings,
    }
}

/// The pools in force with their places. Those that the file has by itself fit, as `setup` has
/// seen to; others take what room is left, and what finds none is surplus.
fn standing_pools(
    file: &Config,
    mut pools: BTreeMap<&str, Option<PoolConfig>>,
    room: &dyn Room,
    surplus: &mut Vec<FieldError>,
) -> Vec<(String, PoolConfig)> {
    // Whether the pool is there without the hash.
    let mut wanted: Vec<(String, PoolConfig, bool)> = Vec::with_capacity(file.pools.len());
    for (path, pool) in warn::pools_of_file(&file.pools) {
        match pools.remove(pool.name.as_str()) {
            Some(Some(over)) => wanted.push((format!("pool:{}", over.name), over, pool.enabled)),
            Some(None) => {}
            None => wanted.push((path, pool.clone(), pool.enabled)),
        }
    }
    let only_here = pools.into_values().flatten();
    wanted.extend(only_here.map(|pool| (format!("pool:{}", pool.name), pool, false)));
    wanted.retain(|(_, pool, _)| pool.enabled);
    let most = room.pools().min(MAX_POOLS);
    let own = wanted.iter().filter(|(_, _, own)| *own).count();
    let mut left = most.saturating_sub(own);
    let mut standing = Vec::with_capacity(wanted.len());
    for (path, pool, own) in wanted {
        if own || left > 0 {
            left -= usize::from(!own);
            standing.push((path, pool));
            continue;
        }
        let problem = if most == MAX_POOLS {
            format!("is one pool too many; there may be at most {MAX_POOLS}")
        } else {
            format!(
                "is one pool too many; the shared memory has room for {most}, {}",
                room.advice(most + 1)
            )
        };
        surplus.push(FieldError {
            field: path,
            problem,
        });
    }
    standing
}

/// The field's value, or its last good one, with the value's errors noted.
fn in_force<T>(
    field: &Field,
    errors: &mut Vec<FieldError>,
    read: impl Fn(&[u8]) -> Result<T, Vec<FieldError>>,
) -> Option<T> {
    match read(&field.raw) {
        Ok(value) => Some(value),
        Err(wrong) => {
            errors.extend(wrong);
            // The levels may have changed since it was good.
            field.good.as_deref().and_then(|good| read(good).ok())
        }
    }
}
