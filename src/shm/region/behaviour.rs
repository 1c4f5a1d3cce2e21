//! Who a request is of, and what is known of them.
use super::Region;
use crate::shm::behaviour::{Behaviour, Intents, Suspects};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

impl Region {
    /// Names a client or user by the bytes of its key; keyed, so that nobody can
    /// aim at another's, and the same on all workers of this region. `salt`
    /// parts what is not to be compared.
    pub fn identity(&self, salt: u64, key: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.seed[0], self.seed[1]);
        hasher.write(b"identity\0");
        hasher.write_u64(salt);
        hasher.write(key);
        hasher.finish()
    }

    pub fn behaviour(&self) -> Behaviour<'_> {
        let (intents, suspects) = self.layout.behaviour_sets;
        let at = self.layout.behaviour_at;
        Behaviour {
            intents: self.memory.slice::<Intents>(at, intents),
            suspects: self
                .memory
                .slice::<Suspects>(at + intents * size_of::<Intents>(), suspects),
        }
    }
}
