//! When the receivers of packets are notified.

use crate::messages::Route;
use crate::tx::buffer::TxPort;
use flow::PortNo;
use packet::VECTOR;
use std::sync::atomic::{Ordering, fence};

/// Vectors in a row, each half full or more, after which all receivers are notified.
const NOTIFY_ALL_VECTORS: usize = 4;

/// Which receivers are to be notified.
pub(super) struct Notifier {
    /// Ports that were sent packets whose receivers are not notified of them yet.
    pub pending: Vec<PortNo>,
    /// Vectors, each half full or more, since all receivers were notified.
    vectors_since_all: usize,
    /// True if the last notification was of all receivers.
    pub notified_all: bool,
}

impl Default for Notifier {
    fn default() -> Self {
        Notifier { pending: Vec::new(), vectors_since_all: 0, notified_all: true }
    }
}

impl Notifier {
    /// Records that a vector of `n` packets ended. True: all receivers are notified now; false:
    /// only those that seem asleep.
    pub fn end_vector(&mut self, n: usize) -> bool {
        self.vectors_since_all =
            if n < VECTOR / 2 { 0 } else { (self.vectors_since_all + 1) % NOTIFY_ALL_VECTORS };
        self.vectors_since_all == 0
    }

    /// Notifies the receivers of pending ports: all of them, or unless `all` those that seem
    /// asleep.
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
