//! Discrete events: gateways in front of one backend of K workers behind a FIFO.
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use sluice::domain::pool::{Feedback, Settings};

use crate::cluster::Cluster;
use crate::gate::{Ask, Gate};
use crate::rivals::Rival;
use crate::traffic::{CLASSES, Numbers, Shape, Stream};
use sluice::domain::units::Nanos;

pub const SECOND: u64 = 1_000_000_000;
/// Mean service time.
pub const SERVICE_S: f64 = 0.02;
const TICK_NS: u64 = 10_000_000;
/// How long it takes a failing backend to say so.
const REFUSED_NS: u64 = 1_000_000;

pub fn ns(s: f64) -> u64 {
    (s * 1e9) as u64
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// What the pool's settings say.
    Own,
    Gradient2,
    Vegas,
}

#[derive(Clone, Copy, Debug)]
pub enum Change {
    Workers(u32),
    /// All service times from now on, against the scenario's.
    Slower(f64),
    /// All requests fail at once.
    Failing(bool),
    /// Whether the store that gateways share is there.
    Store(bool),
}

#[derive(Clone)]
pub struct Setup {
    pub seed: u64,
    pub shape: Shape,
    pub workers: u32,
    pub control: Control,
    pub settings: Settings,
    pub streams: Vec<Stream>,
    pub changes: Vec<(f64, Change)>,
    pub until_s: f64,
    /// What is measured apart, seconds.
    pub spans: Vec<(f64, f64)>,
    pub gateways: u32,
}

/// What one class got in one span.
#[derive(Clone, Copy, Debug, Default)]
pub struct Got {
    pub asked: u64,
    pub served: u64,
    pub response_s: f64,
    pub shed: u64,
    pub left: u64,
}

impl Got {
    pub fn mean_s(&self) -> f64 {
        self.response_s / self.served as f64
    }
}

#[derive(Clone, Debug, Default)]
pub struct Span {
    /// By the time at which they were sent.
    pub got: [Got; CLASSES],
    /// Worker-seconds of work, and of work for clients that had left.
    pub busy_s: f64,
    pub wasted_s: f64,
    /// The most in flight, as the backend saw it.
    pub peak: u32,
    limit_sum: f64,
    limits: u32,
}

impl Span {
    pub fn mean_limit(&self) -> f64 {
        self.limit_sum / f64::from(self.limits.max(1))
    }
}

#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub spans: Vec<Span>,
    /// Every 100 ms, of all gateways together.
    pub limits: Vec<(f64, f64)>,
    /// Slots that were taken when all was over and nothing at the backend.
    pub leaked: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive(u16),
    Finish(u32),
    Leave(u32, u32),
    Change(u16),
    Tick,
    Call(u8),
}

#[derive(Clone, Copy, Default)]
struct Request {
    stream: u16,
    gate: u8,
    failed: bool,
    /// Its client leaves so long after it was sent to the backend; 0: never.
    leaves_after: u64,
    /// 0 free, 1 waits, 2 at the backend, 3 left while the backend worked.
    at: u8,
    life: u32,
    arrived: u64,
    dispatched: u64,
    service: u64,
}

pub struct Model {
    setup: Setup,
    now: u64,
    order: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    numbers: Vec<Numbers>,
    requests: Vec<Request>,
    free: Vec<u32>,
    gates: Vec<Gate>,
    rival: Option<Rival>,
    workers: u32,
    slower: f64,
    failing: bool,
    busy: u32,
    fifo: VecDeque<u32>,
    in_flight: u32,
    at_backend: u32,
    cluster: Option<Cluster>,
    outcome: Outcome,
    ticks: u64,
}

pub fn run(setup: &Setup) -> Outcome {
    Model::new(setup.clone()).run()
}

impl Model {
    fn new(setup: Setup) -> Model {
        let rival = match setup.control {
            Control::Own => None,
            Control::Gradient2 => Some(Rival::gradient2()),
            Control::Vegas => Some(Rival::vegas(setup.seed)),
        };
        let numbers = (0..setup.streams.len() as u64)
            .map(|of| Numbers::new(setup.seed, of + 1))
            .collect();
        let mut settings = setup.settings;
        if let Some(rival) = &rival {
            (settings.adaptive, settings.limit) = (0, rival.limit());
        }
        Model {
            now: 0,
            order: 0,
            events: BinaryHeap::new(),
            numbers,
            requests: Vec::new(),
            free: Vec::new(),
            gates: (0..setup.gateways)
                .map(|_| Gate::new(&settings, 0))
                .collect(),
            rival,
            workers: setup.workers,
            slower: 1.0,
            failing: false,
            busy: 0,
            fifo: VecDeque::new(),
            in_flight: 0,
            at_backend: 0,
            cluster: (settings.cluster == 1).then(|| Cluster::new(&setup)),
            outcome: Outcome {
                spans: vec![Span::default(); setup.spans.len()],
                ..Outcome::default()
            },
            ticks: 0,
            setup,
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((time, self.order, event)));
    }

    fn run(mut self) -> Outcome {
        for stream in 0..self.setup.streams.len() {
            let from = ns(self.setup.streams[stream].from_s);
            self.next_arrival(stream as u16, from);
        }
        for (at, (time_s, _)) in self.setup.changes.clone().iter().enumerate() {
            self.at(ns(*time_s), Event::Change(at as u16));
        }
        self.at(TICK_NS, Event::Tick);
        if self.cluster.is_some() {
            for gate in 0..self.setup.gateways {
                self.at(u64::from(gate) * 7_000_000, Event::Call(gate as u8));
            }
        }
        let until = ns(self.setup.until_s);
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            if time > until {
                break;
            }
            self.now = time;
            match event {
                Event::Arrive(stream) => self.arrive(stream),
                Event::Finish(request) => self.finish(request),
                Event::Leave(request, life) => self.leave(request, life),
                Event::Change(at) => self.change(at),
                Event::Tick => self.tick(),
                Event::Call(gate) => self.call(gate),
            }
            self.settle();
        }
        if self.at_backend == 0 {
            let taken = |gate: &mut Gate| gate.heap.pool().view(Nanos(until)).in_flight;
            self.outcome.leaked = self.gates.iter_mut().map(taken).sum();
        }
        self.outcome
    }

    /// A gateway asks for its share.
    fn call(&mut self, gate: u8) {
        if let Some(cluster) = &mut self.cluster {
            let next = cluster.call(usize::from(gate), &mut self.gates, self.now);
            self.at(next, Event::Call(gate));
        }
    }

    fn next_arrival(&mut self, stream: u16, from: u64) {
        let s = &self.setup.streams[usize::from(stream)];
        let gap = self.numbers[usize::from(stream)].exponential() / s.per_s;
        let time = from + ns(gap);
        if (time as f64) < s.until_s * 1e9 {
            self.at(time, Event::Arrive(stream));
        }
    }

    fn arrive(&mut self, stream: u16) {
        let s = self.setup.streams[usize::from(stream)].clone();
        let numbers = &mut self.numbers[usize::from(stream)];
        let service = self.setup.shape.draw(numbers) * SERVICE_S * s.longer;
        let cohort = (numbers.next() % u64::from(s.cohorts)) as u8;
        let (leaves, after) = (numbers.unit() < s.leaves, ns(s.leaves_after_s));
        let gate = (numbers.next() % u64::from(self.setup.gateways)) as u8;
        self.next_arrival(stream, self.now);
        let index = self.free.pop().unwrap_or_else(|| {
            self.requests.push(Request::default());
            self.requests.len() as u32 - 1
        });
        let request = &mut self.requests[index as usize];
        *request = Request {
            stream,
            gate,
            failed: false,
            leaves_after: if leaves && s.leaves_backend { after } else { 0 },
            at: 1,
            life: request.life.wrapping_add(1),
            arrived: self.now,
            dispatched: 0,
            service: ns(service),
        };
        let life = request.life;
        self.count(self.now, s.class, |got| got.asked += 1);
        if leaves && !s.leaves_backend {
            self.at(self.now + after, Event::Leave(index, life));
        }
        let ask = Ask {
            request: index,
            level: s.level,
            cohort,
            route: s.route,
        };
        self.gates[usize::from(gate)].arrive(ask, self.now, self.now);
    }

    /// Does what the gateway decided.
    fn settle(&mut self) {
        for at in 0..self.gates.len() {
            self.heed(at);
        }
        while self.busy < self.workers
            && let Some(index) = self.fifo.pop_front()
        {
            self.busy += 1;
            let request = self.requests[index as usize];
            let service = (request.service as f64 * self.slower) as u64;
            self.at(self.now + service, Event::Finish(index));
            let wasted = request.at == 3;
            let (from, until) = (self.now as f64 / 1e9, (self.now + service) as f64 / 1e9);
            for (span, &(start, end)) in self.outcome.spans.iter_mut().zip(&self.setup.spans) {
                let within = (until.min(end) - from.max(start)).max(0.0);
                span.busy_s += within;
                if wasted {
                    span.wasted_s += within;
                }
            }
        }
    }

    fn heed(&mut self, at: usize) {
        while let Some(index) = self.gates[at].granted.pop() {
            self.in_flight += 1;
            self.at_backend += 1;
            let (peak, now) = (self.at_backend, self.now);
            self.in_spans(now, |span| span.peak = span.peak.max(peak));
            let request = &mut self.requests[index as usize];
            (request.at, request.dispatched) = (2, now);
            request.failed = self.failing;
            let (life, after) = (request.life, request.leaves_after);
            if after > 0 {
                self.at(now + after, Event::Leave(index, life));
            }
            if self.failing {
                self.at(now + REFUSED_NS, Event::Finish(index));
            } else {
                self.fifo.push_back(index);
            }
        }
        while let Some((index, _)) = self.gates[at].shed.pop() {
            let request = self.requests[index as usize];
            let class = self.setup.streams[usize::from(request.stream)].class;
            self.count(request.arrived, class, |got| got.shed += 1);
            self.requests[index as usize].at = 0;
            self.free.push(index);
        }
    }

    fn finish(&mut self, index: u32) {
        let request = self.requests[index as usize];
        self.at_backend -= 1;
        self.busy -= u32::from(!request.failed);
        self.requests[index as usize].at = 0;
        self.free.push(index);
        if request.at == 3 {
            return;
        }
        self.in_flight -= 1;
        let response = self.now - request.dispatched;
        let gate = &mut self.gates[usize::from(request.gate)];
        if request.failed {
            gate.release(index, Feedback::Error, false, self.now);
            return;
        }
        let answer = Feedback::Response(Nanos(response));
        gate.release(index, answer, false, self.now);
        let stream = &self.setup.streams[usize::from(request.stream)];
        let taken = (self.now - request.arrived) as f64 / 1e9;
        self.count(request.arrived, stream.class, |got| {
            got.served += 1;
            got.response_s += taken;
        });
        if let Some(rival) = &mut self.rival
            && rival.add(response as f64 / 1e9, self.in_flight + 1, self.now)
        {
            let settings = Settings {
                adaptive: 0,
                limit: rival.limit(),
                ..self.setup.settings
            };
            let gate = usize::from(request.gate);
            self.gates[gate].configure(&settings, self.now);
        }
    }

    /// The client leaves: its place in the queue is free, or its slot is, if the
    /// gateway knows no better, while the backend works on.
    fn leave(&mut self, index: u32, life: u32) {
        let request = self.requests[index as usize];
        if request.life != life || !matches!(request.at, 1 | 2) {
            return;
        }
        let stream = &self.setup.streams[usize::from(request.stream)];
        let (class, ghosts) = (stream.class, stream.ghosts);
        self.count(request.arrived, class, |got| got.left += 1);
        let gate = &mut self.gates[usize::from(request.gate)];
        if request.at == 1 {
            gate.leave(index, self.now);
            self.requests[index as usize].at = 0;
            self.free.push(index);
        } else {
            self.in_flight -= 1;
            gate.release(index, Feedback::None, ghosts, self.now);
            self.requests[index as usize].at = 3;
        }
    }

    fn change(&mut self, at: u16) {
        match self.setup.changes[usize::from(at)].1 {
            Change::Workers(workers) => self.workers = workers,
            Change::Slower(slower) => self.slower = slower,
            Change::Failing(failing) => self.failing = failing,
            Change::Store(there) => {
                if let Some(cluster) = &mut self.cluster {
                    cluster.there = there;
                }
            }
        }
    }

    fn tick(&mut self) {
        for gate in &mut self.gates {
            gate.tick(self.now);
        }
        self.at(self.now + TICK_NS, Event::Tick);
        self.ticks += 1;
        if self.ticks.is_multiple_of(10) {
            let limit = match &self.cluster {
                Some(cluster) => cluster.limit(),
                None => self.gates.iter().map(Gate::limit).sum(),
            };
            let limit = f64::from(limit);
            self.outcome.limits.push((self.now as f64 / 1e9, limit));
            self.in_spans(self.now, |span| {
                span.limit_sum += limit;
                span.limits += 1;
            });
        }
    }

    fn count(&mut self, time: u64, class: usize, what: impl Fn(&mut Got)) {
        self.in_spans(time, |span| what(&mut span.got[class]));
    }

    fn in_spans(&mut self, time: u64, what: impl Fn(&mut Span)) {
        let time_s = time as f64 / 1e9;
        for (span, &(from, until)) in self.outcome.spans.iter_mut().zip(&self.setup.spans) {
            if from <= time_s && time_s < until {
                what(span);
            }
        }
    }
}
