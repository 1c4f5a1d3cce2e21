//! What is refused, and how it is named.
use super::*;
use proptest::prelude::*;

#[test]
fn all_errors_are_found_at_once() {
    let found = errors(json!({
        "store": {"backend": "memcached", "timout": "1s"},
        "shm": {"size": "1GB"},
        "client": {"ipv4_prefix": 33},
        "rules": [{"name": "a b", "rate": "0/s", "capacity": 0}, 7],
        "ruels": [],
        "pools": [{}],
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
        "pools[0].name",
        "pools[0].limit",
        "ruels",
    ];
    assert_eq!(fields, expected, "{found:#?}");
}

#[test]
fn bad_fields_are_named_with_what_would_be_right() {
    let rows = [
        // Not in this version.
        (json!({"identity": []}), "identity: is not in this version"),
        (json!({"nodes": {}}), "nodes: is not in this version"),
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
            "store.timeout: must be from 1ms to 10s, not \"0ms\"",
        ),
        (
            json!({"store": {"timeout": "1m"}}),
            "store.timeout: must be from 1ms to 10s, not \"1m\"",
        ),
        (
            json!({"store": {"timeout": 20}}),
            "must be a duration such as \"20ms\", not 20",
        ),
        (
            json!({"store": {"sync": "1ms"}}),
            "store.sync: must be from 50ms to 1h",
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
            "store.password_file: \"/etc/none\": entity not found; name a file that can be read",
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
            json!({"shm": {"path": format!("/{}", "x".repeat(94))}}),
            "at most 94 bytes",
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
            "client.header: \"X Forwarded\" is not the name of a header; write one such as \"X-Forwarded-For\"",
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
            "rules: must be a list of tables ([[rules]] in TOML), not a table of fields",
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
            "rules[0].key[1]: is there twice; leave out one",
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

/// Every section with every kind of value.
fn whole() -> Value {
    json!({
        "store": {
            "backend": "redis", "url": "rediss://u@h:1/0", "password_env": "REDIS_PASSWORD",
            "tls": {"ca_file": "/etc/ca.pem", "cert_file": "/etc/cert.pem",
                    "key_file": "/etc/key.pem", "verify": true},
            "prefix": "p", "timeout": "20ms", "on_error": "deny", "sync": "1s",
        },
        "shm": {"path": "/dev/shm/x", "size": "8MiB"},
        "client": {"trusted_proxies": ["unix:", "10.0.0.0/8"], "header": "Forwarded",
                   "ipv4_prefix": 24, "ipv6_prefix": 56},
        "lists": {"blocklist": ["192.0.2.1", "/x/*"], "allowlist": ["user:a"]},
        "response": {"headers": "legacy", "body": "nginx"},
        "rules": [rule(json!({
            "match": {"path": ["/a", "~b"], "host": ".x", "method": "GET", "header": {"X": ["*"]}},
            "unless": {"path": "/a/*"}, "key": ["ip", "arg:a"], "missing_key": "deny", "cost": 2,
            "mode": "shadow", "scope": "node", "status": 444, "enabled": true,
        }))],
        "priority": {"levels": 3, "default": 1, "user_cap": 2, "forward": true,
                     "rules": [{"name": "p", "match": {}, "level": 0}]},
    })
}

/// Calls `visit` with every value, the outermost first.
fn each(value: &mut Value, visit: &mut dyn FnMut(&mut Value)) {
    visit(value);
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| each(item, visit)),
        Value::Object(map) => map.values_mut().for_each(|item| each(item, visit)),
        _ => {}
    }
}

fn odd() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(null)),
        Just(json!(true)),
        Just(json!(-1)),
        Just(json!(0)),
        Just(json!(1e308)),
        Just(json!(18_446_744_073_709_551_615u64)),
        Just(json!("")),
        Just(json!([])),
        Just(json!({})),
        Just(json!([[]])),
        Just(json!({"": null})),
        "\\PC{0,12}".prop_map(Value::from),
    ]
}

proptest! {
    /// One value replaced by an odd one: read, or refused with that place or one
    /// around it named; never a panic.
    #[test]
    fn odd_values_anywhere(at in 0usize..80, odd in odd(), lua: bool) {
        let mut value = whole();
        let mut count = 0;
        each(&mut value, &mut |place| {
            if count == at {
                *place = odd.clone();
            }
            count += 1;
        });
        let problems = if lua { Problems::for_lua() } else { Problems::default() };
        if let Err(errors) = read(&value, problems, &Fake) {
            prop_assert!(!errors.is_empty());
            for error in errors {
                prop_assert!(!error.field.is_empty() && !error.problem.is_empty());
                prop_assert!(!error.field.contains('\n') && !error.problem.contains('\n'));
            }
        }
    }
}

#[test]
fn the_whole_is_good() {
    good(whole());
}
