//! Names that a search finds: no two source files of one name within a crate, and no name that
//! more than three types have that other files can see.

use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::path::Path;

/// Types of the workspace that may have one name.
const TYPES_PER_NAME_MAX: usize = 3;
/// Names that the language gives a file.
const EVERYWHERE: &[&str] = &["lib.rs", "main.rs", "mod.rs"];

/// Fails with every name that stands for too much.
pub fn check(root: &Path) -> Result<()> {
    let sources = crate::tidy::tracked(root)?.into_iter().filter(|f| is_source(f));
    let (mut files, mut types) = (Places::new(), Places::new());
    for file in sources {
        let place = file.display().to_string();
        let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let of_crate = file.iter().nth(1).map(|c| c.to_string_lossy()).unwrap_or_default();
        if !EVERYWHERE.contains(&name.as_str()) {
            files.entry(format!("{of_crate}: {name}")).or_default().push(place.clone());
        }
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else { continue };
        for name in text.lines().filter_map(visible_type) {
            types.entry(name.to_owned()).or_default().push(place.clone());
        }
    }
    let bad: Vec<_> = more_than(1, files).chain(more_than(TYPES_PER_NAME_MAX, types)).collect();
    if !bad.is_empty() {
        bail!("names:\n  {}", bad.join("\n  "));
    }
    println!("names: ok");
    Ok(())
}

/// Where each name is defined.
type Places = BTreeMap<String, Vec<String>>;

fn more_than(most: usize, all: Places) -> impl Iterator<Item = String> {
    let many = all.into_iter().filter(move |(_, places)| places.len() > most);
    many.map(|(name, places)| format!("{name}: {}", places.join(", ")))
}

fn is_source(file: &Path) -> bool {
    let parts: Vec<_> = file.iter().map(|p| p.to_string_lossy()).collect();
    parts.len() > 3
        && parts[0] == "crates"
        && parts[1] != "dpdk-sys"
        && parts[2] == "src"
        && file.extension().is_some_and(|e| e == "rs")
}

/// The name of a structure or enumeration that this line makes visible outside of its file.
fn visible_type(line: &str) -> Option<&str> {
    let line = line.trim_start().strip_prefix("pub")?;
    let line = line.strip_prefix('(').map_or(Some(line), |l| l.split_once(')').map(|(_, l)| l))?;
    let line = line.trim_start();
    let name = line.strip_prefix("struct ").or_else(|| line.strip_prefix("enum "))?;
    name.split(|c: char| !c.is_alphanumeric()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_types_are_found() {
        assert_eq!(visible_type("pub(crate) struct Table<'a> {"), Some("Table"));
        assert_eq!(visible_type("    pub enum Kind {"), Some("Kind"));
        assert_eq!(visible_type("struct Table {"), None);
        assert_eq!(visible_type("pub fn table() {"), None);
    }

    #[test]
    fn what_stands_for_too_much_is_named() {
        let places = Places::from([("A".into(), vec!["x".into(), "y".into()])]);
        assert_eq!(more_than(1, places.clone()).next().as_deref(), Some("A: x, y"));
        assert_eq!(more_than(2, places).next(), None);
    }
}
