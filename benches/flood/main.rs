//! `flood`: the load generator and the demo shop that it is run against.
//!
//! ```text
//! flood shop --listen 127.0.0.1:8081 --slots 16 --service-ms 20
//! flood run --target with=127.0.0.1:8080 --class name=browse,rate=160,path=/product/{n}
//! ```
//!
//! Not shipped: it belongs to the demo, to `make flood` and to load tests. It sends to
//! loopback addresses only, and stops by itself.

mod histogram;
mod http;
mod load;
mod random;
mod report;
mod scenario;
mod shop;

use std::process::ExitCode;

const USAGE: &str = "\
usage: flood shop [--listen ADDR] [--slots N] [--service-ms N] [--shape fixed|exp] [--backlog N]
       flood run  --target NAME=ADDR... --class KEY=VALUE,... [--seconds N] [--seed N]
                  [--phase SECOND=TEXT]... [--title TEXT] [--note FILE] [--json FILE] [--plain]

A class: name=, rate= (a second), method=GET, path= ({n}: a random number, {client}: the
client's), clients= (how many addresses), net= (the first of them), from=, until= (seconds),
timeout= (seconds), header=Name: value, close (a connection for each request).
";

fn main() -> ExitCode {
    let mut args = lexopt::Parser::from_env();
    let done = match args.next() {
        Ok(Some(lexopt::Arg::Value(word))) if word == "shop" => {
            shop::Options::parse(&mut args).and_then(shop::serve)
        }
        Ok(Some(lexopt::Arg::Value(word))) if word == "run" => {
            scenario::Scenario::parse(&mut args).and_then(load::run)
        }
        _ => Err(String::from(USAGE)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{}", problem.trim_end());
            ExitCode::from(2)
        }
    }
}

/// A runtime on this one thread: the other core belongs to what is measured.
fn on_this_thread<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    let local = tokio::task::LocalSet::new();
    Ok(local.block_on(&runtime, work))
}
