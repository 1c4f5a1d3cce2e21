//! One entry of a list.
use std::fmt;

/// Whom an entry is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A single address is a /32 or a /128.
    Net(ipnet::IpNet),
    User(Vec<u8>),
}

/// Why a text is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryError {
    Empty,
}

impl fmt::Display for EntryError {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}

impl Subject {
    /// The canonical member of a list: `203.0.113.9`, `10.0.0.0/8`, `user:alice`.
    pub fn member(&self) -> Vec<u8> {
        todo!()
    }
}

/// Reads an address, a CIDR or `user:<id>`.
pub fn parse(_text: &[u8]) -> Result<Subject, EntryError> {
    todo!()
}

/// What a list file holds.
#[derive(Clone, Debug, Default)]
pub struct FileEntries {
    pub subjects: Vec<Subject>,
    /// The first 10 bad lines: their numbers, from 1, and what is wrong with them.
    pub rejected: Vec<(usize, String)>,
    pub rejected_count: usize,
    /// Lines that are neither blank nor a comment.
    pub lines: usize,
}

impl FileEntries {
    /// More than half of the lines are bad: the list's old content should stay.
    pub fn mostly_bad(&self) -> bool {
        self.rejected_count * 2 > self.lines
    }
}

/// Reads a list file: one entry a line, `#` starts a comment.
pub fn parse_file(_bytes: &[u8]) -> FileEntries {
    todo!()
}

/// `0.0.0.0/0` or `::/0`.
pub fn is_everything(_subject: &Subject) -> bool {
    todo!()
}
