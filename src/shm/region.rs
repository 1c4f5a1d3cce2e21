//! The region: what the rest of the crate sees of the shared memory.
//!
//! Here are its making, its workers and its numbers; in `limits` the rules and
//! deciding by them, in `pools` the queues and in `holds` what workers hold in
//! them, in `beside` what lies in files of its own.
mod behaviour;
mod beside;
mod holds;
mod limits;
mod pools;

use super::bans::{self, Bans};
use super::bucket::Buckets;
use super::error::{Error, error};
use super::file;
use super::layout::{Header, LAYOUT, Layout};
use super::life::{self, Attach, Case};
use super::line::{Line, Lines, RuleTotals, Totals};
use super::lock::{CLUSTER, LockFile, SYNC};
use super::memory::Memory;
use super::published::Kind;
use super::rules::{RuleEntry, RuleId, Rules};
use super::table::{Set, Table};
use crate::domain::config;
use crate::domain::units::Nanos;
pub use pools::{Repairs, Touched};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Gauges that any worker may set and status and metrics read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    StoreUp,
    ConfigErrors,
    AllowEntries,
    AllowRejected,
    BlockEntries,
    BlockRejected,
    BansEntries,
    BansRejected,
    Spare0,
    Spare1,
    Spare2,
    Spare3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    pub pid: u32,
    pub setup_generation: u64,
    pub config_generation: u64,
}

/// `CLOCK_MONOTONIC`: the same in all processes of a boot, never set back.
#[inline]
pub fn monotonic() -> Nanos {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Unix seconds.
pub fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

/// What a region on the heap has no file for.
type HeapFiles = parking_lot::Mutex<Vec<(Kind, u64, Vec<u8>)>>;

enum Files {
    /// As configured, as used (a `path.<layout>` may stand in), and its inode.
    Disk {
        configured: PathBuf,
        path: PathBuf,
        inode: u64,
        lock: LockFile,
    },
    Heap(HeapFiles),
}

/// One per process: made in the master, inherited by its workers.
pub struct Region {
    pub(super) memory: Memory,
    pub(super) layout: Layout,
    files: Files,
    bans: Bans,
    seed: [u64; 2],
    /// Index of this worker's line, or of the line of no worker.
    line: AtomicUsize,
    /// Process that holds the line's byte: not a child of it.
    line_pid: AtomicU32,
    /// Record locks do not tell the threads of a process apart; this does.
    threads: parking_lot::ReentrantMutex<()>,
    /// See [`Repairs`].
    rebuilt: AtomicU64,
    renewed: AtomicU64,
}

impl Region {
    /// In the master's init: creates, attaches or replaces. No lock is held
    /// when it returns.
    pub fn open(cfg: &config::Shm) -> Result<(Region, Attach), Error> {
        Region::open_as(cfg, LAYOUT)
    }

    /// As a version with another layout number would.
    #[doc(hidden)]
    pub fn open_as(cfg: &config::Shm, layout: u64) -> Result<(Region, Attach), Error> {
        Table::assert_lock_free()?;
        let life::Opened {
            path,
            memory,
            layout,
            lock,
            inode,
            bans,
            attach,
        } = life::open(&cfg.path, cfg.size_bytes, layout)?;
        let files = Files::Disk {
            configured: cfg.path.clone(),
            path,
            inode,
            lock,
        };
        Ok((Region::over(memory, layout, files, bans), attach))
    }

    /// A region on the heap, for tests and benches of what stands above it.
    pub fn on_heap(size_bytes: u64) -> Region {
        let mut layout = Layout::for_size(size_bytes).expect("a size that a region can have");
        if cfg!(miri) {
            // Everything where it is, but fewer of what tests look through from end to end.
            (layout.rules, layout.lines, layout.sets) = (32, 8, 64);
        }
        let memory = Memory::heap(layout.size);
        life::format(&memory, layout, LAYOUT, 0);
        let bans = Bans::format(Memory::heap(bans::BYTES));
        Region::over(memory, layout, Files::Heap(HeapFiles::default()), bans)
    }

    fn over(memory: Memory, layout: Layout, files: Files, bans: Bans) -> Region {
        let header: &Header = memory.at(0);
        // Relaxed: written once, before anybody attached.
        let seed = [0, 1].map(|i| header.seed[i].load(Relaxed));
        Region {
            memory,
            layout,
            files,
            bans,
            seed,
            line: AtomicUsize::new(layout.lines),
            line_pid: AtomicU32::new(0),
            threads: parking_lot::ReentrantMutex::new(()),
            rebuilt: AtomicU64::new(0),
            renewed: AtomicU64::new(0),
        }
    }

    /// On a reload in a live master: what is mapped stays in force.
    pub fn ensure(&self, cfg: &config::Shm) -> Result<Attach, Error> {
        match &self.files {
            Files::Disk {
                configured,
                path,
                inode,
                ..
            } => life::ensure(configured, path, *inode, self.layout, cfg),
            Files::Heap(_) => Ok(Attach::new(Case::Attached, false, "on the heap".into())),
        }
    }

    fn header(&self) -> &Header {
        self.memory.at(0)
    }

    fn lines(&self) -> Lines<'_> {
        Lines {
            memory: &self.memory,
            layout: &self.layout,
        }
    }

    fn rules(&self) -> Rules<'_> {
        Rules(
            self.memory
                .slice::<RuleEntry>(self.layout.rules_at, self.layout.rules),
        )
    }

    pub(super) fn buckets(&self) -> Buckets<'_> {
        let sets = self
            .memory
            .slice::<Set>(self.layout.buckets_at, self.layout.sets);
        Buckets {
            table: Table(sets),
            rules: self.rules(),
            line: self.my(),
        }
    }

    fn lock_file(&self) -> Option<&LockFile> {
        match &self.files {
            Files::Disk { lock, .. } => Some(lock),
            Files::Heap(_) => None,
        }
    }

    // ---- workers ----

    /// In init_worker. Again in the same process: only the generation changes.
    /// Errors: the directory cannot be written in, or as many workers live as
    /// the region has lines for.
    pub fn attach_worker(&self, setup_generation: u64) -> Result<(), Error> {
        let _threads = self.threads.lock();
        let pid = std::process::id();
        if let Files::Disk { path, .. } = &self.files {
            file::check_directory(path)?;
        }
        // Relaxed: read and written by this process, in this function's lock.
        if self.line_pid.load(Relaxed) != pid {
            self.line.store(self.claim_line()?, Relaxed);
            self.line_pid.store(pid, Relaxed);
        }
        let head = self.my().head;
        // Release: with the acquire in `dead_lines`; before anything is held.
        head.holds.store(1, Release);
        // Relaxed: each is shown by itself. The pid is the last: a reader that
        // finds it and the byte locked shows this worker.
        head.setup_generation.store(setup_generation, Relaxed);
        head.config_generation.store(0, Relaxed);
        head.pid.store(pid.into(), Relaxed);
        // SeqCst: with `take_rule`, which asks who is the newest.
        self.header()
            .started_generation
            .fetch_max(setup_generation, SeqCst);
        Ok(())
    }

    /// What a dead worker held under the line is taken back first: its number
    /// is all that tells what is whose.
    fn claim_line(&self) -> Result<usize, Error> {
        let Some(lock) = self.lock_file() else {
            self.clear_line(0);
            return Ok(0);
        };
        // A line is left out whose pools are held by a process that is stopped.
        let until = self.now().0 + 2_000_000_000;
        loop {
            let mut held_up = false;
            for index in 0..self.layout.lines {
                if lock.try_lock(index as i64)? {
                    if self.clear_line(index) {
                        return Ok(index);
                    }
                    lock.unlock(index as i64);
                    held_up = true;
                }
            }
            if !held_up {
                break;
            }
            if self.now().0 > until {
                return Err(error!(
                    "what dead workers held cannot be taken back: a process has held a pool for more than 2 s; is it stopped?"
                ));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(error!(
            "{} workers live already, old ones that are still serving included, and the region has room for no more: raise shm.size",
            self.layout.lines
        ))
    }

    /// Gives the line back; the kernel does it for a worker that dies.
    pub fn detach(&self) {
        let _threads = self.threads.lock();
        if self.line_pid.swap(0, Relaxed) == std::process::id()
            && let Some(lock) = self.lock_file()
        {
            lock.unlock(self.line.load(Relaxed) as i64);
            lock.unlock(SYNC);
            lock.unlock(CLUSTER);
        }
        self.line.store(self.layout.lines, Relaxed);
    }

    /// This worker's counters. Only the thread that runs nginx's loop may count.
    /// Before `attach_worker` the line of no worker.
    pub fn my(&self) -> Line<'_> {
        // Relaxed: written by this thread, in `attach_worker`.
        self.lines().get(self.line.load(Relaxed))
    }

    /// Whether this process now holds the lock of the one worker that
    /// synchronises. Never waits.
    pub fn try_lock_sync(&self) -> bool {
        self.lock_file()
            .is_none_or(|lock| lock.try_lock(SYNC).unwrap_or(false))
    }

    pub fn unlock_sync(&self) {
        if let Some(lock) = self.lock_file() {
            lock.unlock(SYNC);
        }
    }

    /// The same for the one worker that speaks with other gateways about pools.
    pub fn try_lock_cluster(&self) -> bool {
        self.lock_file()
            .is_none_or(|lock| lock.try_lock(CLUSTER).unwrap_or(false))
    }

    pub fn unlock_cluster(&self) {
        if let Some(lock) = self.lock_file() {
            lock.unlock(CLUSTER);
        }
    }

    fn living(&self) -> impl Iterator<Item = (u32, Line<'_>)> {
        let mine =
            (self.line_pid.load(Relaxed) == std::process::id()).then(|| self.line.load(Relaxed));
        (0..self.layout.lines).filter_map(move |index| {
            let line = self.lines().get(index);
            let pid = line.head.pid.load(Relaxed) as u32;
            let byte = index as i64;
            let lives = mine == Some(index)
                || pid != 0 && self.lock_file()?.owner(byte..byte + 1).is_some();
            lives.then_some((pid, line))
        })
    }

    /// The living.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        let info = |(pid, line): (u32, Line<'_>)| WorkerInfo {
            pid,
            setup_generation: line.head.setup_generation.load(Relaxed),
            config_generation: line.head.config_generation.load(Relaxed),
        };
        self.living().map(info).collect()
    }

    // ---- numbers ----

    pub fn path(&self) -> &Path {
        match &self.files {
            Files::Disk { path, .. } => path,
            Files::Heap(_) => Path::new("/heap"),
        }
    }

    pub fn size_bytes(&self) -> u64 {
        self.layout.size as u64
    }

    /// `CLOCK_MONOTONIC`.
    pub fn now(&self) -> Nanos {
        monotonic()
    }

    // Generations and gauges are Relaxed but where said: each stands for itself.

    pub fn new_setup_generation(&self) -> u64 {
        self.header().setup_generation.fetch_add(1, Relaxed) + 1
    }

    pub fn setup_generation(&self) -> u64 {
        self.header().setup_generation.load(Relaxed)
    }

    /// The newest setup generation that a worker has started with.
    pub fn started_generation(&self) -> u64 {
        self.header().started_generation.load(Relaxed)
    }

    pub fn next_config_generation(&self) -> u64 {
        self.header().config_generation.fetch_add(1, SeqCst) + 1
    }

    pub fn config_generation(&self) -> u64 {
        self.header().config_generation.load(SeqCst)
    }

    /// The generation that this worker has in force. Rules that are not in it
    /// may be forgotten once no living worker has an older one.
    pub fn my_config_generation(&self, generation: u64) {
        self.my().head.config_generation.store(generation, Relaxed);
    }

    /// The last number of gateways seen; 0: never.
    pub fn gateways(&self) -> u64 {
        self.header().gateways.load(Relaxed)
    }

    pub fn set_gateways(&self, n: u64) {
        self.header().gateways.store(n, Relaxed);
    }

    pub fn store_up(&self) -> bool {
        self.cell(Cell::StoreUp) != 0
    }

    pub fn set_store_up(&self, up: bool) {
        self.set_cell(Cell::StoreUp, up.into());
    }

    pub fn cell(&self, cell: Cell) -> u64 {
        self.header().cells[cell as usize].load(Relaxed)
    }

    pub fn set_cell(&self, cell: Cell, value: u64) {
        self.header().cells[cell as usize].store(value, Relaxed);
    }

    /// The sum over all workers, living and dead.
    pub fn totals(&self) -> Totals {
        let mut totals = self.lines().totals();
        for (i, entry) in self
            .rules()
            .0
            .iter()
            .enumerate()
            .take(self.layout.rules / 2)
            .skip(1)
        {
            if entry.is_used() {
                let (sums, before) = (self.lines().rule(RuleId(i as u16)), entry.before());
                let [pass, limited, shadow] =
                    std::array::from_fn(|k| sums[k].wrapping_sub(before[k]));
                totals.rules.push(RuleTotals {
                    name: entry.name(),
                    pass,
                    limited,
                    shadow,
                });
            }
        }
        totals
    }
}

#[cfg(test)]
#[path = "region_tests.rs"]
mod tests;
