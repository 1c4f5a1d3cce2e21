//! Pools through whole decisions: what a request holds, and that it is given
//! back whatever its way.
use super::answer::Action;
use super::decide;
use super::fake::{Fake, blank, run, set_mode, worker};
use super::metrics;
use super::options::Options;
use super::pools;
use super::thread::Done;
use super::ticket::TicketId;
use super::worker::Worker;
use crate::domain::pool::View;
use crate::redis::{Asks, StoreError};
use std::collections::HashSet;
use std::sync::Arc;

const ONE: &str = r#"
[[pools]]
name = "backend"
limit = 1
queue = { capacity = 1, max_wait = "5s" }
"#;

fn as_user(user: &'static str) -> Options<'static> {
    Options {
        user: Some(user.as_bytes()),
        ..Options::default()
    }
}

fn get(id: usize) -> Fake {
    Fake::get(id, "203.0.113.7", "/")
}

/// Asks; the request lives on.
fn ask(w: &mut Worker, x: &mut Fake, options: &Options<'static>) -> i32 {
    let mut out = blank();
    decide::access(w, x, options, &mut out);
    out.action
}

fn end(w: &mut Worker, x: &mut Fake) {
    for t in std::mem::take(&mut x.tickets) {
        w.end(t);
    }
}

fn view(w: &Worker) -> View {
    let id = w.force.rules.pools[0].id;
    let touched = w.region.pool(id, |p, now, _| p.view(now));
    touched.expect("nobody else holds it").value
}

fn finished(w: &mut Worker) -> HashSet<u32> {
    let mut all = HashSet::new();
    w.finished(64, |index| {
        all.insert(index);
    });
    all
}

const PROCEED: i32 = Action::Proceed as i32;
const WAIT: i32 = Action::Wait as i32;
const READ: i32 = Action::Read as i32;
const REFUSE: i32 = Action::Refuse as i32;

#[test]
fn who_waits_goes_on_when_the_slot_is_free() {
    let mut w = worker(ONE);
    let (mut a, mut b) = (get(1), get(2));
    assert_eq!(ask(&mut w, &mut a, &Options::default()), PROCEED);
    assert_eq!(a.var("sluice_verdict"), "pass");
    assert_eq!(ask(&mut w, &mut b, &Options::default()), WAIT);
    assert_eq!(b.var("sluice_verdict"), "-");
    assert_eq!(
        (view(&w).in_flight, view(&w).waiting.iter().sum::<u32>()),
        (1, 1)
    );
    assert!(finished(&mut w).is_empty());

    end(&mut w, &mut a);
    let ticket = b.tickets[0];
    assert_eq!(finished(&mut w), HashSet::from([ticket.index]));
    let mut out = blank();
    decide::resume(&mut w, &mut b, ticket, false, &mut out);
    assert_eq!((out.action, b.var("sluice_verdict")), (PROCEED, "pass"));
    assert_eq!(
        (view(&w).in_flight, view(&w).waiting.iter().sum::<u32>()),
        (1, 0)
    );
    end(&mut w, &mut b);
    assert_eq!(view(&w).in_flight, 0);
}

/// A slot is for the time with the backend: who sends a body has none until it is there.
#[test]
fn a_body_is_read_before_the_slot_is_asked_for() {
    let mut w = worker(ONE);
    let post = |id, header| {
        let mut x = get(id);
        x.headers = vec![header];
        x
    };
    let mut slow: Vec<Fake> = [
        ("content-length", "1"),
        ("content-length", "100000"),
        ("transfer-encoding", "chunked"),
    ]
    .into_iter()
    .enumerate()
    .map(|(id, header)| post(id + 1, header))
    .collect();
    for x in &mut slow {
        assert_eq!(ask(&mut w, x, &Options::default()), READ);
        assert_eq!(x.var("sluice_verdict"), "-");
    }
    assert_eq!(view(&w).in_flight, 0);
    let mut empty = post(9, ("content-length", "0"));
    assert_eq!(ask(&mut w, &mut empty, &Options::default()), PROCEED);

    // They are there: one waits, one is too many.
    let read = |w: &mut Worker, x: &mut Fake| {
        let (ticket, mut out) = (x.tickets[0], blank());
        decide::resume(w, x, ticket, true, &mut out);
        out.action
    };
    assert_eq!(read(&mut w, &mut slow[0]), WAIT);
    assert_eq!(read(&mut w, &mut slow[1]), REFUSE);
    // Nobody sends a body for nothing.
    let mut late = post(8, ("content-length", "1"));
    assert_eq!(ask(&mut w, &mut late, &Options::default()), REFUSE);
    end(&mut w, &mut empty);
    assert_eq!(finished(&mut w).len(), 1);
    // Of the time that the client took nothing is said.
    let (ticket, mut out) = (slow[0].tickets[0], blank());
    decide::resume(&mut w, &mut slow[0], ticket, false, &mut out);
    assert_eq!(out.action, PROCEED);
    // One left in the middle of its body.
    end(&mut w, &mut slow[2]);
    end(&mut w, &mut slow[0]);
    assert_eq!(view(&w).in_flight, 0);
    assert_eq!(view(&w).waiting.iter().sum::<u32>(), 0);

    let mut w = worker(&format!("{ONE}request_buffering = false\n"));
    let mut x = post(1, ("content-length", "100000"));
    assert_eq!(ask(&mut w, &mut x, &Options::default()), PROCEED);
}

/// nginx has the whole answer; its client may read it for as long as it likes.
#[test]
fn the_end_of_the_answer_gives_the_slot_back() {
    let mut w = worker(ONE);
    let mut x = get(1);
    assert_eq!(ask(&mut w, &mut x, &Options::default()), PROCEED);
    // Another request's is not its own.
    pools::answered(&mut w, &mut get(2));
    assert_eq!(view(&w).in_flight, 1);
    pools::answered(&mut w, &mut x);
    assert_eq!(view(&w).in_flight, 0);
    let mut next = get(3);
    assert_eq!(ask(&mut w, &mut next, &Options::default()), PROCEED);
    // Its own end gives nothing back once more.
    end(&mut w, &mut x);
    pools::log(&mut w, &mut x);
    assert_eq!(view(&w).in_flight, 1);
    // Who waits has none to give.
    let mut waits = get(4);
    assert_eq!(ask(&mut w, &mut waits, &Options::default()), WAIT);
    pools::answered(&mut w, &mut waits);
    assert_eq!(view(&w).waiting.iter().sum::<u32>(), 1);
}

#[test]
fn a_call_for_nothing_waits_on() {
    let mut w = worker(ONE);
    let (mut a, mut b) = (get(1), get(2));
    ask(&mut w, &mut a, &Options::default());
    ask(&mut w, &mut b, &Options::default());
    let mut out = blank();
    let ticket = b.tickets[0];
    decide::resume(&mut w, &mut b, ticket, false, &mut out);
    assert_eq!(out.action, WAIT);
    assert!((4.0..=5.0).contains(&out.seconds), "{}", out.seconds);
}

#[test]
fn who_has_waited_long_enough_is_told_to_come_back() {
    let mut w = worker(ONE);
    let (mut a, mut b) = (get(1), get(2));
    ask(&mut w, &mut a, &Options::default());
    ask(&mut w, &mut b, &Options::default());
    let mut out = blank();
    let ticket = b.tickets[0];
    decide::resume(&mut w, &mut b, ticket, true, &mut out);
    assert_eq!((out.action, out.status), (REFUSE, 503));
    assert_eq!(b.var("sluice_verdict"), "shed");
    let wait: u64 = b.set["Retry-After"].parse().expect("seconds");
    assert!((1..=5).contains(&wait), "{wait}");
    assert_eq!(b.set["Cache-Control"], "no-store");
    let body: serde_json::Value =
        serde_json::from_slice(&out.body[..out.body_len as usize]).expect("JSON");
    assert_eq!(
        (&body["type"], &body["status"]),
        (&"about:blank".into(), &503.into())
    );
    assert_eq!(view(&w).waiting.iter().sum::<u32>(), 0);
    // It holds nothing: its end changes nothing.
    end(&mut w, &mut b);
    assert_eq!(view(&w).in_flight, 1);
}

#[test]
fn who_leaves_while_waiting_leaves_no_trace() {
    let mut w = worker(ONE);
    let (mut a, mut b) = (get(1), get(2));
    ask(&mut w, &mut a, &Options::default());
    ask(&mut w, &mut b, &Options::default());
    end(&mut w, &mut b);
    assert_eq!(view(&w).waiting.iter().sum::<u32>(), 0);
    end(&mut w, &mut a);
    assert_eq!((view(&w).in_flight, w.tickets.out()), (0, 0));
}

#[test]
fn a_grant_for_somebody_who_left_unseen_is_given_back() {
    // Of such there may wait a quarter of what may wait.
    let toml = ONE.replace("capacity = 1", "capacity = 4");
    let mut w = worker(&format!("{toml}request_buffering = false\n"));
    let (mut a, mut b) = (get(1), get(2));
    b.headers = vec![("content-length", "100000")];
    ask(&mut w, &mut a, &Options::default());
    assert_eq!(ask(&mut w, &mut b, &Options::default()), WAIT);
    end(&mut w, &mut a);
    finished(&mut w);
    b.gone = true;
    let mut out = blank();
    let ticket = b.tickets[0];
    decide::resume(&mut w, &mut b, ticket, false, &mut out);
    assert_eq!(b.var("sluice_verdict"), "shed");
    assert_eq!(view(&w).in_flight, 0);
}

#[test]
fn what_is_shed_at_once_spends_nothing() {
    let rule = "[[rules]]\nname = \"r\"\nrate = \"1/d\"\ncapacity = 10\n";
    let mut w = worker(&format!("{ONE}{rule}"));
    let spent = |w: &mut Worker| {
        // A first look at the bucket, which costs one.
        let (x, _) = run(w, Fake::get(99, "203.0.113.7", "/"), &Options::default());
        x.set.get("RateLimit").cloned()
    };
    let (mut a, mut b) = (get(1), get(2));
    ask(&mut w, &mut a, &Options::default());
    ask(&mut w, &mut b, &Options::default());
    for id in 3..9 {
        let mut x = get(id);
        // Another client's is not the longest sub-queue: the arrival gives way, or the waiter.
        ask(&mut w, &mut x, &Options::default());
        if x.var("sluice_verdict") == "shed" {
            assert!(
                !x.set.contains_key("RateLimit"),
                "nothing was spent: {:?}",
                x.set
            );
        }
        end(&mut w, &mut x);
    }
    end(&mut w, &mut a);
    end(&mut w, &mut b);
    let field = spent(&mut w).expect("it passes now");
    let left: u32 = field
        .split_once("r=")
        .and_then(|(_, rest)| rest.split(';').next()?.parse().ok())
        .expect("a number");
    // Two that were taken in, and the look itself; those that were taken in only to give way had
    // spent, as somebody who waited has.
    assert!((10 - 3 - 6..=10 - 3).contains(&left), "{left}");
}

#[test]
fn a_refused_request_never_takes_a_slot() {
    let rule = "[[rules]]\nname = \"r\"\nrate = \"1/d\"\ncapacity = 1\n";
    let mut w = worker(&format!("{ONE}{rule}"));
    let (mut a, mut b) = (get(1), get(2));
    assert_eq!(ask(&mut w, &mut a, &Options::default()), PROCEED);
    assert_eq!(ask(&mut w, &mut b, &Options::default()), REFUSE);
    assert_eq!(b.var("sluice_verdict"), "limited");
    assert_eq!(
        (view(&w).in_flight, view(&w).waiting.iter().sum::<u32>()),
        (1, 0)
    );
}

#[test]
fn a_user_holds_so_many_of_level_0_and_then_goes_with_the_others() {
    let toml = r#"
        [priority]
        user_cap = 2
        [[priority.rules]]
        name = "core"
        level = 0
        [[pools]]
        name = "backend"
        limit = 100
    "#;
    let mut w = worker(toml);
    let mut all: Vec<Fake> = (1..=4).map(get).collect();
    let mut levels = Vec::new();
    for x in &mut all {
        ask(&mut w, x, &as_user("alice"));
        levels.push(x.var("sluice_level").to_owned());
    }
    assert_eq!(levels, ["0", "0", "1", "1"]);
    let (x, _) = run(&mut w, get(9), &as_user("bob"));
    assert_eq!(
        x.var("sluice_level"),
        "0",
        "another user has slots of his own"
    );
    end(&mut w, &mut all[0]);
    let (x, _) = run(&mut w, get(10), &as_user("alice"));
    assert_eq!(x.var("sluice_level"), "0", "one has come back");
    let held = w.region.users_held();
    w.region.with_users_locked(|| {
        let (x, _) = run(&mut w, get(11), &as_user("carol"));
        assert_eq!(x.var("sluice_level"), "0", "nobody loses it for a lock");
        assert_eq!(w.region.users_held(), held);
    });
    for x in &mut all {
        end(&mut w, x);
    }
    assert_eq!((w.region.users_held(), view(&w).in_flight), (0, 0));
}

/// As nginx does it: cleanup, then log.
fn logged(
    w: &mut Worker,
    x: &mut Fake,
    status: &'static str,
    upstream: (&'static str, &'static str),
) {
    x.status = status;
    x.upstream = upstream;
    end(w, x);
    pools::log(w, x);
}

#[test]
fn whose_client_left_keeps_the_slot_while_the_backend_works_on() {
    let mut w = worker(ONE);
    // The log phase has been seen, and how long a slot is usually held: a second, so that the
    // backend still works on what follows, however slow this machine is.
    let mut x = get(1);
    ask(&mut w, &mut x, &Options::default());
    std::thread::sleep(std::time::Duration::from_secs(1));
    logged(&mut w, &mut x, "200", ("200", "1.000"));
    assert_eq!(view(&w).in_flight, 0);
    let mut x = get(2);
    ask(&mut w, &mut x, &Options::default());
    logged(&mut w, &mut x, "499", ("-", "0.001"));
    assert_eq!((view(&w).in_flight, view(&w).ghosts), (1, 1));
    // One that never came to the backend leaves none.
    let mut w = worker(ONE);
    let mut x = get(1);
    ask(&mut w, &mut x, &Options::default());
    logged(&mut w, &mut x, "499", ("", ""));
    assert_eq!(view(&w).in_flight, 0);
}

#[test]
fn where_no_log_handler_comes_the_slot_is_free_all_the_same() {
    let mut w = worker(ONE);
    let mut x = get(1);
    ask(&mut w, &mut x, &Options::default());
    logged(&mut w, &mut x, "200", ("200", "0.010"));
    // From here on it is expected, and missing.
    let mut x = get(2);
    ask(&mut w, &mut x, &Options::default());
    end(&mut w, &mut x);
    assert_eq!(view(&w).in_flight, 1, "kept back for the log phase");
    std::thread::sleep(std::time::Duration::from_millis(30));
    pools::release_unlogged(&w.shared, w.region);
    assert_eq!(view(&w).in_flight, 0);
    // A late log call gives nothing back twice.
    pools::log(&mut w, &mut x);
    let mut x = get(3);
    assert_eq!(ask(&mut w, &mut x, &Options::default()), PROCEED);
    logged(&mut w, &mut x, "200", ("", ""));
    assert_eq!(view(&w).in_flight, 0);
}

#[test]
fn without_nginxs_cleanup_the_log_phase_gives_back() {
    let mut w = worker(ONE);
    for id in 1..5 {
        let mut x = Fake {
            cleanup: false,
            status: "200",
            ..get(id)
        };
        assert_eq!(ask(&mut w, &mut x, &Options::default()), PROCEED);
        pools::log(&mut w, &mut x);
    }
    assert_eq!((view(&w).in_flight, w.tickets.out()), (0, 0));
    // Those that leave while they wait, for the slot or for the lock.
    let without = |id| Fake {
        cleanup: false,
        ..get(id)
    };
    let (mut a, mut b, mut c) = (get(5), without(6), without(7));
    assert_eq!(ask(&mut w, &mut a, &Options::default()), PROCEED);
    assert_eq!(ask(&mut w, &mut b, &Options::default()), WAIT);
    let (region, id) = (w.region, w.force.rules.pools[0].id);
    let held = region.pool(id, |_, _, _| {
        assert_eq!(ask(&mut w, &mut c, &Options::default()), WAIT);
    });
    assert!(held.is_some());
    for x in [&mut b, &mut c] {
        assert!(!w.shared.idle());
        pools::log(&mut w, x);
    }
    assert!(w.shared.idle());
    assert_eq!(view(&w).waiting.iter().sum::<u32>(), 0);
}

#[test]
fn a_slot_may_go_with_the_header() {
    let mut w = worker(&ONE.replace("limit = 1", "limit = 1\nrelease = \"headers\""));
    let mut x = get(1);
    ask(&mut w, &mut x, &Options::default());
    assert_eq!(view(&w).in_flight, 1);
    pools::header(&mut w, &mut x);
    assert_eq!(view(&w).in_flight, 0);
    pools::header(&mut w, &mut x);
    end(&mut w, &mut x);
    pools::log(&mut w, &mut x);
    assert_eq!(view(&w).in_flight, 0);
    // Only where it is asked for.
    let mut w = worker(ONE);
    let mut x = get(1);
    ask(&mut w, &mut x, &Options::default());
    pools::header(&mut w, &mut x);
    assert_eq!(view(&w).in_flight, 1);
}

#[test]
fn the_first_pool_that_matches_or_the_one_that_is_asked_for() {
    let toml = r#"
        [[pools]]
        name = "api"
        match = { path = "/api/*" }
        limit = 1
        [[pools]]
        name = "rest"
        unless = { path = "/free/*" }
        limit = 1
    "#;
    let mut w = worker(toml);
    let in_flight = |w: &Worker| -> Vec<u32> {
        let pools = w.force.rules.pools.iter();
        let view = |id| {
            w.region
                .pool(id, |p, now, _| p.view(now))
                .expect("free")
                .value
        };
        pools.map(|p| view(p.id).in_flight).collect()
    };
    let named = |name: &'static str| Options {
        pool: Some(name.as_bytes()),
        ..Options::default()
    };
    let rows = [
        ("/api/a", Options::default(), [1, 0]),
        ("/b", Options::default(), [0, 1]),
        ("/free/c", Options::default(), [0, 0]),
        ("/b", named("api"), [1, 0]),
        ("/b", named("none"), [0, 1]),
    ];
    for (uri, options, expected) in rows {
        let mut x = Fake::get(1, "203.0.113.7", uri);
        ask(&mut w, &mut x, &options);
        assert_eq!(in_flight(&w), expected, "{uri} {options:?}");
        end(&mut w, &mut x);
        assert_eq!(in_flight(&w), [0, 0]);
    }
    assert!(
        w.shared.messages.pop().is_some(),
        "a line about the unknown pool"
    );
}

/// Both of the metrics: verdicts, and what the pool refused, by reason.
fn sheds(w: &mut Worker) -> (u64, Vec<(String, u64)>) {
    let text = metrics::render(w);
    let series = |prefix: &'static str| {
        text.lines()
            .filter_map(move |line| line.strip_prefix(prefix)?.rsplit_once(' '))
            .map(|(labels, n)| (labels.to_owned(), n.parse::<u64>().expect("a number")))
            .filter(|(_, n)| *n > 0)
    };
    (
        series("sluice_requests_total{verdict=\"shed\"}")
            .map(|(_, n)| n)
            .sum(),
        series("sluice_shed_total{pool=\"backend\",level=").collect(),
    )
}

/// While somebody who does not run has the pool's lock.
#[test]
fn what_is_refused_for_want_of_the_lock_is_counted_with_the_rest() {
    let mut w = worker(&format!(
        "{ONE}\n[[rules]]\nname = \"r\"\nrate = \"9/s\"\ncapacity = 9\n"
    ));
    let (region, id) = (w.region, w.force.rules.pools[0].id);
    let (mut a, mut b) = (get(1), get(2));
    assert_eq!(ask(&mut w, &mut a, &Options::default()), PROCEED);
    assert_eq!(ask(&mut w, &mut b, &Options::default()), WAIT);
    let held = region.pool(id, |_, _, _| {
        // As many as may be in the pool wait for the lock.
        let mut locked_out = [get(3), get(4)];
        for x in &mut locked_out {
            assert_eq!(ask(&mut w, x, &Options::default()), WAIT);
        }
        let mut c = get(5);
        assert_eq!(ask(&mut w, &mut c, &Options::default()), REFUSE);
        assert_eq!(c.var("sluice_verdict"), "shed");
        // Those whose time is up: in the queue, and before it.
        for x in [&mut b, &mut locked_out[0]] {
            let (ticket, mut out) = (x.tickets[0], blank());
            decide::resume(&mut w, x, ticket, true, &mut out);
            assert_eq!((out.action, x.var("sluice_verdict")), (REFUSE, "shed"));
        }
        // In its place another may wait; and one who leaves makes room too.
        let mut c = get(6);
        assert_eq!(ask(&mut w, &mut c, &Options::default()), WAIT);
        end(&mut w, &mut locked_out[1]);
        let mut d = get(7);
        assert_eq!(ask(&mut w, &mut d, &Options::default()), WAIT);
        for x in [&mut c, &mut d] {
            end(&mut w, x);
        }
        assert!(finished(&mut w).is_empty());
    });
    assert!(held.is_some());
    let rows = |(reason, n): (&str, u64)| (format!("\"3\",reason=\"{reason}\"}}"), n);
    assert_eq!(
        sheds(&mut w),
        (3, [("full", 1), ("timeout", 2)].map(rows).to_vec())
    );
    assert_eq!(view(&w).waiting.iter().sum::<u32>(), 0);
    // The slot was given to somebody who has left, unseen.
    let mut d = get(4);
    assert_eq!(ask(&mut w, &mut d, &Options::default()), WAIT);
    end(&mut w, &mut a);
    finished(&mut w);
    d.gone = true;
    let mut out = blank();
    let ticket = d.tickets[0];
    decide::resume(&mut w, &mut d, ticket, false, &mut out);
    assert_eq!(d.var("sluice_verdict"), "shed");
    assert_eq!(
        sheds(&mut w),
        (4, [("full", 1), ("timeout", 3)].map(rows).to_vec())
    );
}

/// Its holder is off its processor for a moment: whoever comes is late, not refused.
#[test]
fn whoever_finds_the_lock_taken_asks_again() {
    let mut w = worker(&format!(
        "{ONE}\n[[rules]]\nname = \"r\"\nrate = \"1/h\"\ncapacity = 2\n"
    ));
    let (region, id) = (w.region, w.force.rules.pools[0].id);
    let (mut a, mut b) = (get(1), get(2));
    let held = region.pool(id, |_, _, _| {
        assert_eq!(ask(&mut w, &mut a, &Options::default()), WAIT);
        assert_eq!(ask(&mut w, &mut b, &Options::default()), WAIT);
        assert!(finished(&mut w).is_empty(), "still taken");
    });
    assert!(held.is_some());
    moment();
    assert_eq!(finished(&mut w).len(), 2);
    assert!(finished(&mut w).is_empty(), "once");
    for (x, action) in [(&mut a, PROCEED), (&mut b, WAIT)] {
        let (ticket, mut out) = (x.tickets[0], blank());
        decide::resume(&mut w, x, ticket, false, &mut out);
        assert_eq!(out.action, action);
    }
    assert_eq!(
        (view(&w).in_flight, view(&w).waiting.iter().sum::<u32>()),
        (1, 1)
    );
    // The rules were asked once.
    let mut c = get(3);
    assert_eq!(ask(&mut w, &mut c, &Options::default()), REFUSE);
    assert_eq!(c.var("sluice_verdict"), "limited");
    end(&mut w, &mut a);
    assert_eq!(finished(&mut w).len(), 1);
    end(&mut w, &mut b);
    assert_eq!(view(&w).in_flight, 0);
    assert_eq!(sheds(&mut w), (0, Vec::new()));
}

/// Until a lock is tried again.
fn moment() {
    std::thread::sleep(std::time::Duration::from_millis(2));
}

fn resumed(w: &mut Worker, x: &mut Fake, timed_out: bool) -> i32 {
    let (ticket, mut out) = (x.tickets[0], blank());
    decide::resume(w, x, ticket, timed_out, &mut out);
    out.action
}

/// For the lock too the more important goes before the others.
#[test]
fn whoever_waits_for_the_lock_makes_room_for_core() {
    let levels = r#"
        [[priority.rules]]
        name = "core"
        level = 0
        match = { path = "/core" }
        [[priority.rules]]
        name = "page"
        level = 2
        match = { path = "/page" }
    "#;
    let mut w = worker(&format!(
        "{}{levels}",
        ONE.replace("capacity = 1", "capacity = 2")
    ));
    let (region, id) = (w.region, w.force.rules.pools[0].id);
    let at = |path| move |id| Fake::get(id, "203.0.113.7", path);
    let (core, page) = (at("/core"), at("/page"));
    let post = |mut x: Fake| {
        x.headers = vec![("content-length", "5")];
        x
    };
    let (mut low, mut middle) = ([get(1), get(2)], page(3));
    let mut high = [core(4), core(5), core(6), core(7)];
    let held = region.pool(id, |_, _, _| {
        for x in low.iter_mut().chain([&mut middle]) {
            assert_eq!(ask(&mut w, x, &Options::default()), WAIT);
        }
        assert_eq!(ask(&mut w, &mut get(8), &Options::default()), REFUSE);
        // There is a place for it, and for no other of the lowest.
        let mut body = post(core(9));
        assert_eq!(ask(&mut w, &mut body, &as_user("c")), READ);
        end(&mut w, &mut body);
        assert_eq!(ask(&mut w, &mut post(get(10)), &Options::default()), REFUSE);
        // The newest of the lowest level first.
        assert_eq!(ask(&mut w, &mut high[0], &as_user("a")), WAIT);
        assert_eq!(finished(&mut w), HashSet::from([low[1].tickets[0].index]));
        assert_eq!(resumed(&mut w, &mut low[1], false), REFUSE);
        assert_eq!(low[1].var("sluice_verdict"), "shed");
    });
    assert!(held.is_some());
    // In the order of their levels.
    moment();
    let mut order = Vec::new();
    for _ in 0..4 {
        w.finished(1, |index| order.push(index));
    }
    let expected = [&high[0], &middle, &low[0]];
    assert_eq!(order, expected.map(|x| x.tickets[0].index));
    assert_eq!(resumed(&mut w, &mut high[0], false), PROCEED);
    assert_eq!(resumed(&mut w, &mut middle, false), WAIT);
    assert_eq!(resumed(&mut w, &mut low[0], false), WAIT);
    let held = region.pool(id, |_, _, _| {
        for x in &mut high[1..] {
            assert_eq!(ask(&mut w, x, &as_user("b")), WAIT);
        }
        // Nobody is less important; a body is not asked for in vain.
        assert_eq!(ask(&mut w, &mut post(core(11)), &as_user("c")), REFUSE);
        assert_eq!(ask(&mut w, &mut core(12), &as_user("c")), REFUSE);
    });
    assert!(held.is_some());
    let rows = [
        ("\"0\",reason=\"full\"}", 2),
        ("\"3\",reason=\"evicted\"}", 1),
        ("\"3\",reason=\"full\"}", 2),
    ];
    let (verdicts, mut of_pool) = sheds(&mut w);
    of_pool.sort_unstable();
    assert_eq!(
        (verdicts, of_pool),
        (5, rows.map(|(k, n)| (k.to_owned(), n)).to_vec())
    );
}

/// A second, and no longer than anybody waits; then once more, should this worker itself have been
/// away.
#[test]
fn whoever_waits_for_the_lock_does_so_for_a_second_at_most() {
    for (max_wait, most) in [("5s", 1.0), ("300ms", 0.3)] {
        let mut w = worker(&ONE.replace("5s", max_wait));
        let (region, id) = (w.region, w.force.rules.pools[0].id);
        let (mut a, mut b) = (get(1), get(2));
        let held = region.pool(id, |_, _, _| {
            for x in [&mut a, &mut b] {
                let mut out = blank();
                decide::access(&mut w, x, &Options::default(), &mut out);
                assert_eq!(out.action, WAIT);
                assert!(
                    (most - 0.2..=most).contains(&out.seconds),
                    "{}",
                    out.seconds
                );
            }
            assert_eq!(resumed(&mut w, &mut a, true), REFUSE);
        });
        assert!(held.is_some());
        assert_eq!(resumed(&mut w, &mut b, true), PROCEED);
    }
}

#[test]
fn a_lock_is_not_waited_for_by_who_has_left_unseen() {
    let mut w = worker(ONE);
    let (region, id) = (w.region, w.force.rules.pools[0].id);
    let mut a = get(1);
    let held = region.pool(id, |_, _, _| {
        assert_eq!(ask(&mut w, &mut a, &Options::default()), WAIT);
    });
    assert!(held.is_some());
    assert_eq!(finished(&mut w).len(), 1);
    a.gone = true;
    assert_eq!(resumed(&mut w, &mut a, false), REFUSE);
    assert_eq!(view(&w).in_flight, 0);
}

/// Ten thousand come and go while the lock is held.
#[test]
fn whoever_has_left_takes_no_memory() {
    let mut w = worker(ONE);
    let (region, id) = (w.region, w.force.rules.pools[0].id);
    let held = region.pool(id, |_, _, _| {
        let mut most = 0;
        for n in 0..10_000 {
            let mut x = get(n + 1);
            assert_eq!(ask(&mut w, &mut x, &Options::default()), WAIT);
            most = most.max(w.waiters.listed(id));
            end(&mut w, &mut x);
        }
        assert!((10..100).contains(&most), "{most}");
    });
    assert!(held.is_some());
}

/// Its answer comes when it has gone on without it, and waits for a slot.
#[test]
fn a_late_answer_of_the_store_ends_no_other_wait() {
    let mut w = worker(ONE);
    let (region, id) = (w.region, w.force.rules.pools[0].id);
    let (mut a, mut b, mut c) = (get(1), get(2), get(3));
    assert_eq!(ask(&mut w, &mut a, &Options::default()), PROCEED);
    assert_eq!(ask(&mut w, &mut b, &Options::default()), WAIT);
    let held = region.pool(id, |_, _, _| {
        assert_eq!(ask(&mut w, &mut c, &Options::default()), WAIT);
        for x in [&mut b, &mut c] {
            w.shared.outbox.push(Done {
                ticket: x.tickets[0],
                took: std::time::Duration::ZERO,
                result: Err(StoreError::Timeout),
                asks: Asks::new(),
            });
            finished(&mut w);
            assert_eq!(resumed(&mut w, x, false), WAIT);
        }
    });
    assert!(held.is_some());
}

/// What a worker does for those that wait it does not do where nobody does.
#[test]
fn nobody_tries_a_lock_for_nobody() {
    let mut w = worker(ONE);
    let (region, id) = (w.region, w.force.rules.pools[0].id);
    let (mut a, mut b) = (get(1), get(2));
    assert_eq!(ask(&mut w, &mut a, &Options::default()), PROCEED);
    assert_eq!(ask(&mut w, &mut b, &Options::default()), WAIT);
    let mut c = get(3);
    let held = region.pool(id, |_, _, _| {
        assert_eq!(ask(&mut w, &mut c, &Options::default()), WAIT);
        let woken = |w: &Worker| {
            (0..400).any(|_| {
                moment();
                !w.shared.wakes_soon()
            })
        };
        // Each time for those two.
        for _ in 0..3 {
            assert!(woken(&w));
            let before = w.shared.asked_to_wake();
            assert!(finished(&mut w).is_empty());
            assert_eq!(w.shared.asked_to_wake(), before + 1);
        }
        end(&mut w, &mut b);
        end(&mut w, &mut c);
        assert!(woken(&w));
        let before = w.shared.asked_to_wake();
        assert!(finished(&mut w).is_empty());
        assert_eq!(w.shared.asked_to_wake(), before);
        assert!(w.shared.idle());
    });
    assert!(held.is_some());
    assert_eq!(view(&w).waiting.iter().sum::<u32>(), 0);
}

/// A reload without a master: another worker goes on in the same process.
#[test]
fn whoever_takes_over_goes_on_with_those_that_wait() {
    // Made first: who waits for 100 ms waits by another order.
    let (mut w, mut next) = (worker(ONE), worker(ONE));
    let (region, id) = (w.region, w.force.rules.pools[0].id);
    let (mut a, mut b, mut c) = (get(1), get(2), get(3));
    assert_eq!(ask(&mut w, &mut a, &Options::default()), PROCEED);
    assert_eq!(ask(&mut w, &mut b, &Options::default()), WAIT);
    let held = region.pool(id, |_, _, _| {
        assert_eq!(ask(&mut w, &mut c, &Options::default()), WAIT);
    });
    assert!(held.is_some());
    let before = Arc::clone(&w.shared);
    next.region = w.region;
    next.take_over(w);
    assert!(before.idle() && !next.shared.idle());
    assert_eq!(finished(&mut next), HashSet::from([c.tickets[0].index]));
    assert_eq!(
        resumed(&mut next, &mut c, false),
        REFUSE,
        "one waits already"
    );
    end(&mut next, &mut a);
    assert_eq!(finished(&mut next), HashSet::from([b.tickets[0].index]));
    assert_eq!(resumed(&mut next, &mut b, false), PROCEED);
    assert!(next.shared.idle());
}

/// The request had to wait for its body, and meanwhile its pool's place went to another.
#[test]
fn a_pool_that_is_gone_holds_nobody_up() {
    let mut w = worker(&format!("[shm]\nsize = \"1MiB\"\n{ONE}"));
    let (region, pool) = (w.region, &w.force.rules.pools[0]);
    let (id, settings) = (pool.id, pool.settings);
    let mut posts = [get(1), get(2)];
    for x in &mut posts {
        x.headers = vec![("content-length", "5")];
        assert_eq!(ask(&mut w, x, &Options::default()), READ);
    }
    let held = region.pool(id, |_, _, _| {
        assert_eq!(resumed(&mut w, &mut posts[0], true), WAIT);
    });
    assert!(held.is_some());
    let generation = region.setup_generation() + 9;
    region.my_config_generation(generation);
    let other = region.take_pool("other", &settings, generation, generation);
    assert!(other.is_ok() && !region.has_pool(id), "{other:?}");
    moment();
    assert_eq!(finished(&mut w).len(), 1);
    for x in &mut posts {
        assert_eq!(resumed(&mut w, x, false), PROCEED);
        end(&mut w, x);
    }
    assert!(w.shared.idle());
}

/// Not even for want of a lock.
#[test]
fn shadow_mode_refuses_nobody() {
    for more in [
        "",
        "[[rules]]\nname = \"r\"\nrate = \"9/s\"\ncapacity = 9\n",
    ] {
        let mut w = worker(&format!("{ONE}{more}"));
        set_mode(&mut w, "shadow");
        let (region, id) = (w.region, w.force.rules.pools[0].id);
        let held = region.pool(id, |_, _, _| {
            let mut x = get(1);
            assert_eq!(ask(&mut w, &mut x, &Options::default()), PROCEED, "{more}");
            assert_eq!(x.var("sluice_verdict"), "pass");
            end(&mut w, &mut x);
        });
        assert!(held.is_some());
        assert_eq!(sheds(&mut w), (0, Vec::new()));
    }
}

#[test]
fn an_allowed_client_takes_a_slot_like_others() {
    let mut w = worker(&format!(
        "lists = {{ allowlist = [\"203.0.113.7\"] }}\n{ONE}"
    ));
    let (mut a, mut b) = (get(1), get(2));
    assert_eq!(ask(&mut w, &mut a, &Options::default()), PROCEED);
    assert_eq!(view(&w).in_flight, 1);
    assert_eq!(ask(&mut w, &mut b, &Options::default()), WAIT);
}

#[test]
fn one_request_has_one_slot_whatever_redirects_it_goes_through() {
    let mut w = worker(ONE);
    let mut x = get(1);
    for _ in 0..3 {
        assert_eq!(ask(&mut w, &mut x, &Options::default()), PROCEED);
    }
    let mut sub = Fake {
        subrequest: true,
        ..get(2)
    };
    assert_eq!(ask(&mut w, &mut sub, &Options::default()), PROCEED);
    assert_eq!(view(&w).in_flight, 1);
    end(&mut w, &mut x);
    assert_eq!(view(&w).in_flight, 0);
}

#[test]
fn the_operators_page_or_location_stands_in_for_the_problem() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("busy.html");
    std::fs::write(&page, "<p>busy</p>").expect("written");
    let full = |degrade: &str| {
        let toml = format!(
            "[[pools]]\nname = \"b\"\nlimit = 1\nqueue = {{ capacity = 1 }}\ndegrade = {degrade}\n"
        );
        let mut w = worker(&toml);
        for id in 1..3 {
            ask(&mut w, &mut get(id), &Options::default());
        }
        let (mut x, mut out) = (get(3), blank());
        decide::access(&mut w, &mut x, &Options::default(), &mut out);
        let id = TicketId {
            index: 1,
            generation: 1,
        };
        // Whoever of the two had to give way.
        if out.action == WAIT {
            finished(&mut w);
            x = get(2);
            decide::resume(&mut w, &mut x, id, false, &mut out);
        }
        assert_eq!(x.var("sluice_verdict"), "shed");
        (w, x, out)
    };
    let (w, x, out) = full(&format!("{{ file = {page:?} }}"));
    assert_eq!((out.action, out.status), (REFUSE, 503));
    assert_eq!(x.set["Content-Type"], "text/html; charset=utf-8");
    assert_eq!(x.set["Content-Length"], "11");
    assert_eq!(w.pages.bytes(out.file), Some(&b"<p>busy</p>"[..]));
    assert!(x.set.contains_key("Retry-After"));

    let (_, x, out) = full("{ location = \"@degraded\" }");
    assert_eq!(out.action, Action::Divert as i32);
    assert_eq!(&out.body[..out.body_len as usize], b"@degraded");
    assert!(x.set.contains_key("Retry-After"));
}
