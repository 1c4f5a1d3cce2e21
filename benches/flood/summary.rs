//! `flood report`: the table of a whole load test, for a terminal and as Markdown.

use crate::judge::{self, BASELINE, Finding, ONSET, RECOVERY, STEADY};
use crate::picture;
use crate::record::{Counts, Run};
use std::fmt::Write as _;
use std::path::PathBuf;

#[derive(Debug, Default)]
pub struct Options {
    files: Vec<PathBuf>,
    /// A run in which the backend alone was saturated.
    capacity: Option<PathBuf>,
    markdown: Option<PathBuf>,
    svg: Option<PathBuf>,
    /// Shown, not judged.
    short: bool,
}

impl Options {
    pub fn parse(args: &mut lexopt::Parser) -> Result<Options, String> {
        let mut options = Options::default();
        while let Some(arg) = args.next().map_err(|error| error.to_string())? {
            let name = match arg {
                lexopt::Arg::Long("short") => {
                    options.short = true;
                    continue;
                }
                lexopt::Arg::Long(name) => name.to_owned(),
                lexopt::Arg::Value(file) => {
                    options.files.push(file.into());
                    continue;
                }
                other => return Err(other.unexpected().to_string()),
            };
            let value = args.value().map_err(|error| error.to_string())?.into();
            match name.as_str() {
                "capacity" => options.capacity = Some(value),
                "markdown" => options.markdown = Some(value),
                "svg" => options.svg = Some(value),
                _ => return Err(format!("--{name}: not an option of report")),
            }
        }
        if options.files.is_empty() {
            return Err("report needs the file of at least one run".into());
        }
        Ok(options)
    }
}

/// `Ok(false)`: a demand was missed, or nothing could be judged.
pub fn run(options: Options) -> Result<bool, String> {
    let runs = options
        .files
        .iter()
        .map(|path| Run::read(path))
        .collect::<Result<Vec<Run>, String>>()?;
    let capacity = match &options.capacity {
        Some(path) => capacity(&Run::read(path)?),
        None => None,
    };
    let mut text = String::new();
    if let Some(capacity) = capacity {
        let _ = writeln!(
            text,
            "C, what the backend gives alone when saturated: {capacity:.0} requests a second\n"
        );
    }
    let mut score = Score::default();
    for run in &runs {
        one(&mut text, run, capacity, &mut score);
    }
    if let Some(path) = &options.markdown {
        let text = markdown(&runs, capacity);
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if let Some(path) = &options.svg {
        match picture::draw(&runs) {
            Some(svg) => {
                std::fs::write(path, svg)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                let _ = writeln!(text, "The picture: {}\n", path.display());
            }
            None => {
                text.push_str("No picture: it needs a run with the gateway and one without\n\n")
            }
        }
    }
    let _ = writeln!(
        text,
        "Goals: {} met, {} missed. Runs that do not count: {}.",
        score.goals_met, score.goals_missed, score.void
    );
    if options.short {
        let _ = writeln!(
            text,
            "A short turn, shown and not judged: {} of {} demands held",
            score.held,
            score.held + score.missed
        );
        print!("{text}");
        return Ok(true);
    }
    let _ = writeln!(
        text,
        "flood: {} passed, {} failed",
        score.held, score.missed
    );
    let nothing = score.held + score.missed == 0 && score.void > 0;
    if nothing {
        text.push_str("flood: no run counts, so nothing has been shown\n");
    }
    print!("{text}");
    Ok(score.missed == 0 && !nothing)
}

#[derive(Default)]
struct Score {
    held: u64,
    missed: u64,
    goals_met: u64,
    goals_missed: u64,
    void: u64,
}

/// Answers a second of the backend by itself.
fn capacity(run: &Run) -> Option<f64> {
    judge::backend(run, STEADY).map(|seen| seen.served_per_s)
}

fn ms(value: Option<f64>) -> String {
    value.map_or("-".into(), |ms| format!("{ms:.1}"))
}

fn one(text: &mut String, run: &Run, capacity: Option<f64>, score: &mut Score) {
    let faults = judge::faults(run);
    let _ = writeln!(text, "=== {}: {}", run.name, run.title);
    let (generator, worker) = judge::cpu_shares(run);
    let _ = writeln!(
        text,
        "    generator late by p99 {:.2} ms (most {:.0} ms); the worst 5 s: generator {}, \
         busiest worker {} of a core",
        judge::worst_lag_ms(run),
        run.generator.lag_max_ms,
        judge::percent(generator),
        judge::percent(worker),
    );
    if let Some((busy, others)) = judge::machine(run) {
        let _ = writeln!(
            text,
            "    while attacked: machine busy {}, kernel and other programs {}",
            judge::percent(busy),
            judge::percent(others)
        );
    }
    for fault in &faults {
        let _ = writeln!(text, "    DOES NOT COUNT: {fault}");
    }
    classes(text, run);
    course(text, run);
    let valid = faults.is_empty();
    if !valid {
        score.void += 1;
    }
    let _ = writeln!(
        text,
        "\n    {:40}{:>12}   {:22}goal",
        "", "measured", "demand"
    );
    for finding in judge::findings(run, capacity) {
        let demand = finding.demand.as_ref().map_or("-".into(), |bound| {
            if valid {
                *(if bound.held {
                    &mut score.held
                } else {
                    &mut score.missed
                }) += 1;
            }
            let word = if bound.held { "held" } else { "MISSED" };
            format!("{:9}{word}", bound.text)
        });
        let goal = finding.goal.as_ref().map_or("-".into(), |bound| {
            if valid {
                *(if bound.held {
                    &mut score.goals_met
                } else {
                    &mut score.goals_missed
                }) += 1;
            }
            let word = if bound.held { "met" } else { "MISSED" };
            format!("{:9}{word}", bound.text)
        });
        let _ = writeln!(
            text,
            "    {:40}{:>12}   {demand:22}{goal}",
            finding.what, finding.measured
        );
    }
    text.push('\n');
}

fn classes(text: &mut String, run: &Run) {
    let _ = writeln!(
        text,
        "\n    {:8}{:11}{:>8}{:>9}{:>10}{:>13}{:>7}{:>10}{:>8}{:>8}{:>8}{:>15}",
        "",
        "",
        "asked",
        "in full",
        "degraded",
        "unavailable",
        "lost",
        "mean ms",
        "p50",
        "p95",
        "p99",
        "degraded p99"
    );
    let Some(target) = run.targets.first() else {
        return;
    };
    for class in &target.classes {
        for (phase, counts) in run.phases.iter().zip(&class.phases) {
            if counts.asked == 0 || ![BASELINE, ONSET, STEADY, RECOVERY].contains(&&*phase.name) {
                continue;
            }
            let _ = write!(
                text,
                "    {:8}{:11}{:>8}{:>9}{:>10}{:>13}{:>7}{:>10}{:>8}{:>8}{:>8}{:>15}",
                class.name,
                phase.name,
                counts.asked,
                judge::percent(counts.share(counts.full)),
                judge::percent(counts.share(counts.degraded)),
                judge::percent(counts.share(counts.unavailable)),
                counts.lost,
                ms(counts.mean_ms),
                ms(counts.p50_ms),
                ms(counts.p95_ms),
                ms(counts.p99_ms),
                ms(counts.degraded_p99_ms),
            );
            let apart = |text: &mut String, number: u64, what: &str| {
                if number > 0 {
                    let _ = write!(text, "   {number} {what}");
                }
            };
            apart(text, counts.torn, "given up by the client");
            apart(text, counts.killed, "in the killed worker");
            text.push('\n');
        }
    }
}

/// The limit and what is in flight, over time.
fn course(text: &mut String, run: &Run) {
    text.push('\n');
    for phase in [BASELINE, ONSET, STEADY, RECOVERY] {
        if let Some(seen) = judge::backend(run, phase) {
            let _ = writeln!(
                text,
                "    backend, {phase:11} in flight {:5.1}, most {:4}; slots working {:4.1}; {:4.0} answers/s, \
                 the next after {:.1} ms",
                seen.mean_inside,
                seen.most_inside,
                seen.working,
                seen.served_per_s,
                seen.next_free_ms
            );
        }
    }
    let limits: Vec<(f64, f64)> = run
        .samples
        .iter()
        .filter_map(|sample| Some((sample.at_s, sample.gateway.as_ref()?.limit)))
        .collect();
    if limits.is_empty() {
        return;
    }
    // Some twenty points over the run, and all that there are in the first 5 s.
    let step = (run.seconds / 20.0).max(0.5);
    let onset = run.phase(ONSET).map(|at| &run.phases[at]);
    let mut next_s = 0.0;
    let _ = write!(text, "    L by second:");
    for (at_s, limit) in limits {
        let first = onset.is_some_and(|phase| at_s >= phase.from_s && at_s < phase.until_s);
        if at_s >= next_s || first {
            let _ = write!(text, " {at_s:.0}:{limit:.0}");
            next_s = at_s + step;
        }
    }
    text.push('\n');
}

/// The table with a column for each run: what is to be copied into the README.
fn markdown(runs: &[Run], capacity: Option<f64>) -> String {
    let valid: Vec<(&Run, Vec<Finding>)> = runs
        .iter()
        .filter(|run| judge::faults(run).is_empty())
        .map(|run| (run, judge::findings(run, capacity)))
        .collect();
    let mut text = String::from("| |");
    for (run, _) in &valid {
        let _ = write!(text, " {} |", run.name);
    }
    text.push_str("\n|---|");
    valid.iter().for_each(|_| text.push_str("---|"));
    text.push('\n');
    let mut rows: Vec<&str> = Vec::new();
    for finding in valid.iter().flat_map(|(_, findings)| findings) {
        if !rows.contains(&finding.what) {
            rows.push(finding.what);
        }
    }
    for what in rows {
        let _ = write!(text, "| {what} |");
        for (_, findings) in &valid {
            let found = findings.iter().find(|finding| finding.what == what);
            let _ = match found {
                Some(finding) => write!(text, " {} |", finding.measured),
                None => write!(text, " – |"),
            };
        }
        text.push('\n');
    }
    let mean = |run: &Run, phase: &str| {
        let counts: Option<&Counts> = run.counts("core", phase);
        ms(counts.and_then(|counts| counts.mean_ms))
    };
    text.push_str("| core, mean ms, baseline → attack |");
    for (run, _) in &valid {
        let _ = write!(text, " {} → {} |", mean(run, BASELINE), mean(run, STEADY));
    }
    text.push('\n');
    text
}
