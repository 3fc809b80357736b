//! Meters of a bridge, and the numbers that the datapath knows them by.

use crate::tables::users::Users;
use action::Meter;
use openflow::{MeterMod, meter_id};
use rpds::HashTrieMapSync;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use sync::{Domain, Published};

/// Meters of all bridges, at most (OVS's number).
pub const METERS_MAX: u32 = 1 << 18;

/// A bridge's meters as packets see them, by number. A copy is cheap.
pub(crate) type Meters = HashTrieMapSync<u32, Arc<Meter>>;

/// A meter as the control side keeps it.
pub(crate) struct MeterRec {
    pub spec: MeterMod,
    pub meter: Arc<Meter>,
    /// When it was created, ns.
    pub created: u64,
}

/// A bridge's meters as the control side keeps them.
pub(crate) struct MeterTable {
    pub by_id: BTreeMap<u32, MeterRec>,
    pub shown: Meters,
    pub published: Arc<Published<Meters>>,
    /// The flows that name each meter.
    pub users: Users,
}

impl MeterTable {
    pub fn new(domain: Domain) -> MeterTable {
        let published = Arc::new(Published::new(domain, Meters::default()));
        let (by_id, users) = Default::default();
        MeterTable { by_id, shown: Meters::default(), published, users }
    }

    /// Removes a meter, or all ([`meter_id::ALL`]), and publishes that. For all, an empty table is
    /// published at once, instead of removing them one after the other.
    pub fn remove(&mut self, which: u32) -> Vec<MeterRec> {
        let gone = match which {
            meter_id::ALL => {
                self.shown = Meters::default();
                std::mem::take(&mut self.by_id).into_values().collect()
            }
            one => {
                self.shown.remove_mut(&one);
                self.by_id.remove(&one).into_iter().collect()
            }
        };
        self.published.publish(self.shown.clone());
        gone
    }
}

/// Allocates the datapath's numbers of meters: always the lowest that is free.
#[derive(Default)]
pub(crate) struct MeterNumbers {
    used: u32,
    free: BTreeSet<u32>,
}

impl MeterNumbers {
    /// How many are left.
    pub fn left(&self) -> u32 {
        METERS_MAX - (self.used - self.free.len() as u32)
    }

    pub fn take(&mut self) -> Option<u32> {
        if let Some(id) = self.free.pop_first() {
            return Some(id);
        }
        (self.used < METERS_MAX).then(|| {
            self.used += 1;
            self.used - 1
        })
    }

    pub fn give_back(&mut self, ids: impl Iterator<Item = u32>) {
        self.free.extend(ids);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow::MeterCommand;

    fn table(n: u32) -> (MeterTable, MeterNumbers) {
        let (mut t, mut numbers) = (MeterTable::new(Domain::new()), MeterNumbers::default());
        for id in 1..=n {
            let meter = Arc::new(Meter::new(numbers.take().unwrap()));
            let spec = MeterMod { command: MeterCommand::Add, flags: 0, id, bands: vec![] };
            t.shown.insert_mut(id, meter.clone());
            t.by_id.insert(id, MeterRec { spec, meter, created: 0 });
        }
        (t, numbers)
    }

    #[test]
    fn one_meter_goes_or_all_and_their_numbers_come_back() {
        let (mut t, mut numbers) = table(100);
        let gone = t.remove(7);
        assert_eq!(gone.iter().map(|r| r.spec.id).collect::<Vec<_>>(), [7]);
        assert_eq!((t.shown.size(), t.by_id.len()), (99, 99));
        assert!(t.remove(7).is_empty());
        numbers.give_back(gone.iter().map(|r| r.meter.id()));
        let gone = t.remove(meter_id::ALL);
        assert_eq!((gone.len(), t.shown.size(), t.by_id.len()), (99, 0, 0));
        numbers.give_back(gone.iter().map(|r| r.meter.id()));
        assert_eq!([numbers.take(), numbers.take()], [Some(0), Some(1)]);
    }
}
