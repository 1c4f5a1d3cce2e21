//! Priority levels: 0 is the most important, and only for verified users.

/// How many levels there are, and the one of a request that no rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    pub levels: u8,
    pub default: u8,
}

/// The level of a request: the rule's (else the default) less `raise` and
/// `intent`, clamped to the levels, plus `suspicion`, clamped again; then 0
/// without a verified user is 1.
pub fn level(
    rule_level: Option<u8>,
    raise: i32,
    intent: u8,
    suspicion: u8,
    has_user: bool,
    levels: &Levels,
) -> u8 {
    let lowest = i64::from(levels.levels.max(1)) - 1;
    let start = i64::from(rule_level.unwrap_or(levels.default));
    let lifted = (start - i64::from(raise) - i64::from(intent)).clamp(0, lowest);
    let level = (lifted + i64::from(suspicion)).clamp(0, lowest);
    let level = u8::try_from(level).unwrap_or(u8::MAX);
    if level == 0 && !has_user { 1 } else { level }
}
