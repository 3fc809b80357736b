//! Results on disk: bench/results/DATE-MACHINE-COMMIT/ with NAME.json and NAME.md of each
//! experiment, and one page.

use crate::compare::load;
use crate::page::page;
use crate::results::Results;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Writes one experiment's results, and the page anew; prints the table; returns the folder. With
/// `add` the samples of an earlier run in the same folder stay.
///
/// # Errors
/// The folder cannot be written.
pub fn write(root: &Path, mut results: Results, add: bool) -> Result<PathBuf> {
    let folder = root.join("bench/results").join(results.environment.folder());
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let file = |ending: &str| folder.join(format!("{}.{ending}", results.experiment));
    let (json, md) = (file("json"), file("md"));
    if add && json.exists() {
        results = load(&json)?.remove(0).and(results);
    }
    let table = results.markdown();
    fs::write(md, &table)?;
    fs::write(json, serde_json::to_string_pretty(&results)? + "\n")?;
    write_page(&folder)?;
    println!("{table}");
    Ok(folder)
}

/// Writes the page of a folder from all results in it.
///
/// # Errors
/// There are none, or the page cannot be written.
pub fn write_page(folder: &Path) -> Result<()> {
    fs::write(folder.join("index.html"), page(&load(folder)?)?)
        .with_context(|| folder.display().to_string())
}
