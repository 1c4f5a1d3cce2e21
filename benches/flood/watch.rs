//! Beside the load, in a thread of its own and twice a second: what the backend and the
//! gateway say of themselves, and how much of the machine each of them takes. And the
//! killing of a worker, where a run has that.

use crate::poll;
use crate::record::{Backend, Cpu, Gateway, Kill, Sample};
use crate::scenario::Scenario;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_millis(500);
/// Longer than this nobody is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long after the last request a gateway should hold nothing any more.
const AFTER_ALL: Duration = Duration::from_secs(2);
/// What /proc counts in; it is the same on every Linux.
const TICKS_PER_S: f64 = 100.0;

/// The worker that was killed, and when.
#[derive(Default)]
pub struct Killed(OnceLock<(u32, Instant)>);

impl Killed {
    #[cfg(test)]
    pub fn of(worker: u32) -> Killed {
        Killed(OnceLock::from((worker, Instant::now())))
    }

    pub fn get(&self) -> Option<(u32, Instant)> {
        self.0.get().copied()
    }
}

/// All that was seen.
#[derive(Default)]
pub struct Seen {
    pub samples: Vec<Sample>,
    pub kill: Option<Kill>,
    /// The gateway's state some time after the last request was over.
    pub left: Option<Gateway>,
    /// The gateway's metrics at the end, as it gave them.
    pub metrics: String,
}

pub struct Watch {
    pub killed: Arc<Killed>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

impl Watch {
    pub fn begin(scenario: &Scenario, start: Instant) -> Watch {
        let killed = Arc::new(Killed::default());
        let stop = Arc::new(AtomicBool::new(false));
        let (scenario, its) = (scenario.clone(), (killed.clone(), stop.clone()));
        let thread = thread::spawn(move || watch(&scenario, start, &its.0, &its.1));
        Watch {
            killed,
            stop,
            thread,
        }
    }

    pub fn end(self) -> Seen {
        // Relaxed: nothing but the word itself is handed over.
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn watch(scenario: &Scenario, start: Instant, killed: &Killed, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut next = start;
    // Relaxed: see above.
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        next += EVERY;
        let at_s = start.elapsed().as_secs_f64();
        let workers = scenario.nginx.map(children).unwrap_or_default();
        if scenario.kill_s.is_some_and(|kill_s| at_s >= kill_s) && killed.get().is_none() {
            seen.kill = kill(&seen.samples, &workers, killed).map(|worker| Kill { at_s, worker });
        }
        let backend = scenario.shop.and_then(backend);
        seen.samples.push(Sample {
            // When the backend has answered, by whose counts rates are reckoned.
            at_s: start.elapsed().as_secs_f64(),
            backend,
            gateway: scenario.status.and_then(gateway),
            cpu: cpu(&workers),
        });
    }
    if let Some(status) = scenario.status {
        // Whatever was given up has left the backend by then.
        thread::sleep(AFTER_ALL);
        seen.left = gateway(status);
        seen.metrics = get(status, "/metrics").unwrap_or_default();
    }
    seen
}

/// Kills the worker that has worked most in the last second.
fn kill(samples: &[Sample], workers: &[u32], killed: &Killed) -> Option<u32> {
    let before = samples.iter().rev().nth(1);
    let busy = |pid: &u32| {
        let was = before.and_then(|sample| sample.cpu.workers_s.get(pid));
        cpu_s(*pid).unwrap_or(0.0) - was.unwrap_or(&0.0)
    };
    let worker = *workers.iter().max_by(|a, b| busy(a).total_cmp(&busy(b)))?;
    // First the word, since its connections end at once.
    let _ = killed.0.set((worker, Instant::now()));
    poll::kill(worker).ok()?;
    Some(worker)
}

fn backend(address: SocketAddrV4) -> Option<Backend> {
    serde_json::from_str(&get(address, "/-/stats").ok()?).ok()
}

/// The first pool's state.
fn gateway(address: SocketAddrV4) -> Option<Gateway> {
    let status: serde_json::Value = serde_json::from_str(&get(address, "/status").ok()?).ok()?;
    let pool = status.get("pools")?.get(0)?;
    Some(Gateway {
        limit: pool.get("limit")?.as_f64()?,
        in_flight: pool.get("in_flight")?.as_u64()?,
        waiting: pool
            .get("waiting")?
            .as_array()?
            .iter()
            .filter_map(serde_json::Value::as_u64)
            .collect(),
    })
}

fn get(address: SocketAddrV4, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::V4(address), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // With 1.0 nobody sends chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: shop.test\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    body.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

// --- how much of the machine ----------------------------------------------------------------

/// The numbers of /proc/PID/stat from the third on: what comes before may hold blanks.
fn stat(pid: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split(' ').map(str::to_owned).collect())
}

fn ticks_s(stat: &[String]) -> Option<f64> {
    // utime and stime, fields 14 and 15.
    let ticks = |at: usize| stat.get(at - 3)?.parse::<f64>().ok();
    Some((ticks(14)? + ticks(15)?) / TICKS_PER_S)
}

fn cpu_s(pid: u32) -> Option<f64> {
    ticks_s(&stat(&pid.to_string())?)
}

/// CPU time of this process so far.
pub fn own_cpu_s() -> f64 {
    stat("self").and_then(|stat| ticks_s(&stat)).unwrap_or(0.0)
}

fn children(of: u32) -> Vec<u32> {
    let of = of.to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        // The parent is the second of them.
        .filter(|pid| stat(&pid.to_string()).is_some_and(|stat| stat.get(1) == Some(&of)))
        .collect()
}

fn cpu(workers: &[u32]) -> Cpu {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let machine: Vec<f64> = text
        .lines()
        .next()
        .unwrap_or("")
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|ticks| Some(ticks.parse::<f64>().ok()? / TICKS_PER_S))
        .collect();
    let all: f64 = machine.iter().sum();
    let idle: f64 = machine.iter().skip(3).take(2).sum();
    let workers_s: BTreeMap<u32, f64> = workers
        .iter()
        .filter_map(|&pid| Some((pid, cpu_s(pid)?)))
        .collect();
    Cpu {
        generator_s: own_cpu_s(),
        workers_s,
        machine_busy_s: all - idle,
        machine_all_s: all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_working() {
        let before = own_cpu_s();
        let begun = Instant::now();
        let mut sum = 0u64;
        while own_cpu_s() < before + 0.05 && begun.elapsed() < Duration::from_secs(20) {
            sum = (0..1_000_000).fold(sum, u64::wrapping_add);
        }
        assert!(own_cpu_s() >= before + 0.05, "{sum}");
        let all = cpu(&[std::process::id()]);
        assert!(all.machine_busy_s > 0.0 && all.machine_all_s >= all.machine_busy_s);
        assert!(all.workers_s[&std::process::id()] > 0.0);
    }

    #[test]
    fn children_are_found() {
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .unwrap();
        assert!(children(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
