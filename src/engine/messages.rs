//! Lines for nginx's error log from threads that nginx does not know: queued
//! here, written by nginx's own thread when the bridge wakes it.
use parking_lot::Mutex;
use std::collections::VecDeque;

/// nginx's levels, as `ngx.log` takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Error = 4,
    Warn = 5,
    Notice = 6,
}

/// More than this many unread lines are dropped, the oldest first, and counted.
const CAPACITY: usize = 256;

#[derive(Default)]
pub struct Messages {
    queue: Mutex<(VecDeque<(Level, String)>, u64)>,
}

impl Messages {
    pub fn push(&self, level: Level, line: String) {
        let mut q = self.queue.lock();
        if q.0.len() == CAPACITY {
            q.0.pop_front();
            q.1 += 1;
        }
        q.0.push_back((level, line));
    }

    pub fn error(&self, line: String) {
        self.push(Level::Error, line);
    }

    pub fn warn(&self, line: String) {
        self.push(Level::Warn, line);
    }

    pub fn notice(&self, line: String) {
        self.push(Level::Notice, line);
    }

    pub fn pop(&self) -> Option<(Level, String)> {
        let mut q = self.queue.lock();
        if q.1 > 0 {
            let lost = std::mem::take(&mut q.1);
            return Some((
                Level::Warn,
                format!("sluice: {lost} earlier lines were dropped"),
            ));
        }
        q.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_order_and_the_oldest_are_dropped_with_a_count() {
        let m = Messages::default();
        for i in 0..CAPACITY + 3 {
            m.warn(i.to_string());
        }
        let first = m.pop().map(|l| l.1);
        assert_eq!(
            first.as_deref(),
            Some("sluice: 3 earlier lines were dropped")
        );
        assert_eq!(m.pop().map(|l| l.1).as_deref(), Some("3"));
    }
}
