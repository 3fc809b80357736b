//! Maps guests' memory for copy engines that do not use the CPU's page tables: devices on vfio-pci.
//!
//! To map memory is to pin it, which takes seconds for a large guest. So one thread maps the memory
//! of all guests, piece by piece, and the CPU makes a guest's copies until all of its memory is
//! mapped. The connection's thread, which unmaps the memory before it goes, waits for one piece at
//! most. Memory that its file does not have yet is not mapped: pinning it would take it from the
//! machine in our name.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use vhost::DmaMapper;

/// Bytes that are mapped at once: a tenth of a second where a core clears 2.5 GB/s.
const PIECE_BYTES_MAX: usize = 256 << 20;

/// Writes a line about a guest's memory to the log.
pub(crate) type Complain = Box<dyn Fn(&str) + Send + Sync>;

/// True while engines need mapped memory.
static IS_NEEDED: AtomicBool = AtomicBool::new(false);
static ALL: Mutex<All> = Mutex::new(All { mapper: None, maps: Vec::new() });

/// The mapper that is in use, and the memory of all guests.
struct All {
    mapper: Option<Arc<dyn DmaMapper>>,
    maps: Vec<Weak<DmaMap>>,
}

/// The memory of one guest, and how much of it is mapped.
pub(crate) struct DmaMap {
    /// Address ranges of whole pages.
    pieces: Vec<Range<usize>>,
    /// The file has all its pages.
    is_allocated: bool,
    is_mapped: AtomicBool,
    /// Bytes of the pieces that are mapped.
    bytes: AtomicUsize,
    progress: Mutex<Progress>,
    complain: Complain,
}

#[derive(Default)]
struct Progress {
    /// Whoever mapped the pieces.
    mapper: Option<Arc<dyn DmaMapper>>,
    /// Pieces that are mapped, from the first on.
    mapped: usize,
    /// The memory goes: nothing may be mapped any more.
    is_gone: bool,
}

/// What the mapping thread is to do with a guest's memory.
enum Work {
    Map(Weak<DmaMap>),
    Unmap(Weak<DmaMap>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the memory of all guests mapped, now and when it changes, until [`unmap_memory`]. To be
/// called before a thread is given an engine that needs it.
pub fn map_memory(mapper: Arc<dyn DmaMapper>) {
    let mut all = lock(&ALL);
    if all.mapper.is_none() {
        all.mapper = Some(mapper);
        IS_NEEDED.store(true, Ordering::Release);
        all.maps.iter().for_each(|map| order(Work::Map(map.clone())));
    }
}

/// Has the memory of all guests unmapped. To be called when no thread has an engine any more.
pub fn unmap_memory() {
    let mut all = lock(&ALL);
    if all.mapper.take().is_some() {
        IS_NEEDED.store(false, Ordering::Release);
        for map in &all.maps {
            map.upgrade().inspect(|map| map.is_mapped.store(false, Ordering::Release));
            order(Work::Unmap(map.clone()));
        }
    }
}

/// Bytes of guests' memory that are mapped for engines.
pub fn mapped_bytes() -> usize {
    let maps: Vec<_> = lock(&ALL).maps.iter().filter_map(Weak::upgrade).collect();
    maps.iter().map(|map| map.bytes.load(Ordering::Relaxed)).sum()
}

/// Gives the mapping thread, which begins with the first call, something to do. Without the thread
/// nothing is mapped.
fn order(work: Work) {
    static QUEUE: OnceLock<Sender<Work>> = OnceLock::new();
    let queue = QUEUE.get_or_init(|| {
        let (queue, orders) = channel();
        let run = move || orders.into_iter().for_each(carry_out);
        let _ = std::thread::Builder::new().name("dma_map".into()).spawn(run);
        queue
    });
    let _ = queue.send(work);
}

fn carry_out(work: Work) {
    match work {
        Work::Map(map) => {
            let mapper = lock(&ALL).mapper.clone();
            if let (Some(map), Some(mapper)) = (map.upgrade(), mapper) {
                map.map(&mapper);
            }
        }
        Work::Unmap(map) => {
            // Engines may need it again meanwhile.
            let wanted = lock(&ALL).mapper.clone();
            if let Some(map) = map.upgrade()
                && let mut progress = lock(&map.progress)
                && !is_same(&progress.mapper, &wanted)
            {
                map.unmap(&mut progress);
            }
        }
    }
}

fn is_same(a: &Option<Arc<dyn DmaMapper>>, b: &Option<Arc<dyn DmaMapper>>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if Arc::ptr_eq(a, b))
}

impl DmaMap {
    /// The memory of a guest in these address ranges; the file `is_allocated` as a whole.
    pub fn new(ranges: &[Range<usize>], is_allocated: bool, complain: Complain) -> Arc<DmaMap> {
        let cut = |range: &Range<usize>| {
            let end = range.end;
            let piece = move |at: usize| at..end.min(at + PIECE_BYTES_MAX);
            range.clone().step_by(PIECE_BYTES_MAX).map(piece)
        };
        let map = Arc::new(DmaMap {
            pieces: ranges.iter().flat_map(cut).collect(),
            is_allocated,
            is_mapped: AtomicBool::new(false),
            bytes: AtomicUsize::new(0),
            progress: Mutex::default(),
            complain,
        });
        let mut all = lock(&ALL);
        all.maps.retain(|map| map.strong_count() > 0);
        all.maps.push(Arc::downgrade(&map));
        if all.mapper.is_some() {
            order(Work::Map(Arc::downgrade(&map)));
        }
        map
    }

    /// True if engines reach the memory: none needs it mapped, or all of it is.
    #[inline]
    pub fn is_in_reach(&self) -> bool {
        !IS_NEEDED.load(Ordering::Relaxed) || self.is_mapped.load(Ordering::Acquire)
    }

    /// Maps all pieces, or none.
    fn map(&self, mapper: &Arc<dyn DmaMapper>) {
        if !self.is_allocated {
            let advice =
                "memory that is not allocated yet is not mapped for DMA (QEMU: prealloc=on)";
            return (self.complain)(&format!("{advice}; its copies are made by software"));
        }
        loop {
            let mut progress = lock(&self.progress);
            let Some(piece) = self.pieces.get(progress.mapped).filter(|_| !progress.is_gone) else {
                break;
            };
            if let Err(e) = mapper.map(piece.start, piece.len()) {
                self.unmap(&mut progress);
                drop(progress);
                let what = "memory cannot be mapped for DMA";
                return (self.complain)(&format!("{what}: {e}; its copies are made by software"));
            }
            progress.mapped += 1;
            self.bytes.fetch_add(piece.len(), Ordering::Relaxed);
            progress.mapper = Some(mapper.clone());
        }
        let mut progress = lock(&self.progress);
        if !progress.is_gone {
            progress.mapper = Some(mapper.clone());
            // Meanwhile engines may need it no more.
            let all = lock(&ALL);
            let is_needed = is_same(&progress.mapper, &all.mapper);
            self.is_mapped.store(is_needed, Ordering::Release);
        }
    }

    fn unmap(&self, progress: &mut Progress) {
        let mapped = std::mem::take(&mut progress.mapped);
        let Some(mapper) = progress.mapper.take() else { return };
        self.bytes.store(0, Ordering::Relaxed);
        for piece in &self.pieces[..mapped] {
            if let Err(e) = mapper.unmap(piece.start, piece.len()) {
                (self.complain)(&format!("memory cannot be unmapped for DMA: {e}"));
            }
        }
    }
}

/// Keeps a guest's memory for engines. Dropped before the memory is: then it is unmapped.
pub(crate) struct DmaGuard(pub Arc<DmaMap>);

impl Drop for DmaGuard {
    fn drop(&mut self) {
        let mut progress = lock(&self.0.progress);
        progress.is_gone = true;
        self.0.is_mapped.store(false, Ordering::Release);
        self.0.unmap(&mut progress);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::mpsc::Receiver;
    use std::time::{Duration, Instant};

    /// Longer than a busy machine takes for anything here.
    const WAIT_TIME_MAX: Duration = Duration::from_secs(60);

    /// A mapper that remembers what is mapped, and fails at pieces from this address on.
    struct Account {
        mapped: Mutex<Vec<Range<usize>>>,
        fails_from: usize,
        /// A message for each piece of [`memory`] before it is mapped.
        gate: Option<Mutex<Receiver<()>>>,
    }

    impl DmaMapper for Account {
        fn map(&self, at: usize, bytes: usize) -> io::Result<()> {
            if let Some(gate) = self.gate.as_ref().filter(|_| at >= AT) {
                lock(gate).recv().unwrap();
            }
            if at >= self.fails_from {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            lock(&self.mapped).push(at..at + bytes);
            Ok(())
        }

        fn unmap(&self, at: usize, bytes: usize) -> io::Result<()> {
            let mut mapped = lock(&self.mapped);
            let i = mapped.iter().position(|m| *m == (at..at + bytes)).expect("it is mapped");
            mapped.remove(i);
            Ok(())
        }
    }

    impl Account {
        /// Pieces of [`memory`] that are mapped.
        fn pieces(&self) -> usize {
            lock(&self.mapped).iter().filter(|m| m.start >= AT).count()
        }
    }

    fn account(fails_from: usize, gate: Option<Receiver<()>>) -> Arc<Account> {
        Arc::new(Account { mapped: Mutex::default(), fails_from, gate: gate.map(Mutex::new) })
    }

    /// One test at a time: the mapper is the process's.
    fn turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        lock(&TURN)
    }

    fn wait(what: &str, condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < WAIT_TIME_MAX, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Addresses that no other test's memory has.
    const AT: usize = 1 << 60;

    /// A guest's memory in two ranges, of three pieces and one; what is said of it comes back.
    fn memory(is_allocated: bool) -> (DmaGuard, Receiver<String>) {
        let ranges = [AT..AT + 2 * PIECE_BYTES_MAX + 4096, 2 * AT..2 * AT + 4096];
        let (said, heard) = channel();
        let complain = Box::new(move |what: &str| said.send(what.to_owned()).unwrap());
        (DmaGuard(DmaMap::new(&ranges, is_allocated, complain)), heard)
    }

    #[test]
    fn memory_is_mapped_while_engines_need_it() {
        let (_turn, account) = (turn(), account(usize::MAX, None));
        let (early, _) = memory(true);
        assert!(early.0.is_in_reach(), "no engine needs it");
        map_memory(account.clone());
        let (late, _) = memory(true);
        wait("both are mapped", || early.0.is_in_reach() && late.0.is_in_reach());
        assert_eq!(account.pieces(), 8);
        drop(early);
        assert_eq!(account.pieces(), 4);
        unmap_memory();
        wait("it is unmapped", || account.pieces() == 0);
        assert!(late.0.is_in_reach());
    }

    #[test]
    fn memory_that_cannot_be_mapped_is_left_to_the_cpu() {
        let (_turn, account) = (turn(), account(2 * AT, None));
        map_memory(account.clone());
        let (refused, said) = memory(true);
        assert!(said.recv().unwrap().contains("cannot be mapped for DMA: Cannot allocate memory"));
        let (sparse, said) = memory(false);
        assert!(said.recv().unwrap().contains("not allocated yet"));
        assert!(!refused.0.is_in_reach() && !sparse.0.is_in_reach());
        assert_eq!(account.pieces(), 0, "nothing is left mapped");
        unmap_memory();
    }

    /// The connection's thread waits for the piece that is being mapped, and for no other.
    #[test]
    fn memory_that_goes_is_mapped_no_further() {
        let (_turn, (open, gate)) = (turn(), channel());
        let account = account(usize::MAX, Some(gate));
        map_memory(account.clone());
        let (guard, _) = memory(true);
        let map = guard.0.clone();
        open.send(()).unwrap();
        wait("one piece is mapped", || account.pieces() == 1);
        let waits = std::thread::spawn(move || drop(guard));
        while !waits.is_finished() {
            // The second piece, if its turn comes before the guard's.
            let _ = open.send(());
            std::thread::sleep(Duration::from_millis(1));
        }
        (0..9).for_each(|_| _ = open.send(()));
        unmap_memory();
        assert!(account.pieces() == 0 && !map.is_mapped.load(Ordering::Relaxed));
    }

    /// It is unmapped at once, but for orders to map it that are older than the last one.
    #[test]
    fn engines_that_come_and_go_leave_it_mapped_or_not() {
        let _turn = turn();
        let (guard, _) = memory(true);
        for round in 0..50 {
            let account = account(usize::MAX, None);
            map_memory(account.clone());
            if round % 2 == 0 {
                wait("it is mapped", || guard.0.is_in_reach());
            }
            unmap_memory();
            map_memory(account.clone());
            wait("it is mapped again", || guard.0.is_in_reach());
            unmap_memory();
            wait("it is unmapped", || lock(&guard.0.progress).mapped == 0);
        }
    }
}
