//! Results: raw JSON and a table in Markdown under bench/results.

use crate::environment::Environment;
use crate::experiment::Case;
use crate::measure::Sample;
use crate::system::System;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// All samples of one experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    title: String,
    rows: Vec<Row>,
}

/// One case.
#[derive(Clone, Debug, Serialize)]
struct Row {
    case: String,
    source: String,
    systems: Vec<Cell>,
}

/// One case under one system.
#[derive(Clone, Debug, Serialize)]
struct Cell {
    system: &'static str,
    ceiling: bool,
    samples: Vec<Sample>,
}

impl Cell {
    /// Least, median and greatest cycles per packet.
    fn spread(&self) -> Option<[f64; 3]> {
        let mut cycles: Vec<f64> = self.samples.iter().map(|s| s.cycles).collect();
        cycles.sort_by(f64::total_cmp);
        let middle = cycles.len() / 2;
        let median = match cycles.len() % 2 {
            _ if cycles.is_empty() => return None,
            1 => cycles[middle],
            _ => (cycles[middle - 1] + cycles[middle]) / 2.0,
        };
        Some([cycles[0], median, cycles[cycles.len() - 1]])
    }

    /// Megaflows and masks at the end of the last run that told.
    fn cached(&self) -> (String, String) {
        let told = self.samples.iter().rev().find_map(|s| s.cached);
        told.map_or_else(Default::default, |c| (c.megaflows.to_string(), c.masks.to_string()))
    }

    fn median(&self) -> Option<f64> {
        self.spread().map(|s| s[1])
    }
}

impl Results {
    /// No samples yet.
    pub fn new(title: &str, cases: &[Case], systems: &[System]) -> Self {
        let cell = |s: &System| Cell { system: s.name, ceiling: s.ceiling, samples: Vec::new() };
        let row = |c: &Case| Row {
            case: c.name.clone(),
            source: c.source.clone(),
            systems: systems.iter().map(cell).collect(),
        };
        Results { title: title.into(), rows: cases.iter().map(row).collect() }
    }

    /// One more for a case and a system, by their indices.
    pub fn add(&mut self, row: usize, column: usize, sample: Sample) {
        self.rows[row].systems[column].samples.push(sample);
    }

    /// The table.
    pub fn markdown(&self, environment: &Environment) -> String {
        let e = environment;
        let mut out = format!("# {}\n\n", self.title);
        let _ = writeln!(
            out,
            "{}, commit {}; {} ({} CPUs), Linux {}; DPDK {}, OVS {}; {} hugepages; load {} before, {} ticks stolen.\n",
            e.date,
            e.commit,
            e.cpu,
            e.cpus,
            e.kernel,
            e.dpdk,
            e.ovs,
            e.hugepages,
            e.load,
            e.steal_ticks
        );
        out.push_str(
            "Cycles: TSC cycles of the forwarding thread per packet that left, ports included. ",
        );
        out.push_str(
            "Added: over testpmd io. Ratio: the best OVS setting's cycles over these.\n\n",
        );
        out.push_str(
            "| case | system | median | min | max | runs | Mpps | added | ratio | lost or late | delivered % | megaflows | masks |\n",
        );
        out.push_str("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
        self.rows.iter().for_each(|row| row.markdown(&mut out));
        out
    }
}

impl Row {
    fn markdown(&self, out: &mut String) {
        let of = |name: &str| self.systems.iter().find(|c| c.system == name)?.median();
        let floor = of("testpmd-io");
        let peers = self.systems.iter().filter(|c| c.system.starts_with("ovs"));
        let best = peers.filter_map(Cell::median).reduce(f64::min);
        for cell in &self.systems {
            let Some([least, median, most]) = cell.spread() else {
                let _ = writeln!(
                    out,
                    "| {} | {} | failed | | | 0 | | | | | | | |",
                    self.case, cell.system
                );
                continue;
            };
            let added = floor.map_or_else(String::new, |f| format!("{:.1}", median - f));
            let ratio = best
                .filter(|_| !cell.ceiling)
                .map_or_else(String::new, |b| format!("{:.2}", b / median));
            let mpps = |s: &Sample| s.packets as f64 * 1e3 / s.cpu_ns.max(1) as f64;
            let speed = cell.samples.iter().map(mpps).sum::<f64>() / cell.samples.len() as f64;
            let late: u64 = cell.samples.iter().map(|s| s.lost + s.reordered).sum();
            let (came, left) =
                cell.samples.iter().fold((0, 0), |(a, b), s| (a + s.received, b + s.packets));
            let delivered = 100.0 * left as f64 / came.max(1) as f64;
            let (megaflows, masks) = cell.cached();
            let _ = writeln!(
                out,
                "| {} | {} | {median:.1} | {least:.1} | {most:.1} | {} | {speed:.2} | {added} | {ratio} | {late} | {delivered:.1} | {megaflows} | {masks} |",
                self.case,
                cell.system,
                cell.samples.len()
            );
        }
    }
}

/// Writes `bench/results/DATE-NAME-COMMIT/` and prints the table; returns the folder.
pub fn write(
    root: &Path,
    name: &str,
    environment: &Environment,
    results: &Results,
) -> Result<PathBuf> {
    let day = environment.date.get(..10).unwrap_or("undated");
    let folder = root.join("bench/results").join(format!("{day}-{name}-{}", environment.commit));
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let table = results.markdown(environment);
    fs::write(folder.join("table.md"), &table)?;
    let raw = serde_json::json!({ "environment": environment, "results": results });
    fs::write(folder.join("raw.json"), serde_json::to_string_pretty(&raw)? + "\n")?;
    println!("{table}");
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(system: &'static str, ceiling: bool, cycles: &[f64]) -> Cell {
        let sample = |c: &f64| Sample {
            packets: 1000,
            received: 1000,
            cpu_ns: 1_000_000,
            wall_ns: 2_000_000,
            cycles: *c,
            lost: 0,
            reordered: 1,
            cached: None,
        };
        Cell { system, ceiling, samples: cycles.iter().map(sample).collect() }
    }

    #[test]
    fn medians_and_ratios() {
        let systems = vec![
            cell("testpmd-io", true, &[30.0, 50.0, 40.0]),
            cell("ovs-emc", false, &[200.0, 300.0]),
            cell("ovs-smc", false, &[400.0]),
            cell("weft", false, &[125.0]),
            cell("testpmd-mac", true, &[]),
        ];
        let mut out = String::new();
        Row { case: "c".into(), source: String::new(), systems }.markdown(&mut out);
        let lines: Vec<_> = out.lines().collect();
        assert_eq!(
            lines[0],
            "| c | testpmd-io | 40.0 | 30.0 | 50.0 | 3 | 1.00 | 0.0 |  | 3 | 100.0 |  |  |"
        );
        assert_eq!(
            lines[1],
            "| c | ovs-emc | 250.0 | 200.0 | 300.0 | 2 | 1.00 | 210.0 | 1.00 | 2 | 100.0 |  |  |"
        );
        assert_eq!(
            lines[3],
            "| c | weft | 125.0 | 125.0 | 125.0 | 1 | 1.00 | 85.0 | 2.00 | 1 | 100.0 |  |  |"
        );
        assert!(lines[4].contains("failed"));
    }
}
