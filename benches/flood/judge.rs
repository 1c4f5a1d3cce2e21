//! What is demanded of a gateway under a flood, and what is aimed at; and what runs show.
//!
//! A demand that a valid run misses fails the load test. A goal is printed as met or
//! missed, and counted.

use crate::record::{Backend, Counts, Run};
use crate::report::LAG_P99_MAX_MS;

/// Above this share of a core a process no longer keeps up with what comes in bursts.
const CPU_MAX: f64 = 0.8;
/// Over how many samples (of half a second) that is looked at.
const CPU_WINDOW: usize = 10;

/// The phases of a run, by name.
pub const BASELINE: &str = "baseline";
pub const ONSET: &str = "first 5 s";
pub const STEADY: &str = "attack";
pub const RECOVERY: &str = "recovery";

/// What sets a variant's bounds. Read off its name: `10x-adaptive`, `10x-worker-killed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The size for which the demand on the response time is made.
    pub five_times: bool,
    pub adaptive: bool,
    /// Without a gateway: shown, not judged.
    pub bare: bool,
    /// The attackers can be told from honest clients.
    pub told_apart: bool,
    /// Others take ten times as long as core: what is done is not a number of answers.
    pub long: bool,
}

impl Kind {
    pub fn of(name: &str) -> Kind {
        Kind {
            five_times: name.starts_with("5x"),
            adaptive: name.contains("adaptive"),
            bare: name.contains("without") || name.contains("limit-conn"),
            told_apart: name.contains("told-apart"),
            long: name.contains("long"),
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub what: &'static str,
    pub measured: String,
    pub demand: Option<Bound>,
    pub goal: Option<Bound>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    pub text: String,
    pub held: bool,
}

fn at_most(value: f64, bound: f64, text: String) -> Option<Bound> {
    let held = value <= bound;
    Some(Bound { text, held })
}

fn at_least(value: f64, bound: f64, text: String) -> Option<Bound> {
    let held = value >= bound;
    Some(Bound { text, held })
}

pub fn times(value: f64) -> String {
    format!("x{value:.3}")
}

pub fn percent(share: f64) -> String {
    match share * 100.0 {
        // Not rounded to a hundred that it is not.
        p if p < 100.0 && p > 99.9 => format!("{:.3} %", (p * 1000.0).floor() / 1000.0),
        p => format!("{p:.1} %"),
    }
}

/// Why a run does not count, if it does not.
pub fn faults(run: &Run) -> Vec<String> {
    let mut faults = Vec::new();
    let lag_ms = worst_lag_ms(run);
    if lag_ms > LAG_P99_MAX_MS {
        faults.push(format!("the generator was late by p99 {lag_ms:.1} ms"));
    }
    let (generator, worker) = cpu_shares(run);
    if generator > CPU_MAX {
        let share = percent(generator);
        faults.push(format!("the generator used {share} of a core"));
    }
    if worker > CPU_MAX {
        let share = percent(worker);
        faults.push(format!("an nginx worker used {share} of a core"));
    }
    if run.generator.not_sent > 0 {
        let number = run.generator.not_sent;
        faults.push(format!("{number} requests could not be sent"));
    }
    faults
}

/// The worst phase's, since a calm hour would hide a flood's.
pub fn worst_lag_ms(run: &Run) -> f64 {
    let phases = &run.generator.lag_p99_by_phase_ms;
    phases
        .iter()
        .fold(run.generator.lag_p99_ms, |a, &b| a.max(b))
}

/// Shares of a core in the worst five seconds: the generator's, and the busiest worker's.
pub fn cpu_shares(run: &Run) -> (f64, f64) {
    let (mut generator, mut worker) = (0.0f64, 0.0f64);
    for pair in run.samples.windows(CPU_WINDOW + 1) {
        let (from, to) = (&pair[0], &pair[CPU_WINDOW]);
        let seconds = to.at_s - from.at_s;
        generator = generator.max((to.cpu.generator_s - from.cpu.generator_s) / seconds);
        for (pid, until_s) in &to.cpu.workers_s {
            if let Some(from_s) = from.cpu.workers_s.get(pid) {
                worker = worker.max((until_s - from_s) / seconds);
            }
        }
    }
    (generator, worker)
}

/// While attacked: how busy the machine was, and how much of that were others than this run.
pub fn machine(run: &Run) -> Option<(f64, f64)> {
    let samples = run.samples_in(STEADY);
    let (from, to) = (samples.first()?, samples.last()?);
    let backend_s = |sample: &crate::record::Sample| sample.backend.as_ref().map(|b| b.cpu_s);
    let all_s = to.cpu.machine_all_s - from.cpu.machine_all_s;
    let busy_s = to.cpu.machine_busy_s - from.cpu.machine_busy_s;
    let workers_s: f64 = to
        .cpu
        .workers_s
        .iter()
        .map(|(pid, until_s)| until_s - from.cpu.workers_s.get(pid).unwrap_or(&0.0))
        .sum();
    let ours_s =
        to.cpu.generator_s - from.cpu.generator_s + workers_s + backend_s(to).unwrap_or(0.0)
            - backend_s(from).unwrap_or(0.0);
    (all_s > 0.0).then(|| (busy_s / all_s, ((busy_s - ours_s) / all_s).max(0.0)))
}

/// What the backend saw in a phase: requests in it on average and at most, answers a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    pub mean_inside: f64,
    pub most_inside: usize,
    pub slots: f64,
    pub working: f64,
    pub served_per_s: f64,
    /// How long it takes on average from any moment until a slot becomes free. Nothing that
    /// comes while all are taken can wait less.
    pub next_free_ms: f64,
}

pub fn backend(run: &Run, phase: &str) -> Option<Seen> {
    let samples: Vec<(f64, &Backend)> = run
        .samples_in(phase)
        .into_iter()
        .filter_map(|sample| Some((sample.at_s, sample.backend.as_ref()?)))
        .collect();
    let ((from_s, from), (to_s, to)) = (samples.first()?, samples.last()?);
    let seconds = to_s - from_s;
    let served = |one: &Backend| one.served.values().sum::<u64>();
    (seconds > 0.0).then(|| Seen {
        mean_inside: (to.inside_s - from.inside_s) / seconds,
        // The first was counted from before the phase.
        most_inside: samples
            .iter()
            .skip(1)
            .map(|one| one.1.most_inside)
            .max()
            .unwrap_or(0),
        slots: to.slots as f64,
        working: (to.working_s - from.working_s) / seconds,
        served_per_s: (served(to) - served(from)) as f64 / seconds,
        next_free_ms: 1000.0 * (to.gaps2_s2 - from.gaps2_s2)
            / (2.0 * (to.gaps_s - from.gaps_s)).max(f64::MIN_POSITIVE),
    })
}

/// While attacked, the beginning included.
pub fn attacked(run: &Run, class: &str) -> Counts {
    let mut sum = Counts::default();
    for phase in [ONSET, STEADY] {
        if let Some(counts) = run.counts(class, phase) {
            sum.add(counts);
        }
    }
    sum
}

/// Of the core's mean response times in each second of the attack, the longest.
fn worst_second(run: &Run) -> Option<f64> {
    let (from, until) = (run.phase(ONSET)?, run.phase(STEADY)?);
    let (from_s, until_s) = (run.phases[from].from_s, run.phases[until].until_s);
    let classes = &run.targets.first()?.classes;
    let core = classes.iter().find(|class| class.name == "core")?;
    let seconds = core.by_second.get(from_s as usize..until_s as usize)?;
    let means = seconds.iter().filter_map(|second| second.mean_ms);
    means.max_by(f64::total_cmp)
}

/// What became of core requests that should have been served, those whose connection was in
/// a killed worker aside: the share that was, and the number that was not.
fn success(counts: &Counts) -> (f64, u64) {
    let asked = counts.asked - counts.killed;
    (
        counts.full as f64 / asked.max(1) as f64,
        asked - counts.full,
    )
}

/// Everything that is looked at in one run. `capacity`: what the backend gives alone.
pub fn findings(run: &Run, capacity: Option<f64>) -> Vec<Finding> {
    let kind = Kind::of(&run.name);
    let mut all = Vec::new();
    let mut find = |what, measured, demand: Option<Bound>, goal: Option<Bound>| {
        let judged = !kind.bare;
        all.push(Finding {
            what,
            measured,
            demand: demand.filter(|_| judged),
            goal: goal.filter(|_| judged),
        });
    };
    let mean = |phase| run.counts("core", phase).and_then(|counts| counts.mean_ms);
    let (steady_goal, onset_goal) = if kind.adaptive {
        (1.15, 2.0)
    } else {
        (1.10, 1.5)
    };

    if let (Some(baseline), Some(steady)) = (mean(BASELINE), mean(STEADY)) {
        let ratio = steady / baseline;
        let demand = at_most(ratio, 1.5, "x1.5".into()).filter(|_| kind.five_times);
        let goal = at_most(ratio, steady_goal, format!("x{steady_goal}"));
        find("core, mean response, steady", times(ratio), demand, goal);
        if let Some(seen) = backend(run, STEADY).filter(|_| !kind.bare) {
            let least = 1.0 + seen.next_free_ms / baseline;
            find("  the least that slots allow", times(least), None, None);
        }
    }
    if let (Some(baseline), Some(onset)) = (mean(BASELINE), mean(ONSET)) {
        let ratio = onset / baseline;
        let goal = at_most(ratio, onset_goal, format!("x{onset_goal}")).filter(|_| !kind.long);
        find("core, mean response, first 5 s", times(ratio), None, goal);
    }
    if let Some(counts) = run.counts("core", ONSET) {
        let lost = success(counts).1;
        let goal = at_most(lost as f64, 0.0, "0".into());
        find("core, not served, first 5 s", lost.to_string(), None, goal);
    }
    if let (Some(baseline), Some(worst)) = (mean(BASELINE), worst_second(run)) {
        find(
            "  the worst second's mean",
            times(worst / baseline),
            None,
            None,
        );
    }
    let core = attacked(run, "core");
    let (share, _) = success(&core);
    find(
        "core, success",
        percent(share),
        at_least(share, 0.99, "99 %".into()),
        at_least(share, 0.9999, "99.99 %".into()),
    );
    if let Some(kill) = run.kill {
        let mut after = Counts::default();
        let first = &run
            .targets
            .first()
            .map_or(&[][..], |target| &target.classes[..]);
        for class in first.iter().filter(|class| class.name == "core") {
            let from = kill.at_s as usize + 1;
            class
                .by_second
                .iter()
                .skip(from)
                .for_each(|one| after.add(one));
        }
        let killed: u64 = first
            .iter()
            .map(|class| attacked(run, &class.name).killed)
            .sum();
        find(
            "requests in the killed worker (core)",
            format!("{killed} ({})", core.killed),
            None,
            None,
        );
        let lost = success(&after).1;
        let goal = at_most(lost as f64, 0.0, "0".into());
        find(
            "core, not served after the kill",
            lost.to_string(),
            None,
            goal,
        );
    }
    let other = attacked(run, "other");
    let share = other.share(other.unavailable + other.lost);
    find(
        "other, unavailable",
        percent(share),
        at_most(share, 0.10, "10 %".into()),
        at_most(share, 0.01, "1 %".into()),
    );
    // Nobody is told apart before having shown what is different.
    let told = run.counts("other", STEADY).filter(|_| kind.told_apart);
    let share = told.map_or(other.share(other.full), |told| told.share(told.full));
    let goal = at_least(share, 0.90, "90 %".into()).filter(|_| kind.told_apart);
    find("other, in full", percent(share), None, goal);
    if let Some(seen) = backend(run, STEADY).filter(|_| kind.long) {
        let share = seen.working / seen.slots;
        // Of a limit that is known some 85 %: slots are kept for core, which is quick.
        let goal = at_least(share, 0.75, "75 %".into());
        find("the backend at work", percent(share), None, goal);
    } else if let (Some(seen), Some(capacity)) = (backend(run, STEADY), capacity) {
        let share = seen.served_per_s / capacity;
        let bound = if kind.adaptive { 0.90 } else { 0.95 };
        let goal = at_least(share, bound, format!("{:.0} %", bound * 100.0));
        find("throughput, share of C", percent(share), None, goal);
        if !kind.bare {
            // From an answer's end at the backend to the next request's beginning there:
            // release, waking, resuming and both ways are in it.
            let pause_ms = 1000.0 * (seen.slots - seen.working) / seen.served_per_s;
            let pause = format!("{pause_ms:.2} ms");
            find("  a slot's pause between requests", pause, None, None);
        }
    }
    if let Some(left) = &run.left {
        let held = left.in_flight + left.waiting.iter().sum::<u64>();
        let goal = at_most(held as f64, 0.0, "0".into());
        find(
            "slots and places held after all",
            held.to_string(),
            None,
            goal,
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Class, Generator, Phase, Target};

    /// A run of 40 s in which `change` has been at the counts of (class, phase).
    fn run(name: &str, change: impl Fn(&str, &str, &mut Counts)) -> Run {
        let spans = [
            (BASELINE, 0.0),
            (ONSET, 10.0),
            (STEADY, 15.0),
            (RECOVERY, 30.0),
        ];
        let phases: Vec<Phase> = spans
            .iter()
            .enumerate()
            .map(|(at, &(name, from_s))| Phase {
                name: name.into(),
                from_s,
                until_s: spans.get(at + 1).map_or(40.0, |next| next.1),
            })
            .collect();
        let classes = ["core", "other"].map(|class| Class {
            name: class.into(),
            phases: phases
                .iter()
                .map(|phase| {
                    let mut counts = Counts {
                        asked: 10_000,
                        full: 10_000,
                        mean_ms: Some(20.0),
                        ..Counts::default()
                    };
                    change(class, &phase.name, &mut counts);
                    counts
                })
                .collect(),
            by_second: Vec::new(),
        });
        Run {
            name: name.into(),
            phases,
            targets: vec![Target {
                name: "gateway".into(),
                classes: classes.into(),
            }],
            generator: Generator::default(),
            ..Run::default()
        }
    }

    fn missed(run: &Run) -> (Vec<&'static str>, Vec<&'static str>) {
        let all = findings(run, None);
        let of = |bound: fn(&Finding) -> &Option<Bound>| {
            all.iter()
                .filter(|one| bound(one).as_ref().is_some_and(|bound| !bound.held))
                .map(|one| one.what)
                .collect()
        };
        (of(|one| &one.demand), of(|one| &one.goal))
    }

    #[test]
    fn nothing_is_missed_where_nothing_changes() {
        assert_eq!(missed(&run("5x-16", |_, _, _| ())), (vec![], vec![]));
    }

    #[test]
    fn the_demand_on_time_is_made_at_five_times_and_the_goals_differ_by_limiter() {
        let slow = |ms: f64| {
            move |class: &str, phase: &str, counts: &mut Counts| {
                if class == "core" && phase == STEADY {
                    counts.mean_ms = Some(ms);
                }
            }
        };
        let steady = "core, mean response, steady";
        assert_eq!(
            missed(&run("5x-16", slow(31.0))),
            (vec![steady], vec![steady])
        );
        assert_eq!(missed(&run("10x-16", slow(31.0))), (vec![], vec![steady]));
        assert_eq!(missed(&run("10x-16", slow(22.5))), (vec![], vec![steady]));
        assert_eq!(missed(&run("10x-adaptive", slow(22.5))), (vec![], vec![]));
        assert_eq!(missed(&run("10x-without", slow(999.0))), (vec![], vec![]));
    }

    #[test]
    fn a_degraded_core_answer_is_no_success_and_a_degraded_other_is_not_unavailable() {
        let degraded = run("5x-16", |_, phase, counts| {
            if phase == STEADY {
                (counts.full, counts.degraded) = (9_000, 1_000);
            }
        });
        assert_eq!(missed(&degraded).0, ["core, success"]);
        let refused = run("5x-16", |class, phase, counts| {
            if class == "other" && phase != BASELINE {
                (counts.full, counts.degraded, counts.unavailable) = (5_000, 3_000, 2_000);
            }
        });
        assert_eq!(missed(&refused).0, ["other, unavailable"]);
    }

    #[test]
    fn requests_in_a_killed_worker_are_apart() {
        let killed = run("10x-worker-killed", |class, phase, counts| {
            if class == "core" && phase == STEADY {
                (counts.full, counts.killed) = (9_000, 1_000);
            }
        });
        assert_eq!(missed(&killed), (vec![], vec![]));
    }

    #[test]
    fn honest_clients_are_to_be_served_in_full_only_where_they_can_be_told_apart() {
        let early = |phase_of_harm: &'static str| {
            move |class: &str, phase: &str, counts: &mut Counts| {
                if class == "other" && phase == phase_of_harm {
                    (counts.full, counts.degraded) = (1_000, 9_000);
                }
            }
        };
        assert_eq!(missed(&run("10x-16", early(STEADY))).1, Vec::<&str>::new());
        let told = "10x-told-apart";
        assert_eq!(missed(&run(told, early(ONSET))).1, Vec::<&str>::new());
        assert_eq!(missed(&run(told, early(STEADY))).1, ["other, in full"]);
    }

    #[test]
    fn a_slot_that_is_never_given_back_is_found() {
        let mut leaking = run("5x-16", |_, _, _| ());
        leaking.left = Some(crate::record::Gateway::default());
        assert_eq!(missed(&leaking).1, Vec::<&str>::new());
        leaking.left = Some(crate::record::Gateway {
            limit: 16.0,
            in_flight: 1,
            waiting: vec![0; 4],
        });
        assert_eq!(missed(&leaking).1, ["slots and places held after all"]);
    }

    #[test]
    fn a_late_generator_and_a_busy_worker_make_a_run_void() {
        let mut late = run("5x-16", |_, _, _| ());
        late.generator.lag_p99_by_phase_ms = vec![0.1, 6.0];
        assert_eq!(faults(&late).len(), 1);
        let mut busy = run("5x-16", |_, _, _| ());
        for half in 0..20 {
            let mut cpu = crate::record::Cpu::default();
            cpu.workers_s.insert(7, f64::from(half) * 0.5 * 0.81);
            busy.samples.push(crate::record::Sample {
                at_s: f64::from(half) * 0.5,
                backend: None,
                gateway: None,
                cpu,
            });
        }
        assert_eq!(faults(&busy).len(), 1, "{:?}", faults(&busy));
    }

    #[test]
    fn a_share_is_not_rounded_up_to_all() {
        assert_eq!(percent(1.0), "100.0 %");
        assert_eq!(percent(0.999_999), "99.999 %");
        assert_eq!(percent(0.5), "50.0 %");
    }
}
