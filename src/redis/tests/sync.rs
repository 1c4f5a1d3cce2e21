//! Configuration and lists, followed in a real Redis that is well.
use super::recorder::{fill, follow, ready};
use super::*;
use crate::redis::fixture::{Server, installed};
use crate::redis::sync::{Entries, Which};

#[test]
fn every_change_is_noticed_and_nothing_else_is_handed_over() {
    if !installed() {
        return;
    }
    let server = Server::start();
    let _: () = server.run("HSET sluice:config rule:login {} mode enforce");
    let _: () = server.run("SADD sluice:allowlist 192.0.2.1 user:alice");
    let _: () = server.run("ZADD sluice:blocklist +inf 10.0.0.0/8 1900000000 203.0.113.9");
    in_thread(async || {
        let seen = ready(&server.url()).await;
        assert_eq!(seen.config().expect("read"), ["mode", "rule:login"]);
        assert!(seen.0.borrow().now_us > 1_600_000_000_000_000);
        let never = f64::INFINITY;
        let allow = [
            ("192.0.2.1".to_owned(), never),
            ("user:alice".to_owned(), never),
        ];
        assert_eq!(seen.list(Which::Allow).expect("read"), allow);
        let block = [
            ("10.0.0.0/8".to_owned(), never),
            ("203.0.113.9".to_owned(), 1.9e9),
        ];
        assert_eq!(seen.list(Which::Block).expect("read"), block);
        assert_eq!(seen.list(Which::Bans).expect("read"), []);
        // Same size, other content; the others stay untouched.
        let _: () = server.run("SADD next 198.51.100.1 user:bob");
        let _: () = server.run("RENAME next sluice:allowlist");
        until("it is replaced", async || {
            seen.members(Which::Allow) == ["198.51.100.1", "user:bob"]
        })
        .await;
        let _: () = server.run("HDEL sluice:config mode");
        until("a field goes", async || {
            seen.config().expect("read") == ["rule:login"]
        })
        .await;
        let _: () = server.run("ZADD sluice:bans +inf 203.0.113.7");
        until("a ban", async || {
            seen.members(Which::Bans) == ["203.0.113.7"]
        })
        .await;
        // Written without a difference: read, not handed over.
        let _: () = server.run("HSET sluice:config rule:login {}");
        let _: () = server.run("SADD sluice:allowlist again");
        let _: () = server.run("SREM sluice:allowlist again");
        tokio::time::sleep(Duration::from_millis(400)).await;
        let calls = ["config", "allow", "block", "bans"].map(|name| seen.calls(name));
        assert!(calls == [2, 2, 1, 2] || calls == [2, 4, 1, 2], "{calls:?}");
        // Gone means empty.
        let _: () = server.run("FLUSHALL");
        until("all is empty", async || {
            seen.config().expect("read").is_empty()
                && seen.0.borrow().lists.values().all(Entries::is_empty)
        })
        .await;
        assert!(seen.0.borrow().kept.is_empty());
        assert!(seen.0.borrow().unreachable.is_empty());
        assert!(seen.wrong().is_empty());
    });
}

#[test]
fn a_wrong_type_keeps_the_old_and_is_said_once() {
    if !installed() {
        return;
    }
    let server = Server::start();
    let _: () = server.run("SADD sluice:blocklist 10.0.0.0/8");
    let _: () = server.run("HSET sluice:config mode shadow");
    in_thread(async || {
        let seen = ready(&server.url()).await;
        let _: () = server.run("HSET other a b");
        let _: () = server.run("RENAME other sluice:blocklist");
        let _: () = server.run("SET sluice:config text");
        let _: () = server.run("SET sluice:gateways text");
        until("three are wrong", async || seen.wrong().len() == 3).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(seen.calls("wrong"), 3, "each said once");
        let wrong = seen.wrong();
        assert!(wrong["sluice:blocklist"].contains("is a hash, it must be a set or a sorted set"));
        assert!(wrong["sluice:config"].contains("is a string, it must be a hash"));
        assert!(wrong["sluice:gateways"].contains("WRONGTYPE"));
        assert_eq!(seen.members(Which::Block), ["10.0.0.0/8"]);
        assert_eq!(seen.config().expect("read"), ["mode"]);
        let _: () = server.run("DEL sluice:blocklist sluice:config sluice:gateways");
        let _: () = server.run("ZADD sluice:blocklist +inf 10.9.0.0/16");
        until("all is well", async || {
            seen.wrong().is_empty() && seen.members(Which::Block) == ["10.9.0.0/16"]
        })
        .await;
        assert!(seen.config().expect("read").is_empty());
    });
}

/// CONTRACT section 4: a restart that lost everything is no deletion.
/// B66: what was changed while Redis could not be reached holds soon after it can.
/// B63: cut in the middle of reading, the old list stays, and the new one comes whole.
/// Sizes of CONTRACT section 5, and Redis is never held.
#[test]
fn a_million_entries_in_five_seconds() {
    if !installed() {
        return;
    }
    let server = Server::start();
    fill(&server, "small", 0..200_000);
    fill(&server, "large", 0..1_000_000);
    in_thread(async || {
        let seen = ready(&server.url()).await;
        for (key, size, most_s) in [("small", 200_000, 1), ("large", 1_000_000, 5)] {
            let _: () = server.run("CONFIG RESETSTAT");
            let _: () = server.run(&format!("RENAME {key} sluice:blocklist"));
            let took = until("it is there", async || seen.len(Which::Block) == Some(size)).await;
            eprintln!("{size} entries: {took:?}");
            // With a second of room, for a machine that has other things to do.
            assert!(took < Duration::from_secs(most_s + 1), "{took:?}");
            let info: String = server.run("INFO commandstats");
            let line = info.lines().find(|line| line.starts_with("cmdstat_sscan:"));
            let line = line.expect("scanned");
            eprintln!("{line}");
            let per_call = line
                .split("usec_per_call=")
                .nth(1)
                .and_then(|it| it.split(',').next());
            let per_call: f64 = per_call.and_then(|it| it.parse().ok()).expect("a number");
            assert!(per_call < 10_000.0, "{line}");
            assert!(!info.contains("cmdstat_smembers"));
        }
        // A ban does not read it again.
        let _: () = server.run("CONFIG RESETSTAT");
        let _: () = server.run("ZADD sluice:bans +inf 203.0.113.7");
        until("a ban", async || seen.len(Which::Bans) == Some(1)).await;
        let info: String = server.run("INFO commandstats");
        assert!(!info.contains("cmdstat_sscan"), "{info}");
    });
}

#[test]
fn gateways_are_counted_by_their_heartbeats() {
    if !installed() {
        return;
    }
    let server = Server::start();
    let _: () = server.run("ZADD sluice:gateways 1600000000 dead 9000000000 from-the-future");
    in_thread(async || {
        let a = follow(&server.url(), "gateway-a", None);
        until("one lives", async || a.seen.0.borrow().gateways == 1).await;
        let b = follow(&server.url(), "gateway-b", None);
        until("both know of two", async || {
            [&a, &b].iter().all(|it| it.seen.0.borrow().gateways == 2)
        })
        .await;
        let beats: Vec<String> = server.run("ZRANGE sluice:gateways 0 -1 WITHSCORES");
        assert_eq!(beats.len(), 4);
        assert!(
            beats[1].bytes().all(|byte| byte.is_ascii_digit()),
            "{beats:?}"
        );
        let left: i64 = server.run("TTL sluice:gateways");
        assert!((50..=60).contains(&left), "{left}");
    });
}

/// B19: each missing permission is a sentence that names it, and never an empty list.
#[test]
fn bans_that_have_long_ended_are_taken_out() {
    if !installed() {
        return;
    }
    let server = Server::start();
    let mut plain = server.connection();
    let mut pipe = redis::pipe();
    for n in 0..2500u32 {
        let member = std::net::Ipv4Addr::from(n).to_string();
        pipe.zadd("sluice:bans", member, 1_600_000_000 + n).ignore();
    }
    pipe.exec(&mut plain).expect("added");
    let _: () = server.run("ZADD sluice:bans +inf 203.0.113.7 9000000000 203.0.113.8");
    in_thread(async || {
        let seen = ready(&server.url()).await;
        until("they are gone", async || {
            seen.members(Which::Bans) == ["203.0.113.7", "203.0.113.8"]
        })
        .await;
        assert_eq!(server.run::<u32>("ZCARD sluice:bans"), 2);
    });
}
