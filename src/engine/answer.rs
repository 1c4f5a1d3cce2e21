//! What a call tells Lua, and how a refusal is written.
use super::exchange::Exchange;
use crate::domain::answer::{self, PROBLEM_TYPE, Refusal, Reported};
use crate::domain::config::{BodyStyle, HeaderStyle, Response};
use crate::engine::ticket::TicketId;

/// What Lua does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Action {
    /// Go on: admitted, or not ours to decide.
    Proceed = 0,
    /// Wait for the ticket, `seconds` at most, then ask again.
    Wait = 1,
    /// End the request with `status` and `body`; or, of `check()`, refused.
    Refuse = 2,
    /// Nothing was done; `message` says why.
    Fault = 3,
    /// Go to the location that `body` names.
    Divert = 4,
    /// Read the request's body, then ask again.
    Read = 5,
}

/// `status` of `Proceed`: an earlier call for this request ended its handler with `NGX_DECLINED`,
/// so this one has to as well, or it would be the permission that the other avoided.
pub const DECLINED: i32 = 1;

/// `sluice_answer_t`. Always written as a whole story: an admission where no
/// decision could be made.
#[repr(C)]
pub struct Answer {
    pub action: i32,
    pub status: i32,
    pub ticket: u32,
    pub generation: u32,
    /// The longest to wait.
    pub seconds: f64,
    /// Of `check()`: tokens left, or seconds until it is worth trying again.
    pub remaining: f64,
    pub body_len: u32,
    pub message_len: u32,
    /// With `Refuse`: the number of the file whose bytes are the body; 0: `body` is.
    pub file: u32,
    pub unused: u32,
    pub body: [u8; 512],
    /// One line for the error log.
    pub message: [u8; 768],
}

impl Answer {
    pub fn proceed(&mut self) {
        self.action = Action::Proceed as i32;
        self.status = 0;
        self.body_len = 0;
        self.message_len = 0;
        self.file = 0;
    }

    pub fn wait(&mut self, ticket: TicketId, seconds: f64) {
        self.action = Action::Wait as i32;
        self.ticket = ticket.index;
        self.generation = ticket.generation;
        self.seconds = seconds;
    }

    pub fn read(&mut self, ticket: TicketId) {
        self.action = Action::Read as i32;
        self.ticket = ticket.index;
        self.generation = ticket.generation;
    }

    pub fn fault(&mut self, why: &str) {
        self.action = Action::Fault as i32;
        self.say(why);
    }

    /// A line for the log; one too long is cut at a character.
    pub fn say(&mut self, line: &str) {
        let mut n = line.len().min(self.message.len());
        while !line.is_char_boundary(n) {
            n -= 1;
        }
        self.message[..n].copy_from_slice(&line.as_bytes()[..n]);
        self.message_len = n as u32;
    }
}

/// The RateLimit fields of an answer. `policy`: the first of them, where it is written already.
pub fn fields<'r>(
    x: &mut impl Exchange<'r>,
    style: HeaderStyle,
    reported: &Reported<'_>,
    policy: Option<&[u8]>,
    buf: &mut Vec<u8>,
) {
    let number = |buf: &mut Vec<u8>, n: u64| {
        buf.clear();
        answer::push_number(buf, n);
    };
    match style {
        HeaderStyle::Standard => {
            match policy {
                Some(text) => x.set_header("RateLimit-Policy", text),
                None => {
                    buf.clear();
                    reported.rate_limit_policy(buf);
                    x.set_header("RateLimit-Policy", buf);
                }
            }
            buf.clear();
            reported.rate_limit(buf);
            x.set_header("RateLimit", buf);
        }
        HeaderStyle::Legacy => {
            number(buf, u64::from(reported.capacity));
            x.set_header("X-RateLimit-Limit", buf);
            number(buf, u64::from(reported.remaining));
            x.set_header("X-RateLimit-Remaining", buf);
            number(buf, reported.t_s);
            x.set_header("X-RateLimit-Reset", buf);
        }
        HeaderStyle::Off => {}
    }
}

/// What a pool answers whom it sheds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy<'a> {
    Problem,
    /// A page of the operator's, by its number.
    Page {
        number: u32,
        content_type: &'a str,
        len: usize,
    },
    Location(&'a str),
}

/// The answer to a request that its pool sheds.
pub fn shed<'r>(
    x: &mut impl Exchange<'r>,
    response: Response,
    busy: Busy<'_>,
    retry_after_s: u64,
    out: &mut Answer,
    buf: &mut Vec<u8>,
) {
    let refusal = Refusal::Shed { retry_after_s };
    match busy {
        Busy::Problem => refuse(x, response, refusal, 503, out, buf),
        Busy::Page {
            number,
            content_type,
            len,
        } => {
            let silent = Response {
                body: BodyStyle::Nginx,
                ..response
            };
            refuse(x, silent, refusal, 503, out, buf);
            out.file = number;
            x.set_header("Content-Type", content_type.as_bytes());
            buf.clear();
            answer::push_number(buf, len as u64);
            x.set_header("Content-Length", buf);
        }
        Busy::Location(name) => {
            buf.clear();
            answer::push_number(buf, retry_after_s);
            x.set_header("Retry-After", buf);
            out.action = Action::Divert as i32;
            out.status = 503;
            let n = name.len().min(out.body.len());
            out.body[..n].copy_from_slice(&name.as_bytes()[..n]);
            out.body_len = n as u32;
        }
    }
}

/// Status, fields and body of a refusal.
pub fn refuse<'r>(
    x: &mut impl Exchange<'r>,
    response: Response,
    refusal: Refusal,
    status: u16,
    out: &mut Answer,
    buf: &mut Vec<u8>,
) {
    out.action = Action::Refuse as i32;
    out.status = i32::from(status);
    out.body_len = 0;
    if status == 444 {
        return;
    }
    let retry_after_s = match refusal {
        Refusal::Limited { retry_after_s } => retry_after_s,
        Refusal::Shed { retry_after_s } => Some(retry_after_s),
        Refusal::Error => Some(1),
        Refusal::Blocked => None,
    };
    if let Some(s) = retry_after_s {
        buf.clear();
        answer::push_number(buf, s);
        x.set_header("Retry-After", buf);
    }
    x.set_header("Cache-Control", b"no-store");
    if response.body == BodyStyle::Nginx {
        return;
    }
    buf.clear();
    answer::problem(refusal, status, buf);
    let n = buf.len().min(out.body.len());
    out.body[..n].copy_from_slice(&buf[..n]);
    out.body_len = n as u32;
    x.set_header("Content-Type", PROBLEM_TYPE.as_bytes());
    buf.clear();
    answer::push_number(buf, n as u64);
    x.set_header("Content-Length", buf);
}
