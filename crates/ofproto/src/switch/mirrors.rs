//! Mirrors (database table `Mirror`): which packets of a bridge are copied, and to where.
//! Translation makes the copies (`translate::mirror`).

use crate::bridge::Bridge;
use crate::mirroring::{
    MIRRORS_MAX, MirrorSpec, MirrorTo, MirrorView, Mirrored, Placed, Places, Target,
};
use crate::published::Bundle;
use crate::switch::Switch;
use crate::tables::counters::{Counter, Slot};
use crate::types::{BridgeId, ConfigError};
use std::collections::HashMap;

/// The mirrors of a bridge by their bits; marks the mirrored bundles, whose indexes by their names
/// are `by_name`. A mirror whose ports do not exist mirrors nothing.
pub(crate) fn view(
    b: &Bridge,
    bundles: &mut [Bundle],
    by_name: &HashMap<&str, usize>,
) -> Box<[Option<MirrorView>]> {
    let placed = &b.mirrors.placed;
    let mut all: Box<[_]> = placed.iter().map(|p| one(p.as_ref()?, by_name)).collect();
    let bits = all.iter().enumerate().map(|(i, m)| u32::from(m.is_some()) << i);
    let there = bits.fold(0, |all, bit| all | bit);
    for (name, &n) in by_name.iter().filter(|_| there != 0) {
        let Mirrored { received, sent, output } = b.mirrors.of(name);
        bundles[n].mirrors = Mirrored { received: received & there, sent: sent & there, output };
    }
    for (i, view) in all.iter().enumerate() {
        if let Some(MirrorView { to: Target::Bundle(n), .. }) = view {
            bundles[*n].mirrors.output |= 1 << i;
        }
    }
    let targets: Vec<_> = all.iter().map(|m| m.as_ref().map(|m| m.to)).collect();
    for m in all.iter_mut().flatten() {
        let same = targets.iter().enumerate().filter(|(_, to)| **to == Some(m.to));
        m.same = same.fold(0, |bits, (i, _)| bits | 1 << i);
    }
    if all.iter().any(Option::is_some) { all } else { Box::default() }
}

fn one(placed: &Placed, by_name: &HashMap<&str, usize>) -> Option<MirrorView> {
    let to = match &placed.spec.to {
        MirrorTo::Port(name) => Target::Bundle(*by_name.get(name.as_str())?),
        MirrorTo::Vlan(vid) => Target::Vlan(*vid),
    };
    let (vlans, snaplen) = (placed.spec.vlans.clone(), placed.spec.snaplen);
    Some(MirrorView { vlans, to, snaplen, credit: placed.credit, same: 0 })
}

impl Switch {
    /// Sets a bridge's mirrors. Mirrors that exist already keep their bits and counters. Returns
    /// those for which there is no bit left ([`MIRRORS_MAX`]).
    pub fn set_mirrors(
        &mut self,
        id: BridgeId,
        mirrors: Vec<MirrorSpec>,
        now: u64,
    ) -> Result<Vec<MirrorSpec>, ConfigError> {
        let mut places = std::mem::take(&mut self.bridge_mut(id)?.mirrors).placed;
        let mut changed = false;
        for place in &mut places {
            if let Some(gone) = place.take_if(|p| !mirrors.iter().any(|m| m.id == p.spec.id)) {
                self.slots.release(gone.credit, now);
                changed = true;
            }
        }
        let mut left_out = Vec::new();
        for spec in mirrors {
            if let Some(old) = places.iter_mut().flatten().find(|p| p.spec.id == spec.id) {
                changed |= old.spec != spec;
                old.spec = spec;
                continue;
            }
            let free = places.iter().position(Option::is_none).unwrap_or(places.len());
            if free >= MIRRORS_MAX {
                left_out.push(spec);
                continue;
            }
            places.resize_with(places.len().max(free + 1), || None);
            let credit = self.slots.alloc(Slot::Count(Counter::default()), now);
            places[free] = Some(Placed { spec, credit });
            changed = true;
        }
        self.bridge_mut(id)?.mirrors = Places::new(places);
        if changed {
            self.publish_later();
            self.bridge_changed(id.0);
        }
        Ok(left_out)
    }

    /// Packets and bytes that a mirror has copied, as they were received; None: there is no such
    /// mirror.
    pub fn mirror_counters(&self, id: BridgeId, mirror: u128) -> Option<(u64, u64)> {
        let places = &self.bridge(id).ok()?.mirrors.placed;
        let placed = places.iter().flatten().find(|p| p.spec.id == mirror)?;
        let count = self.slots.count(placed.credit);
        Some((count.packets, count.bytes))
    }
}
