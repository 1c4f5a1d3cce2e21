//! One decision from beginning to end, in the order of the contract:
//!
//! client address → address allowlist → (user allowlist) → address blocklist,
//! bans → user blocklist, bans → all rules → level.
//!
//! What Redis has to say is waited for in between: `access` hands the question
//! over and `resume` goes on with the answer. Both end in `finish`.
use super::answer::{self, Answer};
use super::buckets::{self, Item, Keys};
use super::client;
use super::exchange::{Exchange, Out, Text};
use super::facts::Facts;
use super::level;
use super::lists::{self, Listed};
use super::options::Options;
use super::rules::{Compiled, RuleSet};
use super::thread::{Done, Job};
use super::ticket::{Record, TicketId};
use super::worker::Worker;
use crate::domain::answer::{
    Considered, Refusal, Reported, Said, fill_s, push_number, report, retry_after_s,
};
use crate::domain::config::{Mode, OnError};
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
    pub level: u8,
    pub began: Instant,
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
        return;
    }
    // A subrequest is part of a request that has been decided; so is what comes back after an
    // internal redirect.
    if x.is_subrequest() || charged(w, x, out) {
        return;
    }
    let ticket = open(w, x);
    if options.decline
        && let Some(t) = w.tickets.get(ticket)
    {
        t.declined = true;
    }
    let asked = options.check(w);
    let who = client::of_request(w, x);

    let shadow = w.force.rules.mode == Mode::Shadow;
    let now = w.region.now();
    match lists::standing(w, who, asked.user, now) {
        Listed::Blocked if shadow => blocked_in_shadow(w, out),
        Listed::Blocked => return blocked(w, x, ticket, out),
        Listed::Allowed => {
            let level = level::score(w, x, &asked, who, now).level;
            return pass(w, x, ticket, "-", level, Duration::ZERO);
        }
        Listed::Nowhere => {}
    }

    let rules = Arc::clone(&w.force.rules);
    let mut items = std::mem::take(&mut w.scratch.items);
    items.clear();
    {
        let mut facts = Facts::new(x, &mut w.scratch.facts);
        let mut keys = Keys {
            region: w.region,
            config: &w.setup.config,
            who,
            key: &mut w.scratch.key,
        };
        buckets::gather(&rules, &mut facts, &asked, &mut keys, &mut items);
    }
    let ruling = if !buckets::local(w.region, &rules, &mut items, now) {
        Ruling::Limited
    } else if !items.iter().any(Item::in_store) {
        Ruling::Admitted
    } else {
        let level = level::score(w, x, &asked, who, now).level;
        match ask_store(w, ticket, &rules, items, level, out) {
            None => return,
            Some(back) => items = back,
        }
        without_store(w, &rules, &mut items)
    };
    let level = match ruling {
        Ruling::Limited | Ruling::FailedShut => 0,
        _ => level::score(w, x, &asked, who, now).level,
    };
    finish(
        w,
        x,
        ticket,
        &rules,
        &items,
        ruling,
        level,
        Duration::ZERO,
        out,
    );
    w.scratch.items = items;
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
                w.tickets.close(id);
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

const LEVEL_HEADER: &str = "X-Sluice-Level";

/// Hands the question over. `None`: the request waits; else the items come back undecided.
fn ask_store(
    w: &mut Worker,
    ticket: TicketId,
    rules: &Arc<RuleSet>,
    items: Vec<Item>,
    level: u8,
    out: &mut Answer,
) -> Option<Vec<Item>> {
    if !w.store_up() {
        return Some(items);
    }
    let began = Instant::now();
    let timeout = w.setup.config.store.timeout;
    let asks = buckets::asks(rules, &items);
    if let Err(e) = w.shared.submit(Job::Decide {
        ticket,
        asks,
        deadline: began + timeout,
    }) {
        w.complain(&e);
        return Some(items);
    }
    out.wait(ticket, timeout.as_secs_f64());
    let pending = Pending {
        done: None,
        rules: Arc::clone(rules),
        items,
        client: w.scratch.client.clone(),
        level,
        began,
    };
    w.tickets.wait(ticket, Box::new(pending));
    None
}

/// Goes on with a request that waited. `timed_out`: it may not wait any longer.
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
    let ruling = store_ruling(w, &mut p);
    w.scratch.client.clear();
    w.scratch.client.extend_from_slice(&p.client);
    finish(
        w,
        x,
        ticket,
        &p.rules,
        &p.items,
        ruling,
        p.level,
        p.began.elapsed(),
        out,
    );
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
    if pending.done.is_none() && !timed_out {
        let over = pending.began + w.setup.config.store.timeout;
        out.wait(
            ticket,
            over.saturating_duration_since(Instant::now()).as_secs_f64(),
        );
        return None;
    }
    w.tickets.take_pending(ticket)
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

#[allow(clippy::too_many_arguments)] // the end of everything: each argument is one fact
fn finish<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    ticket: TicketId,
    rules: &RuleSet,
    items: &[Item],
    ruling: Ruling,
    level: u8,
    waited: Duration,
    out: &mut Answer,
) {
    count(w, rules, items);
    let response = w.setup.config.response;
    let shown = match ruling {
        Ruling::Admitted | Ruling::Limited => reported(rules, items),
        Ruling::FailedOpen | Ruling::FailedShut => None,
    };
    if let Some((item, Some(fields))) = &shown {
        let rule = &rules.rules[item.rule];
        let known = own_limit(rule, &item.outcome).then_some(&*rule.policy);
        answer::fields(x, response.headers, fields, known, &mut w.scratch.text);
    }
    match ruling {
        Ruling::Admitted | Ruling::FailedOpen => {
            let rule = shown.map_or("-", |(i, _)| rules.rules[i.rule].name);
            pass(w, x, ticket, rule, level, waited);
        }
        Ruling::Limited => {
            let Some((item, _)) = shown else {
                return pass(w, x, ticket, "-", level, waited);
            };
            let rule = &rules.rules[item.rule];
            let wait = match item.said {
                Some(Said::Refused { wait_ns }) => Some(retry_after_s(wait_ns)),
                _ => None,
            };
            close(w, x, ticket, Verdict::Limited, rule.name, None, waited);
            let refusal = Refusal::Limited {
                retry_after_s: wait,
            };
            answer::refuse(x, response, refusal, rule.status, out, &mut w.scratch.text);
            if let Some(n) = w.region.refusal_log(rule.id, w.region.now()) {
                let client = w.scratch.client.escape_ascii();
                out.say(&format!(
                    "sluice: rule \"{}\" refused {n} request(s) since the last such line; client \
                     {client}, for example",
                    rule.name
                ));
            }
        }
        Ruling::FailedShut => {
            close(w, x, ticket, Verdict::Error, "-", None, waited);
            answer::refuse(x, response, Refusal::Error, 503, out, &mut w.scratch.text);
        }
    }
}

/// What each rule said, for the metrics.
pub fn count(w: &Worker, rules: &RuleSet, items: &[Item]) {
    let line = w.region.my();
    for i in items {
        let verdict = match i.said {
            None => continue,
            Some(Said::Admitted { .. }) => RuleVerdict::Pass,
            Some(_) if i.shadow => RuleVerdict::Shadow,
            Some(_) => RuleVerdict::Limited,
        };
        line.rule(rules.rules[i.rule].id, verdict);
    }
}

fn pass<'r, X: Exchange<'r>>(
    w: &mut Worker,
    x: &mut X,
    ticket: TicketId,
    rule: &'static str,
    level: u8,
    waited: Duration,
) {
    close(w, x, ticket, Verdict::Pass, rule, Some(level), waited);
    if w.setup.config.priority.forward {
        w.scratch.text.clear();
        push_number(&mut w.scratch.text, u64::from(level));
        x.set_request_header(LEVEL_HEADER, Some(&w.scratch.text));
    }
}

fn blocked<'r, X: Exchange<'r>>(w: &mut Worker, x: &mut X, ticket: TicketId, out: &mut Answer) {
    close(w, x, ticket, Verdict::Blocked, "-", None, Duration::ZERO);
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

/// Counts the verdict, shows it in the variables and keeps it for the log phase.
fn close<'r, X: Exchange<'r>>(
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
