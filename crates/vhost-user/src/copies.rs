//! Copies of a thread's rings that its engine makes.
//!
//! There is one list for all rings of a thread, so that one doorbell serves all guests of a batch.
//! The engine reports copies in order, so the copies in flight are a queue. A ring is not released,
//! nor its guest's memory unmapped, while copies of it are in flight (`Shared::take` waits for
//! that), unless the engine was stopped.

use crate::cost::{EngineCost, Timed};
use crate::failures::Failures;
use crate::rings::OwnRing;
use crate::seat::{Order, Seat, SeatState, threshold};
use crate::shared::Shared;
use crate::tally::add;
use packet::{Packet, Pool};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use sync::cycles;
use vhost::{Batch, Engine, Job, List, Moved};

/// Copies in flight that are expected: the number that engines are configured for.
const COPIES_USUAL: usize = 1024;

/// Whether threads look for an engine.
static IN_USE: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread has an engine, or copies in flight.
    pub(crate) static LISTS: Cell<bool> = const { Cell::new(false) };
    static COPIES: RefCell<Copies> = RefCell::default();
}

/// Makes threads look for engines from now on.
pub fn use_engines() {
    IN_USE.store(true, Ordering::Relaxed);
}

/// The calling thread, which runs on core `core`, begins to move packets.
pub fn take_seat(core: usize) {
    COPIES.with_borrow_mut(|copies| copies.seat = Some(Seat::new(core)));
}

/// Settles the copies that the engine has completed. Called before packets are received.
#[inline]
pub fn begin_iteration() {
    if IN_USE.load(Ordering::Relaxed) {
        COPIES.with_borrow_mut(Copies::begin_iteration);
    }
}

/// Rings the engine's doorbell. Called after packets were sent. Returns true if copies are in
/// flight.
#[inline]
pub fn end_iteration() -> bool {
    LISTS.get() && COPIES.with_borrow_mut(Copies::end_iteration)
}

/// The calling thread stops moving packets. Waits for its engine.
pub fn leave_seat() {
    COPIES.with_borrow_mut(Copies::leave_seat);
}

/// Whether this thread has an engine, or copies in flight.
#[inline]
pub(crate) fn lists() -> bool {
    LISTS.get()
}

/// A burst to a guest begins. Returns whether one of its packets is for the engine.
#[inline]
pub(crate) fn wants(own: &mut OwnRing, ring: usize, packets: &[Packet]) -> bool {
    COPIES.with_borrow_mut(|copies| {
        own.cost.begin(ring, threshold(), &copies.cost);
        copies.count_saved(own, packets) > own.cost.limit || own.cost.samples
    })
}

/// The CPU copied a burst of `bytes` bytes, no frame of which was for the engine.
#[inline]
pub(crate) fn count_short(bytes: u64) {
    COPIES.with_borrow(|copies| copies.tally(|tally| add(&tally.cpu_bytes, bytes)));
}

/// A burst of a guest whose memory the engine does not reach, so that the CPU copies it.
#[cold]
pub(crate) fn count_unmapped() {
    COPIES.with_borrow(|copies| copies.tally(|tally| add(&tally.unmapped, 1)));
}

/// A ring, and the pool to which its sent packets return.
pub(crate) struct At<'a> {
    pub shared: &'a Arc<Shared>,
    pub ring: usize,
    pub pool: &'a Arc<dyn Pool>,
    /// The ring's index in [`Copies::targets`] at its last use.
    pub target: &'a mut usize,
}

/// Does what [`vhost::Ring::enqueue`] does, with this thread's engine. Sent packets are freed once
/// their copies are complete.
pub(crate) fn enqueue(
    at: &mut At,
    own: &mut OwnRing,
    batch: &mut Batch,
    packets: &[Packet],
    moved: &mut Moved,
) {
    COPIES.with_borrow_mut(|copies| {
        copies.ask(at.shared, own);
        let (before, bytes) = (moved.packets, moved.bytes);
        let began = copies.clock(own);
        own.ring.enqueue_listed(batch, packets, &mut copies.list, moved);
        let taken = &packets[..moved.packets - before];
        copies.count_burst(|tally| &tally.enqueues);
        copies.free(at.pool, taken);
        let jobs = copies.hand_over(at, own, taken);
        let (packets, bytes) = (moved.packets - before, moved.bytes - bytes);
        copies.measure(at, own, began, jobs, packets, bytes);
    });
}

/// Does what [`vhost::Ring::dequeue`] does, with this thread's engine.
pub(crate) fn dequeue(
    at: &mut At,
    own: &mut OwnRing,
    batch: &mut Batch,
    out: &mut Vec<Packet>,
    max: usize,
    moved: &mut Moved,
) {
    COPIES.with_borrow_mut(|copies| {
        own.cost.begin(at.ring, threshold(), &copies.cost);
        copies.ask(at.shared, own);
        let (before, packets, bytes) = (out.len(), moved.packets, moved.bytes);
        let began = copies.clock(own);
        own.pool.get_or_insert_with(|| at.pool.clone());
        own.ring.dequeue_listed(batch, &**at.pool, out, max, &mut copies.list, moved);
        copies.count_burst(|tally| &tally.dequeues);
        copies.count_saved(own, &out[before..]);
        let jobs = copies.hand_over(at, own, &[]);
        let (packets, bytes) = (moved.packets - packets, moved.bytes - bytes);
        copies.measure(at, own, began, jobs, packets, bytes);
    });
}

/// A ring with copies in flight.
pub(crate) struct CopyTarget {
    pub shared: Arc<Shared>,
    pub ring: usize,
    /// [`OwnRing::id`].
    pub id: u64,
    pub pool: Arc<dyn Pool>,
    pub in_flight: usize,
    pub failures: Failures,
    /// Descriptors were published to the guest, which perhaps has to be notified.
    pub to_notify: bool,
}

/// A copy in flight.
pub(crate) struct Flight {
    pub job: Job,
    pub target: usize,
    /// Packet to be freed when the copy is complete.
    pub packet: Option<Packet>,
}

#[derive(Default)]
pub(crate) struct Copies {
    pub seat: Option<Arc<Seat>>,
    pub engine: Option<Box<dyn Engine>>,
    /// Set: no more copies are listed; when none is in flight the engine is given back in this
    /// state.
    pub leaving: Option<SeatState>,
    pub list: List,
    pub cost: EngineCost,
    /// Copies were given to the engine since the last doorbell.
    pub waiting: bool,
    pub flights: VecDeque<Flight>,
    /// Copies whose ring was held by another thread when they ended, and whether the CPU still has
    /// to make them.
    pub late: Vec<(Flight, bool)>,
    pub targets: Vec<CopyTarget>,
    pub gone: Vec<Packet>,
    pub statuses: Vec<u32>,
    /// Number of polls in a row without a completion, and how long that has been.
    pub idle_looks: u32,
    pub idle: Option<crate::completions::Idle>,
    pub iterations: u32,
}

impl Copies {
    fn begin_iteration(&mut self) {
        match self.seat.as_ref().map_or(Order::None, |seat| seat.order()) {
            Order::None => {}
            order => self.carry_out(order),
        }
        if self.in_flight() > 0 {
            self.complete();
        }
        self.cost.begin_iteration(self.in_flight(), cycles);
        if self.leaving.is_some() && self.in_flight() == 0 {
            self.give_back();
        }
    }

    fn end_iteration(&mut self) -> bool {
        if std::mem::take(&mut self.waiting) {
            self.submit();
        }
        self.cost.end_iteration();
        if self.in_flight() > 0 {
            self.complete();
        }
        self.in_flight() > 0
    }

    /// Rings the engine's doorbell for the copies given to it.
    fn submit(&mut self) {
        let Some(engine) = &mut self.engine else { return };
        let began = self.cost.timed.then(cycles);
        engine.submit();
        if let Some(began) = began {
            self.cost.rang(cycles().saturating_sub(began));
            self.seat.iter().for_each(|seat| self.cost.publish(seat));
        }
        self.tally(|tally| add(&tally.doorbells, 1));
    }

    /// Counts what the engine saves, or would save, with these packets of a ring. Returns the bytes
    /// of the longest packet.
    #[inline]
    fn count_saved(&mut self, own: &OwnRing, packets: &[Packet]) -> usize {
        if packets.is_empty() {
            return 0;
        }
        let lens = packets.iter().map(|packet| packet.len());
        let (saved, longest) = own.cost.saved(&self.cost, lens);
        self.cost.save(saved);
        longest
    }

    pub fn in_flight(&self) -> usize {
        self.flights.len() + self.late.len()
    }

    pub fn tally(&self, f: impl FnOnce(&crate::tally::Tally)) {
        if let Some(seat) = &self.seat {
            f(&seat.tally);
        }
    }

    #[cold]
    fn carry_out(&mut self, order: Order) {
        let Some(seat) = self.seat.clone() else { return };
        match order {
            Order::None => {}
            Order::Take => {
                self.engine = seat.put(None);
                (self.leaving, self.cost) = (None, EngineCost::default());
                LISTS.set(true);
                seat.set_state(SeatState::Working);
            }
            Order::Leave if self.engine.is_some() => self.leaving = Some(SeatState::Returned),
            Order::Leave => {}
            Order::Redo => self.redo(),
        }
        seat.carried_out(order);
    }

    /// Gives back the engine, which has no copies in flight.
    #[cold]
    fn give_back(&mut self) {
        let Some(state) = self.leaving.take() else { return };
        LISTS.set(false);
        if let (Some(seat), Some(engine)) = (&self.seat, self.engine.take()) {
            seat.put(Some(engine));
            seat.set_state(state);
        }
    }

    /// Sets what may be listed of a burst on this ring.
    fn ask(&mut self, shared: &Shared, own: &OwnRing) {
        self.list.clear();
        self.list.threshold = own.cost.limit;
        self.list.room = 0;
        (self.list.copied, self.list.crowded) = (0, 0);
        if self.engine.is_none() || self.leaving.is_some() {
            return;
        }
        if own.closing || !own.ring.may_list() {
            let counter = |tally: &crate::tally::Tally| match own.closing {
                true => add(&tally.closing, 1),
                false => add(&tally.logged, 1),
            };
            return self.tally(counter);
        }
        if shared.counted.barred.is() {
            return self.tally(|tally| add(&tally.barred, 1));
        }
        let mut room = self.room();
        if room == 0 && std::mem::take(&mut self.waiting) {
            // The engine perhaps accepts no larger batch.
            self.submit();
            room = self.room();
        }
        // No ring may use all of the room.
        self.list.room = room.div_ceil(2);
    }

    fn room(&mut self) -> usize {
        self.engine.as_mut().map_or(0, |engine| engine.room())
    }

    fn count_burst(
        &self,
        which: impl FnOnce(&crate::tally::Tally) -> &std::sync::atomic::AtomicU64,
    ) {
        if self.engine.is_some() {
            self.tally(|tally| {
                add(which(tally), 1);
                add(&tally.cpu_bytes, self.list.copied);
                add(&tally.full, self.list.crowded);
            });
        }
    }

    /// Frees the packets of `taken` that are not kept for copies in flight.
    fn free(&self, pool: &Arc<dyn Pool>, taken: &[Packet]) {
        let mut next = 0;
        for kept in &self.list.kept {
            let kept = *kept as usize;
            if kept > next {
                pool.free(&taken[next..kept]);
            }
            next = kept + 1;
        }
        if next < taken.len() {
            pool.free(&taken[next..]);
        }
    }

    /// Gives the engine the copies listed on a ring that is held; `packets` are the sent packets.
    /// Returns how many copies these were if the engine accepted all of them, else 0.
    fn hand_over(&mut self, at: &mut At, own: &mut OwnRing, packets: &[Packet]) -> usize {
        if self.list.jobs.is_empty() {
            return 0;
        }
        let target = self.target(at, own.id);
        let jobs = std::mem::take(&mut self.list.jobs);
        let n = match &mut self.engine {
            // SAFETY: the ring keeps the guest's memory mapped while copies of it are in flight;
            // packets are freed, or delivered, only when their copies are complete.
            Some(engine) => unsafe { engine.copy(&jobs) },
            None => 0,
        };
        let all = if n == jobs.len() { n } else { 0 };
        let (mut i, mut kept, mut bytes, mut cpu_bytes) = (0, self.list.kept.iter(), 0, 0);
        while i < jobs.len() {
            let same = jobs[i..].iter().take_while(|job| job.slot == jobs[i].slot).count();
            let (end, split) = (i + same, (i + same).min(n).max(i));
            let packet = kept.next().and_then(|k| packets.get(*k as usize));
            // SAFETY: packets that are kept are skipped when the caller frees the sent packets.
            let mut packet = packet.map(|p| unsafe { p.duplicate() });
            for (k, job) in (i..split).zip(&jobs[i..split]) {
                bytes += u64::from(job.len);
                let packet = packet.take_if(|_| k + 1 == split);
                self.flights.push_back(Flight { job: *job, target, packet });
            }
            for job in &jobs[split..end] {
                // SAFETY: the ring is held, and the packet is not freed yet.
                unsafe { job.make() };
                own.ring.done(job.slot);
                cpu_bytes += u64::from(job.len);
            }
            if split == i {
                self.gone.extend(packet.take());
            }
            i = end;
        }
        self.cost.handed_over(n);
        self.targets[target].in_flight += n;
        if n < jobs.len() {
            own.ring.publish_done();
            at.pool.free(&self.gone);
            self.gone.clear();
        }
        self.waiting |= n > 0;
        let in_flight = self.in_flight() as u64;
        self.tally(|tally| {
            add(&tally.copies, n as u64);
            add(&tally.engine_bytes, bytes);
            add(&tally.cpu_bytes, cpu_bytes);
            let most = tally.in_flight_max.load(Ordering::Relaxed);
            tally.in_flight_max.store(most.max(in_flight), Ordering::Relaxed);
        });
        self.list.jobs = jobs;
        all
    }

    /// The time, if work on this ring is to be measured.
    #[inline]
    fn clock(&self, own: &OwnRing) -> Option<u64> {
        let is_engine = self.cost.timed && own.cost.limit != usize::MAX;
        (own.cost.samples || is_engine).then(cycles)
    }

    /// A call on a ring ended that moved so many packets and bytes, of which the CPU copied
    /// `list.copied`, and that gave `jobs` copies to the engine.
    fn measure(
        &mut self,
        at: &At,
        own: &mut OwnRing,
        began: Option<u64>,
        jobs: usize,
        packets: usize,
        bytes: u64,
    ) {
        let Some(began) = began else { return };
        let cycles = cycles().saturating_sub(began);
        if !own.cost.samples {
            if jobs > 0 {
                self.cost.listed(&own.cost, jobs, cycles);
            }
            return;
        }
        // Some of the bytes were perhaps copied by the engine, in an earlier call.
        let copied = self.list.copied;
        let packets = packets as f32 * copied as f32 / bytes.max(1) as f32;
        own.cost.measured(&Timed { packets, bytes: copied, cycles });
        if let Ok(floor) = own.cost.floor(&self.cost).try_into() {
            at.shared.counted.floors[at.ring % 2].store(floor, Ordering::Relaxed);
        }
    }

    /// Index of a ring in `targets`.
    fn target(&mut self, at: &mut At, id: u64) -> usize {
        match self.targets.get(*at.target) {
            Some(known) if known.id == id => *at.target,
            _ => {
                *at.target = self.find_target(at, id);
                *at.target
            }
        }
    }

    #[cold]
    fn find_target(&mut self, at: &At, id: u64) -> usize {
        if let Some(i) = self.targets.iter().position(|known| known.id == id) {
            return i;
        }
        let target = CopyTarget {
            shared: at.shared.clone(),
            ring: at.ring,
            id,
            pool: at.pool.clone(),
            in_flight: 0,
            failures: Failures::default(),
            to_notify: false,
        };
        match self.targets.iter().position(|known| known.in_flight == 0 && !known.to_notify) {
            Some(i) => {
                self.targets[i] = target;
                i
            }
            None => {
                self.flights.reserve(COPIES_USUAL);
                self.targets.push(target);
                self.targets.len() - 1
            }
        }
    }

    #[cold]
    fn leave_seat(&mut self) {
        self.end_iteration();
        while self.in_flight() > 0 {
            self.complete();
            let stuck = self.seat.as_ref().filter(|_| self.engine.is_none());
            if let Some(mut engine) = stuck.and_then(|seat| seat.put(None)) {
                // The control side may be waiting for this thread to end.
                engine.stop();
                self.redo();
                (self.engine, self.leaving) = (Some(engine), Some(SeatState::Stuck));
            } else if self.engine.is_none()
                && self.seat.as_ref().is_some_and(|s| s.order() == Order::Redo)
            {
                self.redo();
            }
            std::hint::spin_loop();
        }
        self.leaving.get_or_insert(SeatState::Returned);
        self.give_back();
        if let Some(seat) = self.seat.take() {
            seat.set_gone();
        }
        LISTS.set(false);
        self.targets.clear();
    }
}
