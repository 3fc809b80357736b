//! Actions to the wire.
//!
//! Each action takes the form that Open vSwitch 3.1 gives it in a version: what 1.0 does with an
//! action of its own is a set-field from 1.2 on, what later versions have and 1.0 has not is
//! Nicira's. An action without any form in a version is left out.

use crate::action_types::{act10, act11, nxast};
use crate::actions_nx::NXM_OF_IN_PORT;
use crate::conntrack::{encode_ct, encode_nat};
use crate::encap;
use crate::fields_out::{Nx, Put, form};
use crate::learn;
use crate::oxm::port_to_10;
use crate::prereq::{VLAN_PRESENT, eth, ip};
use crate::{Action, Match, OfPort, Subfield, TestAction, Version, port};
use flow::{Field, at};

/// Writes a list of actions of a flow that matches anything, or of a packet-out.
pub fn encode_actions(version: Version, actions: &[Action], out: &mut Vec<u8>) {
    Encoder::new(version, &Match::default(), out).put_all(actions);
}

/// Writes the actions of a flow. What the match says of VLAN tag and IP protocol decides how 1.0's
/// actions on them are written for later versions.
pub fn encode_flow_actions(version: Version, m: &Match, actions: &[Action], out: &mut Vec<u8>) {
    Encoder::new(version, m, out).put_all(actions);
}

/// Writes actions one after the other and knows what earlier ones did.
struct Encoder<'a> {
    put: Put<'a>,
    has_vlan: bool,
    proto: u8,
}

impl<'a> Encoder<'a> {
    fn new(version: Version, m: &Match, out: &'a mut Vec<u8>) -> Self {
        Encoder {
            put: Put { version, out },
            has_vlan: m.key.u16(at::VLAN) & VLAN_PRESENT != 0,
            proto: m.key.u8(at::PROTO),
        }
    }

    fn put_all(&mut self, actions: &[Action]) {
        actions.iter().for_each(|a| self.put_one(a));
    }

    fn is_10(&self) -> bool {
        self.put.version == Version::V10
    }

    fn has_set_field(&self) -> bool {
        self.put.version >= Version::V12
    }

    fn put_one(&mut self, action: &Action) {
        use Action::*;
        match action {
            Output { .. } | OutputReg { .. } | Controller { .. } | Enqueue { .. } | Group(_) => {
                self.put_output(action);
            }
            SetQueue(q) => self.put_queue(*q),
            PopQueue => self.put.nicira(nxast::POP_QUEUE, &[]),
            SetField { field, value, mask } => self.put_set_field(*field, *value, *mask),
            SetTunMetadata(t) => self.put.set_tun_metadata(t),
            Load { dst, value } => self.put.load(*dst, *value),
            Move { src, dst } => self.put_move(*src, *dst),
            Push(s) => self.put_stack(nxast::STACK_PUSH, *s),
            Pop(s) => self.put_stack(nxast::STACK_POP, *s),
            SetVlanVid { .. } | SetVlanPcp { .. } | StripVlan { .. } | PushVlan { .. } => {
                self.put_vlan(action);
            }
            SetEthSrc(_)
            | SetEthDst(_)
            | SetIpSrc(_)
            | SetIpDst(_)
            | SetL4Src(_)
            | SetL4Dst(_)
            | SetIpDscp(_)
            | SetIpEcn(_)
            | SetIpTtl(_)
            | DecTtl { .. } => self.put_legacy(action),
            PushMpls { .. }
            | PopMpls { .. }
            | SetMplsLabel(_)
            | SetMplsTc(_)
            | SetMplsTtl(_)
            | DecMplsTtl => self.put_mpls(action),
            Meter(id) if self.put.version >= Version::V15 => {
                self.put.standard(act11::METER, &id.to_be_bytes());
            }
            Meter(_) => {}
            _ => self.put_nicira(action),
        }
    }

    fn put_output(&mut self, action: &Action) {
        match action {
            Action::Output { port, max_len, trunc: 0 } => self.put_port(*port, *max_len),
            Action::Output { port, trunc, .. } => {
                self.put.nx(nxast::OUTPUT_TRUNC, |nx| nx.u16(*port as u16).u32(*trunc));
            }
            Action::OutputReg { src, max_len } => self.put_output_reg(*src, *max_len),
            Action::Enqueue { port, queue } if self.is_10() => {
                let [a, b] = (*port as u16).to_be_bytes();
                let q = queue.to_be_bytes();
                let body = [a, b, 0, 0, 0, 0, 0, 0, q[0], q[1], q[2], q[3]];
                self.put.standard(act10::ENQUEUE, &body);
            }
            Action::Enqueue { port, queue } => {
                self.put_queue(*queue);
                self.put_port(*port, u16::MAX);
                self.put.nicira(nxast::POP_QUEUE, &[]);
            }
            Action::Group(id) if self.is_10() => {
                self.put.nx(nxast::GROUP, |nx| nx.zeros(2).u32(*id));
            }
            Action::Group(id) => self.put.standard(act11::GROUP, &id.to_be_bytes()),
            _ => self.put_controller(action),
        }
    }

    fn put_port(&mut self, port: OfPort, max_len: u16) {
        let [c, d] = max_len.to_be_bytes();
        if self.is_10() {
            let [a, b] = (port as u16).to_be_bytes();
            self.put.standard(act10::OUTPUT, &[a, b, c, d]);
        } else {
            let p = port.to_be_bytes();
            self.put.standard(act11::OUTPUT, &[p[0], p[1], p[2], p[3], c, d]);
        }
    }

    fn put_output_reg(&mut self, src: Subfield, max_len: u16) {
        let v = Version::V10;
        if form(v, src).class.experimenter().is_some() {
            self.put.nx(nxast::OUTPUT_REG2, |nx| nx.ofs_bits(src).u16(max_len).id(v, src).zeros(2));
        } else {
            self.put.nx(nxast::OUTPUT_REG, |nx| nx.ofs_bits(src).id(v, src).u16(max_len).zeros(6));
        }
    }

    fn put_controller(&mut self, action: &Action) {
        use crate::Reason;
        use crate::action_types::controller2::*;
        let Action::Controller { max_len, reason, id, userdata, pause, meter } = action else {
            return;
        };
        let old_form = userdata.is_empty() && !pause && meter.is_none();
        if old_form && *reason == Reason::Action && *id == 0 {
            return self.put_port(port::CONTROLLER, *max_len);
        }
        if old_form {
            return self
                .put
                .nx(nxast::CONTROLLER, |nx| nx.u16(*max_len).u16(*id).u8(*reason as u8).zeros(1));
        }
        self.put.nx(nxast::CONTROLLER2, |mut nx| {
            nx = nx.zeros(6);
            if *max_len != u16::MAX {
                nx = nx.u16(MAX_LEN).u16(8).u16(*max_len).zeros(2);
            }
            if *id != 0 {
                nx = nx.u16(ID).u16(8).u16(*id).zeros(2);
            }
            if *reason != Reason::Action {
                nx = nx.u16(REASON).u16(8).u8(*reason as u8).zeros(3);
            }
            if !userdata.is_empty() {
                let len = 4 + userdata.len();
                let pad = len.next_multiple_of(8) - len;
                nx = nx.u16(USERDATA).u16(len as u16).bytes(userdata).zeros(pad);
            }
            if *pause {
                nx = nx.u16(PAUSE).u16(4).zeros(4);
            }
            match meter {
                Some(meter) => nx.u16(METER).u16(8).u32(*meter),
                None => nx,
            }
        });
    }

    fn put_queue(&mut self, queue: u32) {
        if self.is_10() {
            self.put.nx(nxast::SET_QUEUE, |nx| nx.zeros(2).u32(queue));
        } else {
            self.put.standard(act11::SET_QUEUE, &queue.to_be_bytes());
        }
    }

    /// 1.5 has set-field with masks, 1.2 to 1.4 without, older versions not at all.
    fn put_set_field(&mut self, field: Field, value: u128, mask: u128) {
        let full = match field {
            Field::IpTos => 0xfc,
            f => f.full(),
        };
        let whole = mask & full == full;
        let version = self.put.version;
        if version >= Version::V15 || (whole && version >= Version::V12) {
            self.put.set_field(field, value, mask);
        } else if !whole || !self.put_set_as_legacy(field, value) {
            self.put.load_field(field, value, mask);
        }
    }

    /// Writes a set-field as an action of 1.0 or 1.1, if there is one.
    fn put_set_as_legacy(&mut self, field: Field, value: u128) -> bool {
        if self.put.version >= Version::V12 {
            return false;
        }
        let mac = || *value.to_be_bytes().last_chunk::<6>().expect("16 bytes have 6");
        let addr = (value as u32).to_be_bytes();
        let action = match field {
            Field::EthSrc => Action::SetEthSrc(mac()),
            Field::EthDst => Action::SetEthDst(mac()),
            Field::Ipv4Src => Action::SetIpSrc(addr),
            Field::Ipv4Dst => Action::SetIpDst(addr),
            Field::IpTos => Action::SetIpDscp(value as u8),
            Field::IpDscp => Action::SetIpDscp((value as u8) << 2),
            Field::IpEcn => Action::SetIpEcn(value as u8),
            Field::TcpSrc | Field::UdpSrc => Action::SetL4Src(value as u16),
            Field::TcpDst | Field::UdpDst => Action::SetL4Dst(value as u16),
            Field::VlanVid => {
                Action::SetVlanVid { vid: value as u16 & 0xfff, push_if_absent: false }
            }
            Field::VlanPcp => Action::SetVlanPcp { pcp: value as u8, push_if_absent: false },
            Field::VlanTci => {
                self.put_set_tci(value as u16);
                return true;
            }
            _ => return false,
        };
        self.put_one(&action);
        true
    }

    fn put_set_tci(&mut self, tci: u16) {
        if tci & VLAN_PRESENT == 0 {
            return self.put_vlan(&Action::StripVlan { pop: true });
        }
        let (vid, pcp) = (tci & 0xfff, (tci >> 13) as u8);
        self.put_vlan(&Action::SetVlanVid { vid, push_if_absent: true });
        self.put_vlan(&Action::SetVlanPcp { pcp, push_if_absent: true });
    }

    fn put_move(&mut self, src: Subfield, dst: Subfield) {
        if self.put.version < Version::V15 {
            let v = Version::V10;
            return self.put.nx(nxast::REG_MOVE, |nx| {
                nx.u16(dst.bits).u16(src.ofs).u16(dst.ofs).id(v, src).id(v, dst)
            });
        }
        let [a, b] = act11::COPY_FIELD.to_be_bytes();
        let v = Version::V15;
        self.put.action(&[a, b, 0, 0], |out| {
            let nx = Nx::new(out).u16(dst.bits).u16(src.ofs).u16(dst.ofs).zeros(2);
            nx.id(v, src).id(v, dst);
        });
    }

    fn put_stack(&mut self, kind: u16, s: Subfield) {
        self.put.nx(kind, |nx| {
            let wide = form(Version::V10, s).class.experimenter().is_some();
            nx.u16(s.ofs).id(Version::V10, s).u16(s.bits).zeros(if wide { 2 } else { 6 })
        });
    }

    fn put_vlan(&mut self, action: &Action) {
        match action {
            Action::SetVlanVid { vid, push_if_absent } => {
                self.push_vlan_if(*push_if_absent);
                if self.has_set_field() {
                    self.put.set_whole(Field::VlanVid, (vid | VLAN_PRESENT).into());
                } else {
                    self.put.standard(act11::SET_VLAN_VID, &vid.to_be_bytes());
                }
            }
            Action::SetVlanPcp { pcp, push_if_absent } => {
                self.push_vlan_if(*push_if_absent);
                if self.has_set_field() {
                    self.put.set_whole(Field::VlanPcp, (*pcp).into());
                } else {
                    self.put.standard(act11::SET_VLAN_PCP, &[*pcp]);
                }
            }
            Action::PushVlan { ethertype } => {
                self.has_vlan = true;
                // 1.0 pushes when it sets the VID or PCP, which should follow.
                if !self.is_10() {
                    self.put.standard(act11::PUSH_VLAN, &ethertype.to_be_bytes());
                }
            }
            _ => {
                self.has_vlan = false;
                let kind = if self.is_10() { act10::STRIP_VLAN } else { act11::POP_VLAN };
                self.put.standard(kind, &[]);
            }
        }
    }

    fn push_vlan_if(&mut self, push_if_absent: bool) {
        if push_if_absent && !self.has_vlan && !self.is_10() {
            self.put.standard(act11::PUSH_VLAN, &eth::VLAN.to_be_bytes());
        }
        self.has_vlan = true;
    }

    /// 1.0's number of an action that 1.1 has too, under a number one lower up to the TOS.
    fn legacy(&mut self, kind11: u16, body: &[u8]) {
        let shifted = self.is_10() && kind11 <= act11::SET_NW_TOS;
        self.put.standard(kind11 + u16::from(shifted), body);
    }

    /// Sets a whole field, or writes 1.0 and 1.1's action for it.
    fn set_or_legacy(&mut self, field: Field, value: u128, kind11: u16, body: &[u8]) {
        if self.has_set_field() {
            self.put.set_whole(field, value);
        } else {
            self.legacy(kind11, body);
        }
    }

    fn put_legacy(&mut self, action: &Action) {
        use crate::oxm::get_be;
        let is_10 = self.is_10();
        match action {
            Action::SetEthSrc(a) => {
                self.set_or_legacy(Field::EthSrc, get_be(a), act11::SET_DL_SRC, &pad12(a));
            }
            Action::SetEthDst(a) => {
                self.set_or_legacy(Field::EthDst, get_be(a), act11::SET_DL_DST, &pad12(a));
            }
            Action::SetIpSrc(a) => {
                self.set_or_legacy(Field::Ipv4Src, get_be(a), act11::SET_NW_SRC, a);
            }
            Action::SetIpDst(a) => {
                self.set_or_legacy(Field::Ipv4Dst, get_be(a), act11::SET_NW_DST, a);
            }
            Action::SetIpDscp(v) => {
                self.set_or_legacy(Field::IpDscp, (v >> 2).into(), act11::SET_NW_TOS, &[*v]);
            }
            Action::SetIpEcn(v) if is_10 => self.load_whole(Field::IpEcn, (*v).into()),
            Action::SetIpEcn(v) => {
                self.set_or_legacy(Field::IpEcn, (*v).into(), act11::SET_NW_ECN, &[*v]);
            }
            Action::SetIpTtl(v) if is_10 => self.load_whole(Field::IpTtl, (*v).into()),
            Action::SetIpTtl(v) => self.put.standard(act11::SET_NW_TTL, &[*v]),
            Action::SetL4Src(p) => self.put_l4(0, *p),
            Action::SetL4Dst(p) => self.put_l4(1, *p),
            Action::DecTtl { ids: Some(ids) } => {
                let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_be_bytes()).collect();
                let n = (ids.len() / 2) as u16;
                self.put.nx(nxast::DEC_TTL_CNT_IDS, |nx| nx.u16(n).zeros(4).bytes(&ids));
            }
            _ if is_10 => self.put.nicira(nxast::DEC_TTL, &[]),
            _ => self.put.standard(act11::DEC_NW_TTL, &[]),
        }
    }

    fn load_whole(&mut self, field: Field, value: u128) {
        self.put.load_field(field, value, field.full());
    }

    /// The source (0) or destination (1) port of the protocol that the flow matches.
    fn put_l4(&mut self, which: u16, number: u16) {
        let fields = match self.proto {
            ip::TCP => Some([Field::TcpSrc, Field::TcpDst]),
            ip::UDP => Some([Field::UdpSrc, Field::UdpDst]),
            ip::SCTP => Some([Field::SctpSrc, Field::SctpDst]),
            _ => None,
        };
        match fields.filter(|_| self.has_set_field()) {
            Some(fields) => self.put.set_whole(fields[usize::from(which)], number.into()),
            None => self.put.standard(act11::SET_TP_SRC + which, &number.to_be_bytes()),
        }
    }

    fn put_mpls(&mut self, action: &Action) {
        let whole = self.has_set_field();
        match action {
            Action::SetMplsLabel(v) if whole => self.put.set_whole(Field::MplsLabel, (*v).into()),
            Action::SetMplsTc(v) if whole => self.put.set_whole(Field::MplsTc, (*v).into()),
            Action::SetMplsLabel(v) if self.is_10() => {
                self.put.nx(nxast::SET_MPLS_LABEL, |nx| nx.zeros(2).u32(*v));
            }
            Action::SetMplsLabel(v) => self.put.standard(act11::SET_MPLS_LABEL, &v.to_be_bytes()),
            Action::SetMplsTc(v) => self.both(nxast::SET_MPLS_TC, act11::SET_MPLS_TC, &[*v]),
            Action::SetMplsTtl(v) => self.both(nxast::SET_MPLS_TTL, act11::SET_MPLS_TTL, &[*v]),
            Action::PushMpls { ethertype } => {
                self.both(nxast::PUSH_MPLS, act11::PUSH_MPLS, &ethertype.to_be_bytes());
            }
            Action::PopMpls { ethertype } => {
                self.both(nxast::POP_MPLS, act11::POP_MPLS, &ethertype.to_be_bytes());
            }
            _ => self.both(nxast::DEC_MPLS_TTL, act11::DEC_MPLS_TTL, &[]),
        }
    }

    /// Nicira's number in 1.0, the standard one later; the same body.
    fn both(&mut self, nicira: u16, standard: u16, body: &[u8]) {
        if self.is_10() {
            self.put.nicira(nicira, body);
        } else {
            self.put.standard(standard, body);
        }
    }

    /// What is Nicira's in all versions.
    fn put_nicira(&mut self, action: &Action) {
        let put = &mut self.put;
        match action {
            Action::Exit => put.nicira(nxast::EXIT, &[]),
            Action::Test(TestAction::Slow) => put.nicira(nxast::DEBUG_SLOW, &[]),
            Action::Test(TestAction::Recirc) => put.nicira(nxast::DEBUG_RECIRC, &[]),
            Action::CtClear => put.nicira(nxast::CT_CLEAR, &[]),
            Action::Ct(ct) => {
                let (version, has_vlan, proto) = (put.version, self.has_vlan, self.proto);
                encode_ct(put, ct, |out| {
                    Encoder { put: Put { version, out }, has_vlan, proto }.put_all(&ct.actions);
                });
            }
            Action::Nat(nat) => encode_nat(put, nat),
            Action::CheckPktLarger { len, dst } => put.nx(nxast::CHECK_PKT_LARGER, |nx| {
                let wide = form(Version::V10, *dst).class.experimenter().is_some();
                nx.u16(*len).u16(dst.ofs).id(Version::V10, *dst).zeros(if wide { 2 } else { 6 })
            }),
            Action::Note(data) => put.nicira(nxast::NOTE, data),
            Action::Encap(_) | Action::Decap(_) | Action::DecNshTtl => encap::encode(put, action),
            Action::FinTimeout { idle, hard } => {
                put.nx(nxast::FIN_TIMEOUT, |nx| nx.u16(*idle).u16(*hard));
            }
            Action::Conjunction { id, clause, n_clauses } => {
                put.nx(nxast::CONJUNCTION, |nx| nx.u8(*clause).u8(*n_clauses).u32(*id));
            }
            Action::DeleteField(field) => {
                let whole = Subfield { field: *field, ofs: 0, bits: field.bits() as u16 };
                put.nx(nxast::DELETE_FIELD, |nx| nx.id(Version::V10, whole).zeros(10));
            }
            Action::SetTunnel { id, .. } if put.version >= Version::V12 => {
                put.set_whole(Field::TunId, (*id).into());
            }
            Action::SetTunnel { id, wide: true } => {
                put.nx(nxast::SET_TUNNEL64, |nx| nx.zeros(6).u64(*id));
            }
            Action::SetTunnel { id, wide: false } => {
                put.nx(nxast::SET_TUNNEL, |nx| nx.zeros(2).u32(*id as u32));
            }
            Action::Resubmit { in_port, table, ct } => put_resubmit(put, *in_port, *table, *ct),
            Action::Clone(list) => {
                let (version, has_vlan, proto) = (put.version, self.has_vlan, self.proto);
                put.vendor(crate::action_types::NICIRA, nxast::CLONE, |out| {
                    out.extend([0; 6]);
                    Encoder { put: Put { version, out }, has_vlan, proto }.put_all(list);
                });
            }
            _ => put_measures(put, action),
        }
    }
}

/// Always in the form with a table, as ovs-ofctl sends it; 0xff is the current one.
fn put_resubmit(put: &mut Put, in_port: Option<OfPort>, table: Option<u8>, ct: bool) {
    let port = in_port.unwrap_or(port::IN_PORT) as u16;
    let kind = if ct { nxast::RESUBMIT_TABLE_CT } else { nxast::RESUBMIT_TABLE };
    put.nx(kind, |nx| nx.u16(port).u8(table.unwrap_or(0xff)).zeros(3));
}

/// Multipath, bundle, learn and sample.
fn put_measures(put: &mut Put, action: &Action) {
    match action {
        Action::Multipath { fields, basis, algorithm, max_link, arg, dst } => {
            put.nx(nxast::MULTIPATH, |nx| {
                let nx = nx.u16(*fields).u16(*basis).zeros(2).u16(*algorithm).u16(*max_link);
                nx.u32(*arg).zeros(2).ofs_bits(*dst).id(Version::V10, *dst)
            });
        }
        Action::Learn(l) => {
            let kind = if learn::is_second(l) { nxast::LEARN2 } else { nxast::LEARN };
            put.nx(kind, |nx| learn::encode(l, nx));
        }
        Action::Bundle(b) => {
            let kind = if b.dst.is_some() { nxast::BUNDLE_LOAD } else { nxast::BUNDLE };
            put.nx(kind, |nx| {
                let nx = nx.u16(b.algorithm).u16(b.fields).u16(b.basis).u32(NXM_OF_IN_PORT);
                let nx = nx.u16(b.members.len() as u16);
                let nx = match b.dst {
                    Some(dst) => nx.ofs_bits(dst).id(Version::V10, dst),
                    None => nx.zeros(6),
                };
                b.members.iter().fold(nx.zeros(4), |nx, p| nx.u16(port_to_10(*p)))
            });
        }
        Action::Sample { probability, collector_set, domain, point, port, direction } => {
            let kind = match (*port, *direction) {
                (port::ANY, 0) => nxast::SAMPLE,
                (_, 0) => nxast::SAMPLE2,
                _ => nxast::SAMPLE3,
            };
            put.nx(kind, |nx| {
                let nx = nx.u16(*probability).u32(*collector_set).u32(*domain).u32(*point);
                match kind {
                    nxast::SAMPLE => nx,
                    _ => nx.u16(*port as u16).u8(*direction).zeros(5),
                }
            });
        }
        _ => debug_assert!(false, "an action without a form: {action:?}"),
    }
}

/// An Ethernet address and six bytes of padding.
fn pad12(mac: &[u8; 6]) -> [u8; 12] {
    let mut out = [0; 12];
    out[..6].copy_from_slice(mac);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::decode_actions;

    /// OFPAT_OUTPUT to a port, and to the controller, with OpenFlow's default `max_len`.
    #[test]
    fn an_output_keeps_its_max_len() {
        for port in [2, port::LOCAL, port::NORMAL, port::CONTROLLER] {
            for version in [Version::V10, Version::V13, Version::V14] {
                let mut wire = Vec::new();
                let mut encoder = Encoder::new(version, &Match::default(), &mut wire);
                encoder.put_port(port, 0xffe5);
                let actions = decode_actions(version, &wire).unwrap();
                let mut again = Vec::new();
                encode_actions(version, &actions, &mut again);
                assert_eq!(again, wire, "{version:?} {port:#x}");
            }
        }
    }
}
