//! `ct` and `ct_clear`: what connection tracking says of a packet goes into its key.

use crate::actions::interpret::Sink;
use crate::batch::keys::{bytes, bytes_mut};
use crate::parse::frame::Frame;
use action::Ct;
use conntrack::{At, Meta};
use flow::at;
use packet::Packet;

/// Line 3 of a key is in use.
const EXT3: u8 = 4;
/// Where line 3 starts.
const LINE3: usize = at::CT_LABEL;

/// Mbuf flags of a driver that checked IP and L4 checksums and found them right
/// (`RTE_MBUF_F_RX_IP_CKSUM_GOOD`, `RTE_MBUF_F_RX_L4_CKSUM_GOOD`).
const SOUND: u64 = 1 << 7 | 1 << 8;

/// Executes `ct`. What is not IP is invalid, as is all that connection tracking refuses.
pub(crate) fn track<S: Sink>(sink: &mut S, ct: &Ct, p: &mut Packet, f: &mut Frame) {
    let sound = p.mbuf().ol_flags & SOUND == SOUND;
    let is_ip = matches!(bytes(&f.line)[at::ETH_TYPE..at::ETH_TYPE + 2], [8, 0] | [0x86, 0xdd]);
    let l3 = if is_ip { f.layout.l3.into() } else { p.len() };
    sink.track(ct, p.data_mut(), At { l3, sound }, &mut f.ct);
    if ct.nat.is_some() {
        f.reparse(p.data(), f.tags);
    }
    show(f);
}

/// Executes `ct_clear`.
pub(crate) fn clear(f: &mut Frame) {
    f.ct = Meta::default();
    show(f);
}

/// Writes the key's fields.
fn show(f: &mut Frame) {
    let line = bytes_mut(&mut f.line);
    line[at::CT_STATE] = f.ct.state;
    line[at::CT_MARK..at::CT_MARK + 4].copy_from_slice(&f.ct.mark.to_be_bytes());
    f.ext[2] = [0; 8];
    f.have &= !EXT3;
    if f.ct.state == 0 {
        return;
    }
    f.have |= EXT3;
    let b = bytes_mut(&mut f.ext[2]);
    let mut put = |at: usize, v: &[u8]| b[at - LINE3..at - LINE3 + v.len()].copy_from_slice(v);
    put(at::CT_LABEL, &f.ct.label.to_be_bytes());
    put(at::CT_ZONE, &f.ct.zone.to_be_bytes());
    let Some(t) = &f.ct.tuple else { return };
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
