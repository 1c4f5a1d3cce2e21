//! `flood`: the load generator, the demo shop that it is run against, and what makes a
//! table and a picture of runs.
//!
//! ```text
//! flood shop   --listen 127.0.0.1:8081 --slots 16 --service-ms 20
//! flood run    --target with=127.0.0.1:8080 --class name=browse,rate=160,path=/product/{n}
//! flood report run.json
//! ```
//!
//! Not shipped: it belongs to the demo and to `make flood`. It sends to loopback addresses
//! only, and stops by itself.

mod answer;
mod histogram;
mod http;
mod judge;
mod load;
mod picture;
mod poll;
mod random;
mod record;
mod report;
mod scenario;
mod shop;
mod sleeper;
mod summary;
mod tally;
mod watch;

use std::process::ExitCode;

const USAGE: &str = "\
usage: flood shop   [--listen ADDR] [--slots N] [--service-ms N] [--shape fixed|near|exp] [--longer N] [--backlog N]
       flood run    --target NAME=ADDR... --class KEY=VALUE,... [--name NAME] [--seconds N]
                    [--seed N] [--phase SECOND=TEXT]... [--title TEXT] [--note FILE]
                    [--json FILE] [--plain] [--quiet] [--shop ADDR] [--status ADDR]
                    [--nginx PID [--kill SECOND]]
       flood report FILE... [--capacity FILE] [--markdown FILE] [--svg FILE] [--short]

A class: name=, rate= (a second), method=GET, path= ({n}: a random number, {client}: the
client's), clients= (how many addresses), net= (the first of them), from=, until= (seconds),
timeout= (seconds), header=Name: value, close (a connection for each request), torn= (the same,
and given up after so many seconds).
--shop, --status: a demo shop and a gateway, which are asked twice a second how they are.
--nginx: a master whose workers' CPU is looked at; --kill: when one of them is killed.
";

fn main() -> ExitCode {
    let mut args = lexopt::Parser::from_env();
    let done = match args.next() {
        Ok(Some(lexopt::Arg::Value(word))) if word == "shop" => shop::Options::parse(&mut args)
            .and_then(shop::serve)
            .map(|()| true),
        Ok(Some(lexopt::Arg::Value(word))) if word == "run" => scenario::Scenario::parse(&mut args)
            .and_then(load::run)
            .map(|()| true),
        Ok(Some(lexopt::Arg::Value(word))) if word == "report" => {
            summary::Options::parse(&mut args).and_then(summary::run)
        }
        _ => Err(String::from(USAGE)),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("{}", problem.trim_end());
            ExitCode::from(2)
        }
    }
}

/// The shop's runtime, on this one thread: the other core belongs to what is measured.
fn on_this_thread<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    let local = tokio::task::LocalSet::new();
    Ok(local.block_on(&runtime, work))
}
