//! Which requests an entry is for.

/// A compiled `match` or `unless`.
#[derive(Clone, Debug)]
pub struct Matcher {}
