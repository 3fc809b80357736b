//! sFlow of a bridge: its agent, samples of packets.

use super::collectors::Collectors;
use super::counts::{Counts, warn};
use super::past::Past;
use crate::config::{BridgeConf, SflowConf};
use ::export::sflow::{Agent, FlowSample, Output, PORT, SflowSettings, Tunnel};
use action::{TunnelKind, TunnelPush};
use datapath::PuntEvent;
use flow::{Key, PortNo, at, flag};
use ofproto::{SflowNote, SflowSampling};
use std::collections::BTreeMap;
use std::net::IpAddr;
use wire::{IP_GRE, IP_UDP};

const ETHERNET_BYTES: usize = 14;

/// An agent, and where what it reports goes.
pub struct Sflow {
    /// The agent.
    pub agent: Agent,
    collectors: Collectors,
    conf: SflowConf,
    /// ifIndex by datapath port.
    pub indices: BTreeMap<PortNo, u32>,
    /// Samples of the bridge's packets that got lost on their way, as last seen.
    pub dropped: u64,
}

/// Makes, changes or ends the agent, as the database asks for. `sub_agent`: a number that no other
/// has.
pub fn apply(is: &mut Option<Sflow>, conf: &BridgeConf, sub_agent: u32, now: u64, past: &mut Past) {
    let wanted = conf.sflow.as_ref().filter(|c| c.sampling > 0 && !c.targets.is_empty());
    if is.as_ref().map(|sflow| &sflow.conf) == wanted {
        return;
    }
    is.take().into_iter().for_each(|old| old.end(now, past));
    *is = wanted.and_then(|wanted| begin(&conf.name, wanted, sub_agent, now));
}

fn begin(bridge: &str, conf: &SflowConf, sub_agent: u32, now: u64) -> Option<Sflow> {
    let collectors = Collectors::open(&conf.targets, Some(PORT));
    if collectors.is_empty() {
        warn(bridge, "no collectors could be initialized, sFlow disabled");
        return None;
    }
    let Some(agent) = agent_address(conf.agent.as_deref(), &collectors) else {
        warn(bridge, "could not determine IP address for sFlow agent");
        return None;
    };
    let (sampling, polling_s, header_bytes) = (conf.sampling, conf.polling_s, conf.header_bytes);
    let settings = SflowSettings { agent, sub_agent, sampling, polling_s, header_bytes };
    let agent = Agent::new(settings, now);
    let (conf, indices) = (conf.clone(), BTreeMap::new());
    Some(Sflow { agent, collectors, conf, indices, dropped: 0 })
}

/// The address of the device that is named, or the address itself, or that from which datagrams to
/// the first collector go.
fn agent_address(agent: Option<&str>, collectors: &Collectors) -> Option<IpAddr> {
    let named = agent.and_then(|agent| {
        let all = port::addresses().unwrap_or_default();
        let of_device = || all.iter().filter(|(name, ..)| name == agent).map(|(_, ip, _)| *ip);
        let v4 = of_device().find(IpAddr::is_ipv4);
        v4.or_else(|| of_device().next()).or_else(|| agent.parse().ok())
    });
    named.or_else(|| collectors.own_address())
}

impl Sflow {
    /// What the packet side is to sample.
    pub fn sampling(&self) -> SflowSampling {
        let chance = (u32::MAX / self.conf.sampling).max(1);
        SflowSampling { chance, header_bytes: self.conf.header_bytes }
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let (sent, failed) = self.collectors.counts();
        Counts { lost: self.agent.lost(), sent, failed }
    }

    /// A packet was sampled.
    pub fn sampled(&mut self, p: &PuntEvent, note: &SflowNote) {
        let key = &p.key;
        let index = |no: PortNo| self.indices.get(&no).copied();
        let output = match (note.outputs, note.output.and_then(index)) {
            (0, _) => Output::Dropped,
            (1, Some(index)) => Output::Interface(index),
            (n, _) => Output::Ports(n),
        };
        let tag = |tci: u16| (tci & 0xfff, (tci >> 13) as u8);
        self.agent.sample(&FlowSample {
            input: index(p.in_port).unwrap_or(0),
            output,
            header: &p.packet,
            len: p.total_len,
            vlans: [key.u16(at::VLAN), note.vlan_tci].map(tag),
            tunnel_in: tunnel_in(key),
            tunnel_out: note.tunnel.as_deref().and_then(tunnel_out),
            labels: &note.labels,
        });
        self.send();
    }

    /// Sends what waits, also a datagram that is not full.
    pub fn flush(&mut self, now: u64) {
        self.agent.flush(now);
        self.send();
    }

    /// Reports what is left.
    pub fn end(mut self, now: u64, past: &mut Past) {
        self.flush(now);
        past.add(self.counts());
    }

    fn send(&mut self) {
        for datagram in self.agent.take() {
            self.collectors.send(&datagram);
        }
    }
}

/// The outer header that the packet came with, if it was IPv4; of its protocol it is known whether
/// it had ports.
fn tunnel_in(key: &Key) -> Option<Tunnel> {
    let v4 = key.u8(at::FLAGS) & flag::TUNNEL != 0 && key.u32(at::TUN_DST) != 0;
    v4.then(|| {
        let ports = (key.u16(at::TUN_TP_SRC), key.u16(at::TUN_TP_DST));
        Tunnel {
            proto: if ports.1 == 0 { IP_GRE } else { IP_UDP },
            src: key.get(at::TUN_SRC),
            dst: key.get(at::TUN_DST),
            ports,
            tos: key.u8(at::TUN_TOS),
            id: key.u32(at::TUN_ID),
        }
    })
}

/// The outer header that the packet leaves with, if it is IPv4. Of UDP the source port is each
/// packet's own.
fn tunnel_out(t: &TunnelPush) -> Option<Tunnel> {
    let ip = wire::Ipv4::new(t.header.get(ETHERNET_BYTES..)?)?;
    let l4 = t.header.get(t.l4()..)?;
    let half = |at: usize| Some(u16::from_be_bytes(l4.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_be_bytes(l4.get(at..at + 4)?.try_into().ok()?));
    let (port, id) = match t.kind {
        TunnelKind::Gre => {
            let flags = half(0)?;
            let at = if flags & action::gre::CHECKSUM != 0 { 8 } else { 4 };
            (0, if flags & action::gre::KEY != 0 { word(at)? } else { 0 })
        }
        TunnelKind::Gtpu => (half(2)?, word(12)?),
        TunnelKind::Erspan => (0, word(8)? & action::erspan::SESSION),
        _ => (half(2)?, word(12)? >> 8),
    };
    let (src, dst, proto) = (ip.src(), ip.dst(), ip.proto());
    Some(Tunnel { proto, src, dst, ports: (0, port), tos: ip.tos(), id })
}
