//! What the synchronising worker reads from Redis and from files, and how it
//! reaches the others: raw, with the store it came from, as an immutable file
//! named by a generation number in the region. Every worker merges it with the
//! file of its own setup, so a reload with another file needs no Redis.
//!
//! Lists are files of their own, one for each, so that a new ban does not
//! rebuild a blocklist of a million entries; what is published last names the
//! generation of each, so all of it switches at once.
use super::setup;
use crate::domain::config::{self, Config, Field, FieldError, Store};
use crate::domain::entry::{self, Subject};
use crate::engine::files::Files;
use crate::engine::rules::Live;
use crate::engine::thread::Shared;
use crate::redis::sync::{Entries, ServerId, Sink, Which, store_name};
use crate::shm::lists::{self, Lists, ListsInput};
use crate::shm::{Kind, Region};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// More than one heartbeat of 10 s.
const REMEMBER_GATEWAYS: Duration = Duration::from_secs(15);

/// What is published last and names the rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// Whose: another store's is nobody's business.
    pub store: String,
    pub run_id: String,
    /// Counts changes of `fields`.
    pub change: u64,
    /// Redis's time, µs, of the last change of `fields`.
    pub now_us: u64,
    pub fields: BTreeMap<String, PublishedField>,
    /// By `Which as usize`.
    pub lists: [Option<ListRef>; 3],
    /// Of the list files, read anew since the setup of this generation.
    pub files: Option<(u64, ListRef)>,
    /// What an operator should know of the list files as they are since then.
    #[serde(default)]
    pub file_warnings: Option<(u64, Vec<String>)>,
    /// By Redis key: what an operator should know of it.
    pub troubles: BTreeMap<String, String>,
    /// Lines of the log about what all entries together have shown, so that each is there once,
    /// whichever worker reads.
    #[serde(default)]
    pub said: BTreeSet<String>,
}

/// A list that is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRef {
    pub generation: u64,
    /// Entries that were skipped.
    pub rejected: u64,
}

/// A field's value now, and the last one that was good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedField {
    pub raw: Vec<u8>,
    pub good: Option<Vec<u8>>,
}

/// The published file of a list.
pub const fn kind(which: Which) -> Kind {
    match which {
        Which::Allow => Kind::Allow,
        Which::Block => Kind::Block,
        Which::Bans => Kind::Bans,
    }
}

/// The list's name in Redis, behind the prefix.
const fn name(which: Which) -> &'static str {
    match which {
        Which::Allow => "allowlist",
        Which::Block => "blocklist",
        Which::Bans => "bans",
    }
}

impl Published {
    /// What is in force for this store, if anything was ever published for it.
    pub fn load(region: &Region, store: &Store) -> Published {
        let nothing = || Published {
            store: store_name(store),
            ..Published::default()
        };
        let generation = region.published(Kind::Config);
        if generation == 0 {
            return nothing();
        }
        let Ok(mapped) = region.open_published(Kind::Config, generation) else {
            return nothing();
        };
        match serde_json::from_slice::<Published>(&mapped) {
            Ok(p) if p.store == store_name(store) => p,
            _ => nothing(),
        }
    }

    pub fn live(&self) -> Live {
        let fields = self.fields.iter().map(|(k, f)| {
            (
                k.clone().into_bytes(),
                Field {
                    raw: f.raw.clone(),
                    good: f.good.clone(),
                },
            )
        });
        Live {
            fields: fields.collect(),
            now_us: self.now_us,
        }
    }
}

/// Maps a published list.
pub fn open(region: &Region, kind: Kind, list: ListRef) -> Result<Arc<Lists>, String> {
    let mapped = region
        .open_published(kind, list.generation)
        .map_err(|e| e.to_string())?;
    Lists::new(mapped).map(Arc::new).map_err(|e| e.to_string())
}

/// Takes what the synchronisation reads and publishes it.
pub struct Publisher {
    region: &'static Region,
    config: Arc<Config>,
    shared: Arc<Shared>,
    current: Published,
    changed: bool,
    /// When each number of gateways was last seen.
    gateways: Vec<(Instant, u32)>,
}

impl Publisher {
    pub fn new(region: &'static Region, config: Arc<Config>, shared: Arc<Shared>) -> Publisher {
        let current = Published::load(region, &config.store);
        Publisher {
            region,
            config,
            shared,
            current,
            changed: false,
            gateways: Vec::new(),
        }
    }

    /// What the state in force was read from.
    pub fn server(&self) -> Option<ServerId> {
        (!self.current.run_id.is_empty()).then(|| ServerId {
            store: self.current.store.clone(),
            run_id: self.current.run_id.clone(),
        })
    }

    /// The list files have changed.
    pub fn files(&mut self, files: &Files, setup_generation: u64) {
        let rejected = files.allow.rejected() + files.block.rejected();
        match self.region.publish(Kind::Files, &setup::file_bytes(files)) {
            Ok(generation) => {
                self.current.files = Some((
                    setup_generation,
                    ListRef {
                        generation,
                        rejected,
                    },
                ));
                self.file_warnings(files, setup_generation);
            }
            Err(e) => self.shared.error(format!(
                "sluice: lists read anew cannot be published: {e}; the ones in force stay"
            )),
        }
    }

    /// What there is to say of the list files has changed, if nothing else.
    pub fn file_warnings(&mut self, files: &Files, setup_generation: u64) {
        self.current.file_warnings = Some((setup_generation, files.warnings()));
        self.changed = true;
        self.publish();
    }

    /// Logs what is wrong with entries that are good by themselves, each once until it is mended.
    pub fn found_late(&mut self, errors: &[FieldError]) {
        let lines: BTreeSet<_> = errors
            .iter()
            .map(|e| format!("sluice: {}: {}", e.field, e.problem))
            .collect();
        if lines == self.current.said {
            return;
        }
        for line in lines.difference(&self.current.said) {
            self.shared.error(line.clone());
        }
        self.current.said = lines;
        self.changed = true;
        self.publish();
    }

    fn publish(&mut self) {
        if !self.changed {
            return;
        }
        let published = serde_json::to_vec(&self.current)
            .map_err(|e| e.to_string())
            .and_then(|b| {
                self.region
                    .publish(Kind::Config, &b)
                    .map_err(|e| e.to_string())
            });
        match published {
            Ok(_) => self.changed = false,
            Err(e) => self.shared.error(format!(
                "sluice: what was read from Redis cannot be published: {e}; what is in force stays"
            )),
        }
    }

    fn trouble(&mut self, key: &str, problem: Option<String>) {
        let before = match &problem {
            Some(p) => {
                self.shared.warn(format!("sluice: {key}: {p}"));
                self.current.troubles.insert(key.into(), p.clone())
            }
            None => self.current.troubles.remove(key),
        };
        self.changed |= before != problem;
    }
}

impl Sink for Publisher {
    fn config(&mut self, server: &ServerId, fields: BTreeMap<Vec<u8>, Vec<u8>>, now_us: u64) {
        let mut new = BTreeMap::new();
        for (name, raw) in fields {
            // A name that is no text is no rule's; it stays visible as the error that it is.
            let name = String::from_utf8_lossy(&name).into_owned();
            let old = self.current.fields.get(&name);
            let room = self.region.pool_room();
            let verdict = config::check_field(&self.config, name.as_bytes(), &raw, &room);
            let good = match &verdict {
                Ok(()) => Some(raw.clone()),
                Err(_) => old.and_then(|o| o.good.clone()),
            };
            if let Err(errors) = verdict
                && old.is_none_or(|o| o.raw != raw)
            {
                let kept = if good.is_some() {
                    "its last good version"
                } else {
                    "what the configuration says of it, if anything,"
                };
                for e in errors {
                    self.shared.error(format!(
                        "sluice: {}:config: {}: {}; {kept} stays in force",
                        self.config.store.prefix, e.field, e.problem
                    ));
                }
            }
            new.insert(name, PublishedField { raw, good });
        }
        if server.run_id != self.current.run_id {
            self.current.run_id = server.run_id.clone();
            self.changed = true;
        }
        if new != self.current.fields {
            self.current.fields = new;
            self.current.now_us = now_us;
            self.current.change += 1;
            self.changed = true;
        }
    }

    fn list(&mut self, which: Which, entries: Entries) {
        let key = format!("{}:{}", self.config.store.prefix, name(which));
        let mut good: Vec<(Subject, u64)> = Vec::with_capacity(entries.len());
        let mut rejected = 0;
        let mut examples = Vec::new();
        for (member, score) in entries.iter() {
            match entry::parse(member) {
                Ok(subject) => {
                    if entry::is_everything(&subject) {
                        self.shared.warn(format!(
                            "sluice: {key}: {subject} is every address of its family"
                        ));
                    }
                    good.push((subject, ends(score)));
                }
                Err(e) => {
                    rejected += 1;
                    if examples.len() < 3 {
                        let shown = member[..member.len().min(60)].escape_ascii();
                        examples.push(format!("\"{shown}\" ({e})"));
                    }
                }
            }
        }
        drop(entries);
        if rejected > 0 {
            self.shared.warn(format!(
                "sluice: {key}: {rejected} bad entries are skipped, such as {}",
                examples.join(", ")
            ));
        }
        let mut input = ListsInput::default();
        match which {
            Which::Allow => input.allow = good,
            Which::Block => input.block = good,
            Which::Bans => input.bans = good,
        }
        match self.region.publish(kind(which), &lists::build(&input)) {
            Ok(generation) => {
                self.current.lists[which as usize] = Some(ListRef {
                    generation,
                    rejected,
                });
                self.changed = true;
            }
            Err(e) => self.shared.error(format!(
                "sluice: {key} cannot be published: {e}; the list in force stays"
            )),
        }
    }

    fn round_done(&mut self, _server: &ServerId) {
        self.publish();
    }

    fn gateways(&mut self, n: u32) {
        // A Redis that has lost everything counts anew, and each gateway comes back with its next
        // heartbeat: fewer are believed only once nobody has been seen for longer than that.
        // Otherwise each would take the whole limit for its share.
        let now = Instant::now();
        let before = u32::try_from(self.region.gateways()).unwrap_or(u32::MAX);
        if self.gateways.is_empty() {
            self.gateways.push((now, before));
        }
        self.gateways
            .retain(|(t, m)| *m != n && now - *t < REMEMBER_GATEWAYS);
        self.gateways.push((now, n));
        let most = self.gateways.iter().map(|(_, m)| *m).max().unwrap_or(n);
        self.region.set_gateways(u64::from(most));
    }

    fn wrong(&mut self, key: &str, problem: Option<String>) {
        self.trouble(key, problem);
        self.publish();
    }

    fn kept(&mut self, kept: bool) {
        let line = "Redis has restarted without configuration, lists and bans: what was read \
                    before stays in force until any of them exists again";
        self.trouble("restart", kept.then(|| line.into()));
        self.publish();
    }

    fn unreachable(&mut self, problem: Option<String>) {
        self.region.set_store_up(problem.is_none());
        let said = problem.map(|p| {
            format!("the synchronisation cannot reach Redis: {p}; the last state stays in force")
        });
        self.trouble("redis", said);
        self.publish();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_second_at_which_an_entry_ends() {
        for (score, want) in [
            (f64::INFINITY, u64::MAX),
            (f64::NAN, u64::MAX),
            (1e300, u64::MAX),
            (1_700_000_000.2, 1_700_000_001),
            (0.0, 0),
            (-5.0, 0),
            (f64::NEG_INFINITY, 0),
        ] {
            assert_eq!(ends(score), want, "{score}");
        }
    }
}
