//! The pure parts of one decision: matching a rule, walking a forwarding header,
//! encoding a key; and reading a configuration of 100 rules, which a start and a
//! reload do.
//!
//! Not measured: how nginx's variables are read. Every result is asserted once
//! before it is timed.
use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::{Value, json};
use sluice::domain::client::{Address, ProxyTrust};
use sluice::domain::config;
use sluice::domain::entry;
use sluice::domain::key::{KeyBuf, KeyPart, redis_key};
use sluice::domain::matcher::{Facts, Matcher, normalise_path};
use std::hint::black_box;
use std::net::Ipv4Addr;

struct Request {
    uri: &'static [u8],
    line: &'static [u8],
}

impl Facts for Request {
    fn host(&mut self) -> &[u8] {
        b"shop.example.com"
    }
    fn uri(&mut self) -> &[u8] {
        self.uri
    }
    fn line_path(&mut self) -> &[u8] {
        self.line
    }
    fn method(&mut self) -> &[u8] {
        b"POST"
    }
    fn header(&mut self, name: &str) -> Option<&[u8]> {
        (name == "x-api-key").then_some(b"0123456789abcdef")
    }
}

const PATH: &[u8] = b"/api/v1/orders/4711";

fn matcher(c: &mut Criterion) {
    let many: Vec<String> = (0..20).map(|n| format!("/page/{n}/*")).collect();
    let rows = [
        ("exact", json!({"path": "/api/v1/orders/4711"}), true),
        ("exact-miss", json!({"path": "/api/v1/orders/4712"}), false),
        ("prefix", json!({"path": "/api/v1/*"}), true),
        (
            "prefix-method",
            json!({"path": "/api/v1/*", "method": ["GET", "POST"]}),
            true,
        ),
        ("20-prefixes-miss", json!({"path": many}), false),
        ("host", json!({"host": ".example.com"}), true),
        ("header", json!({"header": {"X-Api-Key": "*"}}), true),
        ("regex", json!({"path": "~^/api/v[0-9]+/orders/"}), true),
        (
            "regex-miss",
            json!({"path": "~*\\.(png|jpe?g|css)$"}),
            false,
        ),
    ];
    for (name, value, hits) in rows {
        let mut errors = Vec::new();
        let matcher = Matcher::parse(&value, "match", &mut errors);
        assert!(errors.is_empty(), "{errors:?}");
        for (kind, uri) in [("uri", PATH), ("rewritten", b"/index.php".as_slice())] {
            let mut request = Request { uri, line: PATH };
            assert_eq!(matcher.hit(&mut request).is_some(), hits, "{name}");
            c.bench_function(&format!("matcher/{name}/{kind}"), |b| {
                b.iter(|| matcher.hit(black_box(&mut request)).is_some())
            });
        }
    }
    let mut path = Vec::new();
    assert!(normalise_path(b"/api//v1/./orders/%34711?a=b", &mut path));
    assert_eq!(path, PATH);
    c.bench_function("matcher/normalise/28-bytes", |b| {
        b.iter(|| normalise_path(black_box(b"/api//v1/./orders/%34711?a=b"), &mut path))
    });
}

fn client(c: &mut Criterion) {
    let read = |header: &str| {
        let value = json!({"client": {
            "trusted_proxies": ["127.0.0.1", "10.0.0.0/8", "fd00::/8"], "header": header,
        }});
        ProxyTrust::new(&config::from_value(value).expect("good").client)
    };
    let long: Vec<String> = (0..500)
        .map(|n| format!("10.0.{}.{}", n / 250, n % 250))
        .collect();
    let rows = [
        (
            "x-forwarded-for",
            "one",
            "198.51.100.7".to_string(),
            [198, 51, 100, 7],
        ),
        (
            "x-forwarded-for",
            "three",
            "198.51.100.7, 10.1.1.1, 10.2.2.2".into(),
            [198, 51, 100, 7],
        ),
        ("x-forwarded-for", "500", long.join(", "), [10, 0, 0, 0]),
        (
            "forwarded",
            "three",
            "for=198.51.100.7;proto=https, for=10.1.1.1, for=\"10.2.2.2:80\"".into(),
            [198, 51, 100, 7],
        ),
    ];
    let peer = Address::Ip(Ipv4Addr::LOCALHOST.into());
    for (header, name, chain, expected) in rows {
        let trust = read(header);
        let expected = Address::Ip(Ipv4Addr::from(expected).into());
        assert_eq!(trust.client(peer, chain.as_bytes()), expected, "{chain}");
        c.bench_function(&format!("client/{header}/{name}"), |b| {
            b.iter(|| trust.client(black_box(peer), black_box(chain.as_bytes())))
        });
    }
}

fn key(c: &mut Criterion) {
    let cookie = KeyPart::Cookie("session".to_string());
    let mut key = KeyBuf::new();
    let mut text = String::new();
    for (name, value) in [("short", vec![b'x'; 32]), ("digest", vec![b'x'; 4096])] {
        let mut encode = || {
            key.clear();
            key.push_ip(Ipv4Addr::new(203, 0, 113, 9).into());
            key.push(&cookie, black_box(&value));
            key.as_bytes().len()
        };
        assert_eq!(encode(), 10 + 13 + value.len());
        c.bench_function(&format!("key/encode/{name}"), |b| b.iter(&mut encode));
        redis_key("sluice", "login", key.as_bytes(), &mut text);
        assert!(text.len() <= 200 && text.contains('#') == (name == "digest"));
        c.bench_function(&format!("key/redis/{name}"), |b| {
            b.iter(|| redis_key("sluice", "login", black_box(key.as_bytes()), &mut text))
        });
    }
}

fn read(c: &mut Criterion) {
    let rule = |n: u32| {
        let path = if n.is_multiple_of(10) {
            format!("~^/r{n}/[0-9]+$")
        } else {
            format!("/r{n}/*")
        };
        json!({"name": format!("rule-{n}"), "match": {"path": path, "method": ["GET", "POST"]},
               "key": ["ip", "cookie:session"], "rate": "100/m", "capacity": 50 + n})
    };
    let value = json!({"rules": (0..100).map(rule).collect::<Vec<Value>>()});
    let json = serde_json::to_vec(&value).expect("JSON");
    let toml = toml::to_string(&value).expect("TOML");
    let config = config::from_json(&json).expect("good");
    assert_eq!((config.rules.len(), config.warnings.len()), (100, 0));
    assert_eq!(config::from_toml(&toml).expect("good").rules.len(), 100);
    c.bench_function("config/json/100-rules", |b| {
        b.iter(|| config::from_json(black_box(&json)))
    });
    c.bench_function("config/toml/100-rules", |b| {
        b.iter(|| config::from_toml(black_box(&toml)))
    });

    let list: String = (0u32..180_000)
        .map(|n| format!("{}\n", Ipv4Addr::from(n.wrapping_mul(2_654_435_761))))
        .collect();
    assert_eq!(entry::parse_file(list.as_bytes()).subjects.len(), 180_000);
    c.bench_function("entry/file/180000-lines", |b| {
        b.iter(|| entry::parse_file(black_box(list.as_bytes())).subjects.len())
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = matcher, client, key, read
}
criterion_main!(benches);
