//! Results as Markdown.

use crate::host::Host;
use crate::results::{Cell, Results, Row};
use crate::stages::Stages;
use std::fmt::Write;

impl Results {
    /// Machine, versions and how quiet it was, in a sentence or two.
    pub fn circumstances(&self) -> String {
        let e = &self.environment;
        let mut text = format!(
            "{}, commit {}; {} ({} CPUs), Linux {}; DPDK {}, OVS {}; {} hugepages; load {} before, {:.2} % stolen.",
            e.date,
            e.commit,
            e.cpu,
            e.cpus,
            e.kernel,
            e.dpdk,
            e.ovs,
            e.hugepages,
            e.load,
            e.steal_percent
        );
        let left_out = self.left_out();
        if left_out > 0.0 {
            let _ = write!(
                text,
                " {left_out:.1} % of the time does not count: another program had the forwarding thread's core."
            );
        }
        let noise = self.noise();
        if !noise.is_empty() {
            let _ = write!(text, " **Take care**: {}.", noise.join("; "));
        }
        text
    }

    /// What "from" and "to" mean.
    pub fn about_spread(&self) -> String {
        format!(
            "From and to: least and greatest of the runs, widened on each side by their distance over n - 1, which is what \
             n more runs are expected to stay in, and by {:.0} %, what lay between first and last run in the middle of all \
             systems and cases.",
            100.0 * self.drift()
        )
    }

    /// Who was still filling caches when the seconds that count began.
    pub fn unsettled(&self) -> Option<String> {
        let cells = self.rows.iter().flat_map(|r| r.systems.iter().map(move |c| (r, c)));
        let all: Vec<_> = cells
            .filter_map(|(r, c)| Some(format!("{}, {}: {:.0} s", r.case, c.system, c.unsettled()?)))
            .collect();
        (!all.is_empty()).then(|| {
            format!(
                "Caches were still filling when counting began, at the end of the warm-up that the experiment allows: {}.",
                all.join("; ")
            )
        })
    }

    /// Which core was saturated, if there were guests.
    pub fn saturated(&self) -> Option<String> {
        self.rows.iter().find(|r| r.role.is_some())?;
        let limited = |r: &Row| {
            let cells = r.systems.iter().filter(|c| r.guests_limit(c));
            let name = |c: &Cell| format!("{}, {}: {:.0} %", r.case, c.system, c.delivered());
            cells.map(name).collect::<Vec<_>>()
        };
        let all: Vec<_> = self.rows.iter().flat_map(limited).collect();
        Some(match all.is_empty() {
            true => "The forwarding core was the saturated one in every row with guests.".into(),
            false => format!(
                "The guests' core, and not the forwarding one, was the saturated one in these rows, of which cycles are an upper bound \
                 (beside them what was delivered): {}.",
                all.join("; ")
            ),
        })
    }

    /// The table.
    pub fn markdown(&self) -> String {
        let mut out = format!("# {}\n\n{}\n\n", self.title, self.circumstances());
        if !self.about.is_empty() {
            let _ = writeln!(out, "{}\n", self.about);
        }
        let _ = writeln!(out, "{LEGEND} {}\n", self.about_spread());
        out.push_str("| case | rules / masks | system | cycles | from | to | runs | Mpps | added | ratio | lost or late | delivered % | megaflows / masks |\n");
        out.push_str("|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
        self.rows.iter().for_each(|row| row.markdown(&mut out, self.drift()));
        self.more(&mut out);
        out
    }

    /// What only some samples have: cycles per stage, rates without loss and latency, confirmed
    /// changes.
    fn more(&self, out: &mut String) {
        for text in self.unsettled().into_iter().chain(self.saturated()) {
            let _ = writeln!(out, "\n{text}");
        }
        self.stages(out);
        self.hosts(out);
        if self.having(Cell::found).next().is_some() {
            out.push_str(FOUND);
        }
        for (row, cell, f) in self.having(Cell::found) {
            let [lax, paper, none] = f.mpps.map(significant);
            let [half, most] = f.latency_us.map(|l| l.map(|us| format!("{us:.1}")).join(" / "));
            let _ = writeln!(
                out,
                "| {} | {} | {none} | {paper} | {lax} | {half} | {most} |",
                row.case, cell.system
            );
        }
        self.at_loads(out);
        for (row, cell, [rules, percent]) in self.having(Cell::offloaded) {
            let (case, system) = (&row.case, &cell.system);
            let _ = writeln!(
                out,
                "\n{case}, {system}: {rules:.0} rules in the emulated adapter, {percent:.1} % of the packets known by their marks."
            );
        }
        for (row, cell, changes) in self.having(Cell::changes) {
            let (case, system) = (&row.case, &cell.system);
            let _ = writeln!(
                out,
                "\n{case}, {system}: {changes:.0} rule changes per second were confirmed."
            );
        }
    }

    fn at_loads(&self, out: &mut String) {
        if self.having(Cell::at_loads).next().is_some() {
            out.push_str(AT_LOADS);
        }
        for (row, cell, loads) in self.having(Cell::at_loads) {
            for load in loads {
                let latency = load.latency_us.iter().chain(&load.middle_us);
                let latency: Vec<_> = latency.map(|us| format!("{us:.1}")).collect();
                let _ = writeln!(
                    out,
                    "| {} | {} | {} | {} | {:.2} |",
                    row.case,
                    load.mpps,
                    cell.system,
                    latency.join(" | "),
                    100.0 * load.loss
                );
            }
        }
    }

    fn hosts(&self, out: &mut String) {
        if self.having(Cell::host).next().is_none() {
            return;
        }
        let _ = writeln!(out, "\n## The host beside the adapter\n\n{HOSTS}\n");
        let _ = writeln!(out, "| case | cores | paper | system | {} |", Host::NAMES.join(" | "));
        let _ = writeln!(out, "|---|--:|---|---{}|", "|--:".repeat(Host::NAMES.len()));
        for (row, cell, list) in self.having(Cell::host) {
            let paper = row.paper.iter().map(|(who, v)| format!("{who}: {}", v[0]));
            let paper = paper.collect::<Vec<_>>().join("; ");
            let list = list.map(|v| format!("{v:.2}")).join(" | ");
            let (case, system) = (&row.case, &cell.system);
            let _ = writeln!(out, "| {case} | 1 | {paper} | {system} | {list} |");
        }
    }

    fn stages(&self, out: &mut String) {
        if self.having(Cell::stages).next().is_none() {
            return;
        }
        let _ = writeln!(out, "\n## Cycles per stage\n\n{STAGES}\n");
        let _ = writeln!(out, "| case | system | {} |", Stages::NAMES.join(" | "));
        let _ = writeln!(out, "|---|---{}|", "|--:".repeat(Stages::NAMES.len()));
        for (row, cell, stages) in self.having(Cell::stages) {
            let stages = stages.map(|cycles| format!("{cycles:.1}")).join(" | ");
            let _ = writeln!(out, "| {} | {} | {stages} |", row.case, cell.system);
        }
    }
}

/// What the stages are.
pub const STAGES: &str = "Cycles of Weft per packet that left, medians of the runs; what `pmd-perf-show` tells before and after the seconds that count. \
Receive, parse, lookup, act and send, and idle are all of the row's cycles; misses (asking the pipeline about packets of no known flow) are a part \
of lookup. Receive has the generator's making of packets, reading guests' rings, and what an iteration does besides; lookup has \
decapsulation; act and send has encapsulation, copying to guests, and the generator's counting; idle are iterations that found no packet. Parsing is \
timed in one vector of 16.";

/// What [`Host`] says.
const HOSTS: &str = "One host core forwards, so delivered Mpps are those per host core, beside the paper's. Delivered: packets that reached \
the virtual functions, by the emulated adapter's rules or by the host, per second of wall time. What the adapter itself can do is the \
argument `hw_pps` of the case's source, an assumption and no measurement. Busy cycles: TSC cycles of the forwarding thread's iterations that \
found packets, per delivered packet. Other threads: of the daemon, rule operations and counters among their work. Medians of the runs.";

const FOUND: &str = "\nRates of wall time, Mpps, at which no packet, at most 0.01 % and at most 0.1 % were lost (lower bounds, \
2 % wide; medians); latency in us, p50 / p99 / p99.9, at half and at 90 % of the 0.01 % rate.\n\n\
| case | system | no loss | 0.01 % | 0.1 % | latency at half | at 90 % |\n|---|---|--:|--:|--:|--:|--:|\n";

const AT_LOADS: &str = "\nLatency at loads that are the same for every system, us (medians), and what was lost, %. \
Of each ms: p50 and p99 of every millisecond, the middle one of them, which leaves out the milliseconds in which the machine had \
something else to do as long as they are less than half.\n\n\
| case | Mpps | system | p50 | p99 | p99.9 | of each ms: p50 | p99 | lost |\n|---|--:|---|--:|--:|--:|--:|--:|--:|\n";

const LEGEND: &str = "Cycles: TSC cycles of the forwarding thread per packet that left, ports included; Mpps: packets per \
second of that thread's time. Added: over testpmd io. Ratio: the cycles of the OVS-DPDK that is best on this row, of both \
builds and all settings (EMC, SMC, neither, tx-flush-interval), over these; above 1 is faster than OVS. No ratio: the best \
OVS was still filling its caches. A setting far behind the best one runs once. Rules: OpenFlow flows and masks among them; megaflows: cached at the end.";

impl Row {
    fn markdown(&self, out: &mut String, drift: f64) {
        let floor = self.cell("testpmd-io").and_then(Cell::cycles);
        let peer = self.peer_cycles();
        for cell in &self.systems {
            let (case, [rules, masks], system) = (&self.case, self.rules, &cell.system);
            let rules = if cell.ceiling { String::new() } else { format!("{rules} / {masks}") };
            let _ = write!(out, "| {case} | {rules} | {system} | ");
            let Some((cycles, mpps)) = cell.cycles().zip(cell.mpps()) else {
                out.push_str("no run | | | 0 | | | | | | |\n");
                continue;
            };
            let spread = cell.spread(drift).unwrap_or(cycles);
            let optional = |v: Option<String>| v.unwrap_or_default();
            let added = optional(floor.map(|f| format!("{:.1}", cycles.median - f.median)));
            let peer = peer.filter(|_| !cell.ceiling);
            let ratio = optional(peer.map(|peer| format!("{:.2}", peer / cycles.median)));
            let late: u64 = cell.samples.iter().map(|s| s.lost + s.reordered).sum();
            let counts = cell.samples.iter().rev().find_map(|s| s.cached);
            let cached = optional(counts.map(|c| format!("{} / {}", c.megaflows, c.masks)));
            let _ = writeln!(
                out,
                "{:.1} | {:.1} | {:.1} | {} | {} | {added} | {ratio} | {late} | {:.1} | {cached} |",
                cycles.median,
                spread.min,
                spread.max,
                cell.samples.len(),
                significant(mpps.median),
                cell.delivered(),
            );
        }
        for (who, mpps) in &self.paper {
            let mpps = mpps.first().map_or_else(String::new, |m| significant(*m));
            let _ = writeln!(out, "| {} | | {who} | | | | | {mpps} | | | | | |", self.case);
        }
    }
}

/// Three digits that count.
pub fn significant(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.4}"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn rows_say_ratio_and_paper() {
        let text = crate::results::tests::results().markdown();
        let lines: Vec<_> = text.lines().filter(|l| l.starts_with("| c <1>")).collect();
        let columns =
            |line: &str| line.split('|').map(|c| c.trim().to_string()).collect::<Vec<_>>();
        let weft = columns(lines[3]);
        assert_eq!(weft[4..=6], ["125.0", "81.7", "168.3"]);
        assert_eq!(weft[8..=10], ["1.00", "85.0", "2.00"]);
        assert!(lines[4].contains("no run"));
        assert!(lines[5].contains("papers/002") && lines[5].contains("4.80"));
        assert!(text.contains("Take care"));
        let stages: Vec<_> = text.split("## Cycles per stage").nth(1).unwrap().lines().collect();
        assert!(text.contains("\na & b\n") && text.contains("saturated one in every row"));
        assert!(
            text.contains("\n| c <1> | 2 | ovs-emc | 1.0 | 250.0 | 9.0 | 0.9 | 1.5 | 1.00 |\n")
        );
        assert_eq!(stages[6], "| c <1> | weft | 30.0 | 10.0 | 40.0 | 5.0 | 40.0 | 5.0 |");
    }
}
