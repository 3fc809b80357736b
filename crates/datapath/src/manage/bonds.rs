//! Bonds: numbers to which packets are sent as to ports, and that spread packets over their
//! members.

use super::Datapath;
use crate::messages::Command;
use crate::tx::bond::Bond;
use flow::{BOND_NO_MIN, PortNo};
use std::sync::Arc;

impl Datapath {
    /// Sets the bond behind a number; returns the number. `no`: the number of the bond that this
    /// one replaces. None: all numbers are in use.
    pub fn put_bond(&mut self, no: Option<PortNo>, bond: &Arc<Bond>) -> Option<PortNo> {
        let is_free = |no: &PortNo| !self.bonds.contains_key(no);
        let no = no.or_else(|| (BOND_NO_MIN..flow::NO_PORT).find(is_free))?;
        self.bonds.insert(no, bond.clone());
        self.send_bond(no, Some(bond));
        Some(no)
    }

    /// Removes a bond: packets to its number become `NoPort`. On return all changes so far are
    /// complete, so a bond that gets the number next gets no packets for this one.
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
