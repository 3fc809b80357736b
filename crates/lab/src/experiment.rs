//! Experiments as files: lab/experiments/NAME.toml.

use crate::rules::Rules;
use anyhow::{Context, Result, bail};
use serde::Deserialize;

const FILES: &[(&str, &str)] = &[
    ("generator", include_str!("../../../lab/experiments/generator.toml")),
    ("cliffs", include_str!("../../../lab/experiments/cliffs.toml")),
    ("p2p", include_str!("../../../lab/experiments/p2p.toml")),
];

/// One experiment: cases that each system goes through.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// What it shows.
    pub title: String,
    /// Names of [`crate::system`].
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
    /// Seconds before those that count.
    #[serde(default = "one")]
    pub warm: f64,
    /// The switch's rules; testpmd has none.
    #[serde(default)]
    pub rules: Rules,
}

fn one() -> f64 {
    1.0
}

impl Experiment {
    /// Names that [`Experiment::load`] knows, with titles.
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
        toml::from_str(text).with_context(|| format!("lab/experiments/{name}.toml"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_loads_and_names_known_systems() {
        for (name, title) in Experiment::all().unwrap() {
            assert!(!title.is_empty());
            for system in Experiment::load(name).unwrap().systems {
                crate::system::System::named(&system).unwrap();
            }
        }
        assert!(Experiment::load("none").unwrap_err().to_string().contains("p2p"));
    }
}
