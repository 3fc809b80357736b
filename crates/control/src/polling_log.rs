//! What the log says of PMD threads: their settings, where receive queues are polled and what
//! `pmd-auto-lb` found; in ovs-vswitchd's words, for which operators and their tools search.

use crate::state::State;
use crate::vlog;
use datapath::{AutoLb, BalanceCheck, PolledQueue, Polling, Settings};
use std::collections::BTreeMap;

const MODULE: &str = "dpif_netdev";

/// Says what is new. Nothing is said before the first bridge: there is no datapath until then.
pub fn log(s: &mut State) {
    if let Some(check) = s.dp.take_balance_check() {
        log_check(check);
    }
    if s.bridges.is_empty() {
        return;
    }
    let said = &mut s.recent.said;
    if said.settings.as_ref() != Some(s.dp.settings()) {
        let before = said.settings.replace(s.dp.settings().clone());
        let now = s.dp.settings();
        changes(before.as_ref(), now).iter().for_each(|text| vlog::info!(MODULE, "{text}"));
    }
    if let Some(polling) = s.dp.take_polling() {
        let before = std::mem::replace(&mut said.cores, polling.cores.clone());
        let lines = threads(&before, &polling.cores).into_iter().chain(placement(&polling));
        lines.for_each(|(level, text)| vlog::at!(level, MODULE, "{text}"));
    }
}

/// How settings differ from those that the log knows, all of them from the defaults.
fn changes(before: Option<&Settings>, now: &Settings) -> Vec<String> {
    let (mut out, default) = (Vec::new(), Settings::default());
    let is_first = before.is_none();
    let before = before.unwrap_or(&default);
    if before.rxq_assign != now.rxq_assign {
        out.push(format!("Rxq to PMD assignment mode changed to: '{}'.", now.rxq_assign.name()));
    }
    if before.rxq_isolate != now.rxq_isolate {
        let does = if now.rxq_isolate { "isolates" } else { "does not isolate" };
        out.push(format!("pmd-rxq-affinity {does} PMD core"));
    }
    auto_lb_changes(&mut out, (!is_first).then_some(&before.auto_lb), &now.auto_lb);
    if is_first || before.pmd_sleep_max_us != now.pmd_sleep_max_us {
        let us = now.pmd_sleep_max_us;
        out.push(format!("PMD max sleep request is {us} usecs."));
        let are = if us > 0 { "enabled" } else { "disabled" };
        out.push(format!("PMD load based sleeps are {are}."));
    }
    out
}

fn auto_lb_changes(out: &mut Vec<String>, before: Option<&AutoLb>, now: &AutoLb) {
    if before == Some(now) {
        return;
    }
    let mut parameter = |name: &str, unit: &str, before: Option<u64>, now: u64| {
        if before != Some(now) {
            out.push(format!("PMD auto load balance {name} set to {now}{unit}"));
        }
    };
    parameter("interval", " mins", before.map(|b| b.interval_min), now.interval_min);
    let percent = |of: fn(&AutoLb) -> u8| (before.map(|b| of(b).into()), of(now).into());
    let (was, is) = percent(|b| b.improvement);
    parameter("improvement threshold", "%", was, is);
    let (was, is) = percent(|b| b.load_threshold);
    parameter("load threshold", "%", was, is);
    out.push(match now.enabled {
        false => "PMD auto load balance is disabled.".into(),
        true => format!(
            "PMD auto load balance is enabled, interval {} mins, pmd load threshold {}%, \
             improvement threshold {}%.",
            now.interval_min, now.load_threshold, now.improvement
        ),
    });
}

type Line = (vlog::Level, String);

/// PMD threads that went and came, each a core and its NUMA node, and how many there are now.
fn threads(before: &[(usize, usize)], now: &[(usize, usize)]) -> Vec<Line> {
    let without = |of: &[(usize, usize)], others: &[(usize, usize)], what: &str| -> Vec<Line> {
        let line = |(core, numa): &(usize, usize)| {
            (vlog::Level::Info, format!("PMD thread on numa_id: {numa}, core id: {core:2} {what}."))
        };
        of.iter().filter(|c| !others.contains(c)).map(line).collect()
    };
    let mut out = without(before, now, "destroyed");
    out.extend(without(now, before, "created"));
    if out.is_empty() {
        return out;
    }
    let mut nodes = BTreeMap::<usize, usize>::new();
    now.iter().for_each(|(_, numa)| *nodes.entry(*numa).or_default() += 1);
    out.extend(nodes.iter().map(|(numa, n)| {
        (vlog::Level::Info, format!("There are {n} pmd threads on numa node {numa}"))
    }));
    out
}

/// Where each queue is polled.
fn placement(polling: &Polling) -> Vec<Line> {
    let mut out: Vec<Line> = Vec::new();
    for q in polling.queues.iter().filter(|q| q.pinned) {
        let Some((core, numa)) = q.core else { continue };
        let text = format!(
            "Core {core:2} on numa node {numa} is pinned with port '{}' rx queue {}",
            q.port, q.queue
        );
        out.push((vlog::Level::Info, text));
    }
    let mut open = polling.queues.iter().filter(|q| !q.pinned).peekable();
    if open.peek().is_some() {
        let how = polling.how.name();
        let text = format!("Performing pmd to rx queue assignment using {how} algorithm.");
        out.push((vlog::Level::Info, text));
    }
    open.for_each(|q| assigned(&mut out, q));
    out
}

fn assigned(out: &mut Vec<Line>, q: &PolledQueue) {
    let (port, queue) = (&q.port, q.queue);
    let Some((core, numa)) = q.core else {
        let text = format!(
            "No non-isolated pmd on any numa available for port '{port}' rx queue {queue}. This \
             rx queue will not be polled."
        );
        return out.push((vlog::Level::Warn, text));
    };
    if numa != q.numa {
        let text = format!(
            "There's no available (non-isolated) pmd thread on numa node {}. Port '{port}' rx \
             queue {queue} will be assigned to a pmd on numa node {numa}. This may lead to \
             reduced performance.",
            q.numa
        );
        out.push((vlog::Level::Info, text));
    }
    let text =
        format!("Core {core:2} on numa node {numa} assigned port '{port}' rx queue {queue}.");
    out.push((vlog::Level::Info, text));
}

fn log_check(check: BalanceCheck) {
    let nothing = "PMD auto load balance nothing to do, ";
    match check {
        BalanceCheck::Unchanged => {
            vlog::dbg!(MODULE, "{nothing}no configuration changes since last check.");
        }
        BalanceCheck::RoundRobin => {
            vlog::dbg!(MODULE, "{nothing}pmd-rxq-assign=roundrobin assignment type configured.");
        }
        BalanceCheck::TooFew => {
            vlog::dbg!(MODULE, "{nothing}not enough non-isolated PMDs or RxQs.");
        }
        BalanceCheck::CrossNuma => {
            vlog::dbg!(MODULE, "PMD auto load balance performing dry run.");
            vlog::dbg!(
                MODULE,
                "PMD auto load balance detected cross-numa polling with multiple numa nodes. \
                 Unable to accurately estimate."
            );
        }
        BalanceCheck::Compared { now, then, improvement, threshold } => {
            vlog::dbg!(MODULE, "PMD auto load balance performing dry run.");
            vlog::dbg!(
                MODULE,
                "Current variance {now} Estimated variance {then}. Variance improvement \
                 {improvement}%."
            );
            let met = if check.moves_queues() { "met" } else { "not met" };
            vlog::dbg!(MODULE, "PMD load variance improvement threshold {threshold}% is {met}.");
        }
    }
    if check.moves_queues() {
        vlog::info!(MODULE, "PMD auto load balance dry run. Requesting datapath reconfigure.");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::RxqAssign;

    #[test]
    fn the_first_settings_and_what_changes() {
        let mut now = Settings::default();
        let first = changes(None, &now);
        assert_eq!(
            first,
            [
                "PMD auto load balance interval set to 1 mins",
                "PMD auto load balance improvement threshold set to 25%",
                "PMD auto load balance load threshold set to 95%",
                "PMD auto load balance is disabled.",
                "PMD max sleep request is 0 usecs.",
                "PMD load based sleeps are disabled.",
            ]
        );
        let before = now.clone();
        assert!(changes(Some(&before), &now).is_empty());
        now.rxq_assign = RxqAssign::Group;
        now.rxq_isolate = !now.rxq_isolate;
        now.auto_lb.load_threshold = 70;
        now.auto_lb.enabled = true;
        let text = changes(Some(&before), &now);
        assert_eq!(text[0], "Rxq to PMD assignment mode changed to: 'group'.");
        assert_eq!(text[1], "pmd-rxq-affinity does not isolate PMD core");
        assert_eq!(text[2], "PMD auto load balance load threshold set to 70%");
        assert!(text[3].starts_with("PMD auto load balance is enabled, interval 1 mins, "));
        assert_eq!(text.len(), 4);
    }

    #[test]
    fn threads_and_queues() {
        let queue =
            |queue, pinned, core| PolledQueue { port: "p0".into(), queue, numa: 0, pinned, core };
        let polling = Polling {
            how: RxqAssign::Cycles,
            cores: vec![(0, 0), (2, 1)],
            queues: vec![
                queue(0, true, Some((2, 1))),
                queue(1, false, Some((2, 1))),
                queue(2, false, None),
            ],
        };
        let text = |lines: Vec<Line>| lines.into_iter().map(|l| l.1).collect::<Vec<_>>();
        assert_eq!(
            text(threads(&[(0, 0), (1, 0)], &polling.cores)),
            [
                "PMD thread on numa_id: 0, core id:  1 destroyed.",
                "PMD thread on numa_id: 1, core id:  2 created.",
                "There are 1 pmd threads on numa node 0",
                "There are 1 pmd threads on numa node 1",
            ]
        );
        assert!(threads(&polling.cores, &polling.cores).is_empty());
        let text = text(placement(&polling));
        assert_eq!(text[0], "Core  2 on numa node 1 is pinned with port 'p0' rx queue 0");
        assert_eq!(text[1], "Performing pmd to rx queue assignment using cycles algorithm.");
        assert!(
            text[2].starts_with("There's no available (non-isolated) pmd thread on numa node 0.")
        );
        assert_eq!(text[3], "Core  2 on numa node 1 assigned port 'p0' rx queue 1.");
        assert!(text[4].starts_with("No non-isolated pmd on any numa available"));
    }
}
