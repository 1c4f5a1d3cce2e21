//! Address and user lists: an immutable snapshot, built beside the one in
//! force and switched in whole.
//!
//! Networks of all lists are cut into disjoint ranges, each of which knows when
//! the last allow entry and the last block entry over it end, so one search
//! answers, whatever the prefix lengths and however entries nest, and an entry
//! ends without a rebuild. Users are in a hash table keyed by a secret.
//!
//! ```text
//!  +-------------+  192 bytes: magic, counts, length of each section
//!  | Header      |
//!  +-------------+  every section starts at a multiple of 64
//!  | Ends        |  pairs of ends; number 0: no entry
//!  +-------------+
//!  | v4          |  index, blocks: v4.rs
//!  +-------------+
//!  | v6          |  nodes, slots, starts, runs, lower halves: v6.rs
//!  +-------------+
//!  | User slots  |  open addressing, at most half full
//!  +-------------+
//! ```
//!
//! The file never leaves the machine that made it: integers are in its order.
mod build;
mod v4;
mod v6;

use super::error::{Error, error};
use super::published::Mapped;
use crate::domain::entry::Subject;
use std::hash::Hasher;
use std::net::IpAddr;
use std::ops::Deref;
use std::ptr::NonNull;

pub use build::build;

/// What an immutable snapshot is built from. The second of each pair is the
/// Unix second at which the entry ends, `u64::MAX` for never. Of duplicates the
/// later end holds.
#[derive(Clone, Debug, Default)]
pub struct ListsInput {
    pub allow: Vec<(Subject, u64)>,
    pub block: Vec<(Subject, u64)>,
    pub bans: Vec<(Subject, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    None,
    Allowed,
    Blocked,
}

/// Distinct entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub allow: u64,
    pub block: u64,
    pub bans: u64,
}

const MAGIC: u64 = u64::from_le_bytes(*b"slists\r\n");
const FORMAT: u64 = 1;
/// Sections start at multiples of it: a cache line.
const ALIGN: usize = 64;

/// A type that a snapshot's bytes may be read as.
///
/// # Safety
/// Every bit pattern is a valid value, there is no padding, and its alignment is
/// at most [`ALIGN`].
unsafe trait Plain: Copy {}

/// First 192 bytes. Lengths are numbers of elements.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Header {
    magic: u64,
    format: u64,
    seed: [u64; 2],
    allow: u64,
    block: u64,
    bans: u64,
    users_allowed: u64,
    users: u64,
    /// Of the sections, in their order.
    lengths: [u64; SECTIONS],
    bytes: u64,
    unused: [u64; 5],
}

const SECTIONS: usize = 9;

/// When the last entry of each kind over a range ends, Unix seconds; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
struct Ends {
    allow: u64,
    block: u64,
}

/// Of 128 bits of keyed hash, 96 are compared; the user itself is not kept.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct UserSlot {
    /// 0: empty.
    tag: u64,
    check: u32,
    ends: u32,
}

// SAFETY: integers without padding.
unsafe impl Plain for Header {}
// SAFETY: integers without padding.
unsafe impl Plain for Ends {}
// SAFETY: integers without padding.
unsafe impl Plain for UserSlot {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: integers without padding.
unsafe impl Plain for v6::Node {}
// SAFETY: integers without padding.
unsafe impl Plain for v6::Start {}
// SAFETY: integers without padding.
unsafe impl Plain for v6::Run {}
// SAFETY: integers without padding.
unsafe impl Plain for v6::Lower {}

const _: () = assert!(size_of::<Header>() == 3 * ALIGN);

impl Ends {
    fn standing(self, now_unix: u64) -> Standing {
        // No branch: who is listed is not to be predicted.
        const BY_LISTS: [Standing; 4] = [
            Standing::None,
            Standing::Blocked,
            Standing::Allowed,
            Standing::Allowed,
        ];
        let (allowed, blocked) = (now_unix < self.allow, now_unix < self.block);
        BY_LISTS[usize::from(allowed) * 2 + usize::from(blocked)]
    }

    fn later(self, other: Ends) -> Ends {
        Ends {
            allow: self.allow.max(other.allow),
            block: self.block.max(other.block),
        }
    }
}

/// (tag, check, first slot before masking)
fn hash_user(seed: [u64; 2], user: &[u8]) -> (u64, u32, u64) {
    use siphasher::sip128::{Hasher128, SipHasher13};
    let mut hasher = SipHasher13::new_with_keys(seed[0], seed[1]);
    hasher.write(user);
    let hash = hasher.finish128();
    (hash.h1.max(1), (hash.h2 >> 32) as u32, hash.h2)
}

/// A snapshot that has been checked, ready for lookups.
pub struct Lists {
    header: Header,
    ends: Section<Ends>,
    v4: v4::Ranges,
    v6: v6::Ranges,
    users: Section<UserSlot>,
    /// What the sections lie in; they are not given out.
    _mapped: Mapped,
}

/// Elements in the mapping of the [`Lists`] that this is a part of. Not a
/// reference: that would have to be good until the end of every function that
/// lists are handed to, and one that drops them unmaps it before.
struct Section<T>(NonNull<[T]>);

// SAFETY: a shared slice of what nobody writes, in all but its lifetime.
unsafe impl<T: Sync> Send for Section<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Section<T> {}

impl<T> Deref for Section<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `Cutter` has checked place, length and alignment; any bits are
        // a value (`Plain`). The `Lists` that this is borrowed with keep the
        // mapping, which nobody writes and which does not move.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Section<T> {
    /// By `N` elements each; what is left over is left out.
    fn chunks<const N: usize>(self) -> Section<[T; N]> {
        Section(NonNull::from(self.as_chunks().0))
    }
}

/// Cuts sections off a snapshot, one behind the other.
struct Cutter<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cutter<'a> {
    /// # Safety
    /// `bytes` stay where they are, and nobody writes them, as long as there are sections of them.
    unsafe fn new(bytes: &'a [u8]) -> Cutter<'a> {
        Cutter { bytes, at: 0 }
    }

    fn section<T: Plain>(&mut self, count: u64) -> Option<Section<T>> {
        let count = usize::try_from(count).ok()?;
        let length = count.checked_mul(size_of::<T>())?;
        let end = self.at.checked_add(length)?;
        let section = self.bytes.get(self.at..end)?;
        self.at = end.next_multiple_of(ALIGN);
        let start = NonNull::from(section).cast::<T>();
        let slice = NonNull::slice_from_raw_parts(start, count);
        start.is_aligned().then_some(Section(slice))
    }
}

impl Lists {
    /// Checks a snapshot once, so that lookups can trust it.
    pub fn new(mapped: Mapped) -> Result<Lists, Error> {
        Lists::checked(mapped).ok_or_else(|| error!("a published list is damaged"))
    }

    fn checked(mapped: Mapped) -> Option<Lists> {
        let bytes: &[u8] = &mapped;
        // SAFETY: the mapping goes into the lists, beside the sections, or ends with this function
        // as they do; nobody writes a published snapshot.
        let mut cut = unsafe { Cutter::new(bytes) };
        let header = *cut.section::<Header>(1)?.first()?;
        if (header.magic, header.format, header.bytes) != (MAGIC, FORMAT, bytes.len() as u64) {
            return None;
        }
        let [
            ends,
            index,
            blocks,
            nodes,
            slots,
            starts,
            runs,
            lowers,
            users,
        ] = header.lengths;
        let ends = cut.section::<Ends>(ends)?;
        let index = cut.section(index)?;
        let v4 = v4::Ranges::new(index, cut.section(blocks)?, ends.len())?;
        let v6 = v6::Ranges {
            nodes: cut.section(nodes)?,
            slots: cut.section(slots)?,
            starts: cut.section(starts)?,
            runs: cut.section(runs)?,
            lowers: cut.section(lowers)?,
        };
        let users = cut.section::<UserSlot>(users)?;
        let sound = v6.is_sound(ends.len())
            && ends.first() == Some(&Ends::default())
            && users.iter().all(|u| (u.ends as usize) < ends.len())
            && users.len().is_power_of_two()
            && users.iter().any(|u| u.tag == 0);
        sound.then_some(Lists {
            header,
            ends,
            v4,
            v6,
            users,
            _mapped: mapped,
        })
    }

    /// Lists without an entry, for the time before any was published.
    pub fn empty() -> Lists {
        let bytes = build(&ListsInput::default());
        Lists::new(Mapped::from_bytes(&bytes)).expect("lists that were just built")
    }

    /// Allow beats block. `::ffff:a.b.c.d` is `a.b.c.d`.
    // Inlined, since an address copied to the stack in one shape and loaded in
    // another waits for everything before it.
    #[inline]
    pub fn address(&self, ip: IpAddr, now_unix: u64) -> Standing {
        let ends = match ip.to_canonical() {
            IpAddr::V4(v4) => self.v4.ends(u32::from(v4)),
            IpAddr::V6(v6) => self.v6.ends(u128::from(v6)),
        };
        self.ends[ends as usize].standing(now_unix)
    }

    pub fn user(&self, user: &[u8], now_unix: u64) -> Standing {
        if self.header.users == 0 {
            return Standing::None;
        }
        let (tag, check, place) = hash_user(self.header.seed, user);
        let mask = self.users.len() - 1;
        for i in 0..self.users.len() {
            let slot = self.users[(place as usize).wrapping_add(i) & mask];
            if slot.tag == 0 {
                break;
            }
            if (slot.tag, slot.check) == (tag, check) {
                return self.ends[slot.ends as usize].standing(now_unix);
            }
        }
        Standing::None
    }

    /// Whether the allowlist names a user.
    pub fn has_user_allow(&self) -> bool {
        self.header.users_allowed > 0
    }

    /// Whether any list names a user.
    pub fn has_users(&self) -> bool {
        self.header.users > 0
    }

    pub fn counts(&self) -> Counts {
        let Header {
            allow, block, bans, ..
        } = self.header;
        Counts { allow, block, bans }
    }

    /// Disjoint ranges of both families, for tests and benches.
    #[doc(hidden)]
    pub fn ranges(&self) -> (usize, usize) {
        (self.v4.len(), self.v6.len())
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
