//! What a person sees: a live table of the last seconds, and at the end one for each
//! phase; and the whole run as a file.

use crate::load::Results;
use crate::record::{Class, Counts, Generator, Phase, Run, Target};
use crate::scenario::Scenario;
use crate::tally::Tally;
use crate::watch::Seen;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

/// The live table is over this many seconds.
const WINDOW_S: usize = 5;

/// A generator later than this at the 99th percentile measured itself.
pub const LAG_P99_MAX_MS: f64 = 5.0;

pub struct Screen {
    terminal: bool,
}

impl Screen {
    pub fn new(plain: bool) -> Screen {
        Screen {
            terminal: !plain && std::io::stdout().is_terminal(),
        }
    }

    /// Called once a second.
    pub fn show(&mut self, scenario: &Scenario, results: &Results, second: usize) {
        let mut text = String::new();
        if self.terminal {
            text.push_str("\x1b[H\x1b[2J");
        } else if scenario.quiet || !second.is_multiple_of(WINDOW_S) {
            return;
        }
        let over = second as f64 > scenario.seconds;
        let name = scenario
            .phases
            .iter()
            .rev()
            .find(|phase| phase.from_s < second as f64)
            .map_or("", |phase| &phase.name);
        let when = if over {
            "waiting for the last answers"
        } else {
            name
        };
        let _ = writeln!(text, "{}", scenario.title);
        let _ = writeln!(
            text,
            "second {second} of {}: {when}; the last {WINDOW_S} seconds\n",
            scenario.seconds
        );
        let from = second.saturating_sub(WINDOW_S);
        text.push_str(&table(scenario, (second - from) as f64, |target, class| {
            results.tracks[target][class].over(from, second)
        }));
        if let Some(note) = &scenario.note
            && let Ok(lines) = std::fs::read_to_string(note)
        {
            let lines: Vec<&str> = lines.lines().collect();
            text.push('\n');
            for line in &lines[lines.len().saturating_sub(8)..] {
                let _ = writeln!(text, "{line}");
            }
        }
        print(&text);
    }
}

/// The final tables, and the file.
pub fn finish(scenario: &Scenario, results: &Results, seen: Seen) -> Result<(), String> {
    let run = record(scenario, results, seen);
    let mut text = String::new();
    if std::io::stdout().is_terminal() && !scenario.plain {
        text.push_str("\x1b[H\x1b[2J");
    }
    let _ = writeln!(text, "{}", scenario.title);
    for (phase, named) in run.phases.iter().enumerate() {
        let (from, until) = scenario.span_s(phase);
        if from >= until || scenario.quiet {
            continue;
        }
        let _ = writeln!(text, "\nSeconds {from} to {until}: {}\n", named.name);
        text.push_str(&table(scenario, until - from, |target, class| {
            results.tracks[target][class].due(from as usize, until as usize)
        }));
    }
    let lag = run.generator.lag_p99_ms;
    let verdict = if lag > LAG_P99_MAX_MS {
        ": too much, these numbers do not count"
    } else {
        ""
    };
    let _ = writeln!(
        text,
        "\nThe generator itself was late by p99 {lag:.1} ms{verdict}"
    );
    print(&text);
    match &scenario.json {
        Some(path) => run.write(path),
        None => Ok(()),
    }
}

fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

fn table(scenario: &Scenario, seconds: f64, tally: impl Fn(usize, usize) -> Tally) -> String {
    let mut text = format!("{:22}", "");
    for target in &scenario.targets {
        let _ = write!(text, "   {:<36}", format!("{}:", target.name));
    }
    let _ = write!(text, "\n{:13}{:>9}", "", "asked /s");
    for _ in &scenario.targets {
        let _ = write!(
            text,
            "   {:>8}{:>10}{:>9}{:>9}",
            "in full", "degraded", "median", "p95"
        );
    }
    text.push('\n');
    for (class, named) in scenario.classes.iter().enumerate() {
        for target in 0..scenario.targets.len() {
            let sum = tally(target, class);
            if target == 0 {
                let rate = sum.asked as f64 / seconds;
                let _ = write!(text, "{:13}{rate:>9.0}", named.name);
            }
            let share = |part: u64| match sum.asked {
                0 => "-".into(),
                asked => format!("{:.1} %", 100.0 * part as f64 / asked as f64),
            };
            let ms = |at: f64| match sum.full.percentile_ms(at) {
                None => "-".into(),
                Some(ms) => format!("{ms:.0} ms"),
            };
            let _ = write!(
                text,
                "   {:>8}{:>10}{:>9}{:>9}",
                share(sum.full.count()),
                share(sum.degraded.count()),
                ms(0.5),
                ms(0.95)
            );
        }
        text.push('\n');
    }
    text
}

fn record(scenario: &Scenario, results: &Results, seen: Seen) -> Run {
    let spans: Vec<(f64, f64)> = (0..scenario.phases.len())
        .map(|phase| scenario.span_s(phase))
        .collect();
    let seconds = scenario.seconds.ceil() as usize;
    let lag = |from: usize, until: usize| {
        let mut all = crate::histogram::Histogram::default();
        let seconds = results.lag.iter().take(until).skip(from);
        seconds.for_each(|second| all.add(second));
        all
    };
    let targets = scenario.targets.iter().zip(&results.tracks);
    Run {
        name: scenario.name.clone(),
        title: scenario.title.clone(),
        seconds: scenario.seconds,
        seed: scenario.seed,
        phases: scenario
            .phases
            .iter()
            .zip(&spans)
            .map(|(phase, &(from_s, until_s))| Phase {
                name: phase.name.clone(),
                from_s,
                until_s,
            })
            .collect(),
        targets: targets
            .map(|(target, tracks)| Target {
                name: target.name.clone(),
                classes: scenario
                    .classes
                    .iter()
                    .zip(tracks)
                    .map(|(class, track)| Class {
                        name: class.name.clone(),
                        phases: spans
                            .iter()
                            .map(|&(from, until)| {
                                Counts::from(&track.due(from as usize, until as usize))
                            })
                            .collect(),
                        by_second: (0..seconds)
                            .map(|second| Counts::from(&track.due(second, second + 1)))
                            .collect(),
                    })
                    .collect(),
            })
            .collect(),
        generator: Generator {
            lag_p99_ms: lag(0, seconds).percentile_ms(0.99).unwrap_or(0.0),
            lag_p99_by_phase_ms: spans
                .iter()
                .map(|&(from, until)| {
                    let lag = lag(from as usize, until as usize);
                    lag.percentile_ms(0.99).unwrap_or(0.0)
                })
                .collect(),
            lag_max_ms: lag(0, seconds).max_ms(),
            not_sent: results.not_sent,
        },
        kill: seen.kill,
        samples: seen.samples,
        left: seen.left,
        metrics: seen.metrics,
    }
}
