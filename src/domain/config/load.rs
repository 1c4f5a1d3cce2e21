//! From files, texts and tables to a configuration.
use super::reader::{Node, Problems, WHOLE_FILE};
use super::{Config, FieldError, json, pools, priority, rules, sections, store, warn};
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};

/// What a configuration may name that is not in it.
pub(super) trait Outside {
    /// The value of an environment variable, if it is set and text.
    fn env(&self, name: &str) -> Option<String>;
    fn file(&self, path: &str) -> io::Result<Vec<u8>>;
}

/// The process's own environment and file system.
struct Process;

impl Outside for Process {
    fn env(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn file(&self, path: &str) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }
}

/// The content of a regular file: a pipe or a device could be read for ever.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("is not a regular file"));
    }
    std::fs::read(path)
}

/// Reads a `.toml` or `.json` file, and the password and TLS files it names.
///
/// All errors are found, unless the file is not TOML or JSON at all.
pub fn from_path(path: &Path) -> Result<Config, Vec<FieldError>> {
    let whole = |problem: String| {
        vec![FieldError {
            field: WHOLE_FILE.to_string(),
            problem,
        }]
    };
    let ending = path.extension().and_then(|ending| ending.to_str());
    if !matches!(ending, Some("toml" | "json")) {
        return Err(whole(
            "has a name that ends in neither .toml nor .json".to_string(),
        ));
    }
    let bytes = read_file(path).map_err(|error| whole(format!("cannot be read: {error}")))?;
    if ending == Some("json") {
        return from_json(&bytes);
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => from_toml(text),
        Err(error) => {
            let line = memchr::memchr_iter(b'\n', &bytes[..error.valid_up_to()]).count() + 1;
            Err(whole(format!(
                "is not UTF-8 text at line {line}; TOML must be"
            )))
        }
    }
}

/// As [`from_path`], of TOML.
pub fn from_toml(text: &str) -> Result<Config, Vec<FieldError>> {
    let value = json::from_toml(text.strip_prefix('\u{feff}').unwrap_or(text))?;
    read(&value, Problems::default(), &Process)
}

/// As [`from_path`], of JSON.
pub fn from_json(bytes: &[u8]) -> Result<Config, Vec<FieldError>> {
    let value = json::from_json(bytes, "").map_err(|error| vec![error])?;
    read(&value, Problems::default(), &Process)
}

/// As [`from_path`], of a table of Lua, in which an empty table stands for an
/// empty list as well as for an empty object.
pub fn from_value(value: Value) -> Result<Config, Vec<FieldError>> {
    read(&value, Problems::for_lua(), &Process)
}

pub(super) fn read(
    value: &Value,
    problems: Problems,
    outside: &dyn Outside,
) -> Result<Config, Vec<FieldError>> {
    let config = read_sections(&Node::root(value, "", &problems), outside);
    let errors = problems.into_errors();
    match config {
        Some(mut config) if errors.is_empty() => {
            config.warnings = warn::of_sections(&config);
            config
                .warnings
                .extend(warn::of_rules(&warn::of_file(&config.rules)));
            config
                .warnings
                .extend(warn::of_pools(&warn::pools_of_file(&config.pools)));
            Ok(config)
        }
        _ => Err(errors),
    }
}

fn read_sections(root: &Node<'_>, outside: &dyn Outside) -> Option<Config> {
    let object = root.object()?;
    let store = store::read(object.get("store"), outside);
    let priority = priority::read(object.get("priority"));
    let frame = pools::Frame {
        levels: priority.levels,
        has_store: store.url.is_some(),
    };
    let config = Config {
        store,
        shm: sections::shm(object.get("shm")),
        client: sections::client(object.get("client")),
        lists: sections::lists(object.get("lists")),
        response: sections::response(object.get("response")),
        rules: rules::read_rules(object.get("rules")),
        pools: pools::read(object.get("pools"), frame),
        priority,
        warnings: Vec::new(),
    };
    object.later(&["identity", "nodes"]);
    object.refuse_others();
    Some(config)
}

/// Whether a path of `lists` is a glob.
pub fn is_glob(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

/// The files that a path or glob of `lists` names, sorted. A plain path is
/// itself, whether it exists or not; a glob may match nothing. An error is a
/// folder that cannot be read.
pub fn expand(pattern: &str) -> Result<Vec<PathBuf>, String> {
    if !is_glob(pattern) {
        return Ok(vec![PathBuf::from(pattern)]);
    }
    let options = glob::MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: true,
    };
    let found = glob::glob_with(pattern, options).map_err(|error| error.to_string())?;
    let mut files = Vec::new();
    for path in found {
        let path = path.map_err(|error| error.to_string())?;
        if !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(errors: &[FieldError]) -> Vec<String> {
        errors
            .iter()
            .map(|error| format!("{}: {}", error.field, error.problem))
            .collect()
    }

    #[test]
    fn files_by_their_ending() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        assert!(from_path(&write("a.toml", b"[shm]\nsize = \"1MiB\"\n")).is_ok());
        assert!(from_path(&write("b.toml", b"\xef\xbb\xbf[shm]\nsize = \"1MiB\"\n")).is_ok());
        assert!(from_path(&write("a.json", b"{\"shm\": {\"size\": \"1MiB\"}}")).is_ok());
        let rows = [
            (
                write("a.conf", b""),
                "(file): has a name that ends in neither .toml nor .json",
            ),
            (
                dir.path().join("none.toml"),
                "(file): cannot be read: No such file",
            ),
            (dir.path().to_path_buf(), "(file): has a name"),
            (
                write("c.toml", b"# a\n\xff"),
                "(file): is not UTF-8 text at line 2",
            ),
            (write("d.toml", b"a = \n"), "line 1, column 5: is not TOML"),
            (
                write("e.json", b"{\n\"shm\": }"),
                "shm: is not JSON at line 2, column 8",
            ),
            (write("f.json", b"{"), "line 1, column 1: is not JSON: EOF"),
            (
                write("g.toml", b"[shm]\nsize = nan\n"),
                "shm.size: must be a finite number",
            ),
        ];
        for (path, expected) in rows {
            let found = lines(&from_path(&path).unwrap_err());
            assert!(found[0].starts_with(expected), "{found:?}");
        }
    }

    #[test]
    fn globs_are_expanded_in_order() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a.txt", ".hidden.txt", "c.list"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        std::fs::create_dir(dir.path().join("d.txt")).unwrap();
        let at = |name: &str| dir.path().join(name);
        let pattern = |name: &str| at(name).to_str().unwrap().to_string();
        assert_eq!(
            expand(&pattern("*.txt")).unwrap(),
            [at("a.txt"), at("b.txt")]
        );
        assert_eq!(
            expand(&pattern("none-*")).unwrap(),
            [""; 0].map(PathBuf::from)
        );
        // A plain path is itself, and missing later.
        assert_eq!(expand(&pattern("none")).unwrap(), [at("none")]);
        assert_eq!(expand("/x/y").unwrap(), [Path::new("/x/y")]);
    }
}
