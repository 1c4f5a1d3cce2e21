//! The load itself, open loop: requests are due at times drawn beforehand and are sent
//! then, whether earlier ones have been answered or not, and a latency counts from the
//! time at which the request was due. How late the generator itself was is measured too;
//! a run in which that is much is worth nothing.
//!
//! One thread, since the other core belongs to what is measured, and little work for each
//! request: connections are kept (each client's its own, from its own address), requests
//! are copied from a text, answers are looked at where they were read.

use crate::answer::{self, Kind};
use crate::histogram::Histogram;
use crate::poll::{self, Poller};
use crate::random::Random;
use crate::report;
use crate::scenario::{Class, Scenario};
use crate::tally::{End, Track, second};
use crate::watch::{Killed, Watch};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Answers are read again after this many requests that were sent.
const BURST: usize = 32;
/// A connection that was cut this soon after a worker had been killed, and of which it is
/// not known which worker it was in, is taken to have been in that one.
const AFTER_KILL: Duration = Duration::from_secs(1);

/// Everything measured, `tracks[target][class]`.
pub struct Results {
    pub tracks: Vec<Vec<Track>>,
    /// How late requests were sent, by the second in which they were due.
    pub lag: Vec<Histogram>,
    /// Requests that this machine would not let go out: no descriptor, no port.
    pub not_sent: u64,
}

/// A connection. Kept in a slot that is used again, under another generation.
struct Connection {
    stream: TcpStream,
    generation: u32,
    target: usize,
    class: usize,
    client: u32,
    /// It has had an answer.
    used: bool,
    /// The worker it is in, where an answer has said so.
    worker: Option<u32>,
    request: Option<Request>,
    /// What was read of an answer that is not complete.
    read: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Request {
    serial: u64,
    due_us: u64,
    n: u32,
    sent: bool,
    again: bool,
}

/// Which request has to be over when. The same request may have moved to another connection.
#[derive(Clone, Copy)]
struct Deadline {
    at_us: u64,
    serial: u64,
    slot: usize,
}

/// The text of a class's requests around what differs.
struct Text {
    parts: Vec<Part>,
}

enum Part {
    Fixed(Vec<u8>),
    N,
    Client,
}

struct Load {
    scenario: Scenario,
    texts: Vec<Text>,
    poller: Poller,
    start: Instant,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Slots of connections that no request is on: `[target][class][client]`.
    idle: Vec<Vec<Vec<Vec<usize>>>>,
    /// By class, in the order of their times.
    deadlines: Vec<VecDeque<Deadline>>,
    tears: Vec<VecDeque<Deadline>>,
    next_serial: u64,
    next_generation: u32,
    under_way: u64,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    killed: Arc<Killed>,
    results: Results,
}

pub fn run(scenario: Scenario) -> Result<(), String> {
    // Some room, so that the first is not late.
    let start = Instant::now() + Duration::from_millis(50);
    let watch = Watch::begin(&scenario, start);
    let mut load = Load::new(scenario, start, watch.killed.clone())
        .map_err(|error| format!("no load: {error}"))?;
    load.all().map_err(|error| format!("the load: {error}"))?;
    report::finish(&load.scenario, &load.results, watch.end())
}

impl Load {
    fn new(scenario: Scenario, start: Instant, killed: Arc<Killed>) -> io::Result<Load> {
        let nobody = |class: &Class| vec![Vec::new(); class.clients as usize];
        let per_class = |_: &Class| VecDeque::new();
        let tracks = |_: &_| scenario.classes.iter().map(|_| Track::default()).collect();
        Ok(Load {
            texts: scenario.classes.iter().map(Text::new).collect(),
            poller: Poller::new()?,
            start,
            connections: Vec::new(),
            free: Vec::new(),
            idle: scenario
                .targets
                .iter()
                .map(|_| scenario.classes.iter().map(nobody).collect())
                .collect(),
            deadlines: scenario.classes.iter().map(per_class).collect(),
            tears: scenario.classes.iter().map(per_class).collect(),
            next_serial: 0,
            next_generation: 0,
            under_way: 0,
            outgoing: Vec::new(),
            incoming: vec![0; 64 * 1024],
            killed,
            results: Results {
                tracks: scenario.targets.iter().map(tracks).collect(),
                lag: Vec::new(),
                not_sent: 0,
            },
            scenario,
        })
    }

    fn now_us(&self) -> u64 {
        Instant::now()
            .saturating_duration_since(self.start)
            .as_micros() as u64
    }

    /// Everything that is due, until the last of it is over.
    fn all(&mut self) -> io::Result<()> {
        let mut random = Random::new(self.scenario.seed);
        let mut screen = report::Screen::new(self.scenario.plain);
        // When the next of each class is due, in seconds.
        let mut next: Vec<f64> = self
            .scenario
            .classes
            .iter()
            .map(|class| class.from_s + random.exponential(1.0 / class.rate))
            .collect();
        let mut shown_s = 0;
        let mut tokens = Vec::new();
        loop {
            let mut soonest_us = None;
            for _ in 0..BURST {
                soonest_us = None;
                let class = (0..next.len()).min_by(|&a, &b| next[a].total_cmp(&next[b]));
                let Some(class) = class.filter(|&class| next[class] < self.scenario.seconds) else {
                    break;
                };
                let due_us = (next[class] * 1e6) as u64;
                let now_us = self.now_us();
                soonest_us = Some(due_us);
                if due_us > now_us {
                    break;
                }
                let kind = &self.scenario.classes[class];
                next[class] += random.exponential(1.0 / kind.rate);
                if next[class] >= kind.until_s {
                    next[class] = f64::INFINITY;
                }
                let client = random.below(kind.clients);
                let n = random.below(1000);
                second(&mut self.results.lag, due_us).record(now_us - due_us);
                for target in 0..self.scenario.targets.len() {
                    self.begin(target, class, client, n, due_us);
                }
            }
            let now_us = self.now_us();
            self.give_up(now_us);
            if soonest_us.is_none() && self.under_way == 0 {
                return Ok(());
            }
            let now_s = now_us / 1_000_000;
            if now_s > shown_s {
                shown_s = now_s;
                screen.show(&self.scenario, &self.results, now_s as usize);
            }
            let first = |queues: &[VecDeque<Deadline>]| {
                let fronts = queues.iter().filter_map(VecDeque::front);
                fronts.map(|deadline| deadline.at_us).min()
            };
            let until_us = [soonest_us, first(&self.deadlines), first(&self.tears)]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(now_us)
                .min((now_s + 1) * 1_000_000);
            let longest = Duration::from_micros(until_us.saturating_sub(now_us));
            self.poller.wait(longest, &mut tokens)?;
            for &token in &tokens {
                self.happened(token);
            }
        }
    }

    fn begin(&mut self, target: usize, class: usize, client: u32, n: u32, due_us: u64) {
        let request = Request {
            serial: self.next_serial,
            due_us,
            n,
            sent: false,
            again: false,
        };
        self.next_serial += 1;
        self.under_way += 1;
        let slot = match self.idle[target][class][client as usize].pop() {
            Some(slot) => Some(slot),
            None => self.connect(target, class, client),
        };
        let Some(slot) = slot else {
            return self.over(target, class, &request, End::Unavailable);
        };
        let kind = &self.scenario.classes[class];
        self.deadlines[class].push_back(Deadline {
            at_us: due_us + kind.timeout.as_micros() as u64,
            serial: request.serial,
            slot,
        });
        if let Some(torn) = kind.torn {
            let now_us = self.now_us();
            self.tears[class].push_back(Deadline {
                at_us: now_us + torn.as_micros() as u64,
                serial: request.serial,
                slot,
            });
        }
        if let Some(connection) = &mut self.connections[slot] {
            connection.request = Some(request);
        }
        self.send(slot);
    }

    /// A new connection, in a slot of its own.
    fn connect(&mut self, target: usize, class: usize, client: u32) -> Option<usize> {
        let from = self.scenario.classes[class].address(client);
        let to = self.scenario.targets[target].address;
        let stream = match poll::connect(from, to) {
            Ok(stream) => stream,
            Err(error) => {
                if error.kind() != ErrorKind::ConnectionRefused {
                    self.results.not_sent += 1;
                }
                return None;
            }
        };
        let slot = self.free.pop().unwrap_or(self.connections.len());
        let generation = self.next_generation;
        self.next_generation = self.next_generation.wrapping_add(1);
        let token = (u64::from(generation) << 32) | slot as u64;
        if self.poller.add(&stream, token).is_err() {
            self.results.not_sent += 1;
            self.free.push(slot);
            return None;
        }
        if slot == self.connections.len() {
            self.connections.push(None);
        }
        self.connections[slot] = Some(Connection {
            stream,
            generation,
            target,
            class,
            client,
            used: false,
            worker: None,
            request: None,
            read: Vec::new(),
        });
        Some(slot)
    }

    /// Sends the request that is on a connection, if it can be sent already.
    fn send(&mut self, slot: usize) {
        let Some(connection) = &mut self.connections[slot] else {
            return;
        };
        let Some(request) = &mut connection.request else {
            return;
        };
        if request.sent {
            return;
        }
        self.outgoing.clear();
        self.texts[connection.class].write(&mut self.outgoing, request.n, connection.client);
        match connection.stream.write(&self.outgoing) {
            // Some hundred bytes into an empty buffer: all of them.
            Ok(_) => request.sent = true,
            Err(error) if not_yet(&error) => {}
            Err(error) => self.cut(slot, Some(&error)),
        }
    }

    fn happened(&mut self, token: u64) {
        let (generation, slot) = ((token >> 32) as u32, token as u32 as usize);
        if !matches!(&self.connections[slot], Some(one) if one.generation == generation) {
            return;
        }
        self.send(slot);
        loop {
            let Some(connection) = &mut self.connections[slot] else {
                return;
            };
            let length = match connection.stream.read(&mut self.incoming) {
                Ok(length) => length,
                Err(error) if not_yet(&error) => return,
                Err(error) => return self.cut(slot, Some(&error)),
            };
            if connection.request.is_none() {
                // Closed while nothing was asked; or an answer to nothing.
                return self.cut(slot, None);
            }
            let bytes = if connection.read.is_empty() {
                &self.incoming[..length]
            } else {
                connection.read.extend_from_slice(&self.incoming[..length]);
                &connection.read
            };
            match answer::parse(bytes, length == 0) {
                Ok(Some(answer)) => {
                    let clean = answer.length == bytes.len();
                    return self.answered(slot, answer, clean);
                }
                Ok(None) if length > 0 => {
                    if connection.read.is_empty() {
                        connection.read.extend_from_slice(&self.incoming[..length]);
                    }
                }
                Ok(None) | Err(answer::Malformed) => return self.cut(slot, None),
            }
        }
    }

    fn answered(&mut self, slot: usize, answer: answer::Answer, clean: bool) {
        let Some(connection) = &mut self.connections[slot] else {
            return;
        };
        let Some(request) = connection.request.take() else {
            return;
        };
        let (target, class) = (connection.target, connection.class);
        connection.used = true;
        connection.worker = answer.worker.or(connection.worker);
        connection.read.clear();
        let kind = &self.scenario.classes[class];
        if answer.keep && clean && !kind.close && kind.torn.is_none() {
            self.idle[target][class][connection.client as usize].push(slot);
        } else {
            self.close(slot);
        }
        let end = match answer.kind {
            Kind::Full => End::Full,
            Kind::Degraded => End::Degraded,
            Kind::Unavailable => End::Unavailable,
        };
        self.over(target, class, &request, end);
    }

    /// A connection has ended before an answer to what was on it, if anything was.
    fn cut(&mut self, slot: usize, error: Option<&io::Error>) {
        let Some(connection) = self.close(slot) else {
            return;
        };
        let (target, class) = (connection.target, connection.class);
        let Some(mut request) = connection.request else {
            self.idle[target][class][connection.client as usize].retain(|&other| other != slot);
            return;
        };
        let killed = match (connection.worker, self.killed.get()) {
            (_, None) => false,
            (Some(worker), Some((pid, _))) => worker == pid,
            (None, Some((_, at))) => at.elapsed() < AFTER_KILL,
        };
        if killed {
            return self.over(target, class, &request, End::Killed);
        }
        // The server had closed a kept connection before it saw this request: browsers
        // send it again, once.
        if connection.used && connection.read.is_empty() && !request.again {
            let Some(slot) = self.connect(target, class, connection.client) else {
                return self.over(target, class, &request, End::Unavailable);
            };
            (request.again, request.sent) = (true, false);
            if let Some(connection) = &mut self.connections[slot] {
                connection.request = Some(request);
            }
            for queue in [&mut self.deadlines[class], &mut self.tears[class]] {
                let its = queue
                    .iter_mut()
                    .find(|deadline| deadline.serial == request.serial);
                its.into_iter().for_each(|deadline| deadline.slot = slot);
            }
            return self.send(slot);
        }
        let end = match error.map(io::Error::kind) {
            Some(ErrorKind::ConnectionRefused) => End::Unavailable,
            // Never accepted: as good as refused.
            Some(ErrorKind::ConnectionReset) if !request.sent => End::Unavailable,
            _ => End::Lost,
        };
        self.over(target, class, &request, end);
    }

    /// What is out of time, and what its client gives up by intention.
    fn give_up(&mut self, now_us: u64) {
        for class in 0..self.deadlines.len() {
            while let Some(deadline) = past(&mut self.deadlines[class], now_us) {
                self.end(deadline, End::Lost);
            }
            while let Some(deadline) = past(&mut self.tears[class], now_us) {
                self.end(deadline, End::Torn);
            }
        }
    }

    fn end(&mut self, deadline: Deadline, end: End) {
        let Some(connection) = &self.connections[deadline.slot] else {
            return;
        };
        let (target, class) = (connection.target, connection.class);
        let Some(request) = connection.request else {
            return;
        };
        // Over already, and the connection used for another.
        if request.serial != deadline.serial {
            return;
        }
        if let Some(connection) = self.close(deadline.slot) {
            // Half of those that give up do so politely.
            if end == End::Torn && request.serial.is_multiple_of(2) {
                poll::reset(connection.stream);
            }
        }
        self.over(target, class, &request, end);
    }

    fn close(&mut self, slot: usize) -> Option<Connection> {
        let connection = self.connections[slot].take()?;
        self.free.push(slot);
        Some(connection)
    }

    fn over(&mut self, target: usize, class: usize, request: &Request, end: End) {
        self.under_way -= 1;
        let now_us = self.now_us();
        self.results.tracks[target][class].record(end, request.due_us, now_us);
    }
}

fn past(queue: &mut VecDeque<Deadline>, now_us: u64) -> Option<Deadline> {
    if queue.front()?.at_us > now_us {
        return None;
    }
    queue.pop_front()
}

fn not_yet(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotConnected
    )
}

impl Text {
    fn new(class: &Class) -> Text {
        let mut text = format!(
            "{} {} HTTP/1.1\r\nHost: shop.test\r\n",
            class.method, class.path
        );
        for header in &class.headers {
            text.push_str(header);
            text.push_str("\r\n");
        }
        if class.close {
            text.push_str("Connection: close\r\n");
        }
        if class.method == "POST" {
            text.push_str("Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
        } else {
            text.push_str("\r\n");
        }
        let mut parts = Vec::new();
        let mut rest = text.as_str();
        while let Some((at, word, part)) = [("{n}", Part::N), ("{client}", Part::Client)]
            .into_iter()
            .filter_map(|(word, part)| Some((rest.find(word)?, word, part)))
            .min_by_key(|&(at, ..)| at)
        {
            parts.push(Part::Fixed(rest.as_bytes()[..at].to_vec()));
            parts.push(part);
            rest = &rest[at + word.len()..];
        }
        parts.push(Part::Fixed(rest.as_bytes().to_vec()));
        Text { parts }
    }

    fn write(&self, to: &mut Vec<u8>, n: u32, client: u32) {
        for part in &self.parts {
            match part {
                Part::Fixed(text) => to.extend_from_slice(text),
                // Into memory: cannot fail.
                Part::N => drop(write!(to, "{n}")),
                Part::Client => drop(write!(to, "{client}")),
            }
        }
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
