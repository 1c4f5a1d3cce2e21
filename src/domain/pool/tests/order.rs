//! Who is served when.
use super::*;

#[test]
fn a_slot_is_given_while_there_is_one() {
    let mut bed = Bed::new(&settings(2));
    let first = bed.admit(1, 1);
    bed.admit(3, 2);
    let waiting = bed.queue(0, 3);
    assert_eq!(bed.view().in_flight, 2);
    assert_eq!(bed.view().waiting, [1, 0, 0, 0]);
    assert_eq!(bed.wakes, Wakes::default());
    bed.release(first);
    assert!(bed.wakes.has(0));
    let news = bed.collect();
    assert_eq!(news.len(), 1);
    assert_eq!((news[0].entry, news[0].notice), (waiting, Notice::Granted));
    assert_eq!(bed.view().in_flight, 2);
    // Late, and twice.
    bed.release(first);
    assert_eq!(bed.view().in_flight, 2);
}
