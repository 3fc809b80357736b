//! The control side's handle, continued: captures.

use crate::capture::{CAPTURED_PACKETS_MAX, Capture, CaptureFilter, Captured, Permits};
use crate::manage::Datapath;
use crate::messages::Command;
use crate::settings::WorkerId;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use sync::{Consumer, ring};

/// A capture under way.
pub(crate) struct CaptureControl {
    filter: CaptureFilter,
    permits: Arc<Permits>,
    /// By worker; of one that ended, what it captured.
    rings: Vec<(WorkerId, Consumer<Box<Captured>>)>,
    /// Packets that the control side has not got yet.
    wanted: u64,
    /// Permits that were not given yet, those per second, and thousandths of one.
    left: u64,
    rate: u64,
    fraction: u64,
    /// When permits were given last.
    permitted_ms: u64,
}

impl CaptureControl {
    /// What makes a worker take part.
    pub fn for_worker(&mut self, id: WorkerId) -> Command {
        let (to_control, captured) = ring(CAPTURED_PACKETS_MAX);
        self.rings.push((id, captured));
        let part = Capture::new(&self.filter, self.permits.clone(), to_control);
        Command::Capture(Some(Box::new(part)))
    }

    /// Gives `n` more permits, so that never more than a second's are there.
    fn permit(&mut self, n: u64) {
        let there = self.permits.left.load(Ordering::Relaxed);
        let n = n.min(self.left).min(self.rate.saturating_sub(there.into()));
        self.left -= n;
        self.permits.left.fetch_add(n as u32, Ordering::Relaxed);
    }
}

impl Datapath {
    /// Captures packets from now on, in place of a capture that was under way: `count` of them at
    /// most, `rate` per second over all workers, a second's at once.
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

    /// Ends the capture, if one is under way.
    pub fn end_capture(&mut self) {
        if self.capture.take().is_some() {
            self.workers.iter_mut().flatten().for_each(|w| w.send(Command::Capture(None)));
        }
    }

    /// Packets that were captured, about `bytes` of them at most, the oldest first; whether there
    /// may be more to come.
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

    /// Packets that matched and were not captured, as there were too many.
    pub fn beyond_capture(&self) -> u64 {
        self.capture.as_ref().map_or(0, |c| c.permits.beyond.load(Ordering::Relaxed))
    }

    /// Housekeeping: permits by time.
    pub(crate) fn permit_captures(&mut self, now_ms: u64) {
        let Some(capture) = &mut self.capture else { return };
        let passed_ms = now_ms.saturating_sub(capture.permitted_ms);
        capture.permitted_ms = now_ms;
        let thousandths = capture.fraction + passed_ms * capture.rate;
        capture.fraction = thousandths % 1000;
        capture.permit(thousandths / 1000);
    }
}
