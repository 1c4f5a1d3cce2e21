//! Group commit: decisions that come while a call is under way gather, and
//! the next call takes them all.
//!
//! A decision that finds nothing under way is sent at once: nothing waits for
//! a timer, and the busier Redis is the more of them share a call, a reply, and a
//! wake-up on both sides. Each keeps its own deadline, answer and all-or-nothing;
//! what one call is told by an error, all in it are told.
//!
//! A call holds Redis for as long as its buckets take, so it carries at most
//! `MOST_BUCKETS`; a decision over more goes alone.
use super::client::{Inner, late};
use super::errors::{Judgement, StoreError, judge};
use super::scripts::{self, Asks, BUCKET, MOST_BUCKETS, Reply};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Weak;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout_at;

/// What is to be decided.
pub struct Question {
    pub asks: Asks,
    pub deadline: Instant,
    pub asked: Instant,
    pub whom: Whom,
}

/// Who wants to know.
pub enum Whom {
    /// By the client's outlet, under this number.
    Ticket(u64),
    Caller(oneshot::Sender<Result<Reply, StoreError>>),
    /// Whoever it was has been told.
    Nobody,
}

impl Question {
    fn waits(&self) -> bool {
        match &self.whom {
            Whom::Ticket(_) => true,
            Whom::Caller(caller) => !caller.is_closed(),
            Whom::Nobody => false,
        }
    }
}

/// The answer to a `Whom::Ticket`.
pub struct Answered {
    pub ticket: u64,
    pub took: Duration,
    pub result: Result<Reply, StoreError>,
    /// What was asked goes back to whom it belongs: what one thread allocates and another frees
    /// costs both of them several times as much.
    pub asks: Asks,
}

/// Takes what has been answered, all of a call at once.
pub type Outlet = Box<dyn Fn(&mut Vec<Answered>)>;

/// Where questions gather. Any thread may ask.
#[derive(Default)]
pub struct Door {
    inside: Mutex<Inside>,
    wake: Notify,
}

#[derive(Default)]
struct Inside {
    waiting: VecDeque<Question>,
    /// Nobody looks before he is woken.
    asleep: bool,
}

impl Door {
    pub fn ask(&self, question: Question) {
        let mut inside = self.inside.lock();
        inside.waiting.push_back(question);
        let wake = std::mem::take(&mut inside.asleep);
        drop(inside);
        if wake {
            self.wake.notify_one();
        }
    }

    /// Waits for questions and moves as many as go into one call.
    pub async fn take(&self, into: &mut Vec<Question>) {
        loop {
            {
                let mut inside = self.inside.lock();
                let mut room = MOST_BUCKETS;
                while let Some(first) = inside.waiting.front() {
                    let buckets = first.asks.len();
                    // What is not to share a call: nothing, or too much.
                    let alone = !(1..=MOST_BUCKETS).contains(&buckets);
                    if !into.is_empty() && (alone || buckets > room) {
                        break;
                    }
                    into.extend(inside.waiting.pop_front());
                    if alone {
                        break;
                    }
                    room -= buckets;
                }
                if !into.is_empty() {
                    return;
                }
                inside.asleep = true;
            }
            self.wake.notified().await;
        }
    }
}

/// Makes one call after the other, as long as the client lives.
pub(super) async fn serve(client: Weak<Inner>, door: Arc<Door>) {
    let mut questions = Vec::new();
    loop {
        door.take(&mut questions).await;
        let Some(inner) = client.upgrade() else {
            return;
        };
        let mut call = Call {
            inner: &inner,
            questions: std::mem::take(&mut questions),
            answered: Vec::new(),
        };
        call.make().await;
        call.hand_over();
        questions = call.questions;
        questions.clear();
    }
}

/// The decisions that share a call.
struct Call<'a> {
    inner: &'a Inner,
    questions: Vec<Question>,
    /// For the outlet.
    answered: Vec<Answered>,
}

impl Call<'_> {
    async fn make(&mut self) {
        let inner = self.inner;
        let mut again = true;
        loop {
            let link = match self.patiently(inner.connected()).await {
                None => return,
                Some(Ok(link)) => link,
                Some(Err(error)) => return self.tell_all(&Err(error)),
            };
            // Who has given up while it gathered or connected is not charged.
            self.expire();
            self.questions.retain(Question::waits);
            if self.questions.is_empty() {
                return;
            }
            let asks: Vec<_> = self.questions.iter().map(|it| &*it.asks).collect();
            // Whose time is over meanwhile has been given its question back by then.
            let buckets: Vec<_> = asks.iter().map(|it| it.len()).collect();
            let call = BUCKET.call(&scripts::group_arguments(&asks));
            let written = link.written();
            let _under_way = link.call();
            let mut mux = link.mux();
            match self.patiently(BUCKET.run(&mut mux, &call)).await {
                None => return,
                Some(Ok(value)) => {
                    link.note_reply();
                    inner.breaker.borrow_mut().success();
                    return match scripts::group_reply(&value, buckets.into_iter()) {
                        Some(replies) => self.tell_each(replies),
                        None => self.fail(&foreign()),
                    };
                }
                Some(Err(error)) => {
                    let judgement = judge(&error);
                    if error.is_io_error() {
                        link.close();
                        if again && link.written() == written {
                            again = false;
                            continue;
                        }
                    } else {
                        link.note_reply();
                        if judgement.reconnect {
                            link.close();
                        }
                    }
                    return self.fail(&judgement);
                }
            }
        }
    }

    /// Waits as long as anybody does; tells each whose time is over. `None`: nobody is left.
    async fn patiently<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            let waiting = self.questions.iter().filter(|it| it.waits());
            let next = waiting.map(|it| it.deadline).min()?;
            match timeout_at(next.into(), work.as_mut()).await {
                Ok(done) => return Some(done),
                Err(_) => self.expire(),
            }
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        for n in 0..self.questions.len() {
            if self.questions[n].waits() && self.questions[n].deadline <= now {
                let error = self.inner.failed(&late());
                self.tell(n, Err(error), now);
            }
        }
        // Not with the last of the call: their time is over now.
        self.hand_over();
    }

    /// What went wrong went wrong for each.
    fn fail(&mut self, judgement: &Judgement) {
        let now = Instant::now();
        for n in 0..self.questions.len() {
            if self.questions[n].waits() {
                let error = self.inner.failed(judgement);
                self.tell(n, Err(error), now);
            }
        }
    }

    fn tell_all(&mut self, result: &Result<Reply, StoreError>) {
        let now = Instant::now();
        for n in 0..self.questions.len() {
            self.tell(n, result.clone(), now);
        }
    }

    fn tell_each(&mut self, replies: Vec<Reply>) {
        let now = Instant::now();
        for (n, reply) in replies.into_iter().enumerate() {
            self.tell(n, Ok(reply), now);
        }
    }

    fn tell(&mut self, n: usize, result: Result<Reply, StoreError>, now: Instant) {
        let question = &mut self.questions[n];
        match std::mem::replace(&mut question.whom, Whom::Nobody) {
            Whom::Ticket(ticket) => self.answered.push(Answered {
                ticket,
                took: now.saturating_duration_since(question.asked),
                result,
                asks: std::mem::take(&mut question.asks),
            }),
            // Who asked may be gone.
            Whom::Caller(caller) => drop(caller.send(result)),
            Whom::Nobody => {}
        }
    }

    fn hand_over(&mut self) {
        if !self.answered.is_empty() {
            (self.inner.outlet)(&mut self.answered);
            self.answered.clear();
        }
    }
}

fn foreign() -> Judgement {
    Judgement {
        error: StoreError::Script("Redis answers the bucket script with something else".to_owned()),
        definite: false,
        reconnect: true,
    }
}
