//! `<prefix>:gateways`: who is alive, by Redis's clock, in whole seconds.
use super::read::{Failure, Read, ask_all, one};
use crate::redis::connect::Link;
use redis::{Pipeline, Value, pipe};
use std::time::{Duration, Instant};

pub(super) const BEAT: Duration = Duration::from_secs(10);
/// Three beats missed: dead.
const DEAD_S: u64 = 30;
/// The key goes with the last gateway.
const EXPIRE_S: u64 = 60;

pub(super) struct Heart {
    key: String,
    id: String,
    last: Option<Instant>,
}

impl Heart {
    pub fn new(key: String, id: &str) -> Heart {
        Heart {
            key,
            id: id.to_owned(),
            last: None,
        }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    /// Beats when it is time, and counts who is alive.
    pub async fn beat(&mut self, link: &Link, now_us: u64) -> Read<u32> {
        let now_s = now_us / 1_000_000;
        let mut commands = pipe();
        // A little early rather than at the next look.
        let due = self
            .last
            .is_none_or(|last| last.elapsed() >= BEAT.mul_f64(0.9));
        if due {
            self.announce(&mut commands, now_s);
        }
        let oldest = now_s.saturating_sub(DEAD_S);
        commands
            .cmd("ZCOUNT")
            .arg(&self.key)
            .arg(oldest)
            .arg("+inf");
        let mut answers = ask_all(link, &commands).await?;
        let count = answers.pop();
        for answer in answers {
            one("ZADD, ZREMRANGEBYSCORE or EXPIRE", answer)?;
        }
        match count.map(|count| one("ZCOUNT", count)).transpose()? {
            Some(Value::Int(count)) => {
                if due {
                    self.last = Some(Instant::now());
                }
                Ok(u32::try_from(count).unwrap_or(u32::MAX))
            }
            _ => Err(Failure::Wrong(
                "ZCOUNT is answered with something else".to_owned(),
            )),
        }
    }

    fn announce(&self, commands: &mut Pipeline, now_s: u64) {
        commands.cmd("ZADD").arg(&self.key).arg(now_s).arg(&self.id);
        let dead = now_s.saturating_sub(DEAD_S + 1);
        commands
            .cmd("ZREMRANGEBYSCORE")
            .arg(&self.key)
            .arg("-inf")
            .arg(dead);
        // From before the clock was set back.
        commands
            .cmd("ZREMRANGEBYSCORE")
            .arg(&self.key)
            .arg(now_s + DEAD_S)
            .arg("+inf");
        commands.cmd("EXPIRE").arg(&self.key).arg(EXPIRE_S);
    }
}
