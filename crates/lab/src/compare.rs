//! Two results side by side: what became faster, what slower, what is within the spread.

use crate::results::{Results, Row, Spread};
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The table of what both folders (or files) have.
///
/// # Errors
/// One of them is not a result, or they have nothing in common.
pub fn compare(old: &Path, new: &Path) -> Result<String> {
    let (old, new) = (load(old)?, load(new)?);
    let mut out = String::from(
        "| experiment, case | system | cycles before | after | change |\n|---|---|--:|--:|---|\n",
    );
    let mut lines = 0;
    for a in &old {
        let Some(b) = new.iter().find(|b| b.experiment == a.experiment) else { continue };
        for row in &a.rows {
            let Some(other) = b.rows.iter().find(|r| r.case == row.case) else { continue };
            lines += rows(&mut out, &a.experiment, (row, a.drift()), (other, b.drift()));
        }
    }
    let (same, all) = (out.matches("within the spread |").count(), lines);
    let _ = writeln!(out, "\n{same} of {all} are within the spread of both.");
    if lines == 0 {
        bail!("these two results have no case and system in common");
    }
    Ok(out)
}

/// Rows and their results' drift.
fn rows(out: &mut String, experiment: &str, old: (&Row, f64), new: (&Row, f64)) -> usize {
    let mut lines = 0;
    for cell in &old.0.systems {
        let after = new.0.cell(&cell.system);
        let Some((a, b)) = cell.spread(old.1).zip(after.and_then(|c| c.spread(new.1))) else {
            continue;
        };
        let known = cell.samples.len().min(after.map_or(0, |c| c.samples.len())) > 1;
        let text = |s: &Spread| format!("{:.1} ({:.1} to {:.1})", s.median, s.min, s.max);
        let change = 100.0 * (b.median / a.median - 1.0);
        let verdict = match change {
            _ if a.overlaps(&b) => "within the spread",
            _ if !known => "one run only: no spread is known",
            c if c < 0.0 => "faster",
            _ => "slower",
        };
        let (case, system) = (&old.0.case, &cell.system);
        let _ = writeln!(
            out,
            "| {experiment}, {case} | {system} | {} | {} | {change:+.1} %, {verdict} |",
            text(&a),
            text(&b)
        );
        lines += 1;
    }
    lines
}

/// The results of a folder, or of one file.
///
/// # Errors
/// There are none, or one cannot be read.
pub fn load(path: &Path) -> Result<Vec<Results>> {
    let mut files: Vec<PathBuf> = match path.is_dir() {
        true => path.read_dir()?.flatten().map(|e| e.path()).collect(),
        false => vec![path.into()],
    };
    files.retain(|f| f.extension().is_some_and(|e| e == "json"));
    files.sort();
    if files.is_empty() {
        bail!("{}: no results here", path.display());
    }
    let read = |f: &PathBuf| {
        let text = std::fs::read_to_string(f)?;
        serde_json::from_str(&text).context("not a result of this lab")
    };
    files.iter().map(|f| read(f).with_context(|| f.display().to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{cell, results};

    #[test]
    fn changes_are_judged_by_the_spread() {
        let made = tempfile::tempdir().unwrap();
        let dir = made.path();
        let (a, mut b) = (results(), results());
        b.rows[0].systems[1] = cell("ovs-emc", &[1310.0, 1320.0]);
        b.rows[0].systems[3] = cell("weft", &[10.0]);
        // What nothing is known of: a machine that drifts much hides it.
        b.rows[0].systems[0] = cell("testpmd-io", &[41.0, 41.2]);
        let file = |name: &str, results: &Results| {
            let path = dir.join(name);
            std::fs::write(&path, serde_json::to_string(results).unwrap()).unwrap();
            path
        };
        let text = compare(&file("a.json", &a), &file("b.json", &b)).unwrap();
        let line = |system: &str| {
            text.lines().find(|l| l.contains(&format!("| {system} |"))).unwrap().to_string()
        };
        assert!(line("weft").contains("-92.0 %, one run only"), "{text}");
        assert!(line("ovs-emc").contains("+426.0 %, slower"), "{text}");
        assert!(line("testpmd-io").contains("within the spread"), "{text}");
        assert!(text.contains(" are within the spread of both."));
        assert!(compare(&dir.join("a.json"), &dir.join("c")).is_err());
    }
}
