//! One schema for file, Lua table and Redis hash.
//!
//! What is read becomes a [`serde_json::Value`] first, and is then taken apart
//! field by field, collecting every error with the path of its field. A field
//! that nobody asked for is an error, so a misspelt one cannot be ignored.
//! What comes out is checked and has every default filled in.
//!
//! Reading is pure but for the environment variables and files that passwords
//! and TLS keys are in; those come through `load::Outside`.
mod hash;
mod json;
mod load;
mod model;
mod pools;
mod priority;
pub(in crate::domain) mod reader;
mod rules;
mod sections;
mod store;
mod warn;

#[cfg(test)]
mod tests;

pub use hash::{
    Effective, Entry, Field, Room, check_field, merge, pool_entry, priority_entry, rule_entry,
};
pub use load::{expand, from_json, from_path, from_toml, from_value, is_glob};
pub use model::*;
pub use pools::content_type;

/// The most rules, file and Redis together: each has an entry in the shared
/// memory.
pub const MAX_RULES: usize = 512;
/// The most priority rules.
pub const MAX_PRIORITY_RULES: usize = 512;
/// The most events.
pub const MAX_EVENTS: usize = 64;
/// The most pools: each has a place in the shared memory.
pub const MAX_POOLS: usize = 16;
/// The longest name of a rule or pool.
pub const MAX_NAME_BYTES: usize = 64;
