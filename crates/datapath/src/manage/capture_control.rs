//! [`Datapath`]: captures.

use crate::capture::{CAPTURED_PACKETS_MAX, Capture, CaptureFilter, Captured, Permits};
use crate::manage::Datapath;
use crate::messages::Command;
use crate::settings::WorkerId;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use sync::{Consumer, ring};

/// The capture under way.
pub(crate) struct CaptureControl {
    filter: CaptureFilter,
    permits: Arc<Permits>,
    /// The rings of captured packets, by worker; also those of workers that ended.
    rings: Vec<(WorkerId, Consumer<Box<Captured>>)>,
    /// Packets that are still to be captured.
    wanted: u64,
    /// Permits that may still be given.
    left: u64,
    /// Permits per second.
    rate: u64,
    /// Thousandths of a permit that are due.
    fraction: u64,
    /// When permits were last given.
    permitted_ms: u64,
}

impl CaptureControl {
    /// The command by which a worker takes part in the capture.
    pub fn for_worker(&mut self, id: WorkerId) -> Command {
        let (to_control, captured) = ring(CAPTURED_PACKETS_MAX);
        self.rings.push((id, captured));
        let part = Capture::new(&self.filter, self.permits.clone(), to_control);
        Command::Capture(Some(Box::new(part)))
    }

    /// Gives `n` more permits, up to the permits of one second.
    fn permit(&mut self, n: u64) {
        let there = self.permits.left.load(Ordering::Relaxed);
        let n = n.min(self.left).min(self.rate.saturating_sub(there.into()));
        self.left -= n;
        self.permits.left.fetch_add(n as u32, Ordering::Relaxed);
    }
}

impl Datapath {
    /// Begins a capture; it replaces one that is under way. `count`: packets to capture at most.
    /// `rate`: packets per second over all workers; those of one second may come at once.
    pub fn begin_capture(&mut self, filter: CaptureFilter, count: u64, rate: u32) {
        let mut capture = CaptureControl {
            filter,
            permits: Arc::default(),
            rings: Vec::new(),
            wanted: count,
            left: count,
            rate: rate.into(),
            fraction: 0,
            permitted_ms: self.aged_ms,
        };
        capture.permit(rate.into());
        for w in self.workers.iter_mut().flatten() {
            w.send(capture.for_worker(w.id));
        }
        self.capture = Some(capture);
    }

    /// Ends the capture, if there is one.
    pub fn end_capture(&mut self) {
        if self.capture.take().is_some() {
            self.workers.iter_mut().flatten().for_each(|w| w.send(Command::Capture(None)));
        }
    }

    /// Captured packets, about `bytes` bytes of them at most, the oldest first; and whether more
    /// may come.
    pub fn captured(&mut self, bytes: usize) -> (Vec<(WorkerId, Box<Captured>)>, bool) {
        let (mut all, mut left) = (Vec::new(), bytes);
        let Some(capture) = &mut self.capture else { return (all, false) };
        for (worker, ring) in &mut capture.rings {
            while left > 0
                && let Some(one) = ring.pop()
            {
                left = left.saturating_sub(size_of::<Captured>() + one.bytes.len());
                all.push((*worker, one));
            }
        }
        all.sort_by_key(|(_, one)| one.cycles);
        capture.wanted -= all.len() as u64;
        (all, capture.wanted > 0)
    }

    /// Number of packets that matched but were not captured, for lack of permits or room.
    pub fn beyond_capture(&self) -> u64 {
        self.capture.as_ref().map_or(0, |c| c.permits.beyond.load(Ordering::Relaxed))
    }

    /// Gives the permits for the time that has passed.
    pub(crate) fn permit_captures(&mut self, now_ms: u64) {
        let Some(capture) = &mut self.capture else { return };
        let passed_ms = now_ms.saturating_sub(capture.permitted_ms);
        capture.permitted_ms = now_ms;
        let thousandths = capture.fraction + passed_ms * capture.rate;
        capture.fraction = thousandths % 1000;
        capture.permit(thousandths / 1000);
    }
}
