//! JSON and TOML as a `Value`, with an error that names the field.
//!
//! serde_json's own `Value` takes the last of two equal fields and its errors
//! tell a line and column only; what an operator put into Redis has one line.
use super::FieldError;
use super::reader::shown;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::{Map, Number, Value};
use std::cell::RefCell;
use std::fmt;

/// The most of a path that an error shows.
const PATH_PARTS: usize = 8;

/// Reads JSON; `root` is the path of the whole.
pub(super) fn from_json(bytes: &[u8], root: &str) -> Result<Value, FieldError> {
    let path = RefCell::new(Vec::new());
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let result = Seed(&path)
        .deserialize(&mut json)
        .and_then(|value| json.end().map(|()| value));
    result.map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        let text = error.to_string();
        let reason = text.split(" at line ").next().unwrap_or(&text);
        let field = joined(root, &path.borrow());
        // A text without a field to name is named by the place.
        match (field.is_empty(), error.classify()) {
            (true, _) => FieldError {
                field: place,
                problem: format!("is not JSON: {reason}"),
            },
            (false, Category::Data) => FieldError {
                field,
                problem: format!("{reason} ({place})"),
            },
            (false, _) => FieldError {
                field,
                problem: format!("is not JSON at {place}: {reason}"),
            },
        }
    })
}

fn joined(root: &str, parts: &[String]) -> String {
    let mut path = root.to_string();
    for part in parts.iter().take(PATH_PARTS) {
        if !path.is_empty() && !part.starts_with('[') {
            path.push('.');
        }
        path.push_str(part);
    }
    if parts.len() > PATH_PARTS {
        path.push('…');
    }
    path
}

/// Reads one value; the path to it stays as it is where that fails.
struct Seed<'p>(&'p RefCell<Vec<String>>);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Number::from_f64(number)
            .map(Value::Number)
            .ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_string()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            self.0.borrow_mut().push(format!("[{}]", items.len()));
            let item = seq.next_element_seed(Seed(self.0))?;
            self.0.borrow_mut().pop();
            match item {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            self.0.borrow_mut().push(shown(&name));
            let value = access.next_value_seed(Seed(self.0))?;
            if map.contains_key(&name) {
                return Err(A::Error::custom("is there twice; leave out one"));
            }
            self.0.borrow_mut().pop();
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

/// Reads TOML. What JSON has no form for (dates, `inf`, `nan`) is an error that
/// names its field.
pub(super) fn from_toml(text: &str) -> Result<Value, Vec<FieldError>> {
    let table: toml::Table = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let before = &text.as_bytes()[..at];
        let line = memchr::memchr_iter(b'\n', before).count() + 1;
        let column = at - memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1) + 1;
        let mut reason = error.message().lines().collect::<Vec<_>>().join("; ");
        if reason.starts_with("duplicate key") {
            reason.push_str(": it is there twice; leave out one");
        }
        vec![FieldError {
            field: format!("line {line}, column {column}"),
            problem: format!("is not TOML: {reason}"),
        }]
    })?;
    let mut errors = Vec::new();
    let value = converted(toml::Value::Table(table), &mut Vec::new(), &mut errors);
    if errors.is_empty() {
        Ok(value)
    } else {
        Err(errors)
    }
}

fn converted(value: toml::Value, path: &mut Vec<String>, errors: &mut Vec<FieldError>) -> Value {
    let mut refuse = |problem: String| {
        errors.push(FieldError {
            field: joined("", path),
            problem,
        });
        Value::Null
    };
    match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Boolean(flag) => Value::Bool(flag),
        toml::Value::Float(number) => match Number::from_f64(number) {
            Some(number) => Value::Number(number),
            None => refuse(format!("must be a finite number, not {number}")),
        },
        toml::Value::Datetime(date) => refuse(format!(
            "is a date; no field is one, write the text \"{date}\""
        )),
        toml::Value::Array(items) => {
            let mut list = Vec::with_capacity(items.len());
            for (index, item) in items.into_iter().enumerate() {
                path.push(format!("[{index}]"));
                list.push(converted(item, path, errors));
                path.pop();
            }
            Value::Array(list)
        }
        toml::Value::Table(table) => {
            let mut map = Map::new();
            for (name, value) in table {
                path.push(shown(&name));
                let value = converted(value, path, errors);
                path.pop();
                map.insert(name, value);
            }
            Value::Object(map)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn odd_json_names_its_field() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(500), "]".repeat(500));
        let rows: [(&[u8], &str, &str); 19] = [
            (br#"{"rate": 1e999}"#, "r.rate", "number out of range"),
            (br#"{"rate": -1e999}"#, "r.rate", "number out of range"),
            (br#"{"rate": NaN}"#, "r.rate", "expected value"),
            (br#"{"rate": Infinity}"#, "r.rate", "expected value"),
            (br#"{"rate": nul}"#, "r.rate", "expected"),
            (br#"{"rate": }"#, "r.rate", "expected value"),
            (br#"{"rate": 01}"#, "r.rate", "invalid number"),
            (
                br#"{"a": {"b": [1, {"c": 1e999}]}}"#,
                "r.a.b[1].c",
                "number out of range",
            ),
            (
                br#"{"rate": 1, "rate": 2}"#,
                "r.rate",
                "is there twice; leave out one (line 1",
            ),
            (
                br#"{"a": {"b": 1, "b": 1}}"#,
                "r.a.b",
                "is there twice; leave out one (line 1",
            ),
            (
                b"{\"rate\": \"\xff\"}",
                "r.rate",
                "invalid unicode code point",
            ),
            (b"{\"rate\": \"a\nb\"}", "r.rate", "control character"),
            (
                br#"{"rate": "\ud800"}"#,
                "r.rate",
                "unexpected end of hex escape",
            ),
            (
                deep.as_bytes(),
                "r.a[0][0][0][0][0][0][0]…",
                "recursion limit exceeded",
            ),
            (br#"{"rate": "5/m"} x"#, "r", "trailing characters"),
            (br#"{"rate": "5/m"}}"#, "r", "trailing characters"),
            (br#"{"rate": "5/m""#, "r", "EOF while parsing"),
            (b"", "r", "EOF while parsing"),
            (b"\0", "r", "expected value"),
        ];
        for (bytes, field, reason) in rows {
            let text = String::from_utf8_lossy(bytes);
            let error = from_json(bytes, "r").expect_err(&text);
            assert_eq!(error.field, field, "{text}: {}", error.problem);
            assert!(error.problem.contains(reason), "{text}: {}", error.problem);
        }
        let error = from_json(b"{\n  x", "").unwrap_err();
        assert_eq!(error.field, "line 2, column 3");
    }

    #[test]
    fn good_json_is_what_serde_makes_of_it() {
        let text = br#" {"a": [1, -2, 3.5, null, true, "x\u00e9"], "b": {}, "c": 1e3,
                         "d": 18446744073709551615, "e": 1e308} "#;
        let expected: Value = serde_json::from_slice(text).unwrap();
        assert_eq!(from_json(text, ""), Ok(expected));
    }

    #[test]
    fn toml_that_json_has_no_form_for() {
        let errors = from_toml("a = nan\nb = [1, inf]\n[c]\nd = 2020-01-01\n").unwrap_err();
        let fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["a", "b[1]", "c.d"]);
        let value = from_toml("a = 1\nb = [1.5, true]\n[c]\n\"d e\" = 'x'\n").unwrap();
        assert_eq!(value, json!({"a": 1, "b": [1.5, true], "c": {"d e": "x"}}));
    }

    #[test]
    fn bad_toml_names_its_place() {
        for (text, field) in [
            ("a = 1\nb = \n", "line 2, column 5"),
            ("a = 1\na = 2\n", "line 2, column 1"),
            ("[x]\n[x]\n", "line 2, column 2"),
            ("a", "line 1, column 2"),
        ] {
            let errors = from_toml(text).unwrap_err();
            assert_eq!(errors[0].field, field, "{text}: {}", errors[0].problem);
            assert!(!errors[0].problem.contains('\n'));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
            text in r#"[\[\]{}:,"a0-9.eE\\u +-]{0,40}"#,
        ) {
            let _ = from_json(&bytes, "r");
            let ours = from_json(text.as_bytes(), "r");
            let theirs = serde_json::from_str::<Value>(&text);
            // Ours is stricter only about what is there twice.
            match (ours, theirs) {
                (Ok(ours), theirs) => prop_assert_eq!(ours, theirs.unwrap()),
                (Err(error), Ok(_)) => prop_assert!(error.problem.contains("there twice")),
                (Err(_), Err(_)) => {}
            }
            let _ = from_toml(&String::from_utf8_lossy(&bytes));
        }
    }
}
