use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn file() -> Config {
    good(json!({
        "rules": [
            rule(json!({"name": "login"})),
            rule(json!({"name": "api", "capacity": 100, "rate": "100/s"})),
            rule(json!({"name": "idle", "enabled": false})),
        ],
        "priority": {"rules": [
            {"name": "pay", "match": {"path": "/pay/*"}, "level": 0},
            {"name": "img", "match": {"path": "/img/*"}, "level": 2},
        ]},
    }))
}

/// Fields of the hash and their values.
type Written<'a> = &'a [(&'a str, &'a str)];

fn fields(list: Written<'_>) -> BTreeMap<Vec<u8>, Field> {
    let field = |(name, raw): &(&str, &str)| {
        (
            name.as_bytes().to_vec(),
            Field {
                raw: raw.as_bytes().to_vec(),
                good: None,
            },
        )
    };
    list.iter().map(field).collect()
}

/// `name capacity` of each rule.
fn rules(effective: &Effective) -> Vec<String> {
    effective
        .rules
        .iter()
        .map(|rule| format!("{} {}", rule.name, rule.capacity))
        .collect()
}

fn merged(list: Written<'_>) -> Effective {
    merge(&file(), &fields(list), &SPACE)
}

const GOOD: &str = r#"{"key":["ip"],"rate":"5/m","capacity":7}"#;

#[test]
fn without_a_hash_the_file_is_in_force() {
    let effective = merged(&[]);
    assert_eq!(rules(&effective), ["login 5", "api 100"]);
    assert_eq!(effective.mode, Mode::Enforce);
    assert_eq!((effective.errors, effective.warnings), (vec![], vec![]));
}

#[test]
fn entries_replace_add_and_switch_off() {
    let rows: [(Written<'_>, &[&str]); 7] = [
        (&[("rule:login", GOOD)], &["login 7", "api 100"]),
        // New ones come after the file's, by name.
        (
            &[("rule:z", GOOD), ("rule:b", GOOD)],
            &["login 5", "api 100", "b 7", "z 7"],
        ),
        (&[("rule:login", r#"{"enabled": false}"#)], &["api 100"]),
        (
            &[("rule:new", r#"{"enabled": false}"#)],
            &["login 5", "api 100"],
        ),
        (
            &[(
                "rule:login",
                r#"{"rate":"5/m","capacity":7,"enabled":false}"#,
            )],
            &["api 100"],
        ),
        // An entry is whole: what it does not say is the default, not the file's.
        (&[("rule:idle", GOOD)], &["login 5", "api 100", "idle 7"]),
        (
            &[("rule:api", r#"{"rate":"1/s","capacity":3}"#)],
            &["login 5", "api 3"],
        ),
    ];
    for (list, expected) in rows {
        let effective = merged(list);
        assert_eq!(rules(&effective), expected, "{list:?}");
        assert_eq!(effective.errors, []);
    }
}

#[test]
fn the_example_of_the_contract() {
    let raw = r#"{"match":{"path":"/api/login"},"key":["ip"],"rate":"5/m","capacity":5}"#;
    let Ok(Entry::Rule(rule)) = rule_entry("login", raw.as_bytes()) else {
        panic!("a rule")
    };
    assert_eq!((rule.name.as_str(), rule.capacity), ("login", 5));
    assert!(matches!(
        rule_entry("x", b"{\"enabled\": false}"),
        Ok(Entry::Off)
    ));
}

#[test]
fn a_bad_entry_is_refused_alone() {
    let rows = [
        (
            "rule:login",
            r#"{"rate":"5/x","capacity":7}"#,
            "rule:login.rate: \"5/x\" is not a rate",
        ),
        (
            "rule:login",
            r#"{"rate":1e999,"capacity":7}"#,
            "rule:login.rate: is not JSON",
        ),
        (
            "rule:login",
            r#"{"rate":"5/m","rate":"6/m"}"#,
            "rule:login.rate: is there twice; leave out one (line 1",
        ),
        (
            "rule:login",
            r#"{"rate":"5/m"}"#,
            "rule:login.capacity: is missing",
        ),
        (
            "rule:login",
            r#"{"rate":"5/m","capacity":7,"x":1}"#,
            "rule:login.x: is not a known",
        ),
        (
            "rule:login",
            r#"{"enabled":true}"#,
            "rule:login.rate: is missing",
        ),
        (
            "rule:login",
            r#"{"enabled":"no"}"#,
            "rule:login.rate: is missing",
        ),
        (
            "rule:login",
            r#"{"name":"login","rate":"5/m","capacity":7}"#,
            "rule:login.name: does not belong here",
        ),
        ("rule:login", "", "rule:login: is not JSON"),
        (
            "rule:login",
            "[]",
            "rule:login: must be a table of fields, not a list",
        ),
        (
            "rule:login",
            "null",
            "rule:login: must be a table of fields, not null",
        ),
        ("rule:login", "{} x", "rule:login: is not JSON"),
        ("rule:a b", GOOD, "rule:\"a b\": \"a b\" is not a name"),
        ("rule:", GOOD, "rule:\"\": \"\" is not a name"),
        ("rules:login", GOOD, "rules:login: is not a known field"),
        ("login", GOOD, "login: is not a known field"),
        ("", GOOD, "\"\": is not a known field"),
        (
            "mode",
            "on",
            "mode: must be enforce, shadow or off, not \"on\"",
        ),
        ("mode", "", "mode: must be enforce, shadow or off, not \"\""),
        (
            "priority:pay",
            r#"{"level":1}"#,
            "priority:pay.order: is missing",
        ),
        (
            "priority:pay",
            r#"{"level":4,"order":1}"#,
            "priority:pay.level: must be a whole number",
        ),
        (
            "priority:pay",
            r#"{"level":1,"order":"1"}"#,
            "priority:pay.order: must be a number",
        ),
    ];
    for (name, raw, expected) in rows {
        let effective = merged(&[("rule:other", GOOD), (name, raw)]);
        let found = lines(&effective.errors);
        assert!(
            found.iter().any(|line| line.starts_with(expected)),
            "{name} {raw}: {found:?}"
        );
        // The file's stays, and the others apply.
        assert_eq!(
            rules(&effective),
            ["login 5", "api 100", "other 7"],
            "{name} {raw}"
        );
        assert_eq!(effective.priority.len(), 2);
        let checked = check_field(&file(), name.as_bytes(), raw.as_bytes(), &SPACE).unwrap_err();
        assert_eq!(lines(&checked), found);
    }
    let raw = Field {
        raw: b"\xff".to_vec(),
        good: None,
    };
    let fields = BTreeMap::from([(b"rule:\xff\xfe".to_vec(), raw)]);
    let effective = merge(&file(), &fields, &SPACE);
    assert!(
        effective.errors[0].problem.contains("is not UTF-8"),
        "{:?}",
        effective.errors
    );
}

#[test]
fn the_last_good_value_of_a_bad_entry_stays() {
    let with_good = |name: &str, raw: &str, good: &str| {
        let field = Field {
            raw: raw.into(),
            good: Some(good.into()),
        };
        merge(
            &file(),
            &BTreeMap::from([(name.as_bytes().to_vec(), field)]),
            &SPACE,
        )
    };
    let effective = with_good("rule:login", "{", GOOD);
    assert_eq!(rules(&effective), ["login 7", "api 100"]);
    assert_eq!(effective.errors.len(), 1);
    assert_eq!(
        rules(&with_good("rule:new", "{", GOOD)),
        ["login 5", "api 100", "new 7"]
    );
    assert_eq!(
        rules(&with_good("rule:login", "{", r#"{"enabled":false}"#)),
        ["api 100"]
    );
    // Not good any more: the file's.
    assert_eq!(
        rules(&with_good("rule:login", "{", "}")),
        ["login 5", "api 100"]
    );
    assert_eq!(with_good("mode", "x", "shadow").mode, Mode::Shadow);
}

#[test]
fn the_mode_is_for_all() {
    for (raw, mode) in [
        ("enforce", Mode::Enforce),
        ("shadow", Mode::Shadow),
        ("off", Mode::Off),
        (" off\n", Mode::Off),
    ] {
        let effective = merged(&[("mode", raw)]);
        assert_eq!((effective.mode, effective.errors), (mode, vec![]));
        assert_eq!(
            check_field(&file(), b"mode", raw.as_bytes(), &SPACE),
            Ok(())
        );
    }
}

#[test]
fn priority_entries_carry_their_order() {
    let names = |list: Written<'_>| -> Vec<String> {
        let effective = merged(list);
        assert_eq!(effective.errors, []);
        effective
            .priority
            .into_iter()
            .map(|rule| rule.name)
            .collect()
    };
    let rows: [(Written<'_>, &[&str]); 5] = [
        (
            &[("priority:new", r#"{"level":1,"order":1500}"#)],
            &["pay", "new", "img"],
        ),
        (
            &[("priority:new", r#"{"level":1,"order":-0.5}"#)],
            &["new", "pay", "img"],
        ),
        // Ties go by name.
        (
            &[
                ("priority:jpg", r#"{"level":1,"order":2000}"#),
                ("priority:hdr", r#"{"level":1,"order":2000}"#),
            ],
            &["pay", "hdr", "img", "jpg"],
        ),
        (
            &[("priority:img", r#"{"level":1,"order":1}"#)],
            &["img", "pay"],
        ),
        (&[("priority:img", r#"{"enabled":false}"#)], &["pay"]),
    ];
    for (list, expected) in rows {
        assert_eq!(names(list), expected);
    }
}

#[test]
fn one_rule_too_many_is_refused() {
    let list: Vec<(String, &str)> = (0..MAX_RULES)
        .map(|n| (format!("rule:n{n:03}"), GOOD))
        .collect();
    let list: Vec<(&str, &str)> = list
        .iter()
        .map(|(name, raw)| (name.as_str(), *raw))
        .collect();
    let effective = merged(&list);
    assert_eq!(effective.rules.len(), MAX_RULES);
    let expected = "is one rule too many; there may be at most 512";
    let fields: Vec<_> = effective
        .surplus
        .iter()
        .map(|error| error.field.as_str())
        .collect();
    assert_eq!(fields, ["rule:n510", "rule:n511"]);
    assert!(
        effective
            .surplus
            .iter()
            .all(|error| error.problem == expected)
    );
}

#[test]
fn warnings_are_about_what_is_in_force() {
    let by_ua = r#"{"key":["ua"],"rate":"5/m","capacity":5}"#;
    assert_eq!(
        merged(&[("rule:ua", by_ua)]).warnings,
        [],
        "the file's rules bound it"
    );
    let off = r#"{"enabled":false}"#;
    let effective = merged(&[("rule:ua", by_ua), ("rule:login", off), ("rule:api", off)]);
    let found = lines(&effective.warnings);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("rule:ua.key: has only parts that the client chooses"));
}

proptest! {
    /// Whatever stands in the hash, the file's rules of other names are in force,
    /// and every field that `check_field` refuses has an error.
    #[test]
    fn any_bytes(
        list in proptest::collection::btree_map(
            prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..12),
                "rule:[a-c]?|priority:[a-c]?|mode".prop_map(String::into_bytes),
            ],
            prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..24),
                Just(GOOD.as_bytes().to_vec()),
                r#"\{("(rate|capacity|key|enabled|match)":("5/m"|5|1e999|null|\[\]|\{\}|"ip"|-1),?){0,4}\}"#
                    .prop_map(String::into_bytes),
            ],
            0..5,
        )
    ) {
        let fields = list.iter().map(|(name, raw)| {
            (name.clone(), Field { raw: raw.clone(), good: None })
        }).collect();
        let file = file();
        let effective = merge(&file, &fields, &SPACE);
        let names = rules(&effective);
        prop_assert_eq!(&names[..2], &["login 5", "api 100"]);
        let refused: Vec<FieldError> = list
            .iter()
            .filter_map(|(name, raw)| check_field(&file, name, raw, &SPACE).err())
            .flatten()
            .collect();
        prop_assert_eq!(effective.errors, refused);
    }
}
