//! The scripts: embedded, called by their SHA1, sent whole where a server does
//! not know them (yet, or no more: a restart, a failover, `SCRIPT FLUSH`).
//!
//! `EVAL` runs and caches a script in one call, so a call whose script was
//! gone costs one more round trip, and `SCRIPT LOAD` is never needed: a user
//! who may only `EVAL` and `EVALSHA` is enough.
pub use crate::domain::bucket::spent::Says as BucketSays;
use crate::domain::bucket::spent::{self, Ask};
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisResult, ServerErrorKind, Value};
use std::sync::LazyLock;

/// One bucket of one decision.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketAsk {
    /// The whole Redis key; no key twice in one decision.
    pub key: String,
    pub emission_us: f64,
    pub capacity: u32,
    /// Above the capacity the capacity is charged.
    pub cost: u32,
    /// Redis's time, in µs, at which this gateway took this limit. 0 when that
    /// is not known: what a larger limit left behind is then not cut.
    pub since_us: u64,
    pub shadow: bool,
}

/// What Redis decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// All enforced buckets admit; only then has any been spent from.
    pub admitted: bool,
    /// In the order asked.
    pub buckets: Vec<BucketSays>,
    /// Redis's time of the decision.
    pub now_us: u64,
}

/// A script and its name in the server's cache.
pub struct Script {
    code: &'static str,
    sha1: String,
}

impl Script {
    fn new(code: &'static str) -> Script {
        Script {
            code,
            sha1: redis::Script::new(code).get_hash().to_owned(),
        }
    }

    /// Runs the script, whether or not the server knows it.
    pub async fn run(
        &self,
        conn: &mut MultiplexedConnection,
        arguments: &Arguments,
    ) -> RedisResult<Value> {
        let known = arguments.command("EVALSHA", &self.sha1);
        match conn
            .send_packed_command(&known)
            .await
            .and_then(Value::extract_error)
        {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let whole = arguments.command("EVAL", self.code);
                conn.send_packed_command(&whole).await?.extract_error()
            }
            other => other,
        }
    }
}

/// `bucket.lua`.
pub static BUCKET: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("bucket.lua")));

/// Keys and arguments of one call.
#[derive(Default)]
pub struct Arguments {
    pub keys: Vec<String>,
    pub values: Vec<String>,
}

impl Arguments {
    fn command(&self, name: &str, script: &str) -> redis::Cmd {
        let mut command = redis::cmd(name);
        command
            .arg(script)
            .arg(self.keys.len())
            .arg(&self.keys)
            .arg(&self.values);
        command
    }
}

impl BucketAsk {
    fn ask(&self) -> Ask {
        let BucketAsk {
            emission_us,
            capacity,
            cost,
            since_us,
            shadow,
            ..
        } = *self;
        Ask {
            emission_us,
            capacity,
            cost,
            since_us,
            shadow,
        }
        .bounded()
    }
}

/// The call that decides over `asks`.
pub fn bucket_arguments(asks: &[BucketAsk]) -> Arguments {
    let mut arguments = Arguments::default();
    for bucket in asks {
        let ask = bucket.ask();
        arguments.keys.push(bucket.key.clone());
        let mut emission = String::new();
        spent::push_plain(ask.emission_us, &mut emission);
        arguments.values.extend([
            emission,
            ask.capacity.to_string(),
            ask.cost.to_string(),
            ask.since_us.to_string(),
            u8::from(ask.shadow).to_string(),
        ]);
    }
    arguments
}

/// Reads the reply to `bucket_arguments` of that many buckets. `None`: it is
/// not one.
pub fn bucket_reply(value: &Value, buckets: usize) -> Option<Reply> {
    let Value::Array(items) = value else {
        return None;
    };
    let numbers: Vec<u64> = items
        .iter()
        .map(|item| match item {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        })
        .collect::<Option<_>>()?;
    let [now_us, admitted, rest @ ..] = numbers.as_slice() else {
        return None;
    };
    if rest.len() != 3 * buckets {
        return None;
    }
    let says = |three: &[u64]| {
        Some(BucketSays {
            admitted: three[0] & 1 != 0,
            damaged: three[0] & 2 != 0,
            remaining: u32::try_from(three[1]).ok()?,
            wait_us: three[2],
        })
    };
    Some(Reply {
        admitted: *admitted != 0,
        buckets: rest.chunks_exact(3).map(says).collect::<Option<_>>()?,
        now_us: *now_us,
    })
}
