//! Which ethdev ports are in use, and the lock around DPDK's calls that set ports up, which
//! are not safe to make from two threads at once.

use crate::DpdkError;
use crate::eth_info::raw_info;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard};

static CLAIMED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// The right to make such calls, and the ports that are in use.
pub(crate) struct Claims(MutexGuard<'static, BTreeSet<u16>>);

pub(crate) fn lock() -> Claims {
    crate::eal::take_last_log();
    Claims(CLAIMED.lock().unwrap_or_else(|e| e.into_inner()))
}

impl Claims {
    /// Finds the device `devargs` names, attaching it if needed, and claims it. The flag says
    /// whether it was attached here, so that it is to be removed in the end.
    pub(crate) fn attach(&mut self, devargs: &str) -> Result<(u16, bool), DpdkError> {
        let what = || format!("cannot attach device '{devargs}'");
        if let Some(mac) = by_mac(devargs) {
            let mac = mac.ok_or_else(|| DpdkError::new(what(), "'mac' is not a MAC address"))?;
            let reason = "no attached device has this MAC address; name it by its bus address once";
            let port = find_mac(mac).ok_or_else(|| DpdkError::new(what(), reason))?;
            return self.claim(port, devargs).map(|port| (port, false));
        }
        let c = CString::new(devargs).map_err(|_| DpdkError::new(what(), "contains a NUL byte"))?;
        let find = || find(&c).or_else(|| find_virtual(devargs));
        if let Some(port) = find() {
            return self.claim(port, devargs).map(|port| (port, false));
        }
        // SAFETY: EAL runs, the string is NUL-terminated and copied by DPDK.
        let ret = unsafe { dpdk_sys::rte_dev_probe(c.as_ptr()) };
        if ret < 0 {
            return Err(DpdkError::new(what(), probe_reason(ret)));
        }
        let port = find().ok_or_else(|| DpdkError::new(what(), "it is not a network device"))?;
        self.claim(port, devargs).map(|port| (port, true))
    }

    fn claim(&mut self, port: u16, devargs: &str) -> Result<u16, DpdkError> {
        if self.0.insert(port) {
            return Ok(port);
        }
        let what = format!("cannot attach device '{devargs}'");
        Err(DpdkError::new(what, "another port uses it already"))
    }

    /// Removes a device with all its ports, none of them claimed; false: there is no such device.
    pub(crate) fn detach(&mut self, devargs: &str) -> Result<bool, DpdkError> {
        let what = || format!("cannot detach device '{devargs}'");
        let c = CString::new(devargs).map_err(|_| DpdkError::new(what(), "contains a NUL byte"))?;
        let device = |port| raw_info(port).map(|info| info.device);
        let Some(found) = find(&c).and_then(device).filter(|d| !d.is_null()) else {
            return Ok(false);
        };
        let here: Vec<u16> = ports().filter(|port| device(*port) == Some(found)).collect();
        if here.iter().any(|port| self.0.contains(port)) {
            return Err(DpdkError::new(what(), "a port uses it"));
        }
        // SAFETY: no thread polls ports that are not claimed, and none can be claimed meanwhile.
        let ret = unsafe {
            here.iter().for_each(|port| _ = dpdk_sys::rte_eth_dev_close(*port));
            dpdk_sys::rte_dev_remove(found)
        };
        if ret < 0 { Err(DpdkError::code(what(), ret)) } else { Ok(true) }
    }

    /// Gives the claim up.
    pub(crate) fn release(&mut self, port: u16) {
        self.0.remove(&port);
    }
}

/// What a failed probe means to an operator.
fn probe_reason(ret: i32) -> String {
    let said = DpdkError::code("", ret).reason;
    match ret.abs() {
        libc::ENODEV | libc::ENOENT => format!("no such device, or no driver for it: {said}"),
        _ => said,
    }
}

/// `class=eth,mac=AA:..`: the address, or Some(None) when it does not parse.
fn by_mac(devargs: &str) -> Option<Option<[u8; 6]>> {
    let mac = devargs.strip_prefix("class=eth,mac=")?;
    let bytes: Option<Vec<u8>> =
        mac.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect();
    Some(bytes.and_then(|b| b.try_into().ok()))
}

/// All attached ports.
pub(crate) fn ports() -> impl Iterator<Item = u16> {
    let next = |from: u16| {
        // SAFETY: reads DPDK's table of ports.
        let port = unsafe { dpdk_sys::rte_eth_find_next(from) };
        (port < dpdk_sys::RTE_MAX_ETHPORTS as u16).then_some(port)
    };
    std::iter::successors(next(0), move |port| next(port + 1))
}

fn find_mac(mac: [u8; 6]) -> Option<u16> {
    ports().find(|port| crate::eth_info::mac(*port) == mac)
}

/// The port of a virtual device, by its name. DPDK matches no representor unless devargs say which
/// of the device's it is, and a virtual device that is one has no others.
fn find_virtual(devargs: &str) -> Option<u16> {
    let name = devargs.strip_prefix("vdev:")?.split(',').next()?;
    let name = CString::new(name).ok()?;
    let mut port = 0;
    // SAFETY: the name is NUL-terminated; the number is written if there is such a port.
    let ret = unsafe { dpdk_sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &mut port) };
    (ret == 0).then_some(port)
}

/// The first port that matches, as DPDK matches devargs.
fn find(devargs: &CString) -> Option<u16> {
    // SAFETY: the iterator is plain data, initialised by the first call; `cleanup` frees what an
    // unfinished iteration holds. The string outlives the iteration.
    unsafe {
        let mut iterator: dpdk_sys::rte_dev_iterator = std::mem::zeroed();
        if dpdk_sys::rte_eth_iterator_init(&mut iterator, devargs.as_ptr()) != 0 {
            return None;
        }
        let port = dpdk_sys::rte_eth_iterator_next(&mut iterator);
        if port >= dpdk_sys::RTE_MAX_ETHPORTS as u16 {
            return None;
        }
        dpdk_sys::rte_eth_iterator_cleanup(&mut iterator);
        Some(port)
    }
}
