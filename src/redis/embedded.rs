//! `lease.lua` and `slot.lua` in a LuaJIT of our own, with a store of a few
//! commands (`embedded.lua`) and a clock that is set: for tests, and for the
//! simulator, which runs what the gateways run. Not in the library that nginx
//! loads, which has no Lua of its own.
use super::lease::{self, Keys, Share, Told};
use super::scripts::Arguments;
use mlua::{Function, IntoLua, Lua, MultiValue};
use redis::Value;

/// Redis's time at the beginning, µs.
const START_US: u64 = 1_700_000_000_000_000;

/// What a script does here that it should not, or a reply that is none, is a
/// mistake in the script: every function panics.
pub struct Store {
    lua: Lua,
    lease: Function,
    slot: Function,
    /// Redis's time, µs.
    pub now_us: u64,
}

impl Store {
    pub fn new() -> Store {
        let lua = Lua::new();
        let store = lua.load(include_str!("embedded.lua"));
        store.exec().expect("a store");
        let load = |code| lua.load(code).into_function().expect("it compiles");
        let (lease, slot) = (
            load(include_str!("lease.lua")),
            load(include_str!("slot.lua")),
        );
        Store {
            lua,
            lease,
            slot,
            now_us: START_US,
        }
    }

    pub fn lease(&self, keys: &Keys, told: &Told<'_>) -> Share {
        let value = self.run(&self.lease, lease::arguments(keys, told));
        lease::share(&value).expect("a reply")
    }

    pub fn slots(&self, keys: &Keys, gateway: &str, limit: u32, wanted: u32) -> u32 {
        let call = lease::slot_arguments(keys, gateway, limit, wanted);
        match self.run(&self.slot, call) {
            Value::Int(n) => u32::try_from(n).expect("a number of slots"),
            other => panic!("{other:?}"),
        }
    }

    /// As FLUSHALL.
    pub fn flush(&self) {
        let flush: Function = self.lua.globals().get("flush").expect("one");
        flush.call::<()>(()).expect("flushed");
    }

    pub fn pass(&mut self, us: u64) {
        self.now_us += us;
    }

    fn run<K: IntoLua>(&self, script: &Function, call: Arguments<K>) -> Value {
        let globals = self.lua.globals();
        globals.set("now", self.now_us as f64).expect("set");
        globals.set("KEYS", call.keys).expect("set");
        let values = call.values.iter();
        let values = values.map(|it| self.lua.create_string(it).expect("a string"));
        globals
            .set("ARGV", values.collect::<Vec<_>>())
            .expect("set");
        let value = |value: mlua::Value| match value {
            mlua::Value::Integer(n) => Value::Int(n),
            mlua::Value::Number(n) => {
                assert_eq!(n, n.trunc(), "Redis would cut it");
                Value::Int(n as i64)
            }
            mlua::Value::String(text) => Value::BulkString(text.as_bytes().to_vec()),
            other => panic!("{other:?}"),
        };
        let reply: MultiValue = script.call(()).expect("it runs");
        match reply.into_iter().next().expect("a reply") {
            mlua::Value::Table(items) => {
                let items = items.sequence_values::<mlua::Value>();
                Value::Array(items.map(|it| value(it.expect("an item"))).collect())
            }
            one => value(one),
        }
    }
}

impl Default for Store {
    fn default() -> Store {
        Store::new()
    }
}
