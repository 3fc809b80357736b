//! The datapath port of all tunnels with one UDP port. It has a number and counters, but no device:
//! packets come in by decapsulation and leave by encapsulation, which the datapath does.

use crate::{Counters, Link, Port, PortConfig, PortError, RxQueue, TxQueue};
use packet::{Packet, Pool};
use std::collections::BTreeMap;
use std::sync::Arc;

/// No packet is sent on it without encapsulation, so no length is too long.
const MTU: u16 = u16::MAX - 32;

/// A port with the name that OVS gives the kernel's device, such as `vxlan_sys_4789`.
pub struct TunnelPort {
    name: String,
    kind: String,
    tx: Option<Box<dyn TxQueue>>,
}

/// Frees packets that are sent without encapsulation.
struct Nowhere(Arc<dyn Pool>);

impl TxQueue for Nowhere {
    fn tx(&mut self, packets: &[Packet]) -> usize {
        self.0.free(packets);
        packets.len()
    }
}

impl TunnelPort {
    /// A port of this name for tunnels of type `kind`.
    pub fn new(name: &str, kind: &str, pool: Arc<dyn Pool>) -> Self {
        TunnelPort { name: name.into(), kind: kind.into(), tx: Some(Box::new(Nowhere(pool))) }
    }
}

impl Port for TunnelPort {
    fn name(&self) -> &str {
        &self.name
    }
    fn kind(&self) -> &str {
        &self.kind
    }
    fn n_rxq(&self) -> usize {
        0
    }
    fn take_rx(&mut self, _i: usize) -> Option<Box<dyn RxQueue>> {
        None
    }
    fn take_tx(&mut self, i: usize) -> Option<Box<dyn TxQueue>> {
        if i == 0 { self.tx.take() } else { None }
    }
    fn mac(&self) -> [u8; 6] {
        [0; 6]
    }
    fn mtu(&self) -> u16 {
        MTU
    }
    fn link(&mut self) -> Link {
        Link { admin_up: true, up: true, ..Link::default() }
    }
    fn set_admin_up(&mut self, _up: bool) -> Result<(), PortError> {
        Ok(())
    }
    fn counters(&mut self) -> Counters {
        Counters::new()
    }
    fn status(&mut self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    fn reconfigure(&mut self, _config: &PortConfig) -> Result<bool, PortError> {
        Ok(true)
    }
}
