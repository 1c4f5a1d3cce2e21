use super::*;
use crate::domain::client::parse_ip;
use crate::engine::fake::{Fake, worker};
use std::collections::BTreeSet;

const S: u64 = 1_000_000_000;
const NOW: Nanos = Nanos(5000 * S);

const SHOP: &str = r#"
[priority.suspicion]
rate = "2/s"
client_errors = 0.5
aborts = 0.5
window = "10s"

[[priority.rules]]
name = "pay"
match = { path = "/pay" }
level = 0

[[priority.rules]]
name = "page"
match = { path = "/page" }
level = 2

[[priority.events]]
name = "cart"
match = { path = "/cart", method = "POST" }
unless = { header = { x-robot = "*" } }
for = "5m"
"#;

fn after(seconds: u64) -> Nanos {
    Nanos(NOW.0 + seconds * S)
}

fn asked(user: &'static str) -> Asked<'static> {
    Asked {
        user: (!user.is_empty()).then_some(user.as_bytes()),
        ..Asked::default()
    }
}

fn at(w: &mut Worker, ip: &str, user: &'static str, x: &mut Fake, now: Nanos) -> Scored {
    let who = parse_ip(ip.as_bytes()).map_or(Address::None, Address::Ip);
    score(w, x, &asked(user), who, now)
}

fn get(w: &mut Worker, ip: &str, user: &'static str, path: &'static str, now: Nanos) -> Scored {
    at(w, ip, user, &mut Fake::get(1, "192.0.2.1", path), now)
}

#[test]
fn intent_lifts_a_verified_user_for_as_long_as_the_event_says() {
    let mut w = worker(SHOP);
    let ip = "203.0.113.1";
    let level = |w: &mut Worker, user, now| get(w, ip, user, "/page", now).level;
    let mut post = Fake::get(1, "192.0.2.1", "/cart");
    post.method = "POST";
    assert_eq!(level(&mut w, "alice", NOW), 2);
    // Looking is no event, nor is what `unless` leaves out, nor what nobody is known to do.
    get(&mut w, ip, "alice", "/cart", NOW);
    let mut robot = post.clone();
    robot.headers = vec![("x-robot", "1")];
    at(&mut w, ip, "alice", &mut robot, NOW);
    at(&mut w, ip, "", &mut post.clone(), NOW);
    assert_eq!(level(&mut w, "alice", after(1)), 2);
    assert_eq!(level(&mut w, "", after(1)), 2);
    // The event itself counts already.
    assert_eq!(
        at(&mut w, ip, "alice", &mut post.clone(), after(2)).level,
        2
    );
    assert_eq!(level(&mut w, "alice", after(3)), 1);
    assert_eq!(level(&mut w, "alice", after(301)), 1);
    assert_eq!(level(&mut w, "alice", after(302)), 2);
    assert_eq!(level(&mut w, "bob", after(3)), 2);
}

#[test]
fn suspicion_lowers_a_client_by_a_level_for_each_bound() {
    let mut w = worker(SHOP);
    let page = |w: &mut Worker, ip: &str, now| get(w, ip, "", "/page", now);
    for n in 0..20 {
        assert_eq!(page(&mut w, "203.0.113.1", NOW).level, 2, "request {n}");
    }
    assert_eq!(page(&mut w, "203.0.113.1", NOW).level, 3);
    assert_eq!(page(&mut w, "203.0.113.2", NOW).level, 2);
    // Users are watched apart from the address that they come from.
    assert_eq!(get(&mut w, "203.0.113.1", "alice", "/pay", NOW).level, 0);
    // Errors of the client's, not of the backend's, nor the answers that it got.
    let rows = [
        (200, 2),
        (302, 2),
        (399, 2),
        (400, 3),
        (404, 3),
        (498, 3),
        (499, 3),
        (500, 2),
        (503, 2),
    ];
    for (n, (status, level)) in rows.into_iter().enumerate() {
        let ip = format!("198.51.100.{n}");
        for _ in 0..10 {
            let client = page(&mut w, &ip, NOW).client;
            ended(&w, client, status, NOW);
        }
        assert_eq!(page(&mut w, &ip, NOW).level, level, "status {status}");
    }
    // A minute of half the bound later it is forgiven.
    assert_eq!(page(&mut w, "203.0.113.1", after(60)).level, 3);
    assert_eq!(page(&mut w, "203.0.113.1", after(75)).level, 2);
}

#[test]
fn a_user_under_suspicion_loses_level_0() {
    let mut w = worker(SHOP);
    let mut levels = (0..40).map(|_| get(&mut w, "203.0.113.1", "alice", "/pay", NOW).level);
    assert!(levels.by_ref().take(20).all(|level| level == 0));
    assert!(levels.all(|level| level == 1));
}

#[test]
fn clients_are_grouped_and_kinds_never_mix() {
    let mut w = worker(SHOP);
    let mut client = |ip: &str, user| get(&mut w, ip, user, "/page", NOW);
    let one = client("2001:db8:0:1::1", "");
    assert_eq!(one.client, client("2001:db8:0:1:ffff::2", "").client);
    assert_ne!(one.client, client("2001:db8:0:2::1", "").client);
    assert_ne!(
        client("203.0.113.1", "").client,
        client("203.0.113.2", "").client
    );
    let user = client("203.0.113.1", "203.0.113.1");
    assert_ne!(user.client, client("203.0.113.1", "").client);
    assert_eq!(user.user, Some(user.client));
    assert_eq!(user.client, client("198.51.100.1", "203.0.113.1").client);
    // Without an address there is one client for all.
    let unix = client("unix:", "");
    assert_eq!((unix.user, unix.client), (None, client("", "").client));
}

#[test]
fn cohorts_are_the_same_on_a_retry_and_dealt_anew_each_hour() {
    let mut w = worker(SHOP);
    let mut cohorts = |now| -> Vec<u8> {
        (0..200)
            .map(|n| get(&mut w, &format!("10.0.{n}.1"), "", "/page", now).cohort)
            .collect()
    };
    let hour = Nanos(3600 * S * 7);
    let first = cohorts(hour);
    assert_eq!(first, cohorts(Nanos(hour.0 + 3599 * S)));
    let next = cohorts(Nanos(hour.0 + 3600 * S));
    let same = first.iter().zip(&next).filter(|(a, b)| a == b).count();
    assert!(same < 20, "{same} of 200 have the same cohort still");
    // 200 clients in 256 cohorts: 139 different ones are to be expected.
    let distinct: BTreeSet<_> = first.iter().collect();
    assert!(distinct.len() > 110, "{}", distinct.len());
}

#[test]
fn routes_are_those_of_the_rules() {
    let mut w = worker(SHOP);
    let mut route = |path| get(&mut w, "203.0.113.1", "", path, NOW).route;
    let (pay, page, none) = (route("/pay"), route("/page"), route("/other"));
    assert_eq!(none, 0);
    assert!(pay != 0 && page != 0 && pay != page, "{pay} {page}");
}

#[test]
fn nothing_is_asked_that_nobody_wants_to_know() {
    let mut w = worker("[[priority.rules]]\nname = \"all\"\nlevel = 1\n");
    let found = get(&mut w, "203.0.113.1", "", "/", NOW);
    let expected = Scored {
        level: 1,
        route: found.route,
        ..Scored::default()
    };
    assert_eq!(found, expected);
    assert_eq!(w.region.behaviour().watched().1, 0);
}
