//! A request and its pool: which one takes it, asking for a slot, waiting for
//! one, giving it back.
//!
//! What is held is noted in the request's ticket, so that nginx's cleanup gives
//! it back however the request ends. The log phase, which comes right after,
//! tells how it ended: then the slot is given back there, with what it says of
//! the backend.
use super::exchange::{Exchange, Var};
use super::facts::Facts;
use super::level::{self, Scored};
use super::options::Asked;
use super::rules::{CompiledPool, RuleSet};
use super::thread::{Shared, Unlogged};
use super::ticket::{Closed, Holds, Record, Slot, TicketId};
use super::waiters;
use super::worker::Worker;
use crate::domain::config::{Mode, Release};
use crate::domain::pool::{
    Arrival, Completion, Entered, EntryId, Feedback, Notice, Pool, Reason, View, Wakes,
};
use crate::domain::units::Nanos;
use crate::shm::{Deferred, PoolId, Region, Verdict};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Where a request stands with its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It has a slot, or needs none.
    In,
    /// It waits, `until` at most.
    Waits {
        until: Nanos,
    },
    Out(Reason),
}

/// A request that ended, until its log phase.
#[derive(Debug)]
pub struct Ended {
    pub request: usize,
    pub record: Record,
    pub holds: Holds,
}

/// The pool that takes the request: the caller's, else the first that matches.
pub fn of_request<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    rules: &RuleSet,
    asked: &Asked<'r>,
) -> Option<usize> {
    if rules.pools.is_empty() {
        return None;
    }
    if asked.pool.is_some() {
        return asked.pool;
    }
    let mut facts = Facts::new(x, &mut w.scratch.facts);
    rules.first_pool(&mut facts)
}

/// Has any request of this process ever asked a pool? Where there are none, nobody has to look.
static ANY: AtomicBool = AtomicBool::new(false);

pub fn any() -> bool {
    // Relaxed: a flag on its own; nginx's thread sets it and asks.
    ANY.load(Ordering::Relaxed)
}

/// May there be pools under the setup in force? They come from the file, or from Redis at any time.
pub fn possible() -> bool {
    let config = super::setup::current().map(|setup| setup.config.clone());
    config.is_some_and(|c| !c.pools.is_empty() || c.store.url.is_some())
}

/// One event of a pool, and whoever it concerns told. `None`: its lock is held by somebody who
/// does not run.
pub fn touch<T>(
    w: &Worker,
    id: PoolId,
    f: impl FnOnce(&mut Pool<'_>, Nanos, &mut Wakes) -> T,
) -> Option<T> {
    let touched = w.region.pool(id, f)?;
    if touched.woke_me {
        w.shared.wake();
    }
    if let Some(saturated) = touched.saturation {
        saturation(w, id, saturated);
    }
    Some(touched.value)
}

fn saturation(w: &Worker, id: PoolId, saturated: bool) {
    let Some(touched) = w.region.pool(id, |p, now, _| p.view(now)) else {
        return;
    };
    if let Some(pool) = w.force.rules.pools.iter().find(|p| p.id == id) {
        w.shared
            .warn(saturation_line(pool.name, saturated, &touched.value));
    }
}

/// What the error log says of a pool, not of its requests.
pub fn saturation_line(pool: &str, saturated: bool, view: &View) -> String {
    let waiting: u32 = view.waiting.iter().sum();
    if saturated {
        format!(
            "sluice: pool \"{pool}\" is saturated: {} requests in flight, the limit is {}, {waiting} \
             wait",
            view.in_flight, view.limit
        )
    } else {
        format!(
            "sluice: pool \"{pool}\" has recovered: {} requests in flight, the limit is {}",
            view.in_flight, view.limit
        )
    }
}

/// The thread that looks after the pools asks this at every look: a slot is not kept for a log
/// phase that does not come.
pub fn release_unlogged(shared: &Shared, region: &Region) {
    /// The log phase follows at once, in the same turn of nginx's loop.
    const SOON: Duration = Duration::from_millis(20);
    let late = shared.unlogged.lock().take_if(|u| u.since.elapsed() > SOON);
    if let Some(u) = late {
        let done = region.pool(u.pool, |p, now, wakes| {
            p.release(u.entry, &NOTHING, now, wakes)
        });
        match done {
            Some(touched) if touched.woke_me => shared.wake(),
            Some(_) => {}
            None => region.defer_release(u.pool, u.entry, Deferred::Release(NOTHING)),
        }
    }
}

/// Would nobody see the client leave while the request waits? nginx looks at the connection, and
/// finds there what it has not read yet of a body: what does not fit into the header's buffer.
fn blind<'r>(x: &mut impl Exchange<'r>) -> bool {
    /// nginx's `client_header_buffer_size`.
    const HEADER_BUFFER: u64 = 1024;
    match body(x) {
        Some(0) => false,
        None => true,
        Some(body) => {
            let read = x.var(Var::RequestLength).and_then(number).unwrap_or(0);
            read.saturating_add(body) > HEADER_BUFFER
        }
    }
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// How long the request's body is; `None`: that is not known beforehand.
fn body<'r>(x: &mut impl Exchange<'r>) -> Option<u64> {
    if x.var(Var::TransferEncoding).is_some() {
        return None;
    }
    Some(x.var(Var::ContentLength).and_then(number).unwrap_or(0))
}

/// Is there a body that can be read before the slot is asked for?
pub fn has_body<'r>(x: &mut impl Exchange<'r>) -> bool {
    body(x) != Some(0)
}

/// A request that asks its pool, now or once its grant was withdrawn.
pub fn arrival<'r>(
    w: &Worker,
    x: &mut impl Exchange<'r>,
    ticket: TicketId,
    scored: &Scored,
    pool: &CompiledPool,
    rules: &RuleSet,
    since: Nanos,
) -> Arrival {
    Arrival {
        level: scored.level,
        cohort: scored.cohort,
        route: scored.route,
        // What has been read is in nobody's way.
        blind: !pool.request_buffering && blind(x),
        exempt: rules.mode == Mode::Shadow,
        line: w.region.line_index(),
        ticket: ticket.pack(),
        since,
    }
}

/// What the pool refuses at once, an arrival that it has then counted; else nothing is changed.
/// While its lock is not to be had, who may wait for that is not refused.
pub fn would_shed(w: &Worker, pool: &CompiledPool, a: &Arrival) -> Option<Reason> {
    let asked = touch(w, pool.id, |p, now, wakes| {
        p.would_shed(a, now)?;
        match p.arrive(a, now, wakes) {
            Entered::Shed(reason) => Some(reason),
            // What was due by now has made room.
            Entered::Admitted(entry) | Entered::Queued(entry) => {
                p.leave(entry, now, wakes);
                None
            }
        }
    });
    asked.unwrap_or_else(|| {
        let level = shown(pool, a.level);
        let may = a.exempt || w.waiters.has_room(pool.id, level, most_parked(pool));
        (!may).then(|| {
            count_shed(w, pool, a.level, Reason::Full);
            Reason::Full
        })
    })
}

/// As many of a worker's requests may wait for the lock as may be in the pool.
fn most_parked(pool: &CompiledPool) -> usize {
    let settings = &pool.settings;
    settings.capacity.saturating_add(settings.most()) as usize
}

/// What becomes of an arrival while the pool's lock is not to be had: its holder is off its
/// processor, as a rule for milliseconds. The arrival asks again then.
#[cold]
fn locked_out(w: &mut Worker, ticket: TicketId, pool: &CompiledPool, a: &Arrival) -> Place {
    // Of earlier rules, and given up by now: nothing limits that request any more.
    if a.exempt || !w.region.has_pool(pool.id) {
        return Place::In;
    }
    let level = shown(pool, a.level);
    if !waiters::park(w, pool.id, ticket, level, most_parked(pool)) {
        count_shed(w, pool, a.level, Reason::Full);
        return Place::Out(Reason::Full);
    }
    let soon = w.region.now().0.saturating_add(waiters::MOST_NS);
    Place::Waits {
        until: waits_until(Some(pool), a.since).min(Nanos(soon)),
    }
}

/// Until when a request may wait that has asked since then.
pub fn waits_until(pool: Option<&CompiledPool>, since: Nanos) -> Nanos {
    let max_wait_ns = pool.map_or(0, |pool| pool.settings.max_wait_ns);
    Nanos(since.0.saturating_add(max_wait_ns))
}

/// Counts a request that is refused, where the pool has not.
pub fn count_shed(w: &Worker, pool: &CompiledPool, level: u8, reason: Reason) {
    w.region.count_shed(pool.id, shown(pool, level), reason);
}

/// What is below the last level is the last, as in the pool.
fn shown(pool: &CompiledPool, level: u8) -> u8 {
    let last = pool.settings.levels.saturating_sub(1);
    level.min(u8::try_from(last).unwrap_or(u8::MAX))
}

/// Asks for a slot.
pub fn enter(w: &mut Worker, ticket: TicketId, pool: &CompiledPool, a: &Arrival) -> Place {
    let Some(entered) = touch(w, pool.id, |p, now, wakes| p.arrive(a, now, wakes)) else {
        return locked_out(w, ticket, pool, a);
    };
    let (entry, held) = match entered {
        Entered::Shed(reason) => return Place::Out(reason),
        Entered::Admitted(entry) => (entry, true),
        Entered::Queued(entry) => (entry, false),
    };
    ANY.store(true, Ordering::Relaxed);
    if let Some(t) = w.tickets.get(ticket) {
        t.holds.slot = Some(Slot {
            pool: pool.id,
            entry,
            held,
            to_header: pool.release == Release::Headers,
        });
    }
    if held {
        Place::In
    } else {
        waiters::queue(w, pool.id, true);
        Place::Waits {
            until: waits_until(Some(pool), a.since),
        }
    }
}

/// What became of a request that has waited as long as it may.
pub fn give_up(w: &mut Worker, ticket: TicketId, pool: Option<&CompiledPool>, level: u8) -> Notice {
    let Some(slot) = w.tickets.get(ticket).and_then(|t| t.holds.slot) else {
        // It has waited for the lock: the pool knows nothing of it.
        if waiters::unpark(w, ticket)
            && let Some(pool) = pool
        {
            // This worker may itself have been off its processor all the time.
            if touch(w, pool.id, |_, _, _| ()).is_some() {
                return Notice::Withdrawn;
            }
            count_shed(w, pool, level, Reason::Timeout);
        }
        return Notice::Shed(Reason::Timeout);
    };
    if slot.held {
        return Notice::Granted;
    }
    let became = touch(w, slot.pool, |p, now, wakes| {
        p.give_up(slot.entry, now, wakes)
    });
    let notice = became.unwrap_or_else(|| {
        // Whoever holds the lock next takes it out of the queue, and counts it.
        let level = pool.map_or(level, |pool| shown(pool, level));
        w.region
            .defer_release(slot.pool, slot.entry, Deferred::GiveUp { level });
        Notice::Shed(Reason::Timeout)
    });
    heard(w, ticket, notice);
    notice
}

/// Notes what a waiting request was told.
pub fn heard(w: &mut Worker, ticket: TicketId, notice: Notice) {
    let Some(t) = w.tickets.get(ticket) else {
        return;
    };
    let Some(slot) = t.holds.slot.as_mut().filter(|s| !s.held) else {
        return;
    };
    let pool = slot.pool;
    match notice {
        Notice::Granted => slot.held = true,
        Notice::Shed(_) | Notice::Withdrawn => t.holds.slot = None,
    }
    waiters::queue(w, pool, false);
}

/// Gives back what a request holds before its end.
pub fn give_back(w: &mut Worker, ticket: TicketId) {
    let Some(t) = w.tickets.get(ticket) else {
        return;
    };
    let (user, slot) = (t.holds.user.take(), t.holds.slot.take());
    if let Some(user) = user {
        w.region.give_user(user);
    }
    if let Some(slot) = slot {
        drop_slot(w, slot);
    }
}

/// Gives back a place in the queue, or a slot without a word about the backend.
fn drop_slot(w: &mut Worker, slot: Slot) {
    if slot.held {
        return release(w, slot.pool, slot.entry, NOTHING);
    }
    waiters::queue(w, slot.pool, false);
    let left = touch(w, slot.pool, |p, now, wakes| {
        p.leave(slot.entry, now, wakes)
    });
    if left.is_none() {
        w.region
            .defer_release(slot.pool, slot.entry, Deferred::Leave);
    }
}

/// The end of a request of which only that is known.
pub const NOTHING: Completion = Completion {
    feedback: Feedback::None,
    abandoned: false,
};

fn release(w: &Worker, pool: PoolId, entry: EntryId, c: Completion) {
    if touch(w, pool, |p, now, wakes| p.release(entry, &c, now, wakes)).is_none() {
        w.region.defer_release(pool, entry, Deferred::Release(c));
    }
}

/// A request that has ended waits for no pool.
fn wait_no_more(w: &mut Worker, holds: &mut Holds) {
    if let Some(slot) = holds.slot.take_if(|s| !s.held) {
        drop_slot(w, slot);
    }
    if let Some(parked) = holds.parked.take() {
        waiters::left(w, parked);
    }
}

/// Gives back what a closed ticket held. A slot is kept back until the log phase where that has
/// been seen to come.
pub fn closed(w: &mut Worker, mut closed: Closed) {
    if w.ended.is_some() {
        flush(w);
    }
    wait_no_more(w, &mut closed.holds);
    if closed.holds.is_nothing() {
        w.ended = Some(Ended {
            request: closed.request,
            record: closed.record,
            holds: Holds::default(),
        });
        return;
    }
    if let Some(user) = closed.holds.user.take() {
        w.region.give_user(user);
    }
    if let Some(slot) = closed.holds.slot
        && !w.logs
    {
        drop_slot(w, slot);
        closed.holds.slot = None;
    }
    if let Some(slot) = closed.holds.slot {
        *w.shared.unlogged.lock() = Some(Unlogged {
            pool: slot.pool,
            entry: slot.entry,
            since: Instant::now(),
        });
    }
    w.ended = Some(Ended {
        request: closed.request,
        record: closed.record,
        holds: closed.holds,
    });
}

/// The request that ended last was not logged, and will not be.
pub fn flush(w: &mut Worker) {
    let kept = w.ended.take().and_then(|e| e.holds.slot);
    if kept.is_some() {
        w.logs = false;
    }
    // Taken: the thread that looks after pools was quicker, or it was logged.
    let unlogged = kept.and_then(|_| w.shared.unlogged.lock().take());
    if let Some(u) = unlogged {
        release(w, u.pool, u.entry, NOTHING);
    }
}

/// Is this the log phase of a request that has ended and held nothing? Most are, so that is asked
/// before the request is looked at.
pub fn logs_nothing(w: &mut Worker, request: usize) -> bool {
    let last = w.ended.as_ref();
    let nothing = last.is_some_and(|e| e.request == request && e.holds.is_nothing());
    if nothing {
        w.logs = true;
        w.ended = None;
    }
    nothing
}

/// The log phase: what the request's end says of the backend, and of its client.
pub fn log<'r>(w: &mut Worker, x: &mut impl Exchange<'r>) {
    if logs_nothing(w, x.id()) {
        return;
    }
    w.logs = true;
    let Some(ended) = ended(w, x.id()) else {
        return;
    };
    let slot = ended.holds.slot;
    // What Sluice itself has answered says nothing of the client.
    let client = match ended.record.verdict {
        None | Some(Verdict::Pass) => ended.holds.client,
        Some(_) => 0,
    };
    if slot.is_none() && client == 0 {
        return;
    }
    let status = x.var(Var::Status).and_then(whole).unwrap_or(0);
    if client != 0 {
        level::ended(w, client, status, w.region.now());
    }
    if let Some(slot) = slot {
        release(w, slot.pool, slot.entry, completion(x, status));
    }
}

/// The end of the request that is being logged: its cleanup may have run already, or not yet.
fn ended(w: &mut Worker, request: usize) -> Option<Ended> {
    if w.ended.as_ref().is_some_and(|e| e.request == request) {
        let mut ended = w.ended.take()?;
        if ended.holds.slot.is_some() && w.shared.unlogged.lock().take().is_none() {
            // Given back in between.
            ended.holds.slot = None;
        }
        return Some(ended);
    }
    flush(w);
    let (id, serial) = w.tickets.of_request(request)?;
    if serial != 0 {
        // Nobody calls at the end of this request but us.
        let mut closed = w.tickets.close(id)?;
        wait_no_more(w, &mut closed.holds);
        if let Some(user) = closed.holds.user.take() {
            w.region.give_user(user);
        }
        return Some(Ended {
            request,
            record: closed.record,
            holds: closed.holds,
        });
    }
    let t = w.tickets.get(id)?;
    let holds = Holds {
        slot: t.holds.slot.take_if(|s| s.held),
        parked: None,
        user: None,
        client: std::mem::take(&mut t.holds.client),
    };
    Some(Ended {
        request,
        record: t.record,
        holds,
    })
}

/// The response's header has arrived: a pool may want its slot back now.
pub fn header<'r>(w: &mut Worker, x: &mut impl Exchange<'r>) {
    let Some((id, _)) = w.tickets.of_request(x.id()) else {
        return;
    };
    let Some(t) = w.tickets.get(id) else { return };
    let Some(slot) = t.holds.slot.take_if(|s| s.held && s.to_header) else {
        return;
    };
    let feedback = match x.var(Var::UpstreamHeaderTime).and_then(last_time) {
        Some(took) => Feedback::Response(took),
        None => Feedback::None,
    };
    let done = Completion {
        feedback,
        abandoned: false,
    };
    release(w, slot.pool, slot.entry, done);
}

/// The last of the answer has been handed on, whatever the client has read of it: the backend
/// has done its part.
pub fn answered<'r>(w: &mut Worker, x: &mut impl Exchange<'r>) {
    let Some((id, _)) = w.tickets.of_request(x.id()) else {
        return;
    };
    let Some(t) = w.tickets.get(id) else { return };
    let Some(slot) = t.holds.slot.take_if(|s| s.held) else {
        return;
    };
    let status = x.var(Var::Status).and_then(whole).unwrap_or(0);
    release(w, slot.pool, slot.entry, completion(x, status));
}

fn whole(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// The last of several that nginx lists: `0.001, 0.020 : 0.004`.
fn last(text: &[u8]) -> &[u8] {
    let at = text.iter().rposition(|b| matches!(b, b',' | b':'));
    text[at.map_or(0, |at| at + 1)..].trim_ascii()
}

/// Seconds with three decimals, as nginx writes them.
fn last_time(text: &[u8]) -> Option<Nanos> {
    let seconds: f64 = std::str::from_utf8(last(text)).ok()?.parse().ok()?;
    (0.0..1e6)
        .contains(&seconds)
        .then(|| Nanos(Duration::from_secs_f64(seconds).as_nanos() as u64))
}

/// What nginx says of the backend's part. A request that never was with a backend says nothing.
fn completion<'r>(x: &mut impl Exchange<'r>, status: u16) -> Completion {
    let Some(took) = x.var(Var::UpstreamTime) else {
        return NOTHING;
    };
    let abandoned = status == 499;
    if abandoned {
        return Completion {
            feedback: Feedback::None,
            abandoned,
        };
    }
    let answered = x.var(Var::UpstreamStatus).map(last).and_then(whole);
    let feedback = match (answered, last_time(took)) {
        (Some(502..=504), _) => Feedback::Error,
        (Some(_), Some(took)) => Feedback::Response(took),
        _ => Feedback::None,
    };
    Completion {
        feedback,
        abandoned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fake::Fake;

    #[test]
    fn what_nginx_says_of_the_backend() {
        let ms = |n: u64| Feedback::Response(Nanos(n * 1_000_000));
        // status, upstream status and time, what is learnt of it, abandoned
        let rows = [
            ("no backend", "200", ("", ""), Feedback::None, false),
            ("an answer", "200", ("200", "0.020"), ms(20), false),
            (
                "the last of two",
                "200",
                ("502, 200", "0.001, 0.030"),
                ms(30),
                false,
            ),
            (
                "of two groups",
                "200",
                ("504 : 200", "5.000 : 0.004"),
                ms(4),
                false,
            ),
            (
                "a client can provoke a 500",
                "500",
                ("500", "0.010"),
                ms(10),
                false,
            ),
            (
                "no connection",
                "502",
                ("502", "0.000"),
                Feedback::Error,
                false,
            ),
            (
                "a timeout",
                "504",
                ("504", "60.000"),
                Feedback::Error,
                false,
            ),
            ("overload", "503", ("503", "0.001"), Feedback::Error, false),
            (
                "left meanwhile",
                "499",
                ("-", "0.013"),
                Feedback::None,
                true,
            ),
            ("left before", "499", ("", ""), Feedback::None, false),
            ("no number", "200", ("-", "-"), Feedback::None, false),
        ];
        for (why, status, upstream, feedback, abandoned) in rows {
            let mut x = Fake {
                status,
                upstream,
                ..Fake::get(1, "192.0.2.1", "/")
            };
            let c = completion(&mut x, status.parse().expect("a status"));
            assert_eq!((c.feedback, c.abandoned), (feedback, abandoned), "{why}");
        }
    }

    #[test]
    fn who_leaves_unseen() {
        type Row = (&'static str, &'static [(&'static str, &'static str)], bool);
        let rows: [Row; 5] = [
            ("no body", &[], false),
            ("an empty one", &[("content-length", "0")], false),
            (
                "one that came with the header",
                &[("content-length", "200")],
                false,
            ),
            ("one that did not", &[("content-length", "5000")], true),
            (
                "of unknown length",
                &[("transfer-encoding", "chunked")],
                true,
            ),
        ];
        for (why, headers, unseen) in rows {
            let mut x = Fake::get(1, "192.0.2.1", "/");
            x.headers = headers.to_vec();
            assert_eq!(blind(&mut x), unseen, "{why}");
        }
    }
}
