//! Connection tracking: `ct`, `ct_clear`, and the lookup of the tracked packet.

use crate::fields;
use crate::tables::table::FlowRule;
use crate::translate::frozen::State;
use crate::translate::xlate::Xlate;
use ::action::{Alg, Ct, Nat, NatSide, Op};
use flow::{Field, Key, Mask, at};
use openflow::Action;
use openflow::conntrack::{
    ALG_FTP, ALG_TFTP, CT_FORCE, Conntrack, NAT_DST, NAT_HASH, NAT_PERSISTENT, NAT_RANDOM, NAT_SRC,
    Zone,
};

/// The `ct` fields of a packet except the mark: line 3 of a key.
const TRACKED: std::ops::Range<usize> = at::CT_LABEL..at::CT_ZONE + 2;

/// Clears the `ct` fields of a key.
pub(crate) fn forget(key: &mut Key) {
    key.set_u8(at::CT_STATE, 0);
    key.set_u32(at::CT_MARK, 0);
    key.bytes_mut()[TRACKED].fill(0);
}

impl<'a> Xlate<'a, '_> {
    /// The `ct` action: a copy of the packet continues in a table as a tracked packet; the packet
    /// itself continues as one that was not tracked.
    pub(super) fn conntrack(&mut self, ct: &'a Conntrack) {
        let zone = match ct.zone {
            Zone::Number(zone) => zone,
            Zone::Field(s) => self.read_bits(s) as u16,
        };
        self.commit();
        let mut op = self.connection(ct);
        op.zone = zone;
        op.commit = ct.commits();
        op.force = ct.flags & CT_FORCE != 0;
        op.timeout = self.snapshot.published.timeouts.get(&zone).copied().filter(|_| op.commit);
        self.op(Op::Ct(Box::new(op)));
        if let Some(table) = ct.table {
            self.fork(table, zone, &ct.actions);
        }
        self.untrack();
        self.trace_detail(|| UNTRACKED.into());
    }

    /// What the actions in a `ct` ask for: bits of mark and label to be written, NAT.
    fn connection(&mut self, ct: &'a Conntrack) -> Ct {
        let (key, wc) = (self.key, self.wc);
        Field::CtMark.set(&mut self.wc, 0);
        Field::CtLabel.set(&mut self.wc, 0);
        let mut op = Ct::default();
        if ct.actions.is_empty() {
            self.note_action(|| "drop".into());
        }
        for a in &ct.actions {
            if !self.spend(1) {
                break;
            }
            self.note_action(|| crate::action_text::action_text(a));
            match a {
                Action::Nat(nat) => op.nat = Some(translation(nat)),
                a => self.action(a),
            }
        }
        let written = |f: Field, key: &Key, wc: &Mask| (f.get(key) & f.get(wc), f.get(wc));
        let (value, mask) = written(Field::CtMark, &self.key, &self.wc);
        op.mark = (value as u32, mask as u32);
        op.label = written(Field::CtLabel, &self.key, &self.wc);
        op.alg = self.helper(ct.alg);
        Field::CtMark.set(&mut self.wc, Field::CtMark.get(&wc));
        Field::CtLabel.set(&mut self.wc, Field::CtLabel.get(&wc));
        debug_assert!(self.key.words[..3] == key.words[..3], "only mark and label are written");
        op
    }

    fn helper(&mut self, port: u16) -> Option<Alg> {
        match port {
            0 => None,
            ALG_FTP => Some(Alg::Ftp),
            ALG_TFTP => Some(Alg::Tftp),
            port => {
                self.trace_refusal(|| format!("cannot serialize ct_helper {port}"));
                None
            }
        }
    }

    /// Adds operations by which a tracked copy of the packet is looked up in `table`.
    fn fork(&mut self, table: u8, zone: u16, actions: &'a [Action]) {
        self.packet.ct.tracked = true;
        let state = State { table, cookie: 0, ..self.state(Vec::new()) };
        let Some(kept) = self.snapshot.shared.frozen.put(self.guard(), state, self.trace.is_some())
        else {
            return self.too_many_states();
        };
        self.op(Op::Recirc(kept.id));
        self.note_fork(&kept, table, zone, actions);
        self.answer.holds.push(kept);
    }

    /// The `ct_clear` action.
    pub(super) fn ct_clear(&mut self) {
        if self.packet.ct.tracked {
            self.untrack();
            self.op(Op::CtClear);
        }
    }

    /// Makes tables see a packet that was not tracked, from here on.
    pub(super) fn untrack(&mut self) {
        self.packet.ct.tracked = false;
        forget(&mut self.key);
    }

    /// Looks a table up with the connection's original addresses and ports in place of the
    /// packet's.
    pub(super) fn resubmit_original(&mut self, in_port: Option<openflow::OfPort>, table: u8) {
        let ip = fields::is_ip(self.key.u16(at::ETH_TYPE));
        if self.key.u8(at::CT_NW_PROTO) == 0 || !ip {
            return self.trace_refusal(|| "resubmit(ct) with non-tracked or non-IP packet!".into());
        }
        self.packet.ct.original = true;
        self.resubmit(in_port, table);
        self.packet.ct.original = false;
    }

    /// The lookup of [`Xlate::resubmit_original`].
    pub(super) fn lookup_original(&mut self, table: u8) -> Option<&'a FlowRule> {
        let v6 = self.key.u16(at::ETH_TYPE) == wire::ETH_IPV6;
        swap_tuples(&mut self.key, v6);
        swap_tuples(&mut self.wc, v6);
        let found = self.lookup_in_table(table);
        swap_tuples(&mut self.key, v6);
        swap_tuples(&mut self.wc, v6);
        found
    }
}

/// Exchanges the packet's addresses, protocol and ports with those of its connection's first
/// packet.
fn swap_tuples(key: &mut Key, v6: bool) {
    let addresses = match v6 {
        true => [(at::IPV6_SRC, at::CT_IPV6_SRC, 16), (at::IPV6_DST, at::CT_IPV6_DST, 16)],
        false => [(at::IP_SRC, at::CT_NW_SRC, 4), (at::IP_DST, at::CT_NW_DST, 4)],
    };
    let ports = [(at::TP_SRC, at::CT_TP_SRC, 2), (at::TP_DST, at::CT_TP_DST, 2)];
    let proto = [(at::PROTO, at::CT_NW_PROTO, 1)];
    for (a, b, len) in addresses.into_iter().chain(ports).chain(proto) {
        (0..len).for_each(|i| key.bytes_mut().swap(a + i, b + i));
    }
}

const UNTRACKED: &str =
    "Sets the packet to an untracked state, and clears all the conntrack fields.";

/// NAT, in the datapath's terms.
fn translation(nat: &openflow::Nat) -> Nat {
    let side = match nat.flags {
        f if f & NAT_SRC != 0 => NatSide::Source,
        f if f & NAT_DST != 0 => NatSide::Destination,
        _ => return Nat::default(),
    };
    let ports = |first: u16| (first, nat.last_port.max(first));
    Nat {
        side: Some(side),
        addresses: nat.first.map(|first| (first, nat.last.unwrap_or(first))),
        ports: Some(nat.first_port).filter(|p| *p != 0).map(ports),
        persistent: nat.flags & NAT_PERSISTENT != 0,
        hash: nat.flags & NAT_HASH != 0,
        random: nat.flags & NAT_RANDOM != 0,
    }
}
