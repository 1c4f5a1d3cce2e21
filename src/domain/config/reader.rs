//! Reading a `Value` field by field, with the path of each, so that all errors
//! are found at once and each names its field.
use super::FieldError;
use crate::domain::units::{parse_duration, quoted};
use serde_json::{Map, Value};
use std::cell::{Cell, RefCell};
use std::sync::LazyLock;
use std::time::Duration;

/// Names the configuration as a whole in an error.
pub(super) const WHOLE_FILE: &str = "(file)";

/// Collects what is wrong.
#[derive(Default)]
pub(in crate::domain) struct Problems {
    errors: RefCell<Vec<FieldError>>,
    /// An empty table of Lua may be an empty list or an empty object.
    empty_is_either: Cell<bool>,
}

impl Problems {
    pub fn for_lua() -> Problems {
        Problems {
            empty_is_either: Cell::new(true),
            ..Problems::default()
        }
    }

    pub fn add(&self, field: &str, problem: impl Into<String>) {
        let field = if field.is_empty() { WHOLE_FILE } else { field };
        let error = FieldError {
            field: field.to_string(),
            problem: problem.into(),
        };
        self.errors.borrow_mut().push(error);
    }

    pub fn into_errors(self) -> Vec<FieldError> {
        self.errors.into_inner()
    }
}

/// One value at its place.
pub(in crate::domain) struct Node<'a> {
    pub value: &'a Value,
    pub path: String,
    problems: &'a Problems,
}

impl<'a> Node<'a> {
    pub fn root(value: &'a Value, path: &str, problems: &'a Problems) -> Node<'a> {
        Node {
            value,
            path: path.to_string(),
            problems,
        }
    }

    /// Notes an error about this field.
    pub fn error(&self, problem: impl Into<String>) {
        self.problems.add(&self.path, problem);
    }

    /// Notes that something else belongs here.
    pub fn wrong<T>(&self, right: &str) -> Option<T> {
        self.error(format!("must be {right}, not {}", described(self.value)));
        None
    }

    pub fn text(&self) -> Option<&'a str> {
        self.text_of("a text")
    }

    fn text_of(&self, right: &str) -> Option<&'a str> {
        self.value.as_str().or_else(|| self.wrong(right))
    }

    /// An absolute path.
    pub fn text_of_path(&self) -> Option<&'a str> {
        match self.value.as_str() {
            Some(path) if path.starts_with('/') && !path.contains('\0') => Some(path),
            _ => self.wrong("an absolute path"),
        }
    }

    pub fn flag(&self) -> Option<bool> {
        self.value.as_bool().or_else(|| self.wrong("true or false"))
    }

    /// A whole number within the bounds; Lua's `5.0` is one.
    pub fn whole(&self, least: u64, most: u64) -> Option<u64> {
        /// Doubles count exactly up to here.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        let number = self.value.as_u64().or_else(|| {
            let float = self.value.as_f64()?;
            (float.fract() == 0.0 && (0.0..=EXACT).contains(&float)).then_some(float as u64)
        });
        match number {
            Some(number) if (least..=most).contains(&number) => Some(number),
            _ => self.wrong(&format!("a whole number from {least} to {most}")),
        }
    }

    pub fn number(&self) -> Option<f64> {
        self.value.as_f64().or_else(|| self.wrong("a number"))
    }

    /// A duration within the bounds.
    pub fn duration(&self, (least, most): (Duration, Duration)) -> Option<Duration> {
        let duration = self.parsed("a duration such as \"20ms\"", parse_duration)?;
        if !(least..=most).contains(&duration) {
            self.error(format!(
                "must be from {} to {}, not {}",
                bound(least),
                bound(most),
                quoted(self.value.as_str().unwrap_or_default())
            ));
            return None;
        }
        Some(duration)
    }

    /// One of some words.
    pub fn choice<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let found = self
            .value
            .as_str()
            .and_then(|text| words.iter().find(|(word, _)| *word == text));
        match found {
            Some((_, meaning)) => Some(*meaning),
            None => {
                let all: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
                self.wrong(&one_of(&all))
            }
        }
    }

    /// A text that `parse` understands; its errors are sentences about the text.
    pub fn parsed<T>(
        &self,
        right: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        match parse(self.text_of(right)?) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.error(problem);
                None
            }
        }
    }

    pub fn list(&self) -> Option<Vec<Node<'a>>> {
        match self.value {
            Value::Array(items) => Some(self.items(items)),
            Value::Object(map) if self.stands_for_empty(map.is_empty()) => Some(Vec::new()),
            _ => self.wrong("a list"),
        }
    }

    /// A list of tables, which is written `[[…]]` in TOML.
    pub fn tables(&self) -> Option<Vec<Node<'a>>> {
        match self.value {
            Value::Object(map) if !self.stands_for_empty(map.is_empty()) => {
                self.wrong(&format!("a list of tables ([[{}]] in TOML)", self.path))
            }
            _ => self.list(),
        }
    }

    /// A list, or one element in its place.
    pub fn one_or_list(&self) -> Option<Vec<Node<'a>>> {
        match self.value {
            Value::Array(items) => Some(self.items(items)),
            Value::Object(map) if self.stands_for_empty(map.is_empty()) => Some(Vec::new()),
            Value::String(_) => Some(vec![Node {
                path: self.path.clone(),
                ..*self
            }]),
            _ => self.wrong("a text or a list of texts"),
        }
    }

    fn items(&self, items: &'a [Value]) -> Vec<Node<'a>> {
        let node = |(index, value)| Node {
            value,
            path: format!("{}[{index}]", self.path),
            problems: self.problems,
        };
        items.iter().enumerate().map(node).collect()
    }

    pub fn object(&self) -> Option<Object<'a>> {
        static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        let map = match self.value {
            Value::Object(map) => map,
            Value::Array(items) if self.stands_for_empty(items.is_empty()) => &EMPTY,
            _ => return self.wrong("a table of fields"),
        };
        let known = RefCell::default();
        Some(Object {
            map,
            path: self.path.clone(),
            problems: self.problems,
            known,
            later: RefCell::default(),
        })
    }

    fn stands_for_empty(&self, is_empty: bool) -> bool {
        is_empty && self.problems.empty_is_either.get()
    }
}

/// An object whose fields are asked for by name; what nobody asked for is
/// unknown.
pub(in crate::domain) struct Object<'a> {
    map: &'a Map<String, Value>,
    pub path: String,
    problems: &'a Problems,
    known: RefCell<Vec<&'static str>>,
    /// Refused already, as nobody can write them yet.
    later: RefCell<Vec<&'static str>>,
}

impl<'a> Object<'a> {
    /// The field, if it is there.
    pub fn get(&self, name: &'static str) -> Option<Node<'a>> {
        let mut known = self.known.borrow_mut();
        if !known.contains(&name) {
            known.push(name);
        }
        let value = self.map.get(name)?;
        Some(Node {
            value,
            path: join(&self.path, name),
            problems: self.problems,
        })
    }

    /// The field; it is an error when it is not there. `right` says what belongs
    /// there.
    pub fn required(&self, name: &'static str, right: &str) -> Option<Node<'a>> {
        let node = self.get(name);
        if node.is_none() {
            self.problems.add(
                &join(&self.path, name),
                format!("is missing; it must be {right}"),
            );
        }
        node
    }

    /// Fields that a later version will have.
    pub fn later(&self, names: &[&'static str]) {
        for name in names {
            self.later.borrow_mut().push(name);
            if self.map.contains_key(*name) {
                self.error_at(name, NOT_YET);
            }
        }
    }

    /// All fields, whatever their names.
    pub fn all(&self) -> impl Iterator<Item = (&'a str, Node<'a>)> {
        self.map.iter().map(|(name, value)| {
            let path = join(&self.path, &shown(name));
            (
                name.as_str(),
                Node {
                    value,
                    path,
                    problems: self.problems,
                },
            )
        })
    }

    pub fn only_field(&self, name: &str) -> Option<&'a Value> {
        if self.map.len() == 1 {
            self.map.get(name)
        } else {
            None
        }
    }

    /// Notes an error about the object itself.
    pub fn error_here(&self, problem: impl Into<String>) {
        self.problems.add(&self.path, problem);
    }

    pub fn error_at(&self, name: &str, problem: impl Into<String>) {
        self.problems.add(&join(&self.path, name), problem);
    }

    /// To be called when every field has been asked for.
    pub fn refuse_others(&self) {
        let known = self.known.borrow();
        for name in self.map.keys() {
            if known.contains(&name.as_str()) || self.later.borrow().contains(&name.as_str()) {
                continue;
            }
            let advice = match closest(name, &known) {
                Some(close) => format!("did you mean {close:?}?"),
                None => format!("the fields here are {}", known.join(", ")),
            };
            self.error_at(&shown(name), format!("is not a known field; {advice}"));
        }
    }
}

/// For fields of features that are not built yet.
pub(super) const NOT_YET: &str = "is not in this version; leave it out";

/// A bound as an operator would write it.
fn bound(duration: Duration) -> String {
    const HOUR_S: u64 = 3600;
    let seconds = duration.as_secs();
    if seconds >= HOUR_S && seconds.is_multiple_of(HOUR_S) {
        format!("{}h", seconds / HOUR_S)
    } else {
        format!("{duration:?}")
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_string()
    } else {
        format!("{path}.{name}")
    }
}

/// A field's name for a path: as it is where it is plain, else quoted.
pub(super) fn shown(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    if !name.is_empty() && name.len() <= 64 && name.bytes().all(plain) {
        name.to_string()
    } else {
        quoted(name)
    }
}

/// What was found, for "must be …, not …".
pub(super) fn described(value: &Value) -> String {
    match value {
        Value::Null => "null".to_string(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("the text {}", quoted(text)),
        Value::Array(_) => "a list".to_string(),
        Value::Object(_) => "a table of fields".to_string(),
    }
}

pub(super) fn one_of(words: &[String]) -> String {
    match words {
        [] => "nothing".to_string(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

/// The known name that was probably meant.
fn closest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase().replace('-', "_");
    let (distance, close) = known
        .iter()
        .map(|known| (edits(&lower, known), *known))
        .min_by_key(|pair| pair.0)?;
    (distance <= 2 && distance < close.len().min(lower.len())).then_some(close)
}

/// How many characters must be added, dropped, changed or swapped with their
/// neighbour.
fn edits(a: &str, b: &str) -> usize {
    if a.len() > 64 {
        return usize::MAX;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let changed = usize::from(a[i - 1] != b[j - 1]);
                let mut least = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                least = least.min(rows[i - 1][j - 1] + changed);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    least = least.min(rows[i - 2][j - 2] + 1);
                }
                least
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn errors(value: Value, read: impl Fn(&Object<'_>)) -> Vec<String> {
        let problems = Problems::default();
        let object = Node::root(&value, "a", &problems).object().unwrap();
        read(&object);
        object.refuse_others();
        drop(object);
        let line = |error: FieldError| format!("{}: {}", error.field, error.problem);
        problems.into_errors().into_iter().map(line).collect()
    }

    #[test]
    fn unknown_fields_with_what_was_probably_meant() {
        let read = |object: &Object<'_>| {
            for name in ["rate", "capacity", "missing_key"] {
                object.get(name);
            }
        };
        let rows = [
            (
                "capcity",
                "a.capcity: is not a known field; did you mean \"capacity\"?",
            ),
            (
                "ratte",
                "a.ratte: is not a known field; did you mean \"rate\"?",
            ),
            (
                "raet",
                "a.raet: is not a known field; did you mean \"rate\"?",
            ),
            (
                "Missing-Key",
                "a.Missing-Key: is not a known field; did you mean \"missing_key\"?",
            ),
            (
                "burst",
                "a.burst: is not a known field; the fields here are rate, capacity, missing_key",
            ),
            (
                "a b",
                "a.\"a b\": is not a known field; the fields here are rate, capacity, missing_key",
            ),
            (
                "",
                "a.\"\": is not a known field; the fields here are rate, capacity, missing_key",
            ),
        ];
        for (name, expected) in rows {
            assert_eq!(errors(json!({ name: 1 }), read), [expected]);
        }
        assert_eq!(errors(json!({"rate": 1, "capacity": null}), read), [""; 0]);
    }

    #[test]
    fn wrong_values_name_the_field_and_the_bound() {
        let value = json!({"n": 0, "m": "5", "o": 1.5, "p": null, "q": -1, "t": 3, "f": "yes",
                           "c": "red", "l": "x", "b": {}, "s": 1, "u": 1});
        let found = errors(value, |object| {
            for name in ["n", "m", "o", "p", "q"] {
                assert_eq!(object.get(name).unwrap().whole(1, 10), None);
            }
            object.get("t").unwrap().text();
            object.get("f").unwrap().flag();
            object
                .get("c")
                .unwrap()
                .choice(&[("green", 1), ("blue", 2)]);
            object.get("l").unwrap().list();
            object.get("b").unwrap().list();
            object.get("b").unwrap().tables();
            object.required("r", "a rate");
            object.later(&["l", "s"]);
            object.later(&["absent"]);
        });
        let expected = [
            "a.n: must be a whole number from 1 to 10, not 0",
            "a.m: must be a whole number from 1 to 10, not the text \"5\"",
            "a.o: must be a whole number from 1 to 10, not 1.5",
            "a.p: must be a whole number from 1 to 10, not null",
            "a.q: must be a whole number from 1 to 10, not -1",
            "a.t: must be a text, not 3",
            "a.f: must be true or false, not the text \"yes\"",
            "a.c: must be \"green\" or \"blue\", not the text \"red\"",
            "a.l: must be a list, not the text \"x\"",
            "a.b: must be a list, not a table of fields",
            "a.b: must be a list of tables ([[a.b]] in TOML), not a table of fields",
            "a.r: is missing; it must be a rate",
            "a.l: is not in this version; leave it out",
            "a.s: is not in this version; leave it out",
            "a.u: is not a known field; the fields here are n, m, o, p, q, t, f, c, l, b, r",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn whole_numbers_of_lua_are_doubles() {
        let problems = Problems::for_lua();
        for (value, expected) in [
            (json!(5.0), Some(5)),
            (json!(1e300), None),
            (json!([]), None),
        ] {
            assert_eq!(Node::root(&value, "n", &problems).whole(0, 10), expected);
        }
        assert!(
            Node::root(&json!({}), "l", &problems)
                .list()
                .unwrap()
                .is_empty()
        );
        assert!(Node::root(&json!([]), "o", &problems).object().is_some());
        assert!(Node::root(&json!([1]), "o", &problems).object().is_none());
    }
}
