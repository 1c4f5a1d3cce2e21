use super::*;

const NOW: u64 = 1_700_000_000;

fn bans() -> Bans {
    Bans::format(Memory::heap(BYTES))
}

fn subject(text: &str) -> Subject {
    match text.strip_prefix("user:") {
        Some(user) => Subject::User(user.into()),
        None if text.contains('/') => Subject::Net(text.parse().unwrap()),
        None => Subject::Net(text.parse::<IpAddr>().unwrap().into()),
    }
}

#[test]
fn holds_by_prefix_and_kind() {
    let bans = bans();
    let holds = |ip: &str| bans.address(ip.parse().unwrap(), NOW);
    assert!(!bans.any() && !holds("203.0.113.9"));
    for s in [
        "203.0.113.9",
        "10.0.0.0/8",
        "2001:db8:1::/48",
        "2001:db8::7",
        "user:203.0.113.10",
    ] {
        bans.ban(&subject(s), u64::MAX, NOW).unwrap();
    }
    assert!(bans.any());
    for (ip, held) in [
        ("203.0.113.9", true),
        ("203.0.113.8", false),
        // A user of that name is not that address.
        ("203.0.113.10", false),
        ("10.255.0.1", true),
        ("11.0.0.1", false),
        ("::ffff:10.1.2.3", true),
        ("2001:db8:1:ffff::1", true),
        ("2001:db8:2::1", false),
        ("2001:db8::7", true),
        ("2001:db8::8", false),
    ] {
        assert_eq!(holds(ip), held, "{ip}");
    }
    assert!(bans.user(b"203.0.113.10", NOW) && !bans.user(b"203.0.113.9", NOW));
    assert_eq!(bans.count(NOW), 5);
    assert!(bans.unban(&subject("10.0.0.0/8"), NOW));
    assert!(!bans.unban(&subject("10.0.0.0/8"), NOW));
    // Of that very subject, not of what lies in it.
    assert!(!bans.unban(&subject("2001:db8:1::1"), NOW));
    assert!(!holds("10.255.0.1") && holds("2001:db8:1::1"));
    assert_eq!(bans.count(NOW), 4);
    for whole in ["0.0.0.0/0", "::/0"] {
        bans.ban(&subject(whole), NOW + 1, NOW).unwrap();
    }
    assert!(holds("8.8.8.8") && holds("2a00::1"));
    assert!(!bans.address("8.8.8.8".parse().unwrap(), NOW + 1));
}

/// B65
#[test]
fn ends_when_it_was_said_to() {
    let bans = bans();
    for (i, seconds) in [1, 2_147_484, 4_294_968, 1_000_000_000, u64::MAX - NOW]
        .into_iter()
        .enumerate()
    {
        let ip = IpAddr::from([10, 0, 0, i as u8]);
        bans.ban(&Subject::Net(ip.into()), NOW + seconds, NOW)
            .unwrap();
        assert!(bans.address(ip, NOW) && bans.address(ip, NOW + seconds.min(1 << 43) - 1));
        assert_eq!(bans.address(ip, (NOW + seconds).min(1 << 50)), i == 4);
    }
    // The later word holds, longer or shorter.
    let s = subject("192.0.2.1");
    let ip = "192.0.2.1".parse().unwrap();
    bans.ban(&s, u64::MAX, NOW).unwrap();
    bans.ban(&s, NOW + 10, NOW).unwrap();
    assert!(bans.address(ip, NOW + 9) && !bans.address(ip, NOW + 10));
    assert_eq!(bans.count(NOW), 6);
}

#[test]
#[cfg_attr(miri, ignore = "too long")]
fn as_many_as_promised() {
    let bans = bans();
    let ban = |n: u32, until| {
        bans.ban(
            &Subject::Net(IpAddr::from(n.to_be_bytes()).into()),
            until,
            NOW,
        )
    };
    for n in 0..MAX_BANS as u32 {
        ban(n, if n < 1000 { NOW + 1 } else { u64::MAX }).unwrap();
    }
    assert_eq!(bans.count(NOW), MAX_BANS);
    assert!(
        ban(1 << 30, u64::MAX)
            .unwrap_err()
            .to_string()
            .contains("100000")
    );
    // Known subjects may still be said anew.
    ban(7, NOW + 1).unwrap();
    // What has ended makes room, also for a process that did not count it.
    let fresh = |n: u32| Subject::Net(IpAddr::from((n | 1 << 30).to_be_bytes()).into());
    for n in 0..1000 {
        bans.ban(&fresh(n), u64::MAX, NOW + 1).unwrap();
    }
    assert!(bans.ban(&fresh(1000), u64::MAX, NOW + 1).is_err());
    assert!(
        (0..MAX_BANS as u32).all(|n| bans.address(n.to_be_bytes().into(), NOW + 1) == (n >= 1000))
    );
    bans.compact(NOW + 1);
    assert_eq!(bans.count(NOW + 1), MAX_BANS);
    assert!((1000..MAX_BANS as u32).all(|n| bans.address(n.to_be_bytes().into(), NOW + 1)));
}

#[test]
fn compacting_forgets_kinds() {
    let bans = bans();
    bans.ban(&subject("10.0.0.0/8"), NOW + 5, NOW).unwrap();
    bans.ban(&subject("user:a"), u64::MAX, NOW).unwrap();
    bans.compact(NOW + 5);
    assert_eq!(bans.kinds(0, USER).collect::<Vec<_>>(), [USER]);
    assert!(bans.unban(&subject("user:a"), NOW + 5));
    bans.compact(NOW + 5);
    assert!(!bans.any());
}

#[test]
fn knows_its_own_file_only() {
    assert!(Bans::attach(Memory::heap(BYTES)).is_none());
    assert!(Bans::attach(Memory::heap(PAGE)).is_none());
}

#[test]
fn at_once_from_several_threads() {
    let bans = bans();
    let n = if cfg!(miri) { 5 } else { 500 };
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                for i in 0..n {
                    bans.ban(&subject(&format!("user:{i}")), u64::MAX, NOW)
                        .unwrap();
                    assert!(bans.user(i.to_string().as_bytes(), NOW));
                }
            });
        }
    });
    for i in 0..n {
        assert!(bans.unban(&subject(&format!("user:{i}")), NOW));
        assert!(!bans.user(i.to_string().as_bytes(), NOW));
    }
    assert_eq!(bans.count(NOW), 0);
}
