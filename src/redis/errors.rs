//! What an answer of Redis means for the store: every way of saying "not now"
//! or "not you" is the store being out of reach.
use redis::{ErrorKind, RedisError};

/// Why a decision could not be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// No answer within the budget. What was asked may have been spent.
    Timeout,
    /// Out of reach: not connected, or an answer that says so.
    Unavailable(String),
    /// The script or the command itself was refused.
    Script(String),
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Timeout => f.write_str("Redis did not answer in time"),
            Self::Unavailable(why) | Self::Script(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for StoreError {}

/// An error, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub error: StoreError,
    /// The next request would be answered the same.
    pub definite: bool,
    /// Another connection may be answered differently: a name that now points
    /// to the new primary, a password that was set since.
    pub reconnect: bool,
}

const NOPERM: &str = "its ACL forbids this user what is needed: on keys <prefix>:* EVAL, EVALSHA, TIME, GET, \
         SET, ZADD, ZREM, for pools of several gateways HGETALL, HSET, HDEL, PEXPIRE, RPUSH, \
         LTRIM, LRANGE, DEL, ZRANGE, ZREMRANGEBYSCORE, for configuration and lists WATCH, \
         MULTI, EXEC, TYPE, EXISTS, HLEN, HGETALL, SSCAN, ZSCAN, ZCOUNT, ZREMRANGEBYSCORE, EXPIRE, INFO";

/// Code, what it means and what would help, definite and reconnect.
const KNOWN: [(&str, &str, bool); 14] = [
    (
        "READONLY",
        "it is a replica, or a primary that was demoted",
        true,
    ),
    (
        "NOAUTH",
        "it wants a password: set password_env or password_file in store",
        true,
    ),
    ("WRONGPASS", "user name or password is wrong", true),
    ("LOADING", "it is still loading its data", false),
    (
        "MASTERDOWN",
        "it is a replica that has lost its primary",
        true,
    ),
    (
        "OOM",
        "its maxmemory is used up and its policy evicts nothing",
        false,
    ),
    (
        "MISCONF",
        "it cannot save and refuses writes because of that",
        false,
    ),
    (
        "NOREPLICAS",
        "it has too few replicas to accept writes",
        false,
    ),
    ("BUSY", "a script of somebody's is blocking it", false),
    ("CLUSTERDOWN", "the cluster is down", false),
    (
        "MOVED",
        "it is part of a Redis Cluster, which is not in this version",
        false,
    ),
    (
        "CROSSSLOT",
        "it is part of a Redis Cluster, which is not in this version",
        false,
    ),
    ("NOPERM", NOPERM, false),
    (
        "NOSCRIPT",
        "it forgets scripts as soon as they are loaded",
        false,
    ),
];

/// What is to be made of `error`.
pub fn judge(error: &RedisError) -> Judgement {
    if error.kind() == ErrorKind::AuthenticationFailed {
        let why = format!("Redis refuses the login: user name or password is wrong ({error})");
        return Judgement {
            error: StoreError::Unavailable(why),
            definite: true,
            reconnect: true,
        };
    }
    if error.is_io_error() {
        let why = format!("no connection to Redis: {error}");
        return Judgement {
            error: StoreError::Unavailable(why),
            definite: false,
            reconnect: true,
        };
    }
    let text = said(error);
    // Servers before 7 wrap what a command in a script was answered: "ERR
    // Error running script …: -READONLY You can't …".
    let known = KNOWN.iter().find(|(code, ..)| {
        error.code() == Some(code)
            || (error.code() == Some("ERR") && text.contains(&format!("-{code} ")))
    });
    if let Some((code, meaning, reconnect)) = known {
        let why = format!("Redis answers {code}: {meaning} ({text})");
        let error = StoreError::Unavailable(why);
        return Judgement {
            error,
            definite: true,
            reconnect: *reconnect,
        };
    }
    // Redis 7.0 says so of a command inside a script.
    if text.contains("user executing the script can't") {
        let why = format!("Redis answers NOPERM: {NOPERM} ({text})");
        return Judgement {
            error: StoreError::Unavailable(why),
            definite: true,
            reconnect: false,
        };
    }
    if text.contains("max number of clients") {
        let why = format!("Redis refuses the connection: {text}");
        return Judgement {
            error: StoreError::Unavailable(why),
            definite: true,
            reconnect: true,
        };
    }
    let reconnect = error.kind() == ErrorKind::Parse;
    let error = StoreError::Script(format!("Redis refuses what it is asked: {text}"));
    Judgement {
        error,
        definite: false,
        reconnect,
    }
}

/// As the server said it.
pub fn said(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}
