//! The configuration as a file; [`hash`] has the same in Redis.
mod errors;
mod hash;
mod pools;
mod priority;
mod warnings;

use super::load::{Outside, read};
use super::reader::Problems;
use super::*;
use crate::domain::key::KeyPart;
use crate::domain::units::Rate;
use serde_json::{Value, json};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// An environment and a file system, written down.
struct Fake;

/// A shared memory with room for so many pools, of up to so many requests.
struct Space(usize, u32);

const SPACE: Space = Space(MAX_POOLS, 15_000);

impl Room for Space {
    fn pools(&self) -> usize {
        self.0
    }

    fn pool(&self, pool: &PoolConfig, field: &str) -> Option<FieldError> {
        (pool.limit.most() + pool.capacity > self.1).then(|| FieldError {
            field: field.to_string(),
            problem: "is too large".to_string(),
        })
    }

    fn advice(&self, pools: usize) -> String {
        format!("not for {pools}")
    }
}

const CERT: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
const KEY: &str = "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n";

impl Outside for Fake {
    fn env(&self, name: &str) -> Option<String> {
        match name {
            "REDIS_PASSWORD" => Some("s3cret".to_string()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    fn file(&self, path: &str) -> io::Result<Vec<u8>> {
        match path {
            "/etc/password" => Ok(b"from file\r\n".to_vec()),
            "/etc/ca.pem" | "/etc/cert.pem" => Ok(CERT.into()),
            "/etc/key.pem" => Ok(KEY.into()),
            "/etc/binary" => Ok(vec![0xff, 0xfe]),
            "/etc/empty" => Ok(b"\n".to_vec()),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }
}

fn from_json_value(value: &Value) -> Result<Config, Vec<FieldError>> {
    read(value, Problems::default(), &Fake)
}

fn good(value: Value) -> Config {
    from_json_value(&value).unwrap_or_else(|errors| panic!("{value}: {errors:?}"))
}

fn lines(errors: &[FieldError]) -> Vec<String> {
    errors
        .iter()
        .map(|error| format!("{}: {}", error.field, error.problem))
        .collect()
}

fn errors(value: Value) -> Vec<String> {
    let errors = from_json_value(&value).err().unwrap_or_default();
    lines(&errors)
}

fn rule(fields: Value) -> Value {
    let mut rule = json!({"name": "r", "rate": "5/m", "capacity": 5});
    for (name, value) in fields.as_object().unwrap() {
        rule[name] = value.clone();
    }
    rule
}

#[test]
fn an_empty_file_is_all_defaults() {
    let config = good(json!({}));
    let store = &config.store;
    assert_eq!(
        (store.backend, &store.url, &store.username),
        (Backend::Local, &None, &None)
    );
    assert_eq!(
        (store.prefix.as_str(), store.on_error),
        ("sluice", OnError::Local)
    );
    assert_eq!(
        (store.timeout, store.sync),
        (Duration::from_millis(20), Duration::from_secs(1))
    );
    assert!(store.password.is_none() && store.tls.is_none());
    assert_eq!(config.shm.path, PathBuf::from("/dev/shm/sluice"));
    assert_eq!(config.shm.size_bytes, 32 << 20);
    // B57: nobody's header is believed.
    assert!(config.client.trusted_proxies.is_empty() && !config.client.trust_unix);
    assert_eq!(config.client.header, "x-forwarded-for");
    assert_eq!(
        (config.client.ipv4_prefix, config.client.ipv6_prefix),
        (32, 64)
    );
    assert!(config.lists.blocklist.is_empty() && config.lists.allowlist.is_empty());
    assert_eq!(config.response.headers, HeaderStyle::Standard);
    assert_eq!(config.response.body, BodyStyle::Problem);
    let priority = &config.priority;
    assert_eq!(
        (priority.levels, priority.default, priority.user_cap),
        (4, 3, 4)
    );
    assert!(!priority.forward && priority.rules.is_empty());
    assert!(priority.events.is_empty() && priority.suspicion.is_none());
    assert!(config.rules.is_empty() && config.pools.is_empty());
    assert_eq!(config.warnings, []);
}

#[test]
fn the_example_of_the_contract() {
    let text = r#"
[store]
backend  = "local"
url      = "redis://127.0.0.1:6379/0"
username = ""
prefix   = "sluice"
timeout  = "20ms"
on_error = "local"
sync     = "1s"
[shm]
path = "/dev/shm/sluice"
size = "32MiB"
[client]
trusted_proxies = []
header      = "X-Forwarded-For"
ipv4_prefix = 32
ipv6_prefix = 64
[lists]
blocklist = []
allowlist = []
[response]
headers = "standard"
body    = "problem"
[[rules]]
name     = "login"
match    = { path = "/api/login", method = ["POST"] }
key      = ["ip"]
rate     = "5/m"
capacity = 5
"#;
    let config = from_toml(text).unwrap();
    assert_eq!(
        config.store.url.as_deref(),
        Some("redis://127.0.0.1:6379/0")
    );
    assert_eq!(config.store.username, None);
    let rule = &config.rules[0];
    assert_eq!(
        (rule.name.as_str(), rule.capacity, rule.cost, rule.status),
        ("login", 5, 1, 429)
    );
    assert_eq!(rule.rate, Rate::parse("5/m").unwrap());
    assert_eq!(rule.key, [KeyPart::Ip]);
    assert_eq!(
        (rule.missing_key, rule.scope),
        (MissingKey::Ip, Scope::Cluster)
    );
    assert!(rule.enabled && !rule.shadow && rule.unless.is_none());
    assert_eq!(config.warnings, []);
}

#[test]
fn the_bounds_of_rules_are_within() {
    let rows = [
        json!({"name": "x".repeat(64)}),
        json!({"name": "A-z_0.9"}),
        json!({"rate": "1000000/s", "capacity": 1_000_000_000}),
        json!({"rate": "1/366d", "capacity": 1}),
        json!({"rate": "1/d", "capacity": 366}),
        json!({"capacity": 5.0}),
        json!({"cost": 5}),
        json!({"status": 400}),
        json!({"status": 444}),
        json!({"status": 599}),
        json!({"key": []}),
        json!({"key": ["ip", "user", "cookie:a", "header:b", "arg:c", "host", "path", "method", "ua"],
               "match": {"path": "/"}}),
        json!({"mode": "shadow", "scope": "node", "missing_key": "skip", "enabled": false}),
    ];
    for fields in rows {
        assert_eq!(good(json!({"rules": [rule(fields)]})).rules.len(), 1);
    }
    let many = |count| {
        (0..count)
            .map(|n| rule(json!({"name": format!("r{n}")})))
            .collect()
    };
    let config: Value = json!({"rules": Value::Array(many(MAX_RULES))});
    assert_eq!(good(config).rules.len(), MAX_RULES);
    let found = errors(json!({"rules": Value::Array(many(MAX_RULES + 1))}));
    assert_eq!(found, ["rules: has 513 rules; there may be at most 512"]);
}

#[test]
fn urls_of_redis() {
    let rows = [
        (
            json!({"url": "redis://localhost"}),
            "redis://localhost",
            None,
            None,
        ),
        (
            json!({"url": "redis://[::1]:7000/2"}),
            "redis://[::1]:7000/2",
            None,
            None,
        ),
        (
            json!({"url": "valkey://a:1/0"}),
            "redis://a:1/0",
            None,
            None,
        ),
        (json!({"url": "rediss://a:1/"}), "rediss://a:1/", None, None),
        (
            json!({"url": "unix:///run/r.sock"}),
            "unix:///run/r.sock",
            None,
            None,
        ),
        (
            json!({"url": "unix:///run/r.sock?db=2"}),
            "unix:///run/r.sock?db=2",
            None,
            None,
        ),
        // Taken out of the url, so that nothing prints them.
        (
            json!({"url": "redis://u:p%40ss@a:1"}),
            "redis://a:1",
            Some("u"),
            Some("p@ss"),
        ),
        (
            json!({"url": "redis://:p@a:1"}),
            "redis://a:1",
            None,
            Some("p"),
        ),
        (
            json!({"backend": "redis"}),
            "redis://127.0.0.1:6379/0",
            None,
            None,
        ),
        (
            json!({"backend": "redis", "username": "u", "password_env": "REDIS_PASSWORD"}),
            "redis://127.0.0.1:6379/0",
            Some("u"),
            Some("s3cret"),
        ),
        (
            json!({"backend": "redis", "password_file": "/etc/password"}),
            "redis://127.0.0.1:6379/0",
            None,
            Some("from file"),
        ),
    ];
    for (store, url, username, password) in rows {
        let config = good(json!({ "store": store }));
        assert_eq!(config.store.url.as_deref(), Some(url));
        assert_eq!(config.store.username.as_deref(), username, "{url}");
        assert_eq!(
            config
                .store
                .password
                .as_ref()
                .map(|secret| secret.0.as_str()),
            password
        );
        assert!(!format!("{config:?}").contains("p@ss") && !format!("{config:?}").contains("s3c"));
    }
    let tls = json!({"ca_file": "/etc/ca.pem", "cert_file": "/etc/cert.pem",
                     "key_file": "/etc/key.pem"});
    let config = good(json!({"store": {"url": "rediss://a", "tls": tls}}));
    let tls = config.store.tls.unwrap();
    assert_eq!(
        (tls.ca.as_deref(), tls.cert.as_deref()),
        (Some(CERT.as_bytes()), Some(CERT.as_bytes()))
    );
    assert_eq!((tls.key.unwrap().0.as_str(), tls.verify), (KEY, true));
}

#[test]
fn lists_hold_entries_and_files() {
    let config = good(json!({"lists": {"blocklist": [
        "10.1.2.3/8", " 203.0.113.9", "user:eve", "/etc/block.txt", "/etc/block.d/*.txt",
    ]}}));
    let shown = |source: &ListSource| match source {
        ListSource::Entry(subject) => subject.to_string(),
        ListSource::File(path) => format!("file {path}"),
    };
    let shown: Vec<_> = config.lists.blocklist.iter().map(shown).collect();
    let expected = [
        "10.0.0.0/8",
        "203.0.113.9",
        "user:eve",
        "file /etc/block.txt",
        "file /etc/block.d/*.txt",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn proxies_may_be_sockets() {
    let config = good(json!({"client": {"trusted_proxies": ["unix:", "10.1.2.3/8", "::1"]}}));
    assert!(config.client.trust_unix);
    let shown: Vec<_> = config
        .client
        .trusted_proxies
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(shown, ["10.0.0.0/8", "::1/128"]);
}

#[test]
fn empty_tables_of_lua() {
    let value = json!({
        "client": {"trusted_proxies": {}},
        "lists": [],
        "rules": [{"name": "r", "key": {}, "match": [], "rate": "5/m", "capacity": 5.0}],
        "priority": {"rules": {}},
    });
    let config = from_value(value.clone()).unwrap();
    assert!(config.rules[0].key.is_empty());
    let text = serde_json::to_vec(&value).unwrap();
    assert_eq!(from_json(&text).unwrap_err().len(), 5);
    assert!(from_value(json!({"rules": {"path": {}}})).is_err());
    assert!(from_value(json!([])).is_ok());
    // An empty list of conditions matches nothing, in Lua too.
    let value = json!({"rules": [rule(json!({"match": {"path": {}}}))]});
    assert!(from_value(value).unwrap().rules[0].matcher.has_path());
}

#[test]
fn priority_rules_are_in_order() {
    let config = good(
        json!({"priority": {"levels": 3, "default": 1, "user_cap": 9, "forward": true,
        "rules": [
            {"name": "b", "match": {"path": "/pay/*"}, "level": 0},
            {"name": "a", "unless": {"path": "/x"}, "level": 2},
        ]}}),
    );
    let priority = config.priority;
    assert_eq!(
        (priority.levels, priority.default, priority.user_cap),
        (3, 1, 9)
    );
    assert!(priority.forward);
    let rules: Vec<_> = priority
        .rules
        .iter()
        .map(|rule| (rule.name.as_str(), rule.order, rule.level))
        .collect();
    assert_eq!(rules, [("b", 1000.0, 0), ("a", 2000.0, 2)]);
}
