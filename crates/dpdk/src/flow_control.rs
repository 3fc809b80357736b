//! Flow control by pause frames (IEEE 802.3, annex 31B).

use crate::{DpdkError, EthDev};
use dpdk_sys as sys;

/// Which pause frames a device sends and heeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowControl {
    /// Pause frames are sent when receive queues are full.
    pub rx: bool,
    /// Pause frames that are received stop sending.
    pub tx: bool,
    /// Both ends of the link agree on it by negotiation.
    pub autoneg: bool,
}

impl EthDev {
    /// Sets flow control of a started device. False: the device has none.
    ///
    /// # Errors
    /// The driver refuses it; the device keeps what it had.
    pub fn set_flow_control(&self, wanted: FlowControl) -> Result<bool, DpdkError> {
        let port = self.info().port;
        let [rx, tx, autoneg] = [wanted.rx, wanted.tx, wanted.autoneg].map(libc::c_int::from);
        // SAFETY: asks and sets by number; the port is ours.
        match unsafe { sys::weft_eth_flow_control(port, rx, tx, autoneg) } {
            0 => Ok(true),
            ret if ret == -libc::ENOTSUP => Ok(false),
            ret => Err(DpdkError::code(format!("cannot set flow control of port {port}"), ret)),
        }
    }
}
