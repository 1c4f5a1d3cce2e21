//! Reading one key whole, in steps that do not hold Redis.
use super::Entries;
use crate::redis::connect::Link;
use crate::redis::errors::said;
use redis::{Cmd, RedisError, Value, cmd};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;

/// For one command. Redis is hanging, or the answer is large and the way slow.
const PATIENCE: Duration = Duration::from_secs(2);
/// Members a step: about half a millisecond of Redis.
const STEP: u32 = 1000;
/// Far above what 512 rules need; what is larger is not a configuration.
const MOST_FIELDS: i64 = 10_000;

/// Why a key could not be read.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection is of no use any more.
    Broken(String),
    /// This key is not as it should be; a sentence.
    Wrong(String),
}

pub(super) type Read<T> = Result<T, Failure>;

/// A refusal of the server's becomes a sentence about what was asked.
fn failure(command: &str, error: &RedisError) -> Failure {
    match error.code() {
        // It will be other soon, or on another connection; nothing is wrong with the key.
        Some("LOADING" | "MASTERDOWN" | "NOAUTH" | "BUSY" | "READONLY") => {
            Failure::Broken(format!("Redis answers {}", said(error)))
        }
        Some("NOPERM") => Failure::Wrong(format!(
            "its ACL forbids this user {command} ({}); allow it, see the README's list of commands",
            said(error)
        )),
        Some(_) => Failure::Wrong(format!("{command} is answered {}", said(error))),
        None => Failure::Broken(error.to_string()),
    }
}

pub(super) async fn ask(link: &Link, command: &Cmd) -> Read<Value> {
    let name = || {
        let first = command.args_iter().next();
        match first {
            Some(redis::Arg::Simple(name)) => String::from_utf8_lossy(name).into_owned(),
            _ => String::new(),
        }
    };
    let mut mux = link.mux();
    match timeout(PATIENCE, mux.send_packed_command(command)).await {
        Err(_) => Err(Failure::Broken(format!(
            "no answer to {} within 2 s",
            name()
        ))),
        Ok(answer) => answer
            .and_then(Value::extract_error)
            .map_err(|error| failure(&name(), &error)),
    }
}

/// Commands in one write; each has its own answer.
pub(super) async fn ask_all(link: &Link, pipeline: &redis::Pipeline) -> Read<Vec<Value>> {
    let mut mux = link.mux();
    match timeout(
        PATIENCE,
        mux.send_packed_commands(pipeline, 0, pipeline.len()),
    )
    .await
    {
        Err(_) => Err(Failure::Broken("no answer within 2 s".to_owned())),
        Ok(answer) => answer.map_err(|error| Failure::Broken(error.to_string())),
    }
}

/// The answer to one command of several.
pub(super) fn one(command: &str, value: Value) -> Read<Value> {
    value
        .extract_error()
        .map_err(|error| failure(command, &error))
}

fn bytes(value: Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.into_bytes(),
        Value::Okay => b"OK".to_vec(),
        _ => Vec::new(),
    }
}

async fn kind(link: &Link, key: &str) -> Read<String> {
    let answer = ask(link, cmd("TYPE").arg(key)).await?;
    Ok(String::from_utf8_lossy(&bytes(answer)).into_owned())
}

/// `run_id` of `INFO server`.
pub(super) async fn run_id(link: &Link) -> Read<String> {
    let info = bytes(ask(link, cmd("INFO").arg("server")).await?);
    let info = String::from_utf8_lossy(&info);
    let found = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    Ok(found.unwrap_or_default().trim().to_owned())
}

/// Redis's time, µs since 1970.
pub(super) fn time_us(value: &Value) -> Option<u64> {
    let number = |value: &Value| match value {
        Value::BulkString(text) => str::from_utf8(text).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    match value {
        Value::Array(parts) if parts.len() == 2 => {
            Some(number(&parts[0])? * 1_000_000 + number(&parts[1])?)
        }
        _ => None,
    }
}

/// A hash at once; empty when there is none.
pub(super) async fn hash(link: &Link, key: &str) -> Read<BTreeMap<Vec<u8>, Vec<u8>>> {
    match kind(link, key).await?.as_str() {
        "none" => return Ok(BTreeMap::new()),
        "hash" => {}
        other => return Err(Failure::Wrong(format!("is a {other}, it must be a hash"))),
    }
    match ask(link, cmd("HLEN").arg(key)).await? {
        Value::Int(fields) if fields > MOST_FIELDS => {
            return Err(Failure::Wrong(format!(
                "has {fields} fields, more than the {MOST_FIELDS} that are read"
            )));
        }
        _ => {}
    }
    let fields: Vec<(Vec<u8>, Vec<u8>)> = match ask(link, cmd("HGETALL").arg(key)).await? {
        Value::Array(items) => {
            let mut items = items.into_iter().map(bytes);
            std::iter::from_fn(|| Some((items.next()?, items.next()?))).collect()
        }
        Value::Map(pairs) => pairs
            .into_iter()
            .map(|(k, v)| (bytes(k), bytes(v)))
            .collect(),
        _ => Vec::new(),
    };
    Ok(fields.into_iter().collect())
}

/// A set or a sorted set, step by step; empty when there is none.
pub(super) async fn list(link: &Link, key: &str) -> Read<Entries> {
    let scored = match kind(link, key).await?.as_str() {
        "none" => return Ok(Entries::default()),
        "set" => false,
        "zset" => true,
        other => {
            return Err(Failure::Wrong(format!(
                "is a {other}, it must be a set or a sorted set"
            )));
        }
    };
    let scan = if scored { "ZSCAN" } else { "SSCAN" };
    let mut entries = Entries::default();
    let mut cursor = b"0".to_vec();
    loop {
        let command = cmd(scan)
            .arg(key)
            .arg(&cursor)
            .arg("COUNT")
            .arg(STEP)
            .take();
        let Value::Array(answer) = ask(link, &command).await? else {
            return Err(Failure::Wrong(format!(
                "{scan} is answered with something else"
            )));
        };
        let mut answer = answer.into_iter();
        cursor = answer.next().map(bytes).unwrap_or_default();
        let Some(Value::Array(members)) = answer.next() else {
            return Err(Failure::Wrong(format!(
                "{scan} is answered with something else"
            )));
        };
        let mut members = members.into_iter().map(bytes);
        while let Some(member) = members.next() {
            let until = match scored {
                false => f64::INFINITY,
                true => score(&members.next().unwrap_or_default()),
            };
            entries.push(&member, until);
        }
        if cursor == b"0" {
            return Ok(entries);
        }
    }
}

/// `inf` and `-inf` are Redis's words, and Rust's.
fn score(text: &[u8]) -> f64 {
    str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(f64::INFINITY)
}
