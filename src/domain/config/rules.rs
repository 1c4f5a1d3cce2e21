//! `[[rules]]`, from the file or an entry of the Redis hash.
use super::reader::{Node, Object};
use super::{MAX_NAME_BYTES, MAX_RULES, MissingKey, Rule, Scope};
use crate::domain::key::KeyPart;
use crate::domain::matcher::Matcher;
use crate::domain::units::{LONGEST_FILL, Rate, quoted};
use std::collections::HashMap;

/// The most tokens a bucket holds.
const MAX_CAPACITY: u64 = 1_000_000_000;
/// The most parts of a key.
const MAX_KEY_PARTS: usize = 16;
/// Of a refusal; 444 among them lets nginx close the connection without one.
const STATUS: (u64, u64) = (400, 599);
const DEFAULT_STATUS: u16 = 429;

/// A name of a rule or pool, as metrics, Redis keys and response fields can carry it.
pub(super) fn check_name(name: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(name.to_string());
    }
    Err(format!(
        "{} is not a name; it must be 1 to {MAX_NAME_BYTES} of A-Z, a-z, 0-9, _ . -",
        quoted(name)
    ))
}

pub(super) fn read_rules(node: Option<Node<'_>>) -> Vec<Rule> {
    let Some(node) = node else { return Vec::new() };
    let Some(items) = node.tables() else {
        return Vec::new();
    };
    if items.len() > MAX_RULES {
        node.error(format!(
            "has {} rules; there may be at most {MAX_RULES}",
            items.len()
        ));
        return Vec::new();
    }
    let mut names = Names::default();
    let rule = |item: &Node<'_>| {
        let object = item.object()?;
        let name = names.read(&object);
        read_rule(&object, name.unwrap_or_default())
    };
    items.iter().filter_map(rule).collect()
}

/// The names that were there, and where.
#[derive(Default)]
pub(super) struct Names(HashMap<String, String>);

impl Names {
    pub fn read(&mut self, object: &Object<'_>) -> Option<String> {
        let node = object.required("name", "a text")?;
        let name = node.parsed("a text", check_name)?;
        if let Some(other) = self.0.insert(name.clone(), object.path.clone()) {
            node.error(format!(
                "{name:?} is the name of {other} already; names must differ"
            ));
            return None;
        }
        Some(name)
    }
}

/// Reads all fields but the name. `None`: something is wrong with them.
pub(super) fn read_rule(object: &Object<'_>, name: String) -> Option<Rule> {
    let matcher = object
        .get("match")
        .map_or(Matcher::default(), |node| Matcher::read(&node));
    let unless = object.get("unless").map(|node| Matcher::read(&node));
    let key = object
        .get("key")
        .map_or_else(|| vec![KeyPart::Ip], |node| read_key(&node));
    let missing_key = object
        .get("missing_key")
        .map_or(Some(MissingKey::Ip), |node| {
            node.choice(&[
                ("ip", MissingKey::Ip),
                ("skip", MissingKey::Skip),
                ("deny", MissingKey::Deny),
            ])
        });
    let rate = object.required("rate", "tokens per period, such as \"5/m\"");
    let rate = rate.and_then(|node| node.parsed("a rate such as \"5/m\"", Rate::parse));
    let capacity = object.required("capacity", "the bucket's size in tokens");
    let capacity = capacity
        .and_then(|node| node.whole(1, MAX_CAPACITY))
        .map(|tokens| tokens as u32);
    let cost = read_cost(object, capacity);
    let shadow = object.get("mode").map_or(Some(false), |node| {
        node.choice(&[("enforce", false), ("shadow", true)])
    });
    let scope = object.get("scope").map_or(Some(Scope::Cluster), |node| {
        node.choice(&[("cluster", Scope::Cluster), ("node", Scope::Node)])
    });
    let status = object.get("status").map_or(Some(DEFAULT_STATUS), |node| {
        node.whole(STATUS.0, STATUS.1).map(|status| status as u16)
    });
    let enabled = object.get("enabled").map_or(Some(true), |node| node.flag());
    if let (Some(rate), Some(capacity)) = (rate, capacity) {
        let fill = rate.fill(capacity);
        if fill > LONGEST_FILL {
            object.error_at(
                "capacity",
                format!(
                    "{capacity} takes {} days to fill at this rate; it must fill within 366",
                    fill.as_secs() / (24 * 60 * 60)
                ),
            );
        }
    }
    object.refuse_others();
    Some(Rule {
        name,
        matcher,
        unless,
        key,
        missing_key: missing_key?,
        rate: rate?,
        capacity: capacity?,
        cost: cost?,
        shadow: shadow?,
        scope: scope?,
        status: status?,
        enabled: enabled?,
    })
}

fn read_cost(object: &Object<'_>, capacity: Option<u32>) -> Option<u32> {
    let Some(node) = object.get("cost") else {
        return Some(1);
    };
    let cost = node.whole(1, MAX_CAPACITY)? as u32;
    match capacity {
        // B10: a bucket could never pay it.
        Some(capacity) if cost > capacity => {
            node.error(format!(
                "must be at most the capacity, {capacity}, not {cost}"
            ));
            None
        }
        _ => Some(cost),
    }
}

fn read_key(node: &Node<'_>) -> Vec<KeyPart> {
    let items = node.list().unwrap_or_default();
    if items.len() > MAX_KEY_PARTS {
        node.error(format!(
            "has {} parts; there may be at most {MAX_KEY_PARTS}",
            items.len()
        ));
    }
    let mut parts = Vec::with_capacity(items.len());
    for item in items {
        let Some(part) = item.parsed("a part of a key", KeyPart::parse) else {
            continue;
        };
        if parts.contains(&part) {
            item.error("is there twice; leave out one");
        }
        parts.push(part);
    }
    parts
}
