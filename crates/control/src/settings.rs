//! `Open_vSwitch.other_config`: the knobs that take effect live.

use crate::config::{Desired, parse_sleeps};
use crate::of::bundle;
use crate::state::State;
use crate::vlog;
use datapath::{AutoLb, RxqAssign, Settings, Tri};

const MODULE: &str = "dpif_netdev";
/// How long a PMD thread may sleep, at most, us.
const SLEEP_US_MAX: u64 = 10_000;

/// Applies what changed.
pub fn apply(s: &mut State, desired: &Desired) {
    s.applied.other_config.clone_from(&desired.other_config);
    let now = s.dp.settings();
    // Set by command, not in the database.
    let commanded = Settings {
        level: now.level,
        lookup_priority: now.lookup_priority,
        validate: now.validate,
        parser_of: now.parser_of.clone(),
        perf_log: now.perf_log,
        debug: now.debug,
        ..read(desired)
    };
    s.dp.set_settings(commanded);
    crate::offload::configure(s, &desired.other_config);
    let seconds = desired.other_config.get("bundle-idle-timeout").and_then(|v| v.parse().ok());
    // As in ovs-vswitchd: at least a second, zero for the default.
    let asked = seconds.filter(|n: &u64| *n > 0).map(|n| n.saturating_mul(1_000_000_000));
    s.of.bundle_timeout = asked.unwrap_or(bundle::IDLE_TIMEOUT);
    let cores = desired.other_config.get("pmd-cpu-mask").map(|m| cores(m));
    let cores = match cores {
        Some(Some(list)) => list,
        Some(None) => {
            vlog::warn!(MODULE, "pmd-cpu-mask is not a hexadecimal mask; using one core");
            default_cores()
        }
        None => default_cores(),
    };
    if let Err(e) = s.dp.set_pmd_cores(&cores) {
        vlog::err!(MODULE, "{e}");
    }
}

fn read(desired: &Desired) -> Settings {
    let text = |k: &str| desired.other_config.get(k).map(String::as_str);
    let number = |k: &str| text(k).and_then(|v| v.parse::<u64>().ok());
    let signature_cache = match (text("smc-enable"), number("emc-insert-inv-prob")) {
        (Some("true"), _) => Tri::On,
        (_, Some(0)) => Tri::Off,
        _ => Tri::Auto,
    };
    let mut s = Settings { signature_cache, ..Settings::default() };
    s.flow_limit = match number("flow-limit") {
        Some(v) => v.clamp(1000, u64::from(u32::MAX)) as u32,
        None => default_flow_limit(memory()),
    };
    if let Some(v) = number("max-idle") {
        s.max_idle_ms = v.max(100);
    }
    if let Some(v) = number("tx-flush-interval") {
        s.tx_flush_interval_us = Some(v.min(1_000_000));
    }
    // Open vSwitch 3.1 has the first name, later versions the second.
    let sleeps = text("pmd-sleep-max").or(text("pmd-maxsleep")).and_then(parse_sleeps);
    for (core, us) in sleeps.into_iter().flatten() {
        let us = us.min(SLEEP_US_MAX);
        match core {
            None => s.pmd_sleep_max_us = us,
            Some(core) => _ = s.pmd_sleep_of.insert(core, us),
        }
    }
    if let Some(v) = number("vlan-limit") {
        s.vlan_limit = if v == 1 { 1 } else { 2 };
    }
    s.perf_metrics = text("pmd-perf-metrics") == Some("true");
    s.rxq_assign = match text("pmd-rxq-assign") {
        Some("roundrobin") => RxqAssign::RoundRobin,
        Some("group") => RxqAssign::Group,
        _ => RxqAssign::Cycles,
    };
    s.rxq_isolate = text("pmd-rxq-isolate") != Some("false");
    if !s.rxq_isolate && s.rxq_assign != RxqAssign::Group {
        vlog::warn!(
            MODULE,
            "pmd-rxq-isolate can only be set false when using pmd-rxq-assign=group"
        );
        s.rxq_isolate = true;
    }
    let known = AutoLb::default();
    let percent = |k: &str, otherwise: u8| match number(k) {
        Some(v @ 0..=100) => v as u8,
        _ => otherwise,
    };
    s.auto_lb = AutoLb {
        enabled: text("pmd-auto-lb") == Some("true"),
        interval_min: match number("pmd-auto-lb-rebal-interval") {
            Some(m @ 0..=20_000) => m.max(1),
            _ => known.interval_min,
        },
        load_threshold: percent("pmd-auto-lb-load-threshold", known.load_threshold),
        improvement: percent("pmd-auto-lb-improvement-threshold", known.improvement),
    };
    s
}

/// OVS's limit of 200,000 is what its revalidators can check in time; here nothing is checked, so
/// memory decides: a quarter of it, at 256 bytes a flow.
fn default_flow_limit(memory: u64) -> u32 {
    (memory / 4 / 256).clamp(200_000, 1 << 24) as u32
}

/// The machine's memory, bytes; 0 when the system does not say.
fn memory() -> u64 {
    // SAFETY: two numbers are asked for, no pointers are involved.
    let (pages, size) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0) * u64::try_from(size).unwrap_or(0)
}

/// Cores of a hexadecimal mask, lowest first.
fn cores(mask: &str) -> Option<Vec<usize>> {
    let hex = mask.trim().trim_start_matches("0x").trim_start_matches("0X");
    if hex.is_empty() {
        return None;
    }
    let mut out = Vec::new();
    for (i, digit) in hex.chars().rev().enumerate() {
        let digit = digit.to_digit(16)?;
        out.extend((0..4).filter(|b| digit >> b & 1 != 0).map(|b| i * 4 + b));
    }
    Some(out)
}

/// One PMD thread, on the last core: interrupts and everybody else prefer the first. Of cores that
/// are made up one on each NUMA node, as in ovs-vswitchd.
fn default_cores() -> Vec<usize> {
    if let Some(nodes) = datapath::assumed_cores() {
        let first = |core: &usize| !nodes[..*core].contains(&nodes[*core]);
        return (0..nodes.len()).filter(first).collect();
    }
    vec![machine_cores() - 1]
}

/// The number of cores that the process had when it was first asked for: the answer is in /sys,
/// where a look waits while others make devices.
fn machine_cores() -> usize {
    static CORES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_decides_how_many_flows() {
        assert_eq!(super::default_flow_limit(0), 200_000);
        assert_eq!(super::default_flow_limit(4 << 30), 1 << 22);
        assert_eq!(super::default_flow_limit(1 << 40), 1 << 24);
        assert!(super::memory() > 0);
    }

    #[test]
    fn sleeps_of_single_cores() {
        let read = |list: &str| {
            let other_config = [("pmd-sleep-max".to_string(), list.to_string())].into();
            let s = super::read(&super::Desired { other_config, ..Default::default() });
            [7, 8, 9].map(|core| s.sleep_max_us(core))
        };
        assert_eq!(read("50,8:0, 9:70000"), [50, 0, 10_000]);
        assert_eq!(read("50,8:0,x:1"), [0, 0, 0], "what is no list has no effect");
    }

    #[test]
    fn masks() {
        assert_eq!(super::cores("0x6"), Some(vec![1, 2]));
        assert_eq!(super::cores("100000001"), Some(vec![0, 32]));
        assert_eq!(super::cores("zz"), None);
        assert_eq!(super::cores("0"), Some(vec![]));
    }
}
