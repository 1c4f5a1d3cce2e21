use super::*;
use ipnet::IpNet;
use proptest::prelude::*;

fn net(text: &str) -> Subject {
    Subject::Net(
        text.parse::<IpNet>()
            .expect("the test's own network")
            .trunc(),
    )
}

fn lists(allow: &[(&str, u64)], block: &[(&str, u64)]) -> Lists {
    let read = |l: &[(&str, u64)]| l.iter().map(|(t, u)| (net(t), *u)).collect();
    let input = ListsInput {
        allow: read(allow),
        block: read(block),
        bans: Vec::new(),
    };
    Lists::new(Mapped::from_bytes(&build(&input))).expect("just built")
}

fn ask(l: &Lists, ip: &str) -> Standing {
    l.address(ip.parse().expect("the test's own address"), 1000)
}

const NEVER: u64 = u64::MAX;

#[test]
fn nested_and_neighbouring_networks_do_not_hide_each_other() {
    // FIELD-FAULTS B59.
    let l = lists(
        &[],
        &[("2001:db8:0:7::/64", NEVER), ("2001:db8:0:1::/64", NEVER)],
    );
    assert_eq!(ask(&l, "2001:db8:0:1:2::3"), Standing::Blocked);
    assert_eq!(ask(&l, "2001:db8:0:2::1"), Standing::None);
    let l = lists(
        &[],
        &[
            ("2409:8928:6a00::/39", NEVER),
            ("2409:8928:a000::/39", NEVER),
        ],
    );
    assert_eq!(
        ask(&l, "2409:8928:a0f8:2a57:1:1:d823:4521"),
        Standing::Blocked
    );
    let l = lists(&[], &[("fe80::/32", NEVER)]);
    assert_eq!(ask(&l, "::1"), Standing::None);
}

#[test]
fn the_ends_of_the_address_space_belong_to_it() {
    let l = lists(
        &[],
        &[
            ("0.0.0.0/0", NEVER),
            ("ffff::/16", NEVER),
            ("::/128", NEVER),
        ],
    );
    for ip in [
        "0.0.0.0",
        "255.255.255.255",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        "::",
    ] {
        assert_eq!(ask(&l, ip), Standing::Blocked, "{ip}");
    }
    for ip in ["::1", "fffe::1"] {
        assert_eq!(ask(&l, ip), Standing::None, "{ip}");
    }
}

#[test]
fn an_entry_ends_at_its_time_and_a_wider_one_goes_on() {
    let l = lists(
        &[],
        &[
            ("10.0.0.0/8", 1001),
            ("10.1.0.0/16", 1000),
            ("10.2.0.0/16", NEVER),
        ],
    );
    assert_eq!(
        ask(&l, "10.1.1.1"),
        Standing::Blocked,
        "the wider network still holds"
    );
    let at = |ip: &str, now| l.address(ip.parse().expect("address"), now);
    assert_eq!(at("10.1.1.1", 1001), Standing::None);
    assert_eq!(at("10.2.1.1", NEVER - 1), Standing::Blocked);
}

#[test]
fn allow_beats_block_for_networks_inside_each_other_either_way() {
    let l = lists(&[("10.1.1.1/32", NEVER)], &[("10.0.0.0/8", NEVER)]);
    assert_eq!(ask(&l, "10.1.1.1"), Standing::Allowed);
    assert_eq!(ask(&l, "10.1.1.2"), Standing::Blocked);
    let l = lists(&[("10.0.0.0/8", 1000)], &[("10.1.1.1/32", NEVER)]);
    assert_eq!(
        ask(&l, "10.1.1.1"),
        Standing::Blocked,
        "an allowance that has ended"
    );
}

#[test]
fn users_are_found_and_nobody_else() {
    let user = |n: usize| Subject::User(format!("user-{n}").into_bytes());
    let input = ListsInput {
        allow: vec![(user(0), NEVER)],
        block: (0..1000).map(|n| (user(n), NEVER)).collect(),
        bans: vec![(user(1), 5)],
    };
    let l = Lists::new(Mapped::from_bytes(&build(&input))).expect("just built");
    assert_eq!(l.user(b"user-0", 1), Standing::Allowed);
    assert_eq!(l.user(b"user-999", 1), Standing::Blocked);
    assert_eq!(l.user(b"user-1000", 1), Standing::None);
    assert_eq!(l.user(b"", 1), Standing::None);
    assert!(l.has_user_allow());
    assert_eq!(
        l.counts(),
        Counts {
            allow: 1,
            block: 1000,
            bans: 1
        }
    );
}

#[test]
fn empty_lists_answer() {
    let l = Lists::empty();
    assert_eq!(ask(&l, "1.2.3.4"), Standing::None);
    assert_eq!(ask(&l, "::1"), Standing::None);
    assert_eq!(l.user(b"a", 0), Standing::None);
    assert!(!l.has_users());
}

#[test]
fn entries_are_counted_once() {
    let l = lists(
        &[],
        &[
            ("10.0.0.0/8", 5),
            ("10.0.0.0/8", NEVER),
            ("10.0.0.0/9", NEVER),
        ],
    );
    assert_eq!(l.counts().block, 2);
    assert_eq!(
        ask(&l, "10.200.0.1"),
        Standing::Blocked,
        "of duplicates the later end holds"
    );
}

#[test]
fn damage_is_refused_and_never_read() {
    let good = build(&ListsInput {
        block: vec![(net("10.0.0.0/8"), NEVER)],
        ..Default::default()
    });
    assert!(Lists::new(Mapped::from_bytes(&good[..100])).is_err());
    for i in 0..HEAD {
        for value in [u64::MAX, 1 << 40, 7] {
            let mut bytes = good.clone();
            bytes[i * 8..i * 8 + 8].copy_from_slice(&value.to_ne_bytes());
            if let Ok(l) = Lists::new(Mapped::from_bytes(&bytes)) {
                // Whatever it says, it says it from inside the mapping.
                ask(&l, "10.0.0.1");
                ask(&l, "::1");
                l.user(b"a", 0);
            }
        }
    }
}

fn v6_net() -> impl Strategy<Value = (String, u64)> {
    // Few distinct upper halves, so that networks longer than /64 share one.
    (
        0u128..40,
        any::<u64>(),
        40u8..=128,
        prop_oneof![Just(NEVER), 990u64..1010],
    )
        .prop_map(|(high, low, len, until)| {
            let ip =
                std::net::Ipv6Addr::from(0x2001_0db8_u128 << 96 | high << 62 | u128::from(low));
            (format!("{ip}/{len}"), until)
        })
}

fn v4_net() -> impl Strategy<Value = (String, u64)> {
    (
        any::<u32>(),
        4u8..=32,
        prop_oneof![Just(NEVER), 990u64..1010],
    )
        .prop_map(|(ip, len, until)| {
            (
                format!("{}/{len}", std::net::Ipv4Addr::from(ip & 0x0fff_3fff)),
                until,
            )
        })
}

/// Looks at every entry.
fn naive(allow: &[(String, u64)], block: &[(String, u64)], ip: IpAddr) -> Standing {
    let hit = |l: &[(String, u64)]| {
        l.iter()
            .any(|(t, u)| *u > 1000 && t.parse::<IpNet>().is_ok_and(|n| n.contains(&ip)))
    };
    if hit(allow) {
        Standing::Allowed
    } else if hit(block) {
        Standing::Blocked
    } else {
        Standing::None
    }
}

fn same(allow: Vec<(String, u64)>, block: Vec<(String, u64)>) {
    let read = |l: &[(String, u64)]| l.iter().map(|(t, u)| (net(t), *u)).collect();
    let input = ListsInput {
        allow: read(&allow),
        block: read(&block),
        bans: Vec::new(),
    };
    let l = Lists::new(Mapped::from_bytes(&build(&input))).expect("just built");
    for (text, _) in allow.iter().chain(&block) {
        let n: IpNet = text.parse().expect("network");
        let mut probes = vec![n.network(), n.broadcast()];
        for edge in [n.network(), n.broadcast()] {
            match edge {
                IpAddr::V4(a) => {
                    probes.push(u32::from(a).wrapping_sub(1).to_be_bytes().into());
                    probes.push(u32::from(a).wrapping_add(1).to_be_bytes().into());
                }
                IpAddr::V6(a) => {
                    probes.push(u128::from(a).wrapping_sub(1).to_be_bytes().into());
                    probes.push(u128::from(a).wrapping_add(1).to_be_bytes().into());
                }
            }
        }
        for ip in probes {
            assert_eq!(l.address(ip, 1000), naive(&allow, &block, ip), "{ip}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 128 }, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn ipv4_agrees_with_a_look_at_every_entry(
        allow in prop::collection::vec(v4_net(), 0..10),
        block in prop::collection::vec(v4_net(), 0..60),
    ) {
        same(allow, block);
    }

    #[test]
    fn ipv6_agrees_with_a_look_at_every_entry(
        allow in prop::collection::vec(v6_net(), 0..10),
        block in prop::collection::vec(v6_net(), 0..300),
    ) {
        same(allow, block);
    }
}
