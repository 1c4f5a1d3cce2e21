//! `[priority]`: its rules from the file or an entry of the Redis hash, events
//! and suspicion from the file.
use super::reader::{Node, Object};
use super::rules::Names;
use super::{EventRule, MAX_EVENTS, MAX_PRIORITY_RULES, Priority, PriorityRule, Suspicion};
use crate::domain::matcher::Matcher;
use crate::domain::priority::suspicion;
use crate::domain::units::Rate;
use std::time::Duration;

const DEFAULT_LEVELS: u8 = 4;
const MAX_LEVELS: u64 = 16;
const DEFAULT_USER_CAP: u32 = 4;
const MAX_USER_CAP: u64 = 1_000_000;
/// The first of the file's priority rules has this order, the second twice, …
const ORDER_STEP: f64 = 1000.0;
const DEFAULT_EVENT: Duration = Duration::from_secs(10 * 60);
/// Bounds of an event's `for`.
const EVENT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(24 * 60 * 60));
const DEFAULT_WINDOW: Duration = Duration::from_secs(20);
/// Bounds of `suspicion.window`.
const WINDOW: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(30));
/// Bounds of the requests in a window that `suspicion.rate` allows: below, a
/// client would be suspected for being there; above, they are not counted.
const REQUESTS: (f64, f64) = (1.0, 60_000.0);

impl Default for Priority {
    fn default() -> Priority {
        Priority {
            levels: DEFAULT_LEVELS,
            default: DEFAULT_LEVELS - 1,
            user_cap: DEFAULT_USER_CAP,
            forward: false,
            rules: Vec::new(),
            events: Vec::new(),
            suspicion: None,
        }
    }
}

pub(super) fn read(node: Option<Node<'_>>) -> Priority {
    let mut priority = Priority::default();
    let Some(object) = node.and_then(|node| node.object()) else {
        return priority;
    };
    if let Some(levels) = object
        .get("levels")
        .and_then(|node| node.whole(2, MAX_LEVELS))
    {
        priority.levels = levels as u8;
    }
    priority.default = priority.levels - 1;
    let lowest = u64::from(priority.levels - 1);
    if let Some(level) = object.get("default").and_then(|node| node.whole(0, lowest)) {
        priority.default = level as u8;
    }
    if let Some(cap) = object
        .get("user_cap")
        .and_then(|node| node.whole(1, MAX_USER_CAP))
    {
        priority.user_cap = cap as u32;
    }
    if let Some(forward) = object.get("forward").and_then(|node| node.flag()) {
        priority.forward = forward;
    }
    if let Some(node) = object.get("rules")
        && let Some(items) = node.tables()
    {
        if items.len() > MAX_PRIORITY_RULES {
            node.error(format!(
                "has {} rules; there may be at most {MAX_PRIORITY_RULES}",
                items.len()
            ));
        } else {
            priority.rules = read_rules(&items, priority.levels);
        }
    }
    priority.events = object
        .get("events")
        .map_or_else(Vec::new, |node| read_events(&node));
    priority.suspicion = object
        .get("suspicion")
        .and_then(|node| read_suspicion(&node));
    object.refuse_others();
    priority
}

fn read_events(node: &Node<'_>) -> Vec<EventRule> {
    let items = node.tables().unwrap_or_default();
    if items.len() > MAX_EVENTS {
        node.error(format!(
            "has {} events; there may be at most {MAX_EVENTS}",
            items.len()
        ));
        return Vec::new();
    }
    let mut names = Names::default();
    let event = |item: &Node<'_>| {
        let object = item.object()?;
        let name = names.read(&object).unwrap_or_default();
        let matcher = object
            .get("match")
            .map_or(Matcher::default(), |node| Matcher::read(&node));
        let unless = object.get("unless").map(|node| Matcher::read(&node));
        let for_ = object
            .get("for")
            .map_or(Some(DEFAULT_EVENT), |node| node.duration(EVENT));
        object.refuse_others();
        Some(EventRule {
            name,
            matcher,
            unless,
            for_: for_?,
        })
    };
    items.iter().filter_map(event).collect()
}

fn read_suspicion(node: &Node<'_>) -> Option<Suspicion> {
    let object = node.object()?;
    let window = object
        .get("window")
        .map_or(Some(DEFAULT_WINDOW), |node| node.duration(WINDOW));
    let rate_node = object.get("rate");
    let rate = rate_node
        .as_ref()
        .and_then(|node| node.parsed("a rate such as \"20/s\"", Rate::parse));
    if let (Some(node), Some(rate), Some(window)) = (&rate_node, rate, window) {
        let requests = suspicion::requests(rate, window);
        let (least, most) = REQUESTS;
        if !(least..=most).contains(&requests) {
            node.error(format!(
                "is {requests:.2} requests in a window of {window:?}; it must be from {least} to {most}"
            ));
        }
    }
    let share = |name| {
        let node = object.get(name)?;
        let share = node.number()?;
        if !(0.0..=1.0).contains(&share) {
            node.error(format!("must be a share from 0 to 1, not {share}"));
        }
        Some(share)
    };
    let (client_errors, aborts) = (share("client_errors"), share("aborts"));
    object.refuse_others();
    let given = ["rate", "client_errors", "aborts"].map(|name| object.get(name).is_some());
    if !given.contains(&true) {
        object.error_here(
            "has no bound; it must have at least one of rate, client_errors and aborts",
        );
    }
    Some(Suspicion {
        rate,
        client_errors,
        aborts,
        window: window?,
    })
}

fn read_rules(items: &[Node<'_>], levels: u8) -> Vec<PriorityRule> {
    let mut names = Names::default();
    let mut rules = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let Some(object) = item.object() else {
            continue;
        };
        let name = names.read(&object).unwrap_or_default();
        let order = (index + 1) as f64 * ORDER_STEP;
        rules.extend(read_rule(&object, name, Some(order), levels));
    }
    rules
}

/// `order`: the file's; an entry of Redis carries its own.
pub(super) fn read_rule(
    object: &Object<'_>,
    name: String,
    order: Option<f64>,
    levels: u8,
) -> Option<PriorityRule> {
    let matcher = object
        .get("match")
        .map_or(Matcher::default(), |node| Matcher::read(&node));
    let unless = object.get("unless").map(|node| Matcher::read(&node));
    let right = format!("a whole number from 0 to {}", levels - 1);
    let level = object.required("level", &right);
    let level = level.and_then(|node| node.whole(0, u64::from(levels - 1)));
    let order = match order {
        Some(order) => Some(order),
        None => {
            let right = "a number; the lowest comes first, the file's have 1000, 2000, …";
            object
                .required("order", right)
                .and_then(|node| node.number())
        }
    };
    object.refuse_others();
    Some(PriorityRule {
        name,
        order: order?,
        matcher,
        unless,
        level: level? as u8,
    })
}
