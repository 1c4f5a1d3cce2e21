//! From `match` and `unless` to matchers.
use super::{HeaderCondition, HostPattern, Matcher, PathPattern, PathTest, Wanted};
use crate::domain::config::FieldError;
use crate::domain::config::reader::{Node, Problems};
use crate::domain::key::is_token;
use crate::domain::units::quoted;
use regex::bytes::{Regex, RegexBuilder};

/// The most that one compiled regular expression may take.
const REGEX_BYTES: usize = 1 << 20;

impl Matcher {
    /// Reads a `match` or `unless` at `field`; what is wrong is added to `errors`,
    /// and the matcher is then of no use.
    pub fn parse(value: &serde_json::Value, field: &str, errors: &mut Vec<FieldError>) -> Matcher {
        let problems = Problems::default();
        let matcher = Matcher::read(&Node::root(value, field, &problems));
        errors.extend(problems.into_errors());
        matcher
    }

    pub(in crate::domain) fn read(node: &Node<'_>) -> Matcher {
        let Some(object) = node.object() else {
            return Matcher::default();
        };
        let matcher = Matcher {
            hosts: object
                .get("host")
                .and_then(|node| any_of(&node, parse_host)),
            paths: object
                .get("path")
                .and_then(|node| any_of(&node, parse_path)),
            methods: object
                .get("method")
                .and_then(|node| any_of(&node, parse_method)),
            headers: object
                .get("header")
                .map_or(Vec::new(), |node| read_headers(&node)),
        };
        object.refuse_others();
        matcher
    }
}

/// A text or a list of texts, each understood by `parse`.
fn any_of<T>(node: &Node<'_>, parse: fn(&str) -> Result<T, String>) -> Option<Vec<T>> {
    let items = node.one_or_list()?;
    Some(
        items
            .iter()
            .filter_map(|item| item.parsed("a text", parse))
            .collect(),
    )
}

fn parse_host(text: &str) -> Result<HostPattern, String> {
    let lower = text.to_ascii_lowercase();
    let name = lower
        .strip_prefix("*.")
        .or_else(|| lower.strip_prefix('.'))
        .unwrap_or(&lower);
    let bracketed = name.starts_with('[') && name.ends_with(']');
    if !bracketed && name.contains(':') {
        return Err(format!(
            "{} has a port; $host has none, write the name alone",
            quoted(text)
        ));
    }
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"*/?#@,;\"".contains(&byte);
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(plain) {
        return Err(format!(
            "{} is not a host; write \"example.com\", \"*.example.com\" (any name below) or \".example.com\" (both)",
            quoted(text)
        ));
    }
    // nginx drops a final dot from $host.
    let name = name.strip_suffix('.').unwrap_or(name);
    Ok(match lower.as_bytes() {
        [b'*', ..] => HostPattern::Below(format!(".{name}")),
        [b'.', ..] => HostPattern::Both(format!(".{name}")),
        _ => HostPattern::Exact(name.to_string()),
    })
}

fn parse_path(text: &str) -> Result<PathPattern, String> {
    let test = match text.strip_prefix('~') {
        Some(rest) => {
            let (pattern, case_blind) = match rest.strip_prefix('*') {
                Some(pattern) => (pattern, true),
                None => (rest, false),
            };
            PathTest::Regex(parse_regex(pattern.trim_start_matches(' '), case_blind)?)
        }
        None => parse_plain_path(text)?,
    };
    Ok(PathPattern {
        text: text.to_string(),
        test,
    })
}

fn parse_plain_path(text: &str) -> Result<PathTest, String> {
    let wrong = |why: &str| Err(format!("path {} {why}", quoted(text)));
    if !text.starts_with('/') {
        return wrong(
            "must start with / (\"/a\" exactly, \"/a/*\" and everything below) or ~ (a regular expression)",
        );
    }
    let base = text.strip_suffix("/*");
    let named = base.unwrap_or(text);
    if named.contains('*') {
        return wrong("has a * that is not the end /*; write a regular expression after ~");
    }
    if named.contains('?') || named.contains('#') {
        return wrong("has a query or fragment, which $uri never has; leave it out");
    }
    // nginx has resolved these before anything is matched.
    let dots = |segment: &str| segment == "." || segment == "..";
    if named.contains("//") || base.is_some_and(|base| base.ends_with('/')) {
        return wrong("has //, which nginx merges into /; write one");
    }
    if named.split('/').any(dots) {
        return wrong("has . or .. as a segment, which nginx resolves; leave it out");
    }
    Ok(base.map_or(PathTest::Exact, |base| PathTest::Prefix(base.len())))
}

/// Patterns are about bytes, and a dot is any byte: in Unicode mode, or without
/// `s`, a client could slip past `~^/api/.*` with an invalid byte or a line feed
/// in the path. What only Unicode mode understands (`\p{L}`) is compiled in it.
fn parse_regex(pattern: &str, case_blind: bool) -> Result<Regex, String> {
    if pattern.is_empty() {
        return Err(
            "has no regular expression after ~; write one, such as \"~^/img/\"".to_string(),
        );
    }
    let build = |unicode| {
        RegexBuilder::new(pattern)
            .unicode(unicode)
            .case_insensitive(case_blind)
            .dot_matches_new_line(true)
            .size_limit(REGEX_BYTES)
            .build()
    };
    build(false)
        .or_else(|_| build(true))
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(bytes) => {
                format!(
                    "{} takes more than {bytes} bytes; write a smaller one",
                    quoted(pattern)
                )
            }
            error => {
                let text = error.to_string();
                let reason = text.lines().last().unwrap_or_default();
                let reason = reason.strip_prefix("error: ").unwrap_or(reason);
                format!(
                    "{} is not a regular expression of the regex crate: {reason}",
                    quoted(pattern)
                )
            }
        })
}

fn parse_method(text: &str) -> Result<String, String> {
    let upper = |byte: u8| byte.is_ascii_uppercase() || b"_-".contains(&byte);
    if !text.is_empty() && text.len() <= 32 && text.bytes().all(upper) {
        return Ok(text.to_string());
    }
    let capitals = text.to_ascii_uppercase();
    if !text.is_empty() && capitals.bytes().all(upper) {
        return Err(format!(
            "method {} must be in upper case: {capitals:?}",
            quoted(text)
        ));
    }
    Err(format!(
        "{} is not a method; write one such as \"POST\"",
        quoted(text)
    ))
}

fn read_headers(node: &Node<'_>) -> Vec<HeaderCondition> {
    let Some(object) = node.object() else {
        return Vec::new();
    };
    let mut headers: Vec<HeaderCondition> = Vec::new();
    for (name, node) in object.all() {
        if !is_token(name) {
            node.error("is not the name of a header");
            continue;
        }
        let name = name.to_ascii_lowercase();
        if headers.iter().any(|other| other.name == name) {
            node.error("names a header a second time; names are blind to case");
            continue;
        }
        let Some(values) = any_of(&node, |text| Ok(text.to_string())) else {
            continue;
        };
        let wanted = match values.iter().any(|value| value == "*") {
            true => Wanted::Present,
            false => Wanted::AnyOf(values),
        };
        headers.push(HeaderCondition { name, wanted });
    }
    headers
}
