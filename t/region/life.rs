//! Every case of a region's life.
use crate::Case;
use crate::processes::*;
use sluice::domain::entry::Subject;
use sluice::shm::{Case as What, Kind, LAYOUT, Region, Verdict};
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;

pub const CASES: &[Case] = &[
    ("life::kept_over_stop_and_start", kept_over_stop_and_start),
    ("life::another_size", another_size),
    ("life::another_layout", another_layout),
    ("life::another_boot", another_boot),
    ("life::damaged_or_unfinished", damaged_or_unfinished),
    ("life::in_use_by_a_stranger", in_use_by_a_stranger),
    ("life::upgraded_binary", upgraded_binary),
    ("life::reload", reload),
    ("life::many_masters_at_once", many_masters_at_once),
    ("life::killed_while_it_is_made", killed_while_it_is_made),
    ("life::no_room", no_room),
    ("life::another_user", another_user),
];

fn banned(region: &Region) -> bool {
    region.banned_address(IpAddr::from([203, 0, 113, 9]), 0)
}

/// Leaves a drained bucket, a ban, a count and a published list.
fn leave_marks(region: &Region) {
    let rule = region.take_rule("login", slow(3), 0).unwrap();
    let key = region.hash(rule, b"client");
    assert!(region.spend(rule, key, 3, region.now()).admitted);
    let subject = Subject::Net(IpAddr::from([203, 0, 113, 9]).into());
    region.ban(&subject, u64::MAX).unwrap();
    region.my().verdict(Verdict::Limited);
    region.publish(Kind::Block, b"list").unwrap();
}

/// Whether buckets, counts and lists are still there.
fn has_marks(region: &Region) -> bool {
    let counted = region.totals().verdicts[Verdict::Limited as usize];
    let rule = region.take_rule("login", slow(3), 0).unwrap();
    let drained = !region
        .peek(rule, region.hash(rule, b"client"), 1, region.now())
        .admitted;
    let list = region.published(Kind::Block);
    let found = list > 0 && &*region.open_published(Kind::Block, list).unwrap() == b"list";
    assert!(
        (counted == 1) == drained && drained == found,
        "all or nothing"
    );
    drained
}

fn published_files(place: &Place) -> usize {
    let names = fs::read_dir(place.dir())
        .unwrap()
        .map(|e| e.unwrap().file_name());
    names
        .filter(|n| n.to_string_lossy().contains(".lists."))
        .count()
}

fn kept_over_stop_and_start() {
    let place = Place::new();
    let (region, attach) = place.try_open(MIB).unwrap();
    assert_eq!(
        (attach.case, attach.is_warning()),
        (What::Created, false),
        "{attach}"
    );
    use std::os::unix::fs::PermissionsExt;
    for file in ["", ".lock", ".bans"] {
        let mode = fs::metadata(place.with(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "sluice{file}");
    }
    leave_marks(&region);
    drop(region);
    let (region, attach) = place.try_open(MIB).unwrap();
    assert_eq!(
        (attach.case, attach.is_warning()),
        (What::Attached, false),
        "{attach}"
    );
    assert!(has_marks(&region) && banned(&region));
}

fn another_size() {
    let place = Place::new();
    let region = place.open();
    leave_marks(&region);
    // While a worker of ours lives: the old size stays.
    let worker = idle_worker(&region);
    let (kept, attach) = place.try_open(2 * MIB).unwrap();
    assert_eq!(
        (attach.case, attach.is_warning()),
        (What::Kept, true),
        "{attach}"
    );
    assert!(attach.to_string().contains("2.0 MiB"), "{attach}");
    assert!(kept.size_bytes() == MIB && has_marks(&kept));
    worker.kill();
    // Nobody lives: replaced, bans kept, lists of the old one removed.
    let (new, attach) = place.try_open(2 * MIB).unwrap();
    assert_eq!(
        (attach.case, attach.is_warning()),
        (What::Replaced, true),
        "{attach}"
    );
    assert!(new.size_bytes() == 2 * MIB && !has_marks(&new) && banned(&new));
    assert_eq!(published_files(&place), 0);
}

fn another_layout() {
    let place = Place::new();
    let old = place.open();
    leave_marks(&old);
    let worker = idle_worker(&old);
    // USR2 to a version with another layout: it lives beside the old one.
    let (new, attach) = place.open_as(LAYOUT + 1);
    assert_eq!(
        (attach.case, attach.is_warning()),
        (What::Beside, true),
        "{attach}"
    );
    assert_eq!(new.path(), place.with(&format!(".{}", LAYOUT + 1)));
    assert!(!has_marks(&new) && banned(&new), "bans are carried over");
    assert!(has_marks(&old), "the old generation goes on");
    leave_marks(&new);
    // A reload, or another upgrade, of the new version finds it again.
    let (again, attach) = place.open_as(LAYOUT + 1);
    assert_eq!(attach.case, What::Beside, "{attach}");
    assert!(has_marks(&again));
    worker.kill();
    // And so does a restart, once the old generation is gone, with its file.
    let (again, _) = place.open_as(LAYOUT + 1);
    assert!(has_marks(&again) && !place.path().exists());
    let (again, _) = place.open_as(LAYOUT + 1);
    assert!(has_marks(&again) && banned(&again));

    // Nobody lives: replaced. So is what the version before pools has left.
    let place = Place::new();
    let (old, _) = place.open_as(1);
    old.ban(
        &Subject::Net(IpAddr::from([203, 0, 113, 9]).into()),
        u64::MAX,
    )
    .unwrap();
    drop(old);
    let (new, attach) = place.try_open(MIB).unwrap();
    assert_eq!(attach.case, What::Replaced, "{attach}");
    assert!(attach.to_string().contains("layout 1 of another"));
    assert!(new.pools().is_empty() && banned(&new));
    let place = Place::new();
    leave_marks(&place.open());
    let (new, attach) = place.open_as(LAYOUT + 1);
    assert_eq!(
        (attach.case, attach.is_warning()),
        (What::Replaced, true),
        "{attach}"
    );
    assert!(new.path() == place.path() && !has_marks(&new) && banned(&new));
}

/// Overwrites a word of the header.
fn patch(place: &Place, word: u64, value: u64) {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(place.path())
        .unwrap();
    file.write_all_at(&value.to_ne_bytes(), word * 8).unwrap();
}

fn another_boot() {
    // Another boot id; or a region from the future of this clock.
    for (word, value) in [(6, 1), (8, u64::MAX / 2)] {
        let place = Place::new();
        leave_marks(&place.open());
        patch(&place, word, value);
        let (region, attach) = place.try_open(MIB).unwrap();
        assert_eq!(
            (attach.case, attach.is_warning()),
            (What::Replaced, false),
            "{attach}"
        );
        assert!(attach.to_string().contains("boot") && !has_marks(&region) && banned(&region));
    }
}

fn damaged_or_unfinished() {
    type Spoil<'a> = (&'a str, bool, &'a dyn Fn(&Place));
    let spoil: [Spoil<'_>; 5] = [
        ("never finished", false, &|p| patch(p, 0, 0)),
        ("damaged", true, &|p| patch(p, 0, 0xdead_beef)),
        ("damaged", true, &|p| {
            fs::OpenOptions::new()
                .write(true)
                .open(p.path())
                .unwrap()
                .set_len(MIB / 2)
                .unwrap();
        }),
        ("never finished", false, &|p| {
            fs::write(p.path(), "").unwrap()
        }),
        ("lock file", true, &|p| {
            fs::remove_file(p.with(".lock")).unwrap()
        }),
    ];
    for (word, warns, spoil) in spoil {
        let place = Place::new();
        leave_marks(&place.open());
        spoil(&place);
        let (region, attach) = place.try_open(MIB).unwrap();
        assert_eq!(
            (attach.case, attach.is_warning()),
            (What::Replaced, warns),
            "{attach}"
        );
        assert!(attach.to_string().contains(word), "{attach}");
        assert!(!has_marks(&region) && banned(&region));
    }
    let place = Place::new();
    leave_marks(&place.open());
    fs::OpenOptions::new()
        .write(true)
        .open(place.with(".bans"))
        .unwrap()
        .set_len(100)
        .unwrap();
    let (region, attach) = place.try_open(MIB).unwrap();
    assert!(
        attach.is_warning() && attach.to_string().contains("bans are lost"),
        "{attach}"
    );
    assert!(has_marks(&region) && !banned(&region));
}

fn in_use_by_a_stranger() {
    let place = Place::new();
    let mut master = fork(|link| {
        let worker = idle_worker(&place.open());
        send_pid(link, worker.pid);
        hear(link);
        drop(worker);
    });
    let pid = master.read_pid();
    for size in [MIB, 2 * MIB] {
        let error = place.try_open(size).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains(&format!("process {pid}")) && error.contains("in use"),
            "{error}"
        );
    }
    assert!(Region::open_as(&place.cfg(MIB), LAYOUT + 1).is_err());
    master.go();
    master.join();
    assert_eq!(place.try_open(MIB).unwrap().1.case, What::Attached);
}

fn upgraded_binary() {
    let place = Place::new();
    let region = place.open();
    leave_marks(&region);
    let worker = idle_worker(&region);
    // The new master is a child of the old one, whose workers still live.
    fork(|_| {
        let (region, attach) = place.try_open(MIB).unwrap();
        assert_eq!(
            (attach.case, attach.is_warning()),
            (What::Attached, false),
            "{attach}"
        );
        assert!(has_marks(&region) && banned(&region));
        assert_eq!(region.workers().len(), 1);
        let younger = idle_worker(&region);
        assert_eq!(region.workers().len(), 2);
        younger.kill();
    })
    .join();
    worker.kill();
}

fn reload() {
    let place = Place::new();
    let region = place.open();
    assert!(!region.ensure(&place.cfg(MIB)).unwrap().is_warning());
    let kept = region.ensure(&place.cfg(2 * MIB)).unwrap();
    assert!(kept.case == What::Kept && kept.is_warning(), "{kept}");
    let mut elsewhere = place.cfg(MIB);
    elsewhere.path = place.with(".other");
    let kept = region.ensure(&elsewhere).unwrap();
    assert!(
        kept.case == What::Kept && kept.to_string().contains("sluice.other"),
        "{kept}"
    );
    assert!(region.ensure(&place.cfg(1)).is_err());
    assert_eq!(region.size_bytes(), MIB);
    fs::remove_file(place.path()).unwrap();
    let gone = region.ensure(&place.cfg(MIB)).unwrap();
    assert!(
        gone.is_warning() && gone.to_string().contains("removed"),
        "{gone}"
    );
}

fn many_masters_at_once() {
    let place = Place::new();
    let open = |link: &mut std::os::unix::net::UnixStream| {
        ready(link);
        let region = place.open();
        region.my().verdict(Verdict::Pass);
        region.new_setup_generation();
    };
    let mut masters: Vec<Child> = (0..8).map(|_| fork(open)).collect();
    masters.iter_mut().for_each(Child::wait_ready);
    masters.iter_mut().for_each(Child::go);
    masters.into_iter().for_each(Child::join);
    // All in one region: none of the eight replaced another's.
    let (region, attach) = place.try_open(MIB).unwrap();
    assert_eq!(
        (attach.case, region.setup_generation()),
        (What::Attached, 8)
    );
}

fn killed_while_it_is_made() {
    let mut state = 5;
    for _ in 0..60 {
        let place = Place::new();
        let mut master = fork(|link| {
            ready(link);
            let region = place.try_open(8 * MIB).unwrap().0;
            leave_marks(&region);
        });
        master.wait_ready();
        master.go();
        pause(dice(&mut state, 3_000));
        master.signal(libc::SIGKILL);
        master.reap();
        let (region, attach) = place.try_open(8 * MIB).unwrap();
        assert!(!attach.is_warning(), "{attach}");
        let rule = region.take_rule("login", slow(3), 0).unwrap();
        let key = region.hash(rule, b"another");
        assert!(region.spend(rule, key, 3, region.now()).admitted);
    }
}

fn no_room() {
    let place = Place::new();
    let small = place.dir().join("small");
    fs::create_dir(&small).unwrap();
    let mut child = fork(|_| {
        let text = std::ffi::CString::new(small.to_str().unwrap()).unwrap();
        let (fs_type, data) = (c"tmpfs".as_ptr(), c"size=6m".as_ptr().cast());
        // SAFETY: strings with their NULs, alive during the calls; the mount is
        // seen by this child only and goes with it.
        let mounted = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    std::ptr::null(),
                    c"/".as_ptr(),
                    std::ptr::null(),
                    libc::MS_REC | libc::MS_PRIVATE,
                    std::ptr::null(),
                ) == 0
                && libc::mount(fs_type, text.as_ptr(), fs_type, 0, data) == 0
        };
        if !mounted {
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(77) };
        }
        let cfg = |size_bytes| sluice::domain::config::Shm {
            path: small.join("sluice"),
            size_bytes,
        };
        let error = Region::open(&cfg(32 * MIB))
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("32.0 MiB") && error.contains("small/sluice"),
            "{error}"
        );
        assert!(
            error.contains("are free") && error.contains("shm.size"),
            "{error}"
        );
        assert!(!small.join("sluice").exists(), "nothing half-made is left");
        // What fits is made, and a list that does not fit leaves the old one.
        let (region, _) = Region::open(&cfg(MIB)).unwrap();
        let first = region.publish(Kind::Block, b"first").unwrap();
        let error = region
            .publish(Kind::Block, &vec![1; 8 << 20])
            .unwrap_err()
            .to_string();
        assert!(error.contains("stays in force"), "{error}");
        assert_eq!(region.published(Kind::Block), first);
        assert_eq!(
            &*region.open_published(Kind::Block, first).unwrap(),
            b"first"
        );
        assert!(region.publish(Kind::Block, b"second").is_ok());
    });
    match child.reap() {
        77 => println!("(no mount of one's own here: a full file system was not tested)"),
        code => assert_eq!(code, 0),
    }
}

/// Workers that are not root: what they inherited is theirs to use.
fn another_user() {
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        println!("(not root: workers of another user were not tested)");
        return;
    }
    let place = Place::new();
    fs::set_permissions(
        place.dir(),
        std::os::unix::fs::PermissionsExt::from_mode(0o1777),
    )
    .unwrap();
    let region = place.open();
    let become_nobody = || {
        // SAFETY: take integers.
        assert!(unsafe { libc::setgid(65_534) == 0 && libc::setuid(65_534) == 0 });
    };
    let worker = || {
        become_nobody();
        region.attach_worker(1).unwrap();
        assert!(!region.workers().is_empty());
        leave_marks(&region);
        assert!(has_marks(&region) && banned(&region) && region.try_lock_sync());
    };
    fork(|_| worker()).join();
    fork(|_| {
        become_nobody();
        // Its own region is refused to it: root's file of mode 0600.
        assert!(place.try_open(MIB).is_err());
        let list = region.published(Kind::Block);
        assert_eq!(&*region.open_published(Kind::Block, list).unwrap(), b"list");
    })
    .join();
    // Root does not believe what nobody published.
    assert!(
        region
            .open_published(Kind::Block, region.published(Kind::Block))
            .is_err()
    );
    fs::set_permissions(
        place.dir(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    fork(|_| {
        become_nobody();
        let error = region.attach_worker(1).unwrap_err().to_string();
        assert!(
            error.contains("cannot write in") && error.contains("65534"),
            "{error}"
        );
    })
    .join();
}
