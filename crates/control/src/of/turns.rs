//! Turns of bridges at being changed: one change of flows is under way at a time.

use ofproto::BridgeId;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// The bridges of which connections wait to change them, the next one first, and how many wait.
pub struct Turns<B = BridgeId> {
    waiting: VecDeque<(B, usize)>,
}

impl<B> Default for Turns<B> {
    fn default() -> Self {
        Turns { waiting: VecDeque::new() }
    }
}

impl<B> Turns<B> {
    /// True if no connection waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// A connection that waits.
pub struct Waiting<B: Copy + PartialEq> {
    turns: Rc<RefCell<Turns<B>>>,
    bridge: B,
}

impl<B: Copy + PartialEq> Waiting<B> {
    /// Waits behind the other bridges of which connections wait.
    pub fn new(turns: Rc<RefCell<Turns<B>>>, bridge: B) -> Waiting<B> {
        let all = &mut turns.borrow_mut().waiting;
        match all.iter_mut().find(|(id, _)| *id == bridge) {
            Some((_, n)) => *n += 1,
            None => all.push_back((bridge, 1)),
        }
        Waiting { turns: turns.clone(), bridge }
    }

    /// True if it is the bridge's turn.
    pub fn is_first(&self) -> bool {
        self.turns.borrow().waiting.front().is_some_and(|(id, _)| *id == self.bridge)
    }
}

impl<B: Copy + PartialEq> Drop for Waiting<B> {
    /// A waiter has its turn, or gives up: others of its bridge are behind other bridges then.
    fn drop(&mut self) {
        let all = &mut self.turns.borrow_mut().waiting;
        if let Some(at) = all.iter().position(|(id, _)| *id == self.bridge)
            && let Some((bridge, n)) = all.remove(at)
            && n > 1
        {
            all.push_back((bridge, n - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridges_have_their_turns_however_many_wait_of_one() {
        let turns = Rc::<RefCell<Turns<u32>>>::default();
        let mut all: Vec<_> =
            [1, 1, 1, 1, 2, 1, 2, 3].map(|b| Waiting::new(turns.clone(), b)).into();
        let mut order = Vec::new();
        while let Some(next) = all.iter().position(Waiting::is_first) {
            order.push(all.remove(next).bridge);
        }
        assert_eq!(order, [1, 2, 3, 1, 2, 1, 1, 1]);
        assert!(turns.borrow().waiting.is_empty());
        let gone = Waiting::new(turns.clone(), 1);
        let next = Waiting::new(turns, 2);
        assert!(!next.is_first());
        drop(gone);
        assert!(next.is_first(), "who gave up holds no other up");
    }
}
