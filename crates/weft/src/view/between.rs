//! What happened between two looks: rates, shares and costs.

use super::tree::{self, Numbers, Tree};
use serde::Serialize;
use std::collections::BTreeMap;

/// A switch between two looks. Rates are per second; lists are in the order of names, drops and
/// flows the most frequent first.
#[derive(Clone, Debug, Default, Serialize)]
pub struct View {
    /// Between the looks.
    pub seconds: f64,
    /// Weft's version.
    pub version: String,
    /// Packets per second.
    pub received: f64,
    /// Packets per second.
    pub sent: f64,
    /// Packets per second.
    pub dropped: f64,
    /// Threads that move packets.
    pub cores: Vec<Core>,
    /// Interfaces.
    pub ports: Vec<Port>,
    /// Guests behind vhost-user ports.
    pub guests: Vec<Guest>,
    /// Reasons for which packets were ever dropped.
    pub drops: Vec<Drop>,
    /// Megaflows that carried most.
    pub flows: Vec<FlowView>,
    /// Why flows are missing.
    pub flows_error: Option<String>,
    /// Megaflows in all caches.
    pub megaflows: u64,
    /// OpenFlow flows.
    pub openflow_flows: u64,
    /// Packet buffers in use, and in all.
    pub buffers: [u64; 2],
    /// Bytes of the daemon in memory.
    pub resident_bytes: Option<u64>,
    /// What limits the switch, in one sentence.
    pub limit: String,
}

/// A worker.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Core {
    /// The CPU, or `kernel`.
    pub name: String,
    /// True if the thread is a PMD thread.
    pub polls: bool,
    /// NUMA node.
    pub numa: u64,
    /// Percent of the time with work.
    pub busy: f64,
    /// Percent of the time asleep.
    pub asleep: f64,
    /// Percent of the time in which other threads had its core; it counts as busy or idle, too.
    /// None: that is not known.
    pub waiting: Option<f64>,
    /// Packets per second.
    pub packets: f64,
    /// Cycles of work per packet received.
    pub cycles_per_packet: f64,
    /// Cycles by stage: `rx`, `parse`, `lookup` (with `misses`), `misses`, `act_tx`.
    pub stages: BTreeMap<String, f64>,
    /// Percent of lookups that the signature cache, the megaflow table and the pipeline answered.
    pub answered: [f64; 3],
    /// Packets of a burst that leaves.
    pub packets_per_burst: f64,
    /// Megaflows, masks.
    pub megaflows: [u64; 2],
    /// True if the signature cache is on.
    pub signature_cache: bool,
    /// Its receive queues.
    pub queues: Vec<QueueView>,
}

/// A receive queue.
#[derive(Clone, Debug, Default, Serialize)]
pub struct QueueView {
    /// Its port.
    pub port: String,
    /// Its number.
    pub queue: u64,
    /// Percent of its core's time.
    pub busy: f64,
    /// Packets per second.
    pub packets: f64,
}

/// An interface.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its bridge.
    pub bridge: String,
    /// Its type.
    pub kind: String,
    /// OpenFlow number.
    pub ofport: Option<u64>,
    /// `up`, `down`, or why it does not work.
    pub state: String,
    /// Packets per second.
    pub rx: f64,
    /// Bits per second.
    pub rx_bits: f64,
    /// Packets per second.
    pub tx: f64,
    /// Bits per second.
    pub tx_bits: f64,
    /// Packets dropped per second.
    pub dropped: f64,
    /// Drops by reason: per second, in all.
    pub drops: BTreeMap<String, (f64, u64)>,
    /// Counters as they are now.
    pub counters: Numbers,
    /// `Interface.status`.
    pub status: BTreeMap<String, String>,
    /// Bytes.
    pub mtu: Option<u64>,
    /// Address.
    pub mac: Option<String>,
}

/// A guest.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Guest {
    /// The port it is behind.
    pub name: String,
    /// True if the guest is connected.
    pub connected: bool,
    /// Names of features that were agreed.
    pub features: Vec<String>,
    /// Places of each ring.
    pub ring_sizes: Vec<u64>,
    /// Packets per second from it.
    pub from: f64,
    /// Packets per second to it.
    pub to: f64,
    /// Packets per second that its rings had no place for.
    pub full: f64,
    /// What it did with its rings that it may not, and its front-end said; in all.
    pub wrong: Numbers,
}

/// A reason for drops.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Drop {
    /// Its name.
    pub reason: String,
    /// Packets per second.
    pub rate: f64,
    /// Packets in all.
    pub total: u64,
    /// What the reason means, in a sentence.
    pub help: String,
    /// Ports that have it, the worst first.
    pub ports: Vec<String>,
}

/// A megaflow.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FlowView {
    /// Its id, as `dpctl/get-flow` takes it.
    pub ufid: String,
    /// Its core, or `kernel`.
    pub core: String,
    /// Where its packets come in.
    pub in_port: String,
    /// Packets per second.
    pub rate: f64,
    /// Bits per second.
    pub bits: f64,
    /// Packets in all.
    pub packets: u64,
    /// What it matches.
    #[serde(rename = "match")]
    pub matching: String,
    /// What is done.
    pub actions: String,
}

/// How much counters grew between two looks.
struct Growth {
    seconds: f64,
}

impl Growth {
    /// Per second; one that was cleared meanwhile counts from then on.
    fn rate(&self, old: u64, new: u64) -> f64 {
        if self.seconds <= 0.0 { 0.0 } else { grown(old, new) as f64 / self.seconds }
    }

    /// Percent of the time, of nanoseconds.
    fn waiting(&self, old: Option<u64>, new: Option<u64>) -> Option<f64> {
        Some(percent(grown(old?, new?) as f64 / 1e9, self.seconds).min(100.0))
    }

    fn of(&self, old: Option<&Numbers>, new: &Numbers, name: &str) -> f64 {
        self.rate(get(old, name), get(Some(new), name))
    }
}

fn get(numbers: Option<&Numbers>, name: &str) -> u64 {
    numbers.and_then(|n| n.get(name)).copied().unwrap_or(0)
}

fn grown(old: u64, new: u64) -> u64 {
    new.checked_sub(old).unwrap_or(new)
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

impl View {
    /// What happened between two looks at the same switch.
    pub fn between(old: &Tree, new: &Tree) -> View {
        // Another process: all its counters are new.
        let none = Tree::default();
        let old = if old.switch.pid == new.switch.pid { old } else { &none };
        let hz = new.switch.cycles_per_second.max(1) as f64;
        let g = Growth { seconds: grown(old.switch.cycles, new.switch.cycles) as f64 / hz };
        let moved = |name: &str| g.of(Some(&old.switch.packets), &new.switch.packets, name);
        let pool = |name: &str| new.memory.packet_pools.iter().map(|p| get(Some(p), name)).sum();
        let mut view = View {
            seconds: g.seconds,
            version: new.switch.version.clone(),
            received: moved("received"),
            sent: moved("sent"),
            dropped: moved("dropped"),
            cores: new.cores.iter().map(|(name, c)| core(name, old, new, c, &g)).collect(),
            ports: new
                .ports
                .iter()
                .map(|(name, p)| port(name, old.ports.get(name), p, &g))
                .collect(),
            megaflows: new.memory.megaflows,
            openflow_flows: new.memory.flows,
            buffers: [pool("in_use"), pool("buffers")],
            resident_bytes: new.memory.resident_bytes,
            flows: flows(old, new, &g),
            flows_error: new.megaflows.error.clone(),
            ..View::default()
        };
        view.cores.sort_by_key(|c| (!c.polls, c.name.parse::<u64>().unwrap_or(u64::MAX)));
        view.guests = new.guests.iter().map(|(name, g)| guest(name, g, &view.ports)).collect();
        view.drops = drops(old, new, &view.ports, &g);
        view.limit = crate::advise::limit(old, new);
        view
    }

    /// The port of this name.
    pub fn port(&self, name: &str) -> Option<&Port> {
        self.ports.iter().find(|p| p.name == name)
    }
}

fn core(name: &str, old: &Tree, new: &Tree, c: &tree::Core, g: &Growth) -> Core {
    let before = old.cores.get(name);
    let cycles = |stage: &str| {
        grown(get(before.map(|b| &b.cycles), stage), get(Some(&c.cycles), stage)) as f64
    };
    let lookups = |by: &str| g.of(before.map(|b| &b.lookups), &c.lookups, by);
    let packets = g.of(before.map(|b| &b.packets), &c.packets, "received");
    let sent = g.of(before.map(|b| &b.packets), &c.packets, "sent");
    let bursts = g.of(before.map(|b| &b.bursts), &c.bursts, "sent");
    let (busy, idle, sleep) = (cycles("busy"), cycles("idle"), cycles("sleep"));
    let all = busy + idle + sleep;
    let received = packets * g.seconds;
    let each = |cycles: f64| if received > 0.0 { cycles / received } else { 0.0 };
    let stages = ["rx", "parse", "lookup", "misses", "act_tx"];
    let passes = lookups("passes");
    let answered = ["signature_cache", "megaflow_table", "pipeline"];
    let cache = new.caches.get(name).cloned().unwrap_or_default();
    let queue = |q: &tree::QueueState| {
        let was =
            before.and_then(|b| b.queues.iter().find(|o| (&o.port, o.queue) == (&q.port, q.queue)));
        QueueView {
            port: q.port.clone(),
            queue: q.queue,
            busy: percent(grown(was.map_or(0, |w| w.cycles), q.cycles) as f64, all),
            packets: g.rate(was.map_or(0, |w| w.packets), q.packets),
        }
    };
    Core {
        name: name.into(),
        polls: c.polls,
        numa: c.numa,
        busy: percent(busy, all),
        asleep: percent(sleep, all),
        waiting: g.waiting(before.and_then(|b| b.waited_ns), c.waited_ns),
        packets,
        cycles_per_packet: each(busy),
        stages: stages.map(|s| (s.to_string(), each(cycles(s)))).into(),
        answered: answered.map(|by| percent(lookups(by), passes)),
        packets_per_burst: if bursts > 0.0 { sent / bursts } else { 0.0 },
        megaflows: [cache.megaflows, cache.masks],
        signature_cache: cache.signature_cache,
        queues: c.queues.iter().map(queue).collect(),
    }
}

fn port(name: &str, old: Option<&tree::Port>, new: &tree::Port, g: &Growth) -> Port {
    let numbers = |p: &'_ tree::Port| p.traffic.clone().unwrap_or_else(|| p.counters.clone());
    let (was, is) = (old.map(numbers), numbers(new));
    let rate = |name: &str| g.of(was.as_ref(), &is, name);
    let drop = |(why, n): (&String, &u64)| {
        (why.clone(), (g.rate(get(old.map(|o| &o.drops), why), *n), *n))
    };
    let drops: BTreeMap<String, (f64, u64)> = new.drops.iter().map(drop).collect();
    let state = match (&new.error, new.traffic.is_none() || new.link.up) {
        (Some(error), _) => error.clone(),
        (None, true) => "up".into(),
        (None, false) => if new.link.admin_up { "down" } else { "off" }.into(),
    };
    Port {
        name: name.into(),
        bridge: new.bridge.clone(),
        kind: new.kind.clone(),
        ofport: new.ofport,
        state,
        rx: rate("rx_packets"),
        rx_bits: 8.0 * rate("rx_bytes"),
        tx: rate("tx_packets"),
        tx_bits: 8.0 * rate("tx_bytes"),
        dropped: drops.values().map(|(rate, _)| rate).sum(),
        drops,
        counters: new.counters.clone(),
        status: new.status.clone(),
        mtu: new.mtu,
        mac: new.mac.clone(),
    }
}

fn guest(name: &str, g: &tree::Guest, ports: &[Port]) -> Guest {
    let port = ports.iter().find(|p| p.name == name).cloned().unwrap_or_default();
    let full = ["tx_full", "tx_down"].map(|why| port.drops.get(why).map_or(0.0, |d| d.0));
    let all = g.ring_errors.iter().chain(&g.violations);
    Guest {
        name: name.into(),
        connected: g.connected,
        features: g.features.clone().unwrap_or_default(),
        ring_sizes: g.ring_sizes.clone(),
        from: port.rx,
        to: port.tx,
        full: full.iter().sum(),
        wrong: all.map(|(what, n)| (what.clone(), *n)).collect(),
    }
}

fn drops(old: &Tree, new: &Tree, ports: &[Port], g: &Growth) -> Vec<Drop> {
    let one = |(why, d): (&String, &tree::Drop)| {
        let mut worst: Vec<_> =
            ports.iter().filter_map(|p| Some((p.drops.get(why)?, &p.name))).collect();
        worst.sort_by(|(a, _), (b, _)| b.partial_cmp(a).unwrap_or(std::cmp::Ordering::Equal));
        Drop {
            reason: why.clone(),
            rate: g.rate(old.drops.get(why).map_or(0, |o| o.packets), d.packets),
            total: d.packets,
            help: d.help.clone(),
            ports: worst.into_iter().map(|(_, name)| name.clone()).collect(),
        }
    };
    let mut all: Vec<Drop> = new.drops.iter().filter(|(_, d)| d.packets > 0).map(one).collect();
    all.sort_by(|a, b| {
        (b.rate, b.total).partial_cmp(&(a.rate, a.total)).unwrap_or(std::cmp::Ordering::Equal)
    });
    all
}

fn flows(old: &Tree, new: &Tree, g: &Growth) -> Vec<FlowView> {
    let key = |f: &tree::Megaflow| (f.ufid.clone(), f.core.as_ref().map(ToString::to_string));
    let before: BTreeMap<_, _> = old.megaflows.hottest.iter().map(|f| (key(f), f)).collect();
    let one = |f: &tree::Megaflow| {
        let was = before.get(&key(f));
        FlowView {
            ufid: f.ufid.clone(),
            core: f.core.as_ref().map_or("kernel".into(), ToString::to_string),
            in_port: f.in_port.clone().unwrap_or_default(),
            rate: g.rate(was.map_or(0, |w| w.packets), f.packets),
            bits: 8.0 * g.rate(was.map_or(0, |w| w.bytes), f.bytes),
            packets: f.packets,
            matching: f.matching.clone(),
            actions: f.actions.clone(),
        }
    };
    let mut all: Vec<FlowView> = new.megaflows.hottest.iter().map(one).collect();
    all.sort_by(|a, b| b.rate.total_cmp(&a.rate));
    all
}
