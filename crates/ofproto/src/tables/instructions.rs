//! What instructions refer to: ports, groups, meters, learn actions, clauses.

use openflow::{Action, Instruction, Learn, OfPort, port};

fn actions_of(list: &[Instruction]) -> impl Iterator<Item = &Action> {
    list.iter().flat_map(|i| match i {
        Instruction::Apply(a) | Instruction::Write(a) => a.as_slice(),
        _ => &[],
    })
}

/// True if the instructions send packets to the port.
pub fn outputs_to(list: &[Instruction], p: OfPort) -> bool {
    actions_of(list).any(|a| match a {
        Action::Output { port, .. } | Action::Enqueue { port, .. } => *port == p,
        Action::Controller { .. } => p == port::CONTROLLER,
        _ => false,
    })
}

/// True if the instructions send packets to the group.
pub fn uses_group(list: &[Instruction], group: u32) -> bool {
    let mut found = false;
    for_each_group(list, &mut |g| found |= g == group);
    found
}

pub(crate) fn names_groups(list: &[Instruction]) -> bool {
    let mut found = false;
    for_each_group(list, &mut |_| found = true);
    found
}

pub(crate) fn for_each_group(list: &[Instruction], f: &mut dyn FnMut(u32)) {
    actions_of(list).for_each(|a| group_in(a, f));
}

fn group_in(a: &Action, f: &mut dyn FnMut(u32)) {
    match a {
        Action::Group(g) => f(*g),
        Action::Clone(inner) => inner.iter().for_each(|a| group_in(a, f)),
        _ => {}
    }
}

/// The meter that the packets of a flow go through first.
pub(crate) fn meter_of(list: &[Instruction]) -> Option<u32> {
    list.iter().find_map(|i| match i {
        Instruction::Meter(id) => Some(*id),
        Instruction::Apply(actions) => actions.iter().find_map(|a| match a {
            Action::Meter(id) => Some(*id),
            _ => None,
        }),
        _ => None,
    })
}

/// The learn actions of instructions, also those in clones.
pub(crate) fn learns(list: &[Instruction]) -> Vec<&Learn> {
    fn inside<'a>(a: &'a Action, out: &mut Vec<&'a Learn>) {
        match a {
            Action::Learn(l) => out.push(l),
            Action::Clone(inner) => inner.iter().for_each(|a| inside(a, out)),
            _ => {}
        }
    }
    let mut out = Vec::new();
    for i in list {
        if let Instruction::Apply(actions) = i {
            actions.iter().for_each(|a| inside(a, &mut out));
        }
    }
    out
}

/// A `conjunction` action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Clause {
    pub id: u32,
    /// Number of clauses of the conjunction.
    pub n: u8,
    /// Index of this clause, from 0.
    pub k: u8,
}

/// The clauses that a flow stands for; None: it is an ordinary flow.
pub(crate) fn clauses(list: &[Instruction]) -> Option<Box<[Clause]>> {
    let [Instruction::Apply(actions)] = list else { return None };
    let clause = |a: &Action| match *a {
        Action::Conjunction { id, clause, n_clauses } => {
            Some(Clause { id, n: n_clauses, k: clause })
        }
        _ => None,
    };
    let all: Box<[Clause]> = actions.iter().filter_map(clause).collect();
    (!all.is_empty()).then_some(all)
}
