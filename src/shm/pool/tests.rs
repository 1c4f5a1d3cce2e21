use super::*;

impl PoolHead {
    pub fn set_last(&self, ns: u64) {
        self.last_ns.store(ns, Relaxed);
    }

    pub fn lose(&self) {
        self.lock.lose();
    }
}

impl Place<'_> {
    /// As a holder that dies at the worst moment leaves them.
    pub fn forget_bits(self) {
        self.head.bits.iter().for_each(|w| w.store(0, Relaxed));
        self.head.deferred.store(0, Relaxed);
    }
}

#[test]
fn what_is_deferred_fits_in_a_word() {
    let release = |feedback, abandoned| {
        Deferred::Release(Completion {
            feedback,
            abandoned,
        })
    };
    let long = Nanos(RESPONSE_MAX * RESPONSE_UNIT_NS);
    for deferred in [
        Deferred::Leave,
        Deferred::GiveUp { level: 0 },
        Deferred::GiveUp { level: 15 },
        release(Feedback::None, false),
        release(Feedback::Error, true),
        release(Feedback::Response(Nanos(0)), false),
        release(Feedback::Response(Nanos(20_000_000)), true),
        release(Feedback::Response(long), false),
    ] {
        for generation in [0, 1, u32::MAX] {
            let word = pack(generation, deferred);
            assert_ne!(word & SET, 0);
            let (g, d) = unpack(word);
            assert_eq!((g, format!("{d:?}")), (generation, format!("{deferred:?}")));
        }
    }
    let longer = release(Feedback::Response(Nanos(u64::MAX)), false);
    let (_, d) = unpack(pack(1, longer));
    let cut = release(Feedback::Response(long), false);
    assert_eq!(format!("{d:?}"), format!("{cut:?}"));
    assert!(long.0 > 17 * 60_000_000_000);
}
