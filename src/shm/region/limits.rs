//! Rules, and deciding by their buckets.
use super::Region;
use crate::domain::bucket::word::{Limit, Outcome};
use crate::domain::units::Nanos;
use crate::shm::Error;
use crate::shm::bucket::Ask;
use crate::shm::line::Line;
use crate::shm::lock::RULES;
use crate::shm::rules::{Name, RuleId, Taker};
use crate::shm::table::KeyHash;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

impl Region {
    /// Finds or makes the entry under that name (1 to 80 bytes; names with `~`
    /// have no counters). The limit is put in force when it differs and
    /// `generation` (a setup's) is the newest that has started. A name taken
    /// like this is never forgotten.
    pub fn take_rule(&self, name: &str, limit: Limit, generation: u64) -> Result<RuleId, Error> {
        self.take_rule_at(name, limit, generation, None, self.now())
    }

    /// The same for the configuration that this worker is about to report by
    /// [`Region::my_config_generation`]. Its name is forgotten, when room is
    /// short, once all living workers have reported newer ones. A limit of an
    /// older configuration does not undo what a newer one has just changed.
    pub fn take_rule_as_of(
        &self,
        name: &str,
        limit: Limit,
        generation: u64,
        config_generation: u64,
    ) -> Result<RuleId, Error> {
        self.take_rule_at(name, limit, generation, Some(config_generation), self.now())
    }

    /// The same at a given time, for tests.
    #[doc(hidden)]
    pub fn take_rule_at(
        &self,
        name: &str,
        limit: Limit,
        generation: u64,
        config_generation: Option<u64>,
        now: Nanos,
    ) -> Result<RuleId, Error> {
        // SeqCst: with `attach_worker`.
        let newest_setup = generation >= self.header().started_generation.load(SeqCst);
        let taker = Taker {
            newest_setup,
            setup: generation,
            config: config_generation,
            now,
        };
        let mut hasher = SipHasher13::new_with_keys(self.seed[0], self.seed[1]);
        hasher.write(b"rule\0");
        hasher.write(name.as_bytes());
        let name = Name {
            text: name,
            hash: hasher.finish128().as_u128(),
        };
        let buckets = self.buckets();
        self.rules().take(
            name,
            limit,
            taker,
            || buckets.sweep(),
            || self.recycle(name),
        )
    }

    fn recycle(&self, name: Name<'_>) -> Result<(), Error> {
        let _threads = self.threads.lock();
        let _held = match self.lock_file() {
            Some(lock) => Some(lock.hold(RULES, Duration::from_secs(2))?),
            None => None,
        };
        // A worker that has not reported yet reports 0, and so keeps all names.
        let reported = |(_, line): (u32, Line<'_>)| line.head.config_generation.load(Relaxed);
        let unused_below = self.living().map(reported).min().unwrap_or(0);
        let buckets = self.buckets();
        self.rules()
            .recycle(name, unused_below, self.lines(), |rule| {
                buckets.purge_where(|r| r == rule)
            })
    }

    /// The limit in force.
    pub fn limit(&self, rule: RuleId) -> Limit {
        self.rules().get(rule).in_force().1.limit
    }

    /// Counts one refusal ([`RuleId::BLOCKED`]: by a list). `Some(refusals since
    /// the last)` at most once a second per rule over all workers.
    pub fn refusal_log(&self, rule: RuleId, now: Nanos) -> Option<u64> {
        self.rules().get(rule).refusal(now)
    }

    /// Names the bucket of `key` under `rule`; keyed, so that nobody can aim.
    pub fn hash(&self, rule: RuleId, key: &[u8]) -> KeyHash {
        let mut hasher = SipHasher13::new_with_keys(self.seed[0], self.seed[1] ^ u64::from(rule.0));
        hasher.write(key);
        KeyHash::new(rule, hasher.finish128().as_u128())
    }

    /// What a request would get; nothing is spent, no bucket is made.
    pub fn peek(&self, rule: RuleId, key: KeyHash, cost: u32, now: Nanos) -> Outcome {
        self.buckets().peek(Ask {
            rule,
            key,
            cost,
            now,
        })
    }

    /// Decides, and spends what is admitted.
    pub fn spend(&self, rule: RuleId, key: KeyHash, cost: u32, now: Nanos) -> Outcome {
        self.buckets().spend(Ask {
            rule,
            key,
            cost,
            now,
        })
    }

    /// Gives back what `spend` took.
    pub fn undo(&self, rule: RuleId, key: KeyHash, cost: u32, now: Nanos) {
        self.buckets().undo(Ask {
            rule,
            key,
            cost,
            now,
        });
    }

    /// For benches: as if no bucket had ever been used.
    #[doc(hidden)]
    pub fn empty_bucket_table(&self) {
        self.buckets().purge_where(|_| true);
    }

    /// (capacity, used): used are slots with a bucket, full ones included.
    pub fn bucket_slots(&self) -> (u64, u64) {
        let capacity = self.buckets().table.capacity();
        (capacity, self.lines().slots_used().min(capacity))
    }
}
