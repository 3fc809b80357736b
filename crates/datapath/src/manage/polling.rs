//! What the control side tells of where receive queues are polled, for logs.

use crate::info::{PolledQueue, Polling};
use crate::manage::{Datapath, Placement};

/// The last placement of receive queues.
#[derive(Default)]
pub(crate) struct LastPlacement {
    now: Polling,
    /// `now` was not asked for yet.
    is_new: bool,
}

impl Placement {
    /// Core and NUMA node of the queue with this index.
    fn core_of(&self, queue: usize) -> Option<(usize, usize)> {
        let id = self.at[queue]?;
        self.cores.iter().find(|c| c.id == id).map(|c| (c.id, c.numa))
    }

    /// Are there PMD threads on several NUMA nodes, and would one of them poll a queue of another
    /// node that is not pinned to it?
    pub fn crosses_nodes(&self) -> bool {
        let several = self.cores.iter().any(|c| c.numa != self.cores[0].numa);
        let far = |(i, q): (usize, &crate::manage::Queue)| {
            self.core_of(i).is_some_and(|(id, numa)| q.pin != Some(id) && numa != q.numa)
        };
        several && self.queues.iter().enumerate().any(far)
    }
}

impl Datapath {
    /// Where queues of polled ports are polled, if that was decided since the last call: by
    /// [`Datapath::rebalance`], or because cores, ports or pins are others.
    pub fn take_polling(&mut self) -> Option<Polling> {
        std::mem::take(&mut self.last_placement.is_new).then(|| self.last_placement.now.clone())
    }

    /// Remembers a placement; `asked`: for [`Datapath::take_polling`] even if it is the last one.
    pub(crate) fn note_placement(&mut self, placement: &Placement, asked: bool) {
        let queue = |(i, (no, queue)): (usize, &(flow::PortNo, usize))| {
            let (q, core) = (&placement.queues[i], placement.core_of(i));
            PolledQueue {
                port: self.ports[no].port.name().to_string(),
                queue: *queue,
                numa: q.numa,
                pinned: core.is_some_and(|(id, _)| q.pin == Some(id)),
                core,
            }
        };
        let now = Polling {
            how: self.settings.rxq_assign,
            cores: placement.cores.iter().map(|c| (c.id, c.numa)).collect(),
            queues: placement.names.iter().enumerate().map(queue).collect(),
        };
        if asked || now != self.last_placement.now {
            self.last_placement = LastPlacement { now, is_new: true };
            self.auto_lb.pointless = false;
        }
    }
}
