//! Executes actions, one after the other.

use super::choose::Multipath;
use crate::fields::{self, VLAN_PRESENT};
use crate::translate::state::{Miss, Pause, Running};
use crate::translate::xlate::{ToController, Xlate};
use flow::{Field, at, frag};
use openflow::{Action, Header, Instruction, OfPort, Reason, Subfield, TestAction, port};
use telemetry::Drop;
use wire::ETH_QINQ;

impl<'a> Xlate<'a, '_> {
    /// Executes actions until one ends the list.
    pub(super) fn actions<I: Iterator<Item = &'a Action> + Clone>(&mut self, list: I) {
        self.actions_then(list, &[]);
        self.end.stopped = false;
    }

    /// Executes the actions of a flow whose next instructions are `then`. True: an action executed
    /// these, too.
    pub(super) fn actions_then<I>(&mut self, mut list: I, then: &'a [Instruction]) -> bool
    where
        I: Iterator<Item = &'a Action> + Clone,
    {
        while let Some(a) = list.next() {
            if self.ends() || !self.spend(1) {
                return false;
            }
            let wait = self.packet.layers.was_mpls && needs_parse(a);
            if !wait {
                self.note_action(|| crate::action_text::action_text(a));
                if let Action::CheckPktLarger { len, dst } = a {
                    self.by_length(*len, *dst, list, then);
                    return true;
                }
                self.action(a);
            }
            if wait || self.end.rest.is_some() {
                let first = wait.then_some(a).into_iter();
                if self.spend_on_copies(first.clone().chain(list.clone())) {
                    let left: Vec<_> = first.chain(list).map(|a| self.bound(a)).collect();
                    self.end.rest.get_or_insert_default().push(Instruction::Apply(left));
                }
                return false;
            }
        }
        false
    }

    /// The action in a form that means the same outside its table.
    fn bound(&self, a: &Action) -> Action {
        match a {
            Action::Resubmit { in_port, table: None, ct } => {
                Action::Resubmit { in_port: *in_port, table: Some(self.run.table), ct: *ct }
            }
            a => a.clone(),
        }
    }

    pub(super) fn action(&mut self, a: &'a Action) {
        use Action as A;
        match a {
            A::Output { port, trunc, .. } => self.output(*port, *trunc),
            A::Enqueue { port, queue } => self.enqueue(*port, *queue),
            A::SetQueue(queue) => self.set_queue(*queue),
            A::PopQueue => self.pop_queue(),
            A::OutputReg { src, max_len } => self.output_reg(*src, *max_len),
            A::Controller { pause: true, .. } => {
                let Running { table, cookie, miss_flow, .. } = self.run;
                self.end.paused = Some(Pause { action: a, table, cookie, miss_flow });
                self.end.rest = Some(Vec::new());
            }
            A::Controller { max_len, reason, id, userdata, meter, .. } => {
                // Without any of its own properties it is an output to the controller.
                let plain = *id == 0 && userdata.is_empty() && *reason == Reason::Action;
                let reason = if plain { self.run.origin.reason() } else { *reason };
                let (max_len, id, meter) = (*max_len, *id, *meter);
                self.controller(&ToController { max_len, id, reason, userdata, meter })
            }
            A::Group(id) => self.group(*id),
            A::Meter(id) => self.meter(*id),
            A::Learn(l) => self.learn_flow(l),
            A::FinTimeout { idle, hard } => self.fin_timeout(*idle, *hard),
            A::Multipath { fields, basis, algorithm, max_link, arg, dst } => {
                let (fields, basis, algorithm) = (*fields, *basis, *algorithm);
                let (max_link, arg) = (*max_link, *arg);
                self.multipath(Multipath { fields, basis, algorithm, max_link, arg }, *dst);
            }
            A::Bundle(b) => self.bundle(b),
            A::Resubmit { in_port, table, ct } => {
                let table = table.filter(|t| *t != 0xff).unwrap_or(self.run.table);
                match ct {
                    true => self.resubmit_original(*in_port, table),
                    false => self.resubmit(*in_port, table),
                }
            }
            A::Sample { .. } => self.sample_for_set(a),
            A::Ct(ct) => self.conntrack(ct),
            A::CtClear => self.ct_clear(),
            A::Clone(inner) => self.clone_actions(inner),
            A::Exit => (self.end.exit, self.end.exited) = (true, true),
            A::Test(TestAction::Slow) => self.note_slow(),
            A::Test(TestAction::Recirc) => {
                self.end.rest.get_or_insert_default();
            }
            A::SetField { field, value, mask } => self.set_field(*field, *value, *mask),
            A::SetTunMetadata(t) => self.set_tun_metadata(t),
            A::DeleteField(field) => self.delete_field(*field),
            A::Load { dst, value } => {
                fields::look_to_write(dst.field, &self.key, &mut self.wc);
                self.write_bits(*dst, u128::from(*value));
            }
            A::Move { src, dst } => {
                self.copy_bits(*src, *dst);
                self.now(*dst);
            }
            A::Push(s) => self.push(*s),
            A::Pop(d) => self.pop(*d),
            A::DecTtl { ids } => self.dec_ttl(ids.as_deref().unwrap_or(&[0])),
            A::DecMplsTtl => self.dec_mpls_ttl(),
            A::DecNshTtl => self.dec_nsh_ttl(),
            A::PushVlan { ethertype } => self.push_vlan(*ethertype),
            A::StripVlan { .. } => self.pop_vlan(),
            A::PushMpls { ethertype } => self.push_mpls(*ethertype),
            A::PopMpls { ethertype } => self.pop_mpls(*ethertype, "pop action"),
            A::Encap(header) => self.encap(header),
            A::Decap(inner) => self.decap(*inner),
            A::SetVlanVid { vid, push_if_absent } => {
                self.set_vlan(0x0fff, *vid & 0xfff, *push_if_absent)
            }
            A::SetVlanPcp { pcp, push_if_absent } => {
                self.set_vlan(0xe000, u16::from(*pcp & 7) << 13, *push_if_absent)
            }
            a => self.set_header(a),
        }
    }

    /// Executes a set action of OpenFlow 1.0 or 1.1, which does nothing if the packet does not have
    /// the field.
    fn set_header(&mut self, a: &Action) {
        use Action as A;
        match a {
            A::SetEthSrc(m) => self.put(Field::EthSrc, mac(*m)),
            A::SetEthDst(m) => self.put(Field::EthDst, mac(*m)),
            A::SetIpSrc(ip) => self.put_if(Field::Ipv4Src, u32::from_be_bytes(*ip).into()),
            A::SetIpDst(ip) => self.put_if(Field::Ipv4Dst, u32::from_be_bytes(*ip).into()),
            A::SetIpDscp(v) => self.put_if(Field::IpDscp, u128::from(*v >> 2)),
            A::SetIpEcn(v) => self.put_if(Field::IpEcn, (*v).into()),
            A::SetIpTtl(v) => self.put_if(Field::IpTtl, (*v).into()),
            A::SetL4Src(v) if self.has_ports() => self.put(Field::UdpSrc, (*v).into()),
            A::SetL4Dst(v) if self.has_ports() => self.put(Field::UdpDst, (*v).into()),
            A::SetMplsLabel(v) => self.put_if(Field::MplsLabel, (*v).into()),
            A::SetMplsTc(v) => self.put_if(Field::MplsTc, (*v).into()),
            A::SetMplsTtl(v) => self.put_if(Field::MplsTtl, (*v).into()),
            A::SetTunnel { id, .. } => self.put(Field::TunId, (*id).into()),
            // Notes and queues do not change the packet; flow-mods with other actions are refused.
            _ => {}
        }
    }

    fn put(&mut self, field: Field, value: u128) {
        field.unwildcard(&mut self.wc);
        field.set(&mut self.key, value);
    }

    fn put_if(&mut self, field: Field, value: u128) {
        let prereq = fields::prereq(field);
        fields::look(prereq, &mut self.wc);
        if fields::met(prereq, &self.key) {
            fields::look_to_write(field, &self.key, &mut self.wc);
            self.put(field, value);
        }
    }

    fn has_ports(&mut self) -> bool {
        if !fields::is_ip(self.key.u16(at::ETH_TYPE)) {
            return false;
        }
        fields::look(fields::Prereq::L4(0), &mut self.wc);
        self.key.u8(at::FRAG) & frag::LATER == 0
            && fields::WITH_PORTS.contains(&self.key.u8(at::PROTO))
    }

    fn set_field(&mut self, field: Field, value: u128, mask: u128) {
        let prereq = fields::prereq(field);
        fields::look(prereq, &mut self.wc);
        if !fields::met(prereq, &self.key) {
            let name = field.name();
            return self
                .trace_warning(|| format!("unmet prerequisites for {name}, set_field ignored"));
        }
        fields::look_to_write(field, &self.key, &mut self.wc);
        field.set_masked(&mut self.wc, mask, mask);
        field.set_masked(&mut self.key, value, mask);
        self.tag_follows(field);
    }

    /// Ensures that there is a tag: VLAN id and priority can only be written to one.
    fn tag_follows(&mut self, field: Field) {
        if matches!(field, Field::VlanVid | Field::VlanPcp) && self.is_ethernet() {
            self.wc.set_u16(at::VLAN, self.wc.u16(at::VLAN) | VLAN_PRESENT);
            self.key.set_u16(at::VLAN, self.key.u16(at::VLAN) | VLAN_PRESENT);
        }
    }

    /// Reads a range of bits, and adds it to what the decision depends on.
    pub(super) fn read_bits(&mut self, s: Subfield) -> u128 {
        if let Field::TunMetadata(index) = s.field {
            return self.read_tun_metadata(index, s);
        }
        let mask = ones(s.bits) << s.ofs;
        fields::look(fields::prereq(s.field), &mut self.wc);
        s.field.set_masked(&mut self.wc, mask, mask);
        if !fields::met(fields::prereq(s.field), &self.key) {
            return 0;
        }
        s.field.get(&self.key) >> s.ofs & ones(s.bits)
    }

    pub(super) fn write_bits(&mut self, d: Subfield, value: u128) {
        if let Field::TunMetadata(index) = d.field {
            return self.write_tun_metadata(index, d, value);
        }
        let prereq = fields::prereq(d.field);
        fields::look(prereq, &mut self.wc);
        if !fields::met(prereq, &self.key) {
            return;
        }
        let mask = ones(d.bits) << d.ofs;
        d.field.set_masked(&mut self.wc, mask, mask);
        d.field.set_masked(&mut self.key, (value & ones(d.bits)) << d.ofs, mask);
        self.tag_follows(d.field);
    }

    /// Copies bits of options, which are longer than a value, in parts.
    fn copy_bits(&mut self, src: Subfield, dst: Subfield) {
        let starts = (0..src.bits).step_by(128);
        let piece =
            |s: Subfield, at: u16| Subfield { ofs: s.ofs + at, bits: (s.bits - at).min(128), ..s };
        let values: Vec<u128> = starts.clone().map(|at| self.read_bits(piece(src, at))).collect();
        for (at, value) in starts.zip(values) {
            self.write_bits(piece(dst, at), value);
        }
    }

    pub(super) fn now(&mut self, d: Subfield) {
        let value = match d.field {
            Field::TunMetadata(index) => self.tun_bits(index, d),
            f => f.get(&self.key) >> d.ofs & ones(d.bits),
        };
        self.trace_detail(|| crate::action_text::now_text(d, value));
    }

    fn push(&mut self, s: Subfield) {
        let value = self.read_bits(s);
        if self.has_stack() {
            self.packet.stack.push((value, s.bits));
        }
    }

    fn pop(&mut self, d: Subfield) {
        match self.packet.stack.pop() {
            Some((value, _)) => {
                self.write_bits(d, value);
                self.now(d);
            }
            None => {
                self.note_failure("stack underflow");
                self.trace_refusal(|| "stack underflow".into());
            }
        }
    }

    fn dec_ttl(&mut self, ids: &[u16]) {
        if !fields::is_ip(self.key.u16(at::ETH_TYPE)) {
            return;
        }
        fields::look_to_write(Field::IpTtl, &self.key, &mut self.wc);
        Field::IpTtl.unwildcard(&mut self.wc);
        let ttl = self.key.u8(at::TTL);
        if ttl > 1 {
            return self.key.set_u8(at::TTL, ttl - 1);
        }
        let kind = if self.key.u16(at::ETH_TYPE) == wire::ETH_IPV6 { 6 } else { 4 };
        self.trace_warning(|| format!("IPv{kind} decrement TTL exception"));
        for id in ids {
            self.controller(&ToController::new(*id, Reason::InvalidTtl));
        }
        self.expired();
    }

    fn dec_mpls_ttl(&mut self) {
        if !fields::is_mpls(self.key.u16(at::ETH_TYPE)) {
            return;
        }
        Field::MplsTtl.unwildcard(&mut self.wc);
        let ttl = Field::MplsTtl.get(&self.key);
        if ttl > 1 {
            return Field::MplsTtl.set(&mut self.key, ttl - 1);
        }
        self.trace_warning(|| "MPLS decrement TTL exception".into());
        self.controller(&ToController::new(0, Reason::InvalidTtl));
        self.expired();
    }

    fn dec_nsh_ttl(&mut self) {
        if self.key.u16(at::ETH_TYPE) != wire::ETH_NSH {
            self.trace_warning(|| "NSH decrement TTL exception".into());
            self.end.stopped = true;
            return;
        }
        Field::NshTtl.unwildcard(&mut self.wc);
        match self.key.u8(at::NSH_TTL) {
            ttl @ 2.. => self.key.set_u8(at::NSH_TTL, ttl - 1),
            _ => {
                self.controller(&ToController::new(0, Reason::InvalidTtl));
                self.trace_warning(|| "NSH decrement TTL exception".into());
                self.expired();
            }
        }
    }

    /// Ends this flow's actions after a TTL expired; tables that led here continue, as in OVS.
    fn expired(&mut self) {
        self.end.stopped = true;
        self.packet.set.clear();
        self.answer.decision.drop = Some(Drop::TtlExpired);
    }

    fn push_vlan(&mut self, ethertype: u16) {
        if !self.is_ethernet() {
            return;
        }
        self.wc.set_u16(at::VLAN, 0xffff);
        let (outer, flags) = (self.key.u16(at::VLAN), self.key.u8(at::FLAGS));
        if outer & VLAN_PRESENT != 0 {
            self.wc.set_u16(at::VLAN1, 0xffff);
        }
        // The key has room for two tags: the innermost leaves the key, so this one is committed
        // now.
        let full = self.key.u16(at::VLAN1) & VLAN_PRESENT != 0;
        if full {
            self.commit();
            self.packet.layers.hidden += 1;
            self.op(action::Op::PushVlan { tpid: ethertype, tci: VLAN_PRESENT });
        }
        self.key.set_u16(at::VLAN1, outer);
        // A new tag takes id and priority of the tag behind it (OpenFlow 1.3, table 6); as in OVS,
        // zero.
        self.key.set_u16(at::VLAN, VLAN_PRESENT);
        let inner = if flags & flow::flag::VLAN_88A8 != 0 { flow::flag::VLAN1_88A8 } else { 0 };
        let own = if ethertype == ETH_QINQ { flow::flag::VLAN_88A8 } else { 0 };
        let both = flow::flag::VLAN_88A8 | flow::flag::VLAN1_88A8;
        self.key.set_u8(at::FLAGS, flags & !both | inner | own);
        if full {
            self.base = self.key;
        }
    }

    fn pop_vlan(&mut self) {
        self.wc.set_u16(at::VLAN, 0xffff);
        if self.key.u16(at::VLAN) & VLAN_PRESENT != 0 {
            self.wc.set_u16(at::VLAN1, 0xffff);
        }
        let flags = self.key.u8(at::FLAGS);
        self.key.set_u16(at::VLAN, self.key.u16(at::VLAN1));
        self.key.set_u16(at::VLAN1, 0);
        let both = flow::flag::VLAN_88A8 | flow::flag::VLAN1_88A8;
        let outer = if flags & flow::flag::VLAN1_88A8 != 0 { flow::flag::VLAN_88A8 } else { 0 };
        self.key.set_u8(at::FLAGS, flags & !both | outer);
    }

    fn set_vlan(&mut self, mask: u16, bits: u16, push: bool) {
        self.wc.set_u16(at::VLAN, 0xffff);
        let tci = self.key.u16(at::VLAN);
        if tci & VLAN_PRESENT != 0 || (push && self.is_ethernet()) {
            self.key.set_u16(at::VLAN, tci & !mask | bits | VLAN_PRESENT);
        }
    }

    fn output_reg(&mut self, src: Subfield, max_len: u16) {
        let value = self.read_bits(src);
        self.trace_detail(|| format!("output port is {value}"));
        match u16::try_from(value) {
            Ok(p) if p >= 0xfff8 => self.output_max(0xffff_0000 | u32::from(p), max_len),
            Ok(p) => self.output_max(p.into(), max_len),
            Err(_) => self.trace_warning(|| format!("output port {value} is out of range")),
        }
    }

    fn output_max(&mut self, p: OfPort, max_len: u16) {
        match p {
            port::CONTROLLER => {
                let to = ToController::new(0, self.run.origin.reason());
                self.controller(&ToController { max_len, ..to })
            }
            p => self.output(p, 0),
        }
    }

    fn clone_actions(&mut self, inner: &'a [Action]) {
        if !self.spend_on_lists() {
            return;
        }
        let mark = self.mark();
        let saved = self.save();
        let (set, stack) = (self.packet.set.clone(), self.packet.stack.clone());
        self.actions(inner.iter());
        // A clone is a pipeline of its own, at whose end the action set is executed.
        self.run_set();
        // A pause ends the list around the clone as well, as in OVS: OVN counts on it.
        self.end.exited |= self.end.paused.is_some();
        self.freeze();
        (self.packet.set, self.packet.stack) = (set, stack);
        self.restore(saved);
        self.end.exit |= self.end.exited || self.end.failed.is_some();
        self.isolate(mark);
    }

    pub(super) fn table_again(&mut self) {
        self.table(0, None, Miss::Honor);
    }
}

fn mac(m: [u8; 6]) -> u128 {
    m.iter().fold(0, |v, b| v << 8 | u128::from(*b))
}

pub(super) fn ones(bits: u16) -> u128 {
    if bits >= 128 { u128::MAX } else { (1 << bits) - 1 }
}

/// True if an action reads or writes what is behind a popped MPLS header.
fn needs_parse(a: &Action) -> bool {
    use Action as A;
    let deep = |f: Field| fields::prereq(f) != fields::Prereq::None && f != Field::VlanPcp;
    match a {
        A::Resubmit { .. } | A::Clone(_) | A::Group(_) | A::DecTtl { .. } | A::DecMplsTtl => true,
        A::PushMpls { .. } | A::PopMpls { .. } | A::Decap(_) | A::DecNshTtl => true,
        A::Encap(header) => *header != Header::Ethernet,
        A::SetField { field, .. } => deep(*field),
        A::Load { dst, .. } => deep(dst.field),
        A::Move { src, dst } => deep(src.field) || deep(dst.field),
        A::Push(s) | A::Pop(s) => deep(s.field),
        A::CheckPktLarger { dst, .. } => deep(dst.field),
        A::OutputReg { src, .. } => deep(src.field),
        A::Learn(_) | A::Multipath { .. } | A::Bundle(_) | A::FinTimeout { .. } => true,
        A::SetIpSrc(_)
        | A::SetIpDst(_)
        | A::SetIpDscp(_)
        | A::SetIpEcn(_)
        | A::SetIpTtl(_)
        | A::SetL4Src(_)
        | A::SetL4Dst(_)
        | A::SetMplsLabel(_)
        | A::SetMplsTc(_)
        | A::SetMplsTtl(_) => true,
        A::Output { port, .. } => matches!(*port, port::TABLE | port::NORMAL),
        A::Controller { .. } | A::Enqueue { .. } | A::SetQueue(_) | A::PopQueue => false,
        A::SetTunMetadata(_) | A::DeleteField(_) | A::SetTunnel { .. } => false,
        A::SetVlanVid { .. } | A::SetVlanPcp { .. } | A::StripVlan { .. } | A::PushVlan { .. } => {
            false
        }
        A::SetEthSrc(_) | A::SetEthDst(_) | A::Note(_) | A::Exit | A::Conjunction { .. } => false,
        A::Sample { .. } | A::Meter(_) | A::Ct(_) | A::Nat(_) | A::CtClear => false,
        A::Test(_) => false,
    }
}
