//! Actions with arguments by place: hashes, bundles, samples, conjunctions.

use super::bits::writable;
use super::error::{Parsed, err};
use super::values::{number, port_named};
use super::words::Words;
use crate::action_text::numbered::{BUNDLE_ALGORITHMS, HASH_FIELDS, MULTIPATH_ALGORITHMS};
use flow::PortNumber;
use openflow::{Action, Bundle, port};

/// Members of one bundle, as in messages.
const MEMBERS_MAX: usize = 2048;

fn place(names: &[&str], name: &str, what: &str, text: &str) -> Parsed<u16> {
    let at = names.iter().position(|n| *n == name);
    at.map_or_else(|| err(format!("{text}: unknown {what} `{name}'")), |at| Ok(at as u16))
}

/// The parts of a text between commas and blanks.
fn parts(text: &str) -> Vec<&str> {
    text.split([',', ' ']).filter(|part| !part.is_empty()).collect()
}

/// `FIELDS,BASIS,ALGORITHM,LINKS,ARG,SUBFIELD`.
pub(super) fn multipath(text: &str) -> Parsed<Action> {
    let [fields, basis, algorithm, links, arg, dst] = parts(text)[..] else {
        return err(format!("{text}: not enough arguments to multipath action"));
    };
    let dst = writable(dst)?;
    let n: u32 = number(links, "n_links", u32::MAX.into())?;
    if !(1..=65536).contains(&n) {
        return err(format!("{text}: n_links {n} is not in valid range 1 to 65536"));
    }
    if dst.bits < 16 && n > 1 << dst.bits {
        return err(format!(
            "{text}: {}-bit destination field has {} possible values, less than specified n_links {n}",
            dst.bits,
            1 << dst.bits
        ));
    }
    Ok(Action::Multipath {
        fields: place(&HASH_FIELDS, fields, "fields", text)?,
        basis: number(basis, "basis", 0xffff)?,
        algorithm: place(&MULTIPATH_ALGORITHMS, algorithm, "algorithm", text)?,
        max_link: (n - 1) as u16,
        arg: number(arg, "arg", u32::MAX.into())?,
        dst,
    })
}

/// `ID,CLAUSE/CLAUSES`.
pub(super) fn conjunction(text: &str) -> Parsed<Action> {
    let clauses = text.split_once(',').and_then(|(id, k)| Some((id, k.split_once('/')?)));
    let Some((id, (clause, n))) = clauses else {
        return err(format!("{text}: conjunction syntax is \"conjunction(id,k/n)\""));
    };
    let (clause, n_clauses): (u8, u8) = (
        number(clause.trim(), "clause index", 0xff)?,
        number(n.trim(), "number of clauses", 0xff)?,
    );
    let why = match (clause, n_clauses) {
        (0, _) => "clause index must be positive",
        (_, 0 | 1) => "conjunction must have at least 2 clauses",
        (_, 65..) => "conjunction must have at most 64 clauses",
        (k, n) if k > n => "clause index must be less than or equal to number of clauses",
        _ => "",
    };
    if !why.is_empty() {
        return err(format!("{text}: {why}"));
    }
    let id = number(id.trim(), "conjunction ID", u32::MAX.into())?;
    Ok(Action::Conjunction { id, clause: clause - 1, n_clauses })
}

/// `idle_timeout=SECONDS,hard_timeout=SECONDS`, either may lack.
pub(super) fn fin_timeout(text: &str) -> Parsed<Action> {
    let (mut idle, mut hard) = (0, 0);
    for word in Words::of(text) {
        let word = word?;
        match word.name {
            "idle_timeout" => idle = number(word.value, "idle_timeout", 0xffff)?,
            "hard_timeout" => hard = number(word.value, "hard_timeout", 0xffff)?,
            name => return err(format!("invalid key '{name}' in 'fin_timeout' argument")),
        }
    }
    Ok(Action::FinTimeout { idle, hard })
}

/// `FIELDS,BASIS,ALGORITHM,ofport,[SUBFIELD,]members:PORT,...`.
pub(super) fn bundle(text: &str, load: bool, ports: PortNumber) -> Parsed<Action> {
    let all = parts(text);
    let fixed = if load { 5 } else { 4 };
    let head = all.get(..fixed).filter(|_| all.len() > fixed);
    let Some([fields, basis, algorithm, kind, dst @ ..]) = head else {
        return err(format!("{text}: not enough arguments to bundle action"));
    };
    if *kind != "ofport" {
        return err(format!("{text}: unknown member_type `{kind}'"));
    }
    let dst = dst.first().map(|dst| writable(dst)).transpose()?;
    if let Some(dst) = dst.filter(|dst| dst.bits < 16) {
        let bits = dst.bits;
        return err(format!("{text}: bundle_load needs a field of 16 bits, this has {bits}"));
    }
    let first = all[fixed];
    let Some(first) = first.strip_prefix("members:").or(first.strip_prefix("slaves:")) else {
        return err(format!("{text}: missing member delimiter, expected `members'"));
    };
    let names = [first].into_iter().chain(all[fixed + 1..].iter().copied());
    let members: Parsed<Vec<_>> = names
        .filter(|name| !name.is_empty())
        .map(|name| port_named(name, ports, "bad port number"))
        .collect();
    let members = members?;
    if members.len() > MEMBERS_MAX {
        return err(format!("a bundle has at most {MEMBERS_MAX} members"));
    }
    Ok(Action::Bundle(Box::new(Bundle {
        fields: place(&HASH_FIELDS, fields, "fields", text)?,
        basis: number(basis, "basis", 0xffff)?,
        algorithm: place(&BUNDLE_ALGORITHMS, algorithm, "algorithm", text)?,
        dst,
        members,
    })))
}

/// `probability=P,collector_set_id=ID,...`.
pub(super) fn sample(text: &str, ports: PortNumber) -> Parsed<Action> {
    let (mut probability, mut collector_set, mut domain, mut point) = (0u16, 0, 0, 0);
    let (mut port, mut direction) = (port::ANY, 0);
    for word in Words::of(text) {
        let word = word?;
        let id = || number::<u32>(word.value, word.name, u32::MAX.into());
        match word.name {
            "probability" => {
                probability = number(word.value, "probability", 0xffff)?;
                if probability == 0 {
                    return err("invalid probability value \"0\"");
                }
            }
            "collector_set_id" => collector_set = id()?,
            "obs_domain_id" => domain = id()?,
            "obs_point_id" => point = id()?,
            "sampling_port" => port = port_named(word.value, ports, "unknown port")?,
            "ingress" => direction = 1,
            "egress" => direction = 2,
            name => return err(format!("invalid key \"{name}\" in \"sample\" argument")),
        }
    }
    if probability == 0 {
        return err("non-zero \"probability\" must be specified on sample");
    }
    Ok(Action::Sample { probability, collector_set, domain, point, port, direction })
}
