//! Whose turn it is among those that share: start-time fair queueing (Goyal,
//! Vin and Cheng, 1996).
//!
//! In the long run everybody gets what deficit round robin would give, served
//! cost by weight. But where that goes round until a deficit has grown to the
//! cost of one request (a search of two seconds among pages of a millisecond:
//! two thousand rounds), here everybody has a tag, the virtual time at which its
//! next request may start; the least tag is served and moves on by cost / weight.
//! Nobody saves up: who comes back starts at the present virtual time, and who is
//! in debt stays so until virtual time has passed it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Fair<const N: usize> {
    tags: [f64; N],
    /// The tag that was served last.
    time: f64,
    /// The greatest tag since anybody waited.
    greatest: f64,
}

impl<const N: usize> Fair<N> {
    pub(super) const fn new() -> Self {
        Fair {
            tags: [0.0; N],
            time: 0.0,
            greatest: 0.0,
        }
    }

    /// Nobody waits any more: all debts are forgiven, as nobody is left to whom
    /// they were owed.
    pub(super) fn settle(&mut self) {
        self.time = self.greatest;
        if !self.time.is_finite() {
            *self = Self::new();
        }
    }

    /// `who` begins to wait.
    pub(super) fn join(&mut self, who: usize) {
        if let Some(tag) = self.tags.get_mut(who) {
            *tag = tag.max(self.time);
        }
    }

    /// The least tag; among equals the first.
    pub(super) fn next(&self, waiting: impl Iterator<Item = usize>) -> Option<usize> {
        let mut best = None;
        for who in waiting {
            let tag = self.tags.get(who)?;
            if best.is_none_or(|(_, least)| *tag < least) {
                best = Some((who, *tag));
            }
        }
        best.map(|(who, _)| who)
    }

    /// `who` is served; `cost` is divided by its weight.
    pub(super) fn charge(&mut self, who: usize, cost: f64) {
        if let Some(tag) = self.tags.get_mut(who) {
            self.time = self.time.max(*tag);
            *tag += cost;
            self.greatest = self.greatest.max(*tag);
        }
    }
}

#[cfg(test)]
impl<const N: usize> Fair<N> {
    pub(super) fn scramble(&mut self, bits: &mut dyn FnMut() -> u64) {
        self.tags = std::array::from_fn(|_| f64::from_bits(bits()));
        self.time = f64::from_bits(bits());
        self.greatest = f64::from_bits(bits());
    }
}
