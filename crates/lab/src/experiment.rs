//! Experiments as files: lab/experiments/NAME.toml.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::fmt::Write;

const FILES: &[(&str, &str)] = &[
    ("generator", include_str!("../../../lab/experiments/generator.toml")),
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
    /// The switch's rules; testpmd has none.
    #[serde(default)]
    pub rules: Rules,
}

/// Which rules.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Their shape.
    #[serde(default)]
    pub kind: RuleKind,
    /// How many.
    #[serde(default)]
    pub count: u32,
}

/// Shapes of rules. They fit the generator's addresses (lab/generator/README.md).
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum RuleKind {
    /// From port 1 to port 2.
    #[default]
    Port,
    /// Disjoint /24 destinations: one mask.
    L3,
    /// Destination MACs: one mask.
    Dmac,
}

impl Rules {
    /// The text that `ovs-ofctl add-flows` reads.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for i in 0..self.count {
            let [a, b, c, _] = (0x1000_0000 + (i << 8)).to_be_bytes();
            let [_, x, y, z] = i.to_be_bytes();
            let line = match self.kind {
                RuleKind::Port => break,
                RuleKind::L3 => format!("ip,nw_dst={a}.{b}.{c}.0/24"),
                RuleKind::Dmac => format!("dl_dst=02:00:00:{x:02x}:{y:02x}:{z:02x}"),
            };
            let _ = writeln!(text, "priority=10,{line},actions=output:2");
        }
        if self.kind == RuleKind::Port {
            text.push_str("in_port=1,actions=output:2\n");
        }
        text
    }
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

    #[test]
    fn rules_are_the_networks_that_the_generator_sends_to() {
        let text = Rules { kind: RuleKind::L3, count: 1000 }.text();
        assert_eq!(text.lines().count(), 1000);
        assert_eq!(
            text.lines().last(),
            Some("priority=10,ip,nw_dst=16.3.231.0/24,actions=output:2")
        );
        let text = Rules { kind: RuleKind::Dmac, count: 258 }.text();
        assert!(text.ends_with("dl_dst=02:00:00:00:01:01,actions=output:2\n"));
        assert_eq!(Rules::default().text(), "in_port=1,actions=output:2\n");
    }
}
