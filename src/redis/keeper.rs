//! The task that keeps a client's connection: makes it anew as soon as it is
//! lost, asks something on an idle one so that nobody between forgets it, and
//! makes the breaker's attempts.
use super::client::{CONNECT, Inner, SILENT};
use super::connect::Link;
use super::scripts::BUCKET;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};
use tokio::select;
use tokio::sync::Notify;
use tokio::time::{sleep_until, timeout};

const IDLE: Duration = Duration::from_secs(10);
/// A connection that is lost sooner than this is not made anew at once.
const BRIEF: Duration = Duration::from_millis(50);

/// Until the client is gone.
pub(super) async fn keep(client: Weak<Inner>, work: Rc<Notify>) {
    while let Some(inner) = client.upgrade() {
        let next = inner
            .breaker
            .borrow()
            .next_attempt()
            .map(|next| inner.start + next);
        match (next, inner.live()) {
            (Some(next), _) if next > Instant::now() => {
                drop(inner);
                select! { () = sleep_until(next.into()) => {}, () = work.notified() => {} }
            }
            (None, Some(link)) => {
                drop(inner);
                attend(&link, &work).await;
            }
            _ => attempt(&inner).await,
        }
    }
}

/// Stays by a connection while all is well.
async fn attend(link: &Link, work: &Notify) {
    let idle = link.last_reply() + IDLE;
    select! {
        () = work.notified() => {}
        () = link.closed() => sleep_until((link.opened() + BRIEF).into()).await,
        () = sleep_until(idle.into()) => {
            if link.last_reply().elapsed() < IDLE {
                return;
            }
            let nothing = BUCKET.nothing();
            let run = async { BUCKET.run(&mut link.mux(), &nothing).await };
            match timeout(CONNECT, run).await {
                Ok(Ok(_)) => link.note_reply(),
                // The next connection will tell what is wrong.
                _ => link.close(),
            }
        }
    }
}

/// Connects where there is no connection to rely on; when the breaker is open, closes it if that works.
async fn attempt(inner: &Inner) {
    let open = inner.breaker.borrow().is_open();
    let link = inner
        .live()
        .filter(|link| link.last_reply().elapsed() < SILENT);
    let link = match link {
        Some(link) => link,
        None => {
            inner.link.replace(None);
            match inner.connect().await {
                Ok(link) => Rc::new(link),
                Err(judgement) => return inner.attempt_failed(&judgement.error),
            }
        }
    };
    inner.link.replace(Some(link.clone()));
    if open {
        if let Err(judgement) = inner.probe(&link).await {
            if judgement.reconnect {
                link.close();
            }
            return inner.attempt_failed(&judgement.error);
        }
        inner.breaker.borrow_mut().attempt_succeeded();
        inner.health.set(true);
    }
    inner.changed.notify_waiters();
}
