//! Who pays for a paused pipeline that a controller has go on (NXT_RESUME): the port by which the
//! packet came, once for each packet that controllers got of it, and from then on the bridge's own
//! share. A controller may keep a continuation and send it as often as it likes, with packets of
//! its own.

use flow::{PortNo, is_received, origin_port};
use ofproto::BridgeId;
use std::collections::BTreeMap;

/// Packets of a port for which it still pays, at most: as many as may wait for the control side.
const PACKETS_MAX: u32 = 4096;

/// How many packets of each port a bridge's controllers got and did not have go on, by bridge and
/// datapath port.
#[derive(Default)]
pub struct Paused(BTreeMap<(BridgeId, PortNo), u32>);

impl Paused {
    /// A bridge's controllers got a packet of this datapath port, whose pipeline is paused.
    pub fn add(&mut self, bridge: BridgeId, port: u32) {
        if let Some(port) = PortNo::try_from(port).ok().filter(|port| is_received(*port)) {
            let packets = self.0.entry((bridge, port)).or_default();
            *packets = (*packets + 1).min(PACKETS_MAX);
        }
    }

    /// The datapath port that pays for a packet of this one that a bridge's controller has go on.
    pub fn charged(&mut self, bridge: BridgeId, port: u32) -> PortNo {
        let own = origin_port(bridge.index());
        let Ok(port) = PortNo::try_from(port) else { return own };
        match self.0.get_mut(&(bridge, port)) {
            Some(packets) if *packets > 0 => {
                *packets -= 1;
                port
            }
            _ => own,
        }
    }

    /// A bridge is gone.
    pub fn forget(&mut self, bridge: BridgeId) {
        self.0.retain(|(of, _), _| *of != bridge);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_pays_once_for_each_of_its_packets_that_controllers_got() {
        let mut sw = ofproto::Switch::new(sync::Domain::new().writer());
        let [a, b] =
            ["a", "b"].map(|name| sw.add_bridge(name, Default::default(), 0).expect("a bridge"));
        let mut all = Paused::default();
        (0..3).for_each(|_| all.add(a, 7));
        let charged = |all: &mut Paused, bridge, port| -> usize {
            (0..100).filter(|_| all.charged(bridge, port) == port as PortNo).count()
        };
        assert_eq!([charged(&mut all, b, 7), charged(&mut all, a, 8)], [0, 0]);
        assert_eq!(charged(&mut all, a, 7), 3);
        assert_ne!(all.charged(a, 7), all.charged(b, 7), "each bridge has a share of its own");
        (0..2 * PACKETS_MAX).for_each(|_| all.add(a, 7));
        let all_of_it = (0..).take_while(|_| all.charged(a, 7) == 7).count();
        assert_eq!(all_of_it, PACKETS_MAX as usize, "packets of long ago do not count");
        all.add(a, 7);
        all.forget(a);
        assert_eq!(charged(&mut all, a, 7), 0);
    }
}
