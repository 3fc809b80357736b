//! Counters on the wire: blocks of a `counters_sample` (sFlow version 5; LACP: "sFlow LAG
//! Counters"; OpenFlow: "sFlow OpenFlow Structures"; Open vSwitch's own: "sFlow OVS Structures").

use super::xdr::Xdr;

/// What a counter says that no one counts.
pub const UNKNOWN: u32 = u32::MAX;
/// What a gauge says of which nothing is known.
const UNKNOWN_GAUGE: u32 = 0;

/// Blocks.
const INTERFACE: u32 = 1;
const ETHERNET: u32 = 2;
const LACP: u32 = 7;
const OPENFLOW_PORT: u32 = 1004;
const PORT_NAME: u32 = 1005;
const PROCESS: u32 = 2203;
const OVS_DATAPATH: u32 = 2207;

/// `ifType` of Ethernet (RFC 1213).
const ETHERNET_CSMACD: u32 = 6;

/// One block of counters.
#[derive(Clone, Copy, Debug)]
pub enum Block<'a> {
    /// Counters of an interface.
    Interface(&'a InterfaceCounters),
    /// Counters of Ethernet.
    Ethernet(EthernetCounters),
    /// Counters of a member of a link aggregation group.
    Lacp(&'a Lacp),
    /// Datapath id and number of an OpenFlow port.
    OpenFlowPort(u64, u32),
    /// A port's name.
    PortName(&'a str),
    /// Counters of the datapath.
    Switch(&'a SwitchCounters),
    /// Counters of the daemon.
    Process(&'a ProcessCounters),
}

/// Counters of an interface; [`UNKNOWN`] where there is none.
#[derive(Clone, Debug, Default)]
pub struct InterfaceCounters {
    /// ifIndex.
    pub index: u32,
    /// Bits per second.
    pub speed: u64,
    /// 0: not known, 1: full duplex, 2: half duplex.
    pub direction: u32,
    /// Bit 0: it is to be up; bit 1: it is.
    pub status: u32,
    /// Received: bytes.
    pub in_octets: u64,
    /// Received: packets, multicast, broadcast, dropped, with errors.
    pub received: [u32; 5],
    /// Sent: bytes.
    pub out_octets: u64,
    /// Sent: packets, multicast, broadcast, dropped, with errors.
    pub sent: [u32; 5],
}

/// Errors of received frames; [`UNKNOWN`] where it is not counted.
#[derive(Clone, Copy, Debug)]
pub struct EthernetCounters {
    /// Frames whose length in bits is not one of whole bytes.
    pub alignment: u32,
    /// Frames with a wrong FCS.
    pub fcs: u32,
    /// Too long.
    pub too_long: u32,
}

/// A member of a link aggregation group.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lacp {
    /// Its system, and that at the other end.
    pub systems: [[u8; 6]; 2],
    /// The group.
    pub group: u32,
    /// Own state as configured and as it is, and the partner's.
    pub states: [u8; 4],
    /// LACPDUs received, malformed, sent.
    pub pdus: [u32; 3],
}

/// Counters of the datapath.
#[derive(Clone, Copy, Debug, Default)]
pub struct SwitchCounters {
    /// Packets that found a cached decision, and that did not.
    pub lookups: [u32; 2],
    /// Packets that were lost on their way to be decided about.
    pub lost: u32,
    /// Masks that were looked at.
    pub mask_hits: u32,
    /// Cached decisions, and their masks.
    pub flows: u32,
    /// See `flows`.
    pub masks: u32,
}

/// What the daemon uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessCounters {
    /// CPU time of the program, and of the kernel for it, ms.
    pub cpu_ms: [u32; 2],
    /// Bytes of memory.
    pub memory: u64,
}

impl Block<'_> {
    pub(super) fn write(&self, x: &mut Xdr) {
        match self {
            Block::Interface(c) => x.record(INTERFACE, |x| c.write(x)),
            Block::Ethernet(c) => x.record(ETHERNET, |x| c.write(x)),
            Block::Lacp(l) => x.record(LACP, |x| l.write(x)),
            Block::OpenFlowPort(dpid, number) => x.record(OPENFLOW_PORT, |x| {
                x.u64(*dpid);
                x.u32(*number);
            }),
            Block::PortName(name) => x.record(PORT_NAME, |x| x.bytes(name.as_bytes())),
            Block::Switch(c) => x.record(OVS_DATAPATH, |x| {
                let all = [c.lookups[0], c.lookups[1], c.lost, c.mask_hits, c.flows, c.masks];
                all.iter().for_each(|n| x.u32(*n));
            }),
            Block::Process(p) => x.record(PROCESS, |x| {
                p.cpu_ms.iter().for_each(|ms| x.u32(*ms));
                x.u64(p.memory);
                x.u64(UNKNOWN_GAUGE.into());
                // Open files and connections, and how many there may be.
                (0..4).for_each(|_| x.u32(UNKNOWN_GAUGE));
            }),
        }
    }
}

impl InterfaceCounters {
    fn write(&self, x: &mut Xdr) {
        x.u32(self.index);
        x.u32(ETHERNET_CSMACD);
        x.u64(self.speed);
        x.u32(self.direction);
        x.u32(self.status);
        x.u64(self.in_octets);
        self.received.iter().for_each(|n| x.u32(*n));
        // Packets of unknown protocols.
        x.u32(UNKNOWN);
        x.u64(self.out_octets);
        self.sent.iter().for_each(|n| x.u32(*n));
        // It is not in promiscuous mode.
        x.u32(0);
    }
}

impl EthernetCounters {
    /// Counters of which none is known.
    pub const UNKNOWN: EthernetCounters =
        EthernetCounters { alignment: UNKNOWN, fcs: UNKNOWN, too_long: UNKNOWN };

    fn write(&self, x: &mut Xdr) {
        x.u32(self.alignment);
        x.u32(self.fcs);
        // Collisions, deferred transmissions, errors of the MAC and of carrier sense.
        (0..8).for_each(|_| x.u32(UNKNOWN));
        x.u32(self.too_long);
        // Errors of the receiving MAC, and of symbols.
        (0..2).for_each(|_| x.u32(UNKNOWN));
    }
}

impl Lacp {
    fn write(&self, x: &mut Xdr) {
        self.systems.iter().for_each(|mac| x.fixed(mac));
        x.u32(self.group);
        x.fixed(&self.states);
        let [received, malformed, sent] = self.pdus;
        // Marker PDUs are not spoken, and what is unknown is not counted.
        for n in [received, UNKNOWN, UNKNOWN, UNKNOWN, malformed, sent, UNKNOWN, UNKNOWN] {
            x.u32(n);
        }
    }
}
