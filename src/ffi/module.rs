//! The control plane as a Lua module: what runs seldom and needs tables or
//! strings. The request path is FFI.
use crate::engine::setup::{self, Source};
use crate::engine::{metrics, status, worker};
use mlua::{Lua, Result, Table, Value};
use serde_json::{Map, Number};
use std::sync::atomic::{AtomicBool, Ordering};

/// More levels than any configuration has; a table that contains itself ends here.
const DEPTH: usize = 16;

/// A Lua value as the configuration's schema takes it. The error names the field.
fn plain(
    value: &Value,
    field: &str,
    depth: usize,
) -> std::result::Result<serde_json::Value, String> {
    let whole = if field.is_empty() { "the table" } else { field };
    if depth > DEPTH {
        return Err(format!(
            "{whole}: tables are nested deeper than {DEPTH} levels"
        ));
    }
    Ok(match value {
        Value::Nil => serde_json::Value::Null,
        Value::Boolean(b) => (*b).into(),
        Value::Integer(i) => (*i).into(),
        Value::Number(n) => Number::from_f64(*n)
            .map(serde_json::Value::Number)
            .ok_or_else(|| format!("{whole}: {n} is no number that can be used here"))?,
        Value::String(s) => {
            let bytes = s.as_bytes();
            std::str::from_utf8(&bytes)
                .map_err(|_| format!("{whole}: the text is not UTF-8"))?
                .into()
        }
        Value::Table(t) => table(t, field, depth)?,
        other => {
            return Err(format!(
                "{whole}: a {} cannot be part of a configuration",
                other.type_name()
            ));
        }
    })
}

fn table(t: &Table, field: &str, depth: usize) -> std::result::Result<serde_json::Value, String> {
    let whole = if field.is_empty() { "the table" } else { field };
    let mut object = Map::new();
    let mut list: Vec<(i64, serde_json::Value)> = Vec::new();
    for pair in t.clone().pairs::<Value, Value>() {
        let (k, v) = pair.map_err(|e| format!("{whole}: {e}"))?;
        match k {
            Value::String(s) => {
                let name = s.to_string_lossy();
                let below = if field.is_empty() {
                    name.clone()
                } else {
                    format!("{field}.{name}")
                };
                object.insert(name, plain(&v, &below, depth + 1)?);
            }
            Value::Integer(i) => {
                list.push((i, plain(&v, &format!("{field}[{}]", i - 1), depth + 1)?));
            }
            other => {
                return Err(format!("{whole}: a {} cannot be a key", other.type_name()));
            }
        }
    }
    if list.is_empty() {
        return Ok(object.into());
    }
    if !object.is_empty() {
        return Err(format!(
            "{whole}: has both named fields and list elements; use one of them"
        ));
    }
    list.sort_by_key(|(i, _)| *i);
    if list
        .iter()
        .enumerate()
        .any(|(n, (i, _))| *i != n as i64 + 1)
    {
        return Err(format!(
            "{whole}: the list has holes; its elements must be 1, 2, 3, …"
        ));
    }
    Ok(list.into_iter().map(|(_, v)| v).collect::<Vec<_>>().into())
}

/// Runs a control call; a panic becomes an error like any other.
fn caught<T>(f: impl FnOnce() -> std::result::Result<T, String>) -> std::result::Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f))
        .unwrap_or_else(|_| Err("sluice: an internal error was caught".into()))
}

type Answer<T> = Result<(Option<T>, Option<String>)>;

fn answer<T>(r: std::result::Result<T, String>) -> Answer<T> {
    Ok(match r {
        Ok(v) => (Some(v), None),
        Err(e) => (None, Some(e)),
    })
}

fn start() -> std::result::Result<bool, String> {
    static STARTED: AtomicBool = AtomicBool::new(false);
    // Relaxed: nginx's thread only.
    super::variables::started(STARTED.swap(true, Ordering::Relaxed));
    worker::start(super::nginx::exiting).map(|()| true)
}

/// The module's table.
pub fn make(lua: &Lua) -> Result<Table> {
    let t = lua.create_table()?;
    t.set(
        "setup",
        lua.create_function(|_, source: Value| {
            answer(caught(|| {
                let source = match &source {
                    Value::String(s) => Source::Path(s.to_string_lossy()),
                    other => Source::Value(
                        plain(other, "", 0).map_err(|e| format!("sluice: setup{{}}: {e}"))?,
                    ),
                };
                setup::setup(source)
            }))
        })?,
    )?;
    t.set("start", lua.create_function(|_, ()| answer(caught(start)))?)?;
    t.set(
        "metrics",
        lua.create_function(|_, ()| answer(caught(metrics::text)))?,
    )?;
    t.set(
        "status",
        lua.create_function(|_, ()| answer(caught(status::json)))?,
    )?;
    t.set(
        "file",
        lua.create_function(|lua, number: u32| {
            let page = worker::with(|w| w.pages.bytes(number).map(|b| lua.create_string(b)));
            page.flatten().transpose()
        })?,
    )?;
    t.set(
        "complain",
        lua.create_function(|_, line: mlua::LuaString| {
            let line = line.to_string_lossy();
            answer(caught(|| {
                worker::with(|w| w.complain(&line));
                Ok(true)
            }))
        })?,
    )?;
    Ok(t)
}

/// `require "sluice"`, as `package.loadlib` calls it.
#[cfg(feature = "module")]
#[mlua::lua_module]
fn sluice(lua: &Lua) -> Result<Table> {
    make(lua)
}

#[cfg(all(test, feature = "embed"))]
mod tests {
    use super::*;

    fn convert(code: &str) -> std::result::Result<serde_json::Value, String> {
        let lua = Lua::new();
        let v: Value = lua.load(code).eval().expect("the test's own Lua");
        plain(&v, "", 0)
    }

    #[test]
    fn tables_become_what_the_schema_reads() {
        let v = convert("return { rules = { { name = 'a', capacity = 5, key = { 'ip' } } } }");
        let want = serde_json::json!({"rules": [{"name": "a", "capacity": 5, "key": ["ip"]}]});
        assert_eq!(v, Ok(want));
    }

    #[test]
    fn what_is_no_configuration_is_named_with_its_field() {
        for (code, want) in [
            ("return { rules = { { rate = 0/0 } } }", "rules[0].rate"),
            ("return { store = { url = print } }", "store.url"),
            ("return { a = { 1, x = 2 } }", "a: has both"),
            (
                "return { a = { [1] = 1, [3] = 2 } }",
                "a: the list has holes",
            ),
            ("local t = {} t.t = t return t", "nested deeper"),
            ("return { a = '\\255' }", "a: the text is not UTF-8"),
        ] {
            let e = convert(code).expect_err(code);
            assert!(e.contains(want), "{code}: {e}");
        }
    }
}
