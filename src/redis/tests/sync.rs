//! Configuration and lists, followed in a real Redis.
use super::*;
use crate::redis::fixture::{Server, installed};
use crate::redis::sync::{Entries, ServerId, Sink, Which, run, store_name};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::sync::watch;

/// What was handed over, as it stands, and how often.
#[derive(Clone, Default)]
struct Seen(Rc<RefCell<Inner>>);

#[derive(Default)]
struct Inner {
    config: Option<BTreeMap<String, String>>,
    now_us: u64,
    lists: BTreeMap<Which, Entries>,
    server: Option<ServerId>,
    gateways: u32,
    wrong: BTreeMap<String, String>,
    kept: Vec<bool>,
    unreachable: Vec<Option<String>>,
    /// Calls by name.
    calls: BTreeMap<&'static str, u32>,
}

impl Seen {
    fn call(&self, name: &'static str) -> std::cell::RefMut<'_, Inner> {
        let mut inner = self.0.borrow_mut();
        *inner.calls.entry(name).or_default() += 1;
        inner
    }

    fn calls(&self, name: &str) -> u32 {
        self.0.borrow().calls.get(name).copied().unwrap_or(0)
    }

    fn list(&self, which: Which) -> Option<Vec<(String, f64)>> {
        let inner = self.0.borrow();
        let entries = inner.lists.get(&which)?.iter();
        let text = |member: &[u8]| String::from_utf8_lossy(member).into_owned();
        let mut entries: Vec<_> = entries.map(|(member, end)| (text(member), end)).collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        Some(entries)
    }

    fn members(&self, which: Which) -> Vec<String> {
        self.list(which)
            .unwrap_or_default()
            .into_iter()
            .map(|(member, _)| member)
            .collect()
    }

    fn len(&self, which: Which) -> Option<usize> {
        self.0.borrow().lists.get(&which).map(Entries::len)
    }

    fn config(&self) -> Option<Vec<String>> {
        self.0
            .borrow()
            .config
            .as_ref()
            .map(|it| it.keys().cloned().collect())
    }

    fn wrong(&self) -> BTreeMap<String, String> {
        self.0.borrow().wrong.clone()
    }
}

impl Sink for Seen {
    fn config(&mut self, _: &ServerId, fields: BTreeMap<Vec<u8>, Vec<u8>>, now_us: u64) {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let mut inner = self.call("config");
        inner.config = Some(
            fields
                .into_iter()
                .map(|(k, v)| (text(k), text(v)))
                .collect(),
        );
        inner.now_us = now_us;
    }
    fn list(&mut self, which: Which, entries: Entries) {
        let name = match which {
            Which::Allow => "allow",
            Which::Block => "block",
            Which::Bans => "bans",
        };
        self.call(name).lists.insert(which, entries);
    }
    fn round_done(&mut self, server: &ServerId) {
        self.call("round").server = Some(server.clone());
    }
    fn gateways(&mut self, n: u32) {
        self.call("gateways").gateways = n;
    }
    fn wrong(&mut self, key: &str, problem: Option<String>) {
        let mut inner = self.call("wrong");
        match problem {
            Some(problem) => inner.wrong.insert(key.to_owned(), problem),
            None => inner.wrong.remove(key),
        };
    }
    fn kept(&mut self, kept: bool) {
        self.call("kept").kept.push(kept);
    }
    fn unreachable(&mut self, problem: Option<String>) {
        self.call("unreachable").unreachable.push(problem);
    }
}

/// Follows until dropped.
struct Follower {
    seen: Seen,
    _stop: watch::Sender<bool>,
}

fn follow(url: &str, id: &str, previous: Option<ServerId>) -> Follower {
    let seen = Seen::default();
    let (stop, stopped) = watch::channel(false);
    let following = run(store(url), id.to_owned(), previous, seen.clone(), stopped);
    tokio::task::spawn_local(following);
    Follower { seen, _stop: stop }
}

/// A follower that has read everything once.
async fn ready(url: &str) -> Seen {
    let follower = follow(url, "gateway-a", None);
    let seen = follower.seen.clone();
    until("all is read", async || {
        seen.config().is_some() && seen.0.borrow().lists.len() == 3
    })
    .await;
    // It follows to the end of the test.
    std::mem::forget(follower);
    seen
}

fn fill(server: &Server, key: &str, members: impl Iterator<Item = u32>) {
    let mut plain = server.connection();
    let members: Vec<String> = members
        .map(|n| std::net::Ipv4Addr::from(0x0a00_0000 + n).to_string())
        .collect();
    for chunk in members.chunks(10_000) {
        redis::cmd("SADD")
            .arg(key)
            .arg(chunk)
            .exec(&mut plain)
            .expect("added");
    }
}

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
#[test]
fn a_restart_that_lost_everything_keeps_the_last_state() {
    if !installed() {
        return;
    }
    let mut server = Server::start();
    let _: () = server.run("HSET sluice:config mode shadow");
    let _: () = server.run("SADD sluice:blocklist 10.0.0.0/8");
    in_thread(async || {
        let seen = ready(&server.url()).await;
        let before = seen.0.borrow().server.clone().expect("a round");
        server.restart();
        until("it is kept", async || seen.0.borrow().kept == [true]).await;
        until("it is reached", async || {
            seen.0.borrow().unreachable.last() == Some(&None)
        })
        .await;
        // Another worker of this gateway takes over, with what is in force from shared memory.
        let heir = follow(&server.url(), "gateway-a", Some(before.clone()));
        let url = server.url();
        let foreign = ServerId {
            store: format!("{url} other"),
            ..before.clone()
        };
        let stranger = follow(&url, "gateway-b", Some(foreign));
        until("the heir keeps it", async || {
            heir.seen.0.borrow().kept == [true]
        })
        .await;
        until("a stranger reads", async || {
            stranger.seen.calls("round") == 2
        })
        .await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(seen.config().expect("read"), ["mode"]);
        assert_eq!(seen.members(Which::Block), ["10.0.0.0/8"]);
        assert_eq!(heir.seen.calls("round") + heir.seen.calls("block"), 0);
        // The heartbeat alone is nothing.
        assert_eq!(server.run::<u32>("EXISTS sluice:gateways"), 1);
        let _: () = server.run("SADD sluice:allowlist 192.0.2.1");
        for it in [&seen, &heir.seen] {
            until("what there is holds", async || {
                it.members(Which::Allow) == ["192.0.2.1"]
                    && it.len(Which::Block) == Some(0)
                    && it.config().is_some_and(|config| config.is_empty())
            })
            .await;
            assert_eq!(it.0.borrow().kept, [true, false]);
        }
        assert_ne!(seen.0.borrow().server, Some(before));
        assert_eq!(store_name(&store(&url)), format!("{url} sluice"));
    });
}

/// B66: what was changed while Redis could not be reached holds soon after it can.
#[test]
fn an_outage_is_said_once_and_over_soon() {
    if !installed() {
        return;
    }
    let mut server = Server::start();
    let _: () = server.run("SADD sluice:blocklist 10.0.0.0/8");
    in_thread(async || {
        let seen = ready(&server.url()).await;
        server.kill();
        until("it is said", async || seen.calls("unreachable") == 1).await;
        tokio::time::sleep(Duration::from_millis(1200)).await;
        server.revive();
        let _: () = server.run("SADD sluice:blocklist 10.1.0.0/16");
        let took = until("it holds", async || {
            seen.members(Which::Block) == ["10.1.0.0/16"]
        })
        .await;
        assert!(took < Duration::from_millis(1100), "{took:?}");
        let said = seen.0.borrow().unreachable.clone();
        assert!(matches!(&said[..], [Some(_), None]), "{said:?}");
        // Hanging is noticed too, and over at once.
        server.hang();
        until("it is said", async || {
            seen.0.borrow().unreachable.len() == 3
        })
        .await;
        server.wake();
        let _: () = server.run("SADD sluice:blocklist 10.2.0.0/16");
        let took = until("it holds", async || seen.len(Which::Block) == Some(2)).await;
        assert!(took < Duration::from_millis(1100), "{took:?}");
        assert_eq!(seen.members(Which::Block), ["10.1.0.0/16", "10.2.0.0/16"]);
    });
}

/// B63: cut in the middle of reading, the old list stays, and the new one comes whole.
#[test]
fn a_list_is_handed_over_whole_or_not_at_all() {
    if !installed() {
        return;
    }
    let server = Server::start();
    fill(&server, "sluice:blocklist", 0..10);
    in_thread(async || {
        let seen = ready(&server.url()).await;
        fill(&server, "next", 0..100_000);
        let mut plain = server.connection();
        let mut killer = server.connection();
        redis::cmd("RENAME")
            .arg("next")
            .arg("sluice:blocklist")
            .exec(&mut plain)
            .expect("done");
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(900) {
            redis::cmd("CLIENT")
                .arg(&["KILL", "TYPE", "normal"])
                .exec(&mut killer)
                .expect("done");
            tokio::time::sleep(Duration::from_millis(7)).await;
            let len = seen.len(Which::Block).expect("read");
            assert!([10, 100_000].contains(&len), "{len}");
        }
        let took = until("it is whole", async || {
            seen.len(Which::Block) == Some(100_000)
        })
        .await;
        assert!(took < Duration::from_millis(2100), "{took:?}");
    });
}

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
            assert!(
                took < Duration::from_millis(100) + Duration::from_secs(most_s),
                "{took:?}"
            );
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
fn missing_permissions_are_named() {
    if !installed() {
        return;
    }
    let server = Server::start();
    let _: () = server.run("SADD sluice:blocklist 10.0.0.0/8");
    let _: () = server.run("HSET sluice:config mode shadow");
    let lacking = |name: &str, command: &str| {
        let _: () = server.run(&format!(
            "ACL SETUSER {name} on >{name} ~sluice:* +@all -{command}"
        ));
        format!("redis://{name}:{name}@127.0.0.1:{}", server.port)
    };
    in_thread(async || {
        let url = lacking("noscan", "sscan");
        let follower = follow(&url, "a", None);
        until("noscan", async || {
            follower.seen.wrong().contains_key("sluice:blocklist")
        })
        .await;
        assert!(follower.seen.wrong()["sluice:blocklist"].contains("forbids this user SSCAN"));
        until("the rest", async || follower.seen.config().is_some()).await;
        assert_eq!(follower.seen.len(Which::Block), None);
        let _: () = server.run("ACL SETUSER noscan +sscan");
        until("allowed", async || {
            follower.seen.len(Which::Block) == Some(1)
        })
        .await;
        let url = lacking("noinfo", "info");
        let follower = follow(&url, "a", None);
        until("noinfo", async || {
            follower.seen.wrong().contains_key("INFO")
        })
        .await;
        until("it reads", async || {
            follower.seen.len(Which::Block) == Some(1)
        })
        .await;
        for command in ["watch", "time", "exec"] {
            let url = lacking(command, command);
            let follower = follow(&url, "a", None);
            until(command, async || follower.seen.calls("unreachable") == 1).await;
            let said = follower.seen.0.borrow().unreachable[0]
                .clone()
                .expect("said");
            assert!(said.contains(&command.to_uppercase()), "{said}");
        }
        let url = lacking("noconfig", "config|get");
        let follower = follow(&url, "a", None);
        until("it reads", async || follower.seen.config().is_some()).await;
        assert!(follower.seen.wrong().is_empty(), "not needed");
    });
}

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
