//! Sleeping to the tenth of a millisecond. The runtime's own timers have steps of one, which
//! bunches what a backend finishes: two requests that end in the same step begin their
//! successors in the same step, and so never come apart again.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

struct Alarm {
    at: Instant,
    bell: oneshot::Sender<()>,
}

/// The soonest is the greatest, as the heap wants it.
impl Ord for Alarm {
    fn cmp(&self, other: &Alarm) -> Ordering {
        other.at.cmp(&self.at)
    }
}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Alarm) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Alarm) -> bool {
        self.at == other.at
    }
}

impl Eq for Alarm {}

type Alarms = (Mutex<BinaryHeap<Alarm>>, Condvar);

/// A thread that wakes whoever sleeps.
pub struct Sleeper(Arc<Alarms>);

impl Sleeper {
    pub fn start() -> Sleeper {
        let alarms = Arc::new(Alarms::default());
        let its = alarms.clone();
        thread::spawn(move || ring(&its));
        Sleeper(alarms)
    }

    pub async fn sleep(&self, how_long: Duration) {
        let at = Instant::now() + how_long;
        let (bell, rung) = oneshot::channel();
        let soonest = {
            let mut alarms = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
            alarms.push(Alarm { at, bell });
            alarms.peek().is_some_and(|alarm| alarm.at == at)
        };
        if soonest {
            self.0.1.notify_one();
        }
        let _ = rung.await;
    }
}

fn ring((alarms, changed): &Alarms) {
    let mut alarms = alarms.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let now = Instant::now();
        while let Some(alarm) = alarms.pop() {
            if alarm.at > now {
                alarms.push(alarm);
                break;
            }
            // Err: nobody sleeps any more.
            let _ = alarm.bell.send(());
        }
        let left = alarms
            .peek()
            .map_or(Duration::from_secs(3600), |alarm| alarm.at - now);
        let waited = changed.wait_timeout(alarms, left);
        alarms = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_wake_in_the_order_of_their_times_and_not_too_soon() {
        crate::on_this_thread(async {
            let sleeper = std::rc::Rc::new(Sleeper::start());
            let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
            let tasks = [30, 10, 20].map(|ms| {
                let (sleeper, order) = (sleeper.clone(), order.clone());
                tokio::task::spawn_local(async move {
                    let begun = Instant::now();
                    sleeper.sleep(Duration::from_millis(ms)).await;
                    assert!(begun.elapsed() >= Duration::from_millis(ms));
                    order.borrow_mut().push(ms);
                })
            });
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*order.borrow(), [10, 20, 30]);
        })
        .unwrap();
    }
}
