//! `[[priority.events]]` and `[priority.suspicion]`.
use super::*;

#[test]
fn events() {
    let config = good(json!({"priority": {"events": [
        {"name": "basket", "match": {"path": "/api/cart", "method": "POST"}},
        {"name": "checkout", "match": {"path": "/checkout/*"}, "unless": {"method": "HEAD"},
         "for": "90s"},
    ]}}));
    let found: Vec<_> = config
        .priority
        .events
        .iter()
        .map(|event| {
            (
                event.name.as_str(),
                event.unless.is_some(),
                event.for_.as_secs(),
            )
        })
        .collect();
    assert_eq!(found, [("basket", false, 600), ("checkout", true, 90)]);
    assert_eq!(config.warnings, []);
    let config = good(json!({"priority": {"events": [{"name": "any"}]}}));
    assert_eq!(
        lines(&config.warnings),
        ["priority.events[0].match: holds for every request, so every user has this intent always"]
    );
}

#[test]
fn suspicion() {
    let read = |fields: Value| {
        let config = good(json!({"priority": {"suspicion": fields}}));
        config.priority.suspicion.expect("suspicion")
    };
    let expected = Suspicion {
        rate: Some(Rate::parse("20/s").unwrap()),
        client_errors: Some(0.5),
        aborts: Some(0.3),
        window: Duration::from_secs(10),
    };
    let all = json!({"rate": "20/s", "client_errors": 0.5, "aborts": 0.3, "window": "10s"});
    assert_eq!(read(all), expected);
    let one = Suspicion {
        rate: None,
        client_errors: Some(1.0),
        aborts: None,
        window: Duration::from_secs(20),
    };
    assert_eq!(read(json!({"client_errors": 1})), one);
}

#[test]
fn bad_fields_are_named_with_what_would_be_right() {
    let event = |fields: Value| {
        let mut event = json!({"name": "e"});
        for (name, value) in fields.as_object().unwrap() {
            event[name] = value.clone();
        }
        json!({"events": [event]})
    };
    let suspicion = |fields: Value| json!({"suspicion": fields});
    let many: Vec<Value> = (0..65).map(|n| json!({"name": format!("e{n}")})).collect();
    let rows = [
        (
            json!({"events": {"name": "e"}}),
            "priority.events: must be a list",
        ),
        (
            json!({"events": [{}]}),
            "priority.events[0].name: is missing",
        ),
        (
            json!({"events": many}),
            "priority.events: has 65 events; there may be at most 64",
        ),
        (
            json!({"events": [{"name": "e"}, {"name": "e"}]}),
            "priority.events[1].name: \"e\" is the name of priority.events[0] already",
        ),
        (
            event(json!({"for": "0s"})),
            "priority.events[0].for: must be from 1s to 24h, not \"0s\"",
        ),
        (
            event(json!({"for": "2d"})),
            "priority.events[0].for: must be from 1s to 24h, not \"2d\"",
        ),
        (
            event(json!({"for": 10})),
            "priority.events[0].for: must be a duration",
        ),
        (
            event(json!({"level": 1})),
            "priority.events[0].level: is not a known field",
        ),
        (
            event(json!({"match": {"path": "x"}})),
            "priority.events[0].match.path: path \"x\"",
        ),
        (
            suspicion(json!({})),
            "priority.suspicion: has no bound; it must have at least one of rate, client_errors and aborts",
        ),
        (
            suspicion(json!({"window": "20s"})),
            "priority.suspicion: has no bound",
        ),
        (
            suspicion(json!({"rate": 5})),
            "priority.suspicion.rate: must be a rate such as \"20/s\", not 5",
        ),
        (
            suspicion(json!({"rate": "5"})),
            "priority.suspicion.rate: \"5\" is not a rate",
        ),
        // One that would suspect whoever comes at all, and one that is never reached.
        (
            suspicion(json!({"rate": "1/m"})),
            "priority.suspicion.rate: is 0.33 requests in a window of 20s; it must be from 1 to 60000",
        ),
        (
            suspicion(json!({"rate": "3001/s"})),
            "priority.suspicion.rate: is 60020.00 requests in a window of 20s",
        ),
        (
            suspicion(json!({"client_errors": 1.1})),
            "priority.suspicion.client_errors: must be a share from 0 to 1, not 1.1",
        ),
        (
            suspicion(json!({"aborts": -0.1})),
            "priority.suspicion.aborts: must be a share from 0 to 1",
        ),
        (
            suspicion(json!({"aborts": "10%"})),
            "priority.suspicion.aborts: must be a number",
        ),
        (
            suspicion(json!({"aborts": 0.1, "window": "9s"})),
            "priority.suspicion.window: must be from 10s to 30s, not \"9s\"",
        ),
        (
            suspicion(json!({"aborts": 0.1, "window": "31s"})),
            "priority.suspicion.window: must be from 10s to 30s, not \"31s\"",
        ),
        (
            suspicion(json!({"aborts": 0.1, "errors": 1})),
            "priority.suspicion.errors: is not a known field",
        ),
        (
            json!({"suspicion": true}),
            "priority.suspicion: must be a table of fields",
        ),
        (
            json!({"weights": [1]}),
            "priority.weights: is not a known field",
        ),
    ];
    for (priority, expected) in rows {
        let found = errors(json!({"priority": priority.clone()}));
        assert_eq!(found.len(), 1, "{priority}: {found:?}");
        assert!(found[0].starts_with(expected), "{priority}: {}", found[0]);
    }
}
