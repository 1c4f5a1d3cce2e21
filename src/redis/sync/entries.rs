//! The members of a list as Redis holds them.
use std::hash::{DefaultHasher, Hash, Hasher};

/// Packed: a million members are two allocations, not a million.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entries {
    bytes: Vec<u8>,
    /// Where each member ends, and the Unix time at which it does.
    ends: Vec<(usize, f64)>,
}

impl Entries {
    pub fn push(&mut self, member: &[u8], until_unix: f64) {
        self.bytes.extend_from_slice(member);
        self.ends.push((self.bytes.len(), until_unix));
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// (member, Unix time at which it ends; `+inf`: never). In no order; a member may occur twice.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], f64)> {
        let mut start = 0;
        self.ends.iter().map(move |&(end, until)| {
            let member = &self.bytes[start..end];
            start = end;
            (member, until)
        })
    }

    /// Equal for the same members in any order.
    pub(super) fn digest(&self) -> u64 {
        let one = |(member, until): (&[u8], f64)| {
            let mut hasher = DefaultHasher::new();
            (member, until.to_bits()).hash(&mut hasher);
            hasher.finish()
        };
        self.iter()
            .map(one)
            .fold(self.len() as u64, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_of_the_set() {
        let of = |members: &[(&str, f64)]| {
            let mut entries = Entries::default();
            members
                .iter()
                .for_each(|(member, until)| entries.push(member.as_bytes(), *until));
            assert!(
                entries
                    .iter()
                    .map(|(member, _)| member.len())
                    .sum::<usize>()
                    > 0
            );
            entries.digest()
        };
        let never = f64::INFINITY;
        assert_eq!(
            of(&[("a", never), ("b", 7.0)]),
            of(&[("b", 7.0), ("a", never)])
        );
        assert_ne!(
            of(&[("a", never), ("b", 7.0)]),
            of(&[("a", 7.0), ("b", never)])
        );
        assert_ne!(of(&[("ab", never)]), of(&[("a", never), ("b", never)]));
        assert_ne!(of(&[("a", never)]), of(&[("a", never), ("a", never)]));
    }
}
