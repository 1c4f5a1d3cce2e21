//! Decisions that share calls.
use super::client::stat;
use super::*;
use crate::redis::client::StoreError;
use crate::redis::fixture::{Server, installed};
use crate::redis::group::{Answered, Door, Question, Whom};
use crate::redis::scripts::{MOST_BUCKETS, Reply};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::task::JoinHandle;

fn ask(
    client: &Client,
    asks: Vec<BucketAsk>,
    deadline: Instant,
) -> JoinHandle<Result<Reply, StoreError>> {
    let client = client.clone();
    tokio::task::spawn_local(async move { client.decide(&asks, deadline).await })
}

/// As few calls as the bound allows.
#[test]
fn what_gathers_shares_a_call_and_keeps_its_own_answer() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let client = client(&server.url());
        client.time_us(soon()).await.expect("connected");
        let _: () = server.run("CONFIG RESETSTAT");
        // Each its own bucket and one of all, which admits a hundred.
        let asks = |n: usize| vec![bucket(&format!("own{n}"), 7), bucket("all", 100)];
        let all: Vec<_> = (0..300).map(|n| ask(&client, asks(n), soon())).collect();
        for (n, one) in all.into_iter().enumerate() {
            let reply = one.await.expect("done").expect("a reply");
            assert_eq!(reply.admitted, n < 100, "{n}");
            let left: Vec<_> = reply.buckets.iter().map(|it| it.remaining).collect();
            let expected = if n < 100 { [6, 99 - n as u32] } else { [7, 0] };
            assert_eq!(left, expected, "{n}");
        }
        let each = MOST_BUCKETS / 2;
        let calls = 300usize.div_ceil(each) as u64;
        assert_eq!(stat(&server, "evalsha", "calls"), calls);
        // The bucket of all is read once a call, and written while it admits.
        assert_eq!(stat(&server, "get", "calls"), 300 + calls);
        let writing = 100usize.div_ceil(each) as u64;
        assert_eq!(stat(&server, "set", "calls"), 100 + writing);
        // All or nothing: who was refused has spent nothing.
        let keys: Vec<String> = server.run("KEYS *");
        assert_eq!(keys.len(), 101);
    });
}

#[test]
fn a_decision_over_more_than_a_call_takes_goes_alone() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let client = client(&server.url());
        client.time_us(soon()).await.expect("connected");
        let _: () = server.run("CONFIG RESETSTAT");
        let many = |n: usize| (0..n).map(|it| bucket(&format!("b{it}"), 9)).collect();
        let sizes = [1, 5, MOST_BUCKETS + 1, MOST_BUCKETS, 1, 2 * MOST_BUCKETS, 2];
        let all: Vec<_> = sizes.map(|it| ask(&client, many(it), soon())).into();
        for (n, one) in all.into_iter().enumerate() {
            let reply = one.await.expect("done").expect("a reply");
            let left: Vec<_> = reply.buckets.iter().map(|it| it.remaining).collect();
            // As many as have asked for the same before.
            let expected = (0..sizes[n])
                .map(|at| 9 - sizes[..=n].iter().filter(|it| **it > at).count() as u32);
            assert_eq!(left, expected.collect::<Vec<_>>());
        }
        // The first two share one.
        assert_eq!(stat(&server, "evalsha", "calls"), 6);
    });
}

/// Each waits as long as it may and no longer; what has not left yet is not spent.
#[test]
fn deadlines_are_each_ones_own() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let client = client(&server.url());
        client.time_us(soon()).await.expect("connected");
        let in_ms = |ms| Instant::now() + Duration::from_millis(ms);
        server.hang();
        let first = ask(&client, vec![bucket("first", 9)], in_ms(400));
        tokio::time::sleep(Duration::from_millis(5)).await;
        let short = ask(&client, vec![bucket("short", 9)], in_ms(100));
        let long = ask(&client, vec![bucket("long", 9)], in_ms(5000));
        assert_eq!(short.await.expect("done"), Err(StoreError::Timeout));
        assert!(!first.is_finished());
        assert_eq!(first.await.expect("done"), Err(StoreError::Timeout));
        server.wake();
        let reply = long.await.expect("done").expect("a reply");
        assert_eq!(reply.buckets[0].remaining, 8);
        let keys: Vec<String> = server.run("KEYS *");
        assert!(!keys.contains(&"sluice:b:short:".to_owned()), "{keys:?}");
        // Late, but it had left: spent stays spent.
        assert!(keys.contains(&"sluice:b:first:".to_owned()), "{keys:?}");
        assert!(client.health().is_up(), "two in a row are a hiccup");
    });
}

/// The reply to a call one of whose decisions has given up still belongs to the others.
#[test]
fn who_gives_up_takes_nobodys_answer() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let client = client(&server.url());
        client.time_us(soon()).await.expect("connected");
        server.hang();
        let begin = ask(&client, vec![bucket("begin", 9)], Instant::now());
        begin.await.expect("done").expect_err("too late at once");
        let until = |ms| Instant::now() + Duration::from_millis(ms);
        let all: Vec<_> = (0..6)
            .map(|n| {
                let one = bucket(&format!("n{n}"), 10 + n);
                // All are there before the first is sent.
                ask(&client, vec![one], until(if n == 2 { 30 } else { 5000 }))
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(60)).await;
        server.wake();
        for (n, one) in (0..).zip(all) {
            match one.await.expect("done") {
                Ok(reply) => assert_eq!(reply.buckets[0].remaining, 9 + n),
                Err(error) => assert_eq!((n, error), (2, StoreError::Timeout)),
            }
        }
    });
}

/// The same of tickets, whose questions go back with what they are told.
#[test]
fn a_ticket_that_expires_takes_nobodys_answer() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let told = Rc::new(RefCell::new(Vec::new()));
        let takes = Rc::clone(&told);
        let outlet = move |answered: &mut Vec<Answered>| takes.borrow_mut().append(answered);
        let door = Arc::new(Door::default());
        let client = Client::behind(door.clone(), Box::new(outlet), &store(&server.url()));
        let client = client.expect("a client");
        client.time_us(soon()).await.expect("connected");
        server.hang();
        let asked = Instant::now();
        for n in 0..6 {
            let ms = if n == 2 { 30 } else { 5000 };
            door.ask(Question {
                asks: [bucket(&format!("n{n}"), 10 + n)].into_iter().collect(),
                deadline: asked + Duration::from_millis(ms),
                asked,
                whom: Whom::Ticket(u64::from(n)),
            });
        }
        tokio::time::sleep(Duration::from_millis(60)).await;
        server.wake();
        until("all are told", async || told.borrow().len() == 6).await;
        for answered in told.borrow().iter() {
            let n = answered.ticket as u32;
            assert_eq!(answered.asks[0].key, format!("sluice:b:n{n}:"));
            match &answered.result {
                Ok(reply) => assert_eq!(reply.buckets[0].remaining, 9 + n),
                Err(error) => assert_eq!((n, error), (2, &StoreError::Timeout)),
            }
        }
        assert_eq!(told.borrow()[0].ticket, 2, "whose time was over first");
        assert!(client.health().is_up());
    });
}

/// What a call is told, all in it are told, and each counts.
#[test]
fn an_error_is_everybodys() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let client = client(&server.url());
        client.time_us(soon()).await.expect("connected");
        let _: () = server.run("CONFIG SET maxmemory 1");
        let all: Vec<_> = (0..9)
            .map(|n| ask(&client, vec![bucket(&n.to_string(), 9)], soon()))
            .collect();
        for one in all {
            let error = one.await.expect("done").expect_err("OOM");
            assert!(matches!(&error, StoreError::Unavailable(why) if why.contains("OOM")));
        }
        assert!(!client.health().is_up());
        let _: () = server.run("CONFIG SET maxmemory 0");
        until("it recovers", async || client.health().is_up()).await;
        // A script that is gone is brought by the call that misses it.
        let _: () = server.run("SCRIPT FLUSH");
        let all: Vec<_> = (0..9)
            .map(|n| ask(&client, vec![bucket(&n.to_string(), 9)], soon()))
            .collect();
        for one in all {
            assert!(one.await.expect("done").expect("a reply").admitted);
        }
    });
}

#[test]
fn the_calls_end_with_the_client() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let door = Arc::new(Door::default());
        let outlet = Box::new(|_: &mut Vec<_>| ());
        let own = Client::behind(door.clone(), outlet, &store(&server.url())).expect("a client");
        own.time_us(soon()).await.expect("connected");
        drop(own);
        until("nobody looks", async || Arc::strong_count(&door) == 1).await;
    });
}
