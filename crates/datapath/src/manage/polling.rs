//! [`Datapath`]: which core polls which receive queue, for the log.

use crate::info::{PolledQueue, Polling};
use crate::manage::{Datapath, Placement};

/// The last placement of receive queues.
#[derive(Default)]
pub(crate) struct LastPlacement {
    now: Polling,
    /// True: `now` was not taken yet.
    is_new: bool,
}

impl Placement {
    /// Core and NUMA node of the queue with this index.
    fn core_of(&self, queue: usize) -> Option<(usize, usize)> {
        let id = self.cores_of_queues[queue]?;
        self.cores.iter().find(|c| c.id == id).map(|c| (c.id, c.numa))
    }

    /// True if there are PMD threads on several NUMA nodes, and one would poll a queue of another
    /// node that is not pinned to it.
    pub fn crosses_nodes(&self) -> bool {
        let several = self.cores.iter().any(|c| c.numa != self.cores[0].numa);
        let far = |(i, q): (usize, &crate::manage::Queue)| {
            self.core_of(i).is_some_and(|(id, numa)| q.pin != Some(id) && numa != q.numa)
        };
        several && self.queues.iter().enumerate().any(far)
    }
}

impl Datapath {
    /// The placement of polled queues, if it was decided since the last call: by
    /// [`Datapath::rebalance`], or because cores, ports or pins changed.
    pub fn take_polling(&mut self) -> Option<Polling> {
        std::mem::take(&mut self.last_placement.is_new).then(|| self.last_placement.now.clone())
    }

    /// Records a placement. `asked`: [`Datapath::take_polling`] returns it even if it is unchanged.
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
