//! The shared-memory region across processes: real forks, real `kill -9`.
//!
//! A harness of its own, because forking needs a process with one thread. It
//! understands as much of the usual command line as cargo and nextest use.
//! Each case is a master that opens a region in a directory of its own and
//! forks its workers, as nginx does.
mod killed;
mod life;
mod pools;
mod processes;
mod watch;
mod workers;

use std::panic::{AssertUnwindSafe, catch_unwind};

type Case = (&'static str, fn());

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|a| a == flag);
    let wanted: Vec<&String> = args
        .iter()
        .filter(|a| !a.starts_with('-') && *a != "terse")
        .collect();
    let chosen = |name: &str| {
        let fits = |w: &&String| {
            if has("--exact") {
                *w == name
            } else {
                name.contains(w.as_str())
            }
        };
        !has("--ignored") && (wanted.is_empty() || wanted.iter().any(fits))
    };
    let cases: Vec<Case> = [
        life::CASES,
        workers::CASES,
        killed::CASES,
        pools::CASES,
        watch::CASES,
    ]
    .concat();
    let cases: Vec<&Case> = cases.iter().filter(|(name, _)| chosen(name)).collect();
    if has("--list") {
        cases.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let failed: Vec<&str> = cases
        .iter()
        .filter(|(name, case)| {
            let result = catch_unwind(AssertUnwindSafe(case));
            println!(
                "test {name} ... {}",
                if result.is_ok() { "ok" } else { "FAILED" }
            );
            result.is_err()
        })
        .map(|(name, _)| *name)
        .collect();
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    let passed = cases.len() - failed.len();
    println!(
        "\ntest result: {verdict}. {passed} passed; {} failed",
        failed.len()
    );
    if !failed.is_empty() {
        std::process::exit(101);
    }
}
