//! The bonds that a worker sends to.

use crate::tx::bond::Bond;
use flow::PortNo;
use std::sync::Arc;

/// The bonds, by the port number that stands for each.
#[derive(Default)]
pub(super) struct Bonds(Vec<(PortNo, Arc<Bond>)>);

impl Bonds {
    /// Sets the bond of this number; None: there is none.
    pub fn set(&mut self, no: PortNo, bond: Option<Arc<Bond>>) {
        self.0.retain(|(other, _)| *other != no);
        self.0.extend(bond.map(|bond| (no, bond)));
    }

    /// The bond of this number.
    pub fn get(&self, no: PortNo) -> Option<Arc<Bond>> {
        self.0.iter().find(|(other, _)| *other == no).map(|(_, bond)| bond.clone())
    }
}
