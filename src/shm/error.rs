//! What goes wrong here, said as a colleague would say it.

/// A sentence: what was wrong, where, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(pub String);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// `error!("…", …)`: an [`Error`] of that text.
macro_rules! error {
    ($($arg:tt)*) => { $crate::shm::Error(format!($($arg)*)) };
}
pub(crate) use error;
