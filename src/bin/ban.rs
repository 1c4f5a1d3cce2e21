//! `sluice ban` and `sluice unban`: bans in Redis, for all gateways at once.
use crate::{Outcome, complain};
use sluice::domain::config::{self, Config};
use sluice::domain::entry;
use sluice::domain::units::parse_duration;
use sluice::engine::tool;
use std::ffi::OsStr;
use std::path::Path;

fn read(file: &OsStr) -> Option<Config> {
    match config::from_path(Path::new(file)) {
        Ok(c) => Some(c),
        Err(errors) => {
            for e in errors {
                complain(&format!(
                    "{}: {}: {}",
                    file.to_string_lossy(),
                    e.field,
                    e.problem
                ));
            }
            None
        }
    }
}

/// Bans `subject` for a time (`10m`, or seconds), or for ever.
pub fn ban(file: &OsStr, subject: &OsStr, time: Option<&OsStr>) -> Outcome {
    let seconds = match time.map(|t| t.to_string_lossy().into_owned()) {
        None => None,
        Some(t) => match t.parse::<f64>() {
            Ok(s) => Some(s),
            Err(_) => match parse_duration(&t) {
                Ok(d) => Some(d.as_secs_f64()),
                Err(e) => return Outcome::Usage(e),
            },
        },
    };
    let Some(config) = read(file) else {
        return Outcome::Bad;
    };
    let text = subject.to_string_lossy();
    if let Ok(subject) = entry::parse(text.as_bytes())
        && entry::is_everything(&subject)
    {
        complain(&format!(
            "warning: {subject} is every address of its family"
        ));
    }
    end(tool::ban(&config.store, &text, seconds))
}

/// Lifts a ban.
pub fn unban(file: &OsStr, subject: &OsStr) -> Outcome {
    let Some(config) = read(file) else {
        return Outcome::Bad;
    };
    let subject = subject.to_string_lossy();
    end(match tool::unban(&config.store, &subject) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{subject} was not banned")),
        Err(e) => Err(e),
    })
}

fn end(result: Result<(), String>) -> Outcome {
    match result {
        Ok(()) => Outcome::Good,
        Err(e) => {
            complain(&format!("sluice: {e}"));
            Outcome::Bad
        }
    }
}
