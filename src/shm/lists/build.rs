//! From entries to a snapshot.
use super::{ALIGN, Ends, FORMAT, Header, ListsInput, MAGIC, Plain, UserSlot, hash_user, v4, v6};
use crate::domain::entry::Subject;
use ipnet::IpNet;
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Allow,
    Block,
    Bans,
}

impl From {
    fn ends(self, until: u64) -> Ends {
        match self {
            From::Allow => Ends {
                allow: until,
                block: 0,
            },
            From::Block | From::Bans => Ends {
                allow: 0,
                block: until,
            },
        }
    }
}

/// A network as the first and last of its addresses.
#[derive(Clone, Copy)]
struct Net {
    first: u128,
    last: u128,
    from: From,
    until: u64,
}

/// A range starts at `.0`, and its ends are number `.1`.
type Ranges<A> = Vec<(A, u32)>;

/// Numbers distinct pairs of ends. Number 0 is no entry.
struct Pairs {
    numbers: HashMap<Ends, u32>,
    pairs: Vec<Ends>,
    last: (Ends, u32),
}

impl Pairs {
    fn number(&mut self, ends: Ends) -> u32 {
        if self.last.0 != ends {
            let next = self.pairs.len() as u32;
            let number = *self.numbers.entry(ends).or_insert(next);
            if number == next {
                self.pairs.push(ends);
            }
            self.last = (ends, number);
        }
        self.last.1
    }
}

/// Disjoint ranges that cover everything from 0 on. Networks nest or are
/// disjoint, so what is open at any point is a stack.
fn cut(nets: &mut [Net], header: &mut Header) -> Vec<(u128, Ends)> {
    nets.sort_unstable_by_key(|n| (n.first, std::cmp::Reverse(n.last), n.from as u8));
    let mut ranges = vec![(0u128, Ends::default())];
    let mut emit = |start: u128, ends: Ends| {
        if ranges.last().is_some_and(|r| r.0 == start) {
            ranges.pop();
        }
        if ranges.last().is_none_or(|r| r.1 != ends) {
            ranges.push((start, ends));
        }
    };
    let mut open: Vec<(u128, Ends)> = Vec::new();
    let close =
        |open: &mut Vec<(u128, Ends)>, before: Option<u128>, emit: &mut dyn FnMut(u128, Ends)| {
            while let Some((last, _)) = open.pop_if(|(last, _)| before.is_none_or(|b| *last < b)) {
                let outer = open.last().map_or(Ends::default(), |o| o.1);
                if let Some(next) = last.checked_add(1) {
                    emit(next, outer);
                }
            }
        };
    let mut previous: Option<Net> = None;
    for net in nets.iter() {
        if previous.is_none_or(|p| (p.first, p.last, p.from) != (net.first, net.last, net.from)) {
            match net.from {
                From::Allow => header.allow += 1,
                From::Block => header.block += 1,
                From::Bans => header.bans += 1,
            }
        }
        previous = Some(*net);
        close(&mut open, Some(net.first), &mut emit);
        let outer = open.last().map_or(Ends::default(), |o| o.1);
        let ends = outer.later(net.from.ends(net.until));
        open.push((net.last, ends));
        emit(net.first, ends);
    }
    close(&mut open, None, &mut emit);
    ranges
}

/// Open addressing, at most half full.
fn user_slots(users: HashMap<&[u8], Ends>, seed: [u64; 2], pairs: &mut Pairs) -> Vec<UserSlot> {
    let mut slots = vec![UserSlot::default(); (users.len() * 2).next_power_of_two().max(2)];
    let mask = slots.len() - 1;
    for (user, ends) in users {
        let (tag, check, place) = hash_user(seed, user);
        let mut i = place as usize & mask;
        while slots[i].tag != 0 {
            i = (i + 1) & mask;
        }
        slots[i] = UserSlot {
            tag,
            check,
            ends: pairs.number(ends),
        };
    }
    slots
}

/// Appends a section; says how long it is.
fn put<T: Plain>(out: &mut Vec<u8>, items: &[T]) -> u64 {
    out.reserve(size_of_val(items) + ALIGN);
    out.extend_from_slice(bytes_of(items));
    out.resize(out.len().next_multiple_of(ALIGN), 0);
    items.len() as u64
}

fn bytes_of<T: Plain>(items: &[T]) -> &[u8] {
    // SAFETY: as many bytes as the items have, all of them written, since a
    // `Plain` type has no padding.
    unsafe { std::slice::from_raw_parts(items.as_ptr().cast(), size_of_val(items)) }
}

/// Bytes for [`Region::publish`](crate::shm::Region::publish).
pub fn build(input: &ListsInput) -> Vec<u8> {
    let mut header = Header {
        magic: MAGIC,
        format: FORMAT,
        seed: crate::shm::random(),
        ..Header::default()
    };
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    let mut users: HashMap<&[u8], Ends> = HashMap::new();
    let lists = [
        (From::Allow, &input.allow),
        (From::Block, &input.block),
        (From::Bans, &input.bans),
    ];
    for (from, entries) in lists {
        let mut named: std::collections::HashSet<&[u8]> = Default::default();
        for (subject, until) in entries {
            let until = *until;
            match subject {
                Subject::Net(IpNet::V4(net)) => {
                    let (first, last) = (u32::from(net.network()), u32::from(net.broadcast()));
                    v4.push(Net {
                        first: first.into(),
                        last: last.into(),
                        from,
                        until,
                    });
                }
                Subject::Net(IpNet::V6(net)) => {
                    let (first, last) = (u128::from(net.network()), u128::from(net.broadcast()));
                    v6.push(Net {
                        first,
                        last,
                        from,
                        until,
                    });
                }
                Subject::User(user) => {
                    let ends = users.entry(user).or_default();
                    *ends = ends.later(from.ends(until));
                    named.insert(user);
                }
            }
        }
        let count = named.len() as u64;
        match from {
            From::Allow => (header.allow, header.users_allowed) = (count, count),
            From::Block => header.block = count,
            From::Bans => header.bans = count,
        }
    }
    header.users = users.len() as u64;
    let mut pairs = Pairs {
        numbers: HashMap::from([(Ends::default(), 0)]),
        pairs: vec![Ends::default()],
        last: (Ends::default(), 0),
    };
    let v4: Ranges<u32> = cut(&mut v4, &mut header)
        .into_iter()
        // The end of the last network may be one beyond the last address.
        .filter_map(|(start, ends)| Some((u32::try_from(start).ok()?, pairs.number(ends))))
        .collect();
    let v6: Ranges<u128> = cut(&mut v6, &mut header)
        .into_iter()
        .map(|(start, ends)| (start, pairs.number(ends)))
        .collect();
    let slots = user_slots(users, header.seed, &mut pairs);
    let mut ends = pairs.pairs;
    let (v4_index, v4_blocks) = v4::grow(&v4, |numbers| {
        let first = ends.len() as u32;
        let own: Vec<Ends> = numbers.iter().map(|n| ends[*n as usize]).collect();
        ends.extend(own);
        first
    });
    let v6 = v6::grow(&v6);

    let mut out = vec![0; size_of::<Header>()];
    header.lengths = [
        put(&mut out, &ends),
        put(&mut out, &v4_index),
        put(&mut out, &v4_blocks),
        put(&mut out, &v6.nodes),
        put(&mut out, &v6.slots),
        put(&mut out, &v6.starts),
        put(&mut out, &v6.runs),
        put(&mut out, &v6.lowers),
        put(&mut out, &slots),
    ];
    header.bytes = out.len() as u64;
    out[..size_of::<Header>()].copy_from_slice(bytes_of(&[header]));
    out
}
