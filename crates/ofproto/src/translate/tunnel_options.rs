//! Geneve options, as fields that flows match on and actions write.

use super::actions::ones;
use crate::tables::table::{FlowRule, Table};
use crate::tables::tlv;
use crate::translate::xlate::Xlate;
use flow::{Field, TunMetadata, at, flag, look_at};
use openflow::Subfield;
use telemetry::Drop;

impl<'a, 'o> Xlate<'a, 'o> {
    /// Reads the options of a decapsulated packet. A megaflow is for packets without options, or
    /// with just these.
    pub(super) fn read_options(&mut self) {
        self.wc.set_u8(at::FLAGS, self.wc.u8(at::FLAGS) | flag::TUNNEL_OPTIONS);
        if self.key.u8(at::FLAGS) & flag::TUNNEL_OPTIONS == 0 {
            return;
        }
        self.wc.set_u64(at::TUN_OPTIONS, !0);
        match self.bridge.tlv.read(self.tunnel.options) {
            Some(fields) => {
                self.tunnel.first = fields.clone();
                self.tunnel.fields = fields;
            }
            None => {
                self.trace_warning(|| "unknown critical or malformed tunnel options".into());
                self.fail(Drop::TunnelOptions);
            }
        }
    }

    /// Sets the options of the received packet's outer header.
    pub(crate) fn options(&mut self, bytes: &'o [u8]) {
        self.tunnel.options = bytes;
    }

    /// Sets the fields of the packet.
    pub(crate) fn set_options(&mut self, fields: &[TunMetadata]) {
        for t in fields {
            if let Some(len) = self.bridge.tlv.len_of(t.index) {
                tlv::set(
                    &mut self.tunnel.fields,
                    TunMetadata::exact(t.index, &t.resized(len).value),
                );
            }
        }
        self.tunnel.first = self.tunnel.fields.clone();
    }

    /// Searches the table's rules that match on options, and returns the best of these and `found`.
    /// Lookups do not find such rules, since a packet's key does not hold options.
    #[cold]
    pub(super) fn by_options(
        &mut self,
        table: &'a Table,
        found: Option<&'a FlowRule>,
    ) -> Option<&'a FlowRule> {
        let (bridge, mut best) = (self.bridge, found);
        for masks in &bridge.tun_masks {
            masks.iter().for_each(|m| look_at(&mut self.tunnel.wc, m));
            let Some(digest) = tlv::digest_under(masks, &self.tunnel.fields) else { continue };
            let mut key = self.key;
            key.set_u64(at::TUN_MATCH, digest);
            let other = self.classify(table, &key);
            if other.map(FlowRule::priority) > best.map(FlowRule::priority) {
                best = other;
            }
        }
        self.wc.set_u64(at::TUN_MATCH, 0);
        best
    }

    pub(super) fn set_tun_metadata(&mut self, t: &TunMetadata) {
        let Some(len) = self.bridge.tlv.len_of(t.index) else { return };
        let new = t.resized(len);
        look_at(&mut self.tunnel.wc, &new);
        let old = self.tun_value(t.index, len);
        let bits = old.iter().zip(new.value.iter().zip(&new.mask));
        let value: Vec<u8> = bits.map(|(o, (v, m))| o & !m | v & m).collect();
        tlv::set(&mut self.tunnel.fields, TunMetadata::exact(t.index, &value));
    }

    pub(super) fn delete_field(&mut self, field: Field) {
        if let Field::TunMetadata(index) = field {
            self.tunnel.fields.retain(|t| t.index != index);
        }
    }

    /// The value of a field; zero if the packet does not have it.
    fn tun_value(&self, index: u8, len: usize) -> Box<[u8]> {
        match tlv::get(&self.tunnel.fields, index) {
            Some(t) => t.resized(len).value,
            None => vec![0; len].into(),
        }
    }

    /// Bits of a field, at most 128.
    pub(super) fn tun_bits(&self, index: u8, s: Subfield) -> u128 {
        let len = self.bridge.tlv.len_of(index).unwrap_or(0);
        let value = self.tun_value(index, len);
        let bit = |i: u16| {
            let byte = value.len().checked_sub(1 + usize::from(i / 8)).map_or(0, |at| value[at]);
            u128::from(byte >> (i % 8) & 1)
        };
        (0..s.bits.min(128)).fold(0, |v, i| v | bit(s.ofs + i) << i)
    }

    pub(super) fn read_tun_metadata(&mut self, index: u8, s: Subfield) -> u128 {
        self.look_at_bits(index, s);
        self.tun_bits(index, s)
    }

    fn look_at_bits(&mut self, index: u8, s: Subfield) {
        if let Some(len) = self.bridge.tlv.len_of(index) {
            let mask = place(len, s, u128::MAX);
            look_at(&mut self.tunnel.wc, &TunMetadata::masked(index, &vec![0; len], &mask));
        }
    }

    pub(super) fn write_tun_metadata(&mut self, index: u8, d: Subfield, value: u128) {
        if let Some(len) = self.bridge.tlv.len_of(index) {
            let (value, mask) = (place(len, d, value), place(len, d, u128::MAX));
            self.set_tun_metadata(&TunMetadata::masked(index, &value, &mask));
        }
    }

    /// The options of the received packet, those that it has now, and the bits that were read.
    pub(crate) fn options_seen(&self) -> [Vec<TunMetadata>; 3] {
        let of_packet = |m: &TunMetadata| match tlv::get(&self.tunnel.first, m.index) {
            Some(t) if t.value.len() == m.mask.len() => {
                TunMetadata::masked(m.index, &t.value, &m.mask)
            }
            _ => TunMetadata { present: false, ..m.clone() },
        };
        let looked_at = self.tunnel.wc.iter().map(of_packet).collect();
        [self.tunnel.first.clone(), self.tunnel.fields.clone(), looked_at]
    }
}

/// A field of `len` bytes that is zero, except for `value` in this subfield.
fn place(len: usize, s: Subfield, value: u128) -> Vec<u8> {
    let mut out = vec![0; len];
    for i in 0..s.bits.min(128) {
        let at = usize::from(s.ofs + i);
        if (value & ones(s.bits)) >> i & 1 != 0 && at / 8 < len {
            out[len - 1 - at / 8] |= 1 << (at % 8);
        }
    }
    out
}
