//! Style as a test: budgets and banned words.

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines a source file may have (generated ones aside).
const FILE_LINES: usize = 800;
/// Lines a function may have; a few wire tables are longer and say so with `tidy: long`.
const FUNCTION_LINES: usize = 90;
/// Fields a structure may have.
const STRUCTURE_FIELDS: usize = 20;
const BANNED: &[(&str, &str)] = &[
    ("todo!(", "finish it, or return an error"),
    ("unimplemented!(", "finish it, or return an error"),
    (" dbg!(", "leftover"),
    ("FIXME", "open an issue"),
    ("XXX:", "open an issue"),
];

/// Crates that speak docs/GLOSSARY.md: words that lost there may not come back.
const CLEAN: &[&str] = &["crates/datapath/src/", "crates/ofproto/src/"];
/// They test the user `nobody`, who has no other name.
const USERS: &[&str] = &["crates/control/src/daemon/user.rs", "crates/weftd/tests/user.rs"];
/// Words that no Rust file has, and what is said instead.
const LOST_EVERYWHERE: &[(&str, &str)] = &[
    ("told", "reported, notified, sent, asked"),
    ("nobody", "no thread, no process, no user, ..."),
    ("Nobody", "no thread, no process, no user, ..."),
    ("somebody", "a thread, a process, a user, ..."),
    ("Somebody", "a thread, a process, a user, ..."),
    ("obey", "carry out"),
    ("obeyed", "carried_out"),
    ("stranger", "uncached packet"),
    ("strangers", "uncached packets"),
    ("misdeed", "violation"),
    ("misdeeds", "violations"),
    ("appetite", "load"),
];
/// Words that lost, and what is said instead.
const LOST: &[(&str, &str)] = &[
    ("Appetite", "RxqState"),
    ("hungry", "saturated"),
    ("Exits", "TxState"),
    ("trash", "to_free"),
    ("untold", "pending_notify"),
    ("news", "reports"),
    ("Terminator", "DecapRule"),
    ("terminator", "decapsulation rule"),
    ("Strangers", "UncachedBatch"),
    ("Sight", "SeenFlows"),
    ("Spot", "InsertPosition"),
    ("Worth", "Admission"),
    ("Partition", "PortClassifier"),
    ("partition", "port classifier"),
    ("vain", "missed"),
    ("walk", "subtables_probed_max"),
    ("guess", "prediction"),
    ("guesses", "predictions"),
    ("Accounts", "FlowStats"),
    ("look_around", "revalidate_slice"),
    ("Areas", "RegionSet"),
    ("MissBatch", "ResolveBatch"),
    ("DirectBatch", "ResolveBatch"),
    ("nap", "idle_sleep"),
    ("Patience", "Backoff"),
];
/// How no doc comment begins: it could not be understood without the one before.
const DEPENDENT: &[&str] =
    &["...", "The same ", "Likewise", "Sets that", "It.", "All of them.", "Of "];
/// Columns of a comment (rustfmt keeps to it in code).
const LINE_COLUMNS_MAX: usize = 100;

/// Written by a program, not by hand.
const GENERATED: &[&str] = &["crates/dpdk-sys/src/bindings.rs"];

/// Fails with every file over budget and every banned word.
pub fn check(root: &Path) -> Result<()> {
    let mut bad = Vec::new();
    for file in tracked(root)? {
        let name = file.display().to_string();
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else { continue };
        if GENERATED.contains(&name.as_str()) || name.starts_with("crates/xtask") {
            continue;
        }
        let lines = text.lines().count();
        if lines > FILE_LINES && !is_test(&name) {
            bad.push(format!("{name}: {lines} lines, budget {FILE_LINES}"));
        }
        for (word, instead) in BANNED {
            for (i, _) in text.lines().enumerate().filter(|(_, l)| l.contains(word)) {
                bad.push(format!("{name}:{}: `{word}`: {instead}", i + 1));
            }
        }
        if CLEAN.iter().any(|c| name.starts_with(c)) {
            bad.extend(lost_words(&name, &text, LOST));
        }
        if name.ends_with(".rs") && !USERS.contains(&name.as_str()) {
            bad.extend(lost_words(&name, &text, LOST_EVERYWHERE));
        }
        if name.ends_with(".rs") {
            bad.extend(wide_comments(&name, &text));
            bad.extend(dependent_comments(&name, &text));
        }
        if name.ends_with(".rs") && !is_test(&name) {
            bad.extend(long_functions(&name, &text));
            bad.extend(wide_structures(&name, &text));
        }
    }
    bad.extend(drops_without_test(root)?);
    if !bad.is_empty() {
        bail!("tidy:\n  {}", bad.join("\n  "));
    }
    println!("tidy: ok");
    Ok(())
}

/// Words that lost in the glossary.
fn lost_words(name: &str, text: &str, lost: &[(&str, &str)]) -> Vec<String> {
    let mut bad = Vec::new();
    for (i, line) in text.lines().enumerate() {
        // The iterator's method has no other name.
        let line = line.replace(".partition(", "");
        for (word, instead) in lost.iter().filter(|(word, _)| has_whole_word(&line, word)) {
            bad.push(format!("{name}:{}: `{word}`: say {instead}", i + 1));
        }
    }
    bad
}

/// Comments that are too wide.
fn wide_comments(name: &str, text: &str) -> Vec<String> {
    let wide = |l: &str| l.trim_start().starts_with("//") && l.chars().count() > LINE_COLUMNS_MAX;
    let lines = (1..).zip(text.lines()).filter(|(_, l)| wide(l));
    lines.map(|(n, _)| format!("{name}:{n}: comment wider than {LINE_COLUMNS_MAX}")).collect()
}

/// Doc comments that lean on another one, or ask instead of saying what is.
fn dependent_comments(name: &str, text: &str) -> Vec<String> {
    let mut before = "";
    let mut bad = Vec::new();
    for (n, line) in (1..).zip(text.lines().map(str::trim_start)) {
        let begins = line.strip_prefix("/// ").filter(|_| !before.starts_with("///"));
        if let Some(start) = begins.and_then(|t| DEPENDENT.iter().find(|d| t.starts_with(**d))) {
            bad.push(format!("{name}:{n}: a doc comment begins with `{start}`: name its subject"));
        }
        if line.starts_with("/// ") && line.ends_with('?') {
            bad.push(format!("{name}:{n}: a doc comment asks: say what is, or what true means"));
        }
        before = line;
    }
    bad
}

/// True if `word` stands in `text` with no letter, digit or underscore beside it.
fn has_whole_word(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part))
}

/// Drop reasons that no test names, by variant or by counter.
fn drops_without_test(root: &Path) -> Result<Vec<String>> {
    let reasons = "crates/telemetry/src/drops.rs";
    let mut tests = String::new();
    for file in tracked(root)?.iter().filter(|f| f.extension().is_some_and(|e| e == "rs")) {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        let whole = is_test(&file.display().to_string());
        tests += if whole { &text } else { text.split_once("#[cfg(test)]").map_or("", |t| t.1) };
    }
    let text = std::fs::read_to_string(root.join(reasons))?;
    // `Variant "counter" "Help.";`
    let lines = text.lines().filter(|l| l.ends_with(".\";"));
    let names = lines.filter_map(|l| l.split_whitespace().next().zip(l.split('"').nth(1)));
    let named = |variant: &str, counter: &str| {
        ["Drop::", "Reason::"].iter().any(|p| has_word(&tests, &format!("{p}{variant}")))
            || has_word(&tests, &format!("drop_{counter}"))
    };
    let missing = names.filter(|(variant, counter)| !named(variant, counter));
    Ok(missing.map(|(v, _)| format!("{reasons}: {v}: no test provokes it")).collect())
}

/// True if `word` stands in `text`, and not as the start of a longer word.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        !text[at + word.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
    })
}

/// Tests may be long lists of cases.
fn is_test(name: &str) -> bool {
    name.contains("tests") || name.ends_with("golden.rs")
}

/// Functions over budget, by indentation (the tree is rustfmt-clean).
fn long_functions(name: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut bad = Vec::new();
    let mut i = 0;
    while i < lines.len() {
        let l = lines[i];
        let indent = l.len() - l.trim_start().len();
        let is_fn = l.trim_start().split(['(', '<']).next().is_some_and(|h| {
            h.split_whitespace().any(|w| w == "fn") && !l.trim_start().starts_with("//")
        });
        if is_fn && !l.trim_end().ends_with(';') {
            let close = format!("{}}}", " ".repeat(indent));
            let end = (i + 1..lines.len()).find(|j| lines[*j] == close).unwrap_or(i);
            if end - i > FUNCTION_LINES && !lines[i..=end].iter().any(|l| l.contains("tidy: long"))
            {
                bad.push(format!(
                    "{name}:{}: function of {} lines, budget {FUNCTION_LINES}",
                    i + 1,
                    end - i
                ));
            }
        }
        i += 1;
    }
    bad
}

pub fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let out = Command::new("git")
        .args(["ls-files", "*.rs", "*.c", "*.h", "*.sh"])
        .current_dir(root)
        .output()?;
    Ok(String::from_utf8(out.stdout)?.lines().map(PathBuf::from).collect())
}

/// Structures that know too much.
fn wide_structures(name: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut bad = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let trimmed = line.trim_start();
        let indent = " ".repeat(line.len() - trimmed.len());
        let head = trimmed.split(['{', '(', '<']).next().unwrap_or_default();
        if trimmed.starts_with("//")
            || !line.ends_with('{')
            || !head.split_whitespace().any(|w| w == "struct")
        {
            continue;
        }
        let (close, inside) = (format!("{indent}}}"), format!("{indent}    "));
        let body = lines[i + 1..].iter().take_while(|l| **l != close);
        let fields = body.filter_map(|l| l.strip_prefix(&inside)).filter(|l| is_field(l)).count();
        if fields > STRUCTURE_FIELDS {
            bad.push(format!("{name}:{}: {fields} fields, budget {STRUCTURE_FIELDS}", i + 1));
        }
    }
    bad
}

/// True if a line of a structure's body begins a field.
fn is_field(line: &str) -> bool {
    let name = line.split(':').next().unwrap_or_default();
    let name = name.strip_prefix("pub(crate) ").unwrap_or(name);
    let name = name.strip_prefix("pub(super) ").or(name.strip_prefix("pub ")).unwrap_or(name);
    line.contains(':') && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_with_many_fields_are_named() {
        let fields = |n: usize| {
            let field = |i| format!("    /// A field: one.\n    pub(crate) f{i}: u8,\n");
            format!("pub struct S {{\n{}}}\n", (0..n).map(field).collect::<String>())
        };
        assert!(wide_structures("a", &fields(STRUCTURE_FIELDS)).is_empty());
        let bad = wide_structures("a", &fields(STRUCTURE_FIELDS + 1));
        assert_eq!(bad, ["a:1: 21 fields, budget 20"]);
    }
}
