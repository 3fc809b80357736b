//! Periodic work: moving events of the packet side into the switch half, timeouts, counters.

use crate::appctl::perf::iteration_table;
use crate::appctl::usage::Sample;
use crate::appctl::{capture, coverage, flow_log};
use crate::oam::{self, bfd, cfm, lldp};
use crate::of::change::{SLICE_FLOWS_MAX, begin_forgetting, forget_now, slice_flows};
use crate::of::open_bundles::{Bundle, TURN_BUNDLES_MAX};
use crate::of::{async_msgs, table_features};
use crate::state::{Shared, State, collect};
use crate::{bonds, in_band, links, offload, polling_log, trees, underlay, vlog};
use datapath::{Bell, Event, Suspicious, WorkerId};
use ofproto::{
    BfdContext, CfmContext, LacpContext, LldpContext, McastContext, SampleContext, TreeContext,
};
use openflow::{OfError, Reply};
use std::time::Duration;
use tokio::io::unix::AsyncFd;

const MODULE: &str = "dpif_netdev";

/// How often the packet side's queues are emptied while PMD threads run, which never ring: the
/// longest a packet-in or a learned address waits.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How often the queues are emptied while the packet side rings when it has something.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Effects of decisions, and packets, that are taken in before connections have their turn: some
/// milliseconds' work. Each changes one address or two, which become one region each (`ofproto`'s
/// limit is twice as high). A flow that is learned counts as [`LEARNED_FLOW_EVENTS`].
const TURN_EVENTS_MAX: usize = 1024;
/// A new flow takes some 15 us, an address some 2.
const LEARNED_FLOW_EVENTS: usize = 8;
/// How often timeouts and rates are looked at.
const SECOND: Duration = Duration::from_secs(1);

/// Empties the packet side's queues until the daemon ends.
pub async fn run(state: Shared) {
    // SAFETY: a bell keeps one open descriptor, the same for ever.
    let bell = unsafe {
        AsyncFd::register_with_interest(state.borrow().dp.bell(), tokio::io::Interest::READABLE)
    };
    loop {
        wait(&state, bell.as_ref().ok()).await;
        while poll_datapath(&mut state.borrow_mut()) {
            tokio::task::yield_now().await;
        }
    }
}

/// Looks at timeouts and rates until the daemon ends.
pub async fn run_each_second(state: Shared) {
    loop {
        tokio::time::sleep(SECOND).await;
        collect(&state).await;
        each_second(&mut state.borrow_mut());
        while give_up_bundles(&mut state.borrow_mut()) {
            tokio::task::yield_now().await;
        }
        begin_forgetting(&state);
        timeouts(&state).await;
    }
}

/// Runs the sessions of BFD, CFM and LLDP until the daemon ends.
pub async fn run_oam(state: Shared) {
    loop {
        let (ms, [bfd, cfm, lldp]) = {
            let mut s = state.borrow_mut();
            let now = s.now_ms();
            if s.oam.is_due(now) {
                // A peer whose packets wait here is not silent.
                poll_datapath(&mut s);
                while oam::turn(&mut s, now) {}
            }
            let all = s.oam.wakeups();
            let ms = all.map(|w| w.sleep_ms(now)).into_iter().min();
            (ms.unwrap_or(1), all.map(|w| w.changed.clone()))
        };
        let changed = async {
            tokio::select!(() = bfd.notified() => {}, () = cfm.notified() => {}, () = lldp.notified() => {})
        };
        let _ = tokio::time::timeout(Duration::from_millis(ms), changed).await;
    }
}

/// Looks after bonds, LACP and spanning trees until the daemon ends.
pub async fn run_bonds(state: Shared) {
    loop {
        tokio::time::sleep(Duration::from_millis(bonds::LOOK_MS)).await;
        let mut s = state.borrow_mut();
        bonds::turn(&mut s);
        if s.trees.any() {
            // A neighbour whose BPDUs wait here is not silent.
            poll_datapath(&mut s);
            trees::turn(&mut s);
        }
    }
}

/// Flows that timed out go, some at a time.
async fn timeouts(state: &Shared) {
    loop {
        let more = {
            let mut s = state.borrow_mut();
            let more = expire(&mut s);
            s.flush_changes();
            more
        };
        if !more {
            return;
        }
        tokio::task::yield_now().await;
    }
}

fn expire(s: &mut State) -> bool {
    // As in ovs-vswitchd: flows that are being restored see no packets.
    if s.applied.restoring {
        return false;
    }
    let (now, known) = (s.now_ns(), s.dp.credited_ms() * 1_000_000);
    let flows = slice_flows(s.watches_of_any());
    s.ofproto.expire(now, known, flows)
}

/// Waits until there may be something to do.
async fn wait(state: &Shared, bell: Option<&AsyncFd<Bell>>) {
    let Some(bell) = bell else { return tokio::time::sleep(POLL_INTERVAL).await };
    let at_most = {
        let mut s = state.borrow_mut();
        let rests = s.dp.rests();
        let of = &s.ofproto;
        let idle = rests && !of.has_garbage() && !of.busy() && !of.has_pending_buckets();
        if idle { IDLE_POLL_INTERVAL } else { POLL_INTERVAL }
    };
    // What came before the packet side knew that it has to ring.
    if poll_datapath(&mut state.borrow_mut()) {
        state.borrow().dp.awake();
        return tokio::task::yield_now().await;
    }
    if let Ok(Ok(mut rung)) = tokio::time::timeout(at_most, bell.readable()).await {
        rung.clear_ready();
    }
    state.borrow().dp.awake();
}

/// One turn at the packet side's queues, of bounded length. True: there is more in them.
pub fn poll_datapath(s: &mut State) -> bool {
    turn(s, TURN_EVENTS_MAX)
}

/// Turns in which [`take_in`] gives up: more events than the queues of many ports hold.
const TAKE_IN_TURNS_MAX: usize = 256;

/// Takes in what packets taught until now, some events at a time, and others have their turn in
/// between.
pub async fn take_in(state: &Shared) {
    for _ in 0..TAKE_IN_TURNS_MAX {
        if !poll_datapath(&mut state.borrow_mut()) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Empties the packet side's queues, as far as they are full now.
pub fn poll_datapath_fully(s: &mut State) {
    turn(s, usize::MAX);
}

fn turn(s: &mut State, most: usize) -> bool {
    let now = s.now_ms();
    s.dp.poll(now);
    offload::turn(s, now);
    let mut punts = Vec::new();
    let (ofproto, export) = (&mut s.ofproto, &mut s.observers.export);
    let more = s.dp.drain_events(most, &mut |event| {
        let mut flows = 0;
        match event {
            Event::Punt(p) => match p.punt.context.downcast_ref::<SampleContext>() {
                Some(sample) => export.sampled(&p, sample, now),
                None => punts.push(p),
            },
            Event::Differs(how) => vlog::err!(MODULE, "validation: {how}"),
            Event::Suspicious(worker, one) => suspicious(worker, &one),
            Event::Decided { effects, alone } => {
                export.decided(&effects, alone, now);
                flows = ofproto.effects(&effects, now * 1_000_000);
            }
            Event::PassedOver { port, n } => ofproto.passed_over(port, n),
        }
        1 + flows * LEARNED_FLOW_EVENTS
    });
    let flows = slice_flows(s.watches_of_any());
    let flows = flows.min(most / LEARNED_FLOW_EVENTS);
    let more = more | s.ofproto.learn_deferred(flows) | s.ofproto.notify_buckets();
    links::look_at_reported(s);
    crate::vhost_async::tick(s);
    capture::keep(s);
    crate::failed_translations::log(s);
    flow_log::turn(s);
    polling_log::log(s);
    underlay::solicit(s);
    s.flush_changes();
    let mut packet_ins = async_msgs::PacketInTurn::default();
    for p in punts {
        let context = &p.punt.context;
        if let Some(to) = context.downcast_ref::<BfdContext>() {
            bfd::receive(s, &p, to);
        } else if let Some(to) = context.downcast_ref::<CfmContext>() {
            cfm::receive(s, &p, to);
        } else if let Some(to) = context.downcast_ref::<LldpContext>() {
            lldp::receive(s, &p, to);
        } else if let Some(to) = context.downcast_ref::<LacpContext>() {
            bonds::receive(s, &p, to);
        } else if let Some(to) = context.downcast_ref::<TreeContext>() {
            trees::receive(s, &p, to);
        } else if let Some(to) = context.downcast_ref::<McastContext>() {
            s.ofproto.snoop_mcast(to, &p.packet, now * 1_000_000);
        } else {
            async_msgs::packet_in(s, &p, &mut packet_ins);
        }
    }
    trees::hear(s);
    s.flush_changes();
    s.settled(s.last_change());
    let more = more | s.dp.searches();
    s.ofproto.reclaim(SLICE_FLOWS_MAX);
    s.pending.progress.notify_waiters();
    s.ofproto.free_retired();
    more
}

/// A PMD thread's iteration took long.
fn suspicious(worker: WorkerId, one: &Suspicious) {
    vlog::warn!(
        "pmd_perf",
        "{worker}: Suspicious iteration (Excessive total cycles): iter={} duration={} us",
        one.iteration,
        one.us
    );
    if !one.neighbours.is_empty() {
        let table = iteration_table(&one.neighbours, one.neighbours.len());
        vlog::warn!("pmd_perf", "Neighborhood of suspicious iteration:\n{table}");
    }
}

/// Packets of the switch's own, and answers to them, at one point in time.
const ROUNDS: usize = 3;

/// Waits until packets of ours are where they go, and takes in what they taught. For test suites.
pub fn finish_packets(s: &mut State) {
    for _ in 0..ROUNDS {
        s.dp.finish_packets();
        poll_datapath_fully(s);
    }
}

/// What happens when time has passed, at once.
pub fn tick(s: &mut State) {
    poll_datapath_fully(s);
    let now = s.now_ms();
    while oam::turn(s, now) {
        finish_packets(s);
    }
    for _ in 0..ROUNDS {
        if bonds::turn(s) | trees::turn(s) {
            finish_packets(s);
        }
    }
    finish_packets(s);
    s.collect();
    links::look(s);
    each_second(s);
    while give_up_bundles(s) {}
    forget_now(s);
    crate::export::tick(s);
    while expire(s) {}
    s.flush_changes();
}

fn each_second(s: &mut State) {
    s.run_fail_mode();
    s.report_flow_mods();
    table_features_requests(s);
    s.settle_accounts();
    in_band::follow_local(s);
    s.flush_changes();
    limited(s);
    let totals = coverage::totals(s);
    if s.recent.coverage.has_grown("conntrack_nat_exhausted", &totals) {
        vlog::warn!(
            "conntrack",
            "Unable to NAT due to tuple space exhaustion - \
             if DoS attack, use firewalling and/or zone partitioning."
        );
    }
    s.recent.coverage.sample(totals);
    let flows = s.dp.pmd_info().iter().map(|p| u64::from(p.flows)).sum();
    s.recent.flows.sample(flows);
    let now = s.now_ms();
    let dp = &s.dp;
    s.recent.usage.sample(now, || Sample { queues: dp.rxq_info(), pmds: dp.pmd_info() });
}

/// Says which ports showed more new addresses, or next hops, than they may teach.
fn limited(s: &mut State) {
    let now = s.now_ns();
    for (port, n) in s.ofproto.take_limited_neighbours(now) {
        vlog::warn!(
            "tunnel_neighbor",
            "port {port} announces too many changes of next hops: {n} were passed over"
        );
    }
    for (bridge, port, n) in s.ofproto.take_limited(now) {
        let name = s.ofproto.port(bridge, port).map_or("", |p| &p.name);
        let bridge = s.bridge_name(bridge).unwrap_or_default();
        vlog::warn!(
            "mac_learning",
            "bridge {bridge}: port {name} shows too many new MAC addresses: {n} packets taught nothing"
        );
    }
}

/// Gives up bundles that were left alone for too long, some at a time. True: there are more.
fn give_up_bundles(s: &mut State) -> bool {
    let (now, timeout) = (s.now_ns(), s.of.bundle_timeout);
    let mut left = TURN_BUNDLES_MAX;
    for conn in s.conns.values_mut() {
        while let Some(Bundle { opening: data, .. }) =
            conn.bundles.next_idle(now, timeout, &mut left)
        {
            let xid = data.get(4..8).map_or(0, |x| u32::from_be_bytes([x[0], x[1], x[2], x[3]]));
            conn.reply(xid, &Reply::Error { error: OfError::BundleTimeout, data });
        }
    }
    left == 0
}

/// Gives up table features requests that were left alone for too long.
fn table_features_requests(s: &mut State) {
    let (now, timeout) = (s.now_ns(), s.of.bundle_timeout);
    for conn in s.conns.values_mut() {
        if let Some((xid, data)) = table_features::expire(&mut conn.table_features, now, timeout) {
            conn.reply(xid, &Reply::Error { error: OfError::MultipartRequestTimeout, data });
        }
    }
}
