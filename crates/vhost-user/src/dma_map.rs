//! Maps guests' memory for copy engines that do not use the CPU's page tables: devices on vfio-pci.
//!
//! To map memory is to pin it, which takes seconds for a large guest. So one thread
//! (`dma_thread.rs`) maps the memory of all guests, piece by piece, and the CPU makes a guest's
//! copies until all of its memory is mapped. The connection's thread, which unmaps the memory
//! before it goes, waits for one piece at most. Memory that its file does not have yet is not
//! mapped: pinning it would take it from the machine in our name.

use crate::atomics::{AtomicBool, Handed, HandedGuard, Ordering};
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError, Weak};
use vhost::DmaMapper;

/// Bytes that are mapped at once: a tenth of a second where a core clears 2.5 GB/s.
const PIECE_BYTES_MAX: usize = 256 << 20;

/// Writes a line about a guest's memory to the log.
pub(crate) type Complain = Box<dyn Fn(&str) + Send + Sync>;

/// The memory of all guests, and what maps it while engines need that.
pub(crate) struct DmaMaps {
    is_needed: AtomicBool,
    all: Handed<All>,
}

#[derive(Default)]
struct All {
    /// What maps; Some while engines need mapped memory.
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
    progress: Handed<Progress>,
    complain: Complain,
}

#[derive(Default)]
struct Progress {
    /// What mapped the pieces.
    mapper: Option<Arc<dyn DmaMapper>>,
    /// Pieces that are mapped, from the first on.
    mapped: usize,
    /// The memory goes: nothing may be mapped any more.
    is_gone: bool,
}

/// What the mapping thread is to do with a guest's memory.
pub(crate) enum Work {
    Map(Weak<DmaMap>),
    Unmap(Weak<DmaMap>),
}

fn lock<T>(mutex: &Handed<T>) -> HandedGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_same(a: &Option<Arc<dyn DmaMapper>>, b: &Option<Arc<dyn DmaMapper>>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if Arc::ptr_eq(a, b))
}

impl DmaMaps {
    pub fn new() -> DmaMaps {
        DmaMaps { is_needed: AtomicBool::new(false), all: Handed::new(All::default()) }
    }

    /// Engines need the memory of all guests, now and when it changes, until [`DmaMaps::release`].
    /// `order` is given what is to be done, in order. To be called before a thread is given such an
    /// engine.
    pub fn need(&self, mapper: Arc<dyn DmaMapper>, order: impl Fn(Work)) {
        let mut all = lock(&self.all);
        if all.mapper.is_none() {
            all.mapper = Some(mapper);
            self.is_needed.store(true, Ordering::Release);
            all.maps.iter().for_each(|map| order(Work::Map(map.clone())));
        }
    }

    /// No engine needs the memory any more, nor has any a thread. `order` is given what is to be
    /// done, in order.
    pub fn release(&self, order: impl Fn(Work)) {
        let mut all = lock(&self.all);
        if all.mapper.take().is_some() {
            self.is_needed.store(false, Ordering::Release);
            for map in &all.maps {
                map.upgrade().inspect(|map| map.is_mapped.store(false, Ordering::Release));
                order(Work::Unmap(map.clone()));
            }
        }
    }

    /// Adds a guest's memory. `order` is given what is to be done.
    pub fn add(&self, map: &Arc<DmaMap>, order: impl Fn(Work)) {
        let mut all = lock(&self.all);
        all.maps.retain(|map| map.strong_count() > 0);
        all.maps.push(Arc::downgrade(map));
        if all.mapper.is_some() {
            order(Work::Map(Arc::downgrade(map)));
        }
    }

    /// Does what was ordered: on one thread, in order.
    pub fn carry_out(&self, work: Work) {
        let wanted = lock(&self.all).mapper.clone();
        match work {
            Work::Map(map) => {
                if let (Some(map), Some(mapper)) = (map.upgrade(), wanted) {
                    map.map(self, &mapper);
                }
            }
            Work::Unmap(map) => {
                // Engines may need it again meanwhile.
                if let Some(map) = map.upgrade()
                    && let mut progress = lock(&map.progress)
                    && !is_same(&progress.mapper, &wanted)
                {
                    map.unmap(&mut progress);
                }
            }
        }
    }

    /// True if engines reach the memory: none needs it mapped, or all of it is.
    #[inline]
    pub fn reaches(&self, map: &DmaMap) -> bool {
        !self.is_needed.load(Ordering::Relaxed) || map.is_mapped.load(Ordering::Acquire)
    }

    /// Bytes of guests' memory that are mapped for engines.
    pub fn mapped_bytes(&self) -> usize {
        let maps: Vec<_> = lock(&self.all).maps.iter().filter_map(Weak::upgrade).collect();
        maps.iter().map(|map| map.bytes.load(Ordering::Relaxed)).sum()
    }
}

impl DmaMap {
    /// The memory of a guest in these address ranges; the file `is_allocated` as a whole.
    pub fn new(ranges: &[Range<usize>], is_allocated: bool, complain: Complain) -> Arc<DmaMap> {
        let cut = |range: &Range<usize>| {
            let end = range.end;
            let piece = move |at: usize| at..end.min(at + PIECE_BYTES_MAX);
            range.clone().step_by(PIECE_BYTES_MAX).map(piece)
        };
        Arc::new(DmaMap {
            pieces: ranges.iter().flat_map(cut).collect(),
            is_allocated,
            is_mapped: AtomicBool::new(false),
            bytes: AtomicUsize::new(0),
            progress: Handed::new(Progress::default()),
            complain,
        })
    }

    /// Maps all pieces, or none.
    fn map(&self, maps: &DmaMaps, mapper: &Arc<dyn DmaMapper>) {
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
            let all = lock(&maps.all);
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
