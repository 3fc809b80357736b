//! A model: engines that need guests' memory mapped come and go, the thread that maps carries out
//! what was ordered, a thread that moves packets has an engine copy, and the guest goes, in every
//! order that the memory model allows. `dma_map.rs` is the crate's own source, compiled with loom's
//! atomics; who has an engine is repeated here in small.

#[allow(dead_code)]
#[path = "../src/dma_map.rs"]
mod dma_map;

/// What `src/atomics.rs` is outside a model.
mod atomics {
    pub use loom::sync::atomic::{AtomicBool, Ordering};
    pub use loom::sync::{Mutex as Handed, MutexGuard as HandedGuard};
}

use dma_map::{DmaGuard, DmaMap, DmaMaps, Work};
use loom::cell::Cell;
use loom::sync::Mutex;
use loom::thread;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use vhost::DmaMapper;

/// Times that a thread is interrupted where it need not be, in one execution.
const PREEMPTIONS_MAX: usize = 4;
/// Looks of the thread that maps for orders, before the rest is done after all others ended.
const LOOKS_MAX: usize = 2;

/// A guest's memory. Plain: loom reports accesses that nothing orders.
struct Memory {
    is_mapped: Cell<bool>,
    is_gone: Cell<bool>,
}

// SAFETY: what the model is to show; loom checks it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// What maps it.
struct Container(Arc<Memory>);

impl DmaMapper for Container {
    fn map(&self, _at: usize, _bytes: usize) -> io::Result<()> {
        assert!(!self.0.is_gone.get() && !self.0.is_mapped.get());
        self.0.is_mapped.set(true);
        Ok(())
    }

    fn unmap(&self, _at: usize, _bytes: usize) -> io::Result<()> {
        assert!(!self.0.is_gone.get() && self.0.is_mapped.get());
        self.0.is_mapped.set(false);
        Ok(())
    }
}

/// Who may copy.
#[derive(Default)]
struct Engine {
    /// A thread has an engine.
    is_given: bool,
    /// The ring was taken away.
    is_closed: bool,
}

struct World {
    maps: DmaMaps,
    engine: Mutex<Engine>,
    orders: Mutex<VecDeque<Work>>,
    memory: Arc<Memory>,
}

impl World {
    fn order(&self, work: Work) {
        self.orders.lock().unwrap().push_back(work);
    }

    fn give(&self) {
        self.maps.need(Arc::new(Container(self.memory.clone())), |work| self.order(work));
        self.engine.lock().unwrap().is_given = true;
    }

    fn take_back(&self) {
        self.engine.lock().unwrap().is_given = false;
        self.maps.release(|work| self.order(work));
    }

    /// A burst that the engine copies, if it reaches the memory.
    fn copy(&self, map: &DmaMap) {
        let engine = self.engine.lock().unwrap();
        if engine.is_given && !engine.is_closed && self.maps.reaches(map) {
            assert!(self.memory.is_mapped.get() && !self.memory.is_gone.get());
        }
    }

    /// Carries out an order; false: there is none.
    fn carry_out(&self) -> bool {
        let work = self.orders.lock().unwrap().pop_front();
        work.is_some_and(|work| {
            self.maps.carry_out(work);
            true
        })
    }
}

fn run() {
    let memory = Arc::new(Memory { is_mapped: Cell::new(false), is_gone: Cell::new(false) });
    let (maps, engine, orders) = (DmaMaps::new(), Mutex::default(), Mutex::default());
    let world = Arc::new(World { maps, engine, orders, memory });
    let page = 0x1000..0x2000;
    let map = DmaMap::new(&[page], true, Box::new(|what| panic!("{what}")));
    world.maps.add(&map, |work| world.order(work));
    world.give();
    let guard = DmaGuard(map.clone());
    let spawn = |run: Box<dyn FnOnce(&World) + Send>| {
        let world = world.clone();
        thread::spawn(move || run(&world))
    };
    let maps = spawn(Box::new(|world| {
        (0..LOOKS_MAX).for_each(|_| _ = world.carry_out());
    }));
    let connection = spawn(Box::new(|world| {
        world.engine.lock().unwrap().is_closed = true;
        drop(guard);
        assert!(!world.memory.is_mapped.get(), "it goes while an engine reaches it");
        world.memory.is_gone.set(true);
    }));
    world.copy(&map);
    world.take_back();
    world.give();
    world.copy(&map);
    maps.join().unwrap();
    connection.join().unwrap();
    while world.carry_out() {}
    assert!(!world.memory.is_mapped.get());
}

#[test]
fn engines_copy_what_is_mapped_and_it_is_unmapped_before_it_goes() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(run);
}
