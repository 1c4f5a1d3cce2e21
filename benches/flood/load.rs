//! The load itself, open loop: requests are due at times drawn beforehand and are sent
//! then, whether earlier ones have been answered or not, and a latency counts from the
//! time at which the request was due. How late the generator itself was is measured too;
//! a run in which that is much is worth nothing.

use crate::histogram::Histogram;
use crate::http::{Answer, Connection};
use crate::random::Random;
use crate::report;
use crate::scenario::{Class, Scenario};
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// What became of requests: of one class, at one target, due (or over) in one second.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    pub over: u64,
    /// Answered below 400, with the times.
    pub served: u64,
    pub times: Histogram,
    /// Answered 4xx.
    pub refused: u64,
    /// Answered 5xx.
    pub failed: u64,
    /// Not answered: no connection, cut off, or out of time.
    pub lost: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.over += other.over;
        self.served += other.served;
        self.times.add(&other.times);
        self.refused += other.refused;
        self.failed += other.failed;
        self.lost += other.lost;
    }
}

/// One class at one target.
#[derive(Default)]
pub struct Track {
    /// By the second in which requests were due.
    by_due: Vec<Tally>,
    /// By the second in which they were over.
    by_over: Vec<Tally>,
    pub under_way: u64,
}

impl Track {
    /// Requests that were due from and before the given seconds.
    pub fn due(&self, from_s: usize, until_s: usize) -> Tally {
        sum(&self.by_due, from_s, until_s)
    }

    /// Requests that were over from and before the given seconds.
    pub fn over(&self, from_s: usize, until_s: usize) -> Tally {
        sum(&self.by_over, from_s, until_s)
    }
}

fn sum(seconds: &[Tally], from_s: usize, until_s: usize) -> Tally {
    let mut all = Tally::default();
    seconds
        .iter()
        .take(until_s)
        .skip(from_s)
        .for_each(|second| all.add(second));
    all
}

fn at(seconds: &mut Vec<Tally>, second: usize) -> &mut Tally {
    if seconds.len() <= second {
        seconds.resize_with(second + 1, Tally::default);
    }
    &mut seconds[second]
}

/// Everything measured, `tracks[target][class]`.
pub struct Results {
    pub tracks: Vec<Vec<Track>>,
    pub lag: Histogram,
}

struct Run {
    scenario: Scenario,
    start: Instant,
    results: RefCell<Results>,
    /// Open connections that no request is on: `[target][class][client]`.
    idle: RefCell<Vec<Vec<Vec<Vec<Connection>>>>>,
}

enum End {
    Answered(u16),
    Lost,
}

pub fn run(scenario: Scenario) -> Result<(), String> {
    crate::on_this_thread(async {
        let empty = |_: &_| scenario.classes.iter().map(|_| Track::default()).collect();
        let nobody = |class: &Class| (0..class.clients).map(|_| Vec::new()).collect();
        let run = Rc::new(Run {
            // Some room, so that the first is not late.
            start: Instant::now() + Duration::from_millis(50),
            results: RefCell::new(Results {
                tracks: scenario.targets.iter().map(empty).collect(),
                lag: Histogram::default(),
            }),
            idle: RefCell::new(
                scenario
                    .targets
                    .iter()
                    .map(|_| scenario.classes.iter().map(nobody).collect())
                    .collect(),
            ),
            scenario,
        });
        let screen = tokio::task::spawn_local(run.clone().watch());
        run.clone().send_all().await;
        run.drain().await;
        screen.abort();
        report::finish(&run.scenario, &run.results.borrow())
    })?
}

impl Run {
    async fn send_all(self: Rc<Self>) {
        let mut random = Random::new(self.scenario.seed);
        let classes = &self.scenario.classes;
        // When the next of each class is due, in seconds.
        let mut next: Vec<f64> = classes
            .iter()
            .map(|class| class.from_s + random.exponential(1.0 / class.rate))
            .collect();
        loop {
            let soonest = (0..classes.len()).min_by(|&a, &b| next[a].total_cmp(&next[b]));
            let Some(class) = soonest.filter(|&class| next[class] < self.scenario.seconds) else {
                return;
            };
            let due_s = next[class];
            next[class] += random.exponential(1.0 / classes[class].rate);
            if next[class] >= classes[class].until_s {
                next[class] = f64::INFINITY;
            }
            let due = self.start + Duration::from_secs_f64(due_s);
            // The timer's step is a millisecond; what is due already does not wait.
            if due > Instant::now() {
                sleep_until(due).await;
            }
            let late = Instant::now().saturating_duration_since(due);
            self.results
                .borrow_mut()
                .lag
                .record(late.as_micros() as u64);
            let client = random.below(classes[class].clients);
            let n = random.below(1000);
            for target in 0..self.scenario.targets.len() {
                self.results.borrow_mut().tracks[target][class].under_way += 1;
                tokio::task::spawn_local(self.clone().one(target, class, client, n, due));
            }
        }
    }

    async fn one(self: Rc<Self>, target: usize, class: usize, client: u32, n: u32, due: Instant) {
        let kind = &self.scenario.classes[class];
        let end =
            match timeout_at(due + kind.timeout, self.exchange(target, class, client, n)).await {
                Ok(Ok(status)) => End::Answered(status),
                Ok(Err(_)) | Err(_) => End::Lost,
            };
        let now = Instant::now();
        let mut results = self.results.borrow_mut();
        let track = &mut results.tracks[target][class];
        track.under_way -= 1;
        let took_us = now.saturating_duration_since(due).as_micros() as u64;
        let due_s = due.saturating_duration_since(self.start).as_secs() as usize;
        let over_s = now.saturating_duration_since(self.start).as_secs() as usize;
        for tally in [at(&mut track.by_due, due_s), at(&mut track.by_over, over_s)] {
            tally.over += 1;
            match end {
                End::Answered(status) if status < 400 => {
                    tally.served += 1;
                    tally.times.record(took_us);
                }
                End::Answered(status) if status < 500 => tally.refused += 1,
                End::Answered(_) => tally.failed += 1,
                End::Lost => tally.lost += 1,
            }
        }
    }

    /// One request and its answer, on a connection of that client's.
    async fn exchange(&self, target: usize, class: usize, client: u32, n: u32) -> io::Result<u16> {
        let kind = &self.scenario.classes[class];
        let address = self.scenario.targets[target].address;
        let request = request(kind, address, client, n);
        loop {
            let kept = self.idle.borrow_mut()[target][class][client as usize].pop();
            let fresh = kept.is_none();
            let mut connection = match kept {
                Some(connection) => connection,
                None => connect(kind, address, client).await?,
            };
            match attempt(&mut connection, &request).await {
                Ok(Some(Answer { status, keep })) => {
                    if keep && !kind.close {
                        self.idle.borrow_mut()[target][class][client as usize].push(connection);
                    }
                    return Ok(status);
                }
                // The server had closed a kept connection before it saw this request.
                Ok(None) | Err(_) if !fresh => continue,
                Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Until everything that was sent is over; each has its own time limit.
    async fn drain(&self) {
        let busy = || {
            let results = self.results.borrow();
            results
                .tracks
                .iter()
                .flatten()
                .any(|track| track.under_way > 0)
        };
        while busy() {
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn watch(self: Rc<Self>) {
        let mut screen = report::Screen::new(self.scenario.plain);
        loop {
            let second = self.start.elapsed().as_secs();
            sleep_until(self.start + Duration::from_secs(second + 1)).await;
            screen.show(&self.scenario, &self.results.borrow(), second as usize + 1);
        }
    }
}

fn request(class: &Class, address: SocketAddr, client: u32, n: u32) -> String {
    let fill = |text: &str| {
        text.replace("{n}", &n.to_string())
            .replace("{client}", &client.to_string())
    };
    let mut text = format!(
        "{} {} HTTP/1.1\r\nHost: {address}\r\n",
        class.method,
        fill(&class.path)
    );
    for header in &class.headers {
        text.push_str(&fill(header));
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
    text
}

async fn connect(class: &Class, to: SocketAddr, client: u32) -> io::Result<Connection> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(class.address(client).into(), 0))?;
    Ok(Connection::new(socket.connect(to).await?))
}

async fn attempt(connection: &mut Connection, request: &str) -> io::Result<Option<Answer>> {
    connection.write(request.as_bytes()).await?;
    connection.answer().await
}
