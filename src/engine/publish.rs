//! What the synchronising worker reads from Redis, and how it reaches the
//! others: raw, with the store it came from, as an immutable file named by a
//! generation number in the region. Every worker merges it with the file of its
//! own setup, so a reload with another file needs no Redis.
use crate::domain::config::{self, Config, Field, Store};
use crate::domain::entry::{self, Subject};
use crate::engine::thread::Shared;
use crate::redis::{ServerId, Sink, Which};
use crate::shm::lists::{self, ListsInput};
use crate::shm::{Kind, Region};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The published configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// Whose: another store's is nobody's business.
    pub store: String,
    pub run_id: String,
    /// Redis's time, µs.
    pub now_us: u64,
    pub fields: BTreeMap<String, PublishedField>,
    /// What an operator should know of the store: a list of the wrong type, state kept after a
    /// restart that lost everything.
    pub troubles: Vec<String>,
}

/// A field's value now, and the last one that was good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedField {
    pub raw: Vec<u8>,
    pub good: Option<Vec<u8>>,
}

/// Names a store: state of another one must not be taken for this one's.
pub fn store_name(store: &Store) -> String {
    format!("{} {}", store.url.as_deref().unwrap_or(""), store.prefix)
}

impl Published {
    /// What is in force for this store, if anything was ever read from it.
    pub fn load(region: &Region, store: &Store) -> Option<Published> {
        let generation = region.published(Kind::Config);
        if generation == 0 || store.url.is_none() {
            return None;
        }
        let mapped = region.open_published(Kind::Config, generation).ok()?;
        let p: Published = serde_json::from_slice(&mapped).ok()?;
        (p.store == store_name(store)).then_some(p)
    }

    pub fn live(&self) -> super::rules::Live {
        let fields = self.fields.iter().map(|(k, f)| {
            (k.clone().into_bytes(), Field { raw: f.raw.clone(), good: f.good.clone() })
        });
        super::rules::Live { fields: fields.collect(), now_us: self.now_us }
    }
}

/// Entries of one list in Redis.
#[derive(Default)]
struct Members {
    entries: Vec<(Subject, u64)>,
    rejected: u64,
}

/// Takes what the synchronisation reads and publishes it.
pub struct Publisher {
    pub region: &'static Region,
    pub config: Arc<Config>,
    pub shared: Arc<Shared>,
    current: Published,
    allow: Members,
    block: Members,
    bans: Members,
    config_changed: bool,
    lists_changed: bool,
}

impl Publisher {
    pub fn new(region: &'static Region, config: Arc<Config>, shared: Arc<Shared>) -> Publisher {
        let current = Published::load(region, &config.store).unwrap_or_else(|| Published {
            store: store_name(&config.store),
            ..Published::default()
        });
        Publisher {
            region,
            config,
            shared,
            current,
            allow: Members::default(),
            block: Members::default(),
            bans: Members::default(),
            config_changed: false,
            lists_changed: false,
        }
    }

    /// The run_id under which the state in force was read.
    pub fn run_id(&self) -> Option<String> {
        (!self.current.run_id.is_empty()).then(|| self.current.run_id.clone())
    }

    fn trouble(&mut self, what: String) {
        if !self.current.troubles.contains(&what) {
            self.shared.warn(format!("sluice: {what}"));
            self.current.troubles.push(what);
            self.config_changed = true;
        }
    }

    fn publish_config(&mut self) -> Result<(), String> {
        let bytes = serde_json::to_vec(&self.current).map_err(|e| e.to_string())?;
        self.region.publish(Kind::Config, &bytes).map_err(|e| e.to_string())?;
        Ok(())
    }

    fn publish_lists(&mut self) -> Result<(), String> {
        let input = ListsInput {
            allow: std::mem::take(&mut self.allow.entries),
            block: std::mem::take(&mut self.block.entries),
            bans: std::mem::take(&mut self.bans.entries),
            rejected: self.allow.rejected + self.block.rejected + self.bans.rejected,
            owner: store_name(&self.config.store).into_bytes(),
        };
        let bytes = lists::build(&input);
        self.allow.entries = input.allow;
        self.block.entries = input.block;
        self.bans.entries = input.bans;
        self.region.publish(Kind::Lists, &bytes).map_err(|e| e.to_string())?;
        Ok(())
    }
}

impl Sink for Publisher {
    fn config(&mut self, server: &ServerId, fields: BTreeMap<Vec<u8>, Vec<u8>>, now_us: u64) {
        let mut new = BTreeMap::new();
        for (name, raw) in fields {
            // A name that is no text is no rule's; it stays visible as the error that it is.
            let name = String::from_utf8_lossy(&name).into_owned();
            let old = self.current.fields.get(&name);
            let verdict = config::check_field(&self.config, name.as_bytes(), &raw);
            let good = match &verdict {
                Ok(()) => Some(raw.clone()),
                Err(_) => old.and_then(|o| o.good.clone()),
            };
            if let Err(errors) = verdict
                && old.is_none_or(|o| o.raw != raw)
            {
                let kept = if good.is_some() { "its last good version" } else { "the file's, if any," };
                for e in errors {
                    self.shared.error(format!(
                        "sluice: {}:config: {}: {}; {kept} stays in force",
                        self.config.store.prefix, e.field, e.problem
                    ));
                }
            }
            new.insert(name, PublishedField { raw, good });
        }
        self.current.run_id = server.run_id.clone();
        self.current.troubles.clear();
        self.current.fields = new;
        self.current.now_us = now_us;
        self.config_changed = true;
    }

    fn list(&mut self, which: Which, entries: Vec<(Vec<u8>, f64)>) {
        let mut out = Members::default();
        let mut examples = Vec::new();
        out.entries.reserve(entries.len());
        for (member, score) in entries {
            match entry::parse(&member) {
                Ok(subject) => {
                    if entry::is_everything(&subject) {
                        self.shared.warn(format!(
                            "sluice: {which}: {subject} is every address of its family"
                        ));
                    }
                    out.entries.push((subject, ends(score)));
                }
                Err(e) => {
                    out.rejected += 1;
                    if examples.len() < 3 {
                        let shown = String::from_utf8_lossy(&member[..member.len().min(60)]);
                        examples.push(format!("\"{}\" ({e})", shown.escape_debug()));
                    }
                }
            }
        }
        if out.rejected > 0 {
            self.shared.warn(format!(
                "sluice: {which}: {} bad entries are skipped, such as {}",
                out.rejected,
                examples.join(", ")
            ));
        }
        match which {
            Which::Allow => self.allow = out,
            Which::Block => self.block = out,
            Which::Bans => self.bans = out,
        }
        self.lists_changed = true;
    }

    fn round_done(&mut self) {
        if self.lists_changed {
            match self.publish_lists() {
                Ok(()) => self.lists_changed = false,
                Err(e) => self.shared.error(format!(
                    "sluice: the lists from Redis cannot be published: {e}; the ones in force stay"
                )),
            }
        }
        if self.config_changed {
            match self.publish_config() {
                Ok(()) => self.config_changed = false,
                Err(e) => self.shared.error(format!(
                    "sluice: the configuration from Redis cannot be published: {e}; the one in \
                     force stays"
                )),
            }
        }
    }

    fn gateways(&mut self, n: u32) {
        self.region.set_gateways(n);
    }

    fn wrong(&mut self, what: String) {
        self.trouble(what);
    }

    fn kept(&mut self, what: String) {
        self.trouble(what);
    }
}

/// The Unix second at which an entry ends; a score is seconds, `+inf` is never.
fn ends(score: f64) -> u64 {
    if score.is_nan() || score >= u64::MAX as f64 {
        return u64::MAX;
    }
    // Negative and zero are long past. A started second counts whole.
    score.max(0.0).ceil() as u64
}
