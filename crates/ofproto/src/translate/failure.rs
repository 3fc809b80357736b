//! Translations that a limit ended, or that popped from an empty stack: one is kept for the log
//! until the control side takes it. Packets cause them, so no more is kept, and no text is written
//! meanwhile.

use crate::types::BridgeId;
use flow::{Key, flow_text};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// What went wrong in the translation of a packet.
pub struct Failure {
    /// What went wrong where, and with which packet (as it was received), in ovs-vswitchd's words.
    pub text: String,
    /// For a trace: the bridge that received the packet, its key, the bytes of its tunnel's
    /// options. None: the packet was recirculated, or nothing was nested
    /// too deep and there were not too many resubmits.
    pub received: Option<(BridgeId, Key, Vec<u8>)>,
}

/// The place for one failure.
#[derive(Default)]
pub(crate) struct FailureSlot {
    full: AtomicBool,
    failure: Mutex<Option<Box<Failure>>>,
}

impl FailureSlot {
    /// True if no failure waits.
    pub fn has_room(&self) -> bool {
        !self.full.load(Ordering::Relaxed)
    }

    /// Keeps the failure of a translation of this packet, unless another thread keeps or takes one
    /// at this moment.
    pub fn keep(&self, mut failure: Box<Failure>, packet: &Key) {
        failure.text += &format!(" while processing {}", flow_text(packet, &[], &|_| None));
        if let Ok(mut place) = self.failure.try_lock() {
            place.get_or_insert(failure);
            self.full.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the failure.
    pub fn take(&self) -> Option<Box<Failure>> {
        if self.has_room() {
            return None;
        }
        let mut place = self.failure.lock().unwrap_or_else(|e| e.into_inner());
        self.full.store(false, Ordering::Relaxed);
        place.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_is_kept_until_it_is_taken() {
        let slot = FailureSlot::default();
        assert!(slot.has_room() && slot.take().is_none());
        for n in 0..3 {
            slot.keep(Box::new(Failure { text: n.to_string(), received: None }), &Key::ZERO);
            assert!(!slot.has_room());
        }
        assert!(slot.take().unwrap().text.starts_with("0 while processing in_port="));
        assert!(slot.has_room() && slot.take().is_none());
    }
}
