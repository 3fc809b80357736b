//! The thread that maps guests' memory for copy engines, and the memory of this process's guests.

use crate::dma_map::{Complain, DmaMap, DmaMaps, Work};
use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock, OnceLock};
use vhost::DmaMapper;

static MAPS: LazyLock<DmaMaps> = LazyLock::new(DmaMaps::new);

/// Has the memory of all guests mapped, now and when it changes, until [`unmap_memory`]. To be
/// called before a thread is given an engine that needs it.
pub fn map_memory(mapper: Arc<dyn DmaMapper>) {
    MAPS.need(mapper, order);
}

/// Has the memory of all guests unmapped. To be called when no thread has an engine any more.
pub fn unmap_memory() {
    MAPS.release(order);
}

/// Bytes of guests' memory that are mapped for engines.
pub fn mapped_bytes() -> usize {
    MAPS.mapped_bytes()
}

/// The memory of a guest in these address ranges, which is mapped while engines need it. The file
/// `is_allocated` as a whole.
pub(crate) fn add(ranges: &[Range<usize>], is_allocated: bool, complain: Complain) -> Arc<DmaMap> {
    let map = DmaMap::new(ranges, is_allocated, complain);
    MAPS.add(&map, order);
    map
}

/// True if engines reach a guest's memory.
#[inline]
pub(crate) fn is_in_reach(map: &DmaMap) -> bool {
    MAPS.reaches(map)
}

/// Gives the thread, which begins with the first call, something to do. Without the thread nothing
/// is mapped.
fn order(work: Work) {
    static QUEUE: OnceLock<Sender<Work>> = OnceLock::new();
    let queue = QUEUE.get_or_init(|| {
        let (queue, orders) = channel();
        let run = move || orders.into_iter().for_each(|work| MAPS.carry_out(work));
        let _ = std::thread::Builder::new().name("dma_map".into()).spawn(run);
        queue
    });
    let _ = queue.send(work);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dma_map::DmaGuard;
    use std::io;
    use std::sync::mpsc::Receiver;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
        let ranges = [AT..AT + (512 << 20) + 4096, 2 * AT..2 * AT + 4096];
        let (said, heard) = channel();
        let complain = Box::new(move |what: &str| said.send(what.to_owned()).unwrap());
        (DmaGuard(add(&ranges, is_allocated, complain)), heard)
    }

    #[test]
    fn memory_is_mapped_while_engines_need_it() {
        let (_turn, account) = (turn(), account(usize::MAX, None));
        let (early, _) = memory(true);
        assert!(is_in_reach(&early.0), "no engine needs it");
        map_memory(account.clone());
        let (late, _) = memory(true);
        wait("both are mapped", || is_in_reach(&early.0) && is_in_reach(&late.0));
        assert_eq!(account.pieces(), 8);
        drop(early);
        assert_eq!(account.pieces(), 4);
        unmap_memory();
        wait("it is unmapped", || account.pieces() == 0);
        assert!(is_in_reach(&late.0));
    }

    #[test]
    fn memory_that_cannot_be_mapped_is_left_to_the_cpu() {
        let (_turn, account) = (turn(), account(2 * AT, None));
        map_memory(account.clone());
        let (refused, said) = memory(true);
        assert!(said.recv().unwrap().contains("cannot be mapped for DMA: Cannot allocate memory"));
        let (sparse, said) = memory(false);
        assert!(said.recv().unwrap().contains("not allocated yet"));
        assert!(!is_in_reach(&refused.0) && !is_in_reach(&sparse.0));
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
        assert_eq!(account.pieces(), 0);
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
                wait("it is mapped", || is_in_reach(&guard.0));
            }
            unmap_memory();
            map_memory(account.clone());
            wait("it is mapped again", || is_in_reach(&guard.0));
            unmap_memory();
            wait("it is unmapped", || account.pieces() == 0);
        }
    }
}
