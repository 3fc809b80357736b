//! Meter-mods, and statistics of meters.

use crate::meter_table::MeterRec;
use crate::switch::Switch;
use crate::switch::piece::Piece;
use crate::transaction::{Remaining, Txn};
use crate::types::BridgeId;
use action::{BandConfig, BandKind, METER_BANDS_MAX, METER_TOUCH_MS, Meter};
use openflow::{Band, Match, MeterCommand, MeterMod, MeterStats, OfError, Removed, meter_id};
use std::collections::BTreeSet;
use std::sync::Arc;

const PKTPS: u16 = 2;
const NS_PER_MS: u64 = 1_000_000;

/// True if packets to controllers go through this meter.
fn is_virtual(id: u32) -> bool {
    matches!(id, meter_id::SLOWPATH | meter_id::CONTROLLER)
}

fn bands(m: &MeterMod) -> Vec<BandConfig> {
    let band = |b: &Band| match *b {
        Band::Drop { rate, burst } => BandConfig { rate, burst, kind: BandKind::Drop },
        Band::DscpRemark { rate, burst, prec } => {
            BandConfig { rate, burst, kind: BandKind::Remark(prec) }
        }
    };
    m.bands.iter().map(band).collect()
}

impl Switch {
    /// Executes a meter-mod. Deleting a meter deletes the flows that use it. Changing one resets
    /// its counters and fills its buckets, as in OVS.
    pub fn meter_mod(&mut self, id: BridgeId, m: &MeterMod, now: u64) -> Result<(), OfError> {
        let exists = self.of_bridge(id)?.meters.by_id.contains_key(&m.id);
        if m.command != MeterCommand::Delete {
            let valid = (1..=meter_id::MAX).contains(&m.id) || is_virtual(m.id);
            if !valid {
                return Err(OfError::MeterInvalid);
            }
            if m.bands.len() > METER_BANDS_MAX {
                return Err(OfError::MeterOutOfBands);
            }
        }
        match m.command {
            MeterCommand::Add if exists => Err(OfError::MeterExists),
            MeterCommand::Modify if !exists => Err(OfError::MeterUnknownMeter),
            MeterCommand::Add | MeterCommand::Modify if m.bands.is_empty() => {
                Err(OfError::MeterOutOfBands)
            }
            MeterCommand::Add => self.add_meter(id, m, now),
            MeterCommand::Modify => {
                let b = self.of_bridge_mut(id)?;
                let rec = b.meters.by_id.get_mut(&m.id).ok_or(OfError::MeterUnknownMeter)?;
                rec.meter.set(&bands(m), m.flags & PKTPS != 0, now / NS_PER_MS);
                rec.spec = m.clone();
                Ok(())
            }
            MeterCommand::Delete => self.delete_meters(id, m.id, now),
        }
    }

    fn add_meter(&mut self, id: BridgeId, m: &MeterMod, now: u64) -> Result<(), OfError> {
        // As many as the others leave: one bridge alone has half of them.
        let own = self.of_bridge(id)?.meters.by_id.len();
        if own >= self.meter_numbers.left() as usize {
            return Err(OfError::MeterOutOfMeters);
        }
        let number = self.meter_numbers.take().ok_or(OfError::MeterOutOfMeters)?;
        let meter = Arc::new(Meter::new(number));
        meter.set(&bands(m), m.flags & PKTPS != 0, now / NS_PER_MS);
        let table = &mut self.of_bridge_mut(id)?.meters;
        table.shown.insert_mut(m.id, meter.clone());
        table.published.publish(table.shown.clone());
        table.by_id.insert(m.id, MeterRec { spec: m.clone(), meter, created: now });
        if is_virtual(m.id) {
            self.bridge_changed(id.0);
        }
        Ok(())
    }

    pub(crate) fn delete_meters(
        &mut self,
        id: BridgeId,
        which: u32,
        now: u64,
    ) -> Result<(), OfError> {
        if !self.meter_users(id, which)?.is_empty() {
            self.transact(id, now, |s, txn| s.stage_meter_users(txn, which))?;
        }
        let gone = self.of_bridge_mut(id)?.meters.remove(which);
        self.meter_numbers.give_back(gone.iter().map(|rec| rec.meter.id()));
        if gone.iter().any(|rec| is_virtual(rec.spec.id)) {
            self.bridge_changed(id.0);
        }
        Ok(())
    }

    /// The flows that use a meter, or any of all.
    fn meter_users(&self, id: BridgeId, which: u32) -> Result<BTreeSet<u32>, OfError> {
        let table = &self.of_bridge(id)?.meters;
        let ids = if which == meter_id::ALL { 0..=u32::MAX } else { which..=which };
        Ok(table.users.of(table.by_id.range(ids).map(|(id, _)| *id)))
    }

    pub(crate) fn stage_meter_users(&mut self, txn: &mut Txn, which: u32) -> Result<(), OfError> {
        let users = self.meter_users(txn.bridge, which)?;
        self.cover(txn, &Match::default(), users.len());
        txn.remaining = Remaining::RemoveUsers(users.into_iter(), Removed::MeterDelete);
        Ok(())
    }

    /// Statistics of a meter, or of some of all ([`meter_id::ALL`]): those with numbers from `from`
    /// on.
    pub fn meter_stats(
        &self,
        id: BridgeId,
        which: u32,
        from: u32,
        now: u64,
    ) -> Result<Piece<MeterStats>, OfError> {
        let users = &self.of_bridge(id)?.meters.users;
        self.meters_of(id, which, from, |id, rec| {
            let ((packets, bytes), bands) = rec.meter.counted();
            let duration_ns = now.saturating_sub(rec.created);
            MeterStats { id, flow_count: users.count(id), packets, bytes, duration_ns, bands }
        })
    }

    /// Meters as they were defined (arguments as in [`Switch::meter_stats`]).
    pub fn meter_config(
        &self,
        id: BridgeId,
        which: u32,
        from: u32,
    ) -> Result<Piece<MeterMod>, OfError> {
        self.meters_of(id, which, from, |_, rec| rec.spec.clone())
    }

    fn meters_of<T>(
        &self,
        id: BridgeId,
        which: u32,
        from: u32,
        one: impl Fn(u32, &MeterRec) -> T,
    ) -> Result<Piece<T>, OfError> {
        let table = &self.of_bridge(id)?.meters.by_id;
        if which != meter_id::ALL && !table.contains_key(&which) {
            return Err(OfError::MeterUnknownMeter);
        }
        let one_meter = (which != meter_id::ALL).then_some(which);
        Ok(Piece::of(table, one_meter, from, |rec| rec.spec.bands.len(), one))
    }

    /// Keeps the clocks of meters that have no packets up to date. Cheap unless that is due.
    pub(crate) fn touch_meters(&mut self, now: u64) {
        let now_ms = now / NS_PER_MS;
        if now_ms < self.meters_touched_ms + METER_TOUCH_MS {
            return;
        }
        self.meters_touched_ms = now_ms;
        let all = self.bridges.iter().flatten().flat_map(|b| b.meters.by_id.values());
        all.for_each(|rec| rec.meter.touch(now_ms));
    }
}
