//! Commands that exist with `--enable-dummy` only: packets for dummy ports, and the passing of
//! time.

use super::{Command, Job, command, later};
use crate::housekeeping;
use crate::of::io::drained;
use crate::state::{Shared, State};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The next packet thread to start is to panic.
static PANIC: AtomicBool = AtomicBool::new(false);

/// Panics once on the thread that calls, if a command has asked for that: for the test of what a
/// panic leads to.
pub fn panic_if_asked() {
    if PANIC.swap(false, Ordering::SeqCst) {
        panic!("asked for by weft/panic-next-thread");
    }
}

/// Bytes to which `--len` makes a packet longer, at most: the largest an IP packet says of itself.
const LEN_MAX: usize = 65_535;

/// Bytes of data in composed packets that carry any, as in ovs-vswitchd.
const PAYLOAD: usize = 64;

/// Commands about dummy interfaces.
pub const COMMANDS: &[Command] = &[
    command("netdev-dummy/conn-state", "[netdev]", 0, 1, connections),
    command("netdev-dummy/ip4addr", "[netdev] ipaddr/mask-prefix-len", 2, 2, add_address),
    command("netdev-dummy/ip6addr", "[netdev] ip6addr", 2, 2, add_address),
    command(
        "netdev-dummy/receive",
        "name [--qid queue_id] packet|flow [--len packet_len]",
        2,
        usize::MAX,
        receive,
    ),
    command("netdev-dummy/set-admin-state", "[netdev] up|down", 1, 2, set_admin_state),
    command("time/stop", "", 0, 0, |_, _| {
        datapath::stop_clock();
        Ok(String::new())
    }),
    later("time/warp", "[large_msecs] msecs", 1, 2, warp),
    command("weft/panic-next-thread", "", 0, 0, |_, _| {
        PANIC.store(true, Ordering::SeqCst);
        Ok(String::new())
    }),
];

/// `netdev-dummy/receive NAME [--qid ID] {PACKET|FLOW [--len N]}...`
fn receive(s: &mut State, args: &[String]) -> Result<String, String> {
    let number = port_number(s, &args[0]).ok_or("no such dummy netdev")?;
    let (mut queue, mut packets) = (0, Vec::<Vec<u8>>::new());
    let mut words = args[1..].iter().peekable();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--qid" => {
                queue = words.next().and_then(|n| n.parse().ok()).ok_or("bad queue id")?;
            }
            "--len" => {
                let len = words.next().and_then(|n| n.parse().ok());
                let len = len.filter(|len| *len <= LEN_MAX).ok_or("bad packet length")?;
                let last = packets.last_mut().ok_or("--len without a packet")?;
                last.resize(last.len().max(len), 0);
            }
            text => {
                // With a length of its own a packet has no other data.
                let sized = words.peek().is_some_and(|w| *w == "--len");
                packets.push(packet(s, text, if sized { 0 } else { PAYLOAD })?)
            }
        }
    }
    s.flush_changes();
    // The log has what these packets do if that was asked for just before.
    super::flow_log::turn(s);
    let port = s.dp.port_mut(number).ok_or("no such dummy netdev")?;
    if !packets.iter().all(|p| port.inject(queue, p)) {
        return Err("no such dummy netdev".into());
    }
    housekeeping::finish_packets(s);
    Ok(String::new())
}

/// `netdev-dummy/conn-state [NAME]`: whether ports with an option `stream` have their connection.
fn connections(s: &mut State, args: &[String]) -> Result<String, String> {
    let ifaces = s.bridges.values().flat_map(|b| &b.ifaces);
    let ports = ifaces.filter_map(|(name, i)| Some((name, i.dp_port?)));
    let mut asked: Vec<_> =
        ports.filter(|(name, _)| args.is_empty() || args[0] == **name).collect();
    asked.sort();
    let states = asked.into_iter().filter_map(|(name, no)| {
        let connected = s.dp.port(no)?.is_wired()?;
        Some(format!("{name}: {}\n", if connected { "connected" } else { "disconnected" }))
    });
    let text: String = states.collect();
    Ok(match args.first() {
        Some(name) if text.is_empty() => format!("{name}: unknown\n"),
        _ => text,
    })
}

/// `netdev-dummy/ip4addr NAME ADDRESS/LEN`: as if the kernel had said so.
fn add_address(s: &mut State, args: &[String]) -> Result<String, String> {
    if !s.bridges.values().any(|b| b.ifaces.contains_key(&args[0])) {
        return Err("Unknown Dummy Interface".into());
    }
    let (ip, len) = super::tunnel_commands::network(&args[1]).ok_or("Invalid address")?;
    let port = port_number(s, &args[0]).and_then(|no| s.dp.port_mut(no));
    if let (Some(port), IpAddr::V4(ip)) = (port, ip) {
        port.answer_arp_for(ip);
    }
    s.underlay.dummy_addresses.push((args[0].clone(), ip, len));
    let mut all = s.ofproto.routes().addresses().clone();
    all.push((args[0].clone(), ip, len));
    s.ofproto.change_routes(|t| t.set_addresses(all));
    s.flush_changes();
    Ok("OK\n".into())
}

fn port_number(s: &State, name: &str) -> Option<flow::PortNo> {
    s.bridges.values().find_map(|b| b.ifaces.get(name)?.dp_port)
}

/// A packet in hexadecimal, or made from a datapath flow.
fn packet(s: &State, text: &str, payload: usize) -> Result<Vec<u8>, String> {
    if let Some(bytes) = super::trace::hexadecimal(text) {
        return Ok(bytes);
    }
    let (key, _) = flow::parse_odp(text, &|name| port_number(s, name))
        .map_err(|e| format!("bad packet or flow syntax: {e}"))?;
    Ok(datapath::compose(&key, payload))
}

fn set_admin_state(s: &mut State, args: &[String]) -> Result<String, String> {
    super::admin_state(s, args, "dummy", "Unknown Dummy Interface")
}

/// Milliseconds of real time for what a warp brought about to be sent to connections.
const WRITTEN_MS_MAX: u64 = 200;
/// Milliseconds of real time for what a warp brought about to be in the database.
const REPORTED_MS_MAX: u64 = 1_000;

/// Milliseconds that one command lets pass, at most: a hundred years and more.
const WARP_MS_MAX: u64 = 1 << 42;

/// Steps of one command, at most.
const WARP_STEPS_MAX: u64 = 1_000_000;

/// All of it at once, or `large_msecs` in steps of `msecs`. Between steps connections are sent what
/// a step brought about, and the answer comes when they were sent that of the last one, and the
/// database has it: who looks there, as test suites do, finds it, as with OVS, whose main loop goes
/// round between.
fn warp(_: &mut State, args: &[String]) -> Result<Job, String> {
    let number = |text: &String| {
        text.parse::<u64>().ok().filter(|n| (1..=WARP_MS_MAX).contains(n)).ok_or("invalid MSECS")
    };
    let step = args.last().map_or(Err("invalid MSECS"), number)?;
    let mut left = args.first().map_or(Err("invalid MSECS"), number)?;
    if left.div_ceil(step) > WARP_STEPS_MAX {
        return Err(format!("more than {WARP_STEPS_MAX} steps"));
    }
    Ok(Box::new(move |state, reply| {
        Box::pin(async move {
            while left > 0 {
                pass(&mut state.borrow_mut(), left.min(step));
                left = left.saturating_sub(step);
                tokio::task::yield_now().await;
            }
            state.borrow_mut().recent.reports.is_wanted = true;
            state.borrow().of.warped.notify_waiters();
            let time_max = Duration::from_millis(WRITTEN_MS_MAX);
            let _ = tokio::time::timeout(time_max, written(&state)).await;
            let time_max = Duration::from_millis(REPORTED_MS_MAX);
            let _ = tokio::time::timeout(time_max, reported(&state)).await;
            reply.send(Ok("warped\n".into()));
        })
    }))
}

/// Lets so much time pass at once.
fn pass(s: &mut State, ms: u64) {
    housekeeping::tick(s);
    datapath::warp_clock(ms);
    housekeeping::tick(s);
}

/// Waits until the database has what is to be reported now.
async fn reported(state: &Shared) {
    while !state.borrow().recent.reports.are_written() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until connections were sent what waits for them now.
async fn written(state: &Shared) {
    let backlogs: Vec<_> = state.borrow().conns.values().map(|c| c.backlog.clone()).collect();
    for backlog in backlogs {
        drained(&backlog, 0).await;
    }
}
