//! What a person sees: a live table of the last seconds, and at the end one for each
//! phase; and the same as JSON for a program.

use crate::load::{Results, Tally};
use crate::scenario::Scenario;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

/// The live table is over this many seconds.
const WINDOW_S: usize = 5;

/// A generator later than this at the 99th percentile measured itself.
const LAG_P99_MAX_MS: f64 = 5.0;

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
        } else if !second.is_multiple_of(WINDOW_S) {
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

/// The final tables, and the JSON file.
pub fn finish(scenario: &Scenario, results: &Results) -> Result<(), String> {
    let mut text = String::new();
    if std::io::stdout().is_terminal() && !scenario.plain {
        text.push_str("\x1b[H\x1b[2J");
    }
    let _ = writeln!(text, "{}", scenario.title);
    for (phase, named) in scenario.phases.iter().enumerate() {
        let (from, until) = scenario.span_s(phase);
        if from >= until {
            continue;
        }
        let _ = writeln!(text, "\nSeconds {from} to {until}: {}\n", named.name);
        text.push_str(&table(scenario, until - from, |target, class| {
            results.tracks[target][class].due(from as usize, until as usize)
        }));
    }
    let lag = results.lag.percentile_ms(0.99).unwrap_or(0.0);
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
    if let Some(path) = &scenario.json {
        std::fs::write(path, json(scenario, results))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

fn table(scenario: &Scenario, seconds: f64, tally: impl Fn(usize, usize) -> Tally) -> String {
    let mut text = format!("{:24}", "");
    for target in &scenario.targets {
        let _ = write!(text, "  {:<40}", format!("{}:", target.name));
    }
    let _ = write!(text, "\n{:14}{:>10}", "", "asked /s");
    for _ in &scenario.targets {
        let _ = write!(
            text,
            "  {:>9}{:>11}{:>10}{:>10}",
            "served", "turned off", "median", "p95"
        );
    }
    text.push('\n');
    for (class, named) in scenario.classes.iter().enumerate() {
        for target in 0..scenario.targets.len() {
            let sum = tally(target, class);
            if target == 0 {
                let rate = sum.over as f64 / seconds;
                let _ = write!(text, "{:14}{rate:>10.0}", named.name);
            }
            let share = |part: u64| match sum.over {
                0 => "-".into(),
                over => format!("{:.1} %", 100.0 * part as f64 / over as f64),
            };
            let ms = |at: f64| match sum.times.percentile_ms(at) {
                None => "-".into(),
                Some(ms) => format!("{ms:.0} ms"),
            };
            let _ = write!(
                text,
                "  {:>9}{:>11}{:>10}{:>10}",
                share(sum.served),
                share(sum.refused),
                ms(0.5),
                ms(0.95)
            );
        }
        text.push('\n');
    }
    text
}

fn json(scenario: &Scenario, results: &Results) -> String {
    let number = |value: Option<f64>| serde_json::json!(value);
    let phases: Vec<_> = scenario
        .phases
        .iter()
        .enumerate()
        .map(|(phase, named)| {
            let (from, until) = scenario.span_s(phase);
            let mut targets = serde_json::Map::new();
            for (target, tracks) in scenario.targets.iter().zip(&results.tracks) {
                let mut classes = serde_json::Map::new();
                for (class, track) in scenario.classes.iter().zip(tracks) {
                    let sum = track.due(from as usize, until as usize);
                    let value = serde_json::json!({
                        "requests": sum.over,
                        "served": sum.served,
                        "refused": sum.refused,
                        "failed": sum.failed,
                        "lost": sum.lost,
                        "mean_ms": number(sum.times.mean_ms()),
                        "p50_ms": number(sum.times.percentile_ms(0.5)),
                        "p95_ms": number(sum.times.percentile_ms(0.95)),
                        "p99_ms": number(sum.times.percentile_ms(0.99)),
                    });
                    classes.insert(class.name.clone(), value);
                }
                targets.insert(target.name.clone(), classes.into());
            }
            serde_json::json!({
                "name": named.name, "from_s": from, "until_s": until, "targets": targets,
            })
        })
        .collect();
    let all = serde_json::json!({
        "lag_p99_ms": number(results.lag.percentile_ms(0.99)),
        "phases": phases,
    });
    format!("{all:#}\n")
}
