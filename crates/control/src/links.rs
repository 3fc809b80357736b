//! Links that go up and down: netlink says so of the kernel's, and drivers of guests' and of those
//! of adapters that interrupt; all are looked at once per second.
//!
//! The kernel may have whoever asks about a device wait for tenths of a second, so another thread
//! asks ([`port::Inquiry`]), and the control thread goes on meanwhile.

use crate::config::IfaceConf;
use crate::device_changes::Name;
use crate::ports::Iface;
use crate::state::{Bridge, Shared, State};
use crate::vlog;
use ::port::{DeviceAnswer, Inquiry, LinkEvent, LinkMonitor, Port, PortConfig};
use flow::PortNo;
use std::collections::{BTreeSet, HashMap};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

/// Changes come in flocks: one look for all, not more often.
const LOOK_MS: u64 = 20;

/// After `LINK_CHANGES_BURST` (`ports.rs`) changes of an interface's link one is taken over in
/// this time; those in between are passed over. What the link is in the end, the look of each
/// second sees.
const LINK_CHANGE_MS: u64 = 100;

/// Interfaces that are looked at in one turn: each takes some system calls.
const TURN_INTERFACES_MAX: usize = 32;
/// After a look at many interfaces because of the kernel's messages, none is taken for this long
/// for each: whoever has the kernel lose messages causes 2,000 looks a second at most.
const REST_EACH: Duration = Duration::from_micros(500);

/// How often all links are looked at.
const SECOND: Duration = Duration::from_secs(1);

/// What the kernel said of ports' devices.
pub type Answers = HashMap<PortNo, DeviceAnswer>;

/// Looks at all links each second until the daemon ends.
pub async fn run_each_second(state: Shared) {
    loop {
        tokio::time::sleep(SECOND).await;
        let all = select(&state.borrow(), |_, _| true);
        look_in_turns(&state, &all).await;
    }
}

/// Follows the kernel's links until the daemon ends.
pub async fn run(state: Shared) {
    let mut monitor = match LinkMonitor::new().and_then(register) {
        Ok(monitor) => monitor,
        Err(e) => return vlog::err!("netdev_linux", "the kernel's links cannot be followed: {e}"),
    };
    loop {
        let events = match monitor.readable_mut().await {
            Ok(mut ready) => {
                let (events, more) = ready.get_inner_mut().events();
                if !more {
                    ready.clear_ready();
                }
                events
            }
            Err(_) => Vec::new(),
        };
        let all = changed(&state.borrow(), &events);
        look_in_turns(&state, &all).await;
        tokio::time::sleep(rest(all.len())).await;
    }
}

/// How long no message of the kernel's causes a look after one at so many interfaces.
fn rest(looked_at: usize) -> Duration {
    Duration::from_millis(LOOK_MS) + REST_EACH * u32::try_from(looked_at).unwrap_or(u32::MAX)
}

/// The interfaces that events are about: all, when some were lost.
fn changed(s: &State, events: &[LinkEvent]) -> Vec<Name> {
    let names = events.iter().map(|event| match event {
        LinkEvent::Changed(link) => Some(link.name.as_str()),
        LinkEvent::Gone { name, .. } => Some(name.as_str()),
        LinkEvent::Lost => None,
    });
    match names.collect::<Option<BTreeSet<_>>>() {
        Some(names) => select(s, |name, _| names.contains(name)),
        None => select(s, |_, _| true),
    }
}

/// Interfaces with a device of their own for which `wanted` holds.
fn select(s: &State, wanted: impl Fn(&str, &Iface) -> bool) -> Vec<Name> {
    let of = |(bridge_name, bridge): (&String, &Bridge)| {
        let all = bridge.ifaces.iter().filter(|(name, i)| !i.is_virtual() && wanted(name, i));
        all.map(|(name, _)| (bridge_name.clone(), name.clone())).collect::<Vec<_>>()
    };
    s.bridges.iter().flat_map(of).collect()
}

/// As [`look`], with turns of others in between, and the kernel is asked by another thread.
async fn look_in_turns(state: &Shared, which: &[Name]) {
    for some in which.chunks(TURN_INTERFACES_MAX) {
        let inquiries = inquiries(&mut state.borrow_mut(), some);
        match answers(inquiries).await {
            Ok(answers) => look_at(&mut state.borrow_mut(), some, answers),
            Err(e) => vlog::warn!("netdev_linux", "asking for links: {e}"),
        }
        tokio::task::yield_now().await;
    }
    follow_up(&mut state.borrow_mut(), which);
}

/// What is to be asked of the kernel for a look at these.
fn inquiries(s: &mut State, which: &[Name]) -> Vec<(PortNo, Inquiry)> {
    let of = |(bridge, name): &Name| {
        let no = s.bridges.get(bridge)?.ifaces.get(name)?.dp_port?;
        Some((no, s.dp.port_mut(no)?.inquiry()?))
    };
    which.iter().filter_map(of).collect()
}

/// Inquiries, and where their answers go.
type Question = (Vec<Inquiry>, oneshot::Sender<std::io::Result<Vec<DeviceAnswer>>>);

/// The thread that asks the kernel, one question after the other; it begins with the first one.
fn asker() -> std::io::Result<&'static Sender<Question>> {
    static ASKER: OnceLock<Sender<Question>> = OnceLock::new();
    if let Some(asker) = ASKER.get() {
        return Ok(asker);
    }
    let (asker, questions) = channel::<Question>();
    let ask = move || {
        questions.into_iter().for_each(|(inquiries, to)| _ = to.send(::port::ask_all(inquiries)));
    };
    std::thread::Builder::new().name("devices".into()).spawn(ask)?;
    Ok(ASKER.get_or_init(|| asker))
}

/// Has another thread ask.
pub async fn answers(inquiries: Vec<(PortNo, Inquiry)>) -> std::io::Result<Answers> {
    if inquiries.is_empty() {
        return Ok(Answers::new());
    }
    let (numbers, inquiries): (Vec<_>, Vec<_>) = inquiries.into_iter().unzip();
    let (to, asked) = oneshot::channel();
    let _ = asker()?.send((inquiries, to));
    let answers = asked.await.unwrap_or_else(|e| Err(std::io::Error::other(e)))?;
    Ok(numbers.into_iter().zip(answers).collect())
}

/// Looks at the links of guests, and of adapters that interrupt, when some were reported as
/// changed. A look at one makes no system call, so a front-end that comes and goes costs others
/// nothing.
pub fn look_at_reported(s: &mut State) {
    let now = s.now_ms();
    if is_due(&mut s.recent.reported_ms, now, &s.recent.links_reported) {
        let reported = select(s, |_, iface| reports_changes(&iface.conf));
        look_at(s, &reported, Answers::new());
        follow_up(s, &reported);
        s.status_dirty = true;
    }
}

/// True if it is time to look for what has changed: [`LOOK_MS`] after the last look, at the
/// earliest. What changes in between waits for its time.
fn is_due(last_ms: &mut u64, now_ms: u64, changed: &AtomicBool) -> bool {
    let due = now_ms.saturating_sub(*last_ms) >= LOOK_MS && changed.swap(false, Ordering::AcqRel);
    if due {
        *last_ms = now_ms;
    }
    due
}

/// True if the interface's driver reports changes: it has guests, or an adapter is to interrupt.
fn reports_changes(conf: &IfaceConf) -> bool {
    let interrupts = || conf.options.get("dpdk-lsc-interrupt").is_some_and(|v| v == "true");
    match conf.kind.as_str() {
        "dpdkvhostuser" | "dpdkvhostuserclient" => true,
        "dpdk" => interrupts(),
        _ => false,
    }
}

fn register(monitor: LinkMonitor) -> std::io::Result<AsyncFd<LinkMonitor>> {
    // SAFETY: the monitor keeps one open descriptor, the same for ever.
    unsafe { AsyncFd::register_with_interest(monitor, Interest::READABLE) }.map_err(Into::into)
}

/// Shows the switch half which links went up or down, and the packet side new queues.
pub fn look(s: &mut State) {
    let all = select(s, |_, _| true);
    look_at(s, &all, Answers::new());
    follow_up(s, &all);
}

/// As [`look`], at one interface.
pub fn look_at_one(s: &mut State, bridge: &str, name: &str) {
    let one = [(bridge.to_owned(), name.to_owned())];
    look_at(s, &one, Answers::new());
    follow_up(s, &one);
}

/// Takes over what the kernel answered of these, and no other.
pub fn take_over(s: &mut State, which: &[Name], answers: Answers) {
    let is_answered = |(bridge, name): &&Name| {
        let iface = s.bridges.get(bridge).and_then(|b| b.ifaces.get(name));
        iface.and_then(|iface| iface.dp_port).is_some_and(|no| answers.contains_key(&no))
    };
    let answered: Vec<Name> = which.iter().filter(is_answered).cloned().collect();
    look_at(s, &answered, answers);
    follow_up(s, &answered);
}

/// Looks at links; those of which there is an answer make no system call.
fn look_at(s: &mut State, which: &[Name], mut answers: Answers) {
    let (now, mut lost) = (s.now_ms(), Vec::new());
    for (bridge_name, name) in which {
        let Some(bridge) = s.bridges.get_mut(bridge_name) else { continue };
        let Some(iface) = bridge.ifaces.get_mut(name) else { continue };
        let (Some(of_port), Some(no)) = (iface.of_port, iface.dp_port) else { continue };
        let Some(port) = s.dp.port_mut(no) else { continue };
        s.recent.links_looked_at += 1;
        let answer = answers.remove(&no);
        let is_asked = answer.is_some();
        let before = (port.mtu(), port.mac());
        let health = match answer {
            Some(answer) => port.answered(answer),
            None => port.health(),
        };
        if let Err(e) = health {
            lost.push((bridge_name.clone(), name.clone(), e.to_string()));
            continue;
        }
        if before != (port.mtu(), port.mac()) && !iface.is_changing {
            let local = (name == bridge_name).then_some(bridge.mac);
            if let Some(config) = to_restore(port, &iface.conf, local) {
                s.pending.devices.configure((bridge_name.clone(), name.clone()), config);
            }
        }
        if let Some(complaint) = port.complaint() {
            vlog::warn!("netdev", "{name}: {complaint}");
        }
        let Some(old) = s.ofproto.port(bridge.id, of_port) else { continue };
        let mut spec = old.clone();
        let link = if is_asked { port.last_link() } else { port.link() };
        crate::reconcile::describe(&mut spec, port, &link);
        s.dp.refresh(no);
        // What a controller configured stays; only the device's own state is taken over.
        spec.config |= old.config & !openflow::port_config::PORT_DOWN;
        if spec != *old && iface.link_changes.has(now, LINK_CHANGE_MS) {
            iface.link_changes.spend();
            let _ = s.ofproto.update_port(bridge.id, spec);
            s.status_dirty = true;
        }
    }
    crate::reconcile::lost(s, lost);
    s.flush_changes();
}

/// What a device that others changed is to have again, as with ovs-vswitchd: the MTU and address
/// that the database asks for. `local`: the bridge's address, for its own port.
fn to_restore(port: &dyn Port, conf: &IfaceConf, local: Option<[u8; 6]>) -> Option<PortConfig> {
    let config = crate::ports::port_config(conf, local, 1);
    let mtu = config.mtu_request.is_some_and(|mtu| mtu != port.mtu());
    let mac = config.mac.is_some_and(|mac| mac != port.mac());
    (mtu || mac).then(|| PortConfig { kind: port.kind().to_owned(), ..config })
}

/// What follows from links that were looked at.
fn follow_up(s: &mut State, looked_at: &[Name]) {
    if !looked_at.is_empty() {
        crate::bonds::turn(s);
        crate::trees::turn(s);
    }
    let bridges: BTreeSet<&String> = looked_at.iter().map(|(bridge, _)| bridge).collect();
    for bridge in bridges {
        crate::bridge_address::follow_devices(s, bridge);
        crate::mtu::follow(s, bridge);
    }
    s.flush_changes();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_is_looked_at_the_rarer_are_looks() {
        for all in [1, 40, 4000] {
            let looks = 1.0 / rest(all).as_secs_f64();
            assert!(looks <= 50.0 && looks * all as f64 <= 2000.0, "{all}: {looks}");
        }
    }

    #[test]
    fn guests_that_come_and_go_all_the_time_cause_few_looks() {
        let (changed, mut last) = (AtomicBool::new(false), 0);
        // Ten seconds; a change in each millisecond of the first.
        let looks = (1000..11_000).filter(|now| {
            changed.fetch_or(*now < 2000, Ordering::Relaxed);
            is_due(&mut last, *now, &changed)
        });
        let looks: Vec<u64> = looks.collect();
        assert_eq!(looks.len() as u64, 1000 / LOOK_MS + 1);
        assert!(looks.last() >= Some(&1999), "the last change was not missed");
    }

    #[test]
    fn guests_and_adapters_that_interrupt_report_changes() {
        let reports = |kind: &str, options: &[(&str, &str)]| {
            let options = options.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            reports_changes(&IfaceConf { kind: kind.into(), options, ..IfaceConf::default() })
        };
        let interrupts = [("dpdk-lsc-interrupt", "true")];
        assert!(reports("dpdkvhostuserclient", &[]) && reports("dpdk", &interrupts));
        assert!(!reports("dpdk", &[]) && !reports("system", &interrupts));
    }
}
