//! What a running switch is like, for everything that shows it: two looks at its state tree
//! (`weft/state`), and what happened in between.

mod ask;
mod between;
mod tree;
mod waiting;

pub use ask::Connection;
pub use between::{Core, Drop, FlowView, Guest, Port, View};
pub use tree::{Port as PortState, QueueState, Tree};

pub use waiting::waited_ns;

use crate::dirs::Dirs;
use anyhow::{Context, Result};
use std::path::Path;

/// Parts of the tree that a view is made of.
const PARTS: [&str; 8] =
    ["switch", "cores", "caches", "ports", "bonds", "guests", "drops", "memory"];

/// Looks at the switch that runs here; `flows`: at its megaflows too, which takes the control
/// thread some milliseconds when there are many.
pub fn look(dirs: &Dirs, flows: bool) -> Result<Tree> {
    let mut paths = PARTS.to_vec();
    if flows {
        paths.push("megaflows");
    }
    let text = Connection::open(dirs)?.ask("weft/state", &paths)?;
    let mut tree: Tree = serde_json::from_str(&text)
        .context("the switch's answer is not the tree that was expected")?;
    for (core, ns) in waited_ns(Path::new("/proc"), tree.switch.pid) {
        if let Some(c) = tree.cores.get_mut(&core.to_string()) {
            c.waited_ns = Some(ns);
        }
    }
    Ok(tree)
}
