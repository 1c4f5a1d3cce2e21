//! Tables, and what of them is judged.
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::scenario::{Played, Scenario};

/// Over the seeds of one scenario, or of several.
#[derive(Clone, Default)]
pub struct Figures(pub Vec<f64>);

impl Figures {
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    pub fn most(&self) -> f64 {
        self.0.iter().copied().fold(f64::MIN, f64::max)
    }

    pub fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::MAX, f64::min)
    }
}

/// A scenario with all its seeds.
pub struct Result {
    pub scenario: Scenario,
    pub seeds: Vec<Played>,
}

impl Result {
    pub fn over(&self, figure: impl Fn(&Played) -> f64) -> Figures {
        Figures(self.seeds.iter().map(figure).collect())
    }
}

pub struct Report {
    /// A short run shows, and judges nothing.
    pub short: bool,
    pub seeds: u64,
    missed: Vec<String>,
    judged: u32,
}

impl Report {
    pub fn new(short: bool) -> Report {
        Report {
            short,
            seeds: if short { 2 } else { 7 },
            missed: Vec::new(),
            judged: 0,
        }
    }

    /// Plays all on as many threads as there are processors.
    pub fn play(&self, scenarios: Vec<Scenario>) -> Vec<Result> {
        let jobs = scenarios.len() * self.seeds as usize;
        let next = AtomicUsize::new(0);
        let done: Vec<Mutex<Option<Played>>> = (0..jobs).map(|_| Mutex::new(None)).collect();
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        // Only numbers the jobs: nothing is published by it.
                        let job = next.fetch_add(1, Ordering::Relaxed);
                        let Some(slot) = done.get(job) else {
                            return;
                        };
                        let scenario = &scenarios[job / self.seeds as usize];
                        let played = scenario.play(job as u64 % self.seeds);
                        *slot.lock().expect("no player panics") = Some(played);
                    }
                });
            }
        });
        let mut done = done.into_iter().map(|slot| {
            let played = slot.into_inner().expect("no player panics");
            played.expect("every job is played")
        });
        scenarios
            .into_iter()
            .map(|scenario| Result {
                scenario,
                seeds: done.by_ref().take(self.seeds as usize).collect(),
            })
            .collect()
    }

    pub fn title(&self, title: &str) {
        println!("\n{title}");
    }

    /// The usual columns.
    pub fn head(&self) {
        println!(
            "{:<22} {:>3} {:<10} {:<9} | {:>7} {:>7} | {:>7} {:>7} | {:>6} {:>6} | {:>6} {:>5} {:>6}",
            "scenario",
            "K",
            "service",
            "limit",
            "core",
            "worst",
            "5 s",
            "worst",
            "C",
            "worst",
            "L",
            "other",
            "shed"
        );
    }

    pub fn row(&self, name: &str, result: &Result) {
        let it = &result.scenario;
        let core = result.over(|seed| seed.ratio(1));
        let first = result.over(|seed| seed.ratio(0));
        let work = result.over(|seed| seed.throughput(1, it.workers));
        println!(
            "{:<22} {:>3} {:<10} {:<9} | x{:>6.3} x{:>6.3} | x{:>6.3} x{:>6.3} | {:>5.1}% {:>5.1}% | {:>6.1} {:>4.0}% {:>6}",
            name,
            it.workers,
            it.shape.name(),
            it.limit.name(),
            core.mean(),
            core.most(),
            first.mean(),
            first.most(),
            100.0 * work.mean(),
            100.0 * work.least(),
            result.over(|seed| seed.mean_limit(1)).mean(),
            100.0 * result.over(|seed| seed.other_served(1)).mean(),
            result.seeds.iter().map(Played::core_shed).sum::<u64>(),
        );
    }

    /// A goal: shown with what was measured, and judged in a full run.
    pub fn at_most(&mut self, what: &str, measured: f64, goal: f64) {
        self.judge(what, measured, goal, measured <= goal, "at most");
    }

    pub fn at_least(&mut self, what: &str, measured: f64, goal: f64) {
        self.judge(what, measured, goal, measured >= goal, "at least");
    }

    fn judge(&mut self, what: &str, measured: f64, goal: f64, met: bool, how: &str) {
        let verdict = if met { "ok    " } else { "MISSED" };
        let line = format!("{verdict} {what}: {measured:.3}, {how} {goal}");
        println!("  {line}");
        self.judged += 1;
        if !met {
            self.missed.push(line);
        }
    }

    /// What was reached elsewhere, or is wanted: beside what was measured, not judged.
    pub fn known(&self, what: &str, measured: &str, known: &str) {
        println!("  known  {what}: {measured}; {known}");
    }

    pub fn end(self) -> std::process::ExitCode {
        println!(
            "\n{} goals, {} missed{}",
            self.judged,
            self.missed.len(),
            if self.short {
                " (a short run: not judged)"
            } else {
                ""
            }
        );
        for line in &self.missed {
            println!("  {line}");
        }
        if self.missed.is_empty() || self.short {
            std::process::ExitCode::SUCCESS
        } else {
            std::process::ExitCode::FAILURE
        }
    }
}
