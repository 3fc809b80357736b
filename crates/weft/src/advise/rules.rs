//! The rules: what in a machine and a switch is worth a word. Each is a function of both; none asks
//! or changes anything. docs/advise.md has them with their reasons.

use super::machine::Machine;
use super::switch::{Interface, Pmd, Queue, Switch};
use std::collections::BTreeSet;

/// Percent of its time from which a PMD thread counts as full.
const FULL: f64 = 90.0;
/// Percent of its time from which on it matters that a PMD thread does not have its core.
const TAKEN: f64 = 10.0;
/// Percent below which a PMD thread has room for a queue of another.
const ROOM: f64 = 60.0;
/// Percent below which a core's work fits elsewhere.
const IDLE: f64 = 10.0;
/// Packets a second below which a switch has nothing to tune for.
const TRAFFIC: f64 = 1000.0;
/// Bytes of a frame from which on a DMA engine copies it for fewer cycles than the CPU, about: 84
/// cycles and an eighth, at a quarter of a cycle for a byte (docs/perf/004-copy.md).
const ENGINE_FRAME_BYTES: f64 = 400.0;

/// One thing that would help.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The rule's name in docs/advise.md.
    pub rule: &'static str,
    /// In plain words: what is, what to do and what it would bring.
    pub says: String,
    /// A command that does it, when there is one.
    pub command: Option<String>,
    /// What it is based on: name and value.
    pub figures: Vec<(String, f64)>,
}

impl Advice {
    fn new(rule: &'static str, says: String, figures: &[(&str, f64)]) -> Advice {
        let figures = figures.iter().map(|(k, v)| (k.to_string(), *v)).collect();
        Advice { rule, says, command: None, figures }
    }

    fn by(mut self, command: String) -> Advice {
        self.command = Some(command);
        self
    }
}

type Rule = fn(&Machine, &Switch) -> Vec<Advice>;

/// Everything there is to say, the most useful first.
pub fn all(machine: &Machine, switch: &Switch) -> Vec<Advice> {
    let rules: [Rule; 14] = [
        taken_cores,
        full_cores,
        slow_guests,
        missed_by_nic,
        other_drops,
        numa,
        priority_cores,
        shared_cores,
        nic_and_guests_apart,
        copy_engines,
        flush_interval,
        misses,
        machine_setup,
        idle_cores,
    ];
    rules.iter().flat_map(|rule| rule(machine, switch)).collect()
}

/// `1 packet`, `2 packets`.
fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn mask(cores: &BTreeSet<usize>) -> String {
    let bit = |c: usize| cores.contains(&c) as u8;
    let digit = |i: usize| (0..4).map(|b| bit(4 * i + b) << b).sum::<u8>();
    let top = cores.last().map_or(0, |c| c / 4);
    (0..=top).rev().fold("0x".to_string(), |s, i| s + &format!("{:x}", digit(i)))
}

fn cores(switch: &Switch) -> BTreeSet<usize> {
    switch.pmds.iter().map(|p| p.core).collect()
}

fn set(key: &str, value: &str) -> String {
    format!("ovs-vsctl set Open_vSwitch . other_config:{key}={value}")
}

/// The queue whose move evens out two threads best, and how busy the receiver would be.
fn movable<'a>(from: &'a Pmd, to: &Pmd) -> Option<(&'a Queue, f64)> {
    let after = |q: &Queue| to.busy + q.usage as f64;
    let fits = from.queues.iter().filter(|q| q.usage > 0 && after(q) < from.busy);
    let best = fits.min_by_key(|q| (after(q).max(from.busy - q.usage as f64)) as u64);
    best.map(|q| (q, after(q)))
}

/// Other threads run on a PMD thread's core. Meanwhile packets wait, and the time counts as its
/// own.
fn taken_cores(_: &Machine, switch: &Switch) -> Vec<Advice> {
    let taken = switch.pmds.iter().filter(|p| p.waiting >= TAKEN);
    let one = |p: &Pmd| {
        let says = format!(
            "Other threads ran on core {} for {:.0} % of the time, while its PMD thread waited. Keep them away \
             (`isolcpus={}`, or `taskset` for those programs), or give the switch other cores (pmd-cpu-mask).",
            p.core, p.waiting, p.core
        );
        Advice::new("core-taken", says, &[("waiting_percent", p.waiting)])
    };
    taken.map(one).collect()
}

/// A full thread: move a queue, split a queue, or give another core, in this order.
fn full_cores(machine: &Machine, switch: &Switch) -> Vec<Advice> {
    // Of the time that it had its core: what others had may have been counted as busy.
    let own = |p: &&Pmd| p.busy - p.waiting >= FULL / 100.0 * (100.0 - p.waiting);
    let full = switch.pmds.iter().filter(|p| p.packets > 0).filter(own);
    full.map(|p| full_core(machine, switch, p)).collect()
}

fn full_core(machine: &Machine, switch: &Switch, p: &Pmd) -> Advice {
    let kpps = p.packets as f64 / switch.seconds / 1000.0;
    let cycles = p.cycles_per_packet();
    let figures = [("busy_percent", p.busy), ("kpps", kpps), ("cycles_per_packet", cycles)];
    let is = format!(
        "The PMD thread on core {} is full: {:.0} % busy with {kpps:.0} kpps at {cycles:.0} cycles per packet.",
        p.core, p.busy
    );
    let others = switch.pmds.iter().filter(|o| o.core != p.core && o.busy < ROOM);
    let room = others.min_by(|a, b| a.busy.total_cmp(&b.busy));
    match (room, &p.queues[..]) {
        (Some(_), [q]) => more_queues(switch, q, &is, &figures),
        (Some(to), _) => match movable(p, to) {
            Some((q, after)) => hand_over(q, after, to, &is, &figures),
            None => another_core(machine, switch, p, &is, &figures),
        },
        (None, _) => another_core(machine, switch, p, &is, &figures),
    }
}

/// Another thread has room for one of its queues.
fn hand_over(q: &Queue, after: f64, to: &Pmd, is: &str, figures: &[(&str, f64)]) -> Advice {
    let says = format!(
        "{is} Core {} is {:.0} % busy: with queue {} of {} ({} %) moved there it would be {after:.0} %. \
         `pmd-auto-lb=true` does this by itself.",
        to.core, to.busy, q.id, q.port, q.usage
    );
    let mut figures = figures.to_vec();
    figures.extend([("other_core_busy_percent", to.busy), ("queue_percent", q.usage as f64)]);
    let command = "ovs-appctl dpif-netdev/pmd-rxq-rebalance".to_string();
    Advice::new("full-core", says, &figures).by(command)
}

/// No thread has room.
fn another_core(
    machine: &Machine,
    switch: &Switch,
    p: &Pmd,
    is: &str,
    figures: &[(&str, f64)],
) -> Advice {
    let is = format!("{is} No other PMD thread has room for a queue of it");
    let Some((core, why)) = spare(machine, switch, p.core) else {
        let says = format!("{is}, and no core is left on its node but the machine's first.");
        return Advice::new("full-core", says, figures);
    };
    let mut with = cores(switch);
    with.insert(core);
    let mut says = format!("{is}. Give it core {core}, {why}.");
    if let [q] = &p.queues[..] {
        says += &format!(" {} needs a second receive queue then.", q.port);
    }
    Advice::new("full-core", says, figures).by(set("pmd-cpu-mask", &mask(&with)))
}

/// All of a full thread's work is one queue, and other threads have room.
fn more_queues(switch: &Switch, q: &Queue, is: &str, figures: &[(&str, f64)]) -> Advice {
    let (queues, all) = (switch.pmds.iter().flat_map(|p| &p.queues), |o: &&Queue| o.port == q.port);
    let n = queues.filter(all).count() + 1;
    let kind = switch.interfaces.get(&q.port).map_or("", |i| i.kind.as_str());
    let says = format!("{is} All of it is queue {} of {}, which cannot be divided.", q.id, q.port);
    match kind.starts_with("dpdkvhost") {
        true => {
            let says =
                format!("{says} Give the guest {n} queue pairs (qemu: `queues={n}` and `mq=on`).");
            Advice::new("full-core", says, figures)
        }
        false => {
            let says = format!("{says} Give the port {n} receive queues.");
            let command = format!("ovs-vsctl set interface {} options:n_rxq={n}", q.port);
            Advice::new("full-core", says, figures).by(command)
        }
    }
}

/// A core to give to the switch: the other half of one that it has, else an isolated one of the
/// same node, else any but the first of that node.
fn spare(machine: &Machine, switch: &Switch, core: usize) -> Option<(usize, &'static str)> {
    let used = cores(switch);
    let cpu = machine.cpus.get(&core)?;
    if let Some(s) = cpu.siblings.iter().find(|s| !used.contains(s) && machine.cpus.contains_key(s))
    {
        return Some((
            *s,
            "the other hyper-thread of this one: one waits for memory while the other works",
        ));
    }
    let here = machine.cpus.iter().filter(|(n, c)| c.node == cpu.node && !used.contains(n));
    let isolated = here.clone().find(|(_, c)| c.isolated);
    let isolated = isolated.map(|(n, _)| (*n, "which the kernel already leaves alone (isolcpus)"));
    isolated.or_else(|| Some((*here.clone().find(|(n, _)| **n != 0)?.0, "of the same NUMA node")))
}

/// A port's queue was full: its peer takes too little.
fn slow_guests(_: &Machine, switch: &Switch) -> Vec<Advice> {
    let lost = switch.tx.iter().filter(|(_, t)| t.full > 0);
    lost.map(|(port, t)| {
        let share = 100.0 * t.full as f64 / (t.full + t.packets) as f64;
        let interface = switch.interfaces.get(port);
        let ring = interface.and_then(|i| i.get("status", "vring_0_size")?.parse::<u64>().ok());
        let what = match (interface.map(|i| i.kind.as_str()), ring) {
            (Some("dpdkvhostuser" | "dpdkvhostuserclient"), Some(size)) if size < 1024 => format!(
                "Its rings have {size} places: 1024 (qemu: `rx_queue_size=1024`) ride out longer pauses; if it \
                 still cannot follow, give it more processor or more queue pairs"
            ),
            (Some("dpdkvhostuser" | "dpdkvhostuserclient"), _) => {
                "Give the guest more processor or more queue pairs".into()
            }
            (Some("dpdk"), _) => "The line is full, or `options:n_txq_desc` is small".into(),
            _ => "Its peer reads too slowly".into(),
        };
        let says = format!(
            "Port {port} could not take {} of {} packets ({share:.1} %): its transmit queue was full. {what}.",
            t.full,
            t.full + t.packets
        );
        let mut figures = vec![("tx_full", t.full as f64), ("sent", t.packets as f64)];
        figures.extend(ring.map(|size| ("ring_size", size as f64)));
        Advice::new("ring-full", says, &figures)
    })
    .collect()
}

/// The NIC had no free descriptor.
fn missed_by_nic(_: &Machine, switch: &Switch) -> Vec<Advice> {
    let nics = switch.interfaces.iter().filter(|(_, i)| i.kind == "dpdk");
    let missed = |(name, i): (&String, &Interface)| {
        let n: f64 = ["rx_missed_errors", "rx_dropped"]
            .iter()
            .filter_map(|k| i.get("statistics", k)?.parse().ok())
            .fold(0.0, f64::max);
        let size = i.get("options", "n_rxq_desc").and_then(|v| v.parse().ok()).unwrap_or(2048.0);
        let rows = switch.pmds.iter().filter(|p| p.queues.iter().any(|q| q.port == *name));
        let busy = rows.map(|p| p.busy).fold(0.0, f64::max);
        // A full core is said elsewhere.
        if n == 0.0 || busy >= FULL || size >= 4096.0 {
            return None;
        }
        let says = format!(
            "Port {name} missed {n:.0} packets since it was opened, and its core is {busy:.0} % busy: they come in \
             bursts longer than its {size:.0} descriptors."
        );
        let advice = Advice::new(
            "nic-missed",
            says,
            &[("missed", n), ("descriptors", size), ("busy_percent", busy)],
        );
        Some(
            advice.by(format!(
                "ovs-vsctl set interface {name} options:n_rxq_desc={}",
                size as u64 * 2
            )),
        )
    };
    nics.filter_map(missed).collect()
}

/// Drops by name that a setting can change.
fn other_drops(_: &Machine, switch: &Switch) -> Vec<Advice> {
    let words = |reason: &str| {
        Some(match reason {
            "ring_full" => {
                "the ring to the thread of a kernel port was full: use DPDK ports for this much traffic"
            }
            "no_buffer" => {
                "packet buffers ran out: reserve more hugepages or lower the number of queues"
            }
            "punt_rate" => {
                "more packets went to the controller than a port may send: install flows for them"
            }
            "punt_full" => {
                "the control side could not follow the packets to the controller: install flows for them"
            }
            "recirc_limit" | "depth_limit" | "resubmit_limit" | "stack_limit" => {
                "the flow tables send packets round in circles: look at the rules with ofproto/trace"
            }
            "miss_time" => {
                "the flow tables take long for each new flow: look at the rules with ofproto/trace"
            }
            "action_time" => {
                "packets went to so many ports that others would have waited: look for broadcast storms"
            }
            "tunnel_route" => {
                "there is no route to a tunnel's remote address: add one to the machine"
            }
            "tunnel_neighbour" => "a tunnel's next hop does not answer ARP or ND",
            "too_long" => {
                "packets were longer than the output port's MTU: raise `mtu_request` there or lower it at the sender"
            }
            "bad_offload" => {
                "the kernel left segmentation to the adapter: switch it off with ethtool -K"
            }
            _ => return None,
        })
    };
    let advice = |(reason, n): (&String, &u64)| {
        let says = format!("{n} packets were dropped as {reason}: {}.", words(reason)?);
        Some(Advice::new("drops", says, &[("dropped", *n as f64)]))
    };
    switch.drops.iter().filter_map(advice).collect()
}

/// A queue far from its thread.
fn numa(machine: &Machine, switch: &Switch) -> Vec<Advice> {
    let mut all = Vec::new();
    for p in &switch.pmds {
        let Some(cpu) = machine.cpus.get(&p.core) else { continue };
        for q in &p.queues {
            let interface = switch.interfaces.get(&q.port);
            let at = |key| interface.and_then(|i| i.get("status", key)?.parse::<u32>().ok());
            let Some(node) = at("numa_id").or(at("numa")) else { continue };
            if node == cpu.node || !machine.cpus.values().any(|c| c.node == node) {
                continue;
            }
            let says = format!(
                "Queue {} of {} ({} %) lies on NUMA node {node} and is polled by core {} of node {}: every packet \
                 crosses between sockets. Give the switch a core of node {node}.",
                q.id, q.port, q.usage, p.core, cpu.node
            );
            let figures = [
                ("queue_percent", q.usage as f64),
                ("port_node", node.into()),
                ("core_node", cpu.node.into()),
            ];
            all.push(Advice::new("numa", says, &figures));
        }
    }
    all
}

/// Cores differ in base frequency (SST-BF): the busy threads belong on the fast ones.
fn priority_cores(machine: &Machine, switch: &Switch) -> Vec<Advice> {
    let khz = |c: usize| machine.cpus.get(&c).and_then(|cpu| cpu.base_khz);
    let used = cores(switch);
    let mut free: Vec<usize> = machine.cpus.keys().copied().filter(|c| !used.contains(c)).collect();
    let mut all = Vec::new();
    for p in switch.pmds.iter().filter(|p| p.busy >= 50.0) {
        let (Some(cpu), Some(mine)) = (machine.cpus.get(&p.core), khz(p.core)) else { continue };
        let better = |c: &usize| machine.cpus[c].node == cpu.node && khz(*c) > Some(mine);
        let Some(i) = free.iter().position(better) else { continue };
        let core = free.remove(i);
        let fast = khz(core).unwrap_or(mine);
        let mut with = used.clone();
        with.remove(&p.core);
        with.insert(core);
        let says = format!(
            "Core {core} is a priority core ({:.1} GHz at full load) and is not the switch's; core {}, {:.0} % busy, \
             runs at {:.1} GHz. On core {core} it would do {:.0} % more.",
            fast as f64 / 1e6,
            p.core,
            p.busy,
            mine as f64 / 1e6,
            100.0 * (fast as f64 / mine as f64 - 1.0)
        );
        let figures =
            [("busy_percent", p.busy), ("base_khz", mine as f64), ("priority_khz", fast as f64)];
        all.push(
            Advice::new("priority-core", says, &figures).by(set("pmd-cpu-mask", &mask(&with))),
        );
    }
    all
}

/// A hyper-thread of a busy PMD thread that the kernel gives to anybody.
fn shared_cores(machine: &Machine, switch: &Switch) -> Vec<Advice> {
    let used = cores(switch);
    let mut all = Vec::new();
    for p in switch.pmds.iter().filter(|p| p.busy >= 50.0 && p.busy < FULL) {
        let Some(cpu) = machine.cpus.get(&p.core) else { continue };
        let open =
            |s: &&usize| !used.contains(s) && machine.cpus.get(s).is_some_and(|c| !c.isolated);
        let Some(sibling) = cpu.siblings.iter().find(open) else { continue };
        let mut with = used.clone();
        with.insert(*sibling);
        let says = format!(
            "Core {} ({:.0} % busy) shares its execution units with core {sibling}, which runs whatever the kernel puts \
             there. Give {sibling} to the switch too (one thread for the NIC's queues, one for the guests'), or keep it \
             free with isolcpus.",
            p.core, p.busy
        );
        let advice = Advice::new("shared-core", says, &[("busy_percent", p.busy)]);
        all.push(advice.by(set("pmd-cpu-mask", &mask(&with))));
    }
    all
}

/// Two threads on one physical core, both with queues of NICs and of guests: one for each is
/// better.
fn nic_and_guests_apart(machine: &Machine, switch: &Switch) -> Vec<Advice> {
    let kind = |q: &Queue| switch.interfaces.get(&q.port).map_or("", |i| i.kind.as_str());
    let nic = |p: &Pmd| p.queues.iter().any(|q| kind(q) == "dpdk");
    let guests = |p: &Pmd| p.queues.iter().any(|q| kind(q).starts_with("dpdkvhost"));
    let mixed: Vec<&Pmd> =
        switch.pmds.iter().filter(|p| nic(p) && guests(p) && p.busy >= 50.0).collect();
    let sibling = |p: &Pmd| {
        let siblings = &machine.cpus.get(&p.core)?.siblings;
        switch.pmds.iter().find(|o| o.core != p.core && siblings.contains(&o.core))
    };
    let mut all = Vec::new();
    for p in mixed {
        let Some(other) = sibling(p).filter(|o| p.core < o.core || !(nic(o) && guests(o))) else {
            continue;
        };
        let guests = p.queues.iter().filter(|q| kind(q).starts_with("dpdkvhost"));
        let usage: u64 = guests.clone().map(|q| q.usage).sum();
        let Some(first) = guests.clone().next() else { continue };
        let says = format!(
            "Core {} polls a NIC and {} ({usage} %). With traffic as much northwards as southwards, its hyper-thread \
             {} for the guests and core {} for the NIC share one first-level cache and need no lock across cores.",
            p.core,
            count(guests.count(), "guest queue"),
            other.core,
            p.core
        );
        let figures = [
            ("busy_percent", p.busy),
            ("sibling_busy_percent", other.busy),
            ("guests_percent", usage as f64),
        ];
        let affinity = format!(
            "ovs-vsctl set interface {} other_config:pmd-rxq-affinity=\"{}:{}\"",
            first.port, first.id, other.core
        );
        all.push(Advice::new("nic-guest-siblings", says, &figures).by(affinity));
    }
    all
}

/// An engine that nothing uses, beside a busy thread that copies long frames to guests.
fn copy_engines(machine: &Machine, switch: &Switch) -> Vec<Advice> {
    let key = "vhost-async-support";
    let busy = switch.pmds.iter().map(|p| p.busy).fold(0.0, f64::max);
    let is_used = switch.other_config.get(key).is_some_and(|v| v == "true");
    if machine.dma_engines == 0 || is_used || busy < 50.0 {
        return Vec::new();
    }
    let guest = |name: &&String| {
        switch.interfaces.get(*name).is_some_and(|i| i.kind.starts_with("dpdkvhostuser"))
    };
    // Of all frames so far, on ports that sent some of late.
    let mean = |name: &String| {
        let count = |key| switch.interfaces.get(name)?.get("statistics", key)?.parse::<f64>().ok();
        Some(count("tx_bytes")? / count("tx_packets")?.max(1.0))
    };
    let of_late = switch.tx.iter().filter(|(_, t)| t.packets as f64 >= TRAFFIC * switch.seconds);
    let names = of_late.map(|(name, _)| name).filter(guest);
    let Some((name, bytes)) =
        names.filter_map(|n| Some((n, mean(n)?))).max_by(|a, b| a.1.total_cmp(&b.1))
    else {
        return Vec::new();
    };
    if bytes < ENGINE_FRAME_BYTES {
        return Vec::new();
    }
    let says = format!(
        "Frames to guest {name} have {bytes:.0} bytes on average while a PMD thread is {busy:.0} % busy. A DMA engine \
         of this machine, given to user space (docs/SUPPORT.md), copies those of more than about \
         {ENGINE_FRAME_BYTES:.0} bytes for fewer cycles; what is true here is measured while it runs."
    );
    let figures = [("frame_bytes", bytes), ("busy_percent", busy)];
    vec![Advice::new("copy-engine", says, &figures).by(set(key, "true"))]
}

/// A fixed interval while bursts are small, or one that only costs time.
fn flush_interval(_: &Machine, switch: &Switch) -> Vec<Advice> {
    let key = "tx-flush-interval";
    let Some(us) = switch.other_config.get(key).and_then(|v| v.parse::<f64>().ok()) else {
        return Vec::new();
    };
    let (packets, bursts) =
        switch.tx.values().fold((0, 0), |s, t| (s.0 + t.packets, s.1 + t.bursts));
    let fill = packets as f64 / bursts.max(1) as f64;
    let busy = switch.pmds.iter().map(|p| p.busy).fold(0.0, f64::max);
    let says = match (us > 0.0, busy) {
        _ if (packets as f64) < TRAFFIC * switch.seconds => return Vec::new(),
        (false, 70.0..) if fill < 4.0 => format!(
            "Packets leave {fill:.1} at a time while a PMD thread is {busy:.0} % busy, and tx-flush-interval is fixed at \
             0. Without the setting packets are held (at most 25 us) when that pays, and only then."
        ),
        (true, ..50.0) => format!(
            "tx-flush-interval={us:.0} delays packets while no PMD thread is more than {busy:.0} % busy. Without the \
             setting packets are held only under load."
        ),
        _ => return Vec::new(),
    };
    let figures =
        [("packets_per_burst", fill), ("busy_percent", busy), ("tx_flush_interval_us", us)];
    vec![
        Advice::new("flush-interval", says, &figures)
            .by(format!("ovs-vsctl remove Open_vSwitch . other_config {key}")),
    ]
}

/// Many packets are not answered by the megaflow table.
fn misses(_: &Machine, switch: &Switch) -> Vec<Advice> {
    let (passes, misses) = switch.pmds.iter().fold((0, 0), |s, p| (s.0 + p.passes, s.1 + p.misses));
    let share = 100.0 * misses as f64 / passes.max(1) as f64;
    if share < 5.0 || (passes as f64) < TRAFFIC * switch.seconds {
        return Vec::new();
    }
    let limit = switch.other_config.get("flow-limit").and_then(|v| v.parse::<f64>().ok());
    let what = match limit {
        Some(n) => format!("flow-limit is set to {n:.0}: without it memory decides"),
        None => "Rules that match on ports or on single addresses make a decision for each connection; fewer fields \
                 in the rules mean fewer decisions"
            .into(),
    };
    let says =
        format!("{share:.0} % of packets needed the pipeline ({misses} of {passes}). {what}.");
    let mut figures = vec![("miss_percent", share), ("misses", misses as f64)];
    figures.extend(limit.map(|n| ("flow_limit", n)));
    let advice = Advice::new("misses", says, &figures);
    vec![match limit {
        Some(_) => advice.by("ovs-vsctl remove Open_vSwitch . other_config flow-limit".into()),
        None => advice,
    }]
}

/// Hugepages, governors and isolation of the PMD threads' cores.
fn machine_setup(machine: &Machine, switch: &Switch) -> Vec<Advice> {
    let mut all = Vec::new();
    let has = |node: u32| machine.hugepages_mib.get(&node).copied().unwrap_or(0);
    let nodes: BTreeSet<u32> =
        switch.pmds.iter().filter_map(|p| Some(machine.cpus.get(&p.core)?.node)).collect();
    for node in nodes.into_iter().filter(|n| has(*n) == 0) {
        let says = format!(
            "NUMA node {node} has PMD threads and no hugepages: packets and tables are reached through 4 KiB pages. \
             Reserve some and restart the switch."
        );
        let file =
            format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages");
        all.push(
            Advice::new("hugepages", says, &[("hugepages_mib", 0.0)])
                .by(format!("echo 1024 > {file}")),
        );
    }
    let busy = |p: &&Pmd| p.busy >= 50.0;
    for p in switch.pmds.iter().filter(busy) {
        let Some(governor) = machine.cpus.get(&p.core).and_then(|c| c.governor.as_deref()) else {
            continue;
        };
        if governor != "performance" {
            let says = format!(
                "Core {} ({:.0} % busy) has the frequency governor {governor}.",
                p.core, p.busy
            );
            let file = format!("/sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor", p.core);
            let command = format!("echo performance > {file}");
            all.push(Advice::new("governor", says, &[("busy_percent", p.busy)]).by(command));
        }
    }
    let open = |p: &&Pmd| busy(p) && machine.cpus.get(&p.core).is_some_and(|c| !c.isolated);
    let open: Vec<String> = switch.pmds.iter().filter(open).map(|p| p.core.to_string()).collect();
    if !open.is_empty() {
        let list = open.join(",");
        let says = format!(
            "The kernel may run other programs on the cores of PMD threads ({list}), which stops them for milliseconds. \
             Boot with `isolcpus={list} nohz_full={list}`."
        );
        all.push(Advice::new("isolation", says, &[("cores", open.len() as f64)]));
    }
    all
}

/// Cores that poll for nothing.
fn idle_cores(_: &Machine, switch: &Switch) -> Vec<Advice> {
    if switch.other_config.contains_key("pmd-sleep-max") {
        return Vec::new();
    }
    let idle: Vec<&Pmd> = switch.pmds.iter().filter(|p| p.busy < IDLE).collect();
    if idle.is_empty() || (idle.len() == switch.pmds.len() && idle.len() == 1) {
        return Vec::new();
    }
    let list: Vec<String> = idle.iter().map(|p| format!("{} ({:.0} %)", p.core, p.busy)).collect();
    let says = format!(
        "PMD threads on core {} do next to nothing: let them sleep when there is no traffic, or give the cores back \
         (pmd-cpu-mask).",
        list.join(", ")
    );
    let most = idle.iter().map(|p| p.busy).fold(0.0, f64::max);
    let figures = [("idle_cores", idle.len() as f64), ("busy_percent_at_most", most)];
    vec![Advice::new("idle-core", says, &figures).by(set("pmd-sleep-max", "50"))]
}
