//! Against a real Redis, and the scripts in an embedded LuaJIT.
mod script;
