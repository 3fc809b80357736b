//! IPFIX of a bridge: its own samples, and those that flows take for collector sets.

use super::collectors::Collectors;
use super::counts::{Counts, wall_clock, warn};
use super::past::{Ending, Past};
use crate::config::{BridgeConf, IpfixConf};
use ::export::ipfix::{Exporter, Interface, IpfixSample, Now, PORT, Packet, Tunnel};
use datapath::PuntEvent;
use flow::{Key, at, flag};
use ofproto::{IpfixNote, IpfixSampling, SetNote};
use openflow::{IpfixStats, OfPort};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::{ETH_IPV4, ETH_IPV6, IP_GRE, IP_UDP};

/// UDP ports of BFD, whose packets are the switch's own (RFC 5881, sections 4 and 8).
const BFD: [u16; 2] = [3784, 3785];
/// `tunnelType` of VXLAN, GRE and Geneve, and the bytes of an id.
const VXLAN: (u8, usize) = (1, 3);
const GRE_KEY: (u8, usize) = (2, 4);
const GENEVE: (u8, usize) = (7, 3);
/// The UDP port of Geneve (RFC 8926).
const GENEVE_PORT: u16 = 6081;

/// What a bridge exports.
#[derive(Default)]
pub struct Ipfix {
    of_bridge: Option<One>,
    of_sets: BTreeMap<u32, One>,
    /// Interfaces, by OpenFlow port.
    pub interfaces: BTreeMap<OfPort, Interface>,
}

/// An exporter, and where what it reports goes.
pub struct One {
    exporter: Exporter,
    collectors: Collectors,
    conf: IpfixConf,
}

/// What was sampled, and what it stands for.
struct Taken<'a> {
    event: &'a PuntEvent,
    in_port: OfPort,
    packets: u64,
    domain: u32,
    point: u32,
    output: Option<OfPort>,
    egress: bool,
    dropped: bool,
}

impl Ipfix {
    /// Makes, changes or ends exporters, as the database asks for.
    pub fn apply(&mut self, conf: &BridgeConf, past: &mut Past) {
        let own = conf.ipfix.as_ref().filter(|c| c.sampling > 0);
        if self.of_bridge.as_ref().map(|one| &one.conf) != own {
            self.of_bridge
                .take()
                .into_iter()
                .for_each(|one| past.end(Ending::Ipfix(Box::new(one))));
            self.of_bridge = own.and_then(|c| One::new(&conf.name, c, 0));
        }
        let stays = |id: &u32, one: &mut One| conf.sets.get(id) == Some(&one.conf);
        for (_, one) in self.of_sets.extract_if(.., |id, one| !stays(id, one)) {
            past.end(Ending::Ipfix(Box::new(one)));
        }
        for (id, c) in &conf.sets {
            if !self.of_sets.contains_key(id)
                && let Some(one) = One::new(&conf.name, c, *id)
            {
                self.of_sets.insert(*id, one);
            }
        }
    }

    /// What the packet side is to sample for the bridge.
    pub fn sampling(&self) -> Option<IpfixSampling> {
        let c = &self.of_bridge.as_ref()?.conf;
        let chance = (u32::MAX / c.sampling).max(1);
        Some(IpfixSampling { chance, input: c.input, output: c.output })
    }

    /// Collector sets that there are.
    pub fn sets(&self) -> Arc<BTreeSet<u32>> {
        Arc::new(self.of_sets.keys().copied().collect())
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let mut all = Counts::default();
        self.all().for_each(|one| all += one.counts());
        all
    }

    /// What the exporter of the bridge's own samples has done.
    pub fn stats_of_bridge(&self) -> Option<IpfixStats> {
        Some(self.of_bridge.as_ref()?.stats(0))
    }

    /// What those of its collector sets have done.
    pub fn stats_of_sets(&self) -> Vec<IpfixStats> {
        self.of_sets.iter().map(|(id, one)| one.stats(*id)).collect()
    }

    fn all(&self) -> impl Iterator<Item = &One> {
        self.of_bridge.iter().chain(self.of_sets.values())
    }

    /// A packet was sampled for the bridge.
    pub fn of_bridge(&mut self, p: &PuntEvent, in_port: OfPort, note: &IpfixNote, now: u64) {
        let Some(one) = &mut self.of_bridge else { return };
        if is_bfd(&p.key) {
            return;
        }
        let output = note.output.map(|(port, _)| port);
        one.add(
            &self.interfaces,
            now,
            &Taken {
                event: p,
                in_port,
                packets: one.conf.sampling.into(),
                domain: one.conf.domain,
                point: one.conf.point,
                output,
                egress: output.is_some(),
                dropped: note.dropped,
            },
        );
    }

    /// A flow sampled a packet for a collector set.
    pub fn of_set(&mut self, p: &PuntEvent, in_port: OfPort, note: &SetNote, now: u64) {
        let Some(one) = self.of_sets.get_mut(&note.set) else { return };
        let output = note.output.map(|(port, _)| port);
        one.add(
            &self.interfaces,
            now,
            &Taken {
                event: p,
                in_port,
                packets: u64::from(u16::MAX) / u64::from(note.probability.max(1)),
                domain: note.domain,
                point: note.point,
                output,
                egress: match note.direction {
                    1 => false,
                    2 => true,
                    _ => output.is_some(),
                },
                dropped: false,
            },
        );
    }

    /// Reports some flows that are due, and sends what waits. True: there are more.
    pub fn turn(&mut self, now: u64, left: &mut usize) -> bool {
        let mut more = false;
        for one in self.of_bridge.iter_mut().chain(self.of_sets.values_mut()) {
            more |= one.exporter.run(time(now), left);
            let messages = one.exporter.take(time(now));
            one.send(messages);
        }
        more
    }

    /// All exporters end.
    pub fn end(self, past: &mut Past) {
        let all = self.of_bridge.into_iter().chain(self.of_sets.into_values());
        all.for_each(|one| past.end(Ending::Ipfix(Box::new(one))));
    }
}

impl One {
    fn new(bridge: &str, conf: &IpfixConf, id: u32) -> Option<Self> {
        let collectors = Collectors::open(&conf.targets, Some(PORT));
        if collectors.is_empty() {
            warn(bridge, "no collectors could be initialized, IPFIX exporter disabled");
            return None;
        }
        let exporter = Exporter::new(conf.settings.clone(), id);
        Some(One { exporter, collectors, conf: conf.clone() })
    }

    fn stats(&self, set: u32) -> IpfixStats {
        let (s, (sent, failed)) = (self.exporter.stats(), self.collectors.counts());
        IpfixStats {
            flows: s.flows,
            current_flows: s.current_flows,
            packets: s.packets,
            ipv4: s.ipv4,
            ipv6: s.ipv6,
            errors: s.errors,
            ipv4_errors: s.ipv4_errors,
            ipv6_errors: s.ipv6_errors,
            sent,
            failed,
            set,
        }
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let (sent, failed) = self.collectors.counts();
        Counts { lost: self.exporter.lost(), sent, failed }
    }

    fn add(&mut self, interfaces: &BTreeMap<OfPort, Interface>, now: u64, t: &Taken<'_>) {
        let none = Interface::default();
        let interface =
            |port: Option<OfPort>| port.and_then(|p| interfaces.get(&p)).unwrap_or(&none);
        let tunnel = if self.conf.tunnels && !t.egress { tunnel_in(&t.event.key) } else { None };
        let sample = IpfixSample {
            domain: t.domain,
            point: t.point,
            packets: t.packets,
            egress: t.egress,
            input: interface(Some(t.in_port)),
            output: interface(t.output),
            packet: packet(&t.event.key, t.event.total_len),
            tunnel,
            dropped: t.dropped,
        };
        self.exporter.sample(&sample, time(now));
        let messages = self.exporter.take_full();
        self.send(messages);
    }

    /// Reports some of all that is known. True: there is more.
    pub fn end(&mut self, now: u64, left: &mut usize) -> bool {
        let more = self.exporter.finish(time(now), left);
        let messages = self.exporter.take(time(now));
        self.send(messages);
        more
    }

    fn send(&mut self, messages: Vec<Vec<u8>>) {
        messages.iter().for_each(|m| self.collectors.send(m));
    }
}

fn time(ms: u64) -> Now {
    Now { ms, wall_s: wall_clock().0 }
}

fn is_bfd(key: &Key) -> bool {
    matches!(key.u16(at::ETH_TYPE), ETH_IPV4 | ETH_IPV6)
        && key.u8(at::PROTO) == IP_UDP
        && BFD.contains(&key.u16(at::TP_DST))
}

fn packet(key: &Key, len: usize) -> Packet {
    let v6 = key.u16(at::ETH_TYPE) == ETH_IPV6;
    let address = |v4: usize, at_v6: usize| match v6 {
        true => key.get(at_v6),
        false => {
            let mut ip = [0; 16];
            ip[..4].copy_from_slice(&key.get::<4>(v4));
            ip
        }
    };
    Packet {
        eth_src: key.get(at::ETH_SRC),
        eth_dst: key.get(at::ETH_DST),
        eth_type: key.u16(at::ETH_TYPE),
        vlan: key.u16(at::VLAN),
        ip_src: address(at::IP_SRC, at::IPV6_SRC),
        ip_dst: address(at::IP_DST, at::IPV6_DST),
        label: key.u32(at::IPV6_LABEL),
        proto: key.u8(at::PROTO),
        tos: key.u8(at::TOS),
        ttl: key.u8(at::TTL),
        ports: (key.u16(at::TP_SRC), key.u16(at::TP_DST)),
        tcp_flags: key.u16(at::TCP_FLAGS) as u8,
        len,
    }
}

/// The outer header that the packet came with, if it was IPv4.
fn tunnel_in(key: &Key) -> Option<Tunnel> {
    // IPFIX has no number for GTP-U.
    let gtpu = key.u8(at::FLAGS) & flag::TUNNEL_OPTIONS == 0 && key.u8(at::TUN_GTPU_FLAGS) != 0;
    if key.u8(at::FLAGS) & flag::TUNNEL == 0 || key.u32(at::TUN_DST) == 0 || gtpu {
        return None;
    }
    let ports = (key.u16(at::TUN_TP_SRC), key.u16(at::TUN_TP_DST));
    let ((kind, id_bytes), proto) = match ports.1 {
        0 => (GRE_KEY, IP_GRE),
        GENEVE_PORT => (GENEVE, IP_UDP),
        _ => (VXLAN, IP_UDP),
    };
    let (src, dst, id) = (key.get(at::TUN_SRC), key.get(at::TUN_DST), key.u32(at::TUN_ID));
    Some(Tunnel { kind, proto, src, dst, ports, id, id_bytes })
}
