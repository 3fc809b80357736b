//! Which cached decisions may be wrong, besides those of the packets in
//! [`Switch::take_regions`].

use crate::switch::Switch;
use crate::translate::effects::Effects;
use action::CachedDecision;

impl Switch {
    /// A predicate that is true for decisions that may be wrong since the underlay, the tables that
    /// outer packets pass, ports, or what is done with packets without a flow changed after the
    /// last call; None: nothing changed. Called after [`Switch::take_regions`], which knows the
    /// addresses that changed.
    pub fn take_stale(&mut self) -> Option<impl Fn(&CachedDecision<'_>) -> bool + use<>> {
        self.publish_neighbours();
        let underlay = std::mem::take(&mut self.outbox.underlay);
        let outer = self.take_outer_changes();
        let ports = std::mem::take(&mut self.outbox.ports);
        let missed = std::mem::take(&mut self.outbox.missed);
        if !underlay && outer.is_none() && ports.is_empty() && missed.is_empty() {
            return None;
        }
        let now = underlay.then(|| self.tunnels.underlay.clone());
        let by_effects = move |e: &Effects| {
            now.as_ref().is_some_and(|now| e.is_stale(now))
                || outer.as_ref().is_some_and(|changes| changes.reach(e))
        };
        Some(move |d: &CachedDecision<'_>| {
            d.effects.and_then(|e| e.downcast_ref()).is_some_and(&by_effects)
                || ports.reach(d)
                || d.credits.iter().any(|id| missed.iter().any(|misses| misses.contains(id)))
        })
    }
}
