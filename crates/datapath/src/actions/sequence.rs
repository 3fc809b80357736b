//! Programs of rewrites, tags and outputs in any order. A packet is claimed first; then all
//! operations are executed without parsing it again. The interpreter is the twin.

use crate::actions::interpret::Sink;
use crate::actions::patch::Patch;
use crate::actions::rewrite;
use crate::batch::keys::{Layout, Line, bytes};
use action::Op;
use flow::{PortNo, at};
use packet::Packet;
use telemetry::Drop;
use wire::{ETH_QINQ, ETH_VLAN};

/// One operation of a sequence.
#[derive(Clone, Copy, Debug)]
enum Piece {
    /// Rewrites, as one patch.
    Patch(Patch),
    /// Replaces the outer tag (VLAN id, priority, Ethertype).
    Retag {
        tpid: u16,
        tci: u16,
    },
    Push {
        tpid: u16,
        tci: u16,
    },
    Pop,
    /// Sends a copy to a port, as the packet is now.
    Copy(PortNo),
}

/// A compiled sequence: the operations in front of the last output.
#[derive(Debug)]
pub(crate) struct Sequence {
    list: Box<[Piece]>,
    /// True if a claimed packet must have a tag: its outer tag is removed or changed.
    tagged: bool,
}

/// The state of a packet's tags while a sequence is compiled.
#[derive(Default)]
struct Tags {
    /// Number of tags that were pushed and not popped.
    own: u32,
    /// The outer tag that the packet came with was popped.
    popped: bool,
}

impl Tags {
    /// Pops a tag; None: nothing is known about the tag that would be next.
    fn pop(&mut self) -> Option<()> {
        match self.own {
            0 if self.popped => return None,
            0 => self.popped = true,
            _ => self.own -= 1,
        }
        Some(())
    }
}

fn is_tpid(tpid: u16) -> bool {
    matches!(tpid, ETH_VLAN | ETH_QINQ)
}

impl Sequence {
    /// Compiles a list that ends with an output. None: it has operations other than tags, outputs,
    /// and rewrites that are patches.
    pub fn compile(ops: &[Op]) -> Option<Sequence> {
        let (Op::Output(_), mut rest) = ops.split_last()? else { return None };
        let (mut list, mut tags) = (Vec::new(), Tags::default());
        while !rest.is_empty() {
            let is_set = |op: &&Op| matches!(op, Op::Set(_) | Op::PushEth(_));
            let sets = rest.iter().take_while(is_set).count();
            let (step, n) = match rest {
                _ if sets > 0 => (Piece::Patch(Patch::compile(&rest[..sets])?), sets),
                [Op::PopVlan, Op::PushVlan { tpid, tci }, ..] if is_tpid(*tpid) => {
                    tags.pop()?;
                    tags.own += 1;
                    (Piece::Retag { tpid: *tpid, tci: *tci }, 2)
                }
                [Op::PopVlan, ..] => {
                    tags.pop()?;
                    (Piece::Pop, 1)
                }
                [Op::PushVlan { tpid, tci }, ..] if is_tpid(*tpid) => {
                    tags.own += 1;
                    (Piece::Push { tpid: *tpid, tci: *tci }, 1)
                }
                [Op::Output(port), ..] => (Piece::Copy(*port), 1),
                _ => return None,
            };
            list.push(step);
            rest = &rest[n..];
        }
        Some(Sequence { list: list.into(), tagged: tags.popped })
    }

    /// True if the sequence does with this packet what the interpreter does.
    #[inline(always)]
    pub fn claims(&self, len: usize, line: &Line, layout: Layout) -> bool {
        let tag = bytes(line)[at::VLAN] & 0x10 != 0;
        let plain = |step: &Piece| match step {
            Piece::Patch(patch) => patch.claims(len, line, layout),
            _ => true,
        };
        (tag || !self.tagged) && self.list.iter().all(plain)
    }

    /// Executes the sequence on a packet that it claims, then sends it to `out`. `ports`: the input
    /// port, and `out`.
    #[inline]
    pub fn run<S: Sink>(&self, sink: &mut S, p: Packet, at: (&Line, Layout), ports: [PortNo; 2]) {
        let [in_port, out] = ports;
        let (mut p, mut copies) = (p, 0);
        match self.list(sink, &mut p, at, in_port, &mut copies) {
            Ok(()) => sink.output(out, p),
            Err(why) => {
                sink.dropped(in_port, why);
                sink.free(p);
            }
        }
        if copies > 0 {
            sink.copies(in_port, copies);
        }
    }

    #[inline]
    fn list<S: Sink>(
        &self,
        sink: &mut S,
        p: &mut Packet,
        (line, layout): (&Line, Layout),
        in_port: PortNo,
        copies: &mut u64,
    ) -> Result<(), Drop> {
        // Pushed and popped tags move L3.
        let mut l3 = layout.l3 as usize;
        for step in &self.list {
            match step {
                Piece::Patch(patch) => patch.write(p.data_mut(), l3, bytes(line)[at::PROTO]),
                Piece::Retag { tpid, tci } => rewrite::write_tag(p.data_mut(), *tpid, *tci),
                Piece::Push { tpid, tci } => {
                    rewrite::push_vlan(p, *tpid, *tci)?;
                    l3 += 4;
                }
                Piece::Pop => {
                    rewrite::pop_vlan(p);
                    l3 -= 4;
                }
                Piece::Copy(port) => {
                    *copies += 1;
                    match sink.copy(p) {
                        Some(copy) => sink.output(*port, copy),
                        None => sink.dropped(in_port, Drop::NoBuffer),
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::interpret::{self};
    use crate::generate::{Rng, packet};
    use crate::parse::frame::Frame;
    use crate::parse::scalar::{ARP, ICMP, ICMPV6, IPV4, IPV6, RARP, TCP, UDP};
    use crate::verify::compare;
    use action::Rewrite;
    use flow::Key;

    const ETHERNET: &[(usize, usize)] = &[(at::ETH_DST, 6), (at::ETH_SRC, 6)];
    const V4: &[(usize, usize)] = &[(at::IP_SRC, 4), (at::IP_DST, 4), (at::TOS, 1), (at::TTL, 1)];
    const V6: &[(usize, usize)] =
        &[(at::IPV6_SRC, 16), (at::IPV6_DST, 16), (at::IPV6_LABEL, 4), (at::TOS, 1), (at::TTL, 1)];
    const ARPS: &[(usize, usize)] =
        &[(at::PROTO, 1), (at::IP_SRC, 4), (at::IP_DST, 4), (at::ARP_SHA, 6), (at::ARP_THA, 6)];
    const PORTS: &[(usize, usize)] = &[(at::TP_SRC, 2), (at::TP_DST, 2)];

    /// Sets some fields that a packet with this key has, in whole, bit by bit, or as they are.
    fn set(r: &mut Rng, packet: &Key) -> Op {
        let (eth_type, proto) = (packet.u16(at::ETH_TYPE), packet.u8(at::PROTO));
        let l3 = match eth_type {
            IPV4 => V4,
            IPV6 => V6,
            ARP | RARP => ARPS,
            _ => ETHERNET,
        };
        let ports = matches!(eth_type, IPV4 | IPV6) && matches!(proto, TCP | UDP | ICMP | ICMPV6);
        let group = r.pick(&[ETHERNET, l3, l3, if ports { PORTS } else { l3 }]);
        let mut rw = Rewrite { key: Key::ZERO, mask: Key::ZERO };
        for (at, n) in group {
            let how = r.below(4);
            for i in *at..at + n {
                let value = if how == 3 { packet.bytes()[i] } else { r.next() as u8 };
                rw.mask.bytes_mut()[i] = [0, 0xff, r.next() as u8, 0xff][how as usize];
                rw.key.bytes_mut()[i] = value & rw.mask.bytes()[i];
            }
        }
        rw.key.set_u16(at::ETH_TYPE, eth_type);
        if group == PORTS {
            rw.key.set_u8(at::PROTO, proto);
        }
        Op::Set(Box::new(rw))
    }

    fn operations(r: &mut Rng, packet: &Key) -> Vec<Op> {
        let mut ops = Vec::new();
        for _ in 0..r.below(6) {
            let tag = Op::PushVlan { tpid: r.pick(&[0x8100, 0x88a8]), tci: r.next() as u16 };
            match r.below(8) {
                0..4 => ops.push(set(r, packet)),
                4 => ops.push(tag),
                5 => ops.push(Op::PopVlan),
                6 => ops.extend([Op::PopVlan, tag]),
                _ => ops.push(Op::Output(r.below(3) as u16)),
            }
        }
        ops.push(Op::Output(3));
        ops
    }

    /// Compares what the program and the interpreter do to a packet. None: the program leaves it to
    /// the interpreter.
    fn same(d: &[u8], ops: &[Op], vlan_limit: u8) -> Option<()> {
        let (sequence, f) = (Sequence::compile(ops)?, Frame::new(d, 7, vlan_limit)?);
        if !sequence.claims(d.len(), &f.line, f.layout) {
            return None;
        }
        let difference = compare(
            d,
            |sink, p| sequence.run(sink, p, (&f.line, f.layout), [7, 3]),
            |sink, p| interpret::run(sink, &ops.into(), Drop::Policy, p, f),
        );
        assert_eq!(difference, None, "{ops:?} on {d:x?}");
        Some(())
    }

    #[test]
    fn steps_equal_the_interpreter_on_packets_cut_anywhere() {
        let mut claimed = [0; 4];
        for seed in 0..6000 {
            let mut r = Rng(seed);
            let d = packet(&mut r);
            let limit = 1 + r.below(2) as u8;
            let key = crate::extract(&d, 7, limit).unwrap();
            let ops = operations(&mut r, &key);
            let kind = match key.u16(at::ETH_TYPE) {
                IPV4 => 0,
                IPV6 => 1,
                ARP | RARP => 2,
                _ => 3,
            };
            claimed[kind] += i32::from(same(&d, &ops, limit).is_some());
            if seed % 16 == 0 {
                (14..d.len()).for_each(|n| {
                    same(&d[..n], &ops, limit);
                });
            }
        }
        // Not those with tags that are not there, options, fragments, and what was cut or damaged.
        let floor = [900, 600, 150, 1500];
        assert!(claimed.iter().zip(floor).all(|(n, floor)| *n >= floor), "{claimed:?}");
    }

    #[test]
    fn a_tag_without_headroom_ends_the_packet_and_not_its_copies() {
        let mut ops = vec![Op::Output(1), Op::Output(2)];
        ops.extend((0..200).map(|n| Op::PushVlan { tpid: 0x8100, tci: n }));
        ops.push(Op::Output(3));
        same(&[9; 60], &ops, 1).expect("it is claimed");
    }

    #[test]
    fn what_is_not_known_is_left_to_the_interpreter() {
        let tag = || Op::PushVlan { tpid: 0x8100, tci: 1 };
        let out = || Op::Output(3);
        let (pop, odd) = (|| Op::PopVlan, Op::PushVlan { tpid: 0x9100, tci: 1 });
        for ops in
            [vec![pop(), pop(), out()], vec![odd, out()], vec![tag()], vec![Op::Recirc(1), out()]]
        {
            assert!(Sequence::compile(&ops).is_none(), "{ops:?}");
        }
        let untagged = [&[2; 12][..], &[8, 6], &[0; 46]].concat();
        assert_eq!(same(&untagged, &[pop(), tag(), out()], 1), None);
        assert_eq!(same(&untagged, &[tag(), pop(), out()], 1), Some(()));
    }
}
