//! `sluice check FILE` through the built binary: exit codes, and one line an error.
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const RULE: &str = "[[rules]]\nname = \"login\"\nrate = \"5/m\"\ncapacity = 5\n";

fn sluice<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command
        .args(arguments)
        .env("SLUICE_T_SET", "x")
        .env_remove("SLUICE_T_UNSET");
    command.output().expect("the tool runs")
}

struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(TempDir::new().expect("a folder"))
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// The exit code and the lines on stderr, the file's name cut off.
fn check(file: &Path) -> (i32, Vec<String>) {
    let output = sluice(&["check".as_ref(), file.as_os_str()]);
    assert!(output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).expect("text");
    let prefix = format!("{}: ", file.display());
    let lines = text.lines().map(|line| {
        let (warning, rest) = match line.strip_prefix("warning: ") {
            Some(rest) => ("warning: ", rest),
            None => ("", line),
        };
        let rest = rest
            .strip_prefix(&prefix)
            .unwrap_or_else(|| panic!("{line}"));
        format!("{warning}{rest}")
    });
    (output.status.code().expect("an exit code"), lines.collect())
}

/// Each line starts as it should, and there are no others.
fn assert_lines(lines: &[String], starts: &[&str]) {
    assert_eq!(lines.len(), starts.len(), "{lines:#?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(
            line.starts_with(start),
            "{line} does not start with {start}"
        );
    }
}

#[test]
fn a_good_file_is_not_worth_a_word() {
    let files = Files::new();
    assert_eq!(check(&files.write("a.toml", RULE)), (0, vec![]));
    let json = r#"{"rules": [{"name": "login", "rate": "5/m", "capacity": 5}]}"#;
    assert_eq!(check(&files.write("a.json", json)), (0, vec![]));
}

#[test]
fn all_errors_are_found_a_line_each() {
    let files = Files::new();
    let text = "[[rules]]\nname = \"a b\"\nrate = \"0/s\"\ncapacity = 5\ncapcity = 5\n\
                [store]\nbackend = \"memcached\"\n[nodes]\n[[pools]]\n";
    let (code, lines) = check(&files.write("bad.toml", text));
    assert_eq!(code, 1);
    assert_lines(
        &lines,
        &[
            "store.backend: must be \"local\" or \"redis\", not the text \"memcached\"",
            "rules[0].name: \"a b\" is not a name; it must be 1 to 64 of",
            "rules[0].rate: rate \"0/s\" is below the least, 1/366d",
            "rules[0].capcity: is not a known field; did you mean \"capacity\"?",
            "pools[0].name: is missing",
            "pools[0].limit: is missing; it must be a whole number from 1",
            "nodes: is not in this version",
        ],
    );
}

#[test]
fn what_would_be_right_is_said() {
    let files = Files::new();
    let folder = format!("[shm]\npath = \"{}/none/sluice\"\n", files.path().display());
    let password = "[store]\nurl = \"redis://u:secret@127.0.0.1\"\n";
    let rows = [
        (folder, 1, "shm.path: "),
        (
            "[pools]\nname = \"a\"\nlimit = 1\n".into(),
            1,
            "pools: must be a list of tables ([[pools]] in TOML), not a table of fields",
        ),
        (
            "[rules]\nname = \"a\"\n".into(),
            1,
            "rules: must be a list of tables ([[rules]] in TOML)",
        ),
        (
            "[priority.rules]\nname = \"a\"\n".into(),
            1,
            "priority.rules: must be a list of tables ([[priority.rules]] in TOML)",
        ),
        (
            "[[rule]]\nname = \"a\"\n".into(),
            1,
            "rule: is not a known field; did you mean \"rules\"?",
        ),
        (
            "[foo]\n".into(),
            1,
            "foo: is not a known field; the fields here are store, priority, shm, client, lists, \
             response, rules, pools",
        ),
        (
            "[store]\nsync = \"25h\"\n".into(),
            1,
            "store.sync: must be from 50ms to 1h, not \"25h\"",
        ),
        (
            "[shm]\nsize = \"1KiB\"\n".into(),
            1,
            "shm.size: must be from 1MiB to 64GiB, not \"1KiB\"",
        ),
        (
            "[store]\nsync = \"1s\"\nsync = \"2s\"\n".into(),
            1,
            "line 3, column 1: is not TOML: duplicate key: it is there twice; leave out one",
        ),
        (
            password.into(),
            0,
            "warning: store.url: has a password in clear, for whoever may read this; name",
        ),
    ];
    for (text, code, start) in rows {
        let (found, lines) = check(&files.write("a.toml", &text));
        assert_eq!(found, code, "{text}: {lines:?}");
        assert_lines(&lines, &[start]);
    }
    let key = "[[rules]]\nname = \"a\"\nrate = \"5/m\"\ncapacity = 5\n\
               key = [\"ip\", \"cookie:a b\", \"header:\", \"ip\"]\n";
    let (_, lines) = check(&files.write("a.toml", key));
    assert_lines(
        &lines,
        &[
            "rules[0].key[1]: \"a b\" is not the name of a cookie; write one such as \"cookie:session\"",
            "rules[0].key[2]: \"\" is not the name of a header; write one such as \"header:X-Api-Key\"",
            "rules[0].key[3]: is there twice; leave out one",
        ],
    );
}

#[test]
fn unreadable_files() {
    let files = Files::new();
    let rows: [(PathBuf, &str); 6] = [
        (
            files.path().join("none.toml"),
            "(file): cannot be read: No such file",
        ),
        (
            files.write("a.conf", RULE),
            "(file): has a name that ends in neither .toml nor .json",
        ),
        (files.write("b.toml", "[[rules]\n"), "line 1, column"),
        (
            files.write("c.json", "{\"rules\": ["),
            "rules[0]: is not JSON at line 1",
        ),
        (
            files.write("d.json", "{\"shm\": {\"size\": 1e999}}"),
            "shm.size: is not JSON at line 1",
        ),
        (
            files.write("e.toml", b"\xff"),
            "(file): is not UTF-8 text at line 1",
        ),
    ];
    for (file, start) in rows {
        let (code, lines) = check(&file);
        assert_eq!(code, 1, "{lines:?}");
        assert_lines(&lines, &[start]);
    }
}

#[test]
fn warnings_alone_are_good() {
    let files = Files::new();
    let text = "[[rules]]\nname = \"a\"\nkey = [\"ua\"]\nrate = \"5/m\"\ncapacity = 5\n\
                [client]\ntrusted_proxies = [\"0.0.0.0/0\"]\n";
    let (code, lines) = check(&files.write("a.toml", text));
    assert_eq!(code, 0);
    assert_lines(
        &lines,
        &[
            "warning: client.trusted_proxies: 0.0.0.0/0 trusts everybody",
            "warning: rules[0].key: has only parts that the client chooses",
        ],
    );
}

#[test]
fn list_files_are_read() {
    let files = Files::new();
    files.write(
        "one.txt",
        "203.0.113.9/32\n10.0.0.0/33 # bad\n# comment\n0.0.0.0/0\n",
    );
    files.write("two.list", "2001:db8::/32\n");
    files.write("junk.txt", "no\nlist\nat\nall\n192.0.2.1\n");
    let at = |name: &str| files.path().join(name).display().to_string();
    let config = |block: &str, allow: &str| {
        files.write(
            "a.toml",
            format!("[lists]\nblocklist = [{block}]\nallowlist = [{allow}]\n"),
        )
    };
    let (one, junk) = (at("one.txt"), at("junk.txt"));

    let file = config(
        &format!("\"{one}\""),
        &format!("\"{}\", \"10.0.0.0/8\"", at("*.list")),
    );
    let (code, lines) = check(&file);
    assert_eq!(code, 0, "{lines:?}");
    let warnings = [
        format!("warning: lists.blocklist[0]: {one}: line 2: \"10.0.0.0/33\" has a bad prefix"),
        format!("warning: lists.blocklist[0]: {one}: 1 of 3 lines are bad and are skipped"),
        format!("warning: lists.blocklist[0]: {one}: 0.0.0.0/0 is every address of its family"),
    ];
    assert_lines(&lines, &warnings.each_ref().map(String::as_str));

    // More than half bad is no list, a missing file an error; a glob may be empty.
    let file = config(
        &format!("\"{}\", \"{}\"", at("none.txt"), at("none-*.txt")),
        &format!("\"{}\"", at("j*.txt")),
    );
    let (code, lines) = check(&file);
    assert_eq!(code, 1);
    assert_eq!(lines.len(), 7, "{lines:#?}");
    let starts = [
        format!("lists.blocklist[0]: {}: No such file", at("none.txt")),
        format!(
            "warning: lists.blocklist[1]: no file matches {}",
            at("none-*.txt")
        ),
        format!("warning: lists.allowlist[0]: {junk}: line 1: \"no\" is not an address"),
        format!("lists.allowlist[0]: {junk}: 4 of 5 lines are bad"),
    ];
    for (line, start) in [0, 1, 2, 6]
        .map(|index| &lines[index])
        .into_iter()
        .zip(starts)
    {
        assert!(
            line.starts_with(&start),
            "{line} does not start with {start}"
        );
    }
}

#[test]
fn pages_of_pools_are_read_and_have_to_fit() {
    let files = Files::new();
    let page = files.write("busy.html", "<p>busy");
    let pool = |name: &str, fields: &str| format!("[[pools]]\nname = \"{name}\"\n{fields}\n");
    let degrade = |path: &Path| format!("limit = 1\ndegrade.file = \"{}\"", path.display());
    let none = files.path().join("none.html");
    let rows = [
        (pool("a", &degrade(&page)), 0, vec![]),
        (
            pool("a", "limit = 1") + &pool("b", "limit = 2"),
            0,
            vec!["warning: pools[1].match: never"],
        ),
        (
            pool("a", "limit = 1\nmatch.path = \"/a\"") + &pool("b", &degrade(&none)),
            1,
            vec!["pools[1].degrade.file: "],
        ),
        (
            pool("a", "limit = 7500"),
            1,
            vec!["pools[0].queue.capacity: is 1000, and with the 7500 of limit that is 8500, but"],
        ),
        (
            "[shm]\nsize = \"128MiB\"\n".to_string() + &pool("a", "limit = 7500"),
            0,
            vec![],
        ),
    ];
    for (text, code, starts) in rows {
        let (found, lines) = check(&files.write("a.toml", &text));
        assert_eq!(found, code, "{text}: {lines:?}");
        assert_lines(&lines, &starts);
    }
}

#[test]
fn passwords_and_keys_are_read() {
    let files = Files::new();
    let store = |fields: String| files.write("a.toml", format!("[store]\n{fields}"));
    let rows = [
        (
            "url = \"redis://h\"\npassword_env = \"SLUICE_T_SET\"\n".to_string(),
            None,
        ),
        (
            "url = \"redis://h\"\npassword_env = \"SLUICE_T_UNSET\"\n".to_string(),
            Some("store.password_env: names \"SLUICE_T_UNSET\", which is"),
        ),
        (
            format!(
                "url = \"redis://h\"\npassword_file = \"{}/none\"\n",
                files.path().display()
            ),
            Some("store.password_file: "),
        ),
        (
            "url = \"rediss://h\"\ntls = { ca_file = \"/dev/null\" }\n".to_string(),
            Some("store.tls.ca_file: names a file without \"-----BEGIN CERTIFICATE-----\""),
        ),
    ];
    for (fields, start) in rows {
        let (code, lines) = check(&store(fields));
        assert_eq!(code, i32::from(start.is_some()), "{lines:?}");
        assert_lines(&lines, start.as_slice());
    }
}

#[test]
fn wrong_usage() {
    let rows: [&[&str]; 9] = [
        &[],
        &["chek", "a.toml"],
        &["check"],
        &["check", "a.toml", "b.toml"],
        &["check", "--nope", "a.toml"],
        &["--nope"],
        &["-x"],
        &["--version=1"],
        &[""],
    ];
    for arguments in rows {
        let output = sluice(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = String::from_utf8(output.stderr).expect("text");
        assert!(
            text.starts_with("sluice: ") && text.lines().count() == 1,
            "{text}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn help_and_version() {
    for arguments in [&["--help"][..], &["-h"], &["check", "--help"]] {
        let output = sluice(arguments);
        assert_eq!(output.status.code(), Some(0));
        assert!(
            String::from_utf8(output.stdout)
                .expect("text")
                .contains("sluice check FILE")
        );
    }
    let output = sluice(&["--version"]);
    assert_eq!(
        output.stdout,
        format!("sluice {}\n", env!("CARGO_PKG_VERSION")).into_bytes()
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_file_may_be_named_like_an_option() {
    let output = sluice(&["check", "--", "--nope.toml"]);
    assert_eq!(output.status.code(), Some(1));
}
