//! The scripts: embedded, called by their SHA1, sent whole where a server does
//! not know them (yet, or no more: a restart, a failover, `SCRIPT FLUSH`).
//!
//! `EVAL` runs and caches a script in one call, so a call whose script was
//! gone costs one more round trip, and `SCRIPT LOAD` is never needed: a user
//! who may only `EVAL` and `EVALSHA` is enough.
pub use crate::domain::bucket::spent::Says as BucketSays;
use crate::domain::bucket::spent::{self, Ask};
use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, ErrorKind, RedisResult, ServerErrorKind, ToRedisArgs, Value};
use smallvec::SmallVec;
use std::collections::HashMap;
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

/// The buckets of one decision; one is what most have.
pub type Asks = SmallVec<[BucketAsk; 1]>;

/// What Redis decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// All enforced buckets admit; only then has any been spent from.
    pub admitted: bool,
    /// In the order asked.
    pub buckets: SmallVec<[BucketSays; 1]>,
    /// Redis's time of the decision.
    pub now_us: u64,
}

/// A script and its name in the server's cache.
pub struct Script {
    code: &'static str,
    sha1: String,
}

impl Script {
    pub(super) fn new(code: &'static str) -> Script {
        Script {
            code,
            sha1: redis::Script::new(code).get_hash().to_owned(),
        }
    }

    /// The call of the script.
    pub fn call<K: ToRedisArgs>(&self, arguments: &Arguments<K>) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(&self.sha1)
            .arg(arguments.keys.len())
            .arg(&arguments.keys)
            .arg(&arguments.values);
        command
    }

    /// A call that gives it nothing to do.
    pub fn nothing(&self) -> Cmd {
        self.call(&Arguments::<String>::default())
    }

    /// Makes one of its calls, whether or not the server knows the script.
    pub async fn run(&self, conn: &mut MultiplexedConnection, call: &Cmd) -> RedisResult<Value> {
        match conn
            .send_packed_command(call)
            .await
            .and_then(Value::extract_error)
        {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let mut whole = redis::cmd("EVAL");
                whole.arg(self.code);
                for argument in call.args_iter().skip(2) {
                    if let Arg::Simple(bytes) = argument {
                        whole.arg(bytes);
                    }
                }
                conn.send_packed_command(&whole).await?.extract_error()
            }
            other => other,
        }
    }
}

/// `bucket.lua`.
pub static BUCKET: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("bucket.lua")));

/// Keys and arguments of one call.
pub struct Arguments<K = String> {
    pub keys: Vec<K>,
    pub values: Vec<Vec<u8>>,
}

impl<K> Default for Arguments<K> {
    fn default() -> Arguments<K> {
        Arguments {
            keys: Vec::new(),
            values: Vec::new(),
        }
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

/// The most buckets of a call of several decisions: a byte names one. Redis is
/// held for half a millisecond by so many.
pub const MOST_BUCKETS: usize = 127;
/// In the plan: the last bucket of its decision.
const LAST: u8 = 128;

/// The five words of a limit.
fn limit(ask: &Ask) -> [Vec<u8>; 5] {
    let mut emission = String::new();
    spent::push_plain(ask.emission_us, &mut emission);
    [
        emission.into_bytes(),
        ask.capacity.to_string().into_bytes(),
        ask.cost.to_string().into_bytes(),
        ask.since_us.to_string().into_bytes(),
        vec![b'0' + u8::from(ask.shadow)],
    ]
}

/// The call that decides over `asks`.
pub fn bucket_arguments(asks: &[BucketAsk]) -> Arguments<&str> {
    let mut arguments = Arguments::default();
    for bucket in asks {
        arguments.keys.push(&*bucket.key);
        arguments.values.extend(limit(&bucket.ask()));
    }
    arguments
}

/// The call that decides over each of `decisions`, in this order; none is
/// empty. Several are at most `MOST_BUCKETS` together.
pub fn group_arguments<'a>(decisions: &[&'a [BucketAsk]]) -> Arguments<&'a str> {
    if let [one] = decisions {
        return bucket_arguments(one);
    }
    let mut arguments = Arguments::default();
    let mut plan = Vec::new();
    let mut limits: Vec<Ask> = Vec::new();
    let mut keys: HashMap<&str, u8> = HashMap::with_capacity(decisions.len());
    for asks in decisions {
        for bucket in *asks {
            let ask = bucket.ask();
            let known = limits.iter().position(|known| *known == ask);
            let at = known.unwrap_or_else(|| {
                arguments.values.extend(limit(&ask));
                limits.push(ask);
                limits.len() - 1
            });
            let key = *keys.entry(&bucket.key).or_insert_with(|| {
                arguments.keys.push(&*bucket.key);
                arguments.keys.len() as u8
            });
            plan.extend([at as u8 + 1, key]);
        }
        let last = plan.len() - 2;
        plan[last] |= LAST;
    }
    debug_assert!(plan.len() <= 2 * MOST_BUCKETS);
    arguments.values.push(plan);
    arguments
}

/// Reads the reply to decisions over so many buckets each. `None`: it is not one.
pub fn group_reply(value: &Value, buckets: impl Iterator<Item = usize>) -> Option<Vec<Reply>> {
    let Value::Array(items) = value else {
        return None;
    };
    let mut numbers = items.iter().map(|item| match item {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    });
    let mut next = || numbers.next().flatten();
    let now_us = next()?;
    let mut replies = Vec::with_capacity(buckets.size_hint().0);
    for buckets in buckets {
        let mut reply = Reply {
            admitted: true,
            buckets: SmallVec::with_capacity(buckets),
            now_us,
        };
        for _ in 0..buckets {
            let word = next()?;
            reply.buckets.push(BucketSays {
                admitted: word & 1 != 0,
                damaged: word & 2 != 0,
                remaining: u32::try_from(word >> 3).ok()?,
                wait_us: next()?,
            });
            reply.admitted &= word & 4 != 0;
        }
        replies.push(reply);
    }
    numbers.next().is_none().then_some(replies)
}

/// Reads the reply to `bucket_arguments` of that many buckets.
pub fn bucket_reply(value: &Value, buckets: usize) -> Option<Reply> {
    group_reply(value, std::iter::once(buckets))?.pop()
}
