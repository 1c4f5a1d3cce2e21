//! Decisions while Redis is not well.
use super::*;
use crate::redis::client::StoreError;
use crate::redis::fixture::{Server, free_port, installed};
use std::cell::Cell;
use std::io::Read;
use std::net::TcpListener;

/// After the trouble is over.
const RECOVERY: Duration = Duration::from_secs(2);

/// Decisions until the breaker has opened; what the last one said.
async fn until_open(client: &Client) -> StoreError {
    let health = client.health();
    let mut last = None;
    until("the breaker opens", async || {
        last = client
            .decide(&[bucket("t", 1_000_000)], soon())
            .await
            .err()
            .or(last.take());
        !health.is_up()
    })
    .await;
    last.expect("an error")
}

/// What a thousand requests cost while the breaker is open: next to nothing.
async fn costs_nothing(client: &Client) {
    let start = Instant::now();
    for _ in 0..1000 {
        let refused = client.decide(&[bucket("t", 1_000_000)], soon()).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))));
    }
    assert!(
        start.elapsed() < Duration::from_millis(100),
        "{:?}",
        start.elapsed()
    );
}

async fn recovers(client: &Client) {
    let took = until("it recovers", async || client.health().is_up()).await;
    assert!(took < RECOVERY, "{took:?}");
    assert!(
        client
            .decide(&[bucket("t", 1_000_000)], soon())
            .await
            .expect("a reply")
            .admitted
    );
}

#[test]
fn restarted() {
    if !installed() {
        return;
    }
    let mut server = Server::start();
    in_thread(async || {
        let client = client(&server.url());
        client.time_us(soon()).await.expect("connected");
        let changes = client.health().changes();
        server.kill();
        assert!(matches!(
            until_open(&client).await,
            StoreError::Unavailable(_)
        ));
        assert!(
            client
                .health()
                .last_error()
                .expect("why")
                .contains("refused")
        );
        costs_nothing(&client).await;
        tokio::time::sleep(Duration::from_millis(700)).await;
        server.revive();
        recovers(&client).await;
        assert_eq!(client.health().changes() - changes, 2);
    });
}

/// B29, B36: what the server closed while nothing was under way is not noticed by any request.
#[test]
fn idle_connections_may_be_killed() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let client = client(&server.url());
        client.time_us(soon()).await.expect("connected");
        for _ in 0..20 {
            let _: u32 = server.run("CLIENT KILL TYPE normal");
            // At once, and when the loss has been seen.
            client
                .decide(&[bucket("t", 1000)], soon())
                .await
                .expect("at once");
            tokio::time::sleep(Duration::from_millis(60)).await;
            client
                .decide(&[bucket("t", 1000)], soon())
                .await
                .expect("later");
        }
        assert!(client.health().is_up());
        let _: () = server.run("CONFIG SET timeout 1");
        tokio::time::sleep(Duration::from_millis(3200)).await;
        client
            .decide(&[bucket("t", 1000)], soon())
            .await
            .expect("after silence");
        assert_eq!(client.health().changes(), 0);
    });
}

/// A request that was on its way when the connection broke off is not sent again: it may have been spent.
#[test]
fn what_may_have_been_spent_is_not_repeated() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    let server = std::thread::spawn(move || {
        // Answers the first call of each of three connections, then takes one more and closes.
        let mut calls = 0;
        for _ in 0..3 {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut buffer = [0; 4096];
            assert!(stream.read(&mut buffer).expect("the greeting") > 0);
            std::io::Write::write_all(&mut stream, b"*2\r\n:1\r\n:1\r\n").expect("answered");
            let read = stream.read(&mut buffer).expect("a decision or the end");
            calls += usize::from(buffer[..read].starts_with(b"*"));
        }
        calls
    });
    in_thread(async || {
        let client = client(&url);
        for _ in 0..3 {
            let broken = client.decide(&[bucket("t", 10)], soon()).await;
            assert!(
                matches!(broken, Err(StoreError::Unavailable(_))),
                "{broken:?}"
            );
        }
    });
    assert_eq!(server.join().expect("ended"), 3);
}

#[test]
fn hanging() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let client = client(&server.url());
        client.time_us(soon()).await.expect("connected");
        server.hang();
        let start = Instant::now();
        assert_eq!(until_open(&client).await, StoreError::Timeout);
        // Three time-outs in a row.
        assert!(
            start.elapsed() < Duration::from_millis(3 * 200 + 300),
            "{:?}",
            start.elapsed()
        );
        costs_nothing(&client).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(!client.health().is_up());
        server.wake();
        recovers(&client).await;
        let info: String = server.run("INFO clients");
        assert!(info.contains("connected_clients:2"), "{info}");
    });
}

/// A late reply belongs to the request that has given up, not to the next one.
#[test]
fn late_replies_are_dropped() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let client = client(&server.url());
        client.time_us(soon()).await.expect("connected");
        for round in 1..=5u32 {
            server.hang();
            let short = Instant::now() + Duration::from_millis(20);
            let late = client
                .decide(&[bucket("late", 100), bucket("other", 100)], short)
                .await;
            assert_eq!(late, Err(StoreError::Timeout));
            server.wake();
            let reply = client
                .decide(&[bucket("next", 100)], soon())
                .await
                .expect("a reply");
            assert_eq!(reply.buckets.len(), 1);
            assert_eq!(reply.buckets[0].remaining, 100 - round);
        }
        // Spent stays spent.
        let reply = client
            .decide(&[bucket("late", 100)], soon())
            .await
            .expect("a reply");
        assert_eq!(reply.buckets[0].remaining, 94);
    });
}

/// B30: accepts, never answers.
#[test]
fn silent_from_the_start() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    in_thread(async || {
        let client = client(&url);
        let start = Instant::now();
        let first = client.decide(&[bucket("t", 10)], soon()).await;
        assert_eq!(first, Err(StoreError::Timeout));
        assert!(
            start.elapsed() < Duration::from_millis(250),
            "{:?}",
            start.elapsed()
        );
        until_open(&client).await;
        costs_nothing(&client).await;
    });
}

/// Closes every connection at once: no storm, and refused for ever is tried for ever.
#[test]
fn refused_connections_do_not_become_a_storm() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    let count = std::thread::spawn(move || {
        let end = Instant::now() + Duration::from_secs(3);
        listener.set_nonblocking(true).expect("set");
        let mut count = 0;
        while Instant::now() < end {
            count += u32::from(listener.accept().is_ok());
            std::thread::sleep(Duration::from_millis(1));
        }
        count
    });
    in_thread(async || {
        let client = client(&url);
        while !count.is_finished() {
            let _ = client.decide(&[bucket("t", 10)], soon()).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let count = count.join().expect("ended");
    assert!((6..=14).contains(&count), "{count} in three seconds");
}

/// B31 and PITFALLS 19: each is Redis being out of reach, and over soon after it is over.
#[test]
fn answers_that_mean_not_now() {
    if !installed() {
        return;
    }
    let server = Server::start();
    let silent = free_port();
    let become_replica = format!("REPLICAOF 127.0.0.1 {silent}");
    let cases = [
        (
            "OOM",
            vec!["CONFIG SET maxmemory 1"],
            vec!["CONFIG SET maxmemory 0"],
        ),
        ("READONLY", vec![&*become_replica], vec!["REPLICAOF NO ONE"]),
        (
            "MASTERDOWN",
            vec!["CONFIG SET replica-serve-stale-data no", &become_replica],
            vec!["REPLICAOF NO ONE"],
        ),
        (
            "NOREPLICAS",
            vec!["CONFIG SET min-replicas-to-write 1"],
            vec!["CONFIG SET min-replicas-to-write 0"],
        ),
        (
            "NOPERM",
            vec!["ACL SETUSER default -time"],
            vec!["ACL SETUSER default +time"],
        ),
        (
            "NOPERM",
            vec!["ACL SETUSER default -evalsha"],
            vec!["ACL SETUSER default +evalsha"],
        ),
        (
            "NOPERM",
            vec!["ACL SETUSER default -set"],
            vec!["ACL SETUSER default +set"],
        ),
        (
            "NOPERM",
            vec!["ACL SETUSER default resetkeys ~other"],
            vec!["ACL SETUSER default ~*"],
        ),
    ];
    in_thread(async || {
        for (code, begin, end) in cases {
            let client = client(&server.url());
            client.time_us(soon()).await.expect("connected");
            for words in begin {
                let _: redis::Value = server.run(words);
            }
            let error = until_open(&client).await;
            assert!(
                matches!(&error, StoreError::Unavailable(why) if why.contains(code)),
                "{code}: {error:?}"
            );
            costs_nothing(&client).await;
            for words in end {
                let _: redis::Value = server.run(words);
            }
            recovers(&client).await;
        }
    });
}

/// B19, B33: what is missing is said, by the first request already; another password helps.
#[test]
fn wrong_password_and_missing_permissions_at_the_start() {
    if !installed() {
        return;
    }
    let server = Server::with(&["--requirepass", "secret"]);
    let wrong = format!("redis://:wrong@127.0.0.1:{}", server.port);
    let mut admin = redis::Client::open(wrong.replace("wrong", "secret"))
        .and_then(|it| it.get_connection())
        .expect("logged in");
    in_thread(async || {
        let refused = async |url: &str, says: &str| {
            let client = client(url);
            let error = client.decide(&[bucket("t", 10)], soon()).await;
            assert!(
                matches!(&error, Err(StoreError::Unavailable(why)) if why.contains(says)),
                "{error:?}"
            );
            client
        };
        let client = refused(&wrong, "password is wrong").await;
        refused(&server.url(), "NOAUTH").await;
        redis::cmd("CONFIG")
            .arg(&["SET", "requirepass", "wrong"])
            .exec(&mut admin)
            .expect("set");
        recovers(&client).await;
        let acl = "ACL SETUSER few on >few ~sluice:* +evalsha +get +set +time";
        let mut command = redis::Cmd::new();
        command
            .arg(acl.split(' ').collect::<Vec<_>>())
            .exec(&mut admin)
            .expect("set");
        let few = format!("redis://few:few@127.0.0.1:{}", server.port);
        // Without EVAL a script that is not there cannot be brought.
        redis::cmd("SCRIPT")
            .arg("FLUSH")
            .exec(&mut admin)
            .expect("flushed");
        refused(&few, "EVAL, EVALSHA, TIME").await;
    });
}

/// B26: whatever stands under a bucket's key, the next call is answered, and what follows is a bucket.
#[test]
fn damaged_buckets() {
    if !installed() {
        return;
    }
    let server = Server::start();
    let megabyte = "7".repeat(1_000_000);
    in_thread(async || {
        let client = client(&server.url());
        let damages = [
            "RPUSH sluice:b:t: x",
            "SET sluice:b:t: nan",
            "SET sluice:b:t: inf",
            "SET sluice:b:t: -5",
            "SET sluice:b:t: 9e99",
            "HSET sluice:b:t: spent 1",
            &format!("SET sluice:b:t: {megabyte}"),
        ];
        let seen = Cell::new(0);
        for damage in damages {
            let _: u8 = server.run("DEL sluice:b:t:");
            let _: redis::Value = server.run(damage);
            for left in [1, 0] {
                let reply = client
                    .decide(&[bucket("t", 2)], soon())
                    .await
                    .expect(damage);
                assert!(reply.admitted, "{damage}");
                assert_eq!(reply.buckets[0].remaining, left, "{damage}");
                seen.set(seen.get() + u32::from(reply.buckets[0].damaged));
            }
            assert!(
                !client
                    .decide(&[bucket("t", 2)], soon())
                    .await
                    .expect(damage)
                    .admitted
            );
        }
        assert_eq!(seen.get(), 7, "each once");
        assert!(client.health().is_up());
    });
}
