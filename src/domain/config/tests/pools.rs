//! `[[pools]]`: in the file, and as `pool:<name>`.
use super::*;
use crate::domain::pool::{LEVELS, Settings};
use std::collections::BTreeMap;
use std::path::Path;

fn pool(fields: Value) -> Value {
    let mut pool = json!({"name": "backend", "limit": 500});
    for (name, value) in fields.as_object().unwrap() {
        pool[name] = value.clone();
    }
    pool
}

fn read_one(fields: Value) -> PoolConfig {
    good(json!({"pools": [pool(fields)]})).pools.remove(0)
}

fn weights(of: &[u32]) -> [u32; LEVELS] {
    let mut all = [0; LEVELS];
    all[1..=of.len()].copy_from_slice(of);
    all
}

#[test]
fn defaults() {
    let found = read_one(json!({}));
    assert_eq!((found.name.as_str(), found.enabled), ("backend", true));
    assert_eq!(found.limit, PoolLimit::Fixed(500));
    assert_eq!(
        (found.scope, found.release),
        (Scope::Node, Release::Response)
    );
    assert_eq!((found.unless.is_none(), &found.degrade), (true, &None));
    let expected = Settings {
        adaptive: 0,
        limit: 500,
        min: 500,
        max: 500,
        start: 500,
        capacity: 1000,
        levels: 4,
        cluster: 0,
        weights: weights(&[8, 2, 1]),
        max_wait_ns: 5_000_000_000,
        timeout_ns: 60_000_000_000,
    };
    assert_eq!(found.settings(4), expected);
    for (levels, expected) in [(2, &[8][..]), (3, &[8, 2]), (6, &[8, 2, 1, 1, 1])] {
        let config = json!({"pools": [pool(json!({}))], "priority": {"levels": levels}});
        let found = good(config).pools.remove(0).settings(levels);
        assert_eq!(found.weights, weights(expected), "{levels} levels");
        assert_eq!(found.levels, u32::from(levels));
    }
}

#[test]
fn the_example_of_the_contract() {
    let text = r#"
[[pools]]
name     = "backend"
match    = {}
limit    = 500
scope    = "node"
queue    = { capacity = 1000, max_wait = "5s", weights = [8, 2, 1] }
timeout  = "60s"
degrade  = { file = "/etc/sluice/busy.html" }
release  = "response"
"#;
    let found = from_toml(text).unwrap().pools.remove(0);
    assert_eq!(found.settings(4), read_one(json!({})).settings(4));
    let page = Degrade::File(PathBuf::from("/etc/sluice/busy.html"));
    assert_eq!(found.degrade, Some(page));
}

#[test]
fn every_field_is_taken() {
    let found = good(json!({
        "store": {"url": "redis://127.0.0.1"},
        "priority": {"levels": 3},
        "pools": [{
            "name": "a", "match": {"path": "/a/*"}, "unless": {"method": "HEAD"},
            "limit": "adaptive", "min": 4, "max": 64, "start": 16, "scope": "cluster",
            "queue": {"capacity": 9, "max_wait": "20ms", "weights": [3, 4]},
            "timeout": "2m", "degrade": {"location": "@busy"}, "release": "headers", "request_buffering": false,
            "enabled": false,
        }],
    }))
    .pools
    .remove(0);
    assert_eq!((found.enabled, found.release), (false, Release::Headers));
    assert!(!found.request_buffering);
    assert!(found.unless.is_some());
    assert_eq!(found.degrade, Some(Degrade::Location("@busy".to_string())));
    let expected = Settings {
        adaptive: 1,
        limit: 16,
        min: 4,
        max: 64,
        start: 16,
        capacity: 9,
        levels: 3,
        cluster: 1,
        weights: weights(&[3, 4]),
        max_wait_ns: 20_000_000,
        timeout_ns: 120_000_000_000,
    };
    assert_eq!(found.settings(3), expected);
}

#[test]
fn adaptive_bounds() {
    let rows = [
        ("all defaults", json!({}), (1, 1000, 20)),
        ("a start", json!({"start": 50}), (1, 1000, 50)),
        // A default follows the bound that is written.
        ("a max below the start", json!({"max": 8}), (1, 8, 8)),
        (
            "a min above the start",
            json!({"min": 100}),
            (100, 1000, 100),
        ),
        (
            "a min above the max",
            json!({"min": 2000}),
            (2000, 2000, 2000),
        ),
        (
            "all one",
            json!({"min": 7, "max": 7, "start": 7}),
            (7, 7, 7),
        ),
        (
            "as Lua writes it",
            json!({"min": 2.0, "max": 9.0}),
            (2, 9, 9),
        ),
    ];
    for (why, mut fields, (min, max, start)) in rows {
        fields["limit"] = json!("adaptive");
        let expected = PoolLimit::Adaptive { min, max, start };
        assert_eq!(read_one(fields).limit, expected, "{why}");
    }
    assert_eq!(read_one(json!({"limit": 3.0})).limit, PoolLimit::Fixed(3));
}

#[test]
fn bad_fields_are_named_with_what_would_be_right() {
    let limit = "limit: must be a whole number from 1 to 14999, or \"adaptive\", not";
    let capacity = "queue.capacity: must be a whole number from 1 to 14999, not";
    let shape = "it must be { file = \"/etc/sluice/busy.html\" } or { location = \"@degraded\" }";
    let adaptive = |fields: Value| {
        let mut fields = fields;
        fields["limit"] = json!("adaptive");
        fields
    };
    let queue = |queue: Value| json!({"queue": queue});
    let degrade = |degrade: Value| json!({"degrade": degrade});
    let rows = [
        (json!({"limit": 0}), format!("{limit} 0")),
        (json!({"limit": -1}), format!("{limit} -1")),
        (json!({"limit": "many"}), format!("{limit} the text \"many\"")),
        (json!({"limit": null}), format!("{limit} null")),
        (json!({"limit": 1.5}), "limit: must be a whole number from 1 to 14999, not 1.5".into()),
        (json!({"limit": 15_000}), "from 1 to 14999, not 15000".into()),
        (adaptive(json!({"min": 0})), "min: must be a whole number from 1 to 14999, not 0".into()),
        (adaptive(json!({"max": 0})), "max: must be a whole number from 1 to 14999, not 0".into()),
        (adaptive(json!({"max": "1"})), "max: must be a whole number".into()),
        (adaptive(json!({"min": 5, "max": 4})), "max: must be at least min, 5, not 4".into()),
        (
            adaptive(json!({"min": 5, "start": 4})),
            "start: must be from min, 5, to max, 1000, not 4".into(),
        ),
        (
            adaptive(json!({"max": 5, "start": 6})),
            "start: must be from min, 1, to max, 5, not 6".into(),
        ),
        (
            json!({"min": 1}),
            "min: is for limit = \"adaptive\"; leave it out, as this limit is fixed".into(),
        ),
        (json!({"max": 1}), "max: is for limit = \"adaptive\"".into()),
        (json!({"start": 1}), "start: is for limit = \"adaptive\"".into()),
        (
            json!({"scope": "gateway"}),
            "scope: must be \"node\" or \"cluster\", not the text \"gateway\"".into(),
        ),
        (json!({"scope": "cluster"}), "scope: is \"cluster\", which needs a Redis".into()),
        (queue(json!({"capacity": 0})), format!("{capacity} 0")),
        (queue(json!({"capacity": -5})), format!("{capacity} -5")),
        (queue(json!({"capacity": 1e9})), format!("{capacity} 1000000000.0")),
        (
            queue(json!({"capacity": 14_501})),
            "queue.capacity: is 14501, and with the 500 of limit that is 15001; together they \
             must be at most 15000, for which a pool has room in the shared memory"
                .into(),
        ),
        (
            json!({"limit": 14_500}),
            "queue.capacity: is 1000, and with the 14500 of limit that is 15500".into(),
        ),
        (
            adaptive(json!({"max": 14_001})),
            "queue.capacity: is 1000, and with the 14001 of max that is 15001".into(),
        ),
        (queue(json!({"max_wait": "0s"})), "queue.max_wait: must be from 1ms to 60s, not \"0s\"".into()),
        (queue(json!({"max_wait": "61s"})), "queue.max_wait: must be from 1ms to 60s, not \"61s\"".into()),
        (queue(json!({"max_wait": 5})), "queue.max_wait: must be a duration".into()),
        (
            queue(json!({"weights": [8, 2]})),
            "queue.weights: has 2 weights; with 4 levels it must have 3, of level 1 and those \
             below it (level 0 goes before all)"
                .into(),
        ),
        (queue(json!({"weights": [16, 8, 2, 1]})), "queue.weights: has 4 weights".into()),
        (queue(json!({"weights": [8, 0, 1]})), "queue.weights[1]: must be a whole number from 1 to 1000, not 0".into()),
        (queue(json!({"weights": [8, 2, 1001]})), "queue.weights[2]: must be a whole number from 1".into()),
        (queue(json!({"weights": 8})), "queue.weights: must be a list, not 8".into()),
        (queue(json!({"size": 8})), "queue.size: is not a known field; the fields here are".into()),
        (queue(json!("big")), "queue: must be a table of fields".into()),
        (json!({"timeout": "0s"}), "timeout: must be from 100ms to 1h, not \"0s\"".into()),
        (json!({"timeout": "2h"}), "timeout: must be from 100ms to 1h, not \"2h\"".into()),
        (degrade(json!({})), format!("degrade: has neither file nor location; {shape}")),
        (
            degrade(json!({"file": "/a.html", "location": "@a"})),
            format!("degrade: has both file and location; {shape}"),
        ),
        (degrade(json!("/a.html")), "degrade: must be { file = \"/etc/sluice/busy.html\" } or { location".into()),
        (degrade(json!({"file": "a.html"})), "degrade.file: must be an absolute path".into()),
        (degrade(json!({"file": "/etc/passwd"})), "degrade.file: \"/etc/passwd\" has an ending of no known type; it must be one of .html .htm".into()),
        (degrade(json!({"file": "/a.exe"})), "degrade.file: \"/a.exe\" has an ending of no known type".into()),
        (degrade(json!({"location": "busy"})), "degrade.location: \"busy\" is not a location; it must begin with @ or /".into()),
        (degrade(json!({"location": "@"})), "degrade.location: \"@\" is not a location".into()),
        (degrade(json!({"location": "/a\nb"})), "is not a location".into()),
        (degrade(json!({"location": 5})), "degrade.location: must be the location's name, such as".into()),
        (json!({"request_buffering": "off"}), "request_buffering: must be true or false".into()),
        (json!({"release": "body"}), "release: must be \"response\" or \"headers\"".into()),
        (json!({"enabled": "no"}), "enabled: must be true or false".into()),
        (json!({"match": {"path": "a"}}), "match.path: path \"a\" must start with /".into()),
        (json!({"name": "a b"}), "name: \"a b\" is not a name".into()),
        (json!({"capacity": 5}), "capacity: is not a known field".into()),
        (json!({"limits": 5}), "limits: is not a known field; did you mean \"limit\"?".into()),
    ];
    for (fields, expected) in rows {
        let found = errors(json!({"pools": [pool(fields.clone())]}));
        assert_eq!(found.len(), 1, "{fields}: {found:?}");
        assert!(found[0].starts_with("pools[0]."), "{fields}: {}", found[0]);
        assert!(found[0].contains(&expected), "{fields}: {}", found[0]);
    }
    let found = errors(json!({"pools": [{}]}));
    let missing = [
        "pools[0].name: is missing",
        "pools[0].limit: is missing; it must be a whole number from 1 to 14999, or \"adaptive\"",
    ];
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found
            .iter()
            .zip(missing)
            .all(|(line, start)| line.starts_with(start))
    );
    let same = errors(json!({"pools": [pool(json!({})), pool(json!({}))]}));
    assert_eq!(
        same,
        ["pools[1].name: \"backend\" is the name of pools[0] already; names must differ"]
    );
    let many: Vec<Value> = (0..17)
        .map(|n| pool(json!({"name": format!("p{n}")})))
        .collect();
    assert_eq!(
        errors(json!({"pools": many})),
        ["pools: has 17 pools; there may be at most 16"]
    );
    // As large as they can be.
    for fields in [
        json!({"limit": 14_000}),
        json!({"limit": 1, "queue": {"capacity": 14_999}}),
        adaptive(json!({"max": 14_999, "queue": {"capacity": 1}})),
    ] {
        assert_eq!(errors(json!({"pools": [pool(fields)]})), [""; 0]);
    }
}

#[test]
fn a_cluster_needs_a_store() {
    let with = |store: Value| {
        errors(json!({"store": store, "pools": [pool(json!({"scope": "cluster"}))]}))
    };
    assert_eq!(with(json!({})).len(), 1);
    assert_eq!(with(json!({"url": "redis://a"})), [""; 0]);
    // It has a default there.
    assert_eq!(with(json!({"backend": "redis"})), [""; 0]);
}

#[test]
fn types_of_pages() {
    let rows = [
        ("/a/busy.html", Some("text/html; charset=utf-8")),
        ("/a/BUSY.HTML", Some("text/html; charset=utf-8")),
        ("/a/busy.json", Some("application/json; charset=utf-8")),
        ("/a/busy.txt", Some("text/plain; charset=utf-8")),
        ("/a/busy.xml", Some("application/xml; charset=utf-8")),
        ("/a/busy.svg", Some("image/svg+xml; charset=utf-8")),
        ("/a.html/busy", None),
        ("/a/.html", None),
        ("/a/busy.pem", None),
    ];
    for (path, expected) in rows {
        assert_eq!(content_type(Path::new(path)), expected, "{path}");
    }
}

#[test]
fn a_pool_behind_one_that_takes_all_its_requests() {
    let all = |name: &str| pool(json!({"name": name}));
    let some = |name: &str, path: &str| pool(json!({"name": name, "match": {"path": path}}));
    let but = |name: &str, path: &str| pool(json!({"name": name, "unless": {"path": path}}));
    let off = |name: &str| pool(json!({"name": name, "enabled": false}));
    let rows = [
        (vec![some("a", "/a/*"), all("b")], vec![]),
        (
            vec![all("a"), some("b", "/b/*")],
            vec![
                "pools[1].match: never comes to hold, since pools[0], \"a\", takes all its \
                 requests before; put the narrower pool first",
            ],
        ),
        (
            vec![some("a", "/b/*"), some("b", "/b/c")],
            vec!["pools[1].match: never"],
        ),
        (vec![all("a"), off("b")], vec![]),
        (vec![off("a"), all("b")], vec![]),
        (vec![but("a", "/b/*"), some("b", "/b/*")], vec![]),
        (
            vec![but("a", "/b/*"), but("b", "/b/*")],
            vec!["pools[1].match: never"],
        ),
        (
            vec![all("a"), some("b", "/b/*"), all("c")],
            vec!["pools[1].match: never", "pools[2].match: never"],
        ),
    ];
    for (pools, expected) in rows {
        let found = lines(&good(json!({"pools": pools.clone()})).warnings);
        assert_eq!(found.len(), expected.len(), "{pools:?}: {found:?}");
        let same = found
            .iter()
            .zip(expected)
            .all(|(line, start)| line.starts_with(start));
        assert!(same, "{pools:?}: {found:?}");
    }
}

// ---- the hash ----

fn file() -> Config {
    good(json!({
        "store": {"url": "redis://127.0.0.1"},
        "pools": [
            pool(json!({"name": "shop", "match": {"path": "/shop/*"}})),
            pool(json!({"name": "api", "match": {"path": "/api/*"}, "limit": 9})),
            pool(json!({"name": "idle", "match": {"path": "/idle"}, "enabled": false})),
        ],
    }))
}

fn merged(list: &[(&str, &str, Option<&str>)]) -> Effective {
    merged_in(&SPACE, list)
}

fn merged_in(space: &Space, list: &[(&str, &str, Option<&str>)]) -> Effective {
    let field = |(name, raw, good): &(&str, &str, Option<&str>)| {
        let field = Field {
            raw: raw.as_bytes().to_vec(),
            good: good.map(|good| good.as_bytes().to_vec()),
        };
        (name.as_bytes().to_vec(), field)
    };
    let fields: BTreeMap<_, _> = list.iter().map(field).collect();
    merge(&file(), &fields, space)
}

/// `name limit` of each pool.
fn pools(effective: &Effective) -> Vec<String> {
    effective
        .pools
        .iter()
        .map(|pool| format!("{} {}", pool.name, pool.limit.most()))
        .collect()
}

#[test]
fn entries_replace_add_and_switch_off() {
    const OFF: &str = r#"{"enabled": false}"#;
    const SEVEN: &str = r#"{"match": {"path": "/x"}, "limit": 7}"#;
    let rows = [
        (vec![], vec!["shop 500", "api 9"]),
        (vec![("pool:api", SEVEN)], vec!["shop 500", "api 7"]),
        (vec![("pool:shop", OFF)], vec!["api 9"]),
        (
            vec![("pool:idle", SEVEN)],
            vec!["shop 500", "api 9", "idle 7"],
        ),
        // New ones come after the file's, by name.
        (
            vec![("pool:z", SEVEN), ("pool:b", SEVEN), ("pool:none", OFF)],
            vec!["shop 500", "api 9", "b 7", "z 7"],
        ),
        (
            vec![(
                "pool:api",
                r#"{"limit": "adaptive", "max": 30, "scope": "cluster"}"#,
            )],
            vec!["shop 500", "api 30"],
        ),
        (
            vec![("pool:api", r#"{"limit": 7, "enabled": false}"#)],
            vec!["shop 500"],
        ),
    ];
    for (list, expected) in rows {
        let written: Vec<_> = list.iter().map(|(name, raw)| (*name, *raw, None)).collect();
        let effective = merged(&written);
        assert_eq!(pools(&effective), expected, "{list:?}");
        assert_eq!(effective.errors, [], "{list:?}");
        for (name, raw) in list {
            assert_eq!(
                check_field(&file(), name.as_bytes(), raw.as_bytes(), &SPACE),
                Ok(())
            );
        }
    }
    // Whole: what it does not say is the default, not the file's.
    let raw = r#"{"limit": 5}"#;
    let Ok(Entry::Pool(found)) = pool_entry("shop", raw.as_bytes(), &file(), &SPACE) else {
        panic!("a pool")
    };
    assert!(!found.matcher.has_path());
    assert!(matches!(
        pool_entry("x", b"{\"enabled\": false}", &file(), &SPACE),
        Ok(Entry::Off)
    ));
}

#[test]
fn a_bad_entry_is_refused_alone_and_the_last_good_one_stays() {
    let rows = [
        (
            "pool:api",
            r#"{"limit": 0}"#,
            "pool:api.limit: must be a whole number from 1",
        ),
        ("pool:api", "{}", "pool:api.limit: is missing"),
        ("pool:api", "x", "pool:api: is not JSON"),
        ("pool:api", "[]", "pool:api: must be a table of fields"),
        (
            "pool:api",
            r#"{"name": "api", "limit": 5}"#,
            "pool:api.name: does not belong here",
        ),
        (
            "pool:api",
            r#"{"limit": 5, "queue": {"weights": [1]}}"#,
            "pool:api.queue.weights: has 1 weights; with 4 levels it must have 3",
        ),
        (
            "pool:api",
            r#"{"limit": 5, "degrade": {"file": "/etc/passwd"}}"#,
            "pool:api.degrade.file: \"/etc/passwd\" has an ending of no known type",
        ),
        ("pool:", r#"{"limit": 5}"#, "pool:\"\": \"\" is not a name"),
        (
            "pools:x",
            r#"{"limit": 5}"#,
            "pools:x: is not a known field; there are rule:<name>, priority:<name>, pool:<name> and mode",
        ),
        (
            "event:x",
            r#"{"for": "5m"}"#,
            "event:x: is not a known field",
        ),
    ];
    for (name, raw, expected) in rows {
        let effective = merged(&[(name, raw, None), ("pool:new", r#"{"limit": 3}"#, None)]);
        let found = lines(&effective.errors);
        assert_eq!(found.len(), 1, "{name} {raw}: {found:?}");
        assert!(found[0].starts_with(expected), "{name} {raw}: {}", found[0]);
        assert_eq!(pools(&effective), ["shop 500", "api 9", "new 3"]);
        let checked = check_field(&file(), name.as_bytes(), raw.as_bytes(), &SPACE).unwrap_err();
        assert_eq!(lines(&checked), found);
    }
    let last_good = Some(r#"{"match": {"path": "/x"}, "limit": 6}"#);
    let effective = merged(&[("pool:api", r#"{"limit": 0}"#, last_good)]);
    assert_eq!(pools(&effective), ["shop 500", "api 6"]);
    assert_eq!(effective.errors.len(), 1);
    let effective = merged(&[("pool:api", "{", Some(r#"{"enabled": false}"#))]);
    assert_eq!(pools(&effective), ["shop 500"]);
}

#[test]
fn one_pool_too_many_is_refused() {
    let names: Vec<String> = (0..16).map(|n| format!("pool:n{n:02}")).collect();
    let list: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), r#"{"limit": 3}"#, None))
        .collect();
    let effective = merged(&list);
    assert_eq!(effective.pools.len(), MAX_POOLS);
    let expected = [
        "pool:n14: is one pool too many; there may be at most 16",
        "pool:n15: is one pool too many; there may be at most 16",
    ];
    assert_eq!(lines(&effective.surplus), expected);
    assert_eq!(effective.errors, []);
    // A smaller memory: the file's own come first, whatever the hash makes of them.
    let small = r#"{"limit": 3}"#;
    let list = ["pool:api", "pool:idle", "pool:new"].map(|name| (name, small, None));
    let effective = merged_in(&Space(3, 15_000), &list);
    assert_eq!(pools(&effective), ["shop 500", "api 3", "idle 3"]);
    let expected = ["pool:new: is one pool too many; the shared memory has room for 3, not for 4"];
    assert_eq!(lines(&effective.surplus), expected);
}

#[test]
fn a_pool_that_is_too_large_is_refused_alone() {
    let space = Space(MAX_POOLS, 2000);
    let (large, small) = (r#"{"limit": 1001}"#, r#"{"limit": 1000}"#);
    let effective = merged_in(
        &space,
        &[
            ("pool:api", large, None),
            ("pool:b", large, Some(small)),
            ("pool:c", large, Some(large)),
            ("pool:d", r#"{"limit": 1001, "enabled": false}"#, None),
            ("pool:e", small, None),
        ],
    );
    // The file's; the last good one; none.
    assert_eq!(pools(&effective), ["shop 500", "api 9", "b 1000", "e 1000"]);
    let expected = ["api", "b", "c"].map(|name| format!("pool:{name}: is too large"));
    assert_eq!(lines(&effective.errors), expected);
    let checked = check_field(&file(), b"pool:x", large.as_bytes(), &space).unwrap_err();
    assert_eq!(lines(&checked), ["pool:x: is too large"]);
}

#[test]
fn warnings_are_about_what_is_in_force() {
    let effective = merged(&[("pool:shop", r#"{"limit": 5}"#, None)]);
    let found = lines(&effective.warnings);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("pools[1].match: never comes to hold, since pool:shop, \"shop\""));
    let effective = merged(&[(
        "pool:new",
        r#"{"match": {"path": "/api/x"}, "limit": 5}"#,
        None,
    )]);
    let found = lines(&effective.warnings);
    assert!(
        found[0].starts_with("pool:new.match: never comes to hold, since pools[1]"),
        "{found:?}"
    );
}
