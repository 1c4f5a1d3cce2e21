use super::*;
use crate::engine::facts::{Buffers, Facts};
use crate::engine::fake::{Fake, worker};
use crate::engine::level;
use crate::engine::options::Options;
use crate::engine::worker::Worker;

const POOLS: &str = r#"
[store]
url = "redis://127.0.0.1:1"

[[pools]]
name = "static"
match = { path = "/img/*" }
unless = { header = { x-fresh = "*" } }
limit = 5
degrade = { location = "@busy" }
release = "headers"

[[pools]]
name = "api"
match = { path = "/api/*", method = "POST" }
limit = "adaptive"
max = 50
timeout = "3s"

[[pools]]
name = "rest"
limit = 7
"#;

fn compile(w: &Worker, fields: &[(&str, &str)]) -> RuleSet {
    let field = |(name, raw): &(&str, &str)| {
        let field = Field {
            raw: raw.as_bytes().to_vec(),
            good: None,
        };
        (name.as_bytes().to_vec(), field)
    };
    let live = Live {
        fields: fields.iter().map(field).collect(),
        now_us: 1,
    };
    RuleSet::compile(
        &live,
        &Context {
            region: w.region,
            config: &w.setup.config,
            setup_generation: w.setup.generation,
            config_generation: w.setup.generation + 1,
            gateways: 1,
            previous: Some(&w.force.rules),
            pages: &w.setup.pages,
        },
    )
}

fn pool_of(rules: &RuleSet, mut x: Fake) -> Option<&'static str> {
    let mut buffers = Buffers::default();
    let at = rules.first_pool(&mut Facts::new(&mut x, &mut buffers))?;
    Some(rules.pools[at].name)
}

fn names(rules: &RuleSet) -> Vec<&str> {
    rules.pools.iter().map(|p| p.name).collect()
}

fn errors(rules: &RuleSet) -> Vec<String> {
    let line = |e: &FieldError| format!("{}: {}", e.field, e.problem);
    rules.errors.iter().map(line).collect()
}

#[test]
fn the_first_pool_that_matches_takes_a_request() {
    let w = worker(POOLS);
    let get = |path| Fake::get(1, "192.0.2.1", path);
    let mut fresh = get("/img/a.png");
    fresh.headers = vec![("x-fresh", "1")];
    let mut post = get("/api/order");
    post.method = "POST";
    let rows = [
        (get("/img/a.png"), "static"),
        (fresh, "rest"),
        (get("/api/order"), "rest"),
        (post, "api"),
        (get("/"), "rest"),
    ];
    for (x, expected) in rows {
        let shown = format!("{x:?}");
        assert_eq!(pool_of(&w.force.rules, x), Some(expected), "{shown}");
    }
    let only = compile(&w, &[("pool:rest", r#"{"enabled": false}"#)]);
    assert_eq!(pool_of(&only, get("/")), None);
}

#[test]
fn a_pool_is_compiled_with_all_that_the_engine_asks_for() {
    let w = worker(POOLS);
    let rules = &w.force.rules;
    assert_eq!(names(rules), ["static", "api", "rest"]);
    assert_eq!(rules.pool_by_name("api"), Some(1));
    assert_eq!(rules.pool_by_name("none"), None);
    let [image, api, rest] = &rules.pools[..] else {
        panic!("three pools")
    };
    assert!(matches!(image.degrade, Some(Degraded::Location("@busy"))));
    assert_eq!(
        (image.release, rest.release),
        (Release::Headers, Release::Response)
    );
    assert_eq!(
        (api.timeout_ns, rest.timeout_ns),
        (3_000_000_000, 60_000_000_000)
    );
    assert_eq!(
        (api.settings.adaptive, api.settings.max, rest.settings.limit),
        (1, 50, 7)
    );
    assert!(rest.degrade.is_none() && !rest.cluster);
    // What only a pool's match asks for is read of a request.
    let lone = worker("[[pools]]\nname = \"a\"\nlimit = 1\nmatch = { header = { x-a = \"1\" } }\n");
    assert_ne!(lone.force.rules.needs, Needs::default());
}

#[test]
fn pools_of_the_hash_are_in_force_and_a_page_that_is_missing_is_an_error() {
    let w = worker(POOLS);
    let page = r#"{"limit": 1, "degrade": {"file": "/nonexistent/busy.html"}}"#;
    let rules = compile(
        &w,
        &[
            ("pool:api", r#"{"limit": 9, "scope": "cluster"}"#),
            ("pool:page", page),
            ("pool:bad", r#"{"limit": 0}"#),
        ],
    );
    assert_eq!(names(&rules), ["static", "api", "rest", "page"]);
    // The pool that was there has the new settings, whatever is in flight in it.
    let before = w.force.rules.pools[1].id;
    assert_eq!(rules.pools[1].id, before);
    let view = w.region.pool(before, |pool, now, _| pool.view(now).limit);
    assert_eq!(view.expect("not locked").value, 9);
    assert!(rules.pools[1].cluster && rules.pools[1].settings.limit == 9);
    let found = errors(&rules);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("pool:bad.limit: must be"), "{found:?}");
    assert!(
        found[1].starts_with("pool:page.degrade.file: /nonexistent/busy.html: No such file"),
        "{found:?}"
    );
    let Some(Degraded::Page(file)) = &rules.pools[3].degrade else {
        panic!("a page")
    };
    assert_eq!(file.page(), None);
}

#[test]
fn what_the_region_has_no_room_for_is_refused_alone() {
    let w = worker(
        "[shm]\nsize = \"3MiB\"\n[store]\nurl = \"redis://127.0.0.1:1\"\n\
         [[pools]]\nname = \"a\"\nlimit = 7\nqueue = { capacity = 9 }\n",
    );
    let rules = compile(
        &w,
        &[("pool:a", r#"{"limit": 1}"#), ("pool:b", r#"{"limit": 1}"#)],
    );
    let large = ": is 1000, and with the 1 of limit that is 1001, but the shared memory has room for \
                 1000 requests in a pool; lower it, or raise shm.size to 8MiB";
    let both = ["a", "b"].map(|name| format!("pool:{name}.queue.capacity{large}"));
    assert_eq!(errors(&rules), both);
    assert_eq!(rules.found_late, []);
    // The file's.
    assert_eq!(names(&rules), ["a"]);
    assert_eq!(rules.pools[0].settings.limit, 7);
    let small = r#"{"limit": 1, "queue": {"capacity": 1}}"#;
    let rules = compile(
        &w,
        &[("pool:a", small), ("pool:b", small), ("pool:c", small)],
    );
    assert_eq!(names(&rules), ["a", "b"]);
    let expected = "pool:c: is one pool too many; the shared memory has room for 2, raise shm.size \
                    to 4MiB";
    assert_eq!(errors(&rules), [expected]);
    assert_eq!(rules.found_late, rules.errors);
    assert!(!rules.incomplete, "trying again would not help");
}

#[test]
fn a_pool_whose_place_old_workers_hold_is_tried_again() {
    let w = worker(
        "[shm]\nsize = \"3MiB\"\n[store]\nurl = \"redis://127.0.0.1:1\"\n\
         [[pools]]\nname = \"a\"\nlimit = 1\nqueue = { capacity = 1 }\n\
         [[pools]]\nname = \"b\"\nlimit = 1\nqueue = { capacity = 1 }\n",
    );
    let off = r#"{"enabled": false}"#;
    let small = r#"{"limit": 1, "queue": {"capacity": 1}}"#;
    let rules = compile(&w, &[("pool:a", off), ("pool:c", small)]);
    assert_eq!(names(&rules), ["b"]);
    let found = errors(&rules);
    assert!(
        found[0].starts_with("pool:c: no room for pool") && found[0].contains("shm.size"),
        "{found:?}"
    );
    assert_eq!(rules.found_late, rules.errors);
    assert!(rules.incomplete && !w.force.rules.incomplete);
}

#[test]
fn the_option_pool_names_one_in_force() {
    let mut w = worker(POOLS);
    let mut asked = |pool: &'static [u8]| {
        let options = Options {
            pool: Some(pool),
            ..Options::default()
        };
        options.check(&mut w).pool
    };
    assert_eq!(asked(b"rest"), Some(2));
    assert_eq!(asked(b"none"), None);
    assert_eq!(asked(b"\xff"), None);
}

#[test]
fn a_request_has_a_cohort_where_there_are_pools() {
    let mut w = worker(POOLS);
    let who = crate::domain::client::Address::Ip("203.0.113.9".parse().expect("an address"));
    let asked = Options::default().check(&mut w);
    let mut x = Fake::get(1, "203.0.113.9", "/");
    let now = w.region.now();
    let scored = level::score(&mut w, &mut x, &asked, who, now);
    assert_ne!(scored.client, 0);
}
