//! PMD threads and the kernel worker: what their cycles go to, their receive queues and caches.

use crate::state::State;
use datapath::{CacheUse, NewFlows, Perf, PmdInfo, RxqInfo, WorkerId};
use flow::PortNo;
use serde_json::{Map, Value, json};

/// A worker's name in the tree: its core, or `kernel`.
fn name(worker: WorkerId) -> String {
    match worker {
        WorkerId::Pmd(core) => core.to_string(),
        WorkerId::Kernel => "kernel".into(),
    }
}

/// Workers by core. Cycles are of the clock of `switch`; `misses` are part of `lookup`.
pub fn cores(s: &mut State) -> Value {
    let queues = s.dp.rxq_info();
    let one = |p: PmdInfo| {
        let mine = queues.iter().filter(|q| q.worker == Some(p.worker));
        let mut core = perf(&p.perf);
        core.extend([
            ("numa".into(), json!(p.numa)),
            ("polls".into(), json!(p.worker != WorkerId::Kernel)),
            ("isolated".into(), json!(p.isolated)),
            ("queues".into(), mine.map(queue).collect()),
        ]);
        (name(p.worker), Value::Object(core))
    };
    Value::Object(s.dp.pmd_info().into_iter().map(one).collect())
}

/// A receive queue.
pub fn queue(q: &RxqInfo) -> Value {
    json!({
        "port": q.name,
        "queue": q.queue,
        "core": q.worker.map(name),
        "pinned": q.pinned,
        "cycles": q.cycles,
        "packets": q.packets,
    })
}

fn perf(p: &Perf) -> Map<String, Value> {
    let parts = [
        (
            "cycles",
            json!({
                "busy": p.busy_cycles, "idle": p.idle_cycles, "sleep": p.sleep_cycles,
                "rx": p.rx_cycles, "parse": p.parse_cycles, "lookup": p.lookup_cycles,
                "misses": p.miss_cycles, "act_tx": p.act_cycles,
            }),
        ),
        (
            "iterations",
            json!({"all": p.iterations, "idle": p.idle_iterations, "sleep": p.sleep_iterations}),
        ),
        ("packets", json!({"received": p.rx_packets, "sent": p.tx_packets})),
        ("bursts", json!({"vectors": p.vectors, "sent": p.tx_batches})),
        (
            "lookups",
            json!({
                "passes": p.passes, "recirculated": p.recirculated, "parsed_by_profile": p.claimed,
                "signature_cache": p.cache_hits, "megaflow_table": p.flow_hits,
                "pipeline": p.misses, "direct": p.direct, "subtables_visited": p.subtable_lookups,
            }),
        ),
        (
            "decisions",
            json!({
                "installed": p.installed, "not_installed": p.not_installed, "evicted": p.evicted,
            }),
        ),
    ];
    parts.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

/// Caches by worker: how full they are, and how each port's packets are found in them.
pub fn caches(s: &mut State) -> Value {
    let lookups = s.dp.lookups();
    let mut all = Map::new();
    for p in s.dp.pmd_info() {
        let mine = lookups.iter().filter(|(w, _)| *w == p.worker).flat_map(|(_, ports)| ports);
        let mut ports = Map::new();
        for l in mine {
            let one = json!({
                "megaflows": l.flows, "masks": l.masks, "direct": l.policy.new_flows == NewFlows::Direct,
                "signature_cache": l.policy.cache == CacheUse::On,
                // Of the last tenth of a second that was judged.
                "visits_per_lookup": l.rates.lookups.visits_per_hit(),
            });
            ports.insert(port_name(s, l.port), one);
        }
        let one = json!({
            "megaflows": p.flows, "masks": p.masks, "signature_cache": p.signature_cache,
            "ports": ports,
        });
        all.insert(name(p.worker), one);
    }
    Value::Object(all)
}

fn port_name(s: &mut State, no: PortNo) -> String {
    s.dp.port_mut(no).map_or_else(|| format!("#{no}"), |p| p.name().to_string())
}
