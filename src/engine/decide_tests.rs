//! The contract's sections 3 and 6, through whole decisions without a store.
use super::answer::Action;
use super::check;
use super::decide;
use super::fake::{Fake, blank, run, set_mode, verdict, worker};
use super::options::Options;
use super::ticket::TicketId;
use super::worker::Worker;
use crate::shm::Verdict;

const LOGIN: &str = r#"
[[rules]]
name = "login"
match = { path = "/login" }
rate = "1/d"
capacity = 2
"#;

fn body(out: &super::answer::Answer) -> serde_json::Value {
    serde_json::from_slice(&out.body[..out.body_len as usize]).expect("a JSON body")
}

#[test]
fn a_client_is_admitted_up_to_the_capacity_and_then_told_when_to_come_back() {
    let mut w = worker(LOGIN);
    for left in ["1", "0"] {
        let (x, out) = run(
            &mut w,
            Fake::get(1, "203.0.113.7", "/login"),
            &Options::default(),
        );
        assert_eq!(out.action, Action::Proceed as i32);
        assert_eq!(
            (x.var("sluice_verdict"), x.var("sluice_rule")),
            ("pass", "login")
        );
        assert!(
            x.set["RateLimit"].contains(&format!("r={left};")),
            "{:?}",
            x.set
        );
        assert_eq!(x.set["RateLimit-Policy"], "\"login\";q=2;w=172800");
    }
    let (x, out) = run(
        &mut w,
        Fake::get(1, "203.0.113.7", "/login"),
        &Options::default(),
    );
    assert_eq!((out.action, out.status), (Action::Refuse as i32, 429));
    assert_eq!(x.var("sluice_verdict"), "limited");
    assert_eq!(x.set["Content-Type"], "application/problem+json");
    assert_eq!(x.set["Cache-Control"], "no-store");
    let wait: u64 = x.set["Retry-After"].parse().expect("seconds");
    assert!((86_300..=86_400).contains(&wait), "{wait}");
    assert_eq!(body(&out)["retry_after"], wait);
    assert_eq!(body(&out)["status"], 429);
    // Others have buckets of their own; other paths no rule.
    assert_eq!(
        verdict(&mut w, Fake::get(1, "203.0.113.8", "/login")),
        "pass"
    );
    let (x, _) = run(
        &mut w,
        Fake::get(1, "203.0.113.7", "/"),
        &Options::default(),
    );
    assert_eq!(
        (x.var("sluice_verdict"), x.var("sluice_rule")),
        ("pass", "-")
    );
    assert!(x.set.is_empty());
}

#[test]
fn one_client_request_is_charged_once_whatever_redirects_it_goes_through() {
    let mut w = worker(LOGIN);
    let mut x = Fake::get(1, "203.0.113.7", "/login");
    let mut out = blank();
    for _ in 0..5 {
        decide::access(&mut w, &mut x, &Options::default(), &mut out);
        assert_eq!(out.action, Action::Proceed as i32);
    }
    w.end(x.tickets[0]);
    assert_eq!(x.tickets.len(), 1);
    assert_eq!(
        verdict(&mut w, Fake::get(1, "203.0.113.7", "/login")),
        "pass"
    );
    assert_eq!(
        verdict(&mut w, Fake::get(1, "203.0.113.7", "/login")),
        "limited"
    );
    // A subrequest is not charged and not refused.
    let sub = Fake {
        subrequest: true,
        ..Fake::get(1, "203.0.113.7", "/login")
    };
    let (x, out) = run(&mut w, sub, &Options::default());
    assert_eq!(
        (out.action, x.var("sluice_verdict")),
        (Action::Proceed as i32, "-")
    );
}

#[test]
fn without_nginxs_cleanup_a_reused_request_address_is_another_request() {
    let mut w = worker(LOGIN);
    let mut out = blank();
    let mut first = Fake {
        cleanup: false,
        ..Fake::get(0x10, "203.0.113.7", "/login")
    };
    decide::access(&mut w, &mut first, &Options::default(), &mut out);
    decide::access(&mut w, &mut first, &Options::default(), &mut out);
    assert_eq!(w.tickets.out(), 1);
    super::pools::log(&mut w, &mut first);
    assert_eq!(w.tickets.out(), 0);
}

#[test]
fn a_request_passes_when_all_rules_admit_it_and_only_then_spends() {
    let mut w = worker(
        r#"
        [[rules]]
        name = "wide"
        key = []
        rate = "1/d"
        capacity = 10
        [[rules]]
        name = "narrow"
        rate = "1/h"
        capacity = 1
        [[rules]]
        name = "watched"
        rate = "1/d"
        capacity = 1
        mode = "shadow"
        "#,
    );
    assert_eq!(verdict(&mut w, Fake::get(1, "203.0.113.7", "/")), "pass");
    for _ in 0..20 {
        let (x, _) = run(
            &mut w,
            Fake::get(1, "203.0.113.7", "/"),
            &Options::default(),
        );
        assert_eq!(
            (x.var("sluice_verdict"), x.var("sluice_rule")),
            ("limited", "narrow")
        );
    }
    // Nine tokens are left of "wide": twenty refusals spent none.
    for (n, peer) in ["1", "2", "3", "4", "5", "6", "7", "8", "9"]
        .iter()
        .enumerate()
    {
        let peer: &'static str = Box::leak(format!("198.51.100.{peer}").into_boxed_str());
        assert_eq!(verdict(&mut w, Fake::get(1, peer, "/")), "pass", "{n}");
    }
    let (x, _) = run(
        &mut w,
        Fake::get(1, "198.51.100.99", "/"),
        &Options::default(),
    );
    assert_eq!(
        (x.var("sluice_verdict"), x.var("sluice_rule")),
        ("limited", "wide")
    );
    let t = w.region.totals();
    let rule = |n: &str| {
        t.rules
            .iter()
            .find(|r| r.name == n)
            .expect("counted")
            .clone()
    };
    assert_eq!((rule("narrow").pass, rule("narrow").limited), (11, 20));
    // "watched" would have refused the client's later requests.
    assert_eq!((rule("watched").pass, rule("watched").shadow), (11, 20));
    assert_eq!(t.verdicts[Verdict::Pass as usize], 10);
    assert_eq!(t.verdicts[Verdict::Limited as usize], 21);
}

#[test]
fn the_longest_wait_is_reported_and_is_enough_for_all() {
    let mut w = worker(
        r#"
        [[rules]]
        name = "a-short"
        rate = "1/m"
        capacity = 1
        [[rules]]
        name = "b-long"
        rate = "1/h"
        capacity = 1
        "#,
    );
    verdict(&mut w, Fake::get(1, "203.0.113.7", "/"));
    let (x, _) = run(
        &mut w,
        Fake::get(1, "203.0.113.7", "/"),
        &Options::default(),
    );
    assert_eq!(x.var("sluice_rule"), "b-long");
    assert!(x.set["Retry-After"].parse::<u64>().expect("s") > 3500);
}

#[test]
fn lists_come_first_and_allow_beats_block() {
    let mut w = worker(
        r#"
        [lists]
        blocklist = ["10.0.0.0/8", "user:mallory", "203.0.113.9"]
        allowlist = ["10.1.1.1", "user:alice"]
        [[rules]]
        name = "all"
        rate = "1/d"
        capacity = 1
        "#,
    );
    let user = |u: &'static [u8]| Options {
        user: Some(u),
        ..Options::default()
    };
    let mut ask = |peer, o: &Options<'static>| {
        let (x, out) = run(&mut w, Fake::get(1, peer, "/"), o);
        (
            x.var("sluice_verdict").to_owned(),
            x.var("sluice_rule").to_owned(),
            out.status,
        )
    };
    let none = Options::default();
    assert_eq!(ask("10.2.3.4", &none), ("blocked".into(), "-".into(), 403));
    for _ in 0..3 {
        assert_eq!(ask("10.1.1.1", &none), ("pass".into(), "-".into(), 0));
    }
    assert_eq!(ask("10.2.3.4", &user(b"alice")).0, "pass");
    assert_eq!(ask("198.51.100.1", &user(b"mallory")).0, "blocked");
    // A user that is spelt like an address is not that address.
    assert_eq!(ask("198.51.100.2", &user(b"203.0.113.9")).0, "pass");
}

#[test]
fn bans_hold_from_the_next_request_until_they_end_or_are_lifted() {
    let mut w = worker("");
    let mut out = blank();
    check::ban(&mut w, b"203.0.113.7", -1.0, &mut out);
    assert_eq!(out.action, Action::Proceed as i32);
    assert_eq!(verdict(&mut w, Fake::get(1, "203.0.113.7", "/")), "blocked");
    check::unban(&mut w, b"203.0.113.7", &mut out);
    assert_eq!(verdict(&mut w, Fake::get(1, "203.0.113.7", "/")), "pass");
    for seconds in [0.0, -2.0, f64::NAN, 1e12, f64::INFINITY] {
        check::ban(&mut w, b"203.0.113.7", seconds, &mut out);
        assert_eq!(out.action, Action::Fault as i32, "{seconds}");
    }
    check::ban(&mut w, b"10.0.0.0/33", 5.0, &mut out);
    assert_eq!(out.action, Action::Fault as i32);
    assert_eq!(verdict(&mut w, Fake::get(1, "203.0.113.7", "/")), "pass");
}

#[test]
fn a_missing_key_part_is_the_address_a_skip_or_a_refusal() {
    for (missing, first, second, other) in [
        ("ip", "pass", "limited", "pass"),
        ("skip", "pass", "pass", "pass"),
        ("deny", "limited", "limited", "limited"),
    ] {
        let mut w = worker(&format!(
            r#"
            [[rules]]
            name = "by-cookie"
            key = ["cookie:sid"]
            missing_key = "{missing}"
            rate = "1/d"
            capacity = 1
            status = 403
            "#
        ));
        let mut ask = |peer| verdict(&mut w, Fake::get(1, peer, "/"));
        assert_eq!(ask("203.0.113.7"), first, "{missing}");
        assert_eq!(ask("203.0.113.7"), second, "{missing}");
        assert_eq!(ask("203.0.113.8"), other, "{missing}");
        let blank = Fake {
            headers: vec![("cookie", "sid=  ")],
            ..Fake::get(1, "203.0.113.8", "/")
        };
        assert_eq!(verdict(&mut w, blank), second, "{missing}: blank is absent");
        if missing == "deny" {
            let (x, out) = run(
                &mut w,
                Fake::get(1, "203.0.113.7", "/"),
                &Options::default(),
            );
            assert_eq!(out.status, 403);
            assert!(!x.set.contains_key("Retry-After"), "no wait helps");
        }
    }
}

#[test]
fn wrong_options_are_ignored_and_the_request_decided_without_them() {
    let mut w = worker(LOGIN);
    let odd = [
        Options {
            cost: Some(0.5),
            ..Options::default()
        },
        Options {
            cost: Some(f64::NAN),
            ..Options::default()
        },
        Options {
            raise: Some(2),
            ..Options::default()
        },
        Options {
            rules: Some(b"login\0nosuch"),
            ..Options::default()
        },
        Options {
            pool: Some(b"nosuch"),
            ..Options::default()
        },
        Options {
            user: Some(b"a\x01b"),
            ..Options::default()
        },
    ];
    let mut peers = (1..).map(|n| &*Box::leak(format!("198.51.100.{n}").into_boxed_str()));
    for o in odd {
        let peer = peers.next().expect("endless");
        let (x, _) = run(&mut w, Fake::get(1, peer, "/login"), &o);
        assert!(x.set["RateLimit"].contains("r=1;"), "{o:?}: {:?}", x.set);
    }
    // A cost above the capacity is the capacity.
    let all = Options {
        cost: Some(1e6),
        ..Options::default()
    };
    let (x, _) = run(&mut w, Fake::get(1, "203.0.113.7", "/login"), &all);
    assert!(x.set["RateLimit"].contains("r=0;"), "{:?}", x.set);
    // Named rules apply whether they match or not.
    let named = Options {
        rules: Some(b"login"),
        ..Options::default()
    };
    let (x, _) = run(&mut w, Fake::get(1, "203.0.113.7", "/elsewhere"), &named);
    assert_eq!(x.var("sluice_verdict"), "limited");
}

#[test]
fn the_level_is_the_rules_and_zero_needs_a_user() {
    let mut w = worker(
        r#"
        [priority]
        forward = true
        [[priority.rules]]
        name = "pay"
        match = { path = "/pay" }
        level = 0
        [[priority.rules]]
        name = "shop"
        match = { path = "/shop/*" }
        level = 2
        "#,
    );
    let mut level = |uri, o: &Options<'static>| {
        let (x, _) = run(&mut w, Fake::get(1, "203.0.113.7", uri), o);
        let level = x.var("sluice_level").to_owned();
        assert_eq!(x.forwarded["X-Sluice-Level"].as_deref(), Some(&*level));
        level
    };
    let user = |raise| Options {
        user: Some(b"alice"),
        raise,
        ..Options::default()
    };
    assert_eq!(level("/pay", &Options::default()), "1");
    assert_eq!(level("/pay", &user(None)), "0");
    assert_eq!(level("/shop/1", &Options::default()), "2");
    assert_eq!(level("/shop/1", &user(Some(1))), "1");
    assert_eq!(level("/", &Options::default()), "3");
    assert_eq!(level("/", &user(Some(9))), "0");
}

#[test]
fn a_trusted_proxys_header_names_the_client() {
    let mut w = worker(&format!(
        "[client]\ntrusted_proxies = [\"127.0.0.1\"]\n{LOGIN}"
    ));
    let via = |peer, xff| Fake {
        headers: vec![("x-forwarded-for", xff)],
        ..Fake::get(1, peer, "/login")
    };
    let (x, _) = run(
        &mut w,
        via("127.0.0.1", "1.2.3.4, 198.51.100.7"),
        &Options::default(),
    );
    assert_eq!(x.var("sluice_client"), "198.51.100.7");
    let (x, _) = run(
        &mut w,
        via("203.0.113.1", "198.51.100.7"),
        &Options::default(),
    );
    assert_eq!(x.var("sluice_client"), "203.0.113.1");
}

#[test]
fn check_asks_one_rule_for_a_key_of_the_callers() {
    let mut w = worker(LOGIN);
    let mut ask = |rule: &[u8], key: &[u8], cost| {
        let mut out = blank();
        check::check(&mut w, rule, key, cost, &mut out);
        (out.action, out.remaining)
    };
    let (proceed, refuse, fault) = (
        Action::Proceed as i32,
        Action::Refuse as i32,
        Action::Fault as i32,
    );
    assert_eq!(ask(b"login", b"k", 0.0), (proceed, 1.0));
    assert_eq!(ask(b"login", b"k", 1.0), (proceed, 0.0));
    let (action, wait) = ask(b"login", b"k", 1.0);
    assert_eq!(action, refuse);
    assert!((86_000.0..=86_400.0).contains(&wait));
    assert_eq!(ask(b"login", b"203.0.113.7", 2.0), (proceed, 0.0));
    assert_eq!(ask(b"nosuch", b"k", 0.0).0, fault);
    assert_eq!(ask(b"login", b"k", 0.5).0, fault);
    assert_eq!(ask(b"login", &[b'x'; 9000], 0.0).0, fault);
    // The caller's key is nobody's address.
    assert_eq!(
        verdict(&mut w, Fake::get(1, "203.0.113.7", "/login")),
        "pass"
    );
}

#[test]
fn with_the_store_out_of_reach_on_error_decides() {
    for (on_error, verdicts) in [
        ("local", ["pass", "pass", "limited"]),
        ("allow", ["pass", "pass", "pass"]),
        ("deny", ["error", "error", "error"]),
    ] {
        let mut w = worker(&format!(
            "[store]\nbackend = \"redis\"\nurl = \"redis://127.0.0.1:1/0\"\non_error = \
             \"{on_error}\"\n{LOGIN}"
        ));
        w.pretend_store_down();
        for want in verdicts {
            let (x, out) = run(
                &mut w,
                Fake::get(1, "203.0.113.7", "/login"),
                &Options::default(),
            );
            assert_eq!(x.var("sluice_verdict"), want, "{on_error}");
            if want == "error" {
                assert_eq!((out.status, &*x.set["Retry-After"]), (503, "1"));
            }
            if on_error == "allow" {
                assert!(!x.set.contains_key("RateLimit"), "no false remaining");
            }
        }
        assert_eq!(w.region.totals().store[3], 3, "skipped");
    }
}

#[test]
fn a_call_beside_one_that_declined_is_told_to_decline_too() {
    for (first, second) in [
        ("enforce", "enforce"),
        ("off", "off"),
        ("enforce", "off"),
        ("off", "enforce"),
    ] {
        let mut w = worker(LOGIN);
        set_mode(&mut w, first);
        let mut x = Fake::get(1, "203.0.113.7", "/login");
        let mut out = blank();
        let decline = Options {
            decline: true,
            ..Options::default()
        };
        decide::access(&mut w, &mut x, &decline, &mut out);
        assert_eq!(out.status, 0);
        set_mode(&mut w, second);
        decide::access(&mut w, &mut x, &Options::default(), &mut out);
        assert_eq!(
            (out.action, out.status),
            (Action::Proceed as i32, super::answer::DECLINED)
        );
        for ticket in x.tickets {
            w.end(ticket);
        }
        assert_eq!(w.tickets.out(), 0);
    }
}

/// Nobody tells of a `check()` or `ban()` whose caller has left while it waited.
#[test]
fn a_call_that_nobody_comes_back_to_is_forgotten() {
    // One that takes connections, and does not answer.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("its address").port();
    let store = format!(
        "[store]\nbackend = \"redis\"\nurl = \"redis://127.0.0.1:{port}/0\"\ntimeout = \"2s\"\n"
    );
    let mut w = worker(&format!("{store}{LOGIN}"));
    let mut out = blank();
    let mut wait = |w: &mut Worker, n: usize| {
        for _ in 0..n {
            check::check(w, b"login", b"k", 0.0, &mut out);
            assert_eq!(out.action, Action::Wait as i32);
            check::ban(w, b"192.0.2.1", 5.0, &mut out);
            assert_eq!(out.action, Action::Wait as i32);
        }
        TicketId {
            index: out.ticket,
            generation: out.generation,
        }
    };
    let first = wait(&mut w, 50);
    assert_eq!(w.tickets.out(), 100);
    // While somebody may come back, all are kept; also those of a time that is nearly over.
    let earlier = |w: &mut Worker, seconds| {
        for (until, _) in &mut w.calls {
            *until -= std::time::Duration::from_secs(seconds);
        }
    };
    earlier(&mut w, 4);
    wait(&mut w, 1);
    assert_eq!(w.tickets.out(), 102);
    earlier(&mut w, 4);
    wait(&mut w, 1);
    assert_eq!((w.tickets.out(), w.tickets.waiting()), (4, 4));
    // Whoever comes back even later is told, and not let in.
    check::check_resume(&mut w, first, true, &mut out);
    assert_eq!(out.action, Action::Fault as i32);
    check::ban_resume(&mut w, first, true, &mut out);
    assert_eq!(out.action, Action::Fault as i32);
    // Of those that were answered nothing is kept for longer.
    for (_, ticket) in std::mem::take(&mut w.calls) {
        w.calls.push_back((std::time::Instant::now(), ticket));
        w.tickets.forget(ticket);
    }
    check::check(&mut w, b"login", b"k", 0.0, &mut out);
    assert_eq!((w.tickets.out(), w.calls.len()), (1, 1));
}

#[test]
fn an_argument_is_one_value_however_it_is_spelt() {
    let mut w = worker(
        r#"
        [[rules]]
        name = "by-arg"
        key = ["arg:k"]
        rate = "1/d"
        capacity = 1
        "#,
    );
    let mut ask = |k| {
        let x = Fake {
            args: vec![("k", k)],
            ..Fake::get(1, "203.0.113.7", "/")
        };
        verdict(&mut w, x)
    };
    assert_eq!(ask("a b"), "pass");
    assert_eq!(ask("a+b"), "limited");
    assert_eq!(ask("%61%20b"), "limited");
    assert_eq!(ask("a%2Bb"), "pass");
    // Blank, so the address takes its place.
    assert_eq!(ask("%20"), "pass");
    assert_eq!(ask("+"), "limited");
}
