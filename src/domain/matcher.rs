//! Which requests an entry is for: the conditions `host`, `path`, `method` and
//! `header` of `match` and `unless`.
//!
//! Compiled once; a request is then matched without allocating, and a condition
//! that fails spares the ones after it.
mod cover;
mod parse;
mod path;

pub use path::normalise_path;

use regex::bytes::Regex;

/// A compiled `match` or `unless`. All conditions that are there must hold; one
/// that is a list holds when any of it does, an empty list never.
///
/// The default has no condition: every request.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    methods: Option<Vec<String>>,
    paths: Option<Vec<PathPattern>>,
    hosts: Option<Vec<HostPattern>>,
    headers: Vec<HeaderCondition>,
}

/// Lower case, as `$host` is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HostPattern {
    /// `example.com`
    Exact(String),
    /// `*.example.com`, kept as `.example.com`.
    Below(String),
    /// `.example.com`
    Both(String),
}

#[derive(Clone, Debug)]
struct PathPattern {
    /// As written, which is what the key part `path` is.
    text: String,
    test: PathTest,
}

#[derive(Clone, Debug)]
enum PathTest {
    /// The path is the text.
    Exact,
    /// `/a/*`, which is so many bytes of the text (`/a`) and everything below.
    Prefix(usize),
    Regex(Regex),
}

#[derive(Clone, Debug)]
struct HeaderCondition {
    /// Lower case.
    name: String,
    wanted: Wanted,
}

#[derive(Clone, Debug)]
enum Wanted {
    Present,
    AnyOf(Vec<String>),
}

/// What a matcher may ask of a request.
pub trait Facts {
    /// `$host`.
    fn host(&mut self) -> &[u8];
    /// `$uri`.
    fn uri(&mut self) -> &[u8];
    /// The path of the request line, normalised as nginx does it; the same slice
    /// as `uri` where nothing was rewritten.
    fn line_path(&mut self) -> &[u8];
    fn method(&mut self) -> &[u8];
    /// All lines of a header, joined; `None` where there is none.
    fn header(&mut self, lower_name: &str) -> Option<&[u8]>;
}

/// What a matcher will ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    pub host: bool,
    pub path: bool,
    pub method: bool,
    /// Lower case, sorted, each once.
    pub headers: Vec<String>,
}

impl Needs {
    pub fn add(&mut self, other: &Needs) {
        self.host |= other.host;
        self.path |= other.path;
        self.method |= other.method;
        self.headers.extend(other.headers.iter().cloned());
        self.headers.sort_unstable();
        self.headers.dedup();
    }
}

impl Matcher {
    /// `None`: no match. The text is that of the path pattern that matched (for an
    /// exact one it is the path), empty where there is no path condition.
    pub fn hit<'m>(&'m self, facts: &mut impl Facts) -> Option<&'m str> {
        if let Some(methods) = &self.methods {
            let method = facts.method();
            if !methods.iter().any(|wanted| wanted.as_bytes() == method) {
                return None;
            }
        }
        let text = match &self.paths {
            Some(paths) => first_path(paths, facts)?,
            None => "",
        };
        if let Some(hosts) = &self.hosts {
            let host = facts.host();
            if !hosts.iter().any(|pattern| pattern.holds(host)) {
                return None;
            }
        }
        for condition in &self.headers {
            let value = facts.header(&condition.name)?;
            if let Wanted::AnyOf(wanted) = &condition.wanted
                && !wanted.iter().any(|wanted| wanted.as_bytes() == value)
            {
                return None;
            }
        }
        Some(text)
    }

    /// What [`Matcher::hit`] may ask.
    pub fn needs(&self) -> Needs {
        let mut needs = Needs {
            host: self.hosts.is_some(),
            path: self.paths.is_some(),
            method: self.methods.is_some(),
            headers: Vec::new(),
        };
        let headers = self
            .headers
            .iter()
            .map(|condition| condition.name.clone())
            .collect();
        needs.add(&Needs {
            headers,
            ..Needs::default()
        });
        needs
    }

    /// There is a path condition, so a hit has a pattern's text.
    pub fn has_path(&self) -> bool {
        self.paths.is_some()
    }
}

/// The first pattern that one of the two paths matches.
fn first_path<'m>(paths: &'m [PathPattern], facts: &mut impl Facts) -> Option<&'m str> {
    let uri = facts.uri();
    let place = (uri.as_ptr(), uri.len());
    let line = facts.line_path();
    let hit = if (line.as_ptr(), line.len()) == place {
        paths.iter().find(|pattern| pattern.holds(line))
    } else {
        // In the order of the patterns, so that a rewrite to /index.php does not
        // prefer `/*` to the pattern before it that the client asked for.
        paths
            .iter()
            .find(|pattern| pattern.holds(facts.uri()) || pattern.holds(facts.line_path()))
    };
    hit.map(|pattern| pattern.text.as_str())
}

impl PathPattern {
    #[inline]
    fn holds(&self, path: &[u8]) -> bool {
        let text = self.text.as_bytes();
        match &self.test {
            PathTest::Exact => text == path,
            PathTest::Prefix(length) => is_at_or_below(&text[..*length], path),
            PathTest::Regex(regex) => regex.is_match(path),
        }
    }
}

#[inline]
fn is_at_or_below(base: &[u8], path: &[u8]) -> bool {
    path.strip_prefix(base)
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

impl HostPattern {
    fn holds(&self, host: &[u8]) -> bool {
        let ends_with = |domain: &str| {
            let start = host.len().checked_sub(domain.len());
            start.is_some_and(|start| host[start..].eq_ignore_ascii_case(domain.as_bytes()))
        };
        match self {
            HostPattern::Exact(name) => host.eq_ignore_ascii_case(name.as_bytes()),
            HostPattern::Below(domain) => host.len() > domain.len() && ends_with(domain),
            HostPattern::Both(domain) => {
                (host.len() > domain.len() && ends_with(domain))
                    || host.eq_ignore_ascii_case(&domain.as_bytes()[1..])
            }
        }
    }
}

#[cfg(test)]
mod tests;
