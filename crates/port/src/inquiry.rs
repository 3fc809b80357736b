//! Questions to the kernel about devices, and changes of them, on a thread that may wait.
//!
//! The kernel answers while it holds a lock (rtnl) that it also holds while it changes devices, of
//! all namespaces: whoever may make devices in a namespace of its own has everybody wait for
//! tenths of a second. The control thread must not, so it only says what is to be asked or changed,
//! and takes the answer.

use crate::device::Device;
use crate::ethtool::{Driver, Ethtool};
use crate::netlink::{Info, LinkChange, Netlink, Which};
use crate::sys::failed;
use crate::{Abilities, PortConfig, PortError};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// What is asked of a TAP device; the argument: this namespace has it.
pub(crate) type TapInquiry = Box<dyn FnOnce(bool) -> TapAnswer + Send>;

/// What a TAP device is.
pub(crate) struct TapAnswer {
    /// Ok if it is there, in any namespace.
    pub attached: io::Result<()>,
    /// The device in the namespace to which it was moved.
    pub moved: Option<Device>,
}

/// What a device is to have; None: what it has is right.
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

/// What was to be changed, and what became of it.
pub(crate) type Changed = (Wanted, Result<(), PortError>);

/// What a look at a port asks the kernel.
pub struct Inquiry {
    pub(crate) name: String,
    pub(crate) ifindex: u32,
    /// What the device is to have before it is asked about.
    pub(crate) wanted: Option<Wanted>,
    /// Whether it is to be up before that; the answer shows whether that succeeded.
    pub(crate) admin_up: Option<bool>,
    pub(crate) ethtool: Arc<Ethtool>,
    /// The socket that is asked; None: any of this namespace.
    pub(crate) elsewhere: Option<Arc<Mutex<Netlink>>>,
    /// None: it is no TAP device.
    pub(crate) tap: Option<TapInquiry>,
}

/// What the kernel said.
pub struct DeviceAnswer {
    pub(crate) ifindex: u32,
    pub(crate) seen: io::Result<Seen>,
    /// None: it is no TAP device.
    pub(crate) tap: Option<TapAnswer>,
    /// None: nothing was to be changed.
    pub(crate) changed: Option<Changed>,
}

/// A device as it is.
pub(crate) struct Seen {
    pub info: Info,
    pub speed: (u32, Option<bool>, Abilities),
    pub driver: Option<Driver>,
}

impl Inquiry {
    /// As this one, after the device was given what the configuration asks for:
    /// [`crate::Port::reconfigure`] with it then asks the kernel nothing.
    #[must_use]
    pub fn after(self, config: &PortConfig) -> Self {
        Inquiry { wanted: Some(Wanted::of(config)), ..self }
    }

    /// As this one, after the device was taken up or down.
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
