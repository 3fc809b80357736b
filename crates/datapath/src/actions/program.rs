//! Programs of the actions step: a decision's operations, compiled to a record of three cache
//! lines, of which most kinds need the first.

use crate::actions::copies::KERNEL_FREE_COPIES_MAX;
use crate::actions::patch::Patch;
use crate::actions::rewrite::ethernet_only;
use crate::actions::sequence::Sequence;
use crate::mem::fold;
use crate::tunnel::encap::Template;
use action::Op;
use flow::PortNo;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use telemetry::Drop;

/// The combination of operations that a program has, so that a packet takes one branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Drop the packet; the reason is `Program::drop`.
    Drop,
    /// Send to `Program::out`.
    Output,
    /// Set Ethernet addresses, then send.
    SetEthOutput,
    /// Rewrite by a patch (the packets that it claims), then send.
    PatchOutput,
    /// Rewrite without a patch, then send.
    SetOutput,
    /// Push a VLAN tag, then send.
    PushVlanOutput,
    /// Pop the outer VLAN tag, then send.
    PopVlanOutput,
    /// Push a tunnel's header, then send.
    TunnelPushOutput,
    /// Pop a tunnel's header by the interpreter. Decapsulation in one pass may learn from it.
    TunnelPop,
    /// Rewrites, tags and outputs in any order, of which the last is an output.
    Sequence,
    /// Track the connection, then send the packet or look it up again.
    Track,
    /// Copy some packets to the control side, then run another program.
    Sampled,
    /// Everything else, by the interpreter.
    Generic,
    /// Operations that send more copies of a packet than [`KERNEL_FREE_COPIES_MAX`], or have one of
    /// several looked up again, for which the packet's input port is charged: a sequence, or by the
    /// interpreter.
    Copies,
}

/// Number of operations that only change a packet and together weigh as much as one that sends a
/// copy of it.
const CHANGES_PER_COPY: usize = 16;

/// A compiled list of operations.
#[repr(C, align(64))]
pub(crate) struct Program {
    pub kind: Kind,
    pub drop: Drop,
    pub out: PortNo,
    pub tpid: u16,
    pub tci: u16,
    refs: u32,
    /// The control side knows the program's operations.
    announced: bool,
    /// What [`Kind::Copies`] is charged for: [`weight`].
    pub weight: u16,
    hash: u64,
    /// The operations themselves, for the interpreter and for dumps.
    pub ops: Arc<[Op]>,
    /// The rewrite, for kinds that set fields.
    pub patch: Patch,
    /// The outer header's template, for [`Kind::TunnelPushOutput`]; None: the header has none.
    pub template: Option<Box<Template>>,
    /// The compiled operations of [`Kind::Sequence`], and of some of [`Kind::Copies`].
    pub sequence: Option<Box<Sequence>>,
    /// The parts of [`Kind::Sampled`].
    pub sampled: Option<Box<Sampled>>,
}

/// The parts of a program that samples packets.
pub(crate) struct Sampled {
    /// A packet is sampled with probability `chance / 2^32`.
    pub chance: u32,
    /// Operations on the copy of a sampled packet.
    pub ops: Arc<[Op]>,
    /// The program of all packets, sampled or not.
    pub rest: Program,
}

// The third line holds the patch of IPv6.
const _: () = assert!(size_of::<Program>() == 192);

impl Program {
    /// Compiles `ops`; `why` is the reason of the drop if no operation sends the packet.
    pub fn new(ops: &[Op], why: Option<Drop>) -> Self {
        let why = why.unwrap_or(Drop::Policy);
        let mut p = Program {
            kind: Kind::Generic,
            drop: why,
            out: flow::NO_PORT,
            tpid: 0,
            tci: 0,
            weight: weight(ops).min(u16::MAX.into()) as u16,
            refs: 0,
            announced: false,
            hash: hash_ops(ops, why),
            ops: ops.into(),
            sequence: None,
            sampled: None,
            patch: Patch::default(),
            template: None,
        };
        if let Some(Op::Output(port)) = ops.last() {
            p.out = *port;
        }
        p.kind = p.compile(ops, why);
        let most = if recirculates(ops) { 1 } else { KERNEL_FREE_COPIES_MAX };
        if matches!(p.kind, Kind::Sequence | Kind::Generic) && usize::from(p.weight) > most {
            p.kind = Kind::Copies;
        }
        p
    }

    /// True if the program has packets looked up again.
    #[cold]
    pub fn recirculates(&self) -> bool {
        recirculates(&self.ops)
    }

    /// Finds the kind of these operations, and fills in the fields that it needs.
    fn compile(&mut self, ops: &[Op], why: Drop) -> Kind {
        match ops {
            [] => Kind::Drop,
            [Op::Drop(why)] => {
                self.drop = *why;
                Kind::Drop
            }
            [Op::Output(_)] => Kind::Output,
            [Op::PushVlan { tpid, tci }, Op::Output(_)] => {
                (self.tpid, self.tci) = (*tpid, *tci);
                Kind::PushVlanOutput
            }
            [Op::PopVlan, Op::Output(_)] => Kind::PopVlanOutput,
            [Op::Sample { chance, ops }, rest @ ..] if is_cheap(rest, why) => {
                let (chance, ops, rest) =
                    (*chance, ops.to_vec().into(), Program::new(rest, Some(why)));
                self.sampled = Some(Box::new(Sampled { chance, ops, rest }));
                Kind::Sampled
            }
            [Op::Ct(ct), Op::Output(_) | Op::Recirc(_)] if ct.alg.is_none() => Kind::Track,
            [Op::TunnelPush(t), Op::Output(_)] => {
                self.template = Template::new(t).map(Box::new);
                Kind::TunnelPushOutput
            }
            [Op::TunnelPop { port, .. }] => {
                self.out = *port;
                Kind::TunnelPop
            }
            [sets @ .., Op::Output(_)] if sets.iter().all(is_set) => match Patch::compile(sets) {
                Some(patch) => {
                    self.patch = patch;
                    match sets.iter().all(is_ethernet) {
                        true => Kind::SetEthOutput,
                        false => Kind::PatchOutput,
                    }
                }
                None => Kind::SetOutput,
            },
            _ => {
                self.sequence = Sequence::compile(ops).map(Box::new);
                if self.sequence.is_some() { Kind::Sequence } else { Kind::Generic }
            }
        }
    }
}

/// The most copies of a packet that these operations send or have looked up again; of other
/// operations [`CHANGES_PER_COPY`] count as one copy.
fn weight(ops: &[Op]) -> usize {
    fn parts(ops: &[Op]) -> usize {
        let one = |op: &Op| match op {
            Op::Output(_) | Op::Recirc(_) | Op::Punt(_) | Op::TunnelPop { .. } => CHANGES_PER_COPY,
            Op::CheckLen { more, others, .. } => 1 + parts(more).max(parts(others)),
            Op::Clone(ops) | Op::Sample { ops, .. } => 1 + parts(ops),
            _ => 1,
        };
        ops.iter().map(one).sum()
    }
    parts(ops) / CHANGES_PER_COPY
}

/// True if some of these operations have the packet looked up again.
fn recirculates(ops: &[Op]) -> bool {
    ops.iter().any(|op| match op {
        Op::Recirc(_) | Op::TunnelPop { .. } => true,
        Op::CheckLen { more, others, .. } => recirculates(more) || recirculates(others),
        Op::Clone(ops) | Op::Sample { ops, .. } => recirculates(ops),
        _ => false,
    })
}

/// True if these operations compile to a kind that needs no interpreter and takes one packet at a
/// time.
fn is_cheap(ops: &[Op], why: Drop) -> bool {
    let sampled = matches!(ops, [Op::Sample { .. }, ..]);
    let kind = if sampled { Kind::Generic } else { Program::new(ops, Some(why)).kind };
    !matches!(kind, Kind::Generic | Kind::TunnelPop | Kind::Track | Kind::Sampled | Kind::Copies)
}

/// True for a rewrite of packet bytes only, without metadata.
fn is_set(op: &Op) -> bool {
    let (Op::Set(rw) | Op::PushEth(rw)) = op else { return false };
    !crate::actions::interpret::touches_metadata(rw)
}

/// True for a rewrite of Ethernet addresses only.
fn is_ethernet(op: &Op) -> bool {
    matches!(op, Op::Set(rw) | Op::PushEth(rw) if ethernet_only(rw))
}

/// The programs of one worker, each of them once.
#[derive(Default)]
pub(crate) struct Programs {
    all: Vec<Program>,
    free: Vec<u32>,
    by_hash: HashMap<u64, Vec<u32>>,
    /// The program that [`Programs::intern`] returned last.
    last: u32,
}

impl Programs {
    /// The number of the program with these operations, with one more reference.
    pub fn intern(&mut self, ops: &[Op], why: Option<Drop>) -> u32 {
        let reason = why.unwrap_or(Drop::Policy);
        let is = |p: &Program| {
            let drops = p.drop == reason || matches!(ops, [Op::Drop(_)]);
            drops && *p.ops == *ops
        };
        if let Some(p) = self.all.get_mut(self.last as usize).filter(|p| p.refs > 0 && is(p)) {
            p.refs += 1;
            return self.last;
        }
        let hash = hash_ops(ops, reason);
        let ids = self.by_hash.entry(hash).or_default();
        for id in ids.iter() {
            let p = &mut self.all[*id as usize];
            if is(p) {
                p.refs += 1;
                self.last = *id;
                return *id;
            }
        }
        let mut p = Program::new(ops, why);
        p.refs = 1;
        let id = match self.free.pop() {
            Some(id) => {
                self.all[id as usize] = p;
                id
            }
            None => {
                self.all.push(p);
                self.all.len() as u32 - 1
            }
        };
        ids.push(id);
        self.last = id;
        id
    }

    /// The operations of program `id`, if they were not reported yet.
    pub fn announce(&mut self, id: u32) -> Option<Arc<[Op]>> {
        let p = &mut self.all[id as usize];
        (!std::mem::replace(&mut p.announced, true)).then(|| p.ops.clone())
    }

    /// Removes one reference; without references the program's number is free.
    pub fn release(&mut self, id: u32) {
        let p = &mut self.all[id as usize];
        p.refs -= 1;
        if p.refs == 0 {
            p.ops = Arc::new([]);
            p.template = None;
            p.sequence = None;
            p.sampled = None;
            let hash = p.hash;
            if let Some(ids) = self.by_hash.get_mut(&hash) {
                ids.retain(|i| *i != id);
                if ids.is_empty() {
                    self.by_hash.remove(&hash);
                }
            }
            self.free.push(id);
        }
    }

    /// Program `id`.
    #[inline]
    pub fn get(&self, id: u32) -> &Program {
        &self.all[id as usize]
    }

    /// Number of programs in use.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }
}

/// A hash of a program: its operations, and the reason of its drop.
fn hash_ops(ops: &[Op], why: Drop) -> u64 {
    let mut hasher = OpHasher(0);
    (ops, why).hash(&mut hasher);
    hasher.finish()
}

/// Hashes the parts of operations word by word with [`fold`].
struct OpHasher(u64);

impl Hasher for OpHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = fold(fold(self.0) ^ word);
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    #[inline]
    fn write_u16(&mut self, word: u16) {
        self.write_u64(word.into());
    }

    #[inline]
    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    #[inline]
    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_weigh_and_changes_hardly_do() {
        let out = |n| vec![Op::Output(1); n];
        let changes = vec![Op::PopVlan; 40];
        assert_eq!(weight(&[changes.clone(), out(3)].concat()), 5);
        let split = Op::CheckLen { size: 9, more: out(3).into(), others: out(2).into() };
        assert_eq!(weight(&[split, Op::Clone(out(7).into()), Op::Output(1)]), 11);
        for (ops, long) in [
            (out(4), false),
            (out(5), true),
            ([changes.clone(), out(1)].concat(), false),
            (vec![Op::Recirc(1); 2], true),
            (vec![Op::PopVlan, Op::Recirc(1)], false),
            (vec![Op::Clone(vec![Op::Recirc(1)].into()), Op::Output(1)], true),
            (vec![Op::PopVlan; 80], true),
        ] {
            assert_eq!(Program::new(&ops, None).kind == Kind::Copies, long, "{ops:?}");
        }
    }

    #[test]
    fn equal_lists_share_a_program() {
        let mut ps = Programs::default();
        let a = ps.intern(&[Op::Output(3)], None);
        let b = ps.intern(&[Op::Output(4)], None);
        assert_eq!(ps.intern(&[Op::Output(3)], None), a);
        assert_ne!(a, b);
        let c = ps.intern(&[], Some(Drop::DepthLimit));
        assert_ne!(ps.intern(&[], None), c);
        assert_eq!(ps.get(c).drop, Drop::DepthLimit);
        assert_eq!(ps.len(), 4);
        ps.release(a);
        ps.release(a);
        assert_eq!(ps.len(), 3);
        assert_eq!(ps.intern(&[Op::PopVlan, Op::Output(1)], None), a);
        assert_eq!(ps.get(a).kind, Kind::PopVlanOutput);
    }
}
