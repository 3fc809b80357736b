//! One sentence on what limits a switch, by the rules of `weft advise`, from two looks at its state
//! tree.

use super::machine::Machine;
use super::rules;
use super::switch::{Interface, Pmd, Queue, Switch, Tx, waiting};
use crate::view::{PortState, QueueState, Tree};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

/// Rules that say what a switch cannot do more of; the others say what would be better.
const LIMITS: [&str; 6] = ["core-taken", "full-core", "ring-full", "nic-missed", "drops", "misses"];

/// What limits the switch, or that nothing does.
pub fn limit(old: &Tree, new: &Tree) -> String {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    let machine = MACHINE.get_or_init(|| Machine::read(Path::new("/sys")));
    let switch = Switch::between(old, new);
    let all = rules::all(machine, &switch);
    let first = all.iter().find(|a| LIMITS.contains(&a.rule));
    match (first, switch.pmds.iter().max_by(|a, b| a.busy.total_cmp(&b.busy))) {
        (Some(advice), _) => format!("{} [{}]", sentence(&advice.says), advice.rule),
        (None, Some(p)) => {
            format!("Nothing limits it: the busiest core, {}, is {:.0} % busy.", p.core, p.busy)
        }
        (None, None) => "Nothing limits it: no PMD thread has anything to poll.".into(),
    }
}

/// The first sentence of a text.
fn sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| &text[..first.len() + 1])
}

impl Switch {
    /// The switch between two looks at its tree.
    pub fn between(old: &Tree, new: &Tree) -> Switch {
        let hz = new.switch.cycles_per_second.max(1) as f64;
        let seconds = grown(old.switch.cycles, new.switch.cycles) as f64 / hz;
        let cores = new.cores.iter().filter(|(_, c)| c.polls);
        let ports = new.ports.iter().filter(|(_, p)| p.traffic.is_some());
        let dropped = new.drops.iter().map(|(why, d)| {
            let before = old.drops.get(why).map_or(0, |o| o.packets);
            (why.clone(), grown(before, d.packets))
        });
        Switch {
            seconds,
            pmds: cores
                .filter_map(|(name, _)| pmd(name.parse().ok()?, name, (old, new), seconds))
                .collect(),
            tx: ports.map(|(name, _)| (name.clone(), tx(name, old, new))).collect(),
            drops: dropped.filter(|(_, n)| *n > 0).collect(),
            interfaces: new.ports.iter().map(|(name, p)| (name.clone(), interface(p))).collect(),
            other_config: new.switch.other_config.clone(),
        }
    }
}

fn grown(old: u64, new: u64) -> u64 {
    new.checked_sub(old).unwrap_or(new)
}

fn pmd(core: usize, name: &str, (old, new): (&Tree, &Tree), seconds: f64) -> Option<Pmd> {
    let (was, is) = (old.cores.get(name).cloned().unwrap_or_default(), new.cores.get(name)?);
    let get = |n: &BTreeMap<String, u64>, key: &str| n.get(key).copied().unwrap_or(0);
    let cycles = |key: &str| grown(get(&was.cycles, key), get(&is.cycles, key));
    let lookups = |key: &str| grown(get(&was.lookups, key), get(&is.lookups, key));
    let all = (cycles("busy") + cycles("idle") + cycles("sleep")).max(1) as f64;
    let queue = |q: &QueueState| {
        let same = was.queues.iter().find(|o| (&o.port, o.queue) == (&q.port, q.queue));
        let spent = grown(same.map_or(0, |o| o.cycles), q.cycles) as f64;
        let usage = (100.0 * spent / all).min(100.0) as u64;
        Queue { port: q.port.clone(), id: q.queue as u32, usage }
    };
    Some(Pmd {
        core,
        queues: is.queues.iter().map(queue).collect(),
        busy: 100.0 * cycles("busy") as f64 / all,
        waiting: waiting(was.waited_ns.as_ref(), is.waited_ns.as_ref(), seconds),
        packets: grown(get(&was.packets, "received"), get(&is.packets, "received")),
        cycles: cycles("busy"),
        passes: lookups("passes"),
        misses: lookups("pipeline"),
    })
}

fn tx(name: &str, old: &Tree, new: &Tree) -> Tx {
    let number = |tree: &Tree, key: &str| {
        tree.ports.get(name).and_then(|p| p.traffic.as_ref()?.get(key).copied()).unwrap_or(0)
    };
    let full = |tree: &Tree| {
        tree.ports.get(name).and_then(|p| p.drops.get("tx_full").copied()).unwrap_or(0)
    };
    let gone = |key: &str| grown(number(old, key), number(new, key));
    let (packets, bursts) = (gone("tx_packets"), gone("tx_bursts"));
    Tx { packets, bursts, full: grown(full(old), full(new)) }
}

fn interface(p: &PortState) -> Interface {
    let statistics = p.counters.iter().map(|(name, n)| (name.clone(), n.to_string())).collect();
    let columns = BTreeMap::from([
        ("options", p.options.clone()),
        ("other_config", p.other_config.clone()),
        ("status", p.status.clone()),
        ("statistics", statistics),
    ]);
    Interface { kind: p.kind.clone(), columns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tree(busy: u64, idle: u64, packets: u64) -> Tree {
        let text = json!({
            "switch": {"pid": 1, "cycles": busy + idle, "cycles_per_second": 1_000_000},
            "cores": {"3": {
                "polls": true,
                "cycles": {"busy": busy, "idle": idle},
                "packets": {"received": packets},
                "queues": [{"port": "p", "queue": 0, "cycles": busy}],
            }},
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_full_core_limits_and_an_idle_one_does_not() {
        let start = tree(0, 0, 0);
        let full = limit(&start, &tree(970_000, 30_000, 500_000));
        assert_eq!(
            full,
            "The PMD thread on core 3 is full: 97 % busy with 500 kpps at 2 cycles per packet. [full-core]"
        );
        let idle = limit(&start, &tree(200_000, 800_000, 500));
        assert_eq!(idle, "Nothing limits it: the busiest core, 3, is 20 % busy.");
        let nothing = limit(&Tree::default(), &Tree::default());
        assert!(nothing.contains("no PMD thread"), "{nothing}");
    }
}
