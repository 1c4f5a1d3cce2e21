//! One decision from beginning to end, in the order of the contract:
//!
//! client address → address allowlist → (user allowlist) → address blocklist,
//! bans → user blocklist, bans → all rules → level → pool.
//!
//! Three things make a request wait: what Redis has to say, its own body, and a
//! queue. Then `access` leaves what is known of it in its ticket and `resume` goes
//! on there. After the rules all come to `after_rules`, after the pool to `admit`.
use super::answer::{self, Answer, Busy};
use super::buckets::{self, Item, Keys};
use super::client;
use super::degrade::Degraded;
use super::exchange::{Exchange, Out, Text};
use super::facts::Facts;
use super::level::{self, Scored};
use super::lists::{self, Listed};
use super::options::{Asked, Options};
use super::pools::{self, Place};
use super::rules::{Compiled, CompiledPool, RuleSet};
use super::thread::Done;
use super::ticket::{Record, TicketId};
use super::worker::Worker;
use crate::domain::answer::{
    Considered, Refusal, Reported, Said, fill_s, push_number, report, retry_after_s,
};
use crate::domain::client::Address;
use crate::domain::config::{Mode, OnError};
use crate::domain::pool::{Notice, Reason};
use crate::domain::units::Nanos;
use crate::redis::StoreError;
use crate::shm::{Outcome, RuleId, RuleVerdict, StoreResult, Verdict};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a wait goes on with.
pub struct Pending {
    pub done: Option<Done>,
    pub rules: Arc<RuleSet>,
    pub items: Vec<Item>,
    /// For the log line.
    pub client: Vec<u8>,
    pub began: Instant,
    pub scored: Scored,
    /// Of `rules`: the one that takes the request.
    pub pool: Option<usize>,
    pub goes_on: GoesOn,
    pub notice: Option<Notice>,
}

/// What it waits for.
#[derive(Clone, Copy, Debug)]
pub enum GoesOn {
    /// The store's answer.
    Store,
    /// Its own body, before it asks for a slot.
    Body {
        ruling: Ruling,
        /// What it has waited for the store before.
        waited: Duration,
    },
    /// A slot.
    Queue(Queued),
}

/// A request in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Queued {
    pub ruling: Ruling,
    /// When it first asked, and until when it waits.
    pub since: Nanos,
    pub until: Nanos,
}

/// How the rules end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    Admitted,
    Limited,
    /// The store is out of reach and `on_error` is `allow`: no field is shown.
    FailedOpen,
    /// The same, and it is `deny`.
    FailedShut,
}

/// Decides the request behind `x`; `out` says what Lua does next.
pub fn access<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    options: &Options<'r>,
    out: &mut Answer,
) {
    out.proceed();
    w.refresh();
    if w.force.rules.mode == Mode::Off {
        if w.setup.config.priority.forward {
            x.set_request_header(LEVEL_HEADER, None);
        }
        // Where a call of this request declines, so does the next one, whatever the mode: nothing
        // of ours may grant what nginx itself refuses (`satisfy any`).
        if !x.is_subrequest() && !charged(w, x, out) && options.decline {
            let ticket = open(w, x);
            decline(w, ticket);
        }
        return;
    }
    // A subrequest is part of a request that has been decided; so is what comes back after an
    // internal redirect.
    if x.is_subrequest() || charged(w, x, out) {
        return;
    }
    let ticket = open(w, x);
    if options.decline {
        decline(w, ticket);
    }
    let asked = options.check(w);
    let who = client::of_request(w, x);

    let shadow = w.force.rules.mode == Mode::Shadow;
    let now = w.region.now();
    let listed = lists::standing(w, who, asked.user, now);
    match listed {
        Listed::Blocked if shadow => blocked_in_shadow(w, out),
        Listed::Blocked => return blocked(w, x, ticket, out),
        Listed::Allowed | Listed::Nowhere => {}
    }
    let rules = Arc::clone(&w.force.rules);
    let scored = score(w, x, ticket, &asked, who, now);
    let mut d = Decision {
        ticket,
        pool: pools::of_request(w, x, &rules, &asked),
        rules,
        items: std::mem::take(&mut w.scratch.items),
        ruling: Ruling::Admitted,
        scored,
        began: None,
    };
    d.items.clear();
    if listed == Listed::Allowed {
        return after_rules(w, x, d, now, out);
    }
    {
        let mut facts = Facts::new(x, &mut w.scratch.facts);
        let mut keys = Keys {
            region: w.region,
            config: &w.setup.config,
            who,
            key: &mut w.scratch.key,
        };
        buckets::gather(&d.rules, &mut facts, &asked, &mut keys, &mut d.items);
    }
    // What the pool would refuse at once spends nothing.
    if let Some(pool) = d.pool()
        && !d.items.is_empty()
        && buckets::would_admit(w.region, &d.rules, &d.items, now)
    {
        let a = pools::arrival(w, x, ticket, &d.scored, pool, &d.rules, now);
        if let Some(reason) = pools::would_shed(w, pool, &a) {
            return shed(w, x, d, reason, out);
        }
    }
    if !buckets::local(w.region, &d.rules, &mut d.items, now) {
        d.ruling = Ruling::Limited;
    } else if d.items.iter().any(Item::in_store) {
        d = match ask_store(w, d, out) {
            None => return,
            Some(back) => back,
        };
        d.ruling = without_store(w, &d.rules, &mut d.items);
    }
    after_rules(w, x, d, now, out);
}

/// A request on its way, with what is known of it so far.
struct Decision {
    ticket: TicketId,
    rules: Arc<RuleSet>,
    items: Vec<Item>,
    ruling: Ruling,
    scored: Scored,
    /// Of `rules`: the one that takes the request.
    pool: Option<usize>,
    /// When it began to wait.
    began: Option<Instant>,
}

impl Decision {
    fn pool(&self) -> Option<&CompiledPool> {
        self.rules.pools.get(self.pool?)
    }

    fn waited(&self) -> Duration {
        self.began.map_or(Duration::ZERO, |b| b.elapsed())
    }
}

/// The request's level, and what else depends on who asks.
fn score<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    ticket: TicketId,
    asked: &Asked<'r>,
    who: Address,
    now: Nanos,
) -> Scored {
    let mut scored = level::score(w, x, asked, who, now);
    let cap = w.setup.config.priority.user_cap;
    let user = match scored.user {
        Some(hash) if scored.level == 0 => {
            let user = w.region.take_user(hash, cap);
            if matches!(user, Ok(None)) {
                scored.level = 1;
            }
            // Whoever cannot be counted for the moment keeps the level all the same.
            user.unwrap_or_default()
        }
        _ => None,
    };
    let watched = w.force.rules.suspicion.is_some();
    if (user.is_some() || watched)
        && let Some(t) = w.tickets.get(ticket)
    {
        t.holds.user = user;
        t.holds.client = if watched { scored.client } else { 0 };
    }
    scored
}

/// The client request has been decided already: an internal redirect, or a second call.
fn charged<'r>(w: &mut Worker, x: &mut impl Exchange<'r>, out: &mut Answer) -> bool {
    match w.tickets.of_request(x.id()) {
        None => false,
        Some((id, 0)) => {
            if w.tickets.get(id).is_some_and(|t| t.declined) {
                out.status = answer::DECLINED;
            }
            true
        }
        // Nobody told us of that request's end, so this may be another one.
        Some((id, serial)) => {
            let same = serial == x.serial();
            if !same {
                w.end(id);
            }
            same
        }
    }
}

fn open<'r>(w: &mut Worker, x: &mut impl Exchange<'r>) -> TicketId {
    let ticket = w.tickets.open(x.id());
    if !x.at_end(ticket.pack()) {
        let serial = x.serial();
        if let Some(t) = w.tickets.get(ticket) {
            t.serial = serial;
        }
    }
    ticket
}

fn decline(w: &mut Worker, ticket: TicketId) {
    if let Some(t) = w.tickets.get(ticket) {
        t.declined = true;
    }
}

const LEVEL_HEADER: &str = "X-Sluice-Level";

/// Hands the question over. `None`: the request waits; else the items come back undecided.
fn ask_store(w: &mut Worker, mut d: Decision, out: &mut Answer) -> Option<Decision> {
    if !w.store_up() {
        return Some(d);
    }
    let began = Instant::now();
    let timeout = w.setup.config.store.timeout;
    let asks = buckets::asks(&d.rules, &mut d.items);
    if let Err(e) = w.shared.decide(d.ticket, asks, began) {
        w.complain(&e);
        return Some(d);
    }
    out.wait(d.ticket, timeout.as_secs_f64());
    d.began = Some(began);
    wait(w, d, GoesOn::Store);
    None
}

/// Leaves the decision in its ticket.
fn wait(w: &mut Worker, d: Decision, goes_on: GoesOn) {
    let pending = Pending {
        done: None,
        client: w.scratch.client.clone(),
        began: d.began.unwrap_or_else(Instant::now),
        scored: d.scored,
        pool: d.pool,
        rules: d.rules,
        items: d.items,
        goes_on,
        notice: None,
    };
    w.tickets.wait(d.ticket, Box::new(pending));
}

/// Goes on with a request that waited.
pub fn resume<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    ticket: TicketId,
    timed_out: bool,
    out: &mut Answer,
) {
    out.proceed();
    let Some(mut p) = answered(w, ticket, timed_out, out) else {
        return;
    };
    w.scratch.client.clear();
    w.scratch.client.extend_from_slice(&p.client);
    let (ruling, began) = match p.goes_on {
        GoesOn::Queue(queued) => (queued.ruling, Some(p.began)),
        GoesOn::Store => (store_ruling(w, &mut p), Some(p.began)),
        // How long a client takes over its body is not our making it wait.
        GoesOn::Body { ruling, waited } => {
            let began = Instant::now().checked_sub(waited);
            (ruling, began.filter(|_| !waited.is_zero()))
        }
    };
    let d = Decision {
        ticket,
        rules: p.rules,
        items: p.items,
        ruling,
        scored: p.scored,
        pool: p.pool,
        began,
    };
    let now = w.region.now();
    let queued = match p.goes_on {
        GoesOn::Store => return after_rules(w, x, d, now, out),
        GoesOn::Body { .. } => return enter(w, x, d, now, out),
        GoesOn::Queue(queued) => queued,
    };
    let notice = match p.notice {
        Some(notice) => notice,
        None => pools::give_up(w, ticket, d.pool(), d.scored.level),
    };
    match notice {
        // A slot is not for somebody who has left, where nobody could see that.
        Notice::Granted | Notice::Withdrawn if x.client_gone() => too_late(w, x, d, out),
        Notice::Granted => admit(w, x, d),
        Notice::Shed(reason) => shed(w, x, d, reason, out),
        Notice::Withdrawn if now >= pools::waits_until(d.pool(), queued.since) => {
            too_late(w, x, d, out);
        }
        // This worker was busy or stopped. Its waiters have not lost their turn's time.
        Notice::Withdrawn => enter(w, x, d, queued.since, out),
    }
}

/// What a ticket waited for, once it is there or waited for no longer; else `out` says to wait on.
pub fn answered(
    w: &mut Worker,
    ticket: TicketId,
    timed_out: bool,
    out: &mut Answer,
) -> Option<Box<Pending>> {
    // Gone: the request's end, or a late call for a wait that is over.
    let pending = w.tickets.get(ticket)?.pending.as_ref()?;
    if pending.done.is_none() && pending.notice.is_none() && !timed_out {
        let left = match pending.goes_on {
            GoesOn::Queue(queued) => left(queued.until, w.region.now()),
            GoesOn::Store => {
                let over = pending.began + w.setup.config.store.timeout;
                over.saturating_duration_since(Instant::now())
            }
            // It is asked once, when it is there.
            GoesOn::Body { .. } => return w.tickets.take_pending(ticket),
        };
        out.wait(ticket, left.as_secs_f64());
        return None;
    }
    w.tickets.take_pending(ticket)
}

fn left(until: Nanos, now: Nanos) -> Duration {
    Duration::from_nanos(until.0.saturating_sub(now.0))
}

/// What comes of the store's answer, or of its absence.
pub fn store_ruling(w: &mut Worker, p: &mut Pending) -> Ruling {
    let line = w.region.my();
    let now = w.region.now();
    match p.done.take().map(|d| (d.took, d.result)) {
        Some((took, Ok(reply))) => {
            let damaged = reply.buckets.iter().any(|b| b.damaged);
            line.store(if damaged {
                StoreResult::Error
            } else {
                StoreResult::Ok
            });
            line.store_latency(took.as_nanos() as u64);
            if buckets::hear(w.region, &p.rules, &mut p.items, &reply, now) {
                Ruling::Admitted
            } else {
                Ruling::Limited
            }
        }
        Some((_, Err(e))) => {
            match &e {
                StoreError::Timeout => line.store(StoreResult::Timeout),
                _ => line.store(StoreResult::Error),
            }
            w.complain_of_store(&e);
            on_error(w, &p.rules, &mut p.items)
        }
        None => {
            line.store(StoreResult::Timeout);
            w.complain_of_store(&StoreError::Timeout);
            on_error(w, &p.rules, &mut p.items)
        }
    }
}

/// The store is known to be out of reach: nobody is asked.
pub fn without_store(w: &mut Worker, rules: &RuleSet, items: &mut [Item]) -> Ruling {
    w.region.my().store(StoreResult::Skipped);
    on_error(w, rules, items)
}

fn on_error(w: &mut Worker, rules: &RuleSet, items: &mut [Item]) -> Ruling {
    let now = w.region.now();
    match w.setup.config.store.on_error {
        OnError::Local if buckets::shares(w.region, rules, items, now) => Ruling::Admitted,
        OnError::Local => Ruling::Limited,
        OnError::Allow => Ruling::FailedOpen,
        OnError::Deny if rules.mode == Mode::Shadow => Ruling::FailedOpen,
        // Only what an enforced rule depends on is refused for want of an answer.
        OnError::Deny if items.iter().all(|i| i.shadow || !i.in_store()) => Ruling::FailedOpen,
        OnError::Deny => {
            buckets::undo(w.region, items, now);
            Ruling::FailedShut
        }
    }
}

fn considered<'a>(rules: &'a RuleSet, items: &'a [Item]) -> impl Iterator<Item = Considered<'a>> {
    items.iter().filter_map(|i| {
        let said = i.said?;
        Some(Considered {
            name: rules.rules[i.rule].name,
            shadow: i.shadow,
            said,
        })
    })
}

/// Decided by the rule's own limit: not by a share, nor by a limit that this worker has not taken
/// yet.
fn own_limit(rule: &Compiled, o: &Outcome) -> bool {
    (o.capacity, o.emission_ns) == (rule.capacity, rule.emission_ns)
}

/// The item that is reported, and what is said of it.
fn reported<'a>(rules: &'a RuleSet, items: &'a [Item]) -> Option<(&'a Item, Option<Reported<'a>>)> {
    let at = report(considered(rules, items))?;
    let item = items.iter().filter(|i| i.said.is_some()).nth(at)?;
    if item.said == Some(Said::Denied) {
        return Some((item, None));
    }
    let o = &item.outcome;
    let rule = &rules.rules[item.rule];
    let name = rule.name;
    let fill = if own_limit(rule, o) {
        rule.fill_s
    } else {
        fill_s(o.capacity, o.emission_ns)
    };
    let fields = Reported::new(name, o.capacity, fill, o.remaining, o.admitted, o.wait_ns);
    Some((item, Some(fields)))
}

/// The rules have spoken: the pool, if they admit.
fn after_rules<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    mut d: Decision,
    now: Nanos,
    out: &mut Answer,
) {
    count(w, &d.rules, &d.items);
    match d.ruling {
        Ruling::Admitted | Ruling::FailedOpen => {}
        // Nothing that is enforced refuses.
        Ruling::Limited if reported(&d.rules, &d.items).is_none() => {}
        Ruling::Limited => {
            limited(w, x, &d, out);
            w.scratch.items = std::mem::take(&mut d.items);
            return;
        }
        Ruling::FailedShut => {
            close(w, x, &d, Verdict::Error, "-", false);
            let response = w.setup.config.response;
            answer::refuse(x, response, Refusal::Error, 503, out, &mut w.scratch.text);
            return;
        }
    }
    if d.pool().is_some_and(|pool| pool.request_buffering) && pools::has_body(x) {
        read_body(w, x, d, now, out);
    } else {
        enter(w, x, d, now, out);
    }
}

/// A slot is for the time with the backend, and nginx goes there when it has the whole body: a
/// client that sends it slowly, or never, must not hold one meanwhile.
fn read_body<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    d: Decision,
    now: Nanos,
    out: &mut Answer,
) {
    let Some(pool) = d.pool() else {
        return enter(w, x, d, now, out);
    };
    // Nobody sends a body for nothing.
    let a = pools::arrival(w, x, d.ticket, &d.scored, pool, &d.rules, now);
    if let Some(reason) = pools::would_shed(w, pool, &a) {
        return refuse(w, x, d, reason, out);
    }
    out.read(d.ticket);
    let goes_on = GoesOn::Body {
        ruling: d.ruling,
        waited: d.waited(),
    };
    wait(w, d, goes_on);
}

/// Asks the pool for a slot. `since`: when the request first did.
fn enter<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    mut d: Decision,
    since: Nanos,
    out: &mut Answer,
) {
    let place = match d.pool() {
        None => Place::In,
        Some(pool) => {
            let a = pools::arrival(w, x, d.ticket, &d.scored, pool, &d.rules, since);
            pools::enter(w, d.ticket, pool, &a)
        }
    };
    match place {
        Place::In => admit(w, x, d),
        Place::Waits { until } => {
            let now = w.region.now();
            out.wait(d.ticket, left(until, now).as_secs_f64());
            d.began.get_or_insert_with(Instant::now);
            let ruling = d.ruling;
            let queued = Queued {
                ruling,
                since,
                until,
            };
            wait(w, d, GoesOn::Queue(queued));
        }
        Place::Out(reason) => refuse(w, x, d, reason, out),
    }
}

/// The pool has no place for a request that the rules have admitted.
fn refuse<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    mut d: Decision,
    reason: Reason,
    out: &mut Answer,
) {
    // What was spent here is given back; what Redis has spent stays spent.
    buckets::undo(w.region, &mut d.items, w.region.now());
    shed(w, x, d, reason, out);
}

/// The end of an admitted request's decision.
fn admit<'r, X: Exchange<'r>>(w: &mut Worker, x: &mut X, mut d: Decision) {
    let shown = match d.ruling {
        Ruling::FailedOpen => None,
        _ => reported(&d.rules, &d.items),
    };
    fields(w, x, &d.rules, shown);
    let rule = shown.map_or("-", |(i, _)| d.rules.rules[i.rule].name);
    close(w, x, &d, Verdict::Pass, rule, true);
    if w.setup.config.priority.forward {
        w.scratch.text.clear();
        push_number(&mut w.scratch.text, u64::from(d.scored.level));
        x.set_request_header(LEVEL_HEADER, Some(&w.scratch.text));
    }
    w.scratch.items = std::mem::take(&mut d.items);
}

/// The RateLimit fields.
fn fields<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    rules: &RuleSet,
    shown: Option<(&Item, Option<Reported<'_>>)>,
) {
    if let Some((item, Some(fields))) = &shown {
        let rule = &rules.rules[item.rule];
        let known = own_limit(rule, &item.outcome).then_some(&*rule.policy);
        let style = w.setup.config.response.headers;
        answer::fields(x, style, fields, known, &mut w.scratch.text);
    }
}

fn limited<'r, X: Exchange<'r>>(w: &mut Worker, x: &mut X, d: &Decision, out: &mut Answer) {
    let Some((item, shown)) = reported(&d.rules, &d.items) else {
        return;
    };
    fields(w, x, &d.rules, Some((item, shown)));
    let rule = &d.rules.rules[item.rule];
    let wait = match item.said {
        Some(Said::Refused { wait_ns }) => Some(retry_after_s(wait_ns)),
        _ => None,
    };
    close(w, x, d, Verdict::Limited, rule.name, false);
    let refusal = Refusal::Limited {
        retry_after_s: wait,
    };
    let response = w.setup.config.response;
    answer::refuse(x, response, refusal, rule.status, out, &mut w.scratch.text);
    if let Some(n) = w.region.refusal_log(rule.id, w.region.now()) {
        let client = w.scratch.client.escape_ascii();
        out.say(&format!(
            "sluice: rule \"{}\" refused {n} request(s) since the last such line; client {client}, \
             for example",
            rule.name
        ));
    }
}

/// The pool has no place for the request.
fn shed<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    mut d: Decision,
    _reason: Reason,
    out: &mut Answer,
) {
    // Nobody who is refused counts as one of his user's, or holds a slot until he is gone.
    pools::give_back(w, d.ticket);
    close(w, x, &d, Verdict::Shed, "-", true);
    let retry_after_s = w.draw(1, 5);
    let degrade = d.pool().and_then(|p| p.degrade.as_ref());
    let page = match degrade {
        Some(Degraded::Page(file)) => file.page(),
        _ => None,
    };
    let busy = match (degrade, &page) {
        (Some(Degraded::Location(name)), _) => Busy::Location(name),
        (_, Some(page)) => Busy::Page {
            number: w.pages.number(page),
            content_type: page.content_type,
            len: page.bytes.len(),
        },
        _ => Busy::Problem,
    };
    let response = w.setup.config.response;
    answer::shed(x, response, busy, retry_after_s, out, &mut w.scratch.text);
    w.scratch.items = std::mem::take(&mut d.items);
}

/// The pool had a slot for the request, of which nothing came.
fn too_late<'r, X: Exchange<'r>>(w: &mut Worker, x: &mut X, d: Decision, out: &mut Answer) {
    if let Some(pool) = d.pool() {
        pools::count_shed(w, pool, d.scored.level, Reason::Timeout);
    }
    shed(w, x, d, Reason::Timeout, out);
}

/// What each rule said, for the metrics; of shadow rules that would refuse, for the log too.
/// `client`: who asks, as text.
pub fn count(w: &Worker, rules: &RuleSet, items: &[Item]) {
    let line = w.region.my();
    for i in items {
        let verdict = match i.said {
            None => continue,
            Some(Said::Admitted { .. }) => RuleVerdict::Pass,
            Some(_) if i.shadow => {
                say_shadow(w, &rules.rules[i.rule]);
                RuleVerdict::Shadow
            }
            Some(_) => RuleVerdict::Limited,
        };
        line.rule(rules.rules[i.rule].id, verdict);
    }
}

/// Not in the answer: several rules of a request may have something to say.
#[cold]
fn say_shadow(w: &Worker, rule: &Compiled) {
    let Some(n) = w.region.refusal_log(rule.id, w.region.now()) else {
        return;
    };
    let client = &w.scratch.client;
    let example = if client.is_empty() {
        "check() asked, for example".into()
    } else {
        format!("client {}, for example", client.escape_ascii())
    };
    w.shared.error(format!(
        "sluice: rule \"{}\" is in shadow mode and would have refused {n} request(s) since the last \
         such line; {example}",
        rule.name
    ));
}

fn blocked<'r, X: Exchange<'r>>(w: &mut Worker, x: &mut X, ticket: TicketId, out: &mut Answer) {
    show(w, x, ticket, Verdict::Blocked, "-", None, Duration::ZERO);
    let response = w.setup.config.response;
    answer::refuse(x, response, Refusal::Blocked, 403, out, &mut w.scratch.text);
    say_blocked(w, "", out);
}

fn blocked_in_shadow(w: &mut Worker, out: &mut Answer) {
    say_blocked(w, "would have ", out);
}

fn say_blocked(w: &mut Worker, would: &str, out: &mut Answer) {
    if let Some(n) = w.region.refusal_log(RuleId::BLOCKED, w.region.now()) {
        let client = w.scratch.client.escape_ascii();
        out.say(&format!(
            "sluice: the lists {would}blocked {n} request(s) since the last such line; client \
             {client}, for example"
        ));
    }
}

/// As `$sluice_verdict` shows it.
fn name(verdict: Verdict) -> &'static [u8] {
    match verdict {
        Verdict::Pass => b"pass",
        Verdict::Limited => b"limited",
        Verdict::Blocked => b"blocked",
        Verdict::Error => b"error",
        Verdict::Shed => b"shed",
    }
}

/// The end of a decision. `level`: it is of interest.
fn close<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    d: &Decision,
    verdict: Verdict,
    rule: &'static str,
    level: bool,
) {
    let level = level.then_some(d.scored.level);
    show(w, x, d.ticket, verdict, rule, level, d.waited());
}

/// Counts the verdict, shows it in the variables and keeps it for the log phase.
fn show<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    ticket: TicketId,
    verdict: Verdict,
    rule: &'static str,
    level: Option<u8>,
    waited: Duration,
) {
    w.region.my().verdict(verdict);
    x.set_var(Out::Verdict, Text::Static(name(verdict)));
    // The include's default is `-`.
    if rule != "-" {
        x.set_var(Out::Rule, Text::Static(rule.as_bytes()));
    }
    if let Some(level) = level {
        // As many levels as a configuration may have.
        const LEVELS: [&[u8]; 16] = [
            b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"10", b"11", b"12", b"13",
            b"14", b"15",
        ];
        x.set_var(
            Out::Level,
            Text::Static(LEVELS.get(level as usize).unwrap_or(&&b"-"[..])),
        );
    }
    if waited >= Duration::from_millis(1) {
        w.scratch.text.clear();
        push_number(&mut w.scratch.text, waited.as_millis() as u64);
        x.set_var(Out::WaitMs, Text::Brief(&w.scratch.text));
    }
    if let Some(t) = w.tickets.get(ticket) {
        t.record = Record {
            verdict: Some(verdict),
            level: level.unwrap_or(0),
        };
    }
}
