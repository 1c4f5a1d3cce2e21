//! What is accepted, but worth a word.
use super::{Config, FieldError, ListSource, Rule};
use crate::domain::entry::{Subject, is_everything};
use crate::domain::key::KeyPart;

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
    if config.store.tls.as_ref().is_some_and(|tls| !tls.verify) {
        warn(
            "store.tls.verify".to_string(),
            "is false, so anybody between here and Redis can read and change everything"
                .to_string(),
        );
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

fn covers(wide: &Rule, narrow: &Rule) -> bool {
    let never_less = match (&wide.unless, &narrow.unless) {
        (None, _) => true,
        (Some(wide), Some(narrow)) => narrow.covers(wide),
        (Some(_), None) => false,
    };
    never_less && wide.matcher.covers(&narrow.matcher)
}
