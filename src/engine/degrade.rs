//! The pages that shed requests get in place of a bare 503: `degrade.file` of
//! the pools.
//!
//! Read in `setup`, where a file that is missing is an error, and inherited by
//! the workers. Each worker looks for changes; what it may no longer read, or
//! finds spoilt, keeps its last content. The file of a pool that comes from
//! Redis is read when the pool comes; until it can be, requests get the 503.
use super::files::{Stamp, stamp};
use crate::domain::config::{self, Degrade, FieldError, PoolConfig};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The largest page: every worker holds it, and every shed request is sent it.
pub const MAX_PAGE_BYTES: u64 = 1 << 20;

/// What is sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    pub bytes: Vec<u8>,
    pub content_type: &'static str,
}

/// A file, and what was read of it last.
#[derive(Debug)]
pub struct PageFile {
    path: PathBuf,
    last: Mutex<Last>,
}

#[derive(Debug)]
struct Last {
    stamp: Option<Stamp>,
    page: Option<Arc<Page>>,
    /// Why `page` is not what the file holds now.
    problem: Option<String>,
}

/// What a compiled pool has of it.
#[derive(Clone, Debug)]
pub enum Degraded {
    Page(Arc<PageFile>),
    Location(&'static str),
}

/// The pages that this worker has shown, by numbers that Lua knows them by. A page that is read
/// anew has another.
#[derive(Default)]
pub struct Shown {
    pages: Vec<(u32, Arc<Page>)>,
    last: u32,
}

impl Shown {
    /// More than a configuration has pools: what changes pushes out what is old.
    const MOST: usize = 32;

    /// Never 0.
    pub fn number(&mut self, page: &Arc<Page>) -> u32 {
        // Held, so no other page can be at the same address.
        let known = self.pages.iter().find(|(_, p)| Arc::ptr_eq(p, page));
        if let Some((number, _)) = known {
            return *number;
        }
        if self.pages.len() >= Self::MOST {
            self.pages.remove(0);
        }
        self.last = self.last.wrapping_add(1).max(1);
        self.pages.push((self.last, Arc::clone(page)));
        self.last
    }

    pub fn bytes(&self, number: u32) -> Option<&[u8]> {
        let (_, page) = self.pages.iter().find(|(n, _)| *n == number)?;
        Some(&page.bytes)
    }
}

/// All files that pools name, in one process.
#[derive(Debug, Default)]
pub struct Pages(Mutex<BTreeMap<PathBuf, Arc<PageFile>>>);

/// Reads a page. The error is a sentence without the path.
pub fn read(path: &Path) -> Result<Page, String> {
    let Some(content_type) = config::content_type(path) else {
        return Err("has an ending of no known type".into());
    };
    let told = |e: std::io::Error| e.to_string();
    // A pipe could be waited for, and a device be read, for ever.
    if !std::fs::metadata(path).map_err(told)?.is_file() {
        return Err("is not a regular file".into());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(told)?;
    file.take(MAX_PAGE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(told)?;
    match bytes.len() as u64 {
        0 => Err("is empty".into()),
        n if n > MAX_PAGE_BYTES => Err("has more than 1 MiB".into()),
        _ => Ok(Page {
            bytes,
            content_type,
        }),
    }
}

/// The files of enabled pools that cannot be read, with the pools' fields.
fn files(pools: &[PoolConfig]) -> impl Iterator<Item = (String, &Path)> {
    let enabled = pools.iter().enumerate().filter(|(_, pool)| pool.enabled);
    enabled.filter_map(|(i, pool)| match &pool.degrade {
        Some(Degrade::File(path)) => Some((format!("pools[{i}].degrade.file"), path.as_path())),
        _ => None,
    })
}

fn wrong(field: String, path: &Path, problem: &str) -> FieldError {
    FieldError {
        field,
        problem: format!(
            "{}: {problem}; name a page of at most 1 MiB that can be read",
            path.display()
        ),
    }
}

impl PageFile {
    /// `None`: it could never be read.
    pub fn page(&self) -> Option<Arc<Page>> {
        self.last.lock().page.clone()
    }
}

impl Pages {
    /// Reads what the file's pools name.
    pub fn load(pools: &[PoolConfig]) -> Result<Pages, Vec<FieldError>> {
        let pages = Pages::default();
        let bad =
            files(pools).filter_map(|(field, path)| Some(wrong(field, path, &pages.get(path).1?)));
        let errors: Vec<_> = bad.collect();
        if errors.is_empty() {
            Ok(pages)
        } else {
            Err(errors)
        }
    }

    /// What a pool has of its `degrade`; `field` is its place, for the error.
    pub fn compile(&self, degrade: &Degrade, field: &str) -> (Degraded, Option<FieldError>) {
        match degrade {
            Degrade::Location(name) => (Degraded::Location(super::rules::intern(name)), None),
            Degrade::File(path) => {
                let (file, problem) = self.get(path);
                let error = problem.map(|p| wrong(format!("{field}.degrade.file"), path, &p));
                (Degraded::Page(file), error)
            }
        }
    }

    /// The file, known or read now, and why it has no page.
    fn get(&self, path: &Path) -> (Arc<PageFile>, Option<String>) {
        let mut files = self.0.lock();
        if let Some(known) = files.get(path)
            && known.page().is_some()
        {
            return (Arc::clone(known), None);
        }
        let stamp = stamp(path);
        let (page, problem) = match read(path) {
            Ok(page) => (Some(Arc::new(page)), None),
            Err(problem) => (None, Some(problem)),
        };
        let new = || {
            let last = Mutex::new(Last {
                stamp,
                page: None,
                problem: None,
            });
            let path = path.to_path_buf();
            Arc::new(PageFile { path, last })
        };
        let file = Arc::clone(files.entry(path.into()).or_insert_with(new));
        *file.last.lock() = Last {
            stamp,
            page,
            problem: None,
        };
        (file, problem)
    }

    /// Reads what changed. `say` gets a sentence for each file that cannot be read now. True: one
    /// that never could be has a page now, so what is said of its pool is no longer true.
    pub fn refresh(&self, say: &mut dyn FnMut(String)) -> bool {
        let files: Vec<_> = self.0.lock().values().cloned().collect();
        let mut appeared = false;
        for file in files {
            // Taken before the file is read: what changes meanwhile is seen the next time.
            let now = stamp(&file.path);
            if file.last.lock().stamp == now {
                continue;
            }
            match read(&file.path) {
                Ok(page) => {
                    let mut last = file.last.lock();
                    appeared |= last.page.is_none();
                    *last = Last {
                        stamp: now,
                        page: Some(Arc::new(page)),
                        problem: None,
                    };
                }
                Err(problem) => {
                    let mut last = file.last.lock();
                    last.stamp = now;
                    if last.page.is_some() {
                        let path = file.path.display();
                        let line =
                            format!("page {path}: {problem}; its last content stays in force");
                        last.problem = Some(line.clone());
                        say(line);
                    }
                }
            }
        }
        appeared
    }

    /// What `status` says of files that cannot be read now.
    pub fn troubles(&self) -> Vec<String> {
        let files = self.0.lock();
        let of = |file: &Arc<PageFile>| file.last.lock().problem.clone();
        files.values().filter_map(of).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// What `sluice check` says of the pools' files.
pub fn check(pools: &[PoolConfig]) -> Vec<FieldError> {
    Pages::load(pools).err().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn pools(files: &[(&Path, bool)]) -> Vec<PoolConfig> {
        let pools: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(n, (file, enabled))| {
                serde_json::json!({
                    "name": format!("p{n}"), "limit": 1, "enabled": enabled,
                    "degrade": {"file": file.to_str().expect("text")},
                })
            })
            .collect();
        let config = config::from_value(serde_json::json!({ "pools": pools }));
        config.expect("good").pools
    }

    fn text(pages: &Pages, path: &Path) -> String {
        let page = pages.get(path).0.page().expect("a page");
        String::from_utf8(page.bytes.clone()).expect("text")
    }

    #[test]
    fn pages_are_read_with_their_type_and_what_cannot_be_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("busy.html"), "<p>busy").expect("written");
        fs::write(at("busy.json"), "{}").expect("written");
        fs::write(at("empty.html"), "").expect("written");
        fs::create_dir(at("folder.html")).expect("made");
        fs::write(at("large.txt"), vec![b'x'; 1 << 20]).expect("written");
        fs::write(at("larger.txt"), vec![b'x'; (1 << 20) + 1]).expect("written");
        let good = pools(&[
            (&at("busy.html"), true),
            (&at("busy.json"), true),
            (&at("large.txt"), true),
            (&at("none.html"), false),
        ]);
        let pages = Pages::load(&good).expect("all are there, or not asked for");
        assert_eq!(text(&pages, &at("busy.html")), "<p>busy");
        let json = pages.get(&at("busy.json")).0.page().expect("a page");
        assert_eq!(json.content_type, "application/json; charset=utf-8");
        assert_eq!(check(&good), []);
        let bad = pools(&[
            (&at("none.html"), true),
            (&at("busy.html"), true),
            (&at("empty.html"), true),
            (&at("folder.html"), true),
            (&at("larger.txt"), true),
        ]);
        let found: Vec<String> = check(&bad)
            .iter()
            .map(|e| {
                format!(
                    "{}: {}",
                    e.field,
                    e.problem.replace(dir.path().to_str().expect("text"), "")
                )
            })
            .collect();
        let right = "name a page of at most 1 MiB that can be read";
        let expected = [
            format!(
                "pools[0].degrade.file: /none.html: No such file or directory (os error 2); {right}"
            ),
            format!("pools[2].degrade.file: /empty.html: is empty; {right}"),
            format!("pools[3].degrade.file: /folder.html: is not a regular file; {right}"),
            format!("pools[4].degrade.file: /larger.txt: has more than 1 MiB; {right}"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_changed_page_is_read_again_and_one_that_is_spoilt_keeps_its_content() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("busy.html");
        fs::write(&path, "one").expect("written");
        let pages = Pages::load(&pools(&[(&path, true)])).expect("there");
        // What a compiled pool has follows.
        let (Degraded::Page(held), None) = pages.compile(&Degrade::File(path.clone()), "pool:p")
        else {
            panic!("a page")
        };
        let shown = || held.page().expect("a page").bytes.clone();
        let mut said = Vec::new();
        let mut refresh = || {
            let appeared = pages.refresh(&mut |line| said.push(line));
            (appeared, std::mem::take(&mut said))
        };
        assert_eq!(refresh(), (false, vec![]));
        fs::write(&path, "another").expect("written");
        assert_eq!(refresh(), (false, vec![]));
        assert_eq!(shown(), b"another");
        // Replaced as editors do it.
        let beside = dir.path().join("new");
        fs::write(&beside, "renamed").expect("written");
        fs::rename(&beside, &path).expect("renamed");
        assert_eq!(refresh(), (false, vec![]));
        assert_eq!(shown(), b"renamed");
        fs::write(&path, "").expect("written");
        let (_, said) = refresh();
        assert!(
            said[0].ends_with("is empty; its last content stays in force"),
            "{said:?}"
        );
        fs::remove_file(&path).expect("removed");
        assert_eq!(refresh().1.len(), 1);
        assert_eq!(refresh().1.len(), 0, "said once");
        assert_eq!(shown(), b"renamed");
        fs::write(&path, "back").expect("written");
        assert_eq!(refresh(), (false, vec![]));
        assert_eq!(shown(), b"back");
    }

    #[test]
    fn a_file_that_comes_after_its_pool() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("late.html");
        let pages = Pages::default();
        let degrade = Degrade::File(path.clone());
        let (Degraded::Page(held), Some(error)) = pages.compile(&degrade, "pool:late") else {
            panic!("an error")
        };
        assert_eq!(error.field, "pool:late.degrade.file");
        assert_eq!(held.page(), None);
        let quiet = &mut |line: String| panic!("{line}");
        assert!(!pages.refresh(quiet));
        fs::write(&path, "late").expect("written");
        assert!(pages.refresh(quiet), "the pool is to be compiled anew");
        assert!(held.page().is_some());
        assert!(pages.compile(&degrade, "pool:late").1.is_none());
        assert!(!pages.refresh(quiet));
    }
}
