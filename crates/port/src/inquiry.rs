//! Questions to the kernel about devices, and changes of devices, on a thread that may wait.
//!
//! The kernel answers while it holds a lock (rtnl), which it also holds while it changes devices,
//! in all namespaces. A user who may make devices in a namespace of his own can keep all others
//! waiting for tenths of a second. The control thread must not wait, so it only collects questions
//! and changes ([`Inquiry`]), and takes over the answers.

use crate::device::Device;
use crate::ethtool::{Driver, Ethtool};
use crate::netlink::{Info, LinkChange, Netlink, Which};
use crate::sys::failed;
use crate::{Abilities, PortConfig, PortError};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// A question about a TAP device. The argument is true if the device is in this namespace.
pub(crate) type TapInquiry = Box<dyn FnOnce(bool) -> TapAnswer + Send>;

/// The answer about a TAP device.
pub(crate) struct TapAnswer {
    /// Ok if the device exists, in any namespace.
    pub attached: io::Result<()>,
    /// The device in the namespace to which it was moved.
    pub moved: Option<Device>,
}

/// The properties that a device is to have; None: the present value is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    mtu: Option<u32>,
    mac: Option<[u8; 6]>,
}

impl Wanted {
    /// What a port's configuration asks for.
    pub fn of(config: &PortConfig) -> Self {
        Wanted { mtu: config.mtu_request.map(u32::from), mac: config.mac }
    }

    /// Changes what is different of a device, even if some of it is refused.
    pub fn apply(self, nl: &mut Netlink, ifindex: u32, name: &str) -> Result<(), PortError> {
        let info = nl.link(Which::Index(ifindex));
        let info = info.map_err(|e| failed(name, "reading the link", e))?;
        let mut change =
            |change, what: &str| nl.change(ifindex, change).map_err(|e| failed(name, what, e));
        let mtu = match self.mtu.filter(|&mtu| mtu != info.mtu) {
            Some(want) => change(LinkChange::Mtu(want), &format!("setting MTU {want}")),
            None => Ok(()),
        };
        let mac = match self.mac.filter(|&mac| mac != info.mac) {
            Some(want) => change(LinkChange::Mac(want), "setting the Ethernet address"),
            None => Ok(()),
        };
        mtu.and(mac)
    }
}

/// The properties that were to be changed, and the result.
pub(crate) type Changed = (Wanted, Result<(), PortError>);

/// The questions and changes of one look at a port.
pub struct Inquiry {
    pub(crate) name: String,
    pub(crate) ifindex: u32,
    /// Properties that are changed before the questions are asked.
    pub(crate) wanted: Option<Wanted>,
    /// The administrative state that is set before the questions are asked; the answer shows
    /// whether that succeeded.
    pub(crate) admin_up: Option<bool>,
    pub(crate) ethtool: Arc<Ethtool>,
    /// The socket to ask on; None: any socket of this namespace.
    pub(crate) elsewhere: Option<Arc<Mutex<Netlink>>>,
    /// The question about the TAP device; None: the device is no TAP device.
    pub(crate) tap: Option<TapInquiry>,
}

/// The kernel's answer to an [`Inquiry`].
pub struct DeviceAnswer {
    pub(crate) ifindex: u32,
    pub(crate) seen: io::Result<Seen>,
    /// The answer about the TAP device; None: the device is no TAP device.
    pub(crate) tap: Option<TapAnswer>,
    /// The changes that were made; None: no change was asked for.
    pub(crate) changed: Option<Changed>,
}

/// The state of a device in the kernel's answer.
pub(crate) struct Seen {
    pub info: Info,
    pub speed: (u32, Option<bool>, Abilities),
    pub driver: Option<Driver>,
}

impl Inquiry {
    /// This inquiry, with the properties of a configuration set first: [`crate::Port::reconfigure`]
    /// with this configuration then asks the kernel nothing.
    #[must_use]
    pub fn after(self, config: &PortConfig) -> Self {
        Inquiry { wanted: Some(Wanted::of(config)), ..self }
    }

    /// This inquiry, with the device taken up or down first.
    #[must_use]
    pub fn after_admin(self, up: bool) -> Self {
        Inquiry { admin_up: Some(up), ..self }
    }

    /// Asks the kernel, and waits for it.
    fn ask(self, nl: &mut Netlink) -> DeviceAnswer {
        let Inquiry { name, ifindex, wanted, admin_up, ethtool, elsewhere, tap } = self;
        let mut own = elsewhere.as_ref().map(|n| n.lock().unwrap_or_else(PoisonError::into_inner));
        let nl = own.as_deref_mut().unwrap_or(nl);
        let changed = wanted.map(|wanted| (wanted, wanted.apply(nl, ifindex, &name)));
        if let Some(up) = admin_up {
            let _ = nl.change(ifindex, LinkChange::AdminUp(up));
        }
        let seen = nl.link(Which::Index(ifindex)).map(|info| Seen {
            speed: ethtool.speed(&info.name),
            driver: ethtool.driver(&info.name).ok(),
            info,
        });
        let tap = tap.map(|ask| ask(seen.is_ok()));
        DeviceAnswer { ifindex, seen, tap, changed }
    }
}

/// Asks the kernel all of this; the answers are in the same order.
///
/// # Errors
/// When the system gives no socket.
pub fn ask_all(inquiries: Vec<Inquiry>) -> io::Result<Vec<DeviceAnswer>> {
    let mut nl = Netlink::open(0)?;
    Ok(inquiries.into_iter().map(|i| i.ask(&mut nl)).collect())
}
