//! Experiments as files: lab/experiments/NAME.toml.

use crate::rules::Rules;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../lab/experiments/", $name, ".toml")))),*]
    };
}

const FILES: &[(&str, &str)] = files!["generator" "quick" "000-deployment" "001-scaling" "002-p2p" "002-pvp" "003-l2" "003-vxlan" "cliffs" "latency"];

/// One experiment: cases that each system goes through.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// What it shows.
    pub title: String,
    /// Names and groups of [`crate::system`].
    pub systems: Vec<String>,
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
    /// One row for each of these packet sizes (bytes on the wire), which are the points of a line in the plot.
    #[serde(default)]
    pub sizes: Vec<u32>,
    /// Seconds before those that count.
    #[serde(default = "one")]
    pub warm: f64,
    /// The switch's rules; testpmd has none.
    #[serde(default)]
    pub rules: Rules,
    /// Guests that the rules deliver to; none: port to port.
    #[serde(default)]
    pub guests: u32,
    /// VXLAN between the generator's ports and the guests.
    #[serde(default)]
    pub tunnel: bool,
    /// What guests do with packets.
    #[serde(default)]
    pub role: Role,
    /// Packed virtqueues instead of split ones.
    #[serde(default)]
    pub packed: bool,
    /// Rule changes per second meanwhile.
    #[serde(default)]
    pub churn: u32,
    /// Search for the rates without loss, and measure latency.
    #[serde(default)]
    pub search: bool,
    /// The paper's figures, Mpps: one, or one per size.
    #[serde(default)]
    pub paper: BTreeMap<String, Vec<f64>>,
    /// The packet size of this row, when it is one of several.
    #[serde(skip)]
    pub size: Option<u32>,
}

/// What a guest does.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sends every packet back (PVP).
    #[default]
    Echo,
    /// Counts and drops.
    Sink,
}

fn one() -> f64 {
    1.0
}

impl Case {
    /// One case per size.
    fn expand(&self) -> Vec<Case> {
        if self.sizes.is_empty() {
            return vec![self.clone()];
        }
        let of_size = |(i, size): (usize, &u32)| Case {
            name: format!("{}, {size} B", self.name),
            source: format!("{},size={size}", self.source),
            paper: self.paper.iter().map(|(who, v)| (who.clone(), vec![v[i]])).collect(),
            size: Some(*size),
            ..self.clone()
        };
        self.sizes.iter().enumerate().map(of_size).collect()
    }

    /// The name without the size: what the points of one line have in common.
    pub fn group(&self) -> &str {
        match self.size {
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
        FILES.iter().map(|(name, _)| Ok((*name, Self::load(name)?.title))).collect()
    }

    /// The experiment of that name.
    ///
    /// # Errors
    /// There is none, or its file is wrong; says which ones there are.
    pub fn load(name: &str) -> Result<Self> {
        let Some((_, text)) = FILES.iter().find(|(n, _)| *n == name) else {
            let known: Vec<_> = FILES.iter().map(|(n, _)| *n).collect();
            bail!("no experiment '{name}'; there are: {}", known.join(", "));
        };
        Self::parse(text).with_context(|| format!("lab/experiments/{name}.toml"))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut experiment: Experiment = toml::from_str(text)?;
        for case in &experiment.cases {
            let points = case.sizes.len().max(1);
            let fits = |v: &Vec<f64>| v.len() == points;
            ensure!(
                case.paper.values().all(fits),
                "case '{}': one figure per size is expected",
                case.name
            );
            ensure!(case.guests <= 64, "case '{}': at most 64 guests are possible", case.name);
        }
        experiment.cases = experiment.cases.iter().flat_map(Case::expand).collect();
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
            let experiment = Experiment::load(name).unwrap();
            crate::system::System::choose(&experiment.systems).unwrap();
            for case in &experiment.cases {
                case.rules.build().unwrap();
            }
        }
        assert!(Experiment::load("none").unwrap_err().to_string().contains("cliffs"));
    }

    #[test]
    fn a_case_becomes_one_row_per_size() {
        let text = "title = \"t\"\nsystems = []\n[[case]]\nname = \"a, b\"\nsource = \"flows=1\"\nsizes = [64, 128]\n\
                    paper = { who = [3.0, 2.0] }\n";
        let cases = Experiment::parse(text).unwrap().cases;
        assert_eq!(cases.len(), 2);
        assert_eq!((cases[1].name.as_str(), cases[1].group()), ("a, b, 128 B", "a, b"));
        assert_eq!(
            (cases[1].source.as_str(), &cases[1].paper["who"]),
            ("flows=1,size=128", &vec![2.0])
        );
        assert!(Experiment::parse(&text.replace("[3.0, 2.0]", "[3.0]")).is_err());
    }
}
