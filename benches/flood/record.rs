//! A run as it is written to a file, and read again for the table and the picture.

use crate::tally::Tally;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Run {
    pub name: String,
    pub title: String,
    pub seconds: f64,
    pub seed: u64,
    pub phases: Vec<Phase>,
    pub targets: Vec<Target>,
    pub generator: Generator,
    pub kill: Option<Kill>,
    pub samples: Vec<Sample>,
    /// The gateway's state some time after the last request was over.
    pub left: Option<Gateway>,
    pub metrics: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Phase {
    pub name: String,
    pub from_s: f64,
    pub until_s: f64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Target {
    pub name: String,
    pub classes: Vec<Class>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Class {
    pub name: String,
    /// By phase, and by second: of the requests that were due in it.
    pub phases: Vec<Counts>,
    pub by_second: Vec<Counts>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    pub asked: u64,
    pub full: u64,
    pub degraded: u64,
    pub unavailable: u64,
    pub lost: u64,
    pub killed: u64,
    pub torn: u64,
    /// Of the full answers.
    pub mean_ms: Option<f64>,
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub degraded_p50_ms: Option<f64>,
    pub degraded_p99_ms: Option<f64>,
}

/// What a run is worth.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Generator {
    pub lag_p99_ms: f64,
    /// By phase.
    pub lag_p99_by_phase_ms: Vec<f64>,
    pub lag_max_ms: f64,
    pub not_sent: u64,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Kill {
    pub at_s: f64,
    pub worker: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sample {
    pub at_s: f64,
    pub backend: Option<Backend>,
    pub gateway: Option<Gateway>,
    pub cpu: Cpu,
}

/// What the backend says of itself. All but the maximum grow from its start on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Backend {
    pub slots: usize,
    /// Requests in it, being worked on or in its line, summed over time.
    pub inside_s: f64,
    /// The most at once since the last time it was asked.
    pub most_inside: usize,
    /// Slots that worked, summed over time.
    pub working_s: f64,
    pub turned_away: u64,
    /// Times between one end and the next, and their squares, summed: how evenly slots
    /// become free.
    #[serde(default)]
    pub gaps_s: f64,
    #[serde(default)]
    pub gaps2_s2: f64,
    /// By the kind that the generator said they are of.
    pub served: BTreeMap<String, u64>,
    pub cpu_s: f64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Gateway {
    pub limit: f64,
    pub in_flight: u64,
    pub waiting: Vec<u64>,
}

/// CPU time so far.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Cpu {
    pub generator_s: f64,
    pub workers_s: BTreeMap<u32, f64>,
    pub machine_busy_s: f64,
    pub machine_all_s: f64,
}

impl From<&Tally> for Counts {
    fn from(tally: &Tally) -> Counts {
        Counts {
            asked: tally.asked,
            full: tally.full.count(),
            degraded: tally.degraded.count(),
            unavailable: tally.unavailable,
            lost: tally.lost,
            killed: tally.killed,
            torn: tally.torn,
            mean_ms: tally.full.mean_ms(),
            p50_ms: tally.full.percentile_ms(0.5),
            p95_ms: tally.full.percentile_ms(0.95),
            p99_ms: tally.full.percentile_ms(0.99),
            degraded_p50_ms: tally.degraded.percentile_ms(0.5),
            degraded_p99_ms: tally.degraded.percentile_ms(0.99),
        }
    }
}

impl Run {
    pub fn read(path: &Path) -> Result<Run, String> {
        let of = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| of(&error))?;
        serde_json::from_str(&text).map_err(|error| of(&error))
    }

    pub fn write(&self, path: &Path) -> Result<(), String> {
        let of = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = serde_json::to_string(self).map_err(|error| of(&error))?;
        std::fs::write(path, text + "\n").map_err(|error| of(&error))
    }

    /// The phase of that name.
    pub fn phase(&self, name: &str) -> Option<usize> {
        self.phases.iter().position(|phase| phase.name == name)
    }

    /// Of a class at the first target, in a phase.
    pub fn counts(&self, class: &str, phase: &str) -> Option<&Counts> {
        let classes = &self.targets.first()?.classes;
        let class = classes.iter().find(|one| one.name == class)?;
        class.phases.get(self.phase(phase)?)
    }

    /// The samples taken in a phase.
    pub fn samples_in(&self, phase: &str) -> Vec<&Sample> {
        let Some(phase) = self.phase(phase).map(|phase| &self.phases[phase]) else {
            return Vec::new();
        };
        let within = |sample: &&Sample| sample.at_s >= phase.from_s && sample.at_s < phase.until_s;
        self.samples.iter().filter(within).collect()
    }
}

impl Counts {
    pub fn share(&self, part: u64) -> f64 {
        part as f64 / self.asked.max(1) as f64
    }

    pub fn add(&mut self, other: &Counts) {
        self.asked += other.asked;
        self.full += other.full;
        self.degraded += other.degraded;
        self.unavailable += other.unavailable;
        self.lost += other.lost;
        self.killed += other.killed;
        self.torn += other.torn;
    }
}
