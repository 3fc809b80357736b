//! Experiments as files: lab/experiments/NAME.toml.

use crate::rules::Rules;
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../lab/experiments/", $name, ".toml")))),*]
    };
}

const FILES: &[(&str, &str)] = files!["generator" "quick" "000-deployment" "001-scaling" "002-p2p" "002-offload" "002-pvp" "003-l2" "003-vxlan" "003-offload" "004-copy" "cliffs" "latency" "guests" "vxlan" "cores" "conntrack"];

/// One experiment: cases that each system goes through.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// What it shows.
    pub title: String,
    /// What a reader of its results has to know.
    #[serde(default)]
    pub about: String,
    /// Names and groups of `crate::system`.
    pub systems: Vec<String>,
    /// Systems that only a full run has, too.
    #[serde(default)]
    pub full_systems: Vec<String>,
    /// Times that each system goes through each case, unless something else is asked for.
    #[serde(default = "three")]
    pub repetitions: usize,
    /// Seconds that count, per run, unless something else is asked for.
    #[serde(default = "one")]
    pub seconds: f64,
    /// Whether OVS is built for this machine if it was not yet; else it is left out.
    #[serde(default = "yes")]
    pub build: bool,
    /// The rows.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
}

/// One row of the table: a traffic and a rule set.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// As the table says it.
    pub name: String,
    /// The generator's arguments.
    pub source: String,
    /// The rows that it stands for.
    #[serde(flatten)]
    pub points: Points,
    /// Left to full runs.
    #[serde(default)]
    pub full: bool,
    /// What passes before the seconds that count.
    #[serde(flatten)]
    pub warming: Warming,
    /// The switch's rules; testpmd has none.
    #[serde(default)]
    pub rules: Rules,
    /// Guests that the rules deliver to; none: port to port.
    #[serde(default)]
    pub guests: u32,
    /// Virtual functions of the source's adapter (`hw=` in `source`) that the rules deliver to;
    /// none: port to port.
    #[serde(default)]
    pub functions: u32,
    /// Rules per second that come to deliver to another function: MACs that move.
    #[serde(default)]
    pub moves: u32,
    /// Cores that forward, each with a receive queue of the source of its own.
    #[serde(default = "one_core")]
    pub cores: usize,
    /// Where VXLAN ends or begins.
    #[serde(default)]
    pub tunnel: Tunnel,
    /// What its guests are like.
    #[serde(flatten)]
    pub guest: Guest,
    /// MTU of all ports; 0: the usual one.
    #[serde(default)]
    pub mtu: u32,
    /// Rule changes per second meanwhile.
    #[serde(default)]
    pub churn: u32,
    /// Search for the rates without loss, and measure latency at parts of them.
    #[serde(default)]
    pub search: bool,
    /// Mpps at which latency is measured, the same for every system.
    #[serde(default)]
    pub loads: Vec<f64>,
    /// The paper's figures, Mpps: one, or one per size.
    #[serde(default)]
    pub paper: BTreeMap<String, Vec<f64>>,
}

/// The rows that a case stands for: one per packet size or number of guests, or itself.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Points {
    /// One row for each of these packet sizes (bytes on the wire), which are the points of a line
    /// in the plot.
    #[serde(default)]
    pub sizes: Vec<u32>,
    /// Packet sizes of the experiment that a run without `--full` has; empty: all.
    #[serde(default)]
    pub short_sizes: Vec<u32>,
    /// One row for each number of guests, likewise; `{guests}` in `source` is that number, and
    /// there are at least as many rules.
    #[serde(default)]
    pub guest_counts: Vec<u32>,
    /// Numbers of guests of the experiment that a run without `--full` has; empty: all.
    #[serde(default)]
    pub short_guest_counts: Vec<u32>,
    /// The packet size of this row, when it is one of several.
    #[serde(skip)]
    pub size: Option<u32>,
    /// The number of guests of this row, when it is one of several.
    #[serde(skip)]
    pub count: Option<u32>,
}

/// How a system gets ready for the seconds that count.
#[derive(Clone, Debug, Deserialize)]
pub struct Warming {
    /// Seconds at most before those that count; they begin when caches do not grow any more
    /// ([`crate::warm`]).
    #[serde(default = "three_seconds")]
    pub warm: f64,
    /// Seconds that pass before caches are looked at: the switch gets to know the connections
    /// meanwhile.
    #[serde(default)]
    pub warm_least: f64,
    /// The traffic has new flows all the time, so no cache ever settles, and what is compared is
    /// that state. Elsewhere a ratio to a peer is printed only if the peer's caches had settled
    /// before counting.
    #[serde(default)]
    pub never_settles: bool,
}

/// What all guests of a case are like.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Guest {
    /// What guests do with packets.
    #[serde(default)]
    pub role: Role,
    /// Packed virtqueues instead of split ones.
    #[serde(default)]
    pub packed: bool,
    /// Pages of the guests' memory; guests that send have hugepages.
    #[serde(default)]
    pub pages: Pages,
}

/// Which of the generator's ports are behind a VXLAN tunnel.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Tunnel {
    /// No port is behind a tunnel.
    #[default]
    None,
    /// Both: what is beyond are guests.
    Both,
    /// The source: packets come by the tunnel and leave without.
    Source,
    /// The sink: packets leave by the tunnel.
    Sink,
}

impl Tunnel {
    /// As lab/systems/switch.sh names it.
    pub fn name(self) -> &'static str {
        match self {
            Tunnel::None => "none",
            Tunnel::Both => "both",
            Tunnel::Source => "source",
            Tunnel::Sink => "sink",
        }
    }
}

/// Pages of a guest's memory.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Pages {
    /// 2 MiB, as guests should have.
    #[default]
    Huge,
    /// 4 KiB.
    Small,
}

impl Pages {
    /// As lab/guests/bare.c names them.
    pub fn name(self) -> &'static str {
        match self {
            Pages::Huge => "huge",
            Pages::Small => "small",
        }
    }
}

/// What a guest does.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sends every packet back (PVP).
    #[default]
    Echo,
    /// As echo, but the switch passes what comes back on to the next guest; what the last one sends
    /// leaves.
    Chain,
    /// Counts and drops.
    Sink,
    /// Sends the generator's packets; no port of the switch makes any.
    Source,
}

impl Role {
    /// As the programs of lab/guests name it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Echo | Role::Chain => "echo",
            Role::Sink => "sink",
            Role::Source => "source",
        }
    }
}

fn one() -> f64 {
    1.0
}

fn one_core() -> usize {
    1
}

fn three_seconds() -> f64 {
    3.0
}

fn three() -> usize {
    3
}

fn yes() -> bool {
    true
}

impl Case {
    /// One case per size or number of guests.
    fn expand(&self) -> Vec<Case> {
        if !self.points.guest_counts.is_empty() {
            return self.points.guest_counts.iter().map(|n| self.with_guests(*n)).collect();
        }
        if self.points.sizes.is_empty() {
            return vec![self.clone()];
        }
        let of_size = |(i, size): (usize, &u32)| Case {
            name: format!("{}, {size} B", self.name),
            source: format!("{},size={size}", self.source),
            paper: self.paper.iter().map(|(who, v)| (who.clone(), vec![v[i]])).collect(),
            points: Points { size: Some(*size), ..self.points.clone() },
            ..self.clone()
        };
        self.points.sizes.iter().enumerate().map(of_size).collect()
    }

    fn with_guests(&self, n: u32) -> Case {
        Case {
            name: format!("{}, {n} guest{}", self.name, if n == 1 { "" } else { "s" }),
            source: self.source.replace("{guests}", &n.to_string()),
            rules: Rules { count: n.max(self.rules.count), ..self.rules.clone() },
            guests: n,
            points: Points { count: Some(n), ..self.points.clone() },
            ..self.clone()
        }
    }

    /// What a run is expected to take, with `seconds` that count: for saying it beforehand.
    pub fn expected_seconds(&self, seconds: f64) -> f64 {
        let start = 1.0 + 0.1 * f64::from(self.guests) + f64::from(self.rules.count) / 2e4;
        let search = if self.search { 30.0 * seconds } else { 0.0 };
        start
            + self.warming.warm_least
            + self.warming.warm.min(2.0)
            + (1 + self.loads.len()) as f64 * seconds
            + search
    }

    /// True if the case needs a source whose rate can be set.
    pub fn sets_rate(&self) -> bool {
        self.search || !self.loads.is_empty()
    }

    /// True if a run that is not full has this case.
    fn in_short(&self) -> bool {
        let has = |short: &[u32], n: u32| short.is_empty() || short.contains(&n);
        let size = self.points.size.is_none_or(|n| has(&self.points.short_sizes, n));
        !self.full
            && size
            && self.points.count.is_none_or(|n| has(&self.points.short_guest_counts, n))
    }

    /// The name without size or number of guests: what the points of one line have in common.
    pub fn group(&self) -> &str {
        match self.points.size.or(self.points.count) {
            Some(_) => self.name.rsplit_once(", ").map_or(self.name.as_str(), |(group, _)| group),
            None => &self.name,
        }
    }
}

impl Experiment {
    /// Names that [`Experiment::load`] knows, with titles.
    ///
    /// # Errors
    /// A file is wrong.
    pub fn all() -> Result<Vec<(&'static str, String)>> {
        FILES.iter().map(|(name, _)| Ok((*name, Self::load(name, false)?.title))).collect()
    }

    /// The experiment of that name.
    ///
    /// # Errors
    /// There is none, or its file is wrong; says which ones there are.
    pub fn load(name: &str, full: bool) -> Result<Self> {
        let Some((_, text)) = FILES.iter().find(|(n, _)| *n == name) else {
            let known: Vec<_> = FILES.iter().map(|(n, _)| *n).collect();
            bail!("no experiment '{name}'; there are: {}", known.join(", "));
        };
        Self::parse(text, full).with_context(|| format!("lab/experiments/{name}.toml"))
    }

    fn parse(text: &str, full: bool) -> Result<Self> {
        let mut experiment: Experiment = toml::from_str(text)?;
        for case in &experiment.cases {
            let points = case.points.sizes.len().max(1);
            let fits = |v: &Vec<f64>| v.len() == points;
            ensure!(
                case.paper.values().all(fits),
                "case '{}': one figure per size is expected",
                case.name
            );
            let known = case.points.short_sizes.iter().all(|s| case.points.sizes.contains(s));
            ensure!(known, "case '{}': short_sizes are some of the sizes", case.name);
            let known =
                case.points.short_guest_counts.iter().all(|n| case.points.guest_counts.contains(n));
            ensure!(known, "case '{}': short_guest_counts are some of guest_counts", case.name);
            let one = case.points.sizes.is_empty() || case.points.guest_counts.is_empty();
            ensure!(one, "case '{}': sizes or guest_counts, not both", case.name);
            let guests = case.points.guest_counts.iter().copied().max().unwrap_or(case.guests);
            let sends = case.guest.role == Role::Source;
            ensure!(!sends || guests > 0, "case '{}': who is to send?", case.name);
            let huge = case.guest.pages == Pages::Huge || !sends;
            ensure!(huge, "case '{}': guests that send have hugepages", case.name);
            let ends = matches!(case.tunnel, Tunnel::Source | Tunnel::Sink);
            ensure!(!ends || guests == 0, "case '{}': guests are behind both ports", case.name);
            ensure!((1..=16).contains(&case.cores), "case '{}': 1 to 16 cores forward", case.name);
            let spare = case.cores == 1 || (guests == 0 && !case.sets_rate());
            ensure!(spare, "case '{}': several cores forward from port to port only", case.name);
            let adapter = case.functions == 0 || case.source.contains(",hw=");
            ensure!(adapter, "case '{}': functions are of an adapter", case.name);
            let one = case.functions == 0 || (guests == 0 && case.functions <= 16);
            ensure!(one, "case '{}': guests, or at most 16 functions", case.name);
            let moves = case.moves == 0 || (case.functions > 1 && case.churn == 0);
            ensure!(moves, "case '{}': MACs move between functions", case.name);
            let sane = case.loads.iter().all(|mpps| (0.01..=100.0).contains(mpps));
            ensure!(sane, "case '{}': loads are Mpps, 0.01 to 100", case.name);
            ensure!(guests <= 64, "case '{}': at most 64 guests are possible", case.name);
        }
        experiment.cases = experiment.cases.iter().flat_map(Case::expand).collect();
        if full {
            let more = std::mem::take(&mut experiment.full_systems);
            experiment.systems.extend(more);
        } else {
            experiment.cases.retain(Case::in_short);
        }
        Ok(experiment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_loads_and_names_known_systems_and_possible_rules() {
        for (name, title) in Experiment::all().unwrap() {
            assert!(!title.is_empty());
            let experiment = Experiment::load(name, true).unwrap();
            let systems = crate::system::System::choose(&experiment.systems).unwrap();
            if systems.iter().any(|s| s.is_weft()) {
                let ovs = systems.iter().filter(|s| s.is_ovs() && !s.offloads()).count();
                assert_eq!(ovs, 8, "{name}: the peer is the best of all builds and settings");
            }
            for case in &experiment.cases {
                case.rules.build().unwrap();
            }
            let short = Experiment::load(name, false).unwrap();
            assert!((1..=experiment.cases.len()).contains(&short.cases.len()), "{name}");
        }
        assert!(Experiment::load("none", true).unwrap_err().to_string().contains("cliffs"));
    }

    #[test]
    fn a_case_becomes_one_row_per_size() {
        let text = "title = \"t\"\nsystems = []\n[[case]]\nname = \"a, b\"\nsource = \"flows=1\"\nsizes = [64, 128]\n\
                    paper = { who = [3.0, 2.0] }\n";
        let cases = Experiment::parse(text, true).unwrap().cases;
        assert_eq!(cases.len(), 2);
        assert_eq!((cases[1].name.as_str(), cases[1].group()), ("a, b, 128 B", "a, b"));
        assert_eq!(
            (cases[1].source.as_str(), &cases[1].paper["who"]),
            ("flows=1,size=128", &vec![2.0])
        );
        assert!(Experiment::parse(&text.replace("[3.0, 2.0]", "[3.0]"), true).is_err());
        let short = |line: &str| Experiment::parse(&format!("{text}{line}\n"), false);
        assert_eq!(short("short_sizes = [128]").unwrap().cases[0].points.size, Some(128));
        assert!(short("short_sizes = [256]").is_err());
        assert!(short("full = true").unwrap().cases.is_empty());
        assert!(short("role = \"source\"").is_err());
        let sends = "guests = 1\nrole = \"source\"";
        assert!(short(sends).is_ok() && short(&format!("{sends}\npages = \"small\"")).is_err());
        assert!(short("guest_counts = [1]").is_err());
        assert!(short("pagse = \"small\"").is_err(), "an unknown field is a mistake");
        assert!(short("cores = 2\nguests = 1").is_err());
        assert!(short("loads = [0.0]").is_err());
        assert!(short("functions = 8").is_err() && short("moves = 100").is_err());
        assert!(short("loads = [2.0]").unwrap().cases[1].sets_rate());
        let text = "title = \"t\"\nsystems = []\n[[case]]\nname = \"a\"\nsource = \"flows={guests}\"\n\
                    guest_counts = [1, 8]\nshort_guest_counts = [8]\n";
        let cases = Experiment::parse(text, true).unwrap().cases;
        assert_eq!((cases[0].name.as_str(), cases[0].group()), ("a, 1 guest", "a"));
        let [case] = &Experiment::parse(text, false).unwrap().cases[..] else { panic!("one case") };
        assert_eq!((case.source.as_str(), case.guests, case.rules.count), ("flows=8", 8, 8));
        let more = format!("{text}rules = {{ kind = \"l3\", count = 1000 }}\n");
        assert_eq!(Experiment::parse(&more, false).unwrap().cases[0].rules.count, 1000);
    }
}
