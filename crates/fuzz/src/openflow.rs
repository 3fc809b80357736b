//! A controller's bytes: cut into messages, decoded, and applied to a switch with four ports, of
//! which one speaks LACP, as the control side does; after each message packets of several kinds are
//! decided about, those in MPLS and of LACP among them.

use crate::within;
use action::{Decision, Op, Request as Packet};
use ofproto::{
    Aggregate, BridgeConfig, BridgeId, BundleItem, LacpPort, PacketInContext, PortSpec, Switch,
};
use openflow::codec::{Dialect, decode, encode};
use openflow::framing::HEADER_LEN;
use openflow::{
    Action, FlowSelect, Match, MultipartReply, MultipartRequest, NO_BUFFER, PacketOut, Reason,
    Reply, Request, Resume, TableCommand, Version,
};

/// Milliseconds that decoding and applying one message may take, and deciding about one packet.
const MESSAGE_MS_MOST: u64 = 50;
/// Flows that a change handles at a time, as on the control thread.
const SLICE: usize = 2048;
/// Messages of one input: more of them find nothing new.
const MESSAGES_MOST: usize = 40;

/// Bytes of all seeds together, about.
const SEED_BYTES: usize = 8000;

const VERSIONS: [Version; 6] =
    [Version::V10, Version::V11, Version::V12, Version::V13, Version::V14, Version::V15];

struct Lab {
    sw: Switch,
    bridge: BridgeId,
    bundle: Vec<BundleItem>,
    now: u64,
    /// The bridge's name in continuations, and the port that goes with it.
    name: ([u8; 16], u32),
}

/// How a packet that pauses calls its bridge, and the datapath port that it came in by.
fn name(sw: &mut Switch, bridge: BridgeId) -> ([u8; 16], u32) {
    let pause = Action::Controller {
        max_len: 64,
        reason: Reason::Action,
        id: 0,
        userdata: Vec::new(),
        pause: true,
        meter: None,
    };
    let data = frames()[0].clone();
    let key = datapath::extract(&data, 11, 1).expect("a packet");
    let m =
        PacketOut { buffer_id: NO_BUFFER, matching: Match::default(), actions: vec![pause], data };
    let decision = sw.packet_out(bridge, &m, &key).expect("a controller may");
    let paused = decision.ops.iter().find_map(|op| match op {
        Op::Punt(p) => p.context.downcast_ref::<PacketInContext>(),
        _ => None,
    });
    let continuation = paused.and_then(|c| c.continuation.as_ref()).expect("it pauses");
    (continuation.bridge, continuation.odp_port)
}

impl Lab {
    fn new(domain: &sync::Domain) -> Lab {
        let mut sw = Switch::new(domain.writer());
        let bridge = sw.add_bridge("br0", BridgeConfig::default(), 0).expect("the first bridge");
        for n in 1..=4 {
            let name = format!("p{n}");
            let (bundle, dp_port) = (name.clone(), Some(n as u16 + 10));
            let lacp = (n == 2).then(|| LacpPort { carries: true, ..LacpPort::default() });
            let spec = PortSpec { of_port: n, name, bundle, dp_port, lacp, ..PortSpec::default() };
            sw.add_port(bridge, spec).expect("a port");
        }
        let name = name(&mut sw, bridge);
        Lab { sw, bridge, bundle: Vec::new(), now: 1, name }
    }

    /// Does what a request says, and says what would be answered.
    fn perform(&mut self, request: Request) -> Option<Reply> {
        let (bridge, now) = (self.bridge, self.now);
        let error = |e| Some(Reply::Error { error: e, data: vec![] });
        let done = match request {
            Request::FlowMod(m) => return self.change(vec![BundleItem::Flow(m)]),
            Request::GroupMod(m) => self.sw.group_mod(bridge, &m, now),
            Request::PortMod(m) => self.sw.port_mod(bridge, &m),
            Request::MeterMod(m) => self.sw.meter_mod(bridge, &m, now),
            Request::TlvTableMod(m) => self.sw.tlv_table_mod(bridge, &m),
            Request::TableMod { table, vacancy, config } => {
                self.sw.table_mod(bridge, table, config & 1 != 0, vacancy)
            }
            Request::PacketOut(m) => self.packet_out(&m),
            Request::Resume(m) => self.resume(*m),
            Request::BundleAdd { inner, .. } => return self.stage(*inner),
            Request::BundleControl { .. } => {
                let items = std::mem::take(&mut self.bundle);
                return self.change(items);
            }
            Request::Multipart(m) => return self.answer(m),
            _ => Ok(()),
        };
        done.err().and_then(error)
    }

    fn change(&mut self, items: Vec<BundleItem>) -> Option<Reply> {
        let error = |error| Some(Reply::Error { error, data: vec![] });
        let items = Box::new(items.into_iter().map(Ok));
        let change = match self.sw.begin(self.bridge, items, self.now) {
            Ok(change) => change,
            Err(e) => return error(e),
        };
        loop {
            if let Some(outcome) = self.sw.advance(&change, SLICE) {
                return outcome.err().and_then(|(_, e)| error(e));
            }
        }
    }

    fn stage(&mut self, inner: Request) -> Option<Reply> {
        let item = match inner {
            Request::FlowMod(m) => BundleItem::Flow(m),
            Request::GroupMod(m) => BundleItem::Group(m),
            Request::PortMod(m) => BundleItem::Port(m),
            Request::PacketOut(m) => {
                let key = datapath::extract(&m.data, 0, 1)?;
                BundleItem::PacketOut(Box::new((m, key)))
            }
            _ => return None,
        };
        self.bundle.push(item);
        None
    }

    fn packet_out(&mut self, m: &PacketOut) -> Result<(), openflow::OfError> {
        let Some(key) = datapath::extract(&m.data, 0, 1) else { return Ok(()) };
        let decision = self.sw.packet_out(self.bridge, m, &key)?;
        if let Some(effects) = &decision.effects {
            self.sw.effects(effects, self.now);
        }
        Ok(())
    }

    /// Its pipeline paused on the bridge, whatever it says.
    fn resume(&mut self, mut m: Resume) -> Result<(), openflow::OfError> {
        (m.continuation.bridge, m.continuation.odp_port) = self.name;
        let Some(key) = datapath::extract(&m.data, 11, 1) else { return Ok(()) };
        let decision = self.sw.resume(self.bridge, &m, &key)?;
        if let Some(effects) = &decision.effects {
            self.sw.effects(effects, self.now);
        }
        Ok(())
    }

    fn answer(&mut self, request: MultipartRequest) -> Option<Reply> {
        use MultipartRequest as Q;
        let (sw, id) = (&mut self.sw, self.bridge);
        let reply = match request {
            Q::Flow(select) => MultipartReply::Flow(sw.flow_stats(id, &select, self.now).ok()?),
            Q::Aggregate(select) => {
                let mut sums = sw.aggregate(id, &select).ok()?;
                while sw.aggregate_next(&mut sums) {}
                let Aggregate { packets, bytes, flows, .. } = sums;
                MultipartReply::Aggregate { packets, bytes, flows }
            }
            Q::Table => MultipartReply::Table(sw.table_stats(id).ok()?),
            Q::TableDesc => MultipartReply::TableDesc(sw.table_stats(id).ok()?),
            Q::TableFeatures(part) => {
                let tables: Vec<_> = part.tables.into_iter().flatten().collect();
                let command = tables.first().map_or(TableCommand::Modify, |t| t.command);
                let tables = tables.into_iter().map(|t| (t.table, t)).collect();
                let _ = sw.name_tables(id, command, &tables);
                MultipartReply::TableFeatures(sw.table_stats(id).ok()?)
            }
            Q::PortDesc(_) => MultipartReply::PortDesc(sw.port_descs(id)),
            Q::GroupStats(g) => {
                MultipartReply::GroupStats(sw.group_stats(id, g, 0, self.now).ok()?.entries)
            }
            Q::GroupDesc(g) => MultipartReply::GroupDesc(sw.group_desc(id, g, 0).ok()?.entries),
            _ => return None,
        };
        Some(Reply::Multipart(reply))
    }

    /// Decides about packets on two ports and lets the switch learn from them.
    fn packets(&mut self) {
        let pipeline = self.sw.pipeline();
        let mut decision = Decision::default();
        for (i, frame) in frames().iter().enumerate() {
            let key = datapath::extract(frame, 11 + i as u16 % 2, 1).expect("a packet");
            decision.clear();
            within(MESSAGE_MS_MOST, "a decision", || {
                let request = Packet { key: &key, options: &[], packet: frame };
                pipeline.resolve(self.sw.pin(), &request, &mut decision);
            });
            if let Some(effects) = decision.effects.take() {
                self.sw.effects(&effects, self.now);
            }
        }
        self.sw.take_regions();
        self.sw.take_events();
        self.sw.take_packets();
        self.sw.reclaim(SLICE);
    }
}

/// Packets that flows tell apart.
fn frames() -> [Vec<u8>; 6] {
    use testkit::{Frame, L4, Net, V4, V6};
    let (a, b) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let v4 = |l4| Net::V4(V4::new([10, 0, 0, 1], [10, 0, 0, 2], l4));
    let v6 = Net::V6(V6::new([1; 16], [2; 16], L4::Udp(1, 2, vec![])));
    [
        Frame::new(a, b, v4(L4::Tcp(1, 80, 0, 0, 2, vec![]))).bytes(),
        Frame::new(b, a, v4(L4::Udp(1, 53, vec![1]))).bytes(),
        Frame::new(a, b, v6).bytes(),
        Frame::arp_request(a, [10, 0, 0, 1], [10, 0, 0, 2]).bytes(),
        in_mpls(&Frame::new(a, b, v4(L4::Udp(1, 53, vec![1]))).bytes()),
        slow_protocols(),
    ]
}

/// A frame as what an MPLS entry carries.
fn in_mpls(frame: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0x47, 0, 0, 1, 64], frame].concat()
}

/// The beginning of an LACPDU.
fn slow_protocols() -> Vec<u8> {
    let mut frame = vec![1, 0x80, 0xc2, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 9, 1, 1, 1, 20];
    frame.resize(124, 0);
    frame
}

/// The next message: as long as its header says, or as there are bytes, with its length made right.
fn cut<'a>(rest: &mut &'a [u8], version: Version) -> Option<Vec<u8>> {
    let all: &'a [u8] = rest;
    let said = usize::from(u16::from_be_bytes([*all.get(2)?, *all.get(3)?]));
    let len = said.max(HEADER_LEN).min(all.len());
    let (message, more) = all.split_at(len);
    *rest = more;
    let mut message = message.to_vec();
    message[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    message[0] = version as u8;
    (len >= HEADER_LEN).then_some(message)
}

pub fn run(data: &[u8]) {
    let Some((first, mut rest)) = data.split_first() else { return };
    let version = VERSIONS[usize::from(first & 15) % VERSIONS.len()];
    let (nxm, table_id) = (first & 16 != 0, first & 32 != 0);
    let dialect = Dialect { nxm, table_id, ..version.into() };
    let domain = sync::Domain::new();
    let mut lab = Lab::new(&domain);
    for _ in 0..MESSAGES_MOST {
        let Some(message) = cut(&mut rest, version) else { break };
        within(MESSAGE_MS_MOST, "a message", || {
            let (to, reply) = match decode(dialect, &message) {
                Ok((to, request)) => (to, lab.perform(request)),
                Err(e) => (e.xid.into(), Some(e.reply())),
            };
            for part in reply.iter().flat_map(|r| encode(dialect, to, r)) {
                assert!(part.len() >= HEADER_LEN && part.len() <= usize::from(u16::MAX));
            }
        });
        lab.packets();
        lab.now += 1_000_000_000;
    }
    // What was taken can be encoded in every version.
    let flows = lab.sw.flow_stats(lab.bridge, &FlowSelect::default(), lab.now).unwrap_or_default();
    for version in VERSIONS {
        encode(version, 1, &Reply::Multipart(MultipartReply::Flow(flows.clone())));
    }
    // What waits for readers, of which there are none, keeps the domain that it waits in.
    drop(lab);
    let mut writer = domain.writer();
    while writer.reclaim() > 0 {}
}

/// What ovs-ofctl sends, a command each.
pub fn seeds() -> Vec<Vec<u8>> {
    let text = include_str!("../../openflow/tests/data/requests.tsv");
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for line in text.lines() {
        let cols: Vec<&str> = line.split('\t').collect();
        let name = format!("{} {}", cols[0], cols[1]);
        let message = testkit::hex(cols[2]).expect("hexadecimal");
        let version = VERSIONS.iter().position(|v| *v as u8 == message[0]).expect("a version");
        match all.last_mut() {
            Some((last, bytes)) if *last == name => bytes.extend(message),
            _ => all.push((name, [vec![version as u8 | 32], message].concat())),
        }
    }
    all.sort_by_key(|(_, bytes)| bytes.len());
    let mut left = SEED_BYTES;
    let few = all.into_iter().map(|(_, bytes)| bytes).filter(|b| (40..700).contains(&b.len()));
    let few = few.step_by(2).map_while(|b| {
        left = left.checked_sub(b.len())?;
        Some(b)
    });
    few.chain([encap_flow()]).collect()
}

/// A flow of OpenFlow 1.3 that puts a frame into MPLS and another around that, and into NSH, takes
/// one out, and begins anew.
fn encap_flow() -> Vec<u8> {
    let nicira = |kind: u8, rest: [u8; 6]| {
        [&[0xff, 0xff, 0, 16, 0, 0, 0x23, 0x20, 0, kind][..], &rest].concat()
    };
    let (encap, decap, resubmit) = (46, 47, 14);
    let mpls = [0, 0, 0, 1, 0x88, 0x47];
    // With metadata of type 2, and a context header of four bytes.
    let nsh = [
        &[0xff, 0xff, 0, 40, 0, 0, 0x23, 0x20, 0, encap, 0, 0, 0, 1, 0x89, 0x4f][..],
        &[0, 4, 1, 5, 2, 0, 0, 0],
        &[0, 4, 2, 16, 0x10, 0, 10, 4, 1, 2, 3, 4, 0, 0, 0, 0],
    ];
    let actions = [
        nicira(encap, mpls),
        nicira(encap, [0; 6]),
        nicira(encap, mpls),
        nsh.concat(),
        nicira(decap, [0; 6]),
        nicira(resubmit, [0xff, 0xf8, 0, 0, 0, 0]),
    ]
    .concat();
    let apply = [&[0, 4, 0, 8 + actions.len() as u8, 0, 0, 0, 0][..], &actions].concat();
    let len = 56 + apply.len() as u8;
    let head = [Version::V13 as u8, 14, 0, len, 0, 0, 0, 1];
    let mut body = vec![0; 48];
    body[22..24].copy_from_slice(&[0, 1]);
    body[24..36].fill(0xff);
    body[40..44].copy_from_slice(&[0, 1, 0, 4]);
    [&[3 | 32][..], &head, &body, &apply].concat()
}
