//! Decisions while Redis is well.
use super::*;
use crate::domain::config::{Secret, Tls};
use crate::redis::client::StoreError;
use crate::redis::fixture::{Server, free_port, installed};
use std::process::Command;

/// A number of `INFO commandstats`: calls, or failed_calls, of a command.
pub(super) fn stat(server: &Server, command: &str, field: &str) -> u64 {
    let info: String = server.run("INFO commandstats");
    let line = info
        .lines()
        .find(|line| line.starts_with(&format!("cmdstat_{command}:")));
    let field = line.and_then(|line| line.split(&format!("{field}=")).nth(1));
    field
        .and_then(|rest| rest.split(',').next()?.trim().parse().ok())
        .unwrap_or(0)
}

fn connections(server: &Server) -> u64 {
    let info: String = server.run("INFO stats");
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("total_connections_received:"));
    line.and_then(|count| count.trim().parse().ok())
        .expect("a count")
}

#[test]
fn decides_all_or_nothing() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let client = client(&server.url());
        for remaining in (0..3).rev() {
            let reply = client
                .decide(&[bucket("a", 3)], soon())
                .await
                .expect("a reply");
            assert!(reply.admitted);
            assert_eq!(reply.buckets[0].remaining, remaining);
        }
        // "a" is empty: "b" is not spent from, and neither is a shadow bucket.
        let both = [
            bucket("b", 5),
            bucket("a", 3),
            BucketAsk {
                shadow: true,
                ..bucket("c", 9)
            },
        ];
        let reply = client.decide(&both, soon()).await.expect("a reply");
        let admitted: Vec<_> = reply.buckets.iter().map(|it| it.admitted).collect();
        assert!(!reply.admitted);
        assert_eq!(admitted, [true, false, true]);
        assert_eq!(reply.buckets[0].remaining, 5);
        let keys: Vec<String> = server.run("KEYS *");
        assert_eq!(keys, ["sluice:b:a:"]);
        // An empty shadow bucket changes nothing for the others.
        let shadow = [
            bucket("b", 5),
            BucketAsk {
                shadow: true,
                ..bucket("a", 3)
            },
        ];
        let before: String = server.run("GET sluice:b:a:");
        let reply = client.decide(&shadow, soon()).await.expect("a reply");
        assert!(reply.admitted);
        assert_eq!(reply.buckets[0].remaining, 4);
        assert_eq!(server.run::<String>("GET sluice:b:a:"), before);
    });
}

/// B16, B25: a flushed script costs one failed call, everything else is one call.
#[test]
fn flushed_scripts_are_loaded_within_the_same_request() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let client = client(&server.url());
        client.time_us(soon()).await.expect("connected");
        let _: () = server.run("CONFIG RESETSTAT");
        for round in 0..10 {
            let _: () = server.run("SCRIPT FLUSH");
            for _ in 0..20 {
                let reply = client
                    .decide(&[bucket("a", 150)], soon())
                    .await
                    .expect("a reply");
                assert_eq!(
                    reply.admitted,
                    round * 20 < 150 && reply.buckets[0].admitted
                );
            }
        }
        assert_eq!(stat(&server, "evalsha", "failed_calls"), 10);
        assert_eq!(stat(&server, "evalsha", "calls"), 200);
        assert_eq!(stat(&server, "eval", "calls"), 10);
        // A refusal under the same rate writes nothing.
        assert_eq!(stat(&server, "get", "calls"), 200);
        assert_eq!(stat(&server, "set", "calls"), 150);
        assert_eq!(
            stat(&server, "expire", "calls") + stat(&server, "pexpire", "calls"),
            0
        );
    });
}

/// B38: nothing that a proxy or an ACL could refuse for no reason.
#[test]
fn connecting_asks_for_nothing_that_is_not_needed() {
    if !installed() {
        return;
    }
    let server = Server::with(&[
        "--user",
        "lean",
        "on",
        ">secret",
        "~sluice:*",
        "+eval",
        "+evalsha",
        "+time",
        "+get",
        "+set",
    ]);
    in_thread(async || {
        let lean = Store {
            username: Some("lean".to_owned()),
            password: Some(Secret("secret".to_owned())),
            ..store(&server.url().replace("redis:", "valkey:"))
        };
        let client = Client::new(&lean).expect("a client");
        assert!(
            client
                .decide(&[bucket("a", 1)], soon())
                .await
                .expect("a reply")
                .admitted
        );
        for absent in [
            "select",
            "client|setinfo",
            "hello",
            "ping",
            "script|load",
            "info",
        ] {
            // The test's own connections say `client|setinfo` and `info`, refused or not.
            if !["client|setinfo", "info"].contains(&absent) {
                assert_eq!(stat(&server, absent, "calls"), 0, "{absent}");
            }
        }
        assert_eq!(stat(&server, "auth", "calls"), 1);
        assert_eq!(stat(&server, "evalsha", "rejected_calls"), 0);
    });
}

#[test]
fn many_at_once_share_one_connection() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let client = client(&server.url());
        client.time_us(soon()).await.expect("connected");
        let before = connections(&server);
        let mut all = Vec::new();
        for _ in 0..400 {
            let client = client.clone();
            all.push(tokio::task::spawn_local(async move {
                client
                    .decide(&[bucket("a", 40)], soon())
                    .await
                    .expect("a reply")
                    .admitted
            }));
        }
        let mut admitted = 0;
        for one in all {
            admitted += u32::from(one.await.expect("done"));
        }
        assert_eq!(admitted, 40);
        // The test's own `INFO` is one.
        assert_eq!(connections(&server) - before, 1);
    });
}

#[test]
fn bans_are_written_and_taken_back() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let client = client(&server.url());
        client
            .ban(b"203.0.113.9", None, soon())
            .await
            .expect("banned");
        client
            .ban(b"user:alice", Some(1_900_000_000.0), soon())
            .await
            .expect("banned");
        let bans: Vec<String> = server.run("ZRANGE sluice:bans 0 -1 WITHSCORES");
        assert_eq!(bans, ["user:alice", "1900000000", "203.0.113.9", "inf"]);
        assert_eq!(client.unban(b"203.0.113.9", soon()).await, Ok(true));
        assert_eq!(client.unban(b"203.0.113.9", soon()).await, Ok(false));
        let _: () = server.run("SET sluice:bans text");
        for _ in 0..5 {
            let refused = client.ban(b"user:bob", None, soon()).await;
            assert!(matches!(&refused, Err(StoreError::Script(why)) if why.contains("WRONGTYPE")));
        }
        let _: () = server.run("ACL SETUSER default -zadd");
        let refused = client.ban(b"user:bob", None, soon()).await;
        assert!(matches!(&refused, Err(StoreError::Unavailable(why)) if why.contains("ZADD")));
        assert!(client.health().is_up(), "decisions are not bans");
    });
}

#[test]
fn every_kind_of_url() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let unix = format!("unix://{}", server.unix().display());
        let urls = [
            (format!("redis://localhost:{}/5", server.port), "5"),
            (format!("valkey://127.0.0.1:{}/6", server.port), "6"),
            (format!("{unix}?db=7"), "7"),
            (unix, "0"),
        ];
        for (url, db) in urls {
            let client = client(&url);
            assert!(
                client
                    .decide(&[bucket("a", 1)], soon())
                    .await
                    .expect(&url)
                    .admitted
            );
            let mut plain = server.connection();
            redis::cmd("SELECT")
                .arg(db)
                .exec(&mut plain)
                .expect("selected");
            let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut plain).expect("keys");
            assert_eq!(keys, ["sluice:b:a:"], "{url}");
            redis::cmd("FLUSHDB").exec(&mut plain).expect("flushed");
        }
        for bad in ["http://127.0.0.1", "redis://", "redis://127.0.0.1/x"] {
            let error = Client::new(&store(bad)).err().expect(bad);
            assert!(error.starts_with("store.url: "), "{error}");
        }
    });
}

#[test]
fn tls_with_a_private_authority() {
    if !installed() || Command::new("openssl").arg("version").output().is_err() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name).display().to_string();
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ])
        .args([
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", &at("key.pem"), "-out", &at("cert.pem")])
        .output()
        .expect("openssl runs");
    assert!(made.status.success(), "{made:?}");
    let port = free_port();
    let (key, cert) = (at("key.pem"), at("cert.pem"));
    let server = Server::with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &cert,
        "--tls-auth-clients",
        "yes",
    ]);
    let read = |path: &str| std::fs::read(path).expect("read");
    let url = format!("rediss://localhost:{port}");
    let ours = Tls {
        ca: Some(read(&cert)),
        cert: Some(read(&cert)),
        key: Some(Secret(String::from_utf8(read(&key)).expect("text"))),
        verify: true,
    };
    in_thread(async || {
        let decide = async |tls: Option<Tls>| {
            let client = Client::new(&Store { tls, ..store(&url) }).expect("a client");
            client
                .decide(&[bucket("a", 100)], Instant::now() + Duration::from_secs(2))
                .await
        };
        assert!(decide(Some(ours.clone())).await.expect("verified").admitted);
        let unverified = Tls {
            ca: None,
            verify: false,
            ..ours.clone()
        };
        assert!(
            decide(Some(unverified))
                .await
                .expect("not verified")
                .admitted
        );
        let stranger = Tls {
            ca: None,
            ..ours.clone()
        };
        assert!(matches!(
            decide(Some(stranger)).await,
            Err(StoreError::Unavailable(_))
        ));
        let anonymous = Tls {
            cert: None,
            key: None,
            ..ours.clone()
        };
        assert!(matches!(
            decide(Some(anonymous)).await,
            Err(StoreError::Unavailable(_))
        ));
        let broken = Tls {
            key: Some(Secret("no".to_owned())),
            ..ours.clone()
        };
        let error = Client::new(&Store {
            tls: Some(broken),
            ..store(&url)
        })
        .err()
        .expect("refused");
        assert!(error.contains("store.tls.key_file"), "{error}");
    });
    drop(server);
}
