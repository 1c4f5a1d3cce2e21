//! Whether one matcher holds for every request that another holds for: for
//! warnings, so what is not plain counts as no.
use super::{HeaderCondition, HostPattern, Matcher, PathPattern, PathTest, Wanted};

impl Matcher {
    /// `true` only if every request that hits `other` hits `self`.
    pub fn covers(&self, other: &Matcher) -> bool {
        each_in(&other.methods, &self.methods, |one, all| one == all)
            && each_in(&other.paths, &self.paths, |one, all| all.covers(one))
            && each_in(&other.hosts, &self.hosts, |one, all| all.covers(one))
            && self
                .headers
                .iter()
                .all(|wide| other.headers.iter().any(|one| wide.covers(one)))
    }
}

/// Every alternative of the narrow condition lies in one of the wide condition.
fn each_in<T>(narrow: &Option<Vec<T>>, wide: &Option<Vec<T>>, within: fn(&T, &T) -> bool) -> bool
where
    T: Everything,
{
    let Some(wide) = wide else { return true };
    if wide.iter().any(T::is_everything) {
        return true;
    }
    let Some(narrow) = narrow else { return false };
    narrow
        .iter()
        .all(|one| wide.iter().any(|all| within(one, all)))
}

trait Everything {
    fn is_everything(&self) -> bool {
        false
    }
}

impl Everything for String {}

impl Everything for HostPattern {}

impl Everything for PathPattern {
    /// `/*`: every path starts with a slash.
    fn is_everything(&self) -> bool {
        matches!(self.test, PathTest::Prefix(0))
    }
}

impl PathPattern {
    fn covers(&self, one: &PathPattern) -> bool {
        match &one.test {
            PathTest::Exact => self.holds(one.text.as_bytes()),
            PathTest::Prefix(length) => match &self.test {
                PathTest::Prefix(_) => self.holds(&one.text.as_bytes()[..*length]),
                PathTest::Exact | PathTest::Regex(_) => false,
            },
            PathTest::Regex(_) => self.text == one.text,
        }
    }
}

impl HostPattern {
    fn covers(&self, one: &HostPattern) -> bool {
        match (self, one) {
            (_, HostPattern::Exact(name)) => self.holds(name.as_bytes()),
            (HostPattern::Exact(_), _) => false,
            (HostPattern::Below(wide), HostPattern::Both(narrow)) => {
                narrow.len() > wide.len() && narrow.ends_with(wide.as_str())
            }
            (
                HostPattern::Below(wide) | HostPattern::Both(wide),
                HostPattern::Below(narrow) | HostPattern::Both(narrow),
            ) => narrow.ends_with(wide.as_str()),
        }
    }
}

impl HeaderCondition {
    fn covers(&self, one: &HeaderCondition) -> bool {
        self.name == one.name
            && match (&self.wanted, &one.wanted) {
                (Wanted::Present, _) => true,
                (Wanted::AnyOf(_), Wanted::Present) => false,
                (Wanted::AnyOf(wide), Wanted::AnyOf(narrow)) => {
                    narrow.iter().all(|value| wide.contains(value))
                }
            }
    }
}
