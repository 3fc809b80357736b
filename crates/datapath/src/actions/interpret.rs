//! The interpreter: executes every operation, one at a time. It is the twin of all compiled
//! programs: they must do exactly the same.
//!
//! Accounting: every packet ends at least once (sent, punted, recirculated or dropped for a named
//! reason); each further end counts as a copy.

use crate::actions::ct;
use crate::actions::fragments::{Paused, Position};
use crate::actions::mpls_payload;
use crate::actions::nsh;
use crate::actions::rewrite::{self, Place};
use crate::batch::keys::bytes;
use crate::parse::frame::Frame;
use crate::tunnel;
use action::{Ct, Meter, Op, Punt, Rewrite, Verdict};
use conntrack::alg::Edit;
use conntrack::ipf::Fragment;
use conntrack::{IpHeader, Meta, Ref};
use flow::{Key, PortNo, at};
use packet::Packet;
use std::sync::Arc;
use telemetry::Drop;
use wire::{ETH_IPV4, ETH_IPV6};

/// Recirculations of one packet, at most (as in OVS).
pub(crate) const RECIRC_LIMIT: u8 = 6;

/// Where the interpreter and programs send packets.
pub(crate) trait Sink {
    /// Sends a packet to a port.
    fn output(&mut self, port: PortNo, packet: Packet);
    /// Frees the packet's buffer; counts nothing.
    fn free(&mut self, packet: Packet);
    /// Counts a named drop on the input port.
    fn dropped(&mut self, in_port: PortNo, why: Drop);
    /// Counts copies that were made of packets of the input port.
    fn copies(&mut self, in_port: PortNo, n: u64);
    /// A copy of a packet; None: no buffer is free.
    fn copy(&mut self, packet: &Packet) -> Option<Packet>;
    /// Sends a copy to the control side, or counts why not.
    fn punt(&mut self, punt: &Arc<Punt>, packet: &Packet, key: Key, in_port: PortNo);
    /// Has the packet looked up again, with recirculation id `id`.
    fn recirculate(&mut self, id: u32, packet: Packet, frame: &Frame);
    /// Tracks a packet of `port`. Returns a text that is to be replaced in it, if any.
    fn track(
        &mut self,
        ct: &Ct,
        data: &mut [u8],
        ip: IpHeader,
        port: PortNo,
        meta: &mut Meta<Ref>,
    ) -> Option<Edit>;
    /// Lets a fragment wait for the rest of its datagram; returns a fragment that cannot wait.
    fn gather(&mut self, ct: &Ct, fragment: Fragment, paused: Paused) -> Option<Paused>;
    /// The verdict of a meter on a packet of this length.
    fn meter(&mut self, meter: &Meter, bytes: usize) -> Verdict;
    /// A random number.
    fn random(&mut self) -> u32;
}

/// True if byte `i` of a key is metadata: it is not in the packet.
fn is_metadata(i: usize) -> bool {
    (at::IN_PORT..at::FLAGS).contains(&i)
        || (at::CT_MARK..at::PAYLOAD).contains(&i)
        || i >= at::TUN_DST
}

/// True if the rewrite changes metadata.
pub(crate) fn touches_metadata(rw: &Rewrite) -> bool {
    rw.mask.bytes().iter().enumerate().any(|(i, m)| *m != 0 && is_metadata(i))
}

/// The execution of one packet's operations. With `PACED` it pauses after `left` of them.
struct Run<'a, S: Sink, const PACED: bool> {
    sink: &'a mut S,
    /// All operations of the packet.
    ops: &'a Arc<[Op]>,
    /// The operation that is being executed.
    position: Position,
    why: Drop,
    in_port: PortNo,
    /// How often the packet, or a copy of it, has ended so far.
    ends: u64,
    /// Bytes to which the next output is truncated.
    cut: Option<usize>,
    /// Operations until it pauses.
    left: usize,
    /// Packets whose operations are to be continued: copies for lists in lists, and the packet.
    later: Option<&'a mut Vec<Paused>>,
}

impl<S: Sink, const PACED: bool> Run<'_, S, PACED> {
    /// Executes a list inside the current one; returns the packet if nothing consumed it.
    fn list(&mut self, ops: &[Op], p: Packet, f: &mut Frame) -> Option<Packet> {
        self.position.enter();
        let left = self.each(ops, 0, p, f);
        self.position.leave();
        left
    }

    /// Executes the operations of a list from index `from` on; returns the packet if nothing
    /// consumed it.
    fn each(&mut self, ops: &[Op], from: usize, mut p: Packet, f: &mut Frame) -> Option<Packet> {
        for (i, op) in ops.iter().enumerate().skip(from) {
            let last = i + 1 == ops.len();
            self.position.set(i);
            if PACED {
                self.left = self.left.saturating_sub(1);
            }
            match op {
                Op::Output(_)
                | Op::Recirc(_)
                | Op::TunnelPop { .. }
                | Op::Clone(_)
                | Op::CheckLen { .. }
                | Op::Sample { .. } => {
                    if last {
                        return self.leave(op, p, f);
                    }
                    self.branch(op, &p, f);
                }
                Op::Punt(punt) if !punt.is_wanted() => {}
                Op::Punt(punt) => {
                    self.ends += 1;
                    self.sink.punt(punt, &p, f.key(), self.in_port);
                }
                Op::Truncate(n) => self.cut = Some(*n as usize),
                Op::Ct(ct) => {
                    p = self.gather(ct, p, f)?;
                    ct::track(self.sink, ct, &mut p, f);
                }
                Op::CtClear => ct::clear(f),
                Op::TunnelPush(_) => {
                    self.cut_now(&mut p);
                    if let Err(why) = change(op, &mut p, f) {
                        return self.end(why, p);
                    }
                }
                Op::Drop(why) => return self.end(*why, p),
                Op::Meter(meter) => match self.sink.meter(meter, p.len()) {
                    Verdict::Pass => {}
                    Verdict::Drop => return self.end(Drop::Meter, p),
                    Verdict::Remark(by) => {
                        if let Err(why) = remark(by, &mut p, f) {
                            return self.end(why, p);
                        }
                    }
                },
                _ => {
                    if let Err(why) = change(op, &mut p, f) {
                        return self.end(why, p);
                    }
                }
            }
            if PACED && self.left == 0 && !last && self.cut.is_none() {
                self.position.set(i);
                return self.pause(p, f);
            }
        }
        Some(p)
    }

    /// Pauses: the rest of the current list waits with the packet.
    fn pause(&mut self, p: Packet, f: &Frame) -> Option<Packet> {
        if !self.position.is_exact() {
            return self.end(Drop::ResubmitLimit, p);
        }
        let paused = self.paused(p, f);
        match &mut self.later {
            Some(later) => {
                self.ends += 1;
                later.push(paused);
                None
            }
            None => Some(paused.packet),
        }
    }

    /// A packet that waits behind the current operation.
    fn paused(&self, packet: Packet, f: &Frame) -> Paused {
        let (ops, position, why) = (self.ops.clone(), self.position, self.why);
        Paused { packet, frame: *f, ops, position, why, paced: PACED, newest_port: 0 }
    }

    /// Lets a fragment wait for the rest of its datagram; returns any other packet.
    fn gather(&mut self, ct: &Ct, p: Packet, f: &Frame) -> Option<Packet> {
        if bytes(&f.line)[at::FRAG] & flow::frag::ANY == 0 || !self.position.is_exact() {
            return Some(p);
        }
        let Some(fragment) = ct::fragment(ct, &p, f) else { return Some(p) };
        let paused = self.paused(p, f);
        let back = self.sink.gather(ct, fragment, paused);
        self.ends += u64::from(back.is_none());
        back.map(|paused| paused.packet)
    }

    /// Drops the packet for this reason.
    fn end(&mut self, why: Drop, p: Packet) -> Option<Packet> {
        self.ends += 1;
        self.sink.dropped(self.in_port, why);
        self.sink.free(p);
        None
    }

    /// Executes an operation that consumes a packet on a copy of it.
    fn branch(&mut self, op: &Op, p: &Packet, f: &Frame) {
        if let Op::Sample { chance, .. } = op
            && self.sink.random() >= *chance
        {
            return;
        }
        match self.sink.copy(p) {
            Some(copy) => {
                let left = match op {
                    Op::Sample { ops, .. } => self.list(ops, copy, &mut f.clone()),
                    _ => self.leave(op, copy, &mut f.clone()),
                };
                if let Some(p) = left {
                    self.sink.free(p);
                }
            }
            None => {
                self.ends += 1;
                self.sink.dropped(self.in_port, Drop::NoBuffer);
            }
        }
    }

    /// Truncates the packet if an earlier [`Op::Truncate`] said so.
    fn cut_now(&mut self, p: &mut Packet) {
        if let Some(n) = self.cut.take()
            && n < p.len()
        {
            let _ = p.set_len(n);
        }
    }

    /// Executes an operation that consumes the packet; returns the packet if the operation left it.
    fn leave(&mut self, op: &Op, mut p: Packet, f: &mut Frame) -> Option<Packet> {
        match op {
            Op::Output(port) => {
                self.cut_now(&mut p);
                self.ends += 1;
                self.sink.output(*port, p);
                None
            }
            Op::Recirc(_) | Op::TunnelPop { .. } if f.depth >= RECIRC_LIMIT => {
                self.end(Drop::RecircLimit, p)
            }
            Op::TunnelPop { port, kind, options } => {
                match tunnel::pop(&mut p, *port, *kind, options, f) {
                    Ok(()) => {
                        self.ends += 1;
                        self.sink.recirculate(0, p, f);
                        None
                    }
                    Err(why) => self.end(why, p),
                }
            }
            Op::Recirc(id) => {
                self.ends += 1;
                // Tags were pushed or popped, so the frame describes what is behind them.
                if f.tags != f.vlan_limit {
                    f.reparse(p.data(), f.vlan_limit);
                }
                f.mark_bare();
                self.sink.recirculate(*id, p, f);
                None
            }
            Op::Sample { chance, .. } if self.sink.random() >= *chance => Some(p),
            Op::Sample { ops, .. } | Op::Clone(ops) => self.list(ops, p, f),
            Op::CheckLen { size, more, others } => {
                if p.len() <= usize::from(*size) {
                    return self.list(others, p, f);
                }
                self.position.choose_more();
                self.list(more, p, f)
            }
            _ => Some(p),
        }
    }
}

/// Executes `ops` on a packet, which it consumes. `why`: the reason of its drop if no operation
/// sends it.
pub(crate) fn run<S: Sink>(sink: &mut S, ops: &Arc<[Op]>, why: Drop, packet: Packet, frame: Frame) {
    let start = Start { ops, behind: None, why, most: usize::MAX };
    run_from::<S, false>(sink, start, packet, frame, None);
}

/// Continues the operations of a fragment that waited.
pub(crate) fn resume<S: Sink>(sink: &mut S, paused: Paused) {
    let Paused { packet, frame, ops, position, why, .. } = paused;
    let start = Start { ops: &ops, behind: Some(position), why, most: usize::MAX };
    run_from::<S, false>(sink, start, packet, frame, None);
}

/// As [`run`] or [`resume`], but pauses after `start.most` operations. What is left to do is added
/// to `later`, in order; returns how many operations it might still have executed. Lists that are
/// nested too deep to pause in end the packet there.
pub(crate) fn run_some<S: Sink>(
    sink: &mut S,
    start: Start<'_>,
    packet: Packet,
    frame: Frame,
    later: &mut Vec<Paused>,
) -> usize {
    run_from::<S, true>(sink, start, packet, frame, Some(later))
}

/// Operations, and where among them execution starts.
pub(crate) struct Start<'a> {
    /// All operations of the packet.
    pub ops: &'a Arc<[Op]>,
    /// Only the operations behind this one are executed.
    pub behind: Option<Position>,
    /// The reason of the packet's drop if no operation sends it.
    pub why: Drop,
    /// Operations until it pauses.
    pub most: usize,
}

/// Executes operations until the end, or until it pauses; returns how many operations of
/// `start.most` are left.
fn run_from<S: Sink, const PACED: bool>(
    sink: &mut S,
    Start { ops, behind, why, most }: Start<'_>,
    packet: Packet,
    mut frame: Frame,
    later: Option<&mut Vec<Paused>>,
) -> usize {
    let in_port = frame.in_port();
    let position = behind.unwrap_or_default();
    let (ends, cut) = (0, None);
    let mut r = Run::<S, PACED> { sink, ops, position, why, in_port, ends, cut, left: most, later };
    let rest = match behind {
        None => r.each(ops, 0, packet, &mut frame),
        Some(position) => r.each(position.list(ops), position.next(), packet, &mut frame),
    };
    let (ends, left) = (r.ends, r.left);
    if let Some(p) = rest {
        sink.free(p);
    }
    match ends {
        0 => sink.dropped(in_port, why),
        1 => {}
        n => sink.copies(in_port, n - 1),
    }
    left
}

/// Executes an operation that changes the packet.
fn change(op: &Op, p: &mut Packet, f: &mut Frame) -> Result<(), Drop> {
    let place = Place { line: &f.line, layout: f.layout };
    match op {
        Op::Set(rw) => return set(rw, p, f),
        Op::PushEth(rw) => {
            f.set_unwrapped(false);
            return set(rw, p, f);
        }
        Op::PushVlan { tpid, tci } => {
            rewrite::push_vlan(p, *tpid, *tci)?;
            f.tags = f.tags.saturating_add(1);
        }
        Op::PopVlan => {
            let tagged = bytes(&f.line)[at::VLAN] & 0x10 != 0;
            rewrite::pop_vlan(p);
            f.tags -= u8::from(tagged && f.tags > 0);
        }
        Op::PushMpls { ethertype, lse } => rewrite::push_mpls(p, &f.layout, *ethertype, *lse)?,
        Op::PopMpls { ethertype } => rewrite::pop_mpls(p, &place, *ethertype)?,
        Op::EncapMpls { ethertype, lse, dst, src } => {
            mpls_payload::frame_in_mpls(p, [*dst, *src], *ethertype, *lse)?;
            f.tags = f.vlan_limit;
        }
        Op::DecapMpls => {
            mpls_payload::frame_out_of_mpls(p, &place)?;
            f.tags = f.vlan_limit;
        }
        Op::PushNsh { .. } | Op::PopNsh { .. } => nsh::change(op, p, f)?,
        Op::TunnelPush(t) => {
            let entropy = tunnel::entropy(&f.line, &f.ext[0], f.have);
            tunnel::push(p, t, entropy)?;
            f.leave_tunnel();
        }
        _ => {}
    }
    f.reparse(p.data(), f.tags);
    Ok(())
}

/// Raises the drop precedence of an IP packet's DSCP by `by`.
fn remark(by: u8, p: &mut Packet, f: &mut Frame) -> Result<(), Drop> {
    let (eth_type, tos) = (f.key().u16(at::ETH_TYPE), f.key().u8(at::TOS));
    let new = action::remarked(tos, by);
    if new == tos || !matches!(eth_type, ETH_IPV4 | ETH_IPV6) {
        return Ok(());
    }
    let mut rw = Rewrite { key: Key::ZERO, mask: Key::ZERO };
    rw.key.set_u16(at::ETH_TYPE, eth_type);
    rw.key.set_u8(at::TOS, new);
    rw.mask.set_u8(at::TOS, 0xff);
    set(&rw, p, f)
}

/// Sets header fields and metadata.
fn set(rw: &Rewrite, p: &mut Packet, f: &mut Frame) -> Result<(), Drop> {
    rewrite::apply(p, &Place { line: &f.line, layout: f.layout }, rw)?;
    f.reparse(p.data(), f.tags);
    set_metadata(f, rw);
    Ok(())
}

/// Sets the metadata fields of a rewrite in the packet's key.
fn set_metadata(f: &mut Frame, rw: &Rewrite) {
    if !touches_metadata(rw) {
        return;
    }
    let mut key = f.key();
    for i in (0..flow::PACKET_LINES * 64).filter(|i| is_metadata(*i)) {
        let m = rw.mask.bytes()[i];
        let b = &mut key.bytes_mut()[i];
        *b = *b & !m | rw.key.bytes()[i] & m;
    }
    f.line.copy_from_slice(key.line(0));
    f.line[7] = 0;
    for l in 1..3 {
        f.ext[l].copy_from_slice(key.line(l + 1));
        if f.ext[l].iter().any(|w| *w != 0) {
            f.have |= 1 << l;
        }
    }
}
