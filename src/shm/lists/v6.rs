//! Disjoint ranges of IPv6 addresses.
//!
//! The upper halves of all starts, sorted, each with its answers:
//!
//! ```text
//!  +-----------------+---------------------------+---------------------------+
//!  | upper half: 64  | ends above it: 32         | ends at it: 32            |
//!  +-----------------+---------------------------+---------------------------+
//!   ends at it: for addresses with that upper half; bit 31 set: there is more
//!   than one start in it (networks longer than /64), and the rest is the
//!   number of a run of lower halves
//! ```
//!
//! and over them a trie that says where to begin. A node takes the bits in
//! which its keys first differ (real lists crowd into a few prefixes) and
//! divides them by the next few, about one slot for four keys; a slot says
//! where its keys begin, or, when there are many, which node divides them.
//! Spread evenly a million networks need one node, crowded ones a second.
use super::Section;

/// Of "ends at it": a run. Of a slot: a node.
const MARK: u32 = 1 << 31;
/// So many keys are looked through, not divided.
const FEW: usize = 24;
/// Half a megabyte of slots, which stays in the nearest cache but one.
const MAX_BITS: u32 = 17;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Start {
    pub upper: u64,
    pub above: u32,
    pub at: u32,
}

/// Lower halves of starts with one upper half, `lowers[first..first + count]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Run {
    pub first: u32,
    pub count: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Lower {
    pub start: u64,
    pub ends: u64,
}

/// Divides the keys `first..=last`, all of which are `base` and up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Node {
    pub base: u64,
    /// 2^bits slots from here on; a key's is `(key - base) >> shift`.
    pub slots: u32,
    pub shift: u32,
    pub bits: u32,
    pub first: u32,
    pub last: u32,
    pub unused: u32,
}

/// All parts, as they are written.
#[derive(Debug, Default)]
pub struct Grown {
    pub nodes: Vec<Node>,
    pub slots: Vec<u32>,
    pub starts: Vec<Start>,
    pub runs: Vec<Run>,
    pub lowers: Vec<Lower>,
}

/// From ranges sorted by start, the first at zero, each with its number of ends.
pub fn grow(ranges: &[(u128, u32)]) -> Grown {
    let mut grown = Grown::default();
    let upper = |r: &(u128, u32)| (r.0 >> 64) as u64;
    for run in ranges.chunk_by(|a, b| upper(a) == upper(b)) {
        let mut at = run[0].1;
        if run.len() > 1 || run[0].0 as u64 != 0 {
            at = MARK | grown.runs.len() as u32;
            let first = grown.lowers.len() as u32;
            grown.runs.push(Run {
                first,
                count: run.len() as u32,
            });
            let lower = |r: &(u128, u32)| Lower {
                start: r.0 as u64,
                ends: r.1.into(),
            };
            grown.lowers.extend(run.iter().map(lower));
        }
        grown.starts.push(Start {
            upper: upper(&run[0]),
            above: run[run.len() - 1].1,
            at,
        });
    }
    // The key zero, which every list has, would make all others look crowded.
    let mut open = vec![(1, grown.starts.len(), None)];
    while let Some((first, end, slot)) = open.pop() {
        if end - first <= FEW {
            continue;
        }
        if let Some(slot) = slot {
            grown.slots[slot] = MARK | grown.nodes.len() as u32;
        }
        let keys = &grown.starts[first..end];
        let (least, most) = (keys[0].upper, keys[keys.len() - 1].upper);
        // At least one: the keys are distinct.
        let differ = u64::BITS - (least ^ most).leading_zeros();
        let bits = (keys.len().ilog2() - 2).clamp(1, MAX_BITS).min(differ);
        let shift = differ - bits;
        let base = least >> (differ - 1) >> 1 << (differ - 1) << 1;
        let slots = grown.slots.len();
        grown.nodes.push(Node {
            base,
            slots: slots as u32,
            shift,
            bits,
            first: first as u32,
            last: end as u32 - 1,
            unused: 0,
        });
        let mut from = first;
        for slot in 0..1usize << bits {
            let inside = |s: &Start| (s.upper - base) >> shift == slot as u64;
            let to = from
                + grown.starts[from..end]
                    .iter()
                    .take_while(|s| inside(s))
                    .count();
            grown.slots.push(from as u32);
            open.push((from, to, Some(slots + slot)));
            from = to;
        }
    }
    grown
}

/// Ready for searches.
pub struct Ranges {
    pub nodes: Section<Node>,
    pub slots: Section<u32>,
    pub starts: Section<Start>,
    pub runs: Section<Run>,
    pub lowers: Section<Lower>,
}

impl Ranges {
    /// Whether all is as [`grow`] makes it, as far as a search relies on it:
    /// places inside the parts, numbers below `ends`, nodes that lead onwards.
    pub fn is_sound(&self, ends: usize) -> bool {
        let number = |n: u32| (n as usize) < ends;
        let start = |s: &Start| {
            let at = s.at & !MARK;
            number(s.above)
                && if s.at & MARK == 0 {
                    number(at)
                } else {
                    (at as usize) < self.runs.len()
                }
        };
        let node = |(i, n): (usize, &Node)| {
            let size = 1usize.checked_shl(n.bits).filter(|_| n.bits <= MAX_BITS);
            let slots = size.and_then(|s| self.slots.get(n.slots as usize..)?.get(..s));
            let leads_on = |s: &u32| match s & MARK {
                0 => (1..=self.starts.len()).contains(&(*s as usize)),
                _ => (i + 1..self.nodes.len()).contains(&((s & !MARK) as usize)),
            };
            n.shift < 64
                && n.first > 0
                && (n.last as usize) < self.starts.len()
                && slots.is_some_and(|s| s.iter().all(leads_on))
        };
        self.starts.first().is_some_and(|s| s.upper == 0)
            && self.starts.is_sorted_by(|a, b| a.upper < b.upper)
            && self.starts.iter().all(start)
            && self.runs.iter().all(|r| {
                self.run(*r)
                    .is_some_and(|r| r.is_sorted_by(|a, b| a.start < b.start))
            })
            && self.lowers.iter().all(|l| l.ends < ends as u64)
            && self.nodes.iter().enumerate().all(node)
    }

    fn run(&self, run: Run) -> Option<&[Lower]> {
        self.lowers
            .get(run.first as usize..)?
            .get(..run.count as usize)
    }

    /// Starts of ranges, for tests and benches.
    pub fn len(&self) -> usize {
        self.starts.len() - self.runs.len() + self.lowers.len()
    }

    /// Place of the last key that is not above `upper`.
    fn find(&self, upper: u64) -> usize {
        let mut from = 1;
        let mut node = self.nodes.first();
        while let Some(n) = node {
            let Some(inside) = upper.checked_sub(n.base) else {
                return n.first as usize - 1;
            };
            let slot = inside >> n.shift;
            if slot >> n.bits != 0 {
                return n.last as usize;
            }
            let word = self.slots[n.slots as usize + slot as usize];
            from = word as usize;
            node = if word & MARK == 0 {
                None
            } else {
                self.nodes.get((word & !MARK) as usize)
            };
        }
        let rest = self.starts.get(from..).unwrap_or_default();
        from - 1 + rest.iter().take_while(|s| s.upper <= upper).count()
    }

    /// The number of ends of the range that `address` is in.
    pub fn ends(&self, address: u128) -> u32 {
        let upper = (address >> 64) as u64;
        let place = self.find(upper);
        let start = &self.starts[place];
        // No branch: which of the two it is, is not to be predicted.
        let answer = [start.above, start.at][usize::from(upper == start.upper)];
        if answer & MARK == 0 {
            return answer;
        }
        let run = self.runs.get((answer & !MARK) as usize);
        let run = run.and_then(|r| self.run(*r)).unwrap_or_default();
        let found = run.partition_point(|l| l.start <= address as u64);
        match found.checked_sub(1) {
            Some(last) => run[last].ends as u32,
            // Below the first start of this upper half: what is in force before.
            None => self.starts[place.saturating_sub(1)].above,
        }
    }
}
