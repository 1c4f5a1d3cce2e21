//! Priority levels: 0 is the most important, and only for verified users.

pub mod suspicion;

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_formula() {
        let four = Levels {
            levels: 4,
            default: 3,
        };
        // rule's level, raise, intent, suspicion, user, level
        let rows = [
            ("no rule: the default", None, 0, 0, 0, false, 3),
            ("the rule's", Some(2), 0, 0, 0, false, 2),
            ("0 needs a user", Some(0), 0, 0, 0, false, 1),
            ("0 with one", Some(0), 0, 0, 0, true, 0),
            ("a raise", None, 2, 0, 0, true, 1),
            ("no higher than 0", None, 9, 1, 0, true, 0),
            ("a raise down", Some(1), -9, 0, 0, true, 3),
            ("intent", Some(2), 0, 1, 0, true, 1),
            ("suspicion after the clamp", Some(1), 9, 0, 2, true, 2),
            ("no lower than the lowest", Some(3), 0, 0, 9, false, 3),
            ("the extremes", Some(3), i32::MAX, u8::MAX, u8::MAX, true, 3),
            ("the extremes", Some(3), i32::MIN, 0, 0, true, 3),
        ];
        for (why, rule, raise, intent, suspicion, user, expected) in rows {
            assert_eq!(
                level(rule, raise, intent, suspicion, user, &four),
                expected,
                "{why}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_level_there_is(rule in proptest::option::of(any::<u8>()), raise: i32, intent: u8,
                            suspicion: u8, user: bool, levels in 2u8..=16) {
            let levels = Levels { levels, default: levels - 1 };
            let found = level(rule, raise, intent, suspicion, user, &levels);
            prop_assert!(found < levels.levels);
            prop_assert!(user || found > 0);
            // More suspicion never helps.
            let worse = level(rule, raise, intent, suspicion.saturating_add(1), user, &levels);
            prop_assert!(worse >= found);
        }
    }
}
