//! Configuration and lists, while Redis is not well or says no.
use super::recorder::{fill, follow, ready};
use super::*;
use crate::redis::fixture::{Server, installed};
use crate::redis::sync::{ServerId, Which, store_name};

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
