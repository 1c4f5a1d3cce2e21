use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A request, written down.
#[derive(Clone, Debug, Default)]
struct Request {
    host: Vec<u8>,
    uri: Vec<u8>,
    line: Option<Vec<u8>>,
    method: Vec<u8>,
    headers: Vec<(String, Vec<u8>)>,
}

impl Facts for Request {
    fn host(&mut self) -> &[u8] {
        &self.host
    }
    fn uri(&mut self) -> &[u8] {
        &self.uri
    }
    fn line_path(&mut self) -> &[u8] {
        self.line.as_deref().unwrap_or(&self.uri)
    }
    fn method(&mut self) -> &[u8] {
        &self.method
    }
    fn header(&mut self, lower_name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(name, _)| name == lower_name);
        found.map(|(_, value)| value.as_slice())
    }
}

fn request(uri: impl AsRef<[u8]>) -> Request {
    Request {
        uri: uri.as_ref().to_vec(),
        method: b"GET".to_vec(),
        ..Request::default()
    }
}

fn matcher(value: Value) -> Matcher {
    let mut errors = Vec::new();
    let matcher = Matcher::parse(&value, "match", &mut errors);
    assert_eq!(errors, []);
    matcher
}

fn errors(value: Value) -> Vec<String> {
    let mut errors = Vec::new();
    Matcher::parse(&value, "match", &mut errors);
    errors
        .into_iter()
        .map(|error| format!("{}: {}", error.field, error.problem))
        .collect()
}

#[test]
fn paths() {
    // patterns, paths that match, paths that do not
    let rows: [(Value, &[&str], &[&str]); 14] = [
        (
            json!("/a"),
            &["/a"],
            &["/", "/a/", "/ab", "/A", "/a/b", "/b/a"],
        ),
        (json!("/a/"), &["/a/"], &["/a", "/a/b"]),
        (json!("/"), &["/"], &["/a"]),
        (
            json!("/a/*"),
            &["/a", "/a/", "/a/b", "/a/b/c"],
            &["/", "/ab", "/b", "/A/b"],
        ),
        (json!("/*"), &["/", "/a", "/a/b"], &[]),
        (json!("/caf\u{e9}/*"), &["/caf\u{e9}/x"], &["/cafe/x"]),
        (json!("~^/img/"), &["/img/x"], &["/IMG/x", "/a/img/"]),
        (json!("~img"), &["/img/x", "/a/imgs"], &["/im"]),
        (json!("~*^/img/"), &["/IMG/x", "/img/"], &["/im"]),
        (json!("~ \\.php$"), &["/a.php"], &["/a.php5", "/aphp"]),
        (json!("~^/a.*z$"), &["/abz", "/a\nz"], &["/az\n"]),
        (json!("~^/\\p{Lu}"), &["/\u{c9}", "/A"], &["/a"]),
        (json!(["/a", "/b/*"]), &["/a", "/b/c"], &["/c"]),
        (json!([]), &[], &["/", "/a"]),
    ];
    for (pattern, good, bad) in rows {
        let matcher = matcher(json!({"path": pattern}));
        for path in good {
            assert!(
                matcher.hit(&mut request(path)).is_some(),
                "{pattern} {path}"
            );
        }
        for path in bad {
            assert!(
                matcher.hit(&mut request(path)).is_none(),
                "{pattern} {path}"
            );
        }
    }
    // An invalid byte does not slip past a dot.
    assert!(
        matcher(json!({"path": "~^/a.z$"}))
            .hit(&mut request(b"/a\xffz"))
            .is_some()
    );
}

#[test]
fn the_text_is_that_of_the_pattern_that_matched() {
    let matcher = matcher(json!({"path": ["/x", "/api/*", "~php$", "/*"]}));
    let rows = [
        ("/x", None, "/x"),
        ("/api/7", None, "/api/*"),
        ("/a.php", None, "~php$"),
        ("/y", None, "/*"),
        // PITFALLS 27: rewritten, the client's own path counts too, in the
        // patterns' order.
        ("/index.php", Some("/api/7"), "/api/*"),
        ("/api/7", Some("/index.php"), "/api/*"),
        ("/index.php", Some("/x"), "/x"),
        ("/index.php", Some("/y"), "~php$"),
    ];
    for (uri, line, text) in rows {
        let mut request = request(uri);
        request.line = line.map(|line| line.as_bytes().to_vec());
        assert_eq!(matcher.hit(&mut request), Some(text), "{uri} {line:?}");
    }
    assert_eq!(Matcher::default().hit(&mut request("/")), Some(""));
}

#[test]
fn hosts() {
    let rows: [(Value, &[&str], &[&str]); 7] = [
        (
            json!("example.com"),
            &["example.com"],
            &["a.example.com", "example.org", "", "xexample.com"],
        ),
        (json!("Example.COM"), &["example.com"], &["a.example.com"]),
        (json!("example.com."), &["example.com"], &[]),
        (
            json!("*.example.com"),
            &["a.example.com", "a.b.example.com"],
            &["example.com", ".example.com", "xexample.com", ""],
        ),
        (
            json!(".example.com"),
            &["example.com", "a.example.com"],
            &["xexample.com", "com"],
        ),
        (json!("[::1]"), &["[::1]"], &["::1"]),
        (json!(["a", ".b"]), &["a", "b", "x.b"], &["c"]),
    ];
    for (pattern, good, bad) in rows {
        let matcher = matcher(json!({"host": pattern}));
        let hit = |host: &&str| {
            let host = host.as_bytes().to_vec();
            matcher
                .hit(&mut Request {
                    host,
                    ..Request::default()
                })
                .is_some()
        };
        assert!(good.iter().all(hit), "{pattern}");
        assert!(!bad.iter().any(hit), "{pattern}");
    }
}

#[test]
fn methods_and_headers() {
    let with = |method: &str, headers: &[(&str, &str)]| Request {
        method: method.as_bytes().to_vec(),
        headers: headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect(),
        ..request("/")
    };
    let rows = [
        (json!({"method": "GET"}), with("GET", &[]), true),
        (json!({"method": "GET"}), with("HEAD", &[]), false),
        (json!({"method": ["POST", "PUT"]}), with("PUT", &[]), true),
        (json!({"method": []}), with("GET", &[]), false),
        (
            json!({"header": {"X-A": "1"}}),
            with("GET", &[("x-a", "1")]),
            true,
        ),
        (
            json!({"header": {"X-A": "1"}}),
            with("GET", &[("x-a", "11")]),
            false,
        ),
        (json!({"header": {"X-A": "1"}}), with("GET", &[]), false),
        (
            json!({"header": {"X-A": "*"}}),
            with("GET", &[("x-a", "")]),
            true,
        ),
        (
            json!({"header": {"X-A": "*"}}),
            with("GET", &[("x-b", "1")]),
            false,
        ),
        (
            json!({"header": {"X-A": ["1", "2"]}}),
            with("GET", &[("x-a", "2")]),
            true,
        ),
        (
            json!({"header": {"X-A": []}}),
            with("GET", &[("x-a", "2")]),
            false,
        ),
        (
            json!({"header": {"X-A": "1", "X-B": "2"}}),
            with("GET", &[("x-a", "1")]),
            false,
        ),
        (json!({"header": {}}), with("GET", &[]), true),
        // All conditions must hold.
        (
            json!({"path": "/", "method": "GET"}),
            with("GET", &[]),
            true,
        ),
        (
            json!({"path": "/x", "method": "GET"}),
            with("GET", &[]),
            false,
        ),
        (
            json!({"path": "/", "method": "PUT"}),
            with("GET", &[]),
            false,
        ),
        (json!({"path": "/", "host": "a"}), with("GET", &[]), false),
    ];
    for (value, mut request, expected) in rows {
        assert_eq!(
            matcher(value.clone()).hit(&mut request).is_some(),
            expected,
            "{value}"
        );
    }
}

#[test]
fn what_is_wrong_is_said() {
    let rows = [
        (
            json!({"path": "a"}),
            "match.path: path \"a\" must start with /",
        ),
        (
            json!({"path": ""}),
            "match.path: path \"\" must start with /",
        ),
        (
            json!({"path": ["/a", "/b*"]}),
            "match.path[1]: path \"/b*\" has a * that is not the end",
        ),
        (json!({"path": "/*/b"}), "match.path: path \"/*/b\" has a *"),
        (json!({"path": "/*/*"}), "match.path: path \"/*/*\" has a *"),
        (
            json!({"path": "/a?b=1"}),
            "match.path: path \"/a?b=1\" has a query",
        ),
        (
            json!({"path": "/a//b"}),
            "match.path: path \"/a//b\" has //",
        ),
        (json!({"path": "//*"}), "match.path: path \"//*\" has //"),
        (
            json!({"path": "/a/../b"}),
            "match.path: path \"/a/../b\" has . or ..",
        ),
        (
            json!({"path": "~("}),
            "match.path: \"(\" is not a regular expression",
        ),
        (
            json!({"path": "~*"}),
            "match.path: has no regular expression",
        ),
        (json!({"path": "~(?=a)"}), "look-around"),
        (
            json!({"path": "~(\\w{1000}){1000}"}),
            "takes more than 1048576 bytes",
        ),
        (
            json!({"path": 5}),
            "match.path: must be a text or a list of texts, not 5",
        ),
        (json!({"path": [5]}), "match.path[0]: must be a text, not 5"),
        (
            json!({"path": {}}),
            "match.path: must be a text or a list of texts",
        ),
        (
            json!({"path": null}),
            "match.path: must be a text or a list of texts, not null",
        ),
        (json!({"host": "a:80"}), "match.host: \"a:80\" has a port"),
        (json!({"host": ""}), "match.host: \"\" is not a host"),
        (
            json!({"host": "*.*.a"}),
            "match.host: \"*.*.a\" is not a host",
        ),
        (
            json!({"host": "http://a"}),
            "match.host: \"http://a\" has a port",
        ),
        (json!({"host": "a/b"}), "match.host: \"a/b\" is not a host"),
        (
            json!({"method": "post"}),
            "match.method: method \"post\" must be in upper case: \"POST\"",
        ),
        (
            json!({"method": "P T"}),
            "match.method: \"P T\" is not a method",
        ),
        (
            json!({"header": "X-A"}),
            "match.header: must be a table of fields",
        ),
        (
            json!({"header": {"X A": "1"}}),
            "match.header.\"X A\": is not the name of a header",
        ),
        (
            json!({"header": {"X-A": true}}),
            "match.header.X-A: must be a text or a list",
        ),
        (
            json!({"header": {"X-A": "1", "x-a": "2"}}),
            "names a header a second time",
        ),
        (
            json!({"paths": "/a"}),
            "match.paths: is not a known field; did you mean \"path\"?",
        ),
        (
            json!("/a"),
            "match: must be a table of fields, not the text \"/a\"",
        ),
        (json!(null), "match: must be a table of fields, not null"),
    ];
    for (value, expected) in rows {
        let found = errors(value.clone());
        assert_eq!(found.len(), 1, "{value}: {found:?}");
        assert!(found[0].contains(expected), "{value}: {}", found[0]);
    }
}

#[test]
fn needs_are_what_is_asked() {
    let mut needs = matcher(json!({"path": "/", "header": {"X-B": "*", "X-A": "*"}})).needs();
    let headers = vec!["x-a".to_string(), "x-b".to_string()];
    assert_eq!(
        needs,
        Needs {
            path: true,
            headers,
            ..Needs::default()
        }
    );
    needs.add(&matcher(json!({"host": "a", "method": [], "header": {"x-a": "1"}})).needs());
    let headers = vec!["x-a".to_string(), "x-b".to_string()];
    assert_eq!(
        needs,
        Needs {
            host: true,
            path: true,
            method: true,
            headers
        }
    );
}

#[test]
fn what_covers_what() {
    let rows = [
        (json!({}), json!({"path": "/a"}), true),
        (json!({"path": "/a"}), json!({}), false),
        (json!({"path": "/*"}), json!({}), true),
        (json!({"path": "/a"}), json!({"path": "/a"}), true),
        (json!({"path": "/a/*"}), json!({"path": "/a"}), true),
        (
            json!({"path": "/a/*"}),
            json!({"path": ["/a/b", "/a/c/*"]}),
            true,
        ),
        (
            json!({"path": "/a/*"}),
            json!({"path": ["/a/b", "/c"]}),
            false,
        ),
        (json!({"path": "/a/*"}), json!({"path": "/ab"}), false),
        (json!({"path": "/a"}), json!({"path": "/a/*"}), false),
        (
            json!({"path": ["/a/*", "/b"]}),
            json!({"path": ["/b", "/a"]}),
            true,
        ),
        (json!({"path": "~^/a"}), json!({"path": "/abc"}), true),
        (json!({"path": "~^/a"}), json!({"path": "~^/a"}), true),
        (json!({"path": "~^/a"}), json!({"path": "~^/ab"}), false),
        (json!({"path": []}), json!({"path": "/a"}), false),
        (json!({"path": "/a"}), json!({"path": []}), true),
        (
            json!({"method": ["GET", "POST"]}),
            json!({"method": "POST"}),
            true,
        ),
        (
            json!({"method": "POST"}),
            json!({"method": ["GET", "POST"]}),
            false,
        ),
        (
            json!({"path": "/a"}),
            json!({"path": "/a", "method": "POST"}),
            true,
        ),
        (
            json!({"path": "/a", "method": "POST"}),
            json!({"path": "/a"}),
            false,
        ),
        (
            json!({"host": ".a"}),
            json!({"host": ["a", "*.a", "*.b.a", ".a"]}),
            true,
        ),
        (json!({"host": "*.a"}), json!({"host": ".a"}), false),
        (json!({"host": "*.a"}), json!({"host": ".b.a"}), true),
        (json!({"host": "*.a"}), json!({"host": "a"}), false),
        (
            json!({"header": {"x": "*"}}),
            json!({"header": {"X": "1"}}),
            true,
        ),
        (
            json!({"header": {"x": ["1", "2"]}}),
            json!({"header": {"x": "2", "y": "*"}}),
            true,
        ),
        (
            json!({"header": {"x": "1"}}),
            json!({"header": {"x": "*"}}),
            false,
        ),
        (json!({"header": {"x": "1"}}), json!({}), false),
    ];
    for (wide, narrow, expected) in rows {
        let covers = matcher(wide.clone()).covers(&matcher(narrow.clone()));
        assert_eq!(covers, expected, "{wide} {narrow}");
    }
}

fn any_match() -> impl Strategy<Value = Value> {
    let path = prop_oneof![
        Just("/a"),
        Just("/a/*"),
        Just("/a/b"),
        Just("/a/b/*"),
        Just("/b"),
        Just("/*"),
        Just("~b")
    ];
    let host = prop_oneof![
        Just("x"),
        Just("*.x"),
        Just(".x"),
        Just("*.y.x"),
        Just("y.x")
    ];
    let method = prop_oneof![Just("GET"), Just("POST")];
    let header = prop_oneof![Just("1"), Just("2"), Just("*")];
    fn some<T: std::fmt::Debug>(
        one: impl Strategy<Value = T>,
    ) -> impl Strategy<Value = Option<Vec<T>>> {
        proptest::option::of(proptest::collection::vec(one, 0..3))
    }
    (some(path), some(host), some(method), some(header)).prop_map(|(path, host, method, header)| {
        let mut value = json!({});
        for (name, list) in [("path", path), ("host", host), ("method", method)] {
            if let Some(list) = list {
                value[name] = json!(list);
            }
        }
        if let Some(list) = header {
            value["header"] = json!({"x-a": list});
        }
        value
    })
}

fn any_request() -> impl Strategy<Value = Request> {
    let path = || {
        prop_oneof![
            Just("/"),
            Just("/a"),
            Just("/a/b"),
            Just("/a/b/c"),
            Just("/b")
        ]
    };
    let host = prop_oneof![Just("x"), Just("y.x"), Just("z.y.x"), Just("w")];
    let method = prop_oneof![Just("GET"), Just("POST"), Just("HEAD")];
    let header = proptest::option::of(prop_oneof![Just("1"), Just("2"), Just("3")]);
    (path(), proptest::option::of(path()), host, method, header).prop_map(
        |(uri, line, host, method, header)| Request {
            host: host.as_bytes().to_vec(),
            uri: uri.as_bytes().to_vec(),
            line: line.map(|line| line.as_bytes().to_vec()),
            method: method.as_bytes().to_vec(),
            headers: header
                .iter()
                .map(|value| ("x-a".to_string(), value.as_bytes().to_vec()))
                .collect(),
        },
    )
}

/// Straight from the contract's sentences.
fn naive(value: &Value, request: &Request) -> bool {
    let any = |name: &str, holds: &dyn Fn(&str) -> bool| match value.get(name) {
        None => true,
        Some(list) => list
            .as_array()
            .unwrap()
            .iter()
            .any(|item| holds(item.as_str().unwrap())),
    };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let paths = [
        text(&request.uri),
        text(request.line.as_ref().unwrap_or(&request.uri)),
    ];
    let host = text(&request.host);
    any("path", &|pattern| {
        paths.iter().any(
            |path| match (pattern.strip_suffix("/*"), pattern.strip_prefix('~')) {
                (_, Some(word)) => path.contains(word),
                (Some(base), _) => path == base || path.starts_with(&format!("{base}/")),
                _ => path == pattern,
            },
        )
    }) && any("host", &|pattern| match pattern.strip_prefix('*') {
        Some(below) => host.ends_with(below) && host != below,
        None => match pattern.strip_prefix('.') {
            Some(name) => host == name || host.ends_with(pattern),
            None => host == pattern,
        },
    }) && any("method", &|method| text(&request.method) == method)
        && value.get("header").is_none_or(|header| {
            let found = request.headers.first().map(|(_, value)| text(value));
            found.is_some_and(|found| {
                let wanted = header["x-a"].as_array().unwrap();
                wanted.iter().any(|one| one == "*" || one == &json!(found))
            })
        })
}

proptest! {
    #[test]
    fn as_the_sentences_say(value in any_match(), mut request in any_request()) {
        let expected = naive(&value, &request);
        prop_assert_eq!(matcher(value).hit(&mut request).is_some(), expected);
    }

    /// What covers another matcher hits whatever that one hits.
    #[test]
    fn covering_is_sound(wide in any_match(), narrow in any_match(), mut request in any_request()) {
        let (wide, narrow) = (matcher(wide), matcher(narrow));
        if wide.covers(&narrow) && narrow.hit(&mut request).is_some() {
            prop_assert!(wide.hit(&mut request).is_some());
        }
    }
}
