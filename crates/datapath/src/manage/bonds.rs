//! Bonds: numbers that packets are sent to like ports, and that spread them over ports.

use super::Datapath;
use crate::messages::Command;
use crate::tx::bond::Bond;
use flow::{BOND_NO_MIN, PortNo};
use std::sync::Arc;

impl Datapath {
    /// Has packets to a number leave by the bond's members; `no`: the number of a bond whose place
    /// this one takes. None: all numbers are in use.
    pub fn put_bond(&mut self, no: Option<PortNo>, bond: &Arc<Bond>) -> Option<PortNo> {
        let is_free = |no: &PortNo| !self.bonds.contains_key(no);
        let no = no.or_else(|| (BOND_NO_MIN..flow::NO_PORT).find(is_free))?;
        self.bonds.insert(no, bond.clone());
        self.send_bond(no, Some(bond));
        Some(no)
    }

    /// Packets to the number are `NoPort` from now on. Changes so far are complete then: another
    /// bond that gets the number gets none of its packets.
    pub fn del_bond(&mut self, no: PortNo) {
        if self.bonds.contains_key(&no) {
            self.send_bond(no, None);
            self.wait_for_workers();
            self.complete_changes();
            self.bonds.remove(&no);
        }
    }

    fn send_bond(&mut self, no: PortNo, bond: Option<&Arc<Bond>>) {
        let workers = self.workers.iter_mut().flatten();
        workers.for_each(|w| w.send(Command::Bond(no, bond.cloned())));
    }
}
