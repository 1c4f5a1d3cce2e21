//! A static B+ tree over the starts of disjoint ranges: the last start that is
//! not above an address, in one descent.
//!
//! 16 keys a node and 17 children, no pointers: the children of node `i` are
//! the nodes `17 i …` of the level below, its keys the first keys of all but
//! the first of them. A node is compared whole, without a branch, which the
//! compiler turns into vector instructions; a million networks are five levels,
//! of which the last two leave the nearest cache. Absent keys are the largest
//! value. (After "S+ trees" in Sergey Slotin's *Algorithms for Modern Hardware*.)
//!
//! IPv6 keys are the upper half of the address. Starts with the same upper half
//! (networks longer than /64) are a run of equal keys, searched by the rest.
use super::Plain;
use std::fmt::Debug;

/// Keys of a node.
pub const WIDTH: usize = 16;
const CHILDREN: usize = WIDTH + 1;
/// 17^9 leaves are more than there are addresses in memory.
const MAX_LEVELS: usize = 10;

pub trait Key: Copy + Ord + Debug + 'static {
    const ABSENT: Self;
}

impl Key for u32 {
    const ABSENT: u32 = u32::MAX;
}

impl Key for u64 {
    const ABSENT: u64 = u64::MAX;
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Node<K>(pub [K; WIDTH]);

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LeafV4 {
    starts: [u32; WIDTH],
    ends: [u32; WIDTH],
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LeafV6 {
    upper: [u64; WIDTH],
    lower: [u64; WIDTH],
    ends: [u32; WIDTH],
}

// SAFETY: integers without padding.
unsafe impl Plain for Node<u32> {}
// SAFETY: integers without padding.
unsafe impl Plain for Node<u64> {}
// SAFETY: integers without padding.
unsafe impl Plain for LeafV4 {}
// SAFETY: integers without padding.
unsafe impl Plain for LeafV6 {}

/// How many keys are not above `key`.
fn rank<K: Key>(keys: &[K; WIDTH], key: K) -> usize {
    keys.iter().map(|k| u32::from(*k <= key)).sum::<u32>() as usize
}

pub trait Leaf: Plain + 'static {
    type Address: Copy + Ord + Default;
    type Key: Key;
    fn key_of(address: Self::Address) -> Self::Key;
    fn keys(&self) -> &[Self::Key; WIDTH];
    fn start(&self, i: usize) -> Self::Address;
    fn ends(&self, i: usize) -> u32;
    /// A leaf of up to 16 (start, number of ends).
    fn pack(ranges: &[(Self::Address, u32)]) -> Self;
    fn bytes_into(&self, out: &mut Vec<u8>);
}

impl Leaf for LeafV4 {
    type Address = u32;
    type Key = u32;

    fn key_of(address: u32) -> u32 {
        address
    }

    fn keys(&self) -> &[u32; WIDTH] {
        &self.starts
    }

    fn start(&self, i: usize) -> u32 {
        self.starts[i]
    }

    fn ends(&self, i: usize) -> u32 {
        self.ends[i]
    }

    fn pack(ranges: &[(u32, u32)]) -> LeafV4 {
        let mut leaf = LeafV4 {
            starts: [u32::MAX; WIDTH],
            ends: [0; WIDTH],
        };
        for (i, (start, ends)) in ranges.iter().enumerate() {
            (leaf.starts[i], leaf.ends[i]) = (*start, *ends);
        }
        leaf
    }

    fn bytes_into(&self, out: &mut Vec<u8>) {
        out.extend(
            self.starts
                .iter()
                .chain(&self.ends)
                .flat_map(|n| n.to_ne_bytes()),
        );
    }
}

impl Leaf for LeafV6 {
    type Address = u128;
    type Key = u64;

    fn key_of(address: u128) -> u64 {
        (address >> 64) as u64
    }

    fn keys(&self) -> &[u64; WIDTH] {
        &self.upper
    }

    fn start(&self, i: usize) -> u128 {
        u128::from(self.upper[i]) << 64 | u128::from(self.lower[i])
    }

    fn ends(&self, i: usize) -> u32 {
        self.ends[i]
    }

    fn pack(ranges: &[(u128, u32)]) -> LeafV6 {
        let absent = [u64::MAX; WIDTH];
        let mut leaf = LeafV6 {
            upper: absent,
            lower: absent,
            ends: [0; WIDTH],
        };
        for (i, (start, ends)) in ranges.iter().enumerate() {
            (leaf.upper[i], leaf.lower[i]) = (Self::key_of(*start), *start as u64);
            leaf.ends[i] = *ends;
        }
        leaf
    }

    fn bytes_into(&self, out: &mut Vec<u8>) {
        out.extend(
            self.upper
                .iter()
                .chain(&self.lower)
                .flat_map(|n| n.to_ne_bytes()),
        );
        out.extend(self.ends.iter().flat_map(|n| n.to_ne_bytes()));
    }
}

/// Number of nodes of each level above `leaves`, root first.
fn level_lengths(leaves: usize) -> Vec<usize> {
    let mut lengths = Vec::new();
    let mut below = leaves;
    while below > 1 {
        below = below.div_ceil(CHILDREN);
        lengths.push(below);
    }
    lengths.reverse();
    lengths
}

/// Leaves and nodes, root first, of ranges sorted by start, the first at zero.
pub fn grow<L: Leaf>(ranges: &[(L::Address, u32)]) -> (Vec<Node<L::Key>>, Vec<L>) {
    let leaves: Vec<L> = ranges.chunks(WIDTH).map(L::pack).collect();
    let mut nodes = Vec::new();
    let lengths = level_lengths(leaves.len());
    for (depth, length) in lengths.iter().enumerate() {
        // Leaves under one child of a node of this level.
        let under = CHILDREN.pow((lengths.len() - depth - 1) as u32);
        for i in 0..*length {
            nodes.push(Node(std::array::from_fn(|k| {
                let child = (i * CHILDREN + k + 1) * under;
                leaves
                    .get(child)
                    .map_or(L::Key::ABSENT, |leaf| leaf.keys()[0])
            })));
        }
    }
    (nodes, leaves)
}

/// Ready for lookups.
pub struct Tree<L: Leaf> {
    /// Root first.
    levels: [&'static [Node<L::Key>]; MAX_LEVELS],
    depth: usize,
    leaves: &'static [L],
    ranges: usize,
}

impl<L: Leaf> Tree<L> {
    /// `None` when anything is not as [`grow`] makes it: starts that do not
    /// rise from zero, a number of ends that is not below `ends`.
    pub fn new(
        nodes: &'static [Node<L::Key>],
        leaves: &'static [L],
        ranges: u64,
        ends: usize,
    ) -> Option<Tree<L>> {
        let ranges = usize::try_from(ranges).ok()?;
        let lengths = level_lengths(leaves.len());
        if ranges == 0 || lengths.len() > MAX_LEVELS || lengths.iter().sum::<usize>() != nodes.len()
        {
            return None;
        }
        let mut levels = [&nodes[..0]; MAX_LEVELS];
        let mut rest = nodes;
        for (level, length) in levels.iter_mut().zip(&lengths) {
            (*level, rest) = rest.split_at(*length);
        }
        let tree = Tree {
            levels,
            depth: lengths.len(),
            leaves,
            ranges,
        };
        let starts = (0..ranges).map(|i| tree.start(i));
        let sound = tree.start(0) == L::Address::default()
            && starts.clone().zip(starts.skip(1)).all(|(a, b)| a < b)
            && leaves
                .iter()
                .all(|l| (0..WIDTH).all(|i| (l.ends(i) as usize) < ends));
        sound.then_some(tree)
    }

    fn start(&self, i: usize) -> L::Address {
        self.leaves[i / WIDTH].start(i % WIDTH)
    }

    /// The number of ends of the range that `address` is in.
    pub fn ends(&self, address: L::Address) -> u32 {
        let key = L::key_of(address);
        let mut i = 0;
        for (depth, level) in self.levels[..self.depth].iter().enumerate() {
            let below = if depth + 1 < self.depth {
                self.levels[depth + 1].len()
            } else {
                self.leaves.len()
            };
            // The largest address is not above absent keys: hence the minimum.
            i = (i * CHILDREN + rank(&level[i].0, key)).min(below - 1);
        }
        let leaf = &self.leaves[i];
        let found = (i * WIDTH + rank(leaf.keys(), key)).min(self.ranges);
        let last = found.saturating_sub(1);
        if self.start(last) <= address {
            return self.leaves[last / WIDTH].ends(last % WIDTH);
        }
        self.ends_in_run(address, last)
    }

    /// Among starts with the upper half of `address`, all of the last of which
    /// is above it: steps back that double, then halves.
    #[inline(never)]
    fn ends_in_run(&self, address: L::Address, above: usize) -> u32 {
        let (mut high, mut step) = (above, 1);
        let mut low = above.saturating_sub(step);
        while low > 0 && self.start(low) > address {
            high = low;
            step *= 2;
            low = low.saturating_sub(step);
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.start(middle) <= address {
                low = middle
            } else {
                high = middle
            }
        }
        self.leaves[low / WIDTH].ends(low % WIDTH)
    }
}
