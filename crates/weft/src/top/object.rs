//! The page of one object: everything that is known of it, as lines of name and value.

use super::pages::Page;
use super::table::si;
use crate::view::{Core, FlowView, Guest, Port, View};

/// Names with values; a value may be long. None: the object is gone.
pub fn facts(page: Page, key: &str, view: &View) -> Option<Vec<(String, String)>> {
    match page {
        Page::Overview => None,
        Page::Cores => view.cores.iter().find(|c| c.name == key).map(core),
        Page::Ports => view.port(key).map(|p| port(p, view)),
        Page::Guests => view.guests.iter().find(|g| g.name == key).map(|g| guest(g, view)),
        Page::Flows => {
            view.flows.iter().find(|f| format!("{} {}", f.core, f.ufid) == key).map(flow)
        }
        Page::Drops => {
            let d = view.drops.iter().find(|d| d.reason == key)?;
            let ports =
                if d.ports.is_empty() { "none of today's".into() } else { d.ports.join(", ") };
            Some(vec![
                fact("dropped as", &d.reason),
                fact("because", &d.help),
                fact("per second", si(d.rate)),
                fact("in all", d.total),
                fact("ports", ports),
            ])
        }
    }
}

fn fact(name: &str, value: impl ToString) -> (String, String) {
    (name.to_string(), value.to_string())
}

fn core(c: &Core) -> Vec<(String, String)> {
    let what = if c.polls { "PMD thread" } else { "kernel ports' thread" };
    let each = |stage: &str| c.stages.get(stage).copied().unwrap_or(0.0);
    let mut all = vec![
        fact("core", format!("{} ({what}, NUMA node {})", c.name, c.numa)),
        fact("busy", format!("{:.1} % of the time, asleep {:.1} %", c.busy, c.asleep)),
        fact("packets", format!("{} per second", si(c.packets))),
        fact("cycles", format!("{:.1} per packet", c.cycles_per_packet)),
    ];
    if let Some(n) = c.waiting {
        let says = format!("{n:.1} % of the time, while other threads had its core");
        all.insert(2, fact("waiting", says));
    }
    for (name, stage) in
        [("rx", "rx"), ("parse", "parse"), ("lookup", "lookup"), ("act, tx", "act_tx")]
    {
        let misses = if stage == "lookup" {
            format!(", of which misses {:.1}", each("misses"))
        } else {
            String::new()
        };
        all.push(fact(&format!("  {name}"), format!("{:.1}{misses}", each(stage))));
    }
    let [cached, table, missed] = c.answered;
    all.extend([
        fact(
            "decisions",
            format!(
                "{cached:.1} % signature cache, {table:.1} % megaflow table, {missed:.1} % pipeline"
            ),
        ),
        fact("megaflows", format!("{} under {} masks", c.megaflows[0], c.megaflows[1])),
        fact("signature cache", if c.signature_cache { "on" } else { "off" }),
        fact("bursts", format!("{:.1} packets each", c.packets_per_burst)),
    ]);
    for q in &c.queues {
        let says = format!("{:.0} % of the time, {} packets per second", q.busy, si(q.packets));
        all.push(fact(&format!("queue {} of {}", q.queue, q.port), says));
    }
    all
}

fn port(p: &Port, view: &View) -> Vec<(String, String)> {
    let mut all = vec![
        fact("port", format!("{} of {}, type {}", p.name, p.bridge, p.kind)),
        fact("state", &p.state),
        fact("OpenFlow port", p.ofport.map_or("none".into(), |n| n.to_string())),
        fact("receives", format!("{} packets, {} bits per second", si(p.rx), si(p.rx_bits))),
        fact("sends", format!("{} packets, {} bits per second", si(p.tx), si(p.tx_bits))),
    ];
    for (why, (rate, total)) in &p.drops {
        let help = view.drops.iter().find(|d| d.reason == *why).map_or("", |d| &d.help);
        all.push(fact(
            &format!("dropped as {why}"),
            format!("{} per second, {total} in all. {help}", si(*rate)),
        ));
    }
    for c in &view.cores {
        for q in c.queues.iter().filter(|q| q.port == p.name) {
            let says = format!("core {}, {:.0} % of its time", c.name, q.busy);
            all.push(fact(&format!("queue {}", q.queue), says));
        }
    }
    all.extend(p.mtu.map(|mtu| fact("MTU", mtu)));
    all.extend(p.mac.as_ref().map(|mac| fact("address", mac)));
    all.extend(p.status.iter().map(|(k, v)| fact(k, v)));
    all.extend(p.counters.iter().filter(|(_, n)| **n > 0).map(|(k, n)| fact(k, n)));
    all
}

fn guest(g: &Guest, view: &View) -> Vec<(String, String)> {
    let sizes: Vec<String> = g.ring_sizes.iter().map(u64::to_string).collect();
    let mut all = vec![
        fact("guest of port", &g.name),
        fact("state", if g.connected { "connected" } else { "away" }),
        fact("sends", format!("{} packets per second", si(g.from))),
        fact("gets", format!("{} packets per second", si(g.to))),
        fact("rings full", format!("{} packets per second", si(g.full))),
        fact("rings", if sizes.is_empty() { "none".into() } else { sizes.join(", ") }),
        fact("features", g.features.join(", ")),
    ];
    all.extend(g.wrong.iter().map(|(what, n)| fact(&format!("wrong: {what}"), n)));
    all.extend(view.port(&g.name).into_iter().flat_map(|p| port(p, view)));
    all
}

fn flow(f: &FlowView) -> Vec<(String, String)> {
    vec![
        fact("megaflow", format!("{} on core {}", f.ufid, f.core)),
        fact("comes in by", &f.in_port),
        fact("carries", format!("{} packets, {} bits per second", si(f.rate), si(f.bits))),
        fact("in all", format!("{} packets", f.packets)),
        fact("matches", &f.matching),
        fact("does", &f.actions),
    ]
}
