//! `sluice check FILE`: the configuration and every file it names, read as
//! `setup` reads them. Nothing is connected to, and no shared memory is touched.
use crate::{Outcome, complain};
use sluice::domain::config::{self, Config, ListSource};
use sluice::domain::entry;
use sluice::engine::{degrade, room};
use std::fs;
use std::path::Path;

/// Prints what is wrong or odd, a line each.
struct Report<'a> {
    file: &'a Path,
    errors: usize,
}

impl Report<'_> {
    fn error(&mut self, field: &str, problem: &str) {
        self.errors += 1;
        complain(&format!("{}: {field}: {problem}", self.file.display()));
    }

    fn warning(&self, field: &str, problem: &str) {
        complain(&format!(
            "warning: {}: {field}: {problem}",
            self.file.display()
        ));
    }
}

pub fn run(file: &Path) -> Outcome {
    let mut report = Report { file, errors: 0 };
    match config::from_path(file) {
        Ok(config) => {
            for warning in &config.warnings {
                report.warning(&warning.field, &warning.problem);
            }
            check_folder(&config, &mut report);
            check_lists(&config, &mut report);
            let pages = degrade::check(&config.pools);
            for error in pages.iter().chain(&room::check(&config)) {
                report.error(&error.field, &error.problem);
            }
        }
        Err(errors) => {
            for error in &errors {
                report.error(&error.field, &error.problem);
            }
        }
    }
    if report.errors == 0 {
        Outcome::Good
    } else {
        Outcome::Bad
    }
}

/// A start needs the folder. Whether workers may write in it depends on who they are.
fn check_folder(config: &Config, report: &mut Report<'_>) {
    let path = &config.shm.path;
    if let Some(folder) = path.parent().filter(|folder| !folder.is_dir()) {
        let problem = format!(
            "{} is not a folder; make it, or name a file in one, such as /dev/shm/sluice",
            folder.display()
        );
        report.error("shm.path", &problem);
    }
}

fn check_lists(config: &Config, report: &mut Report<'_>) {
    let lists = [
        ("blocklist", &config.lists.blocklist),
        ("allowlist", &config.lists.allowlist),
    ];
    for (name, sources) in lists {
        for (index, source) in sources.iter().enumerate() {
            let ListSource::File(pattern) = source else {
                continue;
            };
            let field = format!("lists.{name}[{index}]");
            match config::expand(pattern) {
                Ok(files) if files.is_empty() => {
                    report.warning(&field, &format!("no file matches {pattern} now"));
                }
                Ok(files) => files
                    .iter()
                    .for_each(|file| check_list(&field, file, report)),
                Err(problem) => report.error(&field, &problem),
            }
        }
    }
}

fn check_list(field: &str, file: &Path, report: &mut Report<'_>) {
    let shown = file.display();
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) => {
            return report.error(
                field,
                &format!("{shown}: {error}; name a file that can be read"),
            );
        }
    };
    let entries = entry::parse_file(&bytes);
    for (line, problem) in &entries.rejected {
        report.warning(field, &format!("{shown}: line {line}: {problem}"));
    }
    let (bad, lines) = (entries.rejected_count, entries.lines);
    if entries.mostly_bad() {
        report.error(
            field,
            &format!("{shown}: {bad} of {lines} lines are bad; with more than half it is not read"),
        );
    } else if bad > 0 {
        report.warning(
            field,
            &format!("{shown}: {bad} of {lines} lines are bad and are skipped"),
        );
    }
    for subject in entries
        .subjects
        .iter()
        .filter(|subject| entry::is_everything(subject))
    {
        report.warning(
            field,
            &format!("{shown}: {subject} is every address of its family"),
        );
    }
}
