//! Operations of the packet path, OVS's datapath actions in our words.

use crate::{Ct, Meter, Payload, TunnelKind, TunnelPush};
use flow::{Key, Mask, PortNo};
use std::any::Any;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use telemetry::Drop;

/// One operation. Order matters; a program that ends without an output drops the packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Send the packet as it is now to a datapath port.
    Output(PortNo),
    /// Rewrite header fields: for every 1-bit in `mask`, the packet takes the bit of `key`.
    /// Covers Ethernet, IPv4/IPv6 (addresses, TOS, TTL, label), L4 ports, ICMP type/code, ARP, ND
    /// and the top MPLS entry; checksums follow (incremental). One protocol group per Op so that it
    /// prints as OVS's `set(...)`.
    Set(Box<Rewrite>),
    /// Put an Ethernet header in front of a packet that came without one. In memory it has one
    /// already, so this writes both addresses and is otherwise a rewrite.
    PushEth(Box<Rewrite>),
    /// Insert an outer VLAN tag behind the MAC addresses.
    PushVlan {
        /// Ethertype of the tag.
        tpid: u16,
        /// Tag; bit 12 (present) is cleared on the wire.
        tci: u16,
    },
    /// Remove the outer VLAN tag.
    PopVlan,
    /// Insert an MPLS entry in front of L3 (behind VLAN tags), setting the Ethertype.
    PushMpls {
        /// 0x8847 or 0x8848.
        ethertype: u16,
        /// Label stack entry, host order.
        lse: u32,
    },
    /// Remove the top MPLS entry; the Ethertype becomes this one.
    PopMpls {
        /// New Ethertype.
        ethertype: u16,
    },
    /// Put an Ethernet header and an MPLS entry in front of the whole frame, which may have tags.
    EncapMpls {
        /// 0x8847 or 0x8848.
        ethertype: u16,
        /// Label stack entry, host order.
        lse: u32,
        /// Addresses of the new header.
        dst: [u8; 6],
        /// Source.
        src: [u8; 6],
    },
    /// Remove the Ethernet header with its tags and the top MPLS entry: what is behind is a frame.
    DecapMpls,
    /// Put a network service header in front of the packet, which has no Ethernet header then but
    /// the one in memory.
    PushNsh {
        /// What of the packet is inside.
        payload: Payload,
        /// The header's bytes.
        header: Box<[u8]>,
    },
    /// Remove the network service header and what is in front of it. What is behind is a frame, or
    /// a packet without an Ethernet header, as the removed header says.
    PopNsh {
        /// True if the packet begins with an Ethernet header; false: the header exists in memory
        /// only.
        framed: bool,
    },
    /// Parse and look the packet up again with this recirculation id.
    Recirc(u32),
    /// Cut later outputs of this packet (only the next one) to at most this many bytes.
    Truncate(u32),
    /// Hand a copy to the control side.
    Punt(Arc<Punt>),
    /// Work on a copy: the ops inside do not change the packet outside.
    Clone(Box<[Op]>),
    /// Execute one of two lists on a copy, by the packet's length from its Ethernet header on, with
    /// its tags and padding and without FCS.
    CheckLen {
        /// Bytes.
        size: u16,
        /// Operations on packets of more bytes.
        more: Box<[Op]>,
        /// Operations on all other packets.
        others: Box<[Op]>,
    },
    /// Send the packet through connection tracking; it goes on with what that says in its key.
    Ct(Box<Ct>),
    /// Forget what connection tracking said: the packet is one that it did not see.
    CtClear,
    /// Let a meter decide: packets beyond its rates are dropped or remarked.
    Meter(Arc<Meter>),
    /// Execute with probability `chance / 2^32`.
    Sample {
        /// Probability numerator.
        chance: u32,
        /// What to execute, on a copy.
        ops: Box<[Op]>,
    },
    /// Put an outer header in front: the operations that follow are about the outer packet.
    TunnelPush(Arc<TunnelPush>),
    /// Take the outer header away: the inner packet is looked up as one that came in on `port`,
    /// with the outer header's fields as metadata.
    TunnelPop {
        /// Datapath number of the tunnel port.
        port: PortNo,
        /// What the header is.
        kind: TunnelKind,
        /// Geneve options whose values matter (class and type, ascending): packets that differ in
        /// other options only are treated alike.
        options: Arc<[u32]>,
    },
    /// An action of OVS's kernel datapath, as OVS prints it: it is shown, and changes nothing.
    Kernel(Arc<str>),
    /// End here, for a named reason.
    Drop(Drop),
}

/// Values and the bits of them that are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// New values, in key positions. Outside the mask: the packet's Ethertype, and for
    /// L4 and ND fields its IP protocol, which tell what the fields are; everything else is zero.
    pub key: Key,
    /// The bits of the field that are written.
    pub mask: Mask,
}

impl Hash for Rewrite {
    /// Only the words that have a bit in the mask: a key has dozens, of which a rewrite uses a few.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let words = self.key.words.iter().zip(&self.mask.words).enumerate();
        for (i, (value, mask)) in words.filter(|(_, (_, mask))| **mask != 0) {
            (i, value & mask, mask).hash(state);
        }
    }
}

/// Whose a packet to the control side is: packets of each class have a share of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PuntClass {
    /// Controllers'.
    Controller,
    /// The packet is of a protocol that the switch speaks itself.
    Protocol,
    /// Taken as a sample.
    Sample,
}

/// A packet on its way to the control side. Two are equal if they are the same one in memory, since
/// the context cannot be compared.
#[derive(Debug)]
pub struct Punt {
    /// The class whose share of packets it takes.
    pub class: PuntClass,
    /// Bytes of the packet that are copied, at most (0xffff: all).
    pub max_len: u16,
    /// True while the control side wants such packets; others are not handed over. None: the
    /// control side wants all of them.
    pub wanted: Option<Arc<AtomicBool>>,
    /// What the control side wants to know again (reason, table, registers, ...); it downcasts.
    pub context: Box<dyn Any + Send + Sync>,
}

impl Punt {
    /// True if the packet is to be handed over.
    pub fn is_wanted(&self) -> bool {
        self.wanted.as_ref().is_none_or(|w| w.load(Ordering::Relaxed))
    }
}

impl PartialEq for Punt {
    fn eq(&self, other: &Punt) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Punt {}

impl Hash for Punt {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self).hash(state);
    }
}

impl Op {
    /// The lists of operations in this one.
    fn lists(&self) -> [&[Op]; 2] {
        match self {
            Op::Clone(ops) | Op::Sample { ops, .. } => [ops, &[]],
            Op::CheckLen { more, others, .. } => [more, others],
            _ => [&[]; 2],
        }
    }
}

/// Number of operations, those in lists among them.
pub fn count(ops: &[Op]) -> usize {
    let inside = |op: &Op| op.lists().map(count).iter().sum::<usize>();
    ops.len() + ops.iter().map(inside).sum::<usize>()
}

/// True if an operation, in lists too, sends the packet to a port for which `is` is true.
pub fn sends_to(ops: &[Op], is: &dyn Fn(PortNo) -> bool) -> bool {
    ops.iter().any(|op| match op {
        Op::Output(port) => is(*port),
        op => op.lists().iter().any(|ops| sends_to(ops, is)),
    })
}
