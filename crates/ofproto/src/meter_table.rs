//! Meters of a bridge, and the numbers that the datapath knows them by.

use action::Meter;
use openflow::MeterMod;
use rpds::HashTrieMapSync;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use sync::{Domain, Published};

/// Meters of all bridges, at most (OVS's number).
pub const METERS_MAX: u32 = 1 << 18;

/// A bridge's meters as packets see them, by number. A copy costs nothing.
pub(crate) type Meters = HashTrieMapSync<u32, Arc<Meter>>;

/// A meter.
pub(crate) struct MeterRec {
    pub spec: MeterMod,
    pub meter: Arc<Meter>,
    /// ns.
    pub created: u64,
    /// How many flows name it.
    pub flows: u32,
}

/// A bridge's meters.
pub(crate) struct MeterTable {
    pub by_id: BTreeMap<u32, MeterRec>,
    pub shown: Meters,
    pub published: Arc<Published<Meters>>,
}

impl MeterTable {
    pub fn new(domain: Domain) -> MeterTable {
        let published = Arc::new(Published::new(domain, Meters::default()));
        MeterTable { by_id: Default::default(), shown: Meters::default(), published }
    }

    /// A flow that names a meter comes or goes.
    pub fn count_flow(&mut self, id: u32, comes: bool) {
        if let Some(rec) = self.by_id.get_mut(&id) {
            rec.flows = if comes { rec.flows + 1 } else { rec.flows.saturating_sub(1) };
        }
    }
}

/// The datapath's numbers of meters: the lowest that is free.
#[derive(Default)]
pub(crate) struct MeterNumbers {
    used: u32,
    free: BTreeSet<u32>,
}

impl MeterNumbers {
    pub fn take(&mut self) -> Option<u32> {
        if let Some(id) = self.free.pop_first() {
            return Some(id);
        }
        (self.used < METERS_MAX).then(|| {
            self.used += 1;
            self.used - 1
        })
    }

    pub fn give_back(&mut self, id: u32) {
        self.free.insert(id);
    }
}
