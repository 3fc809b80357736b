//! Link events of the network namespace, for the control side.

use crate::netlink::{GROUP_LINK, Info, Message, Netlink};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// The state of a link after an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Kernel interface index.
    pub ifindex: u32,
    /// Interface name.
    pub name: String,
    /// True if it is administratively up.
    pub admin_up: bool,
    /// True if it is up and has a carrier.
    pub up: bool,
    /// Layer-3 MTU in bytes.
    pub mtu: u32,
    /// MAC address.
    pub mac: [u8; 6],
}

/// An event of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The link is new, or changed (not every event changes something that is shown here).
    Changed(LinkState),
    /// The link was deleted, or moved to another namespace.
    Gone {
        /// The index it had.
        ifindex: u32,
        /// The name it had.
        name: String,
    },
    /// Events were lost: the state of every link must be read again.
    Lost,
}

/// Messages that one call reads, at most: about 1 ms of work. While links change all the time,
/// further messages arrive meanwhile.
const MESSAGES_MAX: usize = 512;

/// A subscription to link events.
pub struct LinkMonitor(Netlink);

impl LinkMonitor {
    /// Subscribes in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the system has no netlink socket to give.
    pub fn new() -> io::Result<Self> {
        Netlink::open(GROUP_LINK).map(LinkMonitor)
    }

    /// Events that wait, the first ones if there are many. Never blocks. True: there are more.
    pub fn events(&mut self) -> (Vec<LinkEvent>, bool) {
        let mut out = Vec::new();
        for _ in 0..MESSAGES_MAX {
            let got = self.0.receive(|_, message| out.extend(event(message)));
            match got.map_err(|e| e.raw_os_error()) {
                Ok(()) | Err(Some(libc::EINTR)) => {}
                Err(Some(libc::EAGAIN)) => return (out, false),
                Err(Some(libc::ENOBUFS)) => out.push(LinkEvent::Lost),
                Err(_) => {
                    out.push(LinkEvent::Lost);
                    return (out, false);
                }
            }
        }
        (out, true)
    }
}

/// Readable when there are events.
impl AsRawFd for LinkMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd()
    }
}

fn event(message: Message) -> Option<LinkEvent> {
    match message {
        Message::New(info) => Some(LinkEvent::Changed(state(info))),
        Message::Del(info) => Some(LinkEvent::Gone { ifindex: info.ifindex, name: info.name }),
        Message::Class(..) | Message::Done(_) | Message::Other => None,
    }
}

fn state(info: Info) -> LinkState {
    LinkState {
        ifindex: info.ifindex,
        admin_up: info.admin_up(),
        up: info.up(),
        mtu: info.mtu,
        mac: info.mac,
        name: info.name,
    }
}
