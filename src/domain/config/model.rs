//! The configuration as the rest of the crate sees it: checked, with every
//! default filled in. How it is read and what is refused is in the sibling
//! modules; this file is only the shape.
use crate::domain::client::Cidr;
use crate::domain::key::KeyPart;
use crate::domain::matcher::{Facts, Matcher};
use crate::domain::pool::{LEVELS, Settings};
use crate::domain::units::{Nanos, Rate};
use std::path::PathBuf;
use std::time::Duration;

/// What is wrong at one place of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Dotted path of the field: `rules[2].rate`, `store.url`, `rule:login.rate`.
    pub field: String,
    /// One sentence: what is wrong and what would be right.
    pub problem: String,
}

/// A whole configuration file or table.
#[derive(Clone, Debug)]
pub struct Config {
    pub store: Store,
    pub shm: Shm,
    pub client: Client,
    pub lists: Lists,
    pub response: Response,
    pub rules: Vec<Rule>,
    /// The first that matches takes a request; disabled ones included.
    pub pools: Vec<PoolConfig>,
    pub priority: Priority,
    /// Accepted, but worth a word: shown by `check` and in `status`.
    pub warnings: Vec<FieldError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Local,
    Redis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    Local,
    Allow,
    Deny,
}

#[derive(Clone, Debug)]
pub struct Store {
    pub backend: Backend,
    /// `None` when `store.url` is not written and the backend is local: then
    /// nothing ever connects. One URL here; clusters and sentinels are refused
    /// with "not in this version".
    pub url: Option<String>,
    pub username: Option<String>,
    /// Already resolved from `password_env` or `password_file`.
    pub password: Option<Secret>,
    /// It stood in the configuration itself.
    pub password_in_url: bool,
    pub tls: Option<Tls>,
    pub prefix: String,
    pub timeout: Duration,
    pub on_error: OnError,
    pub sync: Duration,
}

/// A text that no `Debug` output shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// PEM files, read when the configuration was.
#[derive(Clone, Debug)]
pub struct Tls {
    pub ca: Option<Vec<u8>>,
    pub cert: Option<Vec<u8>>,
    pub key: Option<Secret>,
    pub verify: bool,
}

#[derive(Clone, Debug)]
pub struct Shm {
    pub path: PathBuf,
    pub size_bytes: u64,
}

#[derive(Clone, Debug)]
pub struct Client {
    pub trusted_proxies: Vec<Cidr>,
    /// `unix:` stands among the trusted proxies.
    pub trust_unix: bool,
    /// Lower case.
    pub header: String,
    pub ipv4_prefix: u8,
    pub ipv6_prefix: u8,
}

/// One element of `lists.blocklist` or `lists.allowlist`.
#[derive(Clone, Debug, PartialEq)]
pub enum ListSource {
    Entry(crate::domain::entry::Subject),
    /// An absolute path or glob.
    File(String),
}

#[derive(Clone, Debug, Default)]
pub struct Lists {
    pub blocklist: Vec<ListSource>,
    pub allowlist: Vec<ListSource>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderStyle {
    Standard,
    Legacy,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyStyle {
    Problem,
    Nginx,
}

#[derive(Clone, Copy, Debug)]
pub struct Response {
    pub headers: HeaderStyle,
    pub body: BodyStyle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingKey {
    Ip,
    Skip,
    Deny,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Cluster,
    Node,
}

#[derive(Clone, Debug)]
pub struct Rule {
    pub name: String,
    pub matcher: Matcher,
    pub unless: Option<Matcher>,
    /// Empty: one bucket for all.
    pub key: Vec<KeyPart>,
    pub missing_key: MissingKey,
    pub rate: Rate,
    pub capacity: u32,
    pub cost: u32,
    pub shadow: bool,
    pub scope: Scope,
    pub status: u16,
    pub enabled: bool,
}

impl Rule {
    /// Whether the rule is for a request: `match` holds and `unless` does not. The
    /// text is as in [`Matcher::hit`].
    pub fn applies(&self, facts: &mut impl Facts) -> Option<&str> {
        applies(&self.matcher, self.unless.as_ref(), facts)
    }
}

impl PriorityRule {
    /// As [`Rule::applies`].
    pub fn applies(&self, facts: &mut impl Facts) -> bool {
        applies(&self.matcher, self.unless.as_ref(), facts).is_some()
    }
}

/// `match` holds and `unless` does not; the text is as in [`Matcher::hit`].
pub fn applies<'m>(
    matcher: &'m Matcher,
    unless: Option<&Matcher>,
    facts: &mut impl Facts,
) -> Option<&'m str> {
    let text = matcher.hit(facts)?;
    match unless {
        Some(unless) if unless.hit(facts).is_some() => None,
        _ => Some(text),
    }
}

#[derive(Clone, Debug)]
pub struct PriorityRule {
    pub name: String,
    /// Lowest first, ties by name; the file's have 1000, 2000, ….
    pub order: f64,
    pub matcher: Matcher,
    pub unless: Option<Matcher>,
    pub level: u8,
}

#[derive(Clone, Debug)]
pub struct Priority {
    pub levels: u8,
    pub default: u8,
    pub user_cap: u32,
    pub forward: bool,
    /// In the order in which they are tried.
    pub rules: Vec<PriorityRule>,
    pub events: Vec<EventRule>,
    /// `None`: nobody is suspected of anything.
    pub suspicion: Option<Suspicion>,
}

/// What a verified user does when it means to buy: it is one level more
/// important for a while.
#[derive(Clone, Debug)]
pub struct EventRule {
    pub name: String,
    pub matcher: Matcher,
    pub unless: Option<Matcher>,
    pub for_: Duration,
}

impl EventRule {
    /// As [`Rule::applies`].
    pub fn applies(&self, facts: &mut impl Facts) -> bool {
        applies(&self.matcher, self.unless.as_ref(), facts).is_some()
    }
}

/// Bounds on what a client does within `window`; each that it exceeds makes it
/// one level less important. At least one is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suspicion {
    /// Requests.
    pub rate: Option<Rate>,
    /// The share of its requests that end with 400 to 498, 0 to 1.
    pub client_errors: Option<f64>,
    /// The share of its requests that it leaves before their end, 0 to 1.
    pub aborts: Option<f64>,
    pub window: Duration,
}

/// How many requests a pool has in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolLimit {
    Fixed(u32),
    /// Found by measuring.
    Adaptive {
        min: u32,
        max: u32,
        start: u32,
    },
}

impl PoolLimit {
    /// The most there can ever be.
    pub fn most(self) -> u32 {
        match self {
            PoolLimit::Fixed(limit) => limit,
            PoolLimit::Adaptive { max, .. } => max,
        }
    }
}

/// What a shed request gets in place of a bare 503.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Degrade {
    /// The bytes of a file; its ending says their type.
    File(PathBuf),
    /// A location of nginx, `@name` or `/path`.
    Location(String),
}

/// When a request gives its slot back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// At its end.
    Response,
    /// When the response's header is there.
    Headers,
}

/// What protects a backend.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    pub name: String,
    pub matcher: Matcher,
    pub unless: Option<Matcher>,
    pub limit: PoolLimit,
    pub scope: Scope,
    /// How many may wait, and for how long at most.
    pub capacity: u32,
    pub max_wait: Duration,
    /// Of the levels from 1 on.
    pub weights: Vec<u32>,
    /// The backend's longest answer.
    pub timeout: Duration,
    pub degrade: Option<Degrade>,
    pub release: Release,
    pub request_buffering: bool,
    pub enabled: bool,
}

impl PoolConfig {
    /// As [`Rule::applies`].
    pub fn applies(&self, facts: &mut impl Facts) -> bool {
        applies(&self.matcher, self.unless.as_ref(), facts).is_some()
    }

    /// The pool's settings, where there are so many levels.
    pub fn settings(&self, levels: u8) -> Settings {
        let (adaptive, limit, min, max, start) = match self.limit {
            PoolLimit::Fixed(limit) => (0, limit, limit, limit, limit),
            PoolLimit::Adaptive { min, max, start } => (1, start, min, max, start),
        };
        let mut weights = [0; LEVELS];
        for (weight, written) in weights.iter_mut().skip(1).zip(&self.weights) {
            *weight = *written;
        }
        Settings {
            adaptive,
            limit,
            min,
            max,
            start,
            capacity: self.capacity,
            levels: u32::from(levels),
            cluster: u32::from(self.scope == Scope::Cluster),
            weights,
            max_wait_ns: Nanos::from(self.max_wait).0,
            timeout_ns: Nanos::from(self.timeout).0,
        }
    }
}

/// The field `mode` of the Redis hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Enforce,
    Shadow,
    Off,
}
