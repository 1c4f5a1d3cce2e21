//! `check()`: one named rule for a key of the caller's; `ban()` and `unban()`.
use super::answer::{Action, Answer};
use super::buckets::{self, Item, Keys};
use super::decide::{self, GoesOn, Pending, Ruling};
use super::level::Scored;
use super::lists::unix_ns;
use super::thread::{Done, Job};
use super::ticket::TicketId;
use super::worker::Worker;
use crate::domain::answer::Said;
use crate::domain::client::Address;
use crate::domain::config::Mode;
use crate::domain::entry::{self, Subject};
use crate::redis::StoreError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest key, bytes.
const KEY_BYTES: usize = 8192;
/// The longest ban that is not for ever: 10 years, s.
const BAN_S: f64 = 10.0 * 365.25 * 86_400.0;
/// A ban's write may take longer than a decision: nobody's page waits for it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
const WAS_OVER: &str = "sluice: the wait was over already";

/// `cost` 0: the rule's own.
pub fn check(w: &mut Worker, name: &[u8], key: &[u8], cost: f64, out: &mut Answer) {
    out.proceed();
    w.refresh();
    let rules = Arc::clone(&w.force.rules);
    let Some(index) = std::str::from_utf8(name)
        .ok()
        .and_then(|n| rules.by_name(n))
    else {
        let off = if rules.mode == Mode::Off {
            " (mode is off)"
        } else {
            ""
        };
        return out.fault(&format!(
            "sluice: check(): \"{}\" is no rule in force{off}",
            name.escape_ascii()
        ));
    };
    if key.len() > KEY_BYTES {
        return out.fault(&format!(
            "sluice: check(): the key has {} bytes; at most {KEY_BYTES} are taken",
            key.len()
        ));
    }
    let rule = &rules.rules[index];
    let cost = if cost == 0.0 {
        rule.cost
    } else if cost >= 1.0 && cost.fract() == 0.0 && cost <= f64::from(u32::MAX) {
        cost as u32
    } else {
        return out.fault(&format!(
            "sluice: check(): the cost must be a whole number from 1, not {cost}"
        ));
    };
    w.scratch.key.clear();
    w.scratch.key.push_custom(key);
    let keys = Keys {
        region: w.region,
        config: &w.setup.config,
        who: Address::None,
        key: &mut w.scratch.key,
    };
    let mut items = vec![buckets::item(index, rule, cost, &keys)];
    if items[0].in_store() {
        if w.store_up() {
            let began = Instant::now();
            let timeout = w.setup.config.store.timeout;
            let asks = buckets::asks(&rules, &mut items);
            let pending = Pending {
                done: None,
                rules: Arc::clone(&rules),
                items,
                client: Vec::new(),
                began,
                scored: Scored::default(),
                pool: None,
                goes_on: GoesOn::Store,
                notice: None,
            };
            let ticket = wait(w, pending, timeout, out);
            if let Err(e) = w.shared.decide(ticket, asks, began) {
                w.tickets.forget(ticket);
                out.fault(&format!("sluice: check(): {e}"));
            }
            return;
        }
        let ruling = decide::without_store(w, &rules, &mut items);
        return tell(w, &rules, &items, ruling, out);
    }
    let admitted = buckets::local(w.region, &rules, &mut items, w.region.now());
    let ruling = if admitted {
        Ruling::Admitted
    } else {
        Ruling::Limited
    };
    tell(w, &rules, &items, ruling, out);
}

fn wait(w: &mut Worker, pending: Pending, timeout: Duration, out: &mut Answer) -> TicketId {
    forget_left(w, pending.began);
    let ticket = w.tickets.open(0);
    w.calls.push_back((pending.began + timeout, ticket));
    w.tickets.wait(ticket, Box::new(pending));
    out.wait(ticket, timeout.as_secs_f64());
    ticket
}

/// Nobody tells of a caller whose client left while it waited, and who does not come back: nginx
/// calls at the end of requests that were decided. Its ticket is given back some time after the
/// caller would have stopped waiting.
fn forget_left(w: &mut Worker, now: Instant) {
    const LATE: Duration = Duration::from_secs(5);
    while let Some(&(until, ticket)) = w.calls.front() {
        let waits = w.tickets.get(ticket).is_some();
        if waits && now < until + LATE {
            return;
        }
        w.tickets.forget(ticket);
        w.calls.pop_front();
    }
}

/// Goes on with a `check()` that waited.
pub fn check_resume(w: &mut Worker, ticket: TicketId, timed_out: bool, out: &mut Answer) {
    out.proceed();
    if w.tickets.get(ticket).is_none() {
        return out.fault(WAS_OVER);
    }
    let Some(mut p) = decide::answered(w, ticket, timed_out, out) else {
        return;
    };
    let ruling = decide::store_ruling(w, &mut p);
    w.tickets.forget(ticket);
    tell(w, &p.rules, &p.items, ruling, out);
}

fn tell(
    w: &mut Worker,
    rules: &super::rules::RuleSet,
    items: &[Item],
    ruling: Ruling,
    out: &mut Answer,
) {
    // Nobody's request.
    w.scratch.client.clear();
    decide::count(w, rules, items);
    let item = &items[0];
    let shadow = item.shadow;
    match (ruling, item.said) {
        (Ruling::FailedShut, _) => out.fault("sluice: check(): the store is out of reach"),
        (Ruling::FailedOpen, _) => {
            out.action = Action::Proceed as i32;
            out.remaining = 0.0;
        }
        (_, Some(Said::Refused { wait_ns })) if !shadow => {
            out.action = Action::Refuse as i32;
            out.remaining = wait_ns as f64 / 1e9;
        }
        (_, Some(Said::Admitted { remaining, .. })) => out.remaining = f64::from(remaining),
        _ => out.remaining = 0.0,
    }
}

fn subject(text: &[u8], out: &mut Answer) -> Option<Subject> {
    match entry::parse(text) {
        Ok(s) => Some(s),
        Err(e) => {
            let shown = text[..text.len().min(100)].escape_ascii();
            out.fault(&format!(
                "sluice: \"{shown}\": {e}; a subject is an address, a CIDR or user:<id>"
            ));
            None
        }
    }
}

/// The Unix second at which a ban of so many seconds ends; `None`: never.
pub fn ban_end(seconds: Option<f64>) -> Result<Option<u64>, String> {
    match seconds {
        None => Ok(None),
        Some(s) if s > 0.0 && s <= BAN_S => {
            let now = unix_ns() as f64 / 1e9;
            // A started second counts whole: never earlier than promised.
            Ok(Some((now + s).ceil() as u64))
        }
        Some(s) => Err(format!(
            "seconds must be above 0 and at most {BAN_S} (10 years), not {s}"
        )),
    }
}

/// `seconds` -1: for ever.
pub fn ban(w: &mut Worker, text: &[u8], seconds: f64, out: &mut Answer) {
    out.proceed();
    let Some(subject) = subject(text, out) else {
        return;
    };
    let seconds = (seconds != -1.0).then_some(seconds);
    let until_unix = match ban_end(seconds) {
        Ok(until) => until,
        Err(e) => return out.fault(&format!("sluice: ban(): {e}, or nil for ever")),
    };
    if entry::is_everything(&subject) {
        w.shared.warn(format!(
            "sluice: ban(): {subject} is every address of its family"
        ));
    }
    if w.setup.config.store.url.is_none() {
        if let Err(e) = w.region.ban(&subject, until_unix.unwrap_or(u64::MAX)) {
            out.fault(&format!("sluice: ban(): {e}"));
        }
        return;
    }
    let member = subject.member();
    write(w, out, |ticket, deadline| Job::Ban {
        ticket,
        member,
        until_unix: until_unix.map(|s| s as f64),
        deadline,
    });
}

pub fn unban(w: &mut Worker, text: &[u8], out: &mut Answer) {
    out.proceed();
    let Some(subject) = subject(text, out) else {
        return;
    };
    if w.setup.config.store.url.is_none() {
        if let Err(e) = w.region.unban(&subject) {
            out.fault(&format!("sluice: unban(): {e}"));
        }
        return;
    }
    let member = subject.member();
    write(w, out, |ticket, deadline| Job::Unban {
        ticket,
        member,
        deadline,
    });
}

fn write(w: &mut Worker, out: &mut Answer, job: impl FnOnce(TicketId, Instant) -> Job) {
    let began = Instant::now();
    let pending = Pending {
        done: None,
        rules: Arc::clone(&w.force.rules),
        items: Vec::new(),
        client: Vec::new(),
        began,
        scored: Scored::default(),
        pool: None,
        goes_on: GoesOn::Store,
        notice: None,
    };
    let ticket = wait(w, pending, WRITE_TIMEOUT, out);
    if let Err(e) = w.shared.submit(job(ticket, began + WRITE_TIMEOUT)) {
        w.tickets.forget(ticket);
        out.fault(&format!("sluice: {e}"));
    }
}

/// Goes on with a `ban()` or `unban()` that waited.
pub fn ban_resume(w: &mut Worker, ticket: TicketId, timed_out: bool, out: &mut Answer) {
    out.proceed();
    let Some(p) = w.tickets.get(ticket).and_then(|t| t.pending.as_ref()) else {
        return out.fault(WAS_OVER);
    };
    if p.done.is_none() && !timed_out {
        let over = p.began + WRITE_TIMEOUT;
        out.wait(
            ticket,
            over.saturating_duration_since(Instant::now()).as_secs_f64(),
        );
        return;
    }
    let done: Option<Done> = w.tickets.take_pending(ticket).and_then(|p| p.done);
    w.tickets.forget(ticket);
    let wrong = match done.map(|d| d.result) {
        Some(Ok(_)) => return,
        Some(Err(e)) => e,
        None => StoreError::Timeout,
    };
    out.fault(&format!("sluice: the store did not take it: {wrong}"));
}
