//! The ethtool(8) requests that a port needs: the driver, the link's speed, switching LRO off.

use crate::sys::{check, ifreq, socket};
use crate::{Abilities, Medium};
use libc::c_char;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const SIOCETHTOOL: u64 = 0x8946;
const GSET: u32 = 0x01;
const GDRVINFO: u32 = 0x03;
const GFLAGS: u32 = 0x25;
const SFLAGS: u32 = 0x26;
const FLAG_LRO: u32 = 1 << 15;
const PORT_TP: u8 = 0;
const PORT_FIBRE: u8 = 3;
const SPEED_UNKNOWN: u32 = u32::MAX;

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DrvInfo {
    cmd: u32,
    driver: [c_char; 32],
    version: [c_char; 32],
    firmware: [c_char; 32],
    rest: [u8; 96],
}

/// `struct ethtool_cmd`.
#[repr(C)]
#[derive(Default)]
struct Settings {
    cmd: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    duplex: u8,
    port: u8,
    addresses: [u8; 2],
    autoneg: u8,
    mdio: u8,
    maxtxpkt: u32,
    maxrxpkt: u32,
    speed_hi: u16,
    rest: [u8; 2],
    lp_advertising: u32,
    reserved: [u32; 2],
}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    cmd: u32,
    data: u32,
}

/// Driver, version and firmware as the kernel names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    pub name: String,
    pub version: String,
    pub firmware: String,
}

/// A socket for requests, in the namespace in which it was made.
pub struct Ethtool(OwnedFd);

impl Ethtool {
    pub fn new() -> io::Result<Self> {
        socket(libc::AF_INET, libc::SOCK_DGRAM, 0).map(Ethtool)
    }

    fn ask<T>(&self, name: &str, arg: &mut T) -> io::Result<()> {
        let mut req = ifreq(name).ok_or(io::ErrorKind::InvalidInput)?;
        req.ifr_ifru.ifru_data = std::ptr::from_mut(arg).cast();
        // SAFETY: `arg` is the structure that the command in its first field asks for.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCETHTOOL as _, &mut req) }).map(drop)
    }

    /// The device's driver.
    pub fn driver(&self, name: &str) -> io::Result<Driver> {
        let empty = [0; 32];
        let mut info = DrvInfo {
            cmd: GDRVINFO,
            driver: empty,
            version: empty,
            firmware: empty,
            rest: [0; 96],
        };
        self.ask(name, &mut info)?;
        Ok(Driver {
            name: string(&info.driver),
            version: string(&info.version),
            firmware: string(&info.firmware),
        })
    }

    /// Speed in Mbit/s (0: unknown), full duplex, and what the adapter is able to do.
    pub fn speed(&self, name: &str) -> (u32, Option<bool>, Abilities) {
        let mut s = Settings { cmd: GSET, ..Settings::default() };
        if self.ask(name, &mut s).is_err() {
            return (0, None, Abilities::default());
        }
        let mbps = u32::from(s.speed_hi) << 16 | u32::from(s.speed);
        let known = mbps != SPEED_UNKNOWN && mbps != 0xffff;
        let duplex = match s.duplex {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        let medium = match s.port {
            PORT_TP => Some(Medium::Copper),
            PORT_FIBRE => Some(Medium::Fiber),
            _ => None,
        };
        let abilities = Abilities {
            medium,
            negotiates: s.autoneg != 0,
            supported: s.supported,
            advertised: s.advertising,
        };
        (if known { mbps } else { 0 }, duplex, abilities)
    }

    /// Switches large receive offload off, as its result cannot be segmented again in software. A
    /// device without it, or one that refuses, is left as it is.
    pub fn lro_off(&self, name: &str) {
        let mut v = Value { cmd: GFLAGS, data: 0 };
        if self.ask(name, &mut v).is_ok() && v.data & FLAG_LRO != 0 {
            let mut v = Value { cmd: SFLAGS, data: v.data & !FLAG_LRO };
            let _ = self.ask(name, &mut v);
        }
    }
}

fn string(raw: &[c_char; 32]) -> String {
    let bytes = raw.map(|c| c as u8);
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(s) => s.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}
