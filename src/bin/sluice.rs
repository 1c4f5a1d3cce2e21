//! `sluice`, the command-line tool.
//!
//! Exit codes: 0 good, 1 the command found something wrong or failed, 2 wrong
//! usage. Results go to stdout, everything else to stderr.
mod ban;
mod check;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

const HELP: &str = "\
Usage: sluice check FILE
       sluice ban FILE SUBJECT [TIME]
       sluice unban FILE SUBJECT

Commands:
  check FILE   Read the configuration FILE (.toml or .json), and the list, password
               and key files it names, as `setup` would, without connecting anywhere.
               Each error is one line on stderr, `FILE: FIELD: what is wrong`; a line
               that starts with `warning:` is only a warning. Exit code 0: good;
               1: bad or unreadable; 2: wrong usage.
  ban FILE SUBJECT [TIME]
               Block an address, a CIDR or user:<id> on all gateways of the store that
               FILE names, for TIME (`90`, seconds, or `10m`, `7d`), or for ever.
  unban FILE SUBJECT
               Lift a ban; lists are not touched.

Options:
  -h, --help      Print this.
  -V, --version   Print the version.
";

/// How a command ended.
pub enum Outcome {
    Good,
    Bad,
    /// Wrong usage, with a sentence about it.
    Usage(String),
}

fn main() -> ExitCode {
    match run(lexopt::Parser::from_env()) {
        Outcome::Good => ExitCode::SUCCESS,
        Outcome::Bad => ExitCode::from(1),
        Outcome::Usage(problem) => {
            complain(&format!("sluice: {problem}; see `sluice --help`"));
            ExitCode::from(2)
        }
    }
}

fn run(mut arguments: lexopt::Parser) -> Outcome {
    use lexopt::prelude::*;
    let command = match arguments.next() {
        Ok(Some(Short('h') | Long("help"))) => return print(&mut arguments, HELP),
        Ok(Some(Short('V') | Long("version"))) => {
            let version = concat!("sluice ", env!("CARGO_PKG_VERSION"), "\n");
            return print(&mut arguments, version);
        }
        Ok(Some(Value(command))) => command,
        Ok(Some(other)) => return Outcome::Usage(other.unexpected().to_string()),
        Ok(None) => return Outcome::Usage("a command is missing".to_string()),
        Err(error) => return Outcome::Usage(error.to_string()),
    };
    // One arm a command; each takes its own arguments.
    match command.to_str() {
        Some("check") => match operands(&mut arguments, ["FILE"]) {
            Ok(Some([file])) => check::run(file.as_ref()),
            Ok(None) => say(HELP),
            Err(problem) => Outcome::Usage(problem),
        },
        Some("ban") => match some_operands(&mut arguments) {
            Ok(Some(v)) => match v.as_slice() {
                [file, subject] => ban::ban(file, subject, None),
                [file, subject, time] => ban::ban(file, subject, Some(time)),
                _ => Outcome::Usage("ban takes FILE SUBJECT [TIME]".into()),
            },
            Ok(None) => say(HELP),
            Err(problem) => Outcome::Usage(problem),
        },
        Some("unban") => match operands(&mut arguments, ["FILE", "SUBJECT"]) {
            Ok(Some([file, subject])) => ban::unban(&file, &subject),
            Ok(None) => say(HELP),
            Err(problem) => Outcome::Usage(problem),
        },
        _ => Outcome::Usage(format!(
            "there is no command {:?}",
            command.to_string_lossy()
        )),
    }
}

/// The rest of the command line, which must be these operands and no options.
/// `None`: help is asked for.
fn operands<const N: usize>(
    arguments: &mut lexopt::Parser,
    names: [&str; N],
) -> Result<Option<[OsString; N]>, String> {
    let Some(values) = some_operands(arguments)? else {
        return Ok(None);
    };
    let count = values.len();
    values
        .try_into()
        .map(Some)
        .map_err(|_| match names.get(count) {
            Some(missing) => format!("{missing} is missing"),
            None => format!("there are too many arguments ({count}, not {N})"),
        })
}

/// The rest of the command line without options. `None`: help is asked for.
fn some_operands(arguments: &mut lexopt::Parser) -> Result<Option<Vec<OsString>>, String> {
    use lexopt::prelude::*;
    let mut values = Vec::new();
    while let Some(argument) = arguments.next().map_err(|error| error.to_string())? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Value(value) => values.push(value),
            other => return Err(other.unexpected().to_string()),
        }
    }
    Ok(Some(values))
}

/// Prints what an option asks for, which must stand alone.
fn print(arguments: &mut lexopt::Parser, text: &str) -> Outcome {
    match operands(arguments, []) {
        Ok(_) => say(text),
        Err(problem) => Outcome::Usage(problem),
    }
}

fn say(text: &str) -> Outcome {
    // A reader that has gone away is not our fault.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Outcome::Good
}

/// One line on stderr, whatever is in it.
pub fn complain(line: &str) {
    let mut plain = String::with_capacity(line.len() + 1);
    for c in line.chars() {
        if c.is_control() {
            plain.extend(c.escape_default());
        } else {
            plain.push(c);
        }
    }
    plain.push('\n');
    let _ = std::io::stderr().write_all(plain.as_bytes());
}
