//! What the log says of cached flows, in ovs-vswitchd's words and for people who look for a fault:
//! packets that none matched, flows that came and flows that are there. Nothing is kept for it, and
//! workers report nothing, unless messages of level `dbg` of the two modules are wanted.

use super::dpctl::{self, Style};
use crate::offload::How;
use crate::state::State;
use crate::vlog::{self, Level};
use action::{OpsText, ops_text_with};
use datapath::{FlowDebug, FlowDump, Settings, WorkerId};
use flow::PortNo;
use std::collections::BTreeMap;

const NETDEV: &str = "dpif_netdev";
const DPIF: &str = "dpif";
/// How often cached flows are logged: as often as ovs-vswitchd revalidates them.
const DUMP_INTERVAL_MS: u64 = 500;
/// Places of megaflows of each worker that are looked at for it; the log takes fewer flows at once.
const DUMP_PLACES_MAX: usize = 1024;

/// Logs what came since the last call.
pub fn turn(s: &mut State) {
    let wanted = vlog::enabled_in(NETDEV, Level::Dbg);
    // With dummies dumps show the packets that flows were made for, as those of ovs-vswitchd do.
    let before = s.dp.settings().debug;
    let debug = FlowDebug { report_misses: wanted || before.own_masks, ..before };
    if debug != before {
        s.dp.set_settings(Settings { debug, ..s.dp.settings().clone() });
    }
    let (missed, flows) = (s.dp.take_missed(), s.dp.new_flows(wanted));
    for key in missed.into_iter().filter(|_| wanted) {
        let text = flow::odp_key_text(&key, &no_name);
        vlog::dbg!(NETDEV, "{}: miss upcall:\n{text}", dpctl::name(s));
    }
    for f in &flows {
        let punt = |p: &action::Punt| s.ofproto.punt_text(p);
        let ops = ops_text_with(&f.ops, &OpsText { punt: &punt, port: &no_name });
        let text = flow::odp_text(dpctl::shown_key(f), &dpctl::shown_mask(f), false, &no_name);
        vlog::dbg!(NETDEV, "flow_add: ufid:{} {text}, actions:{ops}", dpctl::ufid(f));
    }
    let now = s.now_ms();
    if now >= s.recent.flows_logged_ms + DUMP_INTERVAL_MS {
        s.recent.flows_logged_ms = now;
        dump(s);
    }
}

/// Logs flows that are there.
pub fn dump(s: &mut State) {
    if !vlog::enabled_in(DPIF, Level::Dbg) {
        return;
    }
    let workers: Vec<WorkerId> = s.dp.pmd_info().iter().map(|p| p.worker).collect();
    let (mut flows, style) = (Vec::<FlowDump>::new(), Style::of_log());
    for worker in workers {
        s.dp.flows_of(worker, 0, DUMP_PLACES_MAX, &mut flows);
    }
    for f in flows.iter().filter(|f| !f.dead) {
        let text = dpctl::one(&s.ofproto, f, &style, &BTreeMap::new(), How::Not);
        let text = text.trim_end();
        vlog::dbg!(DPIF, "{}: flow_dump {text}", dpctl::name(s));
    }
}

fn no_name(_: PortNo) -> Option<String> {
    None
}
