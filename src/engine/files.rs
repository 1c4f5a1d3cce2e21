//! The lists that the configuration names: entries written there, and files.
//!
//! Read at start and reload; later by the worker that synchronises, again when
//! inode, size or time of a file changed or a glob finds other files. A file
//! that cannot be read any more, or of which more than half is bad, keeps its
//! last content: a list must not open or shut the door by accident.
use crate::domain::config::{self, FieldError, ListSource, Lists};
use crate::domain::entry::{self, Subject};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What tells whether a file changed: device, inode, size, times of modification and change (s,
/// ns): the latter moves when only the permissions do.
pub(super) type Stamp = (u64, u64, u64, [i64; 4]);

#[derive(Clone, Debug, Default)]
struct File {
    stamp: Option<Stamp>,
    subjects: Vec<Subject>,
    rejected: u64,
    /// What was said when it was last read.
    warnings: Vec<String>,
}

/// The content of one of the two lists.
#[derive(Clone, Debug, Default)]
pub struct FileList {
    sources: Vec<ListSource>,
    files: BTreeMap<PathBuf, File>,
    /// The sentence about the folders that has been said.
    trouble: Option<String>,
}

/// Both lists as they were last read.
#[derive(Clone, Debug, Default)]
pub struct Files {
    pub allow: FileList,
    pub block: FileList,
}

pub(super) fn stamp(path: &Path) -> Option<Stamp> {
    let m = fs::metadata(path).ok()?;
    let times = [m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()];
    Some((m.dev(), m.ino(), m.size(), times))
}

/// The content of a regular file: a pipe or a device could be read for ever.
fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("is not a regular file"));
    }
    fs::read(path)
}

impl FileList {
    /// The files that the sources name now. A plain path is named whether it exists or not.
    fn paths(&self) -> Result<Vec<PathBuf>, String> {
        let mut out = Vec::new();
        for s in &self.sources {
            let ListSource::File(pattern) = s else {
                continue;
            };
            out.extend(config::expand(pattern).map_err(|e| format!("{pattern}: {e}"))?);
        }
        out.sort();
        out.dedup();
        Ok(out)
    }

    pub fn has_files(&self) -> bool {
        self.sources
            .iter()
            .any(|s| matches!(s, ListSource::File(_)))
    }

    /// Reads what changed. `say` gets a sentence for each thing an operator should know.
    /// True: the content is another than before.
    pub fn refresh(&mut self, say: &mut dyn FnMut(String)) -> bool {
        let paths = match self.paths() {
            Ok(p) => p,
            Err(e) => {
                if self.trouble.is_none() {
                    let line = format!("list {e}: the last content stays in force");
                    say(line.clone());
                    self.trouble = Some(line);
                }
                return false;
            }
        };
        self.trouble = None;
        let mut changed = false;
        for path in &paths {
            let now = stamp(path);
            let known = self.files.get(path);
            if known.is_some_and(|f| f.stamp == now) {
                continue;
            }
            changed |= self.read(path, now);
            let read = self.files.get(path);
            let warnings = read.into_iter().flat_map(|f| &f.warnings);
            warnings.for_each(|line| say(line.clone()));
        }
        // A file that a glob no longer finds is gone; one that was named stays.
        let before = self.files.len();
        // One whose folder may not be looked into any more keeps its last content.
        let gone =
            |p: &Path| matches!(fs::symlink_metadata(p), Err(e) if e.kind() == ErrorKind::NotFound);
        self.files
            .retain(|p, _| paths.binary_search(p).is_ok() || !gone(p));
        changed | (self.files.len() != before)
    }

    /// What there is to say of it is left with it.
    fn read(&mut self, path: &Path, now: Option<Stamp>) -> bool {
        let shown = path.display();
        let mut warnings = Vec::new();
        let bytes = match read_file(path) {
            Ok(b) => b,
            Err(e) => {
                warnings.push(format!(
                    "list {shown}: {e}; its last content stays in force"
                ));
                // Said once for this state of the file, tried again when it changes.
                let f = self.files.entry(path.into()).or_default();
                f.stamp = now;
                f.warnings = warnings;
                return false;
            }
        };
        let parsed = entry::parse_file(&bytes);
        let bad = parsed.rejected_count as u64;
        let good = parsed.subjects.len() as u64;
        for (line, why) in &parsed.rejected {
            warnings.push(format!(
                "list {shown}, line {line}: {why}; the line is skipped"
            ));
        }
        if bad > parsed.rejected.len() as u64 {
            warnings.push(format!("list {shown}: {bad} bad lines in all"));
        }
        if bad > good {
            warnings.push(format!(
                "list {shown}: {bad} of {} lines are no entries, so this is hardly a list; its last \
                 content stays in force",
                bad + good
            ));
            let f = self.files.entry(path.into()).or_default();
            f.stamp = now;
            f.rejected = bad;
            f.warnings = warnings;
            return false;
        }
        for subject in parsed.subjects.iter().filter(|s| entry::is_everything(s)) {
            warnings.push(format!(
                "list {shown}: {subject} is every address of its family"
            ));
        }
        let file = File {
            stamp: now,
            subjects: parsed.subjects,
            rejected: bad,
            warnings,
        };
        self.files.insert(path.into(), file);
        true
    }

    /// Lines that were skipped.
    pub fn rejected(&self) -> u64 {
        self.files.values().map(|f| f.rejected).sum()
    }

    /// What an operator should know of the files as they are.
    fn warnings(&self) -> impl Iterator<Item = &String> {
        let files = self.files.values().flat_map(|f| &f.warnings);
        self.trouble.iter().chain(files)
    }

    pub fn subjects(&self) -> impl Iterator<Item = &Subject> {
        let written = self.sources.iter().filter_map(|s| match s {
            ListSource::Entry(e) => Some(e),
            ListSource::File(_) => None,
        });
        written.chain(self.files.values().flat_map(|f| &f.subjects))
    }
}

impl Files {
    /// Reads everything for the first time. `previous`: what the last setup had read, which stays
    /// where a file is bad now. A named file that is missing is an error.
    pub fn load(
        config: &Lists,
        previous: Option<&Files>,
        say: &mut dyn FnMut(String),
    ) -> Result<Files, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut load = |field: &str, sources: &[ListSource], old: Option<&FileList>| {
            for (i, s) in sources.iter().enumerate() {
                let ListSource::File(p) = s else { continue };
                if !config::is_glob(p)
                    && let Err(e) = read_file(Path::new(p))
                {
                    errors.push(FieldError {
                        field: format!("{field}[{i}]"),
                        problem: format!("{p}: {e}; name a file that can be read"),
                    });
                }
            }
            let mut list = FileList {
                sources: sources.to_vec(),
                files: old.map(|o| o.files.clone()).unwrap_or_default(),
                trouble: None,
            };
            list.refresh(say);
            list
        };
        let allow = load(
            "lists.allowlist",
            &config.allowlist,
            previous.map(|p| &p.allow),
        );
        let block = load(
            "lists.blocklist",
            &config.blocklist,
            previous.map(|p| &p.block),
        );
        if errors.is_empty() {
            Ok(Files { allow, block })
        } else {
            Err(errors)
        }
    }

    /// Reads what changed; true when anything did.
    pub fn refresh(&mut self, say: &mut dyn FnMut(String)) -> bool {
        self.allow.refresh(say) | self.block.refresh(say)
    }

    /// Of both.
    pub fn warnings(&self) -> Vec<String> {
        let both = self.allow.warnings().chain(self.block.warnings());
        both.cloned().collect()
    }

    pub fn is_empty(&self) -> bool {
        self.allow.subjects().next().is_none() && self.block.subjects().next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pattern: &Path) -> (FileList, Vec<String>) {
        let mut said = Vec::new();
        let mut list = FileList {
            sources: vec![ListSource::File(pattern.display().to_string())],
            ..FileList::default()
        };
        list.refresh(&mut |line| said.push(line));
        (list, said)
    }

    fn shown(list: &FileList) -> Vec<String> {
        list.subjects().map(ToString::to_string).collect()
    }

    #[test]
    fn a_changed_file_is_read_again_and_one_that_is_gone_or_spoilt_keeps_its_content() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("list.txt");
        fs::write(&path, "10.0.0.0/8\n").expect("written");
        let (mut list, said) = list(&path);
        assert_eq!((shown(&list), said.len()), (vec!["10.0.0.0/8".into()], 0));
        let mut said = Vec::new();
        assert!(!list.refresh(&mut |l| said.push(l)), "nothing changed");
        fs::write(&path, "192.0.2.1\n192.0.2.2 # two\n").expect("written");
        assert!(list.refresh(&mut |l| said.push(l)));
        assert_eq!(shown(&list), ["192.0.2.1", "192.0.2.2"]);
        fs::write(&path, "<html>\n<body>\n192.0.2.3\n").expect("written");
        assert!(!list.refresh(&mut |l| said.push(l)));
        fs::remove_file(&path).expect("removed");
        list.refresh(&mut |l| said.push(l));
        assert_eq!(shown(&list), ["192.0.2.1", "192.0.2.2"], "{said:?}");
    }

    #[test]
    fn a_warning_lasts_as_long_as_what_it_is_about() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("list.txt");
        let warned = |list: &FileList| list.warnings().cloned().collect::<Vec<_>>();
        fs::write(&path, "10.0.0.0/8\nnobody\n192.0.2.1\n").expect("written");
        let (mut list, said) = list(&path);
        assert_eq!((warned(&list), said.len()), (said, 1));
        // Said once, and still so.
        list.refresh(&mut |l| panic!("{l}"));
        assert!(warned(&list)[0].contains("line 2"));
        // Another one in its place, whether the content is taken or not.
        fs::write(&path, "somebody\nanybody\n192.0.2.1").expect("written");
        let mut said = Vec::new();
        assert!(!list.refresh(&mut |l| said.push(l)));
        assert_eq!((warned(&list), said.len()), (said, 3));
        fs::write(&path, "192.0.2.2").expect("written");
        assert!(list.refresh(&mut |l| panic!("{l}")));
        assert!(warned(&list).is_empty());
        fs::write(&path, "0.0.0.0/0").expect("written");
        assert!(list.refresh(&mut |_| ()));
        assert!(warned(&list)[0].contains("every address"));
    }

    #[test]
    fn a_glob_follows_what_it_finds() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("a.txt"), "10.0.0.1").expect("written");
        let (mut list, _) = list(&dir.path().join("*.txt"));
        fs::write(dir.path().join("b.txt"), "10.0.0.2").expect("written");
        assert!(list.refresh(&mut |_| ()));
        assert_eq!(shown(&list), ["10.0.0.1", "10.0.0.2"]);
        fs::remove_file(dir.path().join("a.txt")).expect("removed");
        assert!(list.refresh(&mut |_| ()));
        assert_eq!(shown(&list), ["10.0.0.2"]);
    }

    #[test]
    fn a_device_is_no_list() {
        let config = Lists {
            blocklist: vec![ListSource::File("/dev/zero".into())],
            ..Lists::default()
        };
        let e = Files::load(&config, None, &mut |_| ()).expect_err("endless");
        assert_eq!(e[0].field, "lists.blocklist[0]");
    }
}
