//! The configuration as a file; [`hash`] has the same in Redis.
mod hash;

use super::load::{Outside, read};
use super::reader::Problems;
use super::*;
use crate::domain::key::KeyPart;
use crate::domain::units::Rate;
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An environment and a file system, written down.
struct Fake;

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
    assert!(config.rules.is_empty());
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
fn all_errors_are_found_at_once() {
    let found = errors(json!({
        "store": {"backend": "memcached", "timout": "1s"},
        "shm": {"size": "1GB"},
        "client": {"ipv4_prefix": 33},
        "rules": [{"name": "a b", "rate": "0/s", "capacity": 0}, 7],
        "ruels": [],
        "pools": [],
    }));
    let fields: Vec<_> = found
        .iter()
        .map(|line| line.split(": ").next().unwrap())
        .collect();
    let expected = [
        "store.backend",
        "store.timout",
        "shm.size",
        "client.ipv4_prefix",
        "rules[0].name",
        "rules[0].rate",
        "rules[0].capacity",
        "rules[1]",
        "pools",
        "ruels",
    ];
    assert_eq!(fields, expected, "{found:#?}");
}

#[test]
fn bad_fields_are_named_with_what_would_be_right() {
    let rows = [
        // Not in this version.
        (json!({"identity": []}), "identity: is not in this version"),
        (json!({"pools": []}), "pools: is not in this version"),
        (json!({"nodes": {}}), "nodes: is not in this version"),
        (
            json!({"priority": {"events": []}}),
            "priority.events: is not in this version",
        ),
        (
            json!({"priority": {"suspicion": {}}}),
            "priority.suspicion: is not in this version",
        ),
        (
            json!({"store": {"url": ["redis://a:1"]}}),
            "store.url: is a list, the seeds of a Redis Cluster, which is not in this version",
        ),
        (
            json!({"store": {"url": "sentinel://a:1,b:2/m/0"}}),
            "sentinel:// is not in this version",
        ),
        // The store.
        (
            json!({"store": {"backend": "Redis"}}),
            "store.backend: must be \"local\" or \"redis\", not the text \"Redis\"",
        ),
        (
            json!({"store": {"url": "http://a"}}),
            "store.url: has an unknown scheme",
        ),
        (
            json!({"store": {"url": "127.0.0.1:6379"}}),
            "store.url: has no scheme",
        ),
        (
            json!({"store": {"url": "redis://"}}),
            "store.url: has no host",
        ),
        (
            json!({"store": {"url": "redis://a:0"}}),
            "store.url: has no host, or a bad port",
        ),
        (json!({"store": {"url": "redis://a:65536"}}), "bad port"),
        (
            json!({"store": {"url": "redis://a:1/x"}}),
            "other than the number of a database",
        ),
        (
            json!({"store": {"url": "redis://a b"}}),
            "store.url: has blanks",
        ),
        (
            json!({"store": {"url": "redis://[::1"}}),
            "store.url: has no host, or a bad one",
        ),
        (
            json!({"store": {"url": "unix:run/redis.sock"}}),
            "store.url: has no scheme",
        ),
        (
            json!({"store": {"url": "unix://run/redis.sock"}}),
            "is not unix:///path",
        ),
        (
            json!({"store": {"url": 5}}),
            "store.url: must be a url such as",
        ),
        (
            json!({"store": {"timeout": "0ms"}}),
            "store.timeout: must be from 1ms to 10s, not 0ns",
        ),
        (
            json!({"store": {"timeout": "1m"}}),
            "store.timeout: must be from 1ms to 10s, not 60s",
        ),
        (
            json!({"store": {"timeout": 20}}),
            "must be a duration such as \"20ms\", not 20",
        ),
        (
            json!({"store": {"sync": "1ms"}}),
            "store.sync: must be from 50ms to 3600s",
        ),
        (
            json!({"store": {"on_error": "panic"}}),
            "store.on_error: must be \"local\", \"allow\" or \"deny\"",
        ),
        (
            json!({"store": {"prefix": "a{b}"}}),
            "store.prefix: \"a{b}\" is not a prefix",
        ),
        (
            json!({"store": {"prefix": ""}}),
            "store.prefix: \"\" is not a prefix",
        ),
        (
            json!({"store": {"password": "x"}}),
            "store.password: must not stand here in clear",
        ),
        (
            json!({"store": {"password_env": "UNSET"}}),
            "which is empty or not set where this runs",
        ),
        (
            json!({"store": {"password_env": "EMPTY"}}),
            "which is empty or not set where this runs",
        ),
        (
            json!({"store": {"password_file": "/etc/none"}}),
            "store.password_file: \"/etc/none\": entity not found",
        ),
        (
            json!({"store": {"password_file": "/etc/binary"}}),
            "holds no text",
        ),
        (
            json!({"store": {"password_file": "/etc/empty"}}),
            "holds no text",
        ),
        (
            json!({"store": {"password_file": "etc/password"}}),
            "store.password_file: must be an absolute path",
        ),
        (
            json!({"store": {"password_env": "REDIS_PASSWORD", "password_file": "/etc/password"}}),
            "both given",
        ),
        (
            json!({"store": {"url": "redis://u:p@a:1", "password_env": "REDIS_PASSWORD"}}),
            "store.url: has a password, which another field gives too",
        ),
        (
            json!({"store": {"url": "redis://a:1", "tls": {}}}),
            "store.tls: needs a rediss:// url",
        ),
        (
            json!({"store": {"tls": {}}}),
            "store.tls: needs a rediss:// url",
        ),
        (
            json!({"store": {"url": "rediss://a", "tls": {"cert_file": "/etc/cert.pem"}}}),
            "store.tls.cert_file: needs key_file beside it",
        ),
        (
            json!({"store": {"url": "rediss://a", "tls": {"ca_file": "/etc/key.pem"}}}),
            "store.tls.ca_file: names a file without \"-----BEGIN CERTIFICATE-----\"",
        ),
        (
            json!({"store": {"url": "rediss://a", "tls": {"verify": "no"}}}),
            "store.tls.verify: must be true or false",
        ),
        // Shared memory.
        (
            json!({"shm": {"path": "sluice"}}),
            "shm.path: must be an absolute path",
        ),
        (
            json!({"shm": {"path": "/dev/shm/"}}),
            "shm.path: must be the path of a file",
        ),
        (
            json!({"shm": {"path": format!("/{}", "x".repeat(90))}}),
            "at most 90 bytes",
        ),
        (
            json!({"shm": {"size": "4KiB"}}),
            "shm.size: must be from 1MiB to 64GiB",
        ),
        (
            json!({"shm": {"size": 1048576}}),
            "shm.size: must be a size such as \"64MiB\"",
        ),
        // B57: a misspelt option is refused, not ignored.
        (
            json!({"client": {"trusted_proxy": []}}),
            "client.trusted_proxy: is not a known field; the fields here are",
        ),
        (
            json!({"client": {"trusted_proxie": []}}),
            "did you mean \"trusted_proxies\"?",
        ),
        (
            json!({"client": {"trusted_proxies": "10.0.0.0/8"}}),
            "client.trusted_proxies: must be a list",
        ),
        (
            json!({"client": {"trusted_proxies": ["10.0.0.0/8", "10.0.0.0/33"]}}),
            "client.trusted_proxies[1]: \"10.0.0.0/33\" is not an address",
        ),
        (
            json!({"client": {"trusted_proxies": ["user:a"]}}),
            "client.trusted_proxies[0]",
        ),
        (
            json!({"client": {"header": "X Forwarded"}}),
            "client.header: \"X Forwarded\" is not",
        ),
        (
            json!({"client": {"ipv4_prefix": 0}}),
            "client.ipv4_prefix: must be a whole number from 1 to 32, not 0",
        ),
        (
            json!({"client": {"ipv6_prefix": 129}}),
            "from 1 to 128, not 129",
        ),
        // Lists.
        (
            json!({"lists": {"blocklist": ["10.0.0.0/33"]}}),
            "lists.blocklist[0]: \"10.0.0.0/33\" has a bad prefix length",
        ),
        (
            json!({"lists": {"allowlist": ["list.txt"]}}),
            "and not an absolute path either",
        ),
        (
            json!({"lists": {"blocklist": ["/a/[b"]}}),
            "lists.blocklist[0]: \"/a/[b\" is not a glob",
        ),
        (
            json!({"lists": {"blocklist": [5]}}),
            "lists.blocklist[0]: must be a text, not 5",
        ),
        // The response.
        (
            json!({"response": {"headers": "all"}}),
            "response.headers: must be \"standard\", \"legacy\" or \"off\"",
        ),
        (
            json!({"response": {"body": true}}),
            "response.body: must be \"problem\" or \"nginx\"",
        ),
        // Priority.
        (
            json!({"priority": {"levels": 1}}),
            "priority.levels: must be a whole number from 2 to 16",
        ),
        (
            json!({"priority": {"levels": 3, "default": 3}}),
            "priority.default: must be a whole number from 0 to 2, not 3",
        ),
        (
            json!({"priority": {"user_cap": 0}}),
            "priority.user_cap: must be a whole number from 1",
        ),
        (
            json!({"priority": {"forward": 1}}),
            "priority.forward: must be true or false, not 1",
        ),
        (
            json!({"priority": {"rules": [{"name": "a"}]}}),
            "priority.rules[0].level: is missing; it must be a whole number from 0 to 3",
        ),
        (
            json!({"priority": {"rules": [{"name": "a", "level": 4}]}}),
            "from 0 to 3, not 4",
        ),
        (
            json!({"priority": {"rules": [{"name": "a", "level": 1, "order": 5}]}}),
            "priority.rules[0].order: is not a known field",
        ),
        (
            json!({"priority": {"rules": [{"name": "a", "level": 1}, {"name": "a", "level": 2}]}}),
            "priority.rules[1].name: \"a\" is the name of priority.rules[0] already",
        ),
        // The whole.
        (json!([1]), "(file): must be a table of fields"),
        (json!(null), "(file): must be a table of fields"),
        (
            json!({"store": null}),
            "store: must be a table of fields, not null",
        ),
        (
            json!({"rules": {}}),
            "rules: must be a list, not a table of fields",
        ),
    ];
    for (value, expected) in rows {
        let found = errors(value.clone());
        assert_eq!(found.len(), 1, "{value}: {found:?}");
        assert!(found[0].contains(expected), "{value}: {}", found[0]);
    }
}

#[test]
fn bad_rules() {
    let rows = [
        (json!({"name": ""}), "rules[0].name: \"\" is not a name"),
        (
            json!({"name": "a/b"}),
            "rules[0].name: \"a/b\" is not a name",
        ),
        (json!({"name": "x".repeat(65)}), "is not a name"),
        (json!({"name": 5}), "rules[0].name: must be a text, not 5"),
        // B09: limits of zero.
        (
            json!({"rate": "0/s"}),
            "rules[0].rate: rate \"0/s\" is below the least",
        ),
        (
            json!({"rate": 5}),
            "rules[0].rate: must be a rate such as \"5/m\", not 5",
        ),
        (
            json!({"capacity": 0}),
            "rules[0].capacity: must be a whole number from 1 to 1000000000",
        ),
        (json!({"capacity": 1_000_000_001}), "not 1000000001"),
        (json!({"capacity": "5"}), "not the text \"5\""),
        (json!({"capacity": 1.5}), "not 1.5"),
        (
            json!({"capacity": 1e300}),
            "rules[0].capacity: must be a whole number",
        ),
        // B10: a cost that the bucket can never pay.
        (
            json!({"cost": 6}),
            "rules[0].cost: must be at most the capacity, 5, not 6",
        ),
        (
            json!({"cost": 0}),
            "rules[0].cost: must be a whole number from 1",
        ),
        (
            json!({"rate": "1/d", "capacity": 367}),
            "rules[0].capacity: 367 takes 367 days to fill at this rate; it must fill within 366",
        ),
        (
            json!({"mode": "off"}),
            "rules[0].mode: must be \"enforce\" or \"shadow\"",
        ),
        (
            json!({"scope": "gateway"}),
            "rules[0].scope: must be \"cluster\" or \"node\"",
        ),
        (
            json!({"status": 399}),
            "rules[0].status: must be a whole number from 400 to 599",
        ),
        (json!({"status": 600}), "not 600"),
        (
            json!({"enabled": 1}),
            "rules[0].enabled: must be true or false, not 1",
        ),
        (
            json!({"missing_key": "allow"}),
            "rules[0].missing_key: must be \"ip\", \"skip\" or \"deny\"",
        ),
        (
            json!({"key": "ip"}),
            "rules[0].key: must be a list, not the text \"ip\"",
        ),
        // B87: never replaced by the address.
        (
            json!({"key": ["ip", "apikey"]}),
            "rules[0].key[1]: \"apikey\" is not a part of a key",
        ),
        (
            json!({"key": ["ip", "ip"]}),
            "rules[0].key[1]: is there twice",
        ),
        (
            json!({"match": {"path": "a"}}),
            "rules[0].match.path: path \"a\" must start with /",
        ),
        (
            json!({"unless": {"method": "get"}}),
            "rules[0].unless.method: method \"get\"",
        ),
        (json!({"burst": 5}), "rules[0].burst: is not a known field"),
        (json!({"capcity": 5}), "did you mean \"capacity\"?"),
    ];
    for (fields, expected) in rows {
        let found = errors(json!({"rules": [rule(fields.clone())]}));
        assert_eq!(found.len(), 1, "{fields}: {found:?}");
        assert!(found[0].contains(expected), "{fields}: {}", found[0]);
    }
    let found = errors(json!({"rules": [{}]}));
    let missing = [
        "rules[0].name: is missing",
        "rules[0].rate: is missing",
        "rules[0].capacity: is",
    ];
    assert_eq!(found.len(), 3);
    assert!(
        found
            .iter()
            .zip(missing)
            .all(|(line, start)| line.starts_with(start)),
        "{found:?}"
    );
    // B86: a rule is its name.
    let found = errors(json!({"rules": [rule(json!({})), rule(json!({"rate": "6/m"}))]}));
    assert_eq!(
        found,
        ["rules[1].name: \"r\" is the name of rules[0] already; names must differ"]
    );
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
fn what_is_worth_a_word() {
    let proxies = json!({"client": {"trusted_proxies": ["0.0.0.0/0", "::/0", "10.0.0.0/8"]}});
    let lists = json!({"lists": {"blocklist": ["10.0.0.0/8", "0.0.0.0/0"], "allowlist": ["::/0"]}});
    let tls = json!({"store": {"url": "rediss://a", "tls": {"verify": false}}});
    let rows = [
        (
            proxies,
            vec![
                "client.trusted_proxies: 0.0.0.0/0",
                "client.trusted_proxies: ::/0",
            ],
        ),
        (
            lists,
            vec![
                "lists.blocklist[1]: 0.0.0.0/0 is every IPv4 address",
                "lists.allowlist[0]: ::/0 is every IPv6 address",
            ],
        ),
        (tls, vec!["store.tls.verify: is false"]),
    ];
    for (value, expected) in rows {
        let found = lines(&good(value).warnings);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert!(
            found
                .iter()
                .zip(expected)
                .all(|(line, start)| line.starts_with(start)),
            "{found:?}"
        );
    }
}

#[test]
fn rules_keyed_by_what_the_client_chooses() {
    let chosen = |fields: Value| {
        let mut rule = rule(json!({"name": "chosen", "match": {"path": "/a/b"}}));
        for (name, value) in fields.as_object().unwrap() {
            rule[name] = value.clone();
        }
        rule
    };
    let guard = |fields: Value| rule(fields);
    let by_header = || chosen(json!({"key": ["header:x"]}));
    let rows = [
        (vec![by_header()], true),
        (vec![chosen(json!({"key": ["cookie:a", "ua"]}))], true),
        (vec![chosen(json!({"key": ["path"]}))], true),
        (vec![chosen(json!({"key": ["host"]}))], true),
        (vec![chosen(json!({"key": ["arg:a", "method"]}))], true),
        (vec![chosen(json!({"key": ["header:x", "ip"]}))], false),
        (vec![chosen(json!({"key": ["header:x", "user"]}))], false),
        (vec![chosen(json!({"key": ["user"]}))], false),
        (vec![chosen(json!({"key": []}))], false),
        (
            vec![chosen(json!({"key": ["ua"], "enabled": false}))],
            false,
        ),
        // Another rule bounds the same requests.
        (vec![by_header(), guard(json!({}))], false),
        (vec![by_header(), guard(json!({"key": []}))], false),
        (
            vec![by_header(), guard(json!({"match": {"path": "/a/*"}}))],
            false,
        ),
        (
            vec![
                by_header(),
                guard(json!({"key": ["ip", "path"], "match": {"path": "/*"}})),
            ],
            false,
        ),
        // It does not.
        (
            vec![by_header(), guard(json!({"match": {"path": "/b/*"}}))],
            true,
        ),
        (
            vec![by_header(), guard(json!({"match": {"method": "POST"}}))],
            true,
        ),
        (vec![by_header(), guard(json!({"mode": "shadow"}))], true),
        (vec![by_header(), guard(json!({"enabled": false}))], true),
        (
            vec![by_header(), guard(json!({"key": ["ip", "header:x"]}))],
            true,
        ),
        (
            vec![by_header(), guard(json!({"unless": {"method": "GET"}}))],
            true,
        ),
        (
            vec![
                chosen(json!({"key": ["ua"], "unless": {"path": "/a/*"}})),
                guard(json!({"unless": {"path": "/a/b"}})),
            ],
            false,
        ),
    ];
    for (rules, expected) in rows {
        let value = json!({ "rules": rules });
        let found = lines(&good(value.clone()).warnings);
        assert_eq!(found.len(), usize::from(expected), "{value}: {found:?}");
        assert!(
            found
                .iter()
                .all(|line| line.starts_with("rules[0].key: has only parts"))
        );
    }
    let constant = rule(json!({"key": ["ip", "path"]}));
    let found = lines(&good(json!({"rules": [constant]})).warnings);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("rules[0].key: has the part path, but match has no path"));
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

#[test]
fn files_by_their_ending() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    assert!(from_path(&write("a.toml", b"[shm]\nsize = \"1MiB\"\n")).is_ok());
    assert!(from_path(&write("b.toml", b"\xef\xbb\xbf[shm]\nsize = \"1MiB\"\n")).is_ok());
    assert!(from_path(&write("a.json", b"{\"shm\": {\"size\": \"1MiB\"}}")).is_ok());
    let rows = [
        (
            write("a.conf", b""),
            "(file): has a name that ends in neither .toml nor .json",
        ),
        (
            dir.path().join("none.toml"),
            "(file): cannot be read: No such file",
        ),
        (dir.path().to_path_buf(), "(file): has a name"),
        (
            write("c.toml", b"# a\n\xff"),
            "(file): is not UTF-8 text at line 2",
        ),
        (write("d.toml", b"a = \n"), "line 1, column 5: is not TOML"),
        (
            write("e.json", b"{\n\"shm\": }"),
            "shm: is not JSON at line 2, column 8",
        ),
        (write("f.json", b"{"), "line 1, column 1: is not JSON: EOF"),
        (
            write("g.toml", b"[shm]\nsize = nan\n"),
            "shm.size: must be a finite number",
        ),
    ];
    for (path, expected) in rows {
        let found = lines(&from_path(&path).unwrap_err());
        assert!(found[0].starts_with(expected), "{found:?}");
    }
}

#[test]
fn globs_are_expanded_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["b.txt", "a.txt", ".hidden.txt", "c.list"] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    std::fs::create_dir(dir.path().join("d.txt")).unwrap();
    let at = |name: &str| dir.path().join(name);
    let pattern = |name: &str| at(name).to_str().unwrap().to_string();
    assert_eq!(
        expand(&pattern("*.txt")).unwrap(),
        [at("a.txt"), at("b.txt")]
    );
    assert_eq!(
        expand(&pattern("none-*")).unwrap(),
        [""; 0].map(PathBuf::from)
    );
    // A plain path is itself, and missing later.
    assert_eq!(expand(&pattern("none")).unwrap(), [at("none")]);
    assert_eq!(expand("/x/y").unwrap(), [Path::new("/x/y")]);
}
