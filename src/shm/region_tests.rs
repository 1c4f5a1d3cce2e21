use super::super::{Limit, RuleTotals, RuleVerdict, StoreResult, Verdict};
use super::*;

fn shm(dir: &tempfile::TempDir, size_bytes: u64) -> config::Shm {
    config::Shm {
        path: dir.path().join("sluice"),
        size_bytes,
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn totals_are_sums_that_never_fall() {
    let region = Region::on_heap(MIB);
    let id = region
        .take_rule("login", Limit::new(1_000_000, 5), 0)
        .unwrap();
    let twin = region
        .take_rule("login~local", Limit::new(1_000_000, 5), 0)
        .unwrap();
    // Before and after attaching: the line of nobody, then one's own.
    for generation in [0, 1, 2] {
        if generation > 0 {
            region.attach_worker(generation).unwrap();
        }
        let line = region.my();
        for v in [
            Verdict::Pass,
            Verdict::Pass,
            Verdict::Limited,
            Verdict::Error,
        ] {
            line.verdict(v);
        }
        line.rule(id, RuleVerdict::Shadow);
        line.rule(twin, RuleVerdict::Pass);
        line.store(StoreResult::Timeout);
        for ns in [0, 100_000, 100_001, 2_000_000_000] {
            line.store_latency(ns);
        }
        line.guard_panic();
        region.detach();
    }
    let t = region.totals();
    assert_eq!(
        (t.verdicts, t.store, t.guard_panics),
        ([6, 3, 0, 3, 0], [0, 0, 3, 0], 3)
    );
    assert_eq!(
        t.rules,
        [RuleTotals {
            name: "login".into(),
            pass: 0,
            limited: 0,
            shadow: 3
        }]
    );
    let latency = t.store_latency;
    assert_eq!(
        (
            latency.count,
            latency.buckets[0],
            latency.buckets[1],
            latency.buckets[12]
        ),
        (12, 6, 3, 3)
    );
    assert_eq!(latency.sum_ns, 3 * (100_000 + 100_001 + 2_000_000_000));
}

#[test]
fn one_line_of_refusals_a_second() {
    let region = Region::on_heap(MIB);
    let id = region
        .take_rule("login", Limit::new(1_000_000, 5), 0)
        .unwrap();
    let at = |ms: u64| Nanos(5_000_000_000 + ms * 1_000_000);
    for rule in [id, RuleId::BLOCKED] {
        assert_eq!(region.refusal_log(rule, at(0)), Some(1));
        for i in 1..1000 {
            assert_eq!(region.refusal_log(rule, at(i)), None);
        }
        assert_eq!(region.refusal_log(rule, at(1000)), Some(1000));
        assert_eq!(region.refusal_log(rule, at(1001)), None);
        assert_eq!(region.refusal_log(rule, at(9000)), Some(2));
    }
}

#[test]
fn numbers_and_gauges() {
    let region = Region::on_heap(MIB);
    assert_eq!(
        (region.setup_generation(), region.new_setup_generation()),
        (0, 1)
    );
    assert_eq!(
        (region.next_config_generation(), region.config_generation()),
        (1, 1)
    );
    assert_eq!((region.gateways(), region.store_up()), (0, false));
    region.set_gateways(3);
    region.set_store_up(true);
    region.set_cell(Cell::ConfigErrors, 2);
    assert_eq!(
        (
            region.gateways(),
            region.store_up(),
            region.cell(Cell::ConfigErrors)
        ),
        (3, true, 2)
    );
    assert!(region.workers().is_empty());
    region.attach_worker(1).unwrap();
    region.my_config_generation(1);
    let me = WorkerInfo {
        pid: std::process::id(),
        setup_generation: 1,
        config_generation: 1,
    };
    assert_eq!(region.workers(), [me]);
    assert!(region.try_lock_sync() && region.try_lock_sync());
}

/// Keys of all lengths, and of rules, are told apart.
#[test]
fn hashes_are_keyed() {
    let (a, b) = (Region::on_heap(MIB), Region::on_heap(MIB));
    let keys: Vec<Vec<u8>> = (0..40).map(|n| vec![b'x'; n]).collect();
    let mut seen = std::collections::HashSet::new();
    for key in &keys {
        for rule in [RuleId(1), RuleId(2)] {
            assert_eq!(a.hash(rule, key), a.hash(rule, key));
            assert_ne!(
                a.hash(rule, key),
                b.hash(rule, key),
                "another region, another seed"
            );
            assert!(seen.insert(a.hash(rule, key)));
        }
    }
}

#[test]
fn published_on_the_heap() {
    published_and_found_again(&Region::on_heap(MIB));
}

#[test]
#[cfg_attr(miri, ignore = "files")]
fn published_as_files() {
    let dir = tempfile::tempdir().unwrap();
    let (region, attach) = Region::open(&shm(&dir, MIB)).unwrap();
    assert_eq!(attach.case, Case::Created);
    published_and_found_again(&region);
    let names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.contains("lists") || n.contains("config"))
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    // A name that is taken, by whoever: another number.
    let squatted = dir.path().join(format!(
        "sluice.lists.block.{}",
        region.published(Kind::Block) + 1
    ));
    std::fs::write(&squatted, "x").unwrap();
    let n = region.publish(Kind::Block, b"four").unwrap();
    assert_eq!(&*region.open_published(Kind::Block, n).unwrap(), b"four");
    // A link in its place is not followed.
    let path = dir.path().join(format!("sluice.lists.block.{n}"));
    std::fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
    assert!(region.open_published(Kind::Block, n).is_err());
}

fn published_and_found_again(region: &Region) {
    assert_eq!(region.published(Kind::Block), 0);
    assert!(region.open_published(Kind::Block, 0).is_err());
    let one = region.publish(Kind::Block, b"one").unwrap();
    let held = region.open_published(Kind::Block, one).unwrap();
    let two = region.publish(Kind::Block, b"two").unwrap();
    assert_eq!(
        &*region.open_published(Kind::Block, one).unwrap(),
        b"one",
        "kept for late mappers"
    );
    let three = region.publish(Kind::Block, b"").unwrap();
    assert!(one < two && two < three && region.published(Kind::Block) == three);
    assert!(region.open_published(Kind::Block, one).is_err());
    assert_eq!(&*region.open_published(Kind::Block, two).unwrap(), b"two");
    assert_eq!(&*region.open_published(Kind::Block, three).unwrap(), b"");
    assert_eq!(&*held, b"one");
    let other = region.publish(Kind::Config, b"{}").unwrap();
    assert_eq!(&*region.open_published(Kind::Config, other).unwrap(), b"{}");
}

#[test]
#[cfg_attr(miri, ignore = "files")]
fn files_that_are_not_ours_are_refused() {
    let said = |prepare: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().unwrap();
        prepare(&dir.path().join("sluice"));
        Region::open(&shm(&dir, MIB))
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let link = said(&|p| std::os::unix::fs::symlink("/etc/passwd", p).unwrap());
    assert!(link.contains("symbolic link"), "{link}");
    let open = said(&|p| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(p, "x").unwrap();
        std::fs::set_permissions(p, std::fs::Permissions::from_mode(0o666)).unwrap();
    });
    assert!(open.contains("0600"), "{open}");
    let dir = said(&|p| std::fs::create_dir(p).unwrap());
    assert!(dir.contains("cannot open"), "{dir}");
    if file::euid() == 0 {
        let other = said(&|p| {
            std::fs::write(p, "x").unwrap();
            std::os::unix::fs::chown(p, Some(12345), None).unwrap();
        });
        assert!(other.contains("12345"), "{other}");
    }
    let relative = config::Shm {
        path: "sluice".into(),
        size_bytes: MIB,
    };
    assert!(Region::open(&relative).is_err());
    let tempdir = tempfile::tempdir().unwrap();
    let small = Region::open(&shm(&tempdir, 1000))
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(
        small.contains("shm.size") && small.contains("1.0 MiB"),
        "{small}"
    );
}
