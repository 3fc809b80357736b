//! What a running switch is like, for everything that shows it: two looks at its state tree
//! (`weft/state`), and what happened in between.

mod ask;
mod between;
mod tree;

pub use ask::Connection;
pub use between::{Core, Drop, FlowView, Guest, Port, View};
pub use tree::{Port as PortState, QueueState, Tree};

use crate::dirs::Dirs;
use anyhow::{Context, Result};

/// Parts of the tree that a view is made of.
const PARTS: [&str; 7] = ["switch", "cores", "caches", "ports", "guests", "drops", "memory"];

/// Looks at the switch that runs here; `flows`: at its megaflows too, which takes the control
/// thread some milliseconds when there are many.
pub fn look(dirs: &Dirs, flows: bool) -> Result<Tree> {
    let mut paths = PARTS.to_vec();
    if flows {
        paths.push("megaflows");
    }
    let text = Connection::open(dirs)?.ask("weft/state", &paths)?;
    serde_json::from_str(&text).context("the switch's answer is not the tree that was expected")
}
