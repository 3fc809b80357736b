//! Requests that read and change which Geneve options a bridge's fields are.

use super::Switch;
use crate::tables::tlv::{OPTIONS_BYTES_MAX, masks_of};
use crate::types::BridgeId;
use action::Region;
use flow::{TUN_METADATAS, TunMetadata};
use openflow::{OfError, TlvMap, TlvTableMod};
use std::sync::Arc;

impl Switch {
    /// Changes which options the fields of a bridge are, all or nothing.
    ///
    /// Errors: `TlvAlreadyMapped`, `TlvDupEntry`, `TlvTableFull`; `TlvInvalidDel` for a field that
    /// a flow uses.
    pub fn tlv_table_mod(&mut self, id: BridgeId, m: &TlvTableMod) -> Result<(), OfError> {
        self.finish();
        let b = self.of_bridge(id)?;
        let new = b.options.tlv.changed(m)?;
        let gone = b.options.tlv.fields.keys().filter(|i| !new.fields.contains_key(i));
        let gone = gone.fold(0u64, |all, i| all | 1 << i);
        if b.options.users.keys().any(|i| gone >> i & 1 != 0) {
            return Err(OfError::TlvInvalidDel);
        }
        let b = self.of_bridge_mut(id)?;
        b.options.masks.retain(|masks| masks.iter().all(|t| gone >> t.index & 1 == 0));
        b.options.tlv = Arc::new(new);
        let before = self.known_options();
        self.publish_later();
        self.bridge_changed(id.0);
        if before != self.known_options() {
            self.options_changed();
        }
        Ok(())
    }

    /// The options that packets of all bridges are read for.
    fn known_options(&self) -> Arc<[u32]> {
        self.published().options.clone()
    }

    /// Where outer packets come in, decisions say which options inner packets are read for.
    fn options_changed(&mut self) {
        let bridges = self.outer_bridges(self.published());
        bridges.into_iter().for_each(|b| self.region_of(b, Region::ALL));
    }

    /// The bytes that options may have in total, the number of fields, and the option of each field
    /// in use.
    pub fn tlv_table(&self, id: BridgeId) -> Result<(u32, u16, Vec<TlvMap>), OfError> {
        let maps = self.of_bridge(id)?.options.tlv.fields.values().copied().collect();
        Ok((OPTIONS_BYTES_MAX as u32, TUN_METADATAS.into(), maps))
    }

    /// Records the masks of a new flow's fields: packets have to be looked up under them.
    pub(crate) fn note_options(&mut self, id: BridgeId, fields: &[TunMetadata]) {
        let masks = masks_of(fields);
        let Ok(b) = self.bridge_mut(id) else { return };
        if !fields.is_empty() && !b.options.masks.contains(&masks) {
            b.options.masks.push(masks);
            self.publish_later();
            // The flow may be seen before the next call of `take_regions`.
            self.publish_changes();
        }
    }
}
