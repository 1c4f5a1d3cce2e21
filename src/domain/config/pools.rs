//! `[[pools]]`, from the file or an entry of the Redis hash.
use super::reader::{Node, Object, described};
use super::rules::Names;
use super::{Degrade, MAX_POOLS, PoolConfig, PoolLimit, Release, Scope};
use crate::domain::matcher::Matcher;
use crate::domain::units::quoted;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Requests in flight and waiting for which a pool has room in the shared
/// memory; the rest of it is for slots whose client has left.
const MAX_REQUESTS: u32 = 15_000;
/// The most of either, as the other is at least 1.
const MAX_EITHER: u64 = MAX_REQUESTS as u64 - 1;
const DEFAULT_MIN: u32 = 1;
const DEFAULT_MAX: u32 = 1000;
const DEFAULT_START: u32 = 20;
const DEFAULT_CAPACITY: u32 = 1000;
const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(5);
/// Bounds of `queue.max_wait`.
const MAX_WAIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(60));
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Bounds of `timeout`.
const TIMEOUT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60 * 60));
/// Of the levels from 1 on; of all others 1.
const DEFAULT_WEIGHTS: [u32; 2] = [8, 2];
const MAX_WEIGHT: u64 = 1000;
const MAX_LOCATION_BYTES: usize = 256;
const ADAPTIVE: &str = "adaptive";

/// What the rest of the file says that a pool depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub levels: u8,
    /// `store.url` is there.
    pub has_store: bool,
}

pub(super) fn read(node: Option<Node<'_>>, frame: Frame) -> Vec<PoolConfig> {
    let Some(node) = node else { return Vec::new() };
    let items = node.tables().unwrap_or_default();
    if items.len() > MAX_POOLS {
        node.error(format!(
            "has {} pools; there may be at most {MAX_POOLS}",
            items.len()
        ));
        return Vec::new();
    }
    let mut names = Names::default();
    let pool = |item: &Node<'_>| {
        let object = item.object()?;
        let name = names.read(&object).unwrap_or_default();
        read_pool(&object, name, frame)
    };
    items.iter().filter_map(pool).collect()
}

/// Reads all fields but the name. `None`: something is wrong with them.
pub(super) fn read_pool(object: &Object<'_>, name: String, frame: Frame) -> Option<PoolConfig> {
    let matcher = object
        .get("match")
        .map_or(Matcher::default(), |node| Matcher::read(&node));
    let unless = object.get("unless").map(|node| Matcher::read(&node));
    let limit = read_limit(object);
    let scope = object.get("scope").map_or(Some(Scope::Node), |node| {
        let scope = node.choice(&[("node", Scope::Node), ("cluster", Scope::Cluster)]);
        if scope == Some(Scope::Cluster) && !frame.has_store {
            node.error(
                "is \"cluster\", which needs a Redis that all gateways share: write store.url, or \
                 leave it \"node\"",
            );
        }
        scope
    });
    let queue = read_queue(object.get("queue"), frame.levels);
    if let (Some(limit), Some(queue)) = (limit, &queue)
        && limit.most() + queue.capacity > MAX_REQUESTS
    {
        let (name, most) = match limit {
            PoolLimit::Fixed(_) => ("limit", limit.most()),
            PoolLimit::Adaptive { .. } => ("max", limit.most()),
        };
        object.error_at(
            "queue.capacity",
            format!(
                "is {}, and with the {most} of {name} that is {}; together they must be at most \
                 {MAX_REQUESTS}, for which a pool has room in the shared memory",
                queue.capacity,
                most + queue.capacity
            ),
        );
    }
    let timeout = object
        .get("timeout")
        .map_or(Some(DEFAULT_TIMEOUT), |node| node.duration(TIMEOUT));
    let degrade = object.get("degrade").map(|node| read_degrade(&node));
    let release = object
        .get("release")
        .map_or(Some(Release::Response), |node| {
            node.choice(&[
                ("response", Release::Response),
                ("headers", Release::Headers),
            ])
        });
    let request_buffering = object
        .get("request_buffering")
        .map_or(Some(true), |node| node.flag());
    let enabled = object.get("enabled").map_or(Some(true), |node| node.flag());
    object.refuse_others();
    let queue = queue?;
    Some(PoolConfig {
        name,
        matcher,
        unless,
        limit: limit?,
        scope: scope?,
        capacity: queue.capacity,
        max_wait: queue.max_wait,
        weights: queue.weights,
        timeout: timeout?,
        degrade: match degrade {
            Some(degrade) => Some(degrade?),
            None => None,
        },
        release: release?,
        request_buffering: request_buffering?,
        enabled: enabled?,
    })
}

fn read_limit(object: &Object<'_>) -> Option<PoolLimit> {
    let right = format!("a whole number from 1 to {MAX_EITHER}, or {ADAPTIVE:?}");
    let limit = object.required("limit", &right);
    let bounds = ["min", "max", "start"].map(|name| object.get(name));
    let limit = limit?;
    if limit.value.as_str() != Some(ADAPTIVE) {
        if let Value::Number(_) = limit.value {
            for node in bounds.into_iter().flatten() {
                node.error(format!(
                    "is for limit = {ADAPTIVE:?}; leave it out, as this limit is fixed"
                ));
            }
        }
        return match limit.value {
            Value::Number(number) if number.as_f64().is_some_and(|n| n >= 1.0) => limit
                .whole(1, MAX_EITHER)
                .map(|limit| PoolLimit::Fixed(limit as u32)),
            _ => limit.wrong(&right),
        };
    }
    let bound = |node: &Option<Node<'_>>, default: u32| match node {
        None => Some(default),
        Some(node) => node.whole(1, MAX_EITHER).map(|bound| bound as u32),
    };
    let [min_node, max_node, start_node] = &bounds;
    let min = bound(min_node, DEFAULT_MIN);
    // A written bound moves the defaults of the others along.
    let max = bound(max_node, DEFAULT_MAX.max(min.unwrap_or(DEFAULT_MIN)));
    let (min, max) = (min?, max?);
    if let Some(node) = max_node
        && max < min
    {
        node.error(format!("must be at least min, {min}, not {max}"));
        return None;
    }
    let start = bound(start_node, DEFAULT_START.clamp(min, max))?;
    if let Some(node) = start_node
        && !(min..=max).contains(&start)
    {
        node.error(format!(
            "must be from min, {min}, to max, {max}, not {start}"
        ));
        return None;
    }
    Some(PoolLimit::Adaptive { min, max, start })
}

struct Queue {
    capacity: u32,
    max_wait: Duration,
    weights: Vec<u32>,
}

fn read_queue(node: Option<Node<'_>>, levels: u8) -> Option<Queue> {
    let mut queue = Queue {
        capacity: DEFAULT_CAPACITY,
        max_wait: DEFAULT_MAX_WAIT,
        weights: (1..usize::from(levels))
            .map(|level| *DEFAULT_WEIGHTS.get(level - 1).unwrap_or(&1))
            .collect(),
    };
    let Some(node) = node else {
        return Some(queue);
    };
    let object = node.object()?;
    let capacity = match object.get("capacity") {
        Some(node) => node.whole(1, MAX_EITHER).map(|capacity| capacity as u32),
        None => Some(queue.capacity),
    };
    let max_wait = match object.get("max_wait") {
        Some(node) => node.duration(MAX_WAIT),
        None => Some(queue.max_wait),
    };
    let weights = match object.get("weights") {
        Some(node) => read_weights(&node, levels),
        None => Some(queue.weights),
    };
    object.refuse_others();
    queue.capacity = capacity?;
    queue.max_wait = max_wait?;
    queue.weights = weights?;
    Some(queue)
}

fn read_weights(node: &Node<'_>, levels: u8) -> Option<Vec<u32>> {
    let items = node.list()?;
    let wanted = usize::from(levels) - 1;
    if items.len() != wanted {
        node.error(format!(
            "has {} weights; with {levels} levels it must have {wanted}, of level 1 and those \
             below it (level 0 goes before all)",
            items.len()
        ));
        return None;
    }
    let weights: Vec<u32> = items
        .iter()
        .filter_map(|item| item.whole(1, MAX_WEIGHT))
        .map(|weight| weight as u32)
        .collect();
    (weights.len() == wanted).then_some(weights)
}

fn read_degrade(node: &Node<'_>) -> Option<Degrade> {
    const RIGHT: &str = "{ file = \"/etc/sluice/busy.html\" } or { location = \"@degraded\" }";
    if !matches!(node.value, Value::Object(_)) {
        node.error(format!("must be {RIGHT}, not {}", described(node.value)));
        return None;
    }
    let object = node.object()?;
    let file = object.get("file");
    let location = object.get("location");
    object.refuse_others();
    match (file, location) {
        (Some(node), None) => {
            let path = node.text_of_path()?;
            if content_type(Path::new(path)).is_none() {
                let endings: Vec<_> = TYPES.iter().map(|(ending, _)| *ending).collect();
                node.error(format!(
                    "{} has an ending of no known type; it must be one of .{}",
                    quoted(path),
                    endings.join(" .")
                ));
                return None;
            }
            Some(Degrade::File(PathBuf::from(path)))
        }
        (None, Some(node)) => node
            .parsed("the location's name, such as \"@degraded\"", parse_location)
            .map(Degrade::Location),
        (Some(_), Some(_)) => {
            object.error_here(format!("has both file and location; it must be {RIGHT}"));
            None
        }
        (None, None) => {
            object.error_here(format!("has neither file nor location; it must be {RIGHT}"));
            None
        }
    }
}

fn parse_location(text: &str) -> Result<String, String> {
    let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    let named = text.strip_prefix('@').is_none_or(|name| !name.is_empty());
    if text.starts_with(['@', '/']) && named && plain && text.len() <= MAX_LOCATION_BYTES {
        return Ok(text.to_string());
    }
    Err(format!(
        "{} is not a location; it must begin with @ or /, as in \"@degraded\", and have at most \
         {MAX_LOCATION_BYTES} characters",
        quoted(text)
    ))
}

/// What the endings of pages say of their content.
const TYPES: [(&str, &str); 9] = [
    ("html", "text/html; charset=utf-8"),
    ("htm", "text/html; charset=utf-8"),
    ("xhtml", "application/xhtml+xml; charset=utf-8"),
    ("json", "application/json; charset=utf-8"),
    ("txt", "text/plain; charset=utf-8"),
    ("md", "text/markdown; charset=utf-8"),
    ("xml", "application/xml; charset=utf-8"),
    ("svg", "image/svg+xml; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
];

/// The `Content-Type` of a file, by the ending of its name. `None`: no page.
pub fn content_type(path: &Path) -> Option<&'static str> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    let found = TYPES.iter().find(|(known, _)| *known == ending)?;
    Some(found.1)
}
