//! What lies beside the region: published files, and bans of the local store.
use super::{Files, Region, unix_now};
use crate::domain::entry::Subject;
use crate::shm::Error;
use crate::shm::error::error;
use crate::shm::published::{self, Kind, Mapped};
use std::net::IpAddr;
use std::sync::atomic::Ordering::*;

impl Region {
    /// Publishes bytes for all workers; for a worker only, since what the
    /// master makes belongs to root. Errors: no room, directory not writable;
    /// what was published before stays.
    pub fn publish(&self, kind: Kind, bytes: &[u8]) -> Result<u64, Error> {
        let number = &self.header().published[kind as usize];
        match &self.files {
            Files::Disk { path, .. } => published::publish(path, kind, number, bytes),
            Files::Heap(files) => {
                let mut files = files.lock();
                // Relaxed: in the mutex.
                let next = number.load(Relaxed) + 1;
                files.retain(|(k, n, _)| *k != kind || *n + 1 == next);
                files.push((kind, next, bytes.to_vec()));
                number.store(next, Release);
                Ok(next)
            }
        }
    }

    /// The number in force; 0: none yet. Numbers rise, not always by one.
    pub fn published(&self, kind: Kind) -> u64 {
        // Acquire: with the release in `publish`, so that the file is there.
        self.header().published[kind as usize].load(Acquire)
    }

    /// Maps what was published. Gone when two newer ones have come meanwhile:
    /// ask for the number again.
    pub fn open_published(&self, kind: Kind, generation: u64) -> Result<Mapped, Error> {
        match &self.files {
            Files::Disk { path, .. } => published::open(path, kind, generation),
            Files::Heap(files) => files
                .lock()
                .iter()
                .find(|(k, n, _)| (*k, *n) == (kind, generation))
                .map(|(_, _, bytes)| Mapped::from_bytes(bytes))
                .ok_or_else(|| error!("{} {generation} is gone", kind.name())),
        }
    }

    /// Until that Unix second; `u64::MAX`: for ever. Error: 100,000 are in force.
    pub fn ban(&self, subject: &Subject, until_unix: u64) -> Result<(), Error> {
        self.bans.ban(subject, until_unix, unix_now())
    }

    /// Whether there was such a ban.
    pub fn unban(&self, subject: &Subject) -> Result<bool, Error> {
        Ok(self.bans.unban(subject, unix_now()))
    }

    /// Whether there may be any; near-free, for the request path.
    pub fn any_bans(&self) -> bool {
        self.bans.any()
    }

    pub fn banned_address(&self, ip: IpAddr, now_unix: u64) -> bool {
        self.bans.address(ip, now_unix)
    }

    pub fn banned_user(&self, user: &[u8], now_unix: u64) -> bool {
        self.bans.user(user, now_unix)
    }

    /// How many are in force; counts them, so not for the request path.
    pub fn bans_count(&self) -> u64 {
        self.bans.count(unix_now())
    }
}
