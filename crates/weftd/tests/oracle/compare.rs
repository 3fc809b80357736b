//! Traces in a form in which those of two switches can be compared.

use crate::rig::Rig;

/// A trace in parts.
#[derive(PartialEq, Eq, Debug)]
pub struct Trace {
    /// All up to the final flow: the tables, their rules, the actions.
    pub steps: String,
    pub last: String,
    pub megaflow: String,
    /// Datapath actions, ports by name.
    pub ops: String,
    pub whole: String,
}

impl Trace {
    pub fn new(rig: &Rig, text: &str) -> Trace {
        let text = &normal_form(text);
        let line = |start: &str| {
            let all: Vec<_> = text.lines().filter_map(|l| l.strip_prefix(start)).collect();
            all.join("\n")
        };
        let ends = ["Final flow: ", "Megaflow: ", "Datapath actions: "];
        let slow = ["This flow is handled by", "  - "];
        let is_step = |l: &&str| !ends.iter().chain(&slow).any(|start| l.starts_with(start));
        let steps: Vec<_> = text.lines().filter(is_step).collect();
        let ops = line("Datapath actions: ");
        let ops: Vec<_> = ops.lines().map(|l| ops_form(rig, l)).collect();
        Trace {
            steps: steps.join("\n"),
            // OVS counts the action set's output, which it does not print, as a change.
            last: last(text),
            megaflow: line("Megaflow: "),
            ops: ops.join("\n"),
            whole: text.into(),
        }
    }

    /// What must be the same.
    pub fn decision(&self) -> (&str, &str, &str) {
        (&self.steps, &self.last, &self.ops)
    }

    /// True if the packet may have had more than two VLAN tags on its way.
    pub fn three_tags(&self) -> bool {
        let of_flow = self.steps.lines().next().unwrap_or_default();
        let tags = ["dl_vlan=", "dl_vlan1="].iter().filter(|t| of_flow.contains(**t)).count();
        let pushes = |l: &&str| l.trim_start().starts_with("push_vlan:");
        tags + self.steps.lines().filter(pushes).count() > 2
    }

    /// Names of the fields that the megaflow looks at.
    pub fn looked_at(&self) -> Vec<String> {
        let first = self.megaflow.lines().next().unwrap_or_default();
        first.split(',').map(|w| w.split(['=', '/']).next().unwrap_or_default().into()).collect()
    }
}

/// The final flows, `unchanged` where they are what they were.
fn last(text: &str) -> String {
    let of = |start: &str| -> Vec<String> {
        text.lines().filter_map(|l| l.strip_prefix(start)).map(str::to_owned).collect()
    };
    let (first, last) = (of("Flow: "), of("Final flow: "));
    let one = |(first, last): (&String, String)| match *first == last {
        true => "unchanged".into(),
        false => last,
    };
    first.iter().zip(last).map(one).collect::<Vec<String>>().join("\n")
}

/// Without what one of the two does not print: OVS's labels behind the top one (as numbers in
/// network order) and scores of buckets.
fn normal_form(text: &str) -> String {
    let wanted = |l: &&str| {
        let l = l.trim_start();
        !(l.starts_with("-> using bucket") || l.starts_with("-> bucket ") && l.contains("score"))
    };
    let cut = |l: String, label: &str| match l.split_once(label) {
        Some((before, after)) => {
            format!("{before}{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        None => l,
    };
    let line =
        |l: &str| without_fields(numberless(cut(cut(l.to_owned(), ",mpls_lse1="), ",mpls_lse2=")));
    let lines: Vec<_> = text.lines().filter(wanted).map(line).collect();
    lines.join("\n")
}

/// Without the original tuple of a connection that OVS sees in packets without an Ethernet header,
/// and without the fields of network service headers that are written: those that were read are
/// among them, of which each of the two reads some that the other does not.
fn without_fields(line: String) -> String {
    let line = line.replace("ct_nw_src=0.0.0.0,ct_nw_dst=0.0.0.0,", "");
    let mut parts = line.split("set(nsh(");
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        out += "set(nsh())";
        out += part.split_once("))").map_or("", |(_, rest)| rest);
    }
    out
}

/// Without the numbers of recirculations.
fn numberless(mut line: String) -> String {
    for start in ["recirc(0x", "recirc_id=0x"] {
        let mut from = 0;
        while let Some(at) = line[from..].find(start).map(|at| from + at + start.len()) {
            let digits = line[at..].find(|c: char| !c.is_ascii_hexdigit());
            line.replace_range(at..digits.map_or(line.len(), |n| at + n), "N");
            from = at;
        }
    }
    line
}

/// Datapath actions with ports by name, neighbouring outputs in the order of their names (a
/// flood has none), and without what a switch numbers as it likes.
fn ops_form(rig: &Rig, ops: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut run = 0;
    for p in split(ops) {
        match p.parse().ok().and_then(|n| rig.port(n)) {
            Some(name) => {
                parts.push(name.into());
                run += 1;
                let from = parts.len() - run;
                parts[from..].sort();
            }
            None => {
                run = 0;
                parts.push(part_form(rig, p));
            }
        }
    }
    // OVS leaves changes behind the last output.
    parts.truncate(parts.iter().rposition(|p| sends(p)).map_or(0, |i| i + 1));
    // Ethernet addresses may be written before or after a label is pushed.
    for i in 1..parts.len() {
        if parts[i].starts_with("set(eth(") && parts[i - 1].starts_with("push_mpls(") {
            parts.swap(i - 1, i);
        }
    }
    if parts.is_empty() { "drop".into() } else { parts.join(",") }
}

/// True if a datapath action does more than change the packet.
fn sends(part: &str) -> bool {
    let changes = ["set(", "push_", "pop_"];
    !changes.iter().any(|c| part.starts_with(c))
}

fn part_form(rig: &Rig, part: &str) -> String {
    match part.split_once('(') {
        Some(("recirc", _)) => "recirc(N)".into(),
        Some(("userspace", _)) => part
            .split(',')
            .filter(|w| !w.starts_with("recirc_id=") && !w.starts_with("rule_cookie="))
            .collect::<Vec<_>>()
            .join(","),
        Some(("clone", rest)) => {
            format!("clone({})", ops_form(rig, rest.strip_suffix(')').unwrap_or(rest)))
        }
        _ => part.into(),
    }
}

/// At the commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}
