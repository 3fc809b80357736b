//! When receivers are notified that packets wait for them.

use crate::messages::Route;
use crate::tx::buffer::TxPort;
use flow::PortNo;
use packet::VECTOR;
use std::sync::atomic::{Ordering, fence};

/// Vectors in a row, each half full or better, after which every port is notified.
const NOTIFY_ALL_VECTORS: usize = 4;

/// Which ports' receivers are to be notified.
pub(super) struct Notifier {
    /// Ports that were sent packets of which their receivers are not notified yet.
    pub pending: Vec<PortNo>,
    /// Full vectors since all ports were notified.
    vectors_since_all: usize,
    /// The last notification was of all ports.
    pub notified_all: bool,
}

impl Default for Notifier {
    fn default() -> Self {
        Notifier { pending: Vec::new(), vectors_since_all: 0, notified_all: true }
    }
}

impl Notifier {
    /// A vector of `n` packets ended: are all receivers notified now, or only those that seem to be
    /// asleep?
    pub fn vector(&mut self, n: usize) -> bool {
        self.vectors_since_all =
            if n < VECTOR / 2 { 0 } else { (self.vectors_since_all + 1) % NOTIFY_ALL_VECTORS };
        self.vectors_since_all == 0
    }

    /// Has ports notify their receivers of what was sent: all receivers, or else (not `all`) those
    /// that seem to be asleep.
    pub fn notify(&mut self, ports: &mut [Option<TxPort>], all: bool) {
        self.notified_all = all;
        if self.pending.is_empty() {
            return;
        }
        fence(Ordering::SeqCst);
        for no in &self.pending {
            if let Some(Some(TxPort { route: Route::Queue(q), .. })) =
                ports.get_mut(usize::from(*no))
            {
                q.notify(all);
            }
        }
        if all {
            self.pending.clear();
        }
    }
}
