//! Matches, actions and instructions, one form for all OpenFlow versions.

use crate::Loose;
use crate::conntrack::{Conntrack, Nat};
use flow::{Field, Key, Mask, TunMetadata};

/// OpenFlow port number in 32-bit form; reserved ones as in OpenFlow 1.1+.
pub type OfPort = u32;

/// Reserved ports (OpenFlow 1.1+ values; 1.0's 16-bit ones are translated by the codec).
#[allow(missing_docs)]
pub mod port {
    pub const MAX: u32 = 0xffff_ff00;
    pub const UNSET: u32 = 0xffff_fff7;
    pub const IN_PORT: u32 = 0xffff_fff8;
    pub const TABLE: u32 = 0xffff_fff9;
    pub const NORMAL: u32 = 0xffff_fffa;
    pub const FLOOD: u32 = 0xffff_fffb;
    pub const ALL: u32 = 0xffff_fffc;
    pub const CONTROLLER: u32 = 0xffff_fffd;
    pub const LOCAL: u32 = 0xffff_fffe;
    pub const ANY: u32 = 0xffff_ffff;
}

/// Reserved meters (`OFPM_*`).
#[allow(missing_docs)]
pub mod meter_id {
    /// The highest of a controller's choice.
    pub const MAX: u32 = 0xffff_0000;
    pub const SLOWPATH: u32 = 0xffff_fffd;
    pub const CONTROLLER: u32 = 0xffff_fffe;
    pub const ALL: u32 = 0xffff_ffff;
}

/// A match: values and the bits that count, both in key form (values are zero where masked out).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Match {
    /// Values.
    pub key: Key,
    /// Bits that count.
    pub mask: Mask,
    /// Tunnel options, ascending by index. Their lengths are those of the message, or of the table
    /// of options of who made the match.
    pub tun: Vec<TunMetadata>,
}

impl Match {
    /// A match that says nothing about tunnel options.
    pub fn new(key: Key, mask: Mask) -> Match {
        Match { key, mask, tun: Vec::new() }
    }

    /// True if the match takes every packet that `narrow` takes. Tunnel options are compared in the
    /// lengths that `narrow` has them in.
    pub fn covers(&self, narrow: &Match) -> bool {
        let of = |index| narrow.tun.iter().find(|n| n.index == index);
        let options =
            |w: &TunMetadata| of(w.index).is_some_and(|n| n.within(&w.resized(n.value.len())));
        let loose = Loose::new(self);
        loose.mask.subset_of(&narrow.mask)
            && self.key.matches(&narrow.key, &loose.mask)
            && loose.packet_type_fits(|| (narrow.key, narrow.mask))
            && self.tun.iter().all(options)
    }
}

/// A run of bits in a field, counted in the field's width on the wire: a subfield of `ArpOp` (16
/// on the wire) may reach above the field, where bits read as zero and are not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subfield {
    /// The field.
    pub field: Field,
    /// Lowest bit.
    pub ofs: u16,
    /// Number of bits.
    pub bits: u16,
}

/// Why a packet goes to a controller (`OFPR_*` of 1.4+, translated down for older versions).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[repr(u8)]
pub enum Reason {
    TableMiss = 0,
    Action = 1,
    InvalidTtl = 2,
    ActionSet = 3,
    Group = 4,
    PacketOut = 5,
}

/// What ovs-vswitchd takes only if it was started with `--enable-dummy` (NXAST_DEBUG_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TestAction {
    /// The packet takes the slow path, where there is one.
    Slow,
    /// The packet is looked up again before what follows.
    Recirc,
}

/// One action. Set-fields and loads keep which form they came in, so that they print back the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Action {
    /// Output to a port (any reserved one except CONTROLLER). `max_len` means nothing to such a
    /// port, but is reported as it was given. `trunc` != 0: Nicira output_trunc, in bytes.
    Output {
        port: OfPort,
        max_len: u16,
        trunc: u32,
    },
    /// Output to the port number found in a field (NXAST_OUTPUT_REG).
    OutputReg {
        src: Subfield,
        max_len: u16,
    },
    /// Output to controllers.
    Controller {
        max_len: u16,
        reason: Reason,
        id: u16,
        userdata: Vec<u8>,
        pause: bool,
        meter: Option<u32>,
    },
    /// Output to a port through a queue (queues: accepted, output happens).
    Enqueue {
        port: OfPort,
        queue: u32,
    },
    SetQueue(u32),
    PopQueue,
    Group(u32),
    /// value/mask in the field's own width, right-aligned.
    SetField {
        field: Field,
        value: u128,
        mask: u128,
    },
    /// A set-field of a tunnel option.
    SetTunMetadata(Box<TunMetadata>),
    /// NXAST_REG_LOAD ("load:"), value right-aligned in the subfield.
    Load {
        dst: Subfield,
        value: u64,
    },
    Move {
        src: Subfield,
        dst: Subfield,
    },
    Push(Subfield),
    Pop(Subfield),
    // The OpenFlow 1.0 forms, printed as mod_*.
    SetVlanVid {
        vid: u16,
        push_if_absent: bool,
    },
    SetVlanPcp {
        pcp: u8,
        push_if_absent: bool,
    },
    /// `pop`: in the form of OpenFlow 1.1 and later, which text calls pop_vlan.
    StripVlan {
        pop: bool,
    },
    SetEthSrc([u8; 6]),
    SetEthDst([u8; 6]),
    SetIpSrc([u8; 4]),
    SetIpDst([u8; 4]),
    /// The upper six bits, in place.
    SetIpDscp(u8),
    SetIpEcn(u8),
    SetIpTtl(u8),
    SetL4Src(u16),
    SetL4Dst(u16),
    PushVlan {
        ethertype: u16,
    },
    PushMpls {
        ethertype: u16,
    },
    PopMpls {
        ethertype: u16,
    },
    SetMplsLabel(u32),
    SetMplsTc(u8),
    SetMplsTtl(u8),
    DecMplsTtl,
    DecNshTtl,
    /// Controllers that get the expired packets; None: 0.
    DecTtl {
        ids: Option<Vec<u16>>,
    },
    SetTunnel {
        id: u64,
        wide: bool,
    },
    /// `in_port`: None keeps it; `table`: None means the current one. `ct`: with the conntrack
    /// tuple.
    Resubmit {
        in_port: Option<OfPort>,
        table: Option<u8>,
        ct: bool,
    },
    Note(Vec<u8>),
    Exit,
    /// An action of ovs-vswitchd's own tests.
    Test(TestAction),
    Clone(Vec<Action>),
    FinTimeout {
        idle: u16,
        hard: u16,
    },
    Conjunction {
        id: u32,
        clause: u8,
        n_clauses: u8,
    },
    Learn(Box<crate::Learn>),
    Bundle(Box<Bundle>),
    Multipath {
        fields: u16,
        basis: u16,
        algorithm: u16,
        max_link: u16,
        arg: u32,
        dst: Subfield,
    },
    /// `port` and `direction` (0: default, 1: ingress, 2: egress) say what the sample reports;
    /// [`port::ANY`]: the packet's own.
    Sample {
        probability: u16,
        collector_set: u32,
        domain: u32,
        point: u32,
        port: OfPort,
        direction: u8,
    },
    Meter(u32),
    /// Boxed: rare and large, as the next one.
    Ct(Box<Conntrack>),
    /// In a [`Action::Ct`] only.
    Nat(Box<Nat>),
    CtClear,
    /// Says in a bit whether the packet is longer than so many bytes.
    CheckPktLarger {
        len: u16,
        dst: Subfield,
    },
    DeleteField(Field),
    Encap(crate::Header),
    /// The packet type of what is behind the header that is removed; None: the header says that.
    Decap(Option<u32>),
}

impl Action {
    /// The whole packet to a port other than CONTROLLER.
    pub fn output(port: OfPort) -> Action {
        Action::Output { port, max_len: 0, trunc: 0 }
    }

    /// Up to `max_len` bytes of the packet to controllers, because an action says so.
    pub fn to_controller(max_len: u16) -> Action {
        Action::Controller {
            max_len,
            reason: Reason::Action,
            id: 0,
            userdata: vec![],
            pause: false,
            meter: None,
        }
    }
}

/// What multipath and bundle hash (`NX_HASH_FIELDS_*`).
#[allow(missing_docs)]
pub mod hash_fields {
    pub const ETH_SRC: u16 = 0;
    pub const SYMMETRIC_L4: u16 = 1;
    pub const SYMMETRIC_L3L4: u16 = 2;
    pub const SYMMETRIC_L3L4_UDP: u16 = 3;
    pub const NW_SRC: u16 = 4;
    pub const NW_DST: u16 = 5;
    pub const SYMMETRIC_L3: u16 = 6;
}

/// NXAST_BUNDLE and NXAST_BUNDLE_LOAD: an output to one of several ports, or its number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bundle {
    /// [`hash_fields`].
    pub fields: u16,
    /// Mixed into the hash.
    pub basis: u16,
    /// 0: the first that is live; 1: of those that are live one by hash.
    pub algorithm: u16,
    /// Where the port's number goes (bundle_load).
    pub dst: Option<Subfield>,
    /// [`port::ANY`] is none.
    pub members: Vec<OfPort>,
}

/// One instruction (OpenFlow 1.1+); 1.0 flows have Apply only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Instruction {
    Meter(u32),
    Apply(Vec<Action>),
    Clear,
    Write(Vec<Action>),
    WriteMetadata { value: u64, mask: u64 },
    Goto(u8),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_match_covers_what_says_more_of_the_same() {
        let with = |tun: &[TunMetadata]| Match { tun: tun.to_vec(), ..Match::default() };
        let exact = with(&[TunMetadata::exact(3, &[0, 0, 0, 5])]);
        let short = with(&[TunMetadata::exact(3, &[5])]);
        let other = with(&[TunMetadata::exact(3, &[0, 0, 0, 6])]);
        let any = with(&[TunMetadata::masked(3, &[0], &[0])]);
        assert!(with(&[]).covers(&exact) && short.covers(&exact) && any.covers(&exact));
        assert!(!exact.covers(&with(&[])) && !exact.covers(&other) && !exact.covers(&any));
        let mut port = exact.clone();
        port.mask.set_u32(flow::at::OF_IN_PORT, !0);
        assert!(exact.covers(&port) && !port.covers(&exact));
    }
}
