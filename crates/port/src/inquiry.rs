//! Questions to the kernel about devices, asked on a thread that may wait.
//!
//! The kernel answers while it holds a lock (rtnl) that it also holds while it changes devices, of
//! all namespaces: whoever may make devices in a namespace of its own has everybody wait for
//! tenths of a second. The control thread must not, so it only says what is to be asked, and takes
//! the answer.

use crate::Abilities;
use crate::ethtool::{Driver, Ethtool};
use crate::netlink::{Info, Netlink, Which};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Says whether a TAP device is there.
pub(crate) type Attached = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// What a look at a port asks the kernel.
pub struct Inquiry {
    pub(crate) ifindex: u32,
    pub(crate) ethtool: Arc<Ethtool>,
    /// The socket that is asked; None: any of this namespace.
    pub(crate) elsewhere: Option<Arc<Mutex<Netlink>>>,
    /// The question whether the TAP device is there, in any namespace.
    pub(crate) tap: Option<Attached>,
}

/// What the kernel said.
pub struct DeviceAnswer {
    pub(crate) ifindex: u32,
    pub(crate) seen: io::Result<Seen>,
    /// Ok if the TAP device is there, in any namespace.
    pub(crate) attached: io::Result<()>,
}

/// A device as it is.
pub(crate) struct Seen {
    pub info: Info,
    pub speed: (u32, Option<bool>, Abilities),
    pub driver: Option<Driver>,
}

impl Inquiry {
    /// Asks the kernel, and waits for it.
    fn ask(self, nl: &mut Netlink) -> DeviceAnswer {
        let which = Which::Index(self.ifindex);
        let info = match &self.elsewhere {
            Some(own) => own.lock().unwrap_or_else(PoisonError::into_inner).link(which),
            None => nl.link(which),
        };
        let seen = info.map(|info| Seen {
            speed: self.ethtool.speed(&info.name),
            driver: self.ethtool.driver(&info.name).ok(),
            info,
        });
        DeviceAnswer { ifindex: self.ifindex, seen, attached: self.tap.map_or(Ok(()), |ask| ask()) }
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
