//! Bans of a gateway with the local store: a table in a file of its own, so
//! that they outlive a restart and another layout of the region.
//!
//! Open addressing; a slot is swapped whole by a 128-bit compare-and-swap, so a
//! crash at any instruction leaves a valid table, and nobody ever waits. A slot
//! that was used once stays part of its chain: an ended ban is overwritten by
//! the next one that comes past, never emptied.
//!
//! ```text
//! header  magic, version, seed, seed, entries, classes in use (3 × u64)
//! slot    [ class:8 | tag:56 | until:64 ]     all zero: never used
//! ```
//!
//! A ban of a network is found by asking for each prefix length that was ever
//! banned here: only `ban()` adds lengths, so their number is the operator's.
use super::error::{Error, error};
use super::memory::{Memory, PAGE};
use crate::domain::client::group;
use crate::domain::entry::Subject;
use portable_atomic::AtomicU128;
use siphasher::sip::SipHasher13;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// The most bans at a time.
pub const CAPACITY: u64 = 100_000;
/// Slots: at most two fifths are live, so chains stay short.
const SLOTS: usize = 1 << 18;
/// A chain that is longer than this is full.
const PROBES: usize = 512;
/// Bytes of the file.
pub const BYTES: usize = PAGE + SLOTS * 16;

const MAGIC: u64 = u64::from_ne_bytes(*b"sluiceBn");
const VERSION: u64 = 1;

/// Words of the header.
const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 1;
const AT_SEED: usize = 2;
/// Never below the number of live bans: raised before one is written, lowered after one is gone.
const AT_ENTRIES: usize = 4;
const AT_CLASSES: usize = 5;

/// Classes: 0 to 32 an IPv4 prefix length, 33 to 161 an IPv6 one, 162 a user; a slot holds it plus
/// one, so that a used slot is never all zero.
const V6: u8 = 33;
const USER: u8 = 162;

/// A slot's two words. Higher half: class and tag; lower half: the Unix second of the end.
fn pack(name: u64, until: u64) -> u128 {
    u128::from(name) << 64 | u128::from(until)
}

fn unpack(slot: u128) -> (u64, u64) {
    ((slot >> 64) as u64, slot as u64)
}

pub struct Bans {
    memory: Memory,
}

impl Bans {
    /// `fresh`: the memory is new, or nobody else maps it yet. Errors: not such a table.
    pub fn new(memory: Memory, fresh: bool) -> Result<Bans, Error> {
        if memory.len() < BYTES {
            return Err(error!(
                "the table of bans is too short: {} bytes",
                memory.len()
            ));
        }
        let bans = Bans { memory };
        let head = bans.head();
        // Relaxed throughout: whoever makes the table is alone with it (`fresh`), and the others
        // are forked later.
        if head[AT_MAGIC].load(Relaxed) == 0 && fresh {
            let random = RandomState::new();
            head[AT_SEED].store(random.hash_one(1u8), Relaxed);
            head[AT_SEED + 1].store(random.hash_one(2u8), Relaxed);
            head[AT_VERSION].store(VERSION, Relaxed);
            head[AT_MAGIC].store(MAGIC, Relaxed);
        }
        let (magic, version) = (head[AT_MAGIC].load(Relaxed), head[AT_VERSION].load(Relaxed));
        if (magic, version) != (MAGIC, VERSION) {
            return Err(error!("the table of bans was written by another version"));
        }
        Ok(bans)
    }

    fn head(&self) -> &[AtomicU64] {
        self.memory.slice(0, 8)
    }

    fn slots(&self) -> &[AtomicU128] {
        self.memory.slice(PAGE, SLOTS)
    }

    /// Class and tag of a name, and where its chain begins.
    fn name(&self, class: u8, bytes: &[u8]) -> (u64, usize) {
        let head = self.head();
        let seed = (head[AT_SEED].load(Relaxed), head[AT_SEED + 1].load(Relaxed));
        let mut h = SipHasher13::new_with_keys(seed.0, seed.1);
        h.write_u8(class);
        h.write(bytes);
        let h = h.finish();
        let name = u64::from(class + 1) << 56 | h >> 8;
        (name, (h as usize ^ (h >> 32) as usize) & (SLOTS - 1))
    }

    fn of_subject(&self, subject: &Subject) -> (u64, usize, u8) {
        let (class, (name, at)) = match subject {
            Subject::Net(n) => {
                let class = match n.network() {
                    IpAddr::V4(_) => n.prefix_len(),
                    IpAddr::V6(_) => V6 + n.prefix_len(),
                };
                (class, self.of_network(class, n.network()))
            }
            Subject::User(user) => (USER, self.name(USER, user)),
        };
        (name, at, class)
    }

    fn of_network(&self, class: u8, network: IpAddr) -> (u64, usize) {
        match network {
            IpAddr::V4(a) => self.name(class, &a.octets()),
            IpAddr::V6(a) => self.name(class, &a.octets()),
        }
    }

    fn chain(&self, at: usize) -> impl Iterator<Item = &AtomicU128> {
        let slots = self.slots();
        (0..PROBES).map(move |i| &slots[(at + i) & (SLOTS - 1)])
    }

    /// Bans until `until_unix` (`u64::MAX`: for ever), or changes when a ban ends.
    /// Errors: no room.
    pub fn ban(&self, subject: &Subject, until_unix: u64, now_unix: u64) -> Result<(), Error> {
        let (name, at, class) = self.of_subject(subject);
        let head = self.head();
        // Before the slot: whoever sees the ban must ask for its class. Release, with the Acquire
        // in `banned`.
        let (word, bit) = (class as usize / 64, 1u64 << (class % 64));
        head[AT_CLASSES + word].fetch_or(bit, Release);
        loop {
            let mut free = None;
            let mut known = None;
            for slot in self.chain(at) {
                let value = slot.load(Acquire); // with the AcqRel swaps below
                let (n, until) = unpack(value);
                if n == name && until > 0 {
                    known = Some((slot, value));
                    break;
                }
                if until <= now_unix && free.is_none() {
                    free = Some((slot, value));
                }
                if value == 0 {
                    break;
                }
            }
            let new = pack(name, until_unix);
            if let Some((slot, old)) = known {
                if slot.compare_exchange(old, new, AcqRel, Acquire).is_ok() {
                    return Ok(());
                }
                continue;
            }
            let Some((slot, old)) = free else {
                return Err(error!(
                    "no room for another ban here; {CAPACITY} fit in all"
                ));
            };
            if head[AT_ENTRIES].fetch_add(1, AcqRel) >= CAPACITY {
                head[AT_ENTRIES].fetch_sub(1, AcqRel);
                if self.reap(now_unix) > 0 {
                    continue;
                }
                return Err(error!(
                    "{CAPACITY} bans are in force, as many as fit; lift some with unban(), or ban \
                     networks instead of addresses"
                ));
            }
            if slot.compare_exchange(old, new, AcqRel, Acquire).is_err() {
                head[AT_ENTRIES].fetch_sub(1, AcqRel);
                continue;
            }
            if unpack(old).1 > 0 {
                // It took the place of an ended one, which had not been counted off yet.
                head[AT_ENTRIES].fetch_sub(1, AcqRel);
            }
            return Ok(());
        }
    }

    /// Lifts a ban; whether there was one.
    pub fn unban(&self, subject: &Subject, now_unix: u64) -> bool {
        let (name, at, _) = self.of_subject(subject);
        let mut found = false;
        // To the chain's end: two workers may have written the same ban twice.
        for slot in self.chain(at) {
            let value = slot.load(Acquire);
            let (n, until) = unpack(value);
            if n == name && until > 0 && self.end(slot, value) {
                found |= until > now_unix;
            }
            if value == 0 {
                break;
            }
        }
        found
    }

    /// Marks a ban as over. False: somebody changed it meanwhile.
    fn end(&self, slot: &AtomicU128, value: u128) -> bool {
        let over = pack(unpack(value).0, 0);
        let won = slot.compare_exchange(value, over, AcqRel, Acquire).is_ok();
        if won {
            self.head()[AT_ENTRIES].fetch_sub(1, AcqRel);
        }
        won
    }

    /// Counts off bans that have ended; how many.
    fn reap(&self, now_unix: u64) -> u64 {
        let mut n = 0;
        for slot in self.slots() {
            let value = slot.load(Acquire);
            let until = unpack(value).1;
            n += u64::from(until > 0 && until <= now_unix && self.end(slot, value));
        }
        n
    }

    /// Are there any at all?
    pub fn any(&self) -> bool {
        self.head()[AT_ENTRIES].load(Acquire) > 0
    }

    /// How many are in force. Looks at every slot: for status and metrics.
    pub fn count(&self, now_unix: u64) -> u64 {
        if !self.any() {
            return 0;
        }
        self.slots()
            .iter()
            .filter(|s| unpack(s.load(Acquire)).1 > now_unix)
            .count() as u64
    }

    fn holds(&self, (name, at): (u64, usize), now_unix: u64) -> bool {
        for slot in self.chain(at) {
            let value = slot.load(Acquire);
            let (n, until) = unpack(value);
            if n == name && until > now_unix {
                return true;
            }
            if value == 0 {
                return false;
            }
        }
        false
    }

    pub fn banned_address(&self, ip: IpAddr, now_unix: u64) -> bool {
        if !self.any() {
            return false;
        }
        let (first, last) = match ip {
            IpAddr::V4(_) => (0, V6 - 1),
            IpAddr::V6(_) => (V6, USER - 1),
        };
        for word in 0..3u8 {
            let mut bits = self.head()[AT_CLASSES + word as usize].load(Acquire); // with `ban`
            while bits != 0 {
                let class = word * 64 + bits.trailing_zeros() as u8;
                bits &= bits - 1;
                if !(first..=last).contains(&class) {
                    continue;
                }
                let len = class - first;
                if self.holds(self.of_network(class, group(ip, len, len)), now_unix) {
                    return true;
                }
            }
        }
        false
    }

    pub fn banned_user(&self, user: &[u8], now_unix: u64) -> bool {
        self.any() && self.holds(self.name(USER, user), now_unix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::entry;

    fn table() -> Bans {
        Bans::new(Memory::heap(BYTES), true).expect("fresh memory")
    }

    fn subject(text: &str) -> Subject {
        entry::parse(text.as_bytes()).expect("the test's own subject")
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("the test's own address")
    }

    #[test]
    fn addresses_networks_and_users_are_banned_and_nobody_else() {
        let b = table();
        assert!(!b.any());
        for s in [
            "203.0.113.9",
            "10.0.0.0/8",
            "2001:db8:1:1::/64",
            "user:203.0.113.10",
        ] {
            b.ban(&subject(s), u64::MAX, 100).expect("room");
        }
        for (address, banned) in [
            ("203.0.113.9", true),
            ("203.0.113.10", false),
            ("10.255.0.1", true),
            ("11.0.0.1", false),
            ("2001:db8:1:1:ffff::1", true),
            ("2001:db8:1:2::1", false),
        ] {
            assert_eq!(b.banned_address(ip(address), 100), banned, "{address}");
        }
        assert!(b.banned_user(b"203.0.113.10", 100));
        assert!(!b.banned_user(b"203.0.113.9", 100));
        assert_eq!(b.count(100), 4);
    }

    #[test]
    fn a_ban_ends_at_its_second_and_can_be_changed_and_lifted() {
        let b = table();
        let s = subject("203.0.113.9");
        let at = |now| b.banned_address(ip("203.0.113.9"), now);
        b.ban(&s, 102, 100).expect("room");
        assert!(at(101) && !at(102));
        b.ban(&s, u64::MAX, 100).expect("room");
        assert!(at(u64::MAX - 1));
        assert_eq!(b.count(100), 1);
        assert!(b.unban(&s, 100));
        assert!(!at(100) && !b.unban(&s, 100));
        b.ban(&s, 5, 1).expect("room");
        assert!(b.banned_address(ip("203.0.113.9"), 4));
    }

    #[test]
    #[cfg_attr(miri, ignore = "a hundred thousand entries")]
    fn a_full_table_says_so_and_takes_the_place_of_what_has_ended() {
        let b = table();
        let nth = |n: u64| subject(&std::net::Ipv4Addr::from(n as u32).to_string());
        for n in 0..CAPACITY {
            // Every tenth ends at 200.
            b.ban(&nth(n), if n % 10 == 0 { 200 } else { u64::MAX }, 100)
                .expect("room");
        }
        let full = b
            .ban(&subject("user:one-too-many"), u64::MAX, 100)
            .expect_err("full");
        assert!(full.to_string().contains("100000"), "{full}");
        assert_eq!(b.count(100), CAPACITY);
        for n in 0..CAPACITY / 10 {
            b.ban(&nth(1_000_000 + n), u64::MAX, 200)
                .expect("the ended ones make room");
        }
        b.ban(&subject("user:one-too-many"), u64::MAX, 200)
            .expect_err("full again");
        for n in (0..CAPACITY).filter(|n| n % 10 != 0) {
            assert!(
                b.banned_address(std::net::Ipv4Addr::from(n as u32).into(), 200),
                "{n}"
            );
        }
    }

    #[test]
    fn threads_that_ban_and_lift_at_once_lose_nothing() {
        let b = table();
        let rounds = if cfg!(miri) { 8 } else { 500 };
        std::thread::scope(|s| {
            for t in 0..4u8 {
                let b = &b;
                s.spawn(move || {
                    for n in 0..rounds {
                        let own = subject(&format!("10.{t}.{}.{}", n / 256, n % 256));
                        b.ban(&own, u64::MAX, 1).expect("room");
                        b.ban(&subject("192.0.2.1"), u64::MAX, 1).expect("room");
                        if n % 2 == 0 {
                            assert!(b.unban(&own, 1));
                        }
                    }
                });
            }
        });
        assert_eq!(b.count(1), 4 * rounds / 2 + 1);
        assert!(b.unban(&subject("192.0.2.1"), 1));
        assert!(!b.banned_address(ip("192.0.2.1"), 1));
    }
}
