//! Names of pools, and whose settings are in force.
//!
//! As with rules: an entry is claimed by one compare-and-swap of its key, in
//! order, so two workers that look for one name end at one entry; it is given
//! to another name only when no living worker's configuration has it, and only
//! with nothing in flight and nothing waiting.
use super::{Held, Place, PoolHead};
use crate::domain::pool::{Settings, Wakes};
use crate::shm::rules::{IN_TRANSIT, LATE_NS, Name, Taker, read_text, write_text};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::sync::atomic::Ordering::*;

/// Tells settings apart, never 0.
fn settings_hash(settings: &Settings) -> u64 {
    let Settings {
        adaptive,
        limit,
        min,
        max,
        start,
        capacity,
        levels,
        cluster,
        weights,
        max_wait_ns,
        timeout_ns,
    } = *settings;
    let mut hasher = SipHasher13::new();
    for n in [adaptive, limit, min, max, start, capacity, levels, cluster] {
        hasher.write_u32(n);
    }
    weights.iter().for_each(|n| hasher.write_u32(*n));
    hasher.write_u64(max_wait_ns);
    hasher.write_u64(timeout_ns);
    hasher.finish().max(1)
}

impl PoolHead {
    pub fn is_used(&self) -> bool {
        // Acquire: with the release that formatted it: name and state are there.
        self.formatted.load(Acquire) != 0 && self.key.load(Relaxed) > IN_TRANSIT
    }

    pub fn key(&self) -> u128 {
        self.key.load(SeqCst)
    }

    /// Whether this is the entry of `name`, or becomes it.
    pub fn claim(&self, name: Name<'_>) -> bool {
        let key = name.key();
        let mut found = self.key.load(Acquire);
        if found == 0 {
            found = match self.key.compare_exchange(0, key, AcqRel, Acquire) {
                Ok(_) => key,
                Err(other) => other,
            };
        }
        found == key
    }

    /// The configuration of that generation has this pool.
    pub fn taken_for(&self, config: u64) {
        // SeqCst, with the key: either who gives the entry away sees this, or
        // the taker sees that it is being given away.
        self.taken_at.fetch_max(config, SeqCst);
    }

    /// 0: being given away already; else one more than the newest generation
    /// that has taken it.
    pub fn age(&self) -> u64 {
        match self.key.load(SeqCst) {
            IN_TRANSIT => 0,
            _ => self.taken_at.load(SeqCst).saturating_add(1),
        }
    }

    fn write_name(&self, name: &str) {
        // Behind the lock; Relaxed: published by `formatted`.
        write_text(&self.name, name);
        self.name_len.store(name.len() as u64, Relaxed);
    }

    pub fn name(&self) -> String {
        read_text(&self.name, self.name_len.load(Relaxed))
    }
}

impl Place<'_> {
    /// Whether these settings are in force: no lock is needed to know.
    pub fn has(self, settings: &Settings) -> bool {
        let head = self.head;
        // Acquire: with the release in `put`.
        head.formatted.load(Acquire) != 0 && head.settings.load(Relaxed) == settings_hash(settings)
    }
}

impl Held<'_> {
    /// Makes the pool of that name, or puts other settings in force if `taker`
    /// may.
    pub fn put(&mut self, name: Name<'_>, settings: &Settings, taker: Taker, wakes: &mut Wakes) {
        let (head, now) = (self.place.head, self.now);
        if head.key() != name.key() {
            return; // Given to another meanwhile: the taker looks for a place anew.
        }
        let hash = settings_hash(settings);
        // Relaxed below: behind the lock.
        if head.formatted.load(Relaxed) == 0 {
            self.forget_deferred();
            head.forget_sheds();
            self.pool().format(settings, now);
            self.repaired();
            head.write_name(name.text);
        } else {
            // A worker that is late does not undo what another has just changed.
            let late = taker.order() < head.made_by.load(Relaxed)
                && now.0 < head.made_ns.load(Relaxed).saturating_add(LATE_NS);
            if head.settings.load(Relaxed) == hash || !taker.newest_setup || late {
                return;
            }
            self.pool().configure(settings, now, wakes);
        }
        head.settings.store(hash, Relaxed);
        head.made_by.store(taker.order(), Relaxed);
        head.made_ns.store(now.0, Relaxed);
        // Release: with the acquire of all who look whether it is there.
        head.formatted.store(1, Release);
    }

    /// Whether nothing is in flight and nothing waits, ghosts included.
    pub fn is_idle(&mut self, wakes: &mut Wakes) -> bool {
        let now = self.now;
        if self.place.head.formatted.load(Relaxed) == 0 {
            return true;
        }
        self.pool().tick(now, wakes);
        let view = self.pool().view(now);
        view.in_flight == 0 && view.waiting.iter().all(|n| *n == 0)
    }

    /// Gives the place to another name, unless somebody has taken it meanwhile.
    /// For one caller at a time, who holds the lock for it; one that is killed
    /// leaves a place in transit, which the next takes first.
    pub fn give_to(&mut self, name: Name<'_>, taken_at: u64) {
        let head = self.place.head;
        let old = head.key();
        let swap = |from, to| head.key.compare_exchange(from, to, SeqCst, Relaxed);
        if old != IN_TRANSIT && swap(old, IN_TRANSIT).is_err() {
            return;
        }
        if old != IN_TRANSIT && head.age_in_transit() != taken_at {
            head.key.store(old, SeqCst);
            return;
        }
        // Release: an id of before that is refused once this is seen; who
        // holds the lock sees it in any case.
        head.formatted.store(0, Release);
        head.life.fetch_add(1, Relaxed);
        head.settings.store(0, Relaxed);
        head.made_by.store(0, Relaxed);
        head.taken_at.store(0, Relaxed);
        head.name_len.store(0, Relaxed);
        head.key.store(name.key(), SeqCst);
    }
}

impl PoolHead {
    fn age_in_transit(&self) -> u64 {
        self.taken_at.load(SeqCst).saturating_add(1)
    }
}
