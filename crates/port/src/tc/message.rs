//! Contents of traffic control's messages: `struct tcmsg` and attributes, as in linux/pkt_sched.h.

use super::{ClassStats, Codel, HtbClass, Qdisc, TrafficClass};
use crate::netlink::{attribute, attributes, read_u32};
use std::io;

pub(super) const RTM_NEWQDISC: u16 = 36;
pub(super) const RTM_DELQDISC: u16 = 37;
pub(crate) const RTM_NEWTCLASS: u16 = 40;
pub(super) const RTM_DELTCLASS: u16 = 41;
pub(super) const RTM_GETTCLASS: u16 = 42;
pub(super) const F_EXCL: u16 = 0x200;
pub(super) const F_CREATE: u16 = 0x400;
/// `TC_H_ROOT`, the parent of a root queueing discipline.
pub(super) const ROOT: u32 = u32::MAX;
/// Length of `struct tcmsg`.
const HEAD: usize = 20;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const STATS_BASIC: u16 = 1;
const STATS_QUEUE: u16 = 3;
const STATS_PACKETS: u16 = 8;
const HTB_PARMS: u16 = 1;
const HTB_INIT: u16 = 2;
const HTB_RATE64: u16 = 6;
const HTB_CEIL64: u16 = 7;
const HTB_VERSION: u32 = 3;
/// Bytes of `rate` per byte of quantum, where a class has no quantum.
const HTB_RATE_TO_QUANTUM: u32 = 10;

/// The class of packets that nothing puts into another: 1:1.
const DEFAULT_CLASS: u8 = 1;
/// Length of the shortest frame without its checksum: shorter ones cost as much.
const FRAME_MIN: u16 = 60;
const LINKLAYER_ETHERNET: u8 = 1;
/// Times of HTB and netem are in these ticks.
const TICK_NS: u64 = 64;

/// `struct tcmsg`.
pub(super) fn head(ifindex: u32, handle: u32, parent: u32) -> Vec<u8> {
    words(&[0, ifindex, handle, parent, 0])
}

/// The handle 1:`minor`.
pub(super) fn handle(minor: u16) -> u32 {
    1 << 16 | u32::from(minor)
}

fn words(all: &[u32]) -> Vec<u8> {
    all.iter().flat_map(|n| n.to_ne_bytes()).collect()
}

/// Attributes of one number each.
fn numbers(all: &[(u16, u32)]) -> Vec<u8> {
    all.iter().flat_map(|(kind, n)| attribute(*kind, &n.to_ne_bytes())).collect()
}

fn kind_and_options(kind: &str, options: &[u8]) -> Vec<u8> {
    let kind = [kind.as_bytes(), &[0]].concat();
    [attribute(TCA_KIND, &kind), attribute(TCA_OPTIONS, options)].concat()
}

/// Attributes of a new queueing discipline.
pub(super) fn qdisc(qdisc: &Qdisc) -> io::Result<Vec<u8>> {
    let codel = |c: &Codel| numbers(&[(1, c.target), (2, c.limit), (3, c.interval)]);
    let (kind, options) = match qdisc {
        Qdisc::Htb => {
            let init = words(&[HTB_VERSION, HTB_RATE_TO_QUANTUM, DEFAULT_CLASS.into(), 0, 0]);
            ("htb", attribute(HTB_INIT, &init))
        }
        Qdisc::Hfsc => ("hfsc", u16::from(DEFAULT_CLASS).to_ne_bytes().into()),
        Qdisc::Sfq { quantum, perturb } => ("sfq", words(&[*quantum, *perturb, 0, 0, 0])),
        Qdisc::Codel(c) => ("codel", codel(c)),
        Qdisc::FqCodel { codel: c, flows, quantum } => {
            ("fq_codel", [codel(c), numbers(&[(5, *flows), (6, *quantum)])].concat())
        }
        Qdisc::Netem { loss, .. } if *loss > 100 => {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Qdisc::Netem { latency, limit, loss } => {
            let latency = u64::from(*latency) * 1000 / TICK_NS;
            let loss = u64::from(*loss) * u64::from(u32::MAX) / 100;
            ("netem", words(&[saturate(latency), *limit, loss as u32, 0, 0, 0]))
        }
    };
    Ok(kind_and_options(kind, &options))
}

/// Attributes of a class.
pub(super) fn class_attributes(class: &TrafficClass) -> Vec<u8> {
    match class {
        TrafficClass::Htb(c) => kind_and_options("htb", &htb_options(c)),
        TrafficClass::Hfsc { min_rate, max_rate } => {
            // Real-time, link-sharing and upper-limit curves, all straight lines.
            let curves = [(1, min_rate), (2, min_rate), (3, max_rate)];
            let curve = |(kind, rate): (u16, &u32)| attribute(kind, &words(&[0, 0, *rate]));
            kind_and_options("hfsc", &curves.map(curve).concat())
        }
    }
}

fn htb_options(c: &HtbClass) -> Vec<u8> {
    // A quantum below the MTU would let a class wait for several turns.
    let small = c.min_rate / u64::from(HTB_RATE_TO_QUANTUM) < u64::from(c.mtu);
    let burst = u64::from(c.burst.max(c.mtu));
    let rest = [
        time_of(burst, c.min_rate),
        time_of(burst, c.max_rate),
        if small { c.mtu } else { 0 },
        0,
        c.priority,
    ];
    let parms = [rate_spec(c.min_rate), rate_spec(c.max_rate), words(&rest)].concat();
    let mut options = attribute(HTB_PARMS, &parms);
    for (kind, rate) in [(HTB_RATE64, c.min_rate), (HTB_CEIL64, c.max_rate)] {
        if rate > u64::from(u32::MAX) {
            options.extend(attribute(kind, &rate.to_ne_bytes()));
        }
    }
    options
}

/// `struct tc_ratespec`. With the link layer in it the kernel computes what frames cost, and needs
/// no table of that.
fn rate_spec(rate: u64) -> Vec<u8> {
    let mut spec = vec![0, LINKLAYER_ETHERNET, 0, 0, 0, 0];
    spec.extend(FRAME_MIN.to_ne_bytes());
    spec.extend(saturate(rate).to_ne_bytes());
    spec
}

/// Ticks that `bytes` take at `rate` bytes per second.
fn time_of(bytes: u64, rate: u64) -> u32 {
    saturate(bytes * (1_000_000_000 / TICK_NS) / rate.max(1))
}

fn saturate(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The minor number of a class and what it counted, of the part of a message behind its header;
/// None for classes of other disciplines than 1:.
pub(crate) fn class(body: &[u8]) -> Option<(u16, ClassStats)> {
    let handle = read_u32(body, 8)?;
    let stats = attributes(body.get(HEAD..)?).find(|(kind, _)| *kind == TCA_STATS2);
    let mut counted = ClassStats::default();
    let number = |value: &[u8], at: usize| read_u32(value, at).unwrap_or(0).into();
    let wide = |value: &[u8]| value.first_chunk().map(|n| u64::from_ne_bytes(*n));
    for (kind, value) in stats.into_iter().flat_map(|(_, nested)| attributes(nested)) {
        match kind {
            STATS_BASIC => {
                counted.bytes = wide(value).unwrap_or(0);
                counted.packets = number(value, 8);
            }
            STATS_PACKETS => counted.packets = wide(value).unwrap_or(0),
            STATS_QUEUE => counted.drops = number(value, 8),
            _ => {}
        }
    }
    (handle >> 16 == 1).then_some((handle as u16, counted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_messages_do_not_panic_and_whole_ones_are_read() {
        let basic = [&7u64.to_ne_bytes()[..], &3u32.to_ne_bytes()].concat();
        let queue = words(&[1, 2, 5, 0, 0]);
        let nested = [attribute(STATS_BASIC, &basic), attribute(STATS_QUEUE, &queue)].concat();
        let body = [head(4, handle(6), handle(0)), attribute(TCA_STATS2, &nested)].concat();
        for cut in 0..body.len() {
            let _ = class(&body[..cut]);
        }
        assert_eq!(class(&body), Some((6, ClassStats { bytes: 7, packets: 3, drops: 5 })));
        let more = [nested, attribute(STATS_PACKETS, &(1u64 << 32 | 3).to_ne_bytes())].concat();
        let body = [head(4, handle(6), 0), attribute(TCA_STATS2, &more)].concat();
        assert_eq!(class(&body).unwrap().1.packets, 1 << 32 | 3);
        let other = [head(4, 2 << 16, 0), attribute(TCA_STATS2, &[])].concat();
        assert_eq!(class(&other), None);
    }

    #[test]
    fn rates_beyond_32_bits_are_whole() {
        let class =
            |max_rate| HtbClass { min_rate: 1500, max_rate, burst: 0, priority: 0, mtu: 1500 };
        let ceil = |max_rate| {
            let options = htb_options(&class(max_rate));
            let wide = attributes(&options).find(|(kind, _)| *kind == HTB_CEIL64);
            wide.map(|(_, rate)| u64::from_ne_bytes(rate.try_into().unwrap()))
        };
        assert_eq!(ceil(u32::MAX.into()), None);
        assert_eq!(ceil(12_500_000_000), Some(12_500_000_000));
        // A second's burst at 1,500 bytes per second.
        assert_eq!(time_of(1500, 1500), 15_625_000);
        assert_eq!((time_of(u64::from(u32::MAX), 1), time_of(1, 0)), (u32::MAX, 15_625_000));
    }

    #[test]
    fn losses_beyond_all_are_refused() {
        let netem = |loss| qdisc(&Qdisc::Netem { latency: u32::MAX, limit: 1, loss });
        assert_eq!(netem(101).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert!(netem(100).is_ok());
    }
}
