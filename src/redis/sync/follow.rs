//! One connection that watches some keys and reads them when they change.
use super::heartbeat::{BEAT, Heart};
use super::read::{self, Failure, Read, ask, ask_all, one};
use super::state::State;
use super::{ServerId, Sink, Which};
use crate::redis::connect::{Connector, Link};
use redis::{Value, cmd, pipe};
use std::time::{Duration, Instant};
use tokio::time::{sleep, sleep_until, timeout};

/// To connect and log in.
const CONNECT: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// All is read and handed over once in a while, whatever `EXEC` says: whatever was missed
/// or could not be published mends itself.
const AGAIN: Duration = Duration::from_secs(600);
/// Ended bans are taken out of Redis when there are so many, and they are a quarter of all.
const STALE_BANS: usize = 1000;
/// How long a ban must have ended for that, whatever the clocks say.
const STALE_S: f64 = 60.0;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// Configuration, bans, and the heartbeat.
    Live,
    Lists,
}

/// For ever: connects, watches, and connects again.
pub(super) async fn follow<S: Sink>(
    connector: &Connector,
    state: &State<S>,
    group: Group,
    gateway_id: Option<&str>,
) {
    let mut heart = gateway_id.map(|id| Heart::new(state.key("gateways"), id));
    let mut pause = FIRST_PAUSE;
    loop {
        let start = Instant::now();
        let problem = match session(connector, state, group, &mut heart).await {
            Failure::Broken(problem) | Failure::Wrong(problem) => problem,
        };
        state.unreachable(group as usize, Some(problem));
        // What worked for a while is tried again at once.
        pause = if start.elapsed() > Duration::from_secs(2) {
            FIRST_PAUSE
        } else {
            pause
        };
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

struct Session<'a, S> {
    state: &'a State<S>,
    group: Group,
    link: Link,
    server: ServerId,
    /// Everything that may be kept after a restart.
    all: [String; 4],
    /// Redis's time of the last look.
    now_us: u64,
}

/// One connection from its beginning to its end, which is always a failure.
async fn session<S: Sink>(
    connector: &Connector,
    state: &State<S>,
    group: Group,
    heart: &mut Option<Heart>,
) -> Failure {
    match begin(connector, state, group).await {
        Ok(mut session) => match session.follow(heart).await {
            Ok(never) => match never {},
            Err(failure) => failure,
        },
        Err(failure) => failure,
    }
}

async fn begin<'a, S: Sink>(
    connector: &Connector,
    state: &'a State<S>,
    group: Group,
) -> Read<Session<'a, S>> {
    let link = match timeout(CONNECT, connector.open()).await {
        Err(_) => return Err(Failure::Broken("no connection within 1 s".to_owned())),
        Ok(link) => link.map_err(|error| Failure::Broken(error.to_string()))?,
    };
    let run_id = match read::run_id(&link).await {
        Ok(run_id) => {
            state.wrong("INFO", None);
            run_id
        }
        Err(Failure::Wrong(problem)) => {
            let so = "so a restart that lost everything looks like a reconnect: when all keys are \
                      gone after one, the last state stays in force";
            state.wrong("INFO", Some(format!("{problem}; {so}")));
            String::new()
        }
        Err(broken) => return Err(broken),
    };
    let all = [
        state.key("config"),
        state.list_key(Which::Allow),
        state.list_key(Which::Block),
        state.list_key(Which::Bans),
    ];
    let server = state.server(&run_id);
    Ok(Session {
        state,
        group,
        link,
        server,
        all,
        now_us: 0,
    })
}

enum Never {}

impl<S: Sink> Session<'_, S> {
    fn keys(&self) -> [String; 2] {
        let [config, allow, block, bans] = self.all.clone();
        match self.group {
            Group::Live => [config, bans],
            Group::Lists => [allow, block],
        }
    }

    async fn follow(&mut self, heart: &mut Option<Heart>) -> Read<Never> {
        let watch = cmd("WATCH").arg(&self.keys()).take();
        ask(&self.link, &watch).await?;
        self.now_us = time(ask(&self.link, &cmd("TIME")).await?)?;
        // Until something has been read on this connection.
        let mut fresh = true;
        let mut whole = Instant::now();
        let mut unread = [true, true];
        loop {
            let start = Instant::now();
            self.beat(heart).await?;
            if fresh && self.state.restarted(&self.server) && !self.any().await? {
                self.state.keep(true);
            } else if unread != [false, false] {
                self.state.keep(false);
                let again = whole.elapsed() >= AGAIN;
                if again {
                    whole = start;
                }
                unread = self.read(unread, again).await?;
                fresh = false;
            }
            self.state.unreachable(self.group as usize, None);
            // At least as long a pause as the reading took, so that a list
            // that never rests does not take all of Redis's time.
            let interval = match self.group {
                Group::Live => self.state.interval.min(BEAT),
                Group::Lists => self.state.interval,
            };
            let pause = interval.max(2 * start.elapsed());
            sleep_until((start + pause).into()).await;
            if self.changed().await? || whole.elapsed() >= AGAIN {
                unread = [true, true];
            }
        }
    }

    /// Whether a watched key was written since the last call; they are watched on.
    async fn changed(&mut self) -> Read<bool> {
        let mut commands = pipe();
        commands
            .cmd("MULTI")
            .cmd("EXEC")
            .cmd("WATCH")
            .arg(&self.keys())
            .cmd("TIME");
        let mut answers = ask_all(&self.link, &commands).await?.into_iter();
        let mut next = |command| one(command, answers.next().unwrap_or(Value::Nil));
        next("MULTI")?;
        let executed = next("EXEC")?;
        next("WATCH")?;
        self.now_us = time(next("TIME")?)?;
        Ok(executed == Value::Nil)
    }

    async fn any(&self) -> Read<bool> {
        Ok(ask(&self.link, cmd("EXISTS").arg(&self.all)).await? != Value::Int(0))
    }

    async fn beat(&mut self, heart: &mut Option<Heart>) -> Read<()> {
        let Some(heart) = heart else { return Ok(()) };
        match heart.beat(&self.link, self.now_us).await {
            Ok(count) => {
                self.state.wrong(heart.key(), None);
                self.state.gateways(count);
                Ok(())
            }
            Err(Failure::Wrong(problem)) => {
                let so = "the number of gateways is the last one known";
                self.state
                    .wrong(heart.key(), Some(format!("{problem}; {so}")));
                Ok(())
            }
            Err(broken) => Err(broken),
        }
    }

    /// Reads the keys that are `unread` and hands over what has changed, or all
    /// of it (`again`). Returns what could not be read, to be tried at the next interval.
    async fn read(&mut self, unread: [bool; 2], again: bool) -> Read<[bool; 2]> {
        let mut left = [false, false];
        let mut handed = false;
        for (index, key) in self.keys().iter().enumerate() {
            if !unread[index] {
                continue;
            }
            let which = match (self.group, index) {
                (Group::Live, 0) => None,
                (Group::Live, _) => Some(Which::Bans),
                (Group::Lists, 0) => Some(Which::Allow),
                (Group::Lists, _) => Some(Which::Block),
            };
            let read = match which {
                None => self.read_config(key, again).await,
                Some(which) => self.read_list(key, which, again).await,
            };
            match read {
                Ok(new) => {
                    self.state.wrong(key, None);
                    handed |= new;
                }
                Err(Failure::Wrong(problem)) => {
                    let so = "what was read of it before stays in force";
                    self.state.wrong(key, Some(format!("{problem}; {so}")));
                    left[index] = true;
                }
                Err(broken) => {
                    if handed {
                        self.state.round_done(&self.server);
                    }
                    return Err(broken);
                }
            }
        }
        if handed {
            self.state.round_done(&self.server);
        }
        Ok(left)
    }

    async fn read_config(&self, key: &str, again: bool) -> Read<bool> {
        let fields = read::hash(&self.link, key).await?;
        Ok(self
            .state
            .hand_config(&self.server, fields, self.now_us, again))
    }

    async fn read_list(&self, key: &str, which: Which, again: bool) -> Read<bool> {
        let entries = read::list(&self.link, key).await?;
        if which == Which::Bans {
            let mut ended: Vec<f64> = entries.iter().map(|(_, until)| until).collect();
            let now_s = self.now_us as f64 / 1e6;
            ended.retain(|until| *until < now_s - STALE_S);
            if ended.len() > STALE_BANS && 4 * ended.len() > entries.len() {
                self.clear(key, ended).await?;
            }
        }
        Ok(self.state.hand_list(which, entries, again))
    }

    /// Takes ended bans out, in steps that do not hold Redis. By score, so that
    /// one that was renewed meanwhile stays.
    async fn clear(&self, key: &str, mut ended: Vec<f64>) -> Read<()> {
        ended.sort_unstable_by(f64::total_cmp);
        for step in ended.chunks(STALE_BANS) {
            let Some(last) = step.last() else { break };
            let mut command = cmd("ZREMRANGEBYSCORE");
            match ask(&self.link, command.arg(key).arg("-inf").arg(*last)).await {
                Ok(_) => {}
                // Nobody depends on it.
                Err(Failure::Wrong(_)) => break,
                Err(broken) => return Err(broken),
            }
        }
        Ok(())
    }
}

fn time(value: Value) -> Read<u64> {
    let wrong = || Failure::Wrong("TIME is answered with something else".to_owned());
    read::time_us(&value).ok_or_else(wrong)
}
