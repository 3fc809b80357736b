//! `qos/show` of a port whose packets the kernel queues, in ovs-vswitchd's words.

use super::counters::{QueueCounters, counters};
use super::plan::queue_settings;
use crate::state::State;
use ::port::tc::TrafficClass;
use flow::PortNo;
use std::fmt::Write;

/// The text; None if the kernel does not queue for the port.
pub fn show(s: &State, name: &str, no: PortNo) -> Option<String> {
    let counters = counters(s, no);
    let shape = s.applied.qos.get(&no)?.shape()?;
    let mut text = format!("QoS: {name} {}\n", shape.kind);
    for (key, value) in shape.settings() {
        let _ = writeln!(text, "{key}: {value}");
    }
    for (id, class) in &shape.queues {
        queue(&mut text, *id, class, counters.get(id));
    }
    Some(text)
}

fn queue(text: &mut String, id: u32, class: &TrafficClass, counters: Option<&QueueCounters>) {
    let _ = match id {
        0 => writeln!(text, "\nDefault:"),
        id => writeln!(text, "\nQueue {id}:"),
    };
    for (key, value) in queue_settings(class) {
        let _ = writeln!(text, "  {key}: {value}");
    }
    let Some(QueueCounters { stats, .. }) = counters else {
        let why = "No such file or directory";
        let _ = writeln!(text, "  Failed to get statistics for queue {id}: {why}");
        return;
    };
    for (key, value) in
        [("tx_packets", stats.packets), ("tx_bytes", stats.bytes), ("tx_errors", stats.drops)]
    {
        let _ = writeln!(text, "  {key}: {value}");
    }
}
