//! Address and user lists: an immutable snapshot.
use super::{Error, Mapped};
use crate::domain::entry::Subject;
use std::net::IpAddr;

/// What an immutable snapshot is built from. The second of each pair is the
/// Unix second at which the entry ends, `u64::MAX` for never. Of duplicates the
/// later end holds.
#[derive(Clone, Debug, Default)]
pub struct ListsInput {
    pub allow: Vec<(Subject, u64)>,
    pub block: Vec<(Subject, u64)>,
    pub bans: Vec<(Subject, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    None,
    Allowed,
    Blocked,
}

/// Distinct entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub allow: u64,
    pub block: u64,
    pub bans: u64,
}

/// Bytes for [`Region::publish`](super::Region::publish).
pub fn build(_input: &ListsInput) -> Vec<u8> {
    todo!()
}

pub struct Lists {
    _mapped: Mapped,
}

impl Lists {
    pub fn new(_mapped: Mapped) -> Result<Lists, Error> {
        todo!()
    }
    /// Lists without an entry, for the time before any was published.
    pub fn empty() -> Lists {
        todo!()
    }
    pub fn address(&self, _ip: IpAddr, _now_unix: u64) -> Standing {
        todo!()
    }
    pub fn user(&self, _user: &[u8], _now_unix: u64) -> Standing {
        todo!()
    }
    pub fn has_user_allow(&self) -> bool {
        todo!()
    }
    pub fn has_users(&self) -> bool {
        todo!()
    }
    pub fn counts(&self) -> Counts {
        todo!()
    }
}
