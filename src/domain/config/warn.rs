//! What is accepted, but worth a word.
use super::{Config, FieldError, ListSource, PoolConfig, Rule};
use crate::domain::entry::{Subject, is_everything};
use crate::domain::key::KeyPart;
use crate::domain::matcher::Matcher;

/// Rules with the paths of their fields.
pub(super) type Placed<'a> = Vec<(String, &'a Rule)>;

pub(super) fn of_file(rules: &[Rule]) -> Placed<'_> {
    rules
        .iter()
        .enumerate()
        .map(|(index, rule)| (format!("rules[{index}]"), rule))
        .collect()
}

pub(super) fn of_sections(config: &Config) -> Vec<FieldError> {
    let mut warnings = Vec::new();
    let mut warn = |field: String, problem: String| warnings.push(FieldError { field, problem });
    for net in &config.client.trusted_proxies {
        if net.prefix_len() == 0 {
            warn(
                "client.trusted_proxies".to_string(),
                format!(
                    "{net} trusts everybody, so clients can choose their address; name the proxies"
                ),
            );
        }
    }
    for (name, sources) in [
        ("blocklist", &config.lists.blocklist),
        ("allowlist", &config.lists.allowlist),
    ] {
        for (index, source) in sources.iter().enumerate() {
            if let ListSource::Entry(subject) = source
                && is_everything(subject)
            {
                warn(format!("lists.{name}[{index}]"), everything(subject));
            }
        }
    }
    if config.store.password_in_url {
        warn(
            "store.url".to_string(),
            "has a password in clear, for whoever may read this; name a variable in password_env \
             or a file in password_file"
                .to_string(),
        );
    }
    if config.store.tls.as_ref().is_some_and(|tls| !tls.verify) {
        warn(
            "store.tls.verify".to_string(),
            "is false, so anybody between here and Redis can read and change everything"
                .to_string(),
        );
    }
    for (index, event) in config.priority.events.iter().enumerate() {
        if event.matcher.covers(&Matcher::default()) && event.unless.is_none() {
            warn(
                format!("priority.events[{index}].match"),
                "holds for every request, so every user has this intent always".to_string(),
            );
        }
    }
    warnings
}

pub(super) fn everything(subject: &Subject) -> String {
    let family = if subject.to_string().contains(':') {
        "IPv6"
    } else {
        "IPv4"
    };
    format!("{subject} is every {family} address")
}

/// Warnings about rules, each in the light of all.
pub(super) fn of_rules(rules: &Placed<'_>) -> Vec<FieldError> {
    let mut warnings = Vec::new();
    let mut warn = |path: &str, problem: &str| {
        warnings.push(FieldError {
            field: format!("{path}.key"),
            problem: problem.to_string(),
        });
    };
    for (path, rule) in rules {
        if !rule.enabled {
            continue;
        }
        if rule.key.contains(&KeyPart::Path) && !rule.matcher.has_path() {
            warn(
                path,
                "has the part path, but match has no path, so the part is always the same",
            );
        }
        let guarded = || {
            rules
                .iter()
                .any(|(_, other)| is_guard(other) && covers(other, rule))
        };
        if is_only_chosen(rule) && !guarded() {
            warn(
                path,
                "has only parts that the client chooses, so a new value is a new bucket; add a rule \
                 for the same requests keyed by ip or [] to bound them",
            );
        }
    }
    warnings
}

/// A client gets as many buckets as it likes.
fn is_only_chosen(rule: &Rule) -> bool {
    rule.key.iter().any(KeyPart::chosen_by_client)
        && !rule
            .key
            .iter()
            .any(|part| matches!(part, KeyPart::Ip | KeyPart::User))
}

/// A rule that bounds a client whatever it sends.
fn is_guard(rule: &Rule) -> bool {
    // The text of a pattern is one of a few, and a user is verified.
    let bounded = |part: &KeyPart| matches!(part, KeyPart::Ip | KeyPart::User | KeyPart::Path);
    rule.enabled
        && !rule.shadow
        && (rule.key.is_empty() || rule.key.contains(&KeyPart::Ip))
        && rule.key.iter().all(bounded)
}

/// Pools with the paths of their fields.
pub(super) type PlacedPools<'a> = Vec<(String, &'a PoolConfig)>;

pub(super) fn pools_of_file(pools: &[PoolConfig]) -> PlacedPools<'_> {
    let placed = |(index, pool)| (format!("pools[{index}]"), pool);
    pools.iter().enumerate().map(placed).collect()
}

/// Pools whose requests an earlier one takes.
pub(super) fn of_pools(pools: &PlacedPools<'_>) -> Vec<FieldError> {
    let mut warnings = Vec::new();
    let enabled: Vec<_> = pools.iter().filter(|(_, pool)| pool.enabled).collect();
    for (index, (path, pool)) in enabled.iter().enumerate() {
        let takes = |(_, wide): &&&(String, &PoolConfig)| {
            covers_all(
                (&wide.matcher, wide.unless.as_ref()),
                (&pool.matcher, pool.unless.as_ref()),
            )
        };
        if let Some((other, wide)) = enabled[..index].iter().find(takes) {
            warnings.push(FieldError {
                field: format!("{path}.match"),
                problem: format!(
                    "never comes to hold, since {other}, {:?}, takes all its requests before; put \
                     the narrower pool first",
                    wide.name
                ),
            });
        }
    }
    warnings
}

fn covers(wide: &Rule, narrow: &Rule) -> bool {
    covers_all(
        (&wide.matcher, wide.unless.as_ref()),
        (&narrow.matcher, narrow.unless.as_ref()),
    )
}

/// `match` and `unless`.
type Condition<'a> = (&'a Matcher, Option<&'a Matcher>);

fn covers_all(wide: Condition<'_>, narrow: Condition<'_>) -> bool {
    let never_less = match (wide.1, narrow.1) {
        (None, _) => true,
        (Some(wide), Some(narrow)) => narrow.covers(wide),
        (Some(_), None) => false,
    };
    never_less && wide.0.covers(narrow.0)
}
