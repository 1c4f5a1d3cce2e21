//! `setup()`: what the master does at start and at every reload.
//!
//! Reads and checks the configuration, makes or finds the region, reads the
//! list files and the
//! pools' pages. Nothing of what is in force is touched before all of it is good,
//! no lock is taken and no thread made: this process forks the workers.
use super::degrade::Pages;
use super::files::Files;
use super::room;
use crate::domain::config::{self, Config, FieldError};
use crate::shm::lists::{self, Lists, ListsInput};
use crate::shm::{Attach, Mapped, Region};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;

/// One good `setup()`, inherited by the workers that are forked after it.
pub struct Setup {
    pub config: Arc<Config>,
    pub region: &'static Region,
    /// Which setup of this region, counted from 1.
    pub generation: u64,
    pub files: Files,
    /// The lists of `files`; `None` when they are empty.
    pub lists: Option<Arc<Lists>>,
    /// What `status` shows of the region.
    pub shm_warning: Option<String>,
    /// Of the pools.
    pub pages: Pages,
}

static SETUP: Mutex<Option<Arc<Setup>>> = Mutex::new(None);

/// The setup that is in force in this process.
pub fn current() -> Option<Arc<Setup>> {
    SETUP.lock().clone()
}

/// Where a configuration comes from.
pub enum Source {
    Path(String),
    Value(serde_json::Value),
}

fn sentence(source: &str, errors: &[FieldError]) -> String {
    let lines: Vec<String> = errors
        .iter()
        .map(|e| format!("sluice: {source}: {}: {}", e.field, e.problem))
        .collect();
    lines.join("\n")
}

/// Carries a setup out. The result is what an operator should read; the error names source, field
/// and reason.
pub fn setup(source: Source) -> Result<Vec<String>, String> {
    let (name, read) = match source {
        Source::Path(p) => {
            let read = config::from_path(Path::new(&p));
            (p, read)
        }
        Source::Value(v) => ("setup{}".into(), config::from_value(v)),
    };
    let config = read.map_err(|e| sentence(&name, &e))?;
    let mut said: Vec<String> = config
        .warnings
        .iter()
        .map(|w| format!("sluice: {name}: {}: {}", w.field, w.problem))
        .collect();

    let mut slot = SETUP.lock();
    let mut list_warnings = Vec::new();
    let files = Files::load(
        &config.lists,
        slot.as_ref().map(|s| &s.files),
        &mut |line| list_warnings.push(line),
    )
    .map_err(|e| sentence(&name, &e))?;
    let pages = Pages::load(&config.pools).map_err(|e| sentence(&name, &e))?;
    said.extend(list_warnings.iter().map(|l| format!("sluice: {name}: {l}")));

    let errors = match slot.as_deref() {
        Some(s) => room::check_in(&config, s.region),
        None => room::check(&config),
    };
    if !errors.is_empty() {
        return Err(sentence(&name, &errors));
    }
    let (region, how) = region(slot.as_deref(), &config, &name)?;
    let shm_warning = how.is_warning().then(|| format!("shm: {how}"));
    said.extend(shm_warning.iter().map(|w| format!("sluice: {name}: {w}")));
    let generation = region.new_setup_generation();
    let lists = build(&files)
        .map_err(|e| format!("sluice: {name}: lists: {e}"))?
        .map(Arc::new);
    *slot = Some(Arc::new(Setup {
        config: Arc::new(config),
        region,
        generation,
        files,
        lists,
        shm_warning,
        pages,
    }));
    Ok(said)
}

/// The region of this configuration: the one that this process maps already, whatever path and
/// size are configured by now, or a first one.
fn region(
    before: Option<&Setup>,
    config: &Config,
    name: &str,
) -> Result<(&'static Region, Attach), String> {
    let fail = |e: crate::shm::Error| format!("sluice: {name}: shm: {e}");
    if let Some(old) = before {
        // Another one would begin without buckets, bans and slots, while the old workers' requests
        // are still at the backend.
        let how = old.region.ensure(&config.shm).map_err(fail)?;
        return Ok((old.region, how));
    }
    let (region, how) = Region::open(&config.shm).map_err(fail)?;
    sweep(&config.shm.path);
    // A region is mapped as long as its process lives: workers and their threads use it to the end.
    Ok((Box::leak(Box::new(region)), how))
}

/// Removes sockets of workers that were terminated before their reader had connected.
fn sweep(path: &Path) {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return;
    };
    let prefix = format!("{}.", name.to_string_lossy());
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let pid = file
            .strip_prefix(&prefix)
            .and_then(|rest| rest.strip_suffix(".sock"))
            .and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Somebody else's, or gone: then it is not ours to remove.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Lists of the files' entries, on the heap: inherited by the workers.
pub fn build(files: &Files) -> Result<Option<Lists>, String> {
    if files.is_empty() {
        return Ok(None);
    }
    Lists::new(Mapped::from_bytes(&file_bytes(files)))
        .map(Some)
        .map_err(|e| e.to_string())
}

/// The same as bytes, for the other workers.
pub fn file_bytes(files: &Files) -> Vec<u8> {
    let never = |s: &crate::domain::entry::Subject| (s.clone(), u64::MAX);
    lists::build(&ListsInput {
        allow: files.allow.subjects().map(never).collect(),
        block: files.block.subjects().map(never).collect(),
        bans: Vec::new(),
    })
}
