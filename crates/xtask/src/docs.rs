//! What the pages say about the code has to be there: files, modules, types and functions that
//! ARCHITECTURE.md names, and the pages that pages link to and code names. Their lines have at most
//! 100 columns.

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Columns of a line of prose, as of code (rustfmt.toml). Rows of tables and code may be longer.
const LINE_COLUMNS_MAX: usize = 100;

/// Fails with every name that ARCHITECTURE.md has and the tree has not, every broken link between
/// pages, and every long line.
pub fn check(root: &Path) -> Result<()> {
    let files = tracked(root)?;
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md"))?;
    let mut bad = Vec::new();
    for name in quoted(&text).filter(|name| !is_there(root, &files, name)) {
        bad.push(format!("ARCHITECTURE.md names `{name}`, which is not in the tree"));
    }
    for page in files.iter().filter(|f| f.extension().is_some_and(|e| e == "md")) {
        let text = std::fs::read_to_string(root.join(page))?;
        let folder = page.parent().unwrap_or(Path::new(""));
        for link in links(&text).filter(|link| !root.join(folder).join(link).exists()) {
            bad.push(format!("{}: the link to {link} leads nowhere", page.display()));
        }
        if !page.starts_with("bench") {
            bad.extend(long_lines(&text).map(|n| format!("{}:{n} is too long", page.display())));
        }
    }
    for file in files.iter().filter(|f| is_code(f)) {
        let text = std::fs::read_to_string(root.join(file))?;
        for page in pages(&text).filter(|page| !root.join(page).exists()) {
            bad.push(format!("{} names {page}, which is not there", file.display()));
        }
    }
    if !bad.is_empty() {
        bail!("docs:\n  {}", bad.join("\n  "));
    }
    println!("docs: ok");
    Ok(())
}

/// What stands between single backquotes and looks like a file, or like a path or a name of Rust.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |s: &&str| {
        let plain = s.chars().all(|c| c.is_alphanumeric() || "_-:/.".contains(c));
        let rust = s.contains("::") || s.contains('_') || s.contains(char::is_uppercase);
        plain && (rust || s.contains('/') || s.ends_with(".rs"))
    };
    text.split("```").step_by(2).flat_map(|t| t.split('`').skip(1).step_by(2)).filter(is_name)
}

/// True if there is a file or folder of this name, or code that has every part of the path as a
/// name.
fn is_there(root: &Path, files: &[PathBuf], name: &str) -> bool {
    if name.contains('/') || name.ends_with(".rs") {
        let wanted = Path::new(name.trim_end_matches('/'));
        return files.iter().any(|f| f.ancestors().any(|a| a.ends_with(wanted)));
    }
    let (path, last) = name.rsplit_once("::").unwrap_or(("", name));
    let first = path.split("::").next().unwrap_or("");
    let folder = Path::new("crates").join(first).join("src");
    let is_crate = !first.is_empty() && files.iter().any(|f| f.starts_with(&folder));
    let within = if is_crate { folder } else { PathBuf::from("crates") };
    let is_module = |f: &&PathBuf| {
        f.file_stem().is_some_and(|s| s == last) || f.components().any(|c| c.as_os_str() == last)
    };
    let code = || {
        files.iter().filter(|f| f.starts_with(&within) && f.extension().is_some_and(|e| e == "rs"))
    };
    code().any(|f| is_module(&f))
        || code().any(|f| std::fs::read_to_string(root.join(f)).is_ok_and(|t| defines(&t, last)))
}

/// True if the text defines this name: as a function, type, trait, constant, module or variant.
fn defines(text: &str, name: &str) -> bool {
    let kinds = ["fn ", "struct ", "enum ", "trait ", "const ", "static ", "mod ", "type "];
    text.lines().any(|line| {
        let line = line.trim_start();
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let kind = |k: &str| {
            line.split_once(k).is_some_and(|(_, r)| r.strip_prefix(name).is_some_and(ends))
        };
        kinds.iter().any(|k| kind(k))
            || line.strip_prefix(name).is_some_and(|r| r.starts_with([',', '(', ' ', '{']))
    })
}

/// Numbers of the lines of prose that are too long.
fn long_lines(text: &str) -> impl Iterator<Item = usize> {
    let prose = |l: &str| !l.starts_with('|') && !l.starts_with("    ");
    let long = move |l: &str| prose(l) && l.chars().count() > LINE_COLUMNS_MAX;
    (1..).zip(text.lines()).filter(move |(_, l)| long(l)).map(|(n, _)| n)
}

/// Targets of links to files of the tree.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let files = targets.filter(|t| !t.contains("://") && !t.starts_with('#') && !t.contains(' '));
    files.map(|t| t.split('#').next().unwrap_or(t)).filter(|t| !t.is_empty())
}

fn is_code(file: &Path) -> bool {
    file.extension().is_some_and(|e| ["rs", "c", "h", "sh", "py", "toml"].iter().any(|c| e == *c))
}

/// Pages that a text names by their path from the root.
fn pages(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_alphanumeric() || "_-./".contains(c)));
    words.filter(|w| w.starts_with("docs/") && w.ends_with(".md"))
}

fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let out = Command::new("git").args(["ls-files"]).current_dir(root).output()?;
    Ok(String::from_utf8(out.stdout)?.lines().map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_words() {
        let text = "`datapath::worker` and `lookup/x.rs`, `Region`, `tap`, `weft bench`\n```\n`No::Name`\n```\n";
        let names: Vec<_> = quoted(text).collect();
        assert_eq!(names, ["datapath::worker", "lookup/x.rs", "Region"]);
    }

    #[test]
    fn only_what_exists_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let files = tracked(&root).unwrap();
        for name in ["xtask/src/docs.rs", "crates/xtask/", "xtask::docs", "xtask::docs::defines"] {
            assert!(is_there(&root, &files, name), "{name}");
        }
        for name in ["xtask/src/dogs.rs", "xtask::dogs", "xtask::docs::undefined_here_too"] {
            assert!(!is_there(&root, &files, name), "{name}");
        }
    }

    #[test]
    fn code_names_pages() {
        let all: Vec<_> =
            pages("// (docs/SECURITY.md). No docs/, `docs/perf/README.md#e`").collect();
        assert_eq!(all, ["docs/SECURITY.md", "docs/perf/README.md"]);
    }

    #[test]
    fn prose_is_not_wide() {
        let (prose, row) = ("x".repeat(101), format!("| {}", "x".repeat(101)));
        let text = format!("{row}\n{prose}\n    {prose}\n{}\n", &prose[1..]);
        assert_eq!(long_lines(&text).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn links_lead_to_files() {
        let all: Vec<_> = links("[a](b.md#c) [d](https://e) [f](#g) [h](i/)").collect();
        assert_eq!(all, ["b.md", "i/"]);
    }
}
