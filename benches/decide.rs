//! A whole decision in Rust: client address, lists, rules, level, answer.
//!
//! Measured: `decide::access` and the request's end, over a request whose
//! values are constants. Not measured: nginx reading and writing them (that is
//! `benches/gateway`), Redis.
use criterion::{Criterion, criterion_group, criterion_main};
use sluice::domain::config;
use sluice::engine::answer::Answer;
use sluice::engine::current::Current;
use sluice::engine::degrade::Pages;
use sluice::engine::exchange::{Exchange, Out, Text, Var};
use sluice::engine::files::Files;
use sluice::engine::options::Options;
use sluice::engine::publish::Published;
use sluice::engine::setup::{self, Setup};
use sluice::engine::thread::Shared;
use sluice::engine::ticket::TicketId;
use sluice::engine::worker::Worker;
use sluice::engine::{decide, sync};
use sluice::shm::Region;
use std::fmt::Write;
use std::hint::black_box;
use std::sync::Arc;

/// A request that is there already.
struct Constant {
    peer: &'static [u8],
    ticket: Option<TicketId>,
}

impl Exchange<'static> for Constant {
    fn id(&self) -> usize {
        0x7f00_1000
    }
    fn serial(&mut self) -> u64 {
        1
    }
    fn is_subrequest(&mut self) -> bool {
        false
    }
    fn var(&mut self, var: Var<'_>) -> Option<&'static [u8]> {
        Some(match var {
            Var::Peer | Var::Remote => self.peer,
            Var::Uri | Var::RequestUri => b"/api/login",
            Var::Method => b"POST",
            Var::Host => b"shop.example",
            _ => return None,
        })
    }
    fn header(&mut self, _: &str, _: &mut Vec<u8>) -> bool {
        false
    }
    fn set_var(&mut self, _: Out, value: Text<'static, '_>) {
        black_box(value);
    }
    fn set_header(&mut self, _: &'static str, value: &[u8]) {
        black_box(value);
    }
    fn client_gone(&mut self) -> bool {
        false
    }
    fn set_request_header(&mut self, _: &'static str, _: Option<&[u8]>) {}
    fn at_end(&mut self, ticket: u64) -> bool {
        self.ticket = Some(TicketId::unpack(ticket));
        true
    }
}

/// Networks and addresses of a generated list that spreads over the whole IPv4 space.
fn blocklist(entries: u32) -> String {
    let mut out = String::from("[lists]\nblocklist = [\n");
    let mut x = 12_345u32;
    for i in 0..entries {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let ip = std::net::Ipv4Addr::from(x | 1 << 24);
        let len = if i % 4 == 0 { 24 } else { 32 };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "  \"{ip}/{len}\",");
    }
    out.push_str("]\nallowlist = [\"192.0.2.0/24\"]\n");
    out
}

fn worker(rules: usize, lists: &str) -> Worker {
    let mut toml = String::from(lists);
    for i in 0..rules {
        let _ = write!(
            toml,
            "[[rules]]\nname = \"r{i}\"\nmatch = {{ path = \"/api/*\", method = [\"POST\"] }}\n\
             rate = \"1000000/s\"\ncapacity = 1000000\n"
        );
    }
    let config = config::from_toml(&toml).expect("the bench's own configuration");
    let region: &'static Region = Box::leak(Box::new(Region::on_heap(64 << 20)));
    let generation = region.new_setup_generation();
    region
        .attach_worker(generation)
        .expect("a heap region has room");
    let files = Files::load(&config.lists, None, &mut |_| ()).expect("no files");
    let lists = setup::build(&files).expect("lists").map(Arc::new);
    let setup = Arc::new(Setup {
        config: Arc::new(config),
        region,
        generation,
        files,
        lists,
        shm_warning: None,
        pages: Pages::default(),
    });
    let force = sync::in_force(&setup, &Published::default(), None);
    let current = Arc::new(Current::new(force.clone()));
    let shared = Shared::new(
        setup.config.store.clone(),
        "/nonexistent/sluice.sock".into(),
        || false,
        region,
    );
    Worker::new(setup, force, current, shared)
}

fn decisions(c: &mut Criterion) {
    let lists = blocklist(170_000);
    for rules in [1, 3] {
        let mut w = worker(rules, &lists);
        // SAFETY: zeroes are a valid Answer: numbers and bytes.
        let mut out: Answer = unsafe { std::mem::zeroed() };
        let peers: Vec<&'static [u8]> = (0..1024u32)
            .map(|i| {
                let text = format!("203.0.{}.{}", 100 + i / 256, i % 256);
                &*Box::leak(text.into_bytes().into_boxed_slice())
            })
            .collect();
        let mut n = 0;
        c.bench_function(
            &format!("engine/decide/170000 entries, {rules} rule(s)"),
            |b| {
                b.iter(|| {
                    n = (n + 1) & 1023;
                    let mut x = Constant {
                        peer: peers[n],
                        ticket: None,
                    };
                    decide::access(&mut w, &mut x, &Options::default(), &mut out);
                    assert_eq!(out.action, 0, "a clean client with tokens is admitted");
                    if let Some(t) = x.ticket {
                        w.end(t);
                    }
                });
            },
        );
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(std::time::Duration::from_millis(500))
        .measurement_time(std::time::Duration::from_secs(2));
    targets = decisions
}
criterion_main!(benches);
