//! One schema for file, Lua table and Redis hash.
mod model;
pub use model::*;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Reads a `.toml` or `.json` file, and the password and TLS files it names.
pub fn from_path(_path: &Path) -> Result<Config, Vec<FieldError>> {
    todo!()
}

pub fn from_toml(_text: &str) -> Result<Config, Vec<FieldError>> {
    todo!()
}

pub fn from_json(_bytes: &[u8]) -> Result<Config, Vec<FieldError>> {
    todo!()
}

/// A table of Lua. An empty table stands for an empty list and an empty object.
pub fn from_value(_value: serde_json::Value) -> Result<Config, Vec<FieldError>> {
    todo!()
}

/// One entry of the Redis hash.
#[derive(Clone, Debug)]
pub enum Entry {
    Rule(Rule),
    Priority(PriorityRule),
    /// `{"enabled": false}`: the file's entry of that name is switched off.
    Off,
}

/// Reads the value of `rule:<name>`.
pub fn rule_entry(_name: &str, _json: &[u8]) -> Result<Entry, Vec<FieldError>> {
    todo!()
}

/// Reads the value of `priority:<name>`.
pub fn priority_entry(_name: &str, _json: &[u8], _levels: u8) -> Result<Entry, Vec<FieldError>> {
    todo!()
}

/// A field of the Redis hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub raw: Vec<u8>,
    /// Its last value that was good.
    pub good: Option<Vec<u8>>,
}

/// The file's entries with those of Redis over them.
#[derive(Clone, Debug)]
pub struct Effective {
    /// In the file's order, then new ones by name; disabled ones left out.
    pub rules: Vec<Rule>,
    pub priority: Vec<PriorityRule>,
    pub mode: Mode,
    pub errors: Vec<FieldError>,
    pub warnings: Vec<FieldError>,
}

pub fn merge(_file: &Config, _fields: &BTreeMap<Vec<u8>, Field>) -> Effective {
    todo!()
}

/// Whether `raw` would be taken as the value of `field`.
pub fn check_field(_file: &Config, _field: &[u8], _raw: &[u8]) -> Result<(), Vec<FieldError>> {
    todo!()
}

/// The files that a path or glob of `lists` names, sorted. A plain path is
/// itself, whether it exists or not; a glob may match nothing.
pub fn expand(_pattern: &str) -> Result<Vec<PathBuf>, String> {
    todo!()
}
