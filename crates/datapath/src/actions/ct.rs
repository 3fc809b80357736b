//! The operations `ct` and `ct_clear`: write what connection tracking says of a packet to its key.

use crate::actions::interpret::Sink;
use crate::batch::keys::{Line, bytes, bytes_mut};
use crate::parse::frame::Frame;
use action::Ct;
use conntrack::alg::Edit;
use conntrack::ipf::{self, Fragment};
use conntrack::{IpHeader, Meta, Ref, state};
use flow::at;
use packet::Packet;

/// The bit of `have` for key line 3.
const EXT3: u8 = 4;
/// Offset of line 3 in a key.
const LINE3: usize = at::CT_LABEL;

/// Executes `ct`. A packet that is not IP, or that connection tracking refuses, is invalid.
pub(crate) fn track<S: Sink>(sink: &mut S, ct: &Ct, p: &mut Packet, f: &mut Frame) {
    let sound = p.has_sound_checksums();
    let is_ip = matches!(bytes(&f.line)[at::ETH_TYPE..at::ETH_TYPE + 2], [8, 0] | [0x86, 0xdd]);
    let l3 = if is_ip { f.layout.l3.into() } else { p.len() };
    let (ip, port) = (IpHeader { l3, sound }, f.in_port());
    if let Some(edit) = sink.track(ct, p.data_mut(), ip, port, &mut f.ct)
        && !replace(p, &edit)
    {
        f.ct.state = state::INV | state::TRK;
    }
    if ct.nat.is_some() {
        f.reparse(p.data(), f.tags);
    }
    write_ct_fields(&f.ct, &mut f.line, &mut f.ext[2], &mut f.have);
}

/// Replaces a text in a packet by one of another length. False: a longer text has no room.
pub(crate) fn replace(p: &mut Packet, edit: &Edit) -> bool {
    let (old, new) = (p.len(), p.len().saturating_add_signed(edit.growth()));
    let fits = new <= old || p.set_len(new);
    if fits {
        edit.apply(p.data_mut(), old);
        // A packet can always be made shorter.
        let _ = p.set_len(new);
    }
    fits
}

/// The IP packet as a fragment; None: `ct` does not reassemble it with others.
pub(crate) fn fragment(ct: &Ct, p: &Packet, f: &Frame) -> Option<Fragment> {
    let recirc = bytes(&f.line)[at::RECIRC..at::RECIRC + 4].try_into().unwrap();
    ipf::read(p.data(), f.layout.l3.into(), ct.zone, u32::from_be_bytes(recirc))
}

/// Executes `ct_clear`.
pub(crate) fn clear(f: &mut Frame) {
    f.ct = Meta::default();
    write_ct_fields(&f.ct, &mut f.line, &mut f.ext[2], &mut f.have);
}

/// Writes the `ct` fields of a key, in line 0 and line 3, and sets the bit of line 3 in `have`.
#[inline]
pub(crate) fn write_ct_fields(ct: &Meta<Ref>, line: &mut Line, line3: &mut Line, have: &mut u8) {
    let line = bytes_mut(line);
    line[at::CT_STATE] = ct.state;
    line[at::CT_MARK..at::CT_MARK + 4].copy_from_slice(&ct.mark.to_be_bytes());
    *line3 = [0; 8];
    *have &= !EXT3;
    if ct.state == 0 {
        return;
    }
    *have |= EXT3;
    let b = bytes_mut(line3);
    let mut put = |at: usize, v: &[u8]| b[at - LINE3..at - LINE3 + v.len()].copy_from_slice(v);
    put(at::CT_LABEL, &ct.label.to_be_bytes());
    put(at::CT_ZONE, &ct.zone.to_be_bytes());
    let Some(t) = &ct.tuple else { return };
    if t.v6 {
        put(at::CT_IPV6_SRC, &t.src.to_be_bytes());
        put(at::CT_IPV6_DST, &t.dst.to_be_bytes());
    } else {
        put(at::CT_NW_SRC, &(t.src as u32).to_be_bytes());
        put(at::CT_NW_DST, &(t.dst as u32).to_be_bytes());
    }
    let (sport, dport) = t.key_ports();
    put(at::CT_TP_SRC, &sport.to_be_bytes());
    put(at::CT_TP_DST, &dport.to_be_bytes());
    put(at::CT_NW_PROTO, &[t.proto]);
}
