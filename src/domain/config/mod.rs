//! One schema for file, Lua table and Redis hash.
mod model;
pub use model::*;
