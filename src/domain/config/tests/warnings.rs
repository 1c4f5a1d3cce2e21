//! What is accepted with a warning.
use super::*;

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
        (
            json!({"store": {"url": "redis://sluice:secret@a"}}),
            vec!["store.url: has a password in clear, for whoever may read this; name"],
        ),
        (json!({"store": {"url": "redis://sluice@a"}}), vec![]),
        (
            json!({"store": {"url": "redis://a", "password_env": "REDIS_PASSWORD"}}),
            vec![],
        ),
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
