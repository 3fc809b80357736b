//! Files of a crate that import each other in a circle: a file imports another if it names what
//! that one defines, by a `use` or a path, also through the re-export of a third.

use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Crates, and how many files their largest circle may have.
const FILES_MAX: &[(&str, usize)] =
    &[("control", 3), ("datapath", 3), ("dpdk", 3), ("ofproto", 3), ("openflow", 4), ("vhost", 3)];
/// Re-exports that are followed to what they name.
const REEXPORTS_MAX: usize = 8;

type Module = Vec<String>;

/// A path that a file names.
struct Named {
    path: Vec<String>,
    /// The name that a `use` gives it.
    alias: Option<String>,
    /// True for `pub use`, which is an import only if the file uses it itself.
    is_public: bool,
}

struct File {
    name: String,
    defined: BTreeSet<String>,
    named: Vec<Named>,
    /// Names outside of `use`.
    words: BTreeSet<String>,
}

/// Fails if a crate has a larger circle than it may; prints the largest of each.
pub fn check(root: &Path) -> Result<()> {
    let (mut bad, mut sizes) = (Vec::new(), Vec::new());
    for (name, most) in FILES_MAX {
        let files = read(&root.join("crates").join(name).join("src"))?;
        let largest = largest(&imports(&files));
        sizes.push(format!("{name} {}", largest.len().max(1)));
        if largest.len() > *most {
            let names: Vec<_> = largest.iter().map(|m| files[*m].name.as_str()).collect();
            bad.push(format!("{name}: {} files, budget {most}: {}", names.len(), names.join(" ")));
        }
    }
    if !bad.is_empty() {
        bail!("circles:\n  {}", bad.join("\n  "));
    }
    println!("circles: ok, files in the largest: {}", sizes.join(", "));
    Ok(())
}

/// The files of a crate by module, without those of tests.
fn read(src: &Path) -> Result<BTreeMap<Module, File>> {
    let (mut todo, mut files) = (vec![src.to_path_buf()], BTreeMap::new());
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.strip_prefix(src)?.display().to_string();
            match name.strip_suffix(".rs") {
                None if path.is_dir() && !name.ends_with("tests") => todo.push(path),
                Some(stem) if !stem.ends_with("tests") => {
                    let stem = stem.strip_suffix("mod").map_or(stem, |s| s.trim_end_matches('/'));
                    let module: Module = match stem {
                        "lib" | "" => Module::new(),
                        stem => stem.split('/').map(String::from).collect(),
                    };
                    files.insert(module, parse(name.clone(), &std::fs::read_to_string(&path)?));
                }
                _ => {}
            }
        }
    }
    Ok(files)
}

fn parse(name: String, text: &str) -> File {
    let tokens = tokens(text);
    let mut file = File { name, defined: BTreeSet::new(), named: vec![], words: BTreeSet::new() };
    let kinds = ["struct", "enum", "trait", "fn", "const", "static", "type", "union"];
    let (mut at, mut depth) = (0, 0);
    // Depths at which modules inside this file began: their `super` is this file.
    let mut inline = Vec::new();
    let outer = |mut path: Vec<String>, inline: &[i32]| {
        if !inline.is_empty() && path[0] == "super" {
            path[0] = "self".into();
        }
        path
    };
    while at < tokens.len() {
        let is_public = at > 0 && matches!(tokens[at - 1].as_str(), "pub" | ")");
        match tokens[at].as_str() {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inline.pop_if(|began| *began == depth);
            }
            // Not the `use<>` of a type.
            "use" if tokens.get(at + 1).is_some_and(|t| is_word(t)) => {
                let mut found = Vec::new();
                at = tree(&tokens, at + 1, &[], &mut found);
                let named = |(path, alias)| Named {
                    path: outer(path, &inline),
                    alias: Some(alias),
                    is_public,
                };
                file.named.extend(found.into_iter().map(named));
                continue;
            }
            "mod" => {
                inline.extend(tokens.get(at + 2).filter(|t| *t == "{").map(|_| depth));
                at += 1;
            }
            kind if depth == 0 && kinds.contains(&kind) && at + 1 < tokens.len() => {
                file.defined.insert(tokens[at + 1].clone());
            }
            word if is_word(word) && tokens.get(at + 1).is_some_and(|t| t == "::") => {
                let mut path = vec![word.to_string()];
                while at + 2 < tokens.len() && tokens[at + 1] == "::" && is_word(&tokens[at + 2]) {
                    at += 2;
                    path.push(tokens[at].clone());
                }
                file.words.insert(path[0].clone());
                let path = outer(path, &inline);
                file.named.push(Named { path, alias: None, is_public: false });
            }
            word => drop(file.words.insert(word.to_string())),
        }
        at += 1;
    }
    file
}

/// Reads a tree of `use` from `at` on: paths with the names that they get; where it ends.
fn tree(
    tokens: &[String],
    mut at: usize,
    prefix: &[String],
    out: &mut Vec<(Vec<String>, String)>,
) -> usize {
    let mut path = prefix.to_vec();
    while at < tokens.len() {
        match tokens[at].as_str() {
            "::" => {}
            "{" => {
                at += 1;
                while at < tokens.len() && !["}", ";"].contains(&tokens[at].as_str()) {
                    at = tree(tokens, at, &path, out);
                    at += usize::from(tokens.get(at).is_some_and(|t| t == ","));
                }
                return at + 1;
            }
            "as" => {
                out.push((path, tokens[at + 1].clone()));
                return at + 2;
            }
            "," | "}" | ";" => break,
            "self" if !path.is_empty() => {}
            word => path.push(word.to_string()),
        }
        at += 1;
    }
    let alias = path.last().cloned().unwrap_or_default();
    out.push((path, alias));
    at
}

/// Words, `::` and single signs of code, without comments, strings, and tests at the end.
fn tokens(text: &str) -> Vec<String> {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let lines = code.lines().map(|l| l.split("//").next().unwrap_or(l));
    let (mut out, mut word) = (Vec::<String>::new(), String::new());
    let mut in_string = false;
    for c in lines.flat_map(|l| l.chars().chain(['\n'])) {
        if c == '"' {
            in_string = !in_string;
        } else if !in_string && (c.is_alphanumeric() || c == '_') {
            word.push(c);
            continue;
        }
        if !word.is_empty() {
            out.push(std::mem::take(&mut word));
        }
        match c {
            _ if in_string || c.is_whitespace() || c == '"' => {}
            ':' if out.last().is_some_and(|t| t == ":") => *out.last_mut().unwrap() = "::".into(),
            c => out.push(c.into()),
        }
    }
    out
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The files that each file imports.
fn imports(files: &BTreeMap<Module, File>) -> BTreeMap<&Module, BTreeSet<&Module>> {
    let of = |(module, file): (&'_ Module, &File)| {
        let used = |n: &&Named| {
            !n.is_public || n.alias.as_ref().is_some_and(|alias| file.words.contains(alias))
        };
        let all = file.named.iter().filter(used);
        let all = all.filter_map(|n| definer(files, module, &n.path, REEXPORTS_MAX));
        all.filter(|m| *m != module).collect()
    };
    files.iter().map(|(m, f)| (m, of((m, f)))).collect()
}

/// The module that defines what a path names in `from`; None: another crate, or a module itself.
fn definer<'f>(
    files: &'f BTreeMap<Module, File>,
    from: &Module,
    path: &[String],
    left: usize,
) -> Option<&'f Module> {
    let (first, rest) = path.split_first()?;
    let mut at = match first.as_str() {
        "crate" => Module::new(),
        "self" => from.clone(),
        "super" => from[..from.len().checked_sub(1)?].to_vec(),
        child => {
            let module = [&from[..], &[child.to_string()]].concat();
            if files.contains_key(&module) {
                module
            } else if left > 0 && !rest.is_empty() {
                // A module that the file imports.
                let import = |n: &&Named| n.alias.as_deref() == Some(child) && n.path != path;
                let import = files.get(from)?.named.iter().find(import)?;
                return definer(files, from, &[&import.path[..], rest].concat(), left - 1);
            } else {
                return None;
            }
        }
    };
    for (i, part) in rest.iter().enumerate() {
        if part == "super" {
            at.pop()?;
            continue;
        }
        let inner = [&at[..], std::slice::from_ref(part)].concat();
        if files.contains_key(&inner) {
            at = inner;
            continue;
        }
        let (module, file) = files.get_key_value(&at)?;
        let reexport = |n: &&Named| n.alias.as_ref() == Some(part);
        let found = file.named.iter().find(reexport).filter(|_| left > 0);
        return match found.filter(|_| !file.defined.contains(part)) {
            Some(n) => definer(files, &at, &[&n.path[..], &rest[i + 1..]].concat(), left - 1),
            None => Some(module),
        };
    }
    None
}

/// The largest set of files of which each imports every other, directly or through others.
fn largest<'f>(imports: &BTreeMap<&'f Module, BTreeSet<&'f Module>>) -> Vec<&'f Module> {
    let reached = |from: &'f Module| {
        let (mut todo, mut seen) = (vec![from], BTreeSet::new());
        while let Some(m) = todo.pop() {
            todo.extend(imports[m].iter().copied().filter(|to| seen.insert(*to)));
        }
        seen
    };
    let all: BTreeMap<&Module, BTreeSet<&Module>> =
        imports.keys().map(|m| (*m, reached(m))).collect();
    let circle = |m: &&'f Module| -> Vec<&'f Module> {
        all[*m].iter().copied().filter(|to| all[*to].contains(*m)).collect()
    };
    imports.keys().map(circle).max_by_key(Vec::len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> BTreeMap<Module, File> {
        let module = |m: &str| m.split('/').filter(|p| !p.is_empty()).map(String::from).collect();
        files.iter().map(|(m, text)| (module(m), parse(m.to_string(), text))).collect()
    }

    #[test]
    fn a_circle_is_found_through_a_reexport_and_not_through_comments() {
        let mut all = vec![
            ("", "mod a; mod b; mod c; pub use b::B;"),
            ("a", "use crate::{B, c};\npub struct A; fn f() { c::g(); }"),
            ("b", "// crate::c::g\npub struct B { a: super::a::A, s: \"crate::c::g\" }"),
            ("c", "pub fn g() {}\n#[cfg(test)]\nmod tests { use crate::a::A; }"),
        ];
        let files = crate_of(&all);
        let names: Vec<_> = largest(&imports(&files)).iter().map(|m| m.join("/")).collect();
        assert_eq!(names, ["a", "b"]);
        all[2].1 = "pub struct B;";
        assert!(largest(&imports(&crate_of(&all))).is_empty());
    }
}
