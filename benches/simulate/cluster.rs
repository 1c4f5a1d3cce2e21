//! Several gateways with one limit: what speaks for a gateway in the engine, and
//! the scripts themselves, run by an embedded LuaJIT over a store whose clock is
//! the simulation's. A call and its reply take no time.
use sluice::domain::pool::{LEVELS, Wakes};
use sluice::domain::units::Nanos;
use sluice::engine::cluster::member::{EVERY, EVERY_SLOT, Member};
use sluice::redis::embedded::Store;
use sluice::redis::lease::Keys;

use crate::gate::Gate;
use crate::model::Setup;
use crate::traffic::Numbers;

pub struct Cluster {
    /// The store answers.
    pub there: bool,
    store: Store,
    /// The store's time at the beginning.
    began_us: u64,
    jitter: Numbers,
    gateways: Vec<Gateway>,
    weights: [u32; LEVELS],
    timeout_ns: u64,
}

struct Gateway {
    member: Member,
    /// It takes slot by slot, and the next call is for slots only.
    slots_next: bool,
}

impl Cluster {
    pub fn new(setup: &Setup) -> Cluster {
        let gateway = |n: u32| Gateway {
            member: Member::new(Keys::new("sluice", "backend"), format!("gateway-{n}")),
            slots_next: false,
        };
        let store = Store::new();
        Cluster {
            there: true,
            began_us: store.now_us,
            store,
            jitter: Numbers::new(setup.seed, 1_000),
            gateways: (0..setup.gateways).map(gateway).collect(),
            weights: setup.settings.weights,
            timeout_ns: setup.settings.timeout_ns,
        }
    }

    /// The limit of all together, as the leader was told last; else as any was.
    pub fn limit(&self) -> u32 {
        let mut members = self.gateways.iter().map(|it| &it.member);
        let leader = members.clone().find(|it| it.leads());
        leader.or(members.next()).map_or(0, Member::limit)
    }

    /// One gateway's call; when it calls next.
    pub fn call(&mut self, at: usize, gates: &mut [Gate], now: u64) -> u64 {
        self.store.now_us = self.began_us + now / 1000;
        if !self.gateways[at].slots_next {
            self.lease(at, &mut gates[at], now);
        }
        let strict = self.gateways[at].member.strict();
        if strict {
            self.slots(at, &mut gates[at], now);
        }
        let gateway = &mut self.gateways[at];
        gateway.slots_next = strict && !gateway.slots_next;
        let every = if strict { EVERY_SLOT } else { EVERY };
        let jitter = 0.9 + 0.2 * self.jitter.unit();
        now + every.mul_f64(jitter).as_nanos() as u64
    }

    fn lease(&mut self, at: usize, gate: &mut Gate, now: u64) {
        let known = self.gateways.len() as u32;
        let member = &mut self.gateways[at].member;
        let mut wakes = Wakes::default();
        let looked = member.look(&mut gate.heap.pool(), known, Nanos(now), &mut wakes);
        if self.there {
            let told = member.told(&looked, self.weights, self.timeout_ns);
            let share = self.store.lease(member.keys(), &told);
            member.take(&share, &looked);
            member.put(&mut gate.heap.pool(), &share, Nanos(now), &mut wakes);
        }
        gate.hear(wakes, now);
    }

    fn slots(&mut self, at: usize, gate: &mut Gate, now: u64) {
        let member = &mut self.gateways[at].member;
        let mut wakes = Wakes::default();
        let wanted = member.want_slots(&mut gate.heap.pool(), Nanos(now), &mut wakes);
        if self.there {
            let (keys, gateway) = (member.keys(), member.gateway());
            let slots = self.store.slots(keys, gateway, member.limit(), wanted);
            member.take_slots(slots, Nanos(now));
            member.put_slots(&mut gate.heap.pool(), Nanos(now), &mut wakes);
        }
        gate.hear(wakes, now);
    }
}
