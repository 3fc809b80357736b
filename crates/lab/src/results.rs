//! Samples, and what is computed from them.

use crate::environment::Environment;
use crate::experiment::{Case, Experiment, Role};
use crate::measure::Sample;
use crate::search::{AtLoad, Found};
use crate::system::System;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A setting of OVS whose best run takes this many times the cycles of the best setting's median is
/// not run again: twice the spread of 25 % above which [`Results::noise`] says that a median is to
/// be taken with care.
const PEER_CYCLES_RATIO_MAX: f64 = 1.5;

/// One experiment's file: NAME.json.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// As `weft bench run` names it.
    pub experiment: String,
    /// What it shows.
    pub title: String,
    /// What its reader has to know.
    #[serde(default)]
    pub about: String,
    /// Machine and versions.
    pub environment: Environment,
    /// Cases.
    pub rows: Vec<Row>,
}

/// One case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub case: String,
    /// What it has in common with others of the same line.
    pub group: String,
    /// Its traffic has new flows all the time: see [`Case::never_settles`].
    #[serde(default)]
    pub never_settles: bool,
    /// Packet size, of a line.
    pub size: Option<u32>,
    /// Number of guests, of a line.
    #[serde(default)]
    pub guests: Option<u32>,
    /// What its guests do, if it has any.
    #[serde(default)]
    pub role: Option<Role>,
    /// Generator's arguments.
    pub source: String,
    /// OpenFlow flows, and masks among them.
    pub rules: [usize; 2],
    /// The paper's Mpps.
    pub paper: BTreeMap<String, Vec<f64>>,
    /// Samples by system.
    pub systems: Vec<Cell>,
}

/// One case under one system.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// Its name.
    pub system: String,
    /// Forwards without looking.
    pub ceiling: bool,
    /// One per run that did not fail.
    pub samples: Vec<Sample>,
}

/// Least, median and greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Least.
    pub min: f64,
    /// Middle, or the mean of the two in the middle.
    pub median: f64,
    /// Greatest.
    pub max: f64,
}

impl Spread {
    /// Nothing if there are no values.
    pub fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<_> = values.collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            1 => values[middle],
            _ => (values[middle - 1] + values[middle]) / 2.0,
        };
        Some(Spread { min, median, max })
    }

    /// What as many more runs are expected to stay in: the distance between least and greatest over
    /// n - 1 further on both sides (the unbiased estimate of a uniform distribution's ends), and
    /// the machine's drift (a share).
    pub fn widened(&self, runs: usize, drift: f64) -> Self {
        let more = (self.max - self.min) / (runs.max(2) - 1) as f64;
        Spread {
            min: ((self.min - more) * (1.0 - drift)).max(0.0),
            median: self.median,
            max: (self.max + more) * (1.0 + drift),
        }
    }

    /// True if the ranges have something in common.
    pub fn overlaps(&self, other: &Spread) -> bool {
        self.min <= other.max && other.min <= self.max
    }
}

impl Cell {
    /// TSC cycles per packet that left.
    pub fn cycles(&self) -> Option<Spread> {
        Spread::of(self.samples.iter().map(|s| s.cycles))
    }

    /// [`Cell::cycles`] with the spread that tables show. Of a single run nothing is known: it has
    /// no width but the drift.
    pub fn spread(&self, drift: f64) -> Option<Spread> {
        Some(self.cycles()?.widened(self.samples.len(), drift))
    }

    /// Warm-ups that ended before the caches were full.
    pub fn unsettled(&self) -> Option<f64> {
        let warm = self.samples.iter().filter_map(|s| s.warm).filter(|w| !w.settled);
        warm.map(|w| w.seconds).reduce(f64::max)
    }

    /// How far the last run is from the first one, as a share.
    fn drift(&self) -> Option<f64> {
        let (first, last) = (self.samples.first()?, self.samples.last()?);
        (self.samples.len() > 1).then(|| (last.cycles / first.cycles).ln().abs())
    }

    /// Million packets per second of the forwarding thread's time.
    pub fn mpps(&self) -> Option<Spread> {
        let mpps = |s: &Sample| s.packets as f64 * 1e3 / s.cpu_ns.max(1) as f64;
        Spread::of(self.samples.iter().map(mpps))
    }

    /// Packets that left per packet that came, %.
    pub fn delivered(&self) -> f64 {
        let sum = |f: fn(&Sample) -> u64| self.samples.iter().map(f).sum::<u64>() as f64;
        100.0 * sum(|s| s.packets) / sum(|s| s.received).max(1.0)
    }

    /// Rates and latencies that were searched for: medians over the samples.
    pub fn found(&self) -> Option<Found> {
        let all: Vec<_> = self.samples.iter().filter_map(|s| s.found).collect();
        let median = |f: &dyn Fn(&Found) -> f64| Spread::of(all.iter().map(f)).map(|s| s.median);
        let mut found = *all.first()?;
        for i in 0..3 {
            found.mpps[i] = median(&|f| f.mpps[i])?;
            for part in 0..2 {
                found.latency_us[part][i] = median(&|f| f.latency_us[part][i])?;
            }
        }
        Some(found)
    }

    /// Rule changes per second that the switch confirmed: median over the samples.
    pub fn changes(&self) -> Option<f64> {
        Spread::of(self.samples.iter().filter_map(|s| s.changes)).map(|s| s.median)
    }

    /// Rules in the adapter, and packets known by their marks in per cent: medians over the
    /// samples.
    pub fn offloaded(&self) -> Option<[f64; 2]> {
        let all = || self.samples.iter().filter_map(|s| s.offloaded);
        let rules = Spread::of(all().map(|o| o.rules as f64))?.median;
        Some([rules, Spread::of(all().map(|o| o.marked_percent))?.median])
    }

    /// What the host did, as [`crate::host::Host::list`]: medians over the samples.
    pub fn host(&self) -> Option<[f64; 7]> {
        let all: Vec<_> = self.samples.iter().filter_map(|s| Some(s.host?.list())).collect();
        let median = |i| Spread::of(all.iter().map(|l| l[i])).map_or(0.0, |s| s.median);
        (!all.is_empty()).then(|| std::array::from_fn(median))
    }

    /// Cycles per packet as [`crate::stages::Stages::list`]: medians over the samples.
    pub fn stages(&self) -> Option<[f64; 6]> {
        let all: Vec<_> = self.samples.iter().filter_map(|s| Some(s.stages?.list())).collect();
        let median = |i| Spread::of(all.iter().map(|l| l[i])).map_or(0.0, |s| s.median);
        (!all.is_empty()).then(|| std::array::from_fn(median))
    }

    /// Latency at the case's loads: medians over the samples.
    pub fn at_loads(&self) -> Option<Vec<AtLoad>> {
        let first = &self.samples.first()?.at_loads;
        let at = |i: usize| {
            let all: Vec<_> = self.samples.iter().filter_map(|s| s.at_loads.get(i)).collect();
            let median =
                |f: &dyn Fn(&AtLoad) -> f64| Spread::of(all.iter().map(|a| f(a))).map(|s| s.median);
            let latency = |k: usize| median(&|a| a.latency_us[k]);
            let middle = |k: usize| median(&|a| a.middle_us[k]);
            Some(AtLoad {
                mpps: first[i].mpps,
                loss: median(&|a| a.loss)?,
                latency_us: [latency(0)?, latency(1)?, latency(2)?],
                middle_us: [middle(0)?, middle(1)?],
            })
        };
        (!first.is_empty()).then(|| (0..first.len()).filter_map(at).collect())
    }

    /// True if the system is OVS-DPDK.
    pub fn is_peer(&self) -> bool {
        self.system.starts_with("ovs")
    }
}

impl Row {
    /// The fastest system whose name satisfies `which`.
    pub fn best(&self, which: impl Fn(&Cell) -> bool) -> Option<&Cell> {
        let median = |c: &Cell| c.cycles().map_or(f64::INFINITY, |s| s.median);
        let cells = self.systems.iter().filter(|c| which(c) && !c.samples.is_empty());
        cells.min_by(|a, b| median(a).total_cmp(&median(b)))
    }

    /// Cycles per packet of the fastest OVS, of all builds and settings that ran. None where that
    /// one's caches were still filling when counting began, although the traffic lets them settle:
    /// settled, it would be faster.
    pub fn peer_cycles(&self) -> Option<f64> {
        let best = self.best(Cell::is_peer)?;
        let settled = self.never_settles || best.unsettled().is_none();
        settled.then(|| best.cycles().map(|c| c.median)).flatten()
    }

    /// True if a further run of this system is worth its time. A build or setting of OVS is not
    /// that is so much slower than the best one that the spread cannot make it the peer.
    pub fn may_become_peer(&self, cell: &Cell) -> bool {
        let best = self.best(Cell::is_peer).and_then(Cell::cycles);
        match (best, cell.cycles()) {
            (Some(best), Some(own)) if cell.is_peer() => {
                own.min <= best.median * PEER_CYCLES_RATIO_MAX
            }
            _ => true,
        }
    }

    /// True if the guests' core was the limit. Guests that do not keep up lose packets; guests that
    /// send lose them as long as they could send more.
    pub fn guests_limit(&self, cell: &Cell) -> bool {
        match self.role {
            _ if cell.samples.is_empty() => false,
            None => false,
            Some(Role::Source) => cell.delivered() >= 99.0,
            Some(_) => cell.delivered() < 97.0,
        }
    }

    /// The system of that name, if it was measured.
    pub fn cell(&self, system: &str) -> Option<&Cell> {
        self.systems.iter().find(|c| c.system == system && !c.samples.is_empty())
    }
}

impl Results {
    /// No samples yet. `rules` are flows and masks of each case.
    pub fn new(
        name: &str,
        experiment: &Experiment,
        environment: Environment,
        cases: &[(&Case, [usize; 2])],
        systems: &[System],
    ) -> Self {
        let cell =
            |s: &System| Cell { system: s.name.into(), ceiling: s.ceiling(), samples: Vec::new() };
        let row = |(c, rules): &(&Case, [usize; 2])| Row {
            case: c.name.clone(),
            group: c.group().into(),
            never_settles: c.warming.never_settles,
            size: c.points.size,
            guests: c.points.count,
            role: (c.guests > 0).then_some(c.guest.role),
            source: c.source.clone(),
            rules: *rules,
            paper: c.paper.clone(),
            systems: systems.iter().map(cell).collect(),
        };
        Results {
            experiment: name.into(),
            title: experiment.title.clone(),
            about: experiment.about.clone(),
            environment,
            rows: cases.iter().map(row).collect(),
        }
    }

    /// The share of time in which the forwarding thread had not its whole core, and which does not
    /// count, %.
    pub fn left_out(&self) -> f64 {
        let cells = self.rows.iter().flat_map(|r| &r.systems);
        let slices = || cells.clone().flat_map(|c| &c.samples).map(|s| s.slices);
        let [good, all] = [0, 1].map(|i| slices().map(|s| f64::from(s[i])).sum::<f64>());
        100.0 * (all - good) / all.max(1.0)
    }

    /// Cells that have something, with their rows.
    pub fn having<T>(
        &self,
        what: impl Fn(&Cell) -> Option<T>,
    ) -> impl Iterator<Item = (&Row, &Cell, T)> {
        let cells = self.rows.iter().flat_map(|r| r.systems.iter().map(move |c| (r, c)));
        cells.filter_map(move |(r, c)| Some((r, c, what(c)?)))
    }

    /// True if no run has succeeded.
    pub fn is_empty(&self) -> bool {
        self.rows.iter().flat_map(|r| &r.systems).all(|c| c.samples.is_empty())
    }

    /// These and later runs of the same experiment: all cases, systems and samples of both. Load
    /// and stolen time are the greater of both.
    pub fn and(mut self, later: Results) -> Results {
        let e = &mut self.environment;
        e.load = e.load.max(later.environment.load);
        e.steal_percent = e.steal_percent.max(later.environment.steal_percent);
        e.cut = later.environment.cut;
        for row in later.rows {
            let Some(mine) = self.rows.iter_mut().find(|r| r.case == row.case) else {
                self.rows.push(row);
                continue;
            };
            for cell in row.systems {
                match mine.systems.iter_mut().find(|c| c.system == cell.system) {
                    Some(c) => c.samples.extend(cell.samples),
                    None => mine.systems.push(cell),
                }
            }
        }
        self
    }

    /// How much the machine changed meanwhile, as a share: the median over systems and cases of
    /// what lies between first and last run, one per cent at least.
    pub fn drift(&self) -> f64 {
        let all = self.rows.iter().flat_map(|r| &r.systems).filter_map(Cell::drift);
        Spread::of(all).map_or(0.01, |s| s.median.max(0.01))
    }

    /// Why the figures should be taken with care; empty on a quiet machine.
    pub fn noise(&self) -> Vec<String> {
        let e = &self.environment;
        let mut reasons = Vec::new();
        if !e.cut.is_empty() {
            reasons.push(e.cut.clone());
        }
        if e.load > 0.5 * e.cpus as f64 {
            reasons.push(format!("the load was {} on {} CPUs before it began", e.load, e.cpus));
        }
        if e.steal_percent > 1.0 {
            reasons
                .push(format!("{:.1} % of the time was stolen by other guests", e.steal_percent));
        }
        if self.rows.iter().flat_map(|r| &r.systems).all(|c| c.samples.len() < 2) {
            reasons.push("every system ran once only, so nothing is known about the spread".into());
        }
        let spread = |c: &Cell| c.cycles().map_or(1.0, |s| s.max / s.min);
        let cells = self.rows.iter().flat_map(|r| &r.systems);
        let wide = cells.clone().filter(|c| spread(c) > 1.25).count();
        if wide > 0 {
            reasons.push(format!(
                "{wide} of {} medians have a spread of more than 25 %",
                cells.filter(|c| !c.samples.is_empty()).count()
            ));
        }
        reasons
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::stages::Stages;
    use crate::warm::Warm;

    const STAGES: Stages =
        Stages { receive: 30.0, parse: 10.0, lookup: 40.0, misses: 5.0, act: 40.0, idle: 5.0 };

    pub fn cell(system: &str, cycles: &[f64]) -> Cell {
        let sample = |c: &f64| Sample {
            packets: 1000,
            received: 1000,
            cpu_ns: 1_000_000,
            wall_ns: 2_000_000,
            cycles: *c,
            lost: 0,
            reordered: 1,
            cached: None,
            warm: None,
            changes: None,
            offloaded: None,
            host: None,
            stages: (system == "weft").then_some(STAGES),
            found: None,
            at_loads: vec![AtLoad {
                mpps: 2.0,
                loss: 0.01,
                latency_us: [1.0, *c, 9.0],
                middle_us: [0.9, 1.5],
            }],
            slices: [0; 2],
            took: 0.0,
        };
        Cell {
            system: system.into(),
            ceiling: system.starts_with("testpmd"),
            samples: cycles.iter().map(sample).collect(),
        }
    }

    pub fn results() -> Results {
        let systems = vec![
            cell("testpmd-io", &[30.0, 50.0, 40.0]),
            cell("ovs-emc", &[200.0, 300.0]),
            cell("ovs-native-plain", &[400.0]),
            cell("weft", &[125.0]),
            cell("testpmd-mac", &[]),
        ];
        let row = Row {
            case: "c <1>".into(),
            group: "c".into(),
            never_settles: false,
            size: Some(64),
            guests: None,
            role: Some(Role::Echo),
            source: "flows=1".into(),
            rules: [1, 1],
            paper: BTreeMap::from([("papers/002".into(), vec![4.8])]),
            systems,
        };
        let mut larger = row.clone();
        larger.size = Some(128);
        Results {
            experiment: "quick".into(),
            title: "t".into(),
            about: "a & b".into(),
            environment: Environment::default(),
            rows: vec![row, larger],
        }
    }

    #[test]
    fn medians_and_the_best() {
        let results = results();
        let row = &results.rows[0];
        let spread = row.systems[0].cycles().unwrap();
        assert_eq!(spread, Spread { min: 30.0, median: 40.0, max: 50.0 });
        assert_eq!(row.systems[1].cycles().unwrap().median, 250.0);
        assert_eq!(row.best(Cell::is_peer).unwrap().system, "ovs-emc");
        assert!(row.cell("testpmd-mac").is_none());
        let again = |system: &str| row.may_become_peer(row.cell(system).unwrap());
        assert!(again("ovs-emc") && !again("ovs-native-plain") && again("weft"));
        assert!(again("testpmd-io"));
        // Two runs: as far again on both sides; then one per cent of drift at least.
        let between = (40.0f64 / 30.0).ln() / 2.0 + 1.5f64.ln() / 2.0;
        assert!((results.drift() - between).abs() < 1e-9);
        let wide = row.systems[1].spread(0.1).unwrap();
        assert!((wide.min - 90.0).abs() < 1e-9 && (wide.max - 440.0).abs() < 1e-9, "{wide:?}");
        assert_eq!(results.noise().len(), 1);
        let mut row = row.clone();
        assert!(!row.guests_limit(&row.systems[0]));
        row.systems[0].samples[0].packets = 800;
        assert!(row.guests_limit(&row.systems[0]));
        row.role = Some(Role::Source);
        assert!(row.guests_limit(&row.systems[1]) && !row.guests_limit(&row.systems[0]));
        assert!(!row.guests_limit(&row.systems[4]));
    }

    #[test]
    fn a_peer_that_had_not_settled_makes_no_ratio() {
        let mut row = results().rows.remove(0);
        assert_eq!(row.peer_cycles(), Some(250.0));
        row.systems[2].samples[0].warm = Some(Warm { seconds: 3.0, settled: false });
        assert_eq!(row.peer_cycles(), Some(250.0), "not the best one");
        row.systems[1].samples[0].warm = Some(Warm { seconds: 3.0, settled: false });
        assert_eq!(row.peer_cycles(), None);
        row.never_settles = true;
        assert_eq!(row.peer_cycles(), Some(250.0));
    }

    #[test]
    fn later_runs_are_added() {
        let mut later = results();
        later.rows[1].case = "new".into();
        later.rows[0].systems.remove(0);
        let both = results().and(later);
        let runs: Vec<_> = both.rows[0].systems.iter().map(|c| c.samples.len()).collect();
        assert_eq!((both.rows.len(), runs), (3, vec![3, 4, 2, 2, 0]));
        assert!(!both.is_empty());
        let mut once = results();
        once.rows.iter_mut().flat_map(|r| &mut r.systems).for_each(|c| c.samples.truncate(1));
        assert!(once.noise().iter().any(|n| n.contains("once")));
    }
}
