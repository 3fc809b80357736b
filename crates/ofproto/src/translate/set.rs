//! The action set: which of the written actions it keeps, and in which order it executes them
//! (OpenFlow 1.3, section 5.10).

use crate::work::step;
use openflow::{Action, OfPort};

/// The rank of actions that all have effect, one after the other; then that of actions that end the
/// set.
const CUMULATIVE: u8 = 9;
const LAST: u8 = 11;

/// An action's rank in the set. Set-field and similar actions share one rank and keep their order.
fn rank(a: &Action) -> u8 {
    use Action as A;
    match a {
        A::StripVlan { .. } => 0,
        A::PopMpls { .. } => 1,
        A::Decap(_) => 2,
        A::Encap(_) => 3,
        A::PushMpls { .. } => 4,
        A::PushVlan { .. } => 5,
        A::DecTtl { .. } => 6,
        A::DecMplsTtl => 7,
        A::DecNshTtl => 8,
        A::SetQueue(_) => 10,
        A::Group(_) | A::Output { .. } | A::Controller { .. } => LAST,
        A::Resubmit { .. } | A::CtClear | A::Ct(_) => LAST,
        _ => CUMULATIVE,
    }
}

/// The preference of an action that ends an action set. Only the one with the highest preference is
/// executed, and of one kind the last: a group rather than an output, and so on, as in OVS.
fn preference(a: &Action) -> u8 {
    match a {
        Action::Group(_) => 4,
        Action::Output { .. } | Action::Controller { .. } => 3,
        Action::Resubmit { .. } => 2,
        Action::CtClear => 1,
        _ => 0,
    }
}

/// The set's actions in the order of their execution.
pub(super) fn in_order<'a>(set: &[&'a Action]) -> Vec<&'a Action> {
    let (mut out, mut later): (Vec<&Action>, _) = (Vec::new(), [false; LAST as usize + 1]);
    for a in set.iter().rev() {
        step();
        let rank = rank(a);
        // Of actions of one rank the last counts.
        let replaced = rank != CUMULATIVE && std::mem::replace(&mut later[usize::from(rank)], true);
        if !replaced && rank != LAST {
            out.push(a);
        }
    }
    out.reverse();
    out.extend(set.iter().filter(|a| rank(a) == LAST).max_by_key(|a| preference(a)));
    out.sort_by_key(|a| rank(a));
    // Without an output or a group the set does nothing.
    if out.last().is_none_or(|a| rank(a) != LAST) { Vec::new() } else { out }
}

/// The port of the set's output action, as a match on `actset_output` sees it.
pub(super) fn output_port(set: &[&Action]) -> Option<OfPort> {
    if set.iter().any(|a| matches!(a, Action::Group(_))) {
        return None;
    }
    set.iter().rev().find_map(|a| match a {
        Action::Output { port, .. } => Some(*port),
        Action::Controller { .. } => Some(openflow::port::CONTROLLER),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_replacement() {
        let out = Action::output;
        let (a, b, c) = (out(1), out(2), Action::PushVlan { ethertype: 0x8100 });
        let d = Action::StripVlan { pop: true };
        assert_eq!(in_order(&[&a, &c, &b, &d]), [&d, &c, &b]);
        let g = Action::Group(3);
        assert_eq!(in_order(&[&g, &a]), [&g]);
        assert!(in_order(&[&c, &d]).is_empty());
        assert_eq!(output_port(&[&a, &b]), Some(2));
    }
}
