//! Registration of sockets with DPDK's vhost library, and its callbacks.

use super::state::VhostState;
use crate::DpdkPool;
use dpdk_sys as sys;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex};
use vhost_user::{Config, Mode, OnChange};

/// How to serve a guest.
#[derive(Clone)]
pub struct VhostConfig {
    /// What does not depend on who serves it.
    pub common: Config,
    /// True if the IOMMU feature is offered.
    pub iommu: bool,
    /// True if post-copy live migration is offered.
    pub postcopy: bool,
    /// Where received packets are put.
    pub pool: Arc<DpdkPool>,
}

pub(super) struct Registered {
    pub shared: Arc<VhostState>,
    pub on_change: Option<OnChange>,
}

static SOCKETS: Mutex<Option<HashMap<String, Registered>>> = Mutex::new(None);

pub(super) fn with_sockets<T>(f: impl FnOnce(&mut HashMap<String, Registered>) -> T) -> T {
    let mut sockets = SOCKETS.lock().unwrap_or_else(|e| e.into_inner());
    f(sockets.get_or_insert_default())
}

struct Callbacks(sys::rte_vhost_device_ops);

// SAFETY: functions and a null pointer, never written.
unsafe impl Sync for Callbacks {}

static CALLBACKS: Callbacks = Callbacks(sys::rte_vhost_device_ops {
    new_device: Some(new_device),
    destroy_device: Some(destroy_device),
    vring_state_changed: Some(vring_state_changed),
    features_changed: None,
    new_connection: Some(new_connection),
    destroy_connection: Some(destroy_connection),
    guest_notified: None,
    reserved: [std::ptr::null_mut()],
});

/// Registers the socket; on failure says at which step, with nothing left registered.
pub(super) fn register(path: &CStr, config: &VhostConfig) -> Result<(), (&'static str, i32)> {
    let client = sys::RTE_VHOST_USER_CLIENT | sys::RTE_VHOST_USER_NO_RECONNECT;
    let mut flags =
        sys::RTE_VHOST_USER_NET_COMPLIANT_OL_FLAGS | sys::RTE_VHOST_USER_LINEARBUF_SUPPORT;
    for (on, flag) in [
        (config.common.mode == Mode::Client, client),
        (config.iommu, sys::RTE_VHOST_USER_IOMMU_SUPPORT),
        (config.postcopy, sys::RTE_VHOST_USER_POSTCOPY_SUPPORT),
    ] {
        flags |= if on { flag } else { 0 };
    }
    // Without checksum offload a guest may not use what depends on it (virtio 1.1, 5.1.3.1). With
    // linear buffers the library offers no segmentation either. All as OVS, so that running guests
    // can move between the two.
    let unwanted = 1 << sys::VIRTIO_NET_F_CSUM;
    // SAFETY: the path is NUL-terminated and copied; the callbacks are static.
    unsafe {
        let ret = sys::rte_vhost_driver_register(path.as_ptr(), flags.into());
        if ret != 0 {
            return Err(("register", ret));
        }
        let steps = [
            ("set callbacks", sys::rte_vhost_driver_callback_register(path.as_ptr(), &CALLBACKS.0)),
            ("set features", sys::rte_vhost_driver_disable_features(path.as_ptr(), unwanted)),
        ];
        match steps.into_iter().find(|(_, ret)| *ret != 0) {
            None => Ok(()),
            Some(failure) => {
                unregister(path);
                Err(failure)
            }
        }
    }
}

/// Disconnects the guest and forgets the socket.
pub(super) fn unregister(path: &CStr) {
    // SAFETY: the string is NUL-terminated; of a path that is not registered nothing is done.
    unsafe { sys::rte_vhost_driver_unregister(path.as_ptr()) };
}

/// One socket is started at a time: the first makes the library's thread.
static STARTS: Mutex<()> = Mutex::new(());

thread_local! {
    /// True while this thread starts a socket.
    static STARTING: Cell<bool> = const { Cell::new(false) };
}

/// Listens at a registered socket, or connects to it once. True if that worked.
pub(super) fn start(path: &CStr) -> bool {
    let _one = STARTS.lock().unwrap_or_else(|e| e.into_inner());
    STARTING.set(true);
    // SAFETY: the string is NUL-terminated.
    let ret = unsafe { sys::rte_vhost_driver_start(path.as_ptr()) };
    STARTING.set(false);
    ret == 0
}

/// Waits until no other thread starts a socket. The library has its thread serve a connection
/// before the connection is in its socket's list, and what leaves is taken from that list.
fn wait_for_starts() {
    if !STARTING.get() {
        drop(STARTS.lock());
    }
}

/// The socket a connection belongs to. The entry is cloned out so that no lock is held.
fn entry(vid: i32) -> Option<Registered> {
    let mut buffer = [0 as libc::c_char; 4096];
    // SAFETY: writes a NUL-terminated name of at most the length given.
    let name = unsafe {
        if sys::rte_vhost_get_ifname(vid, buffer.as_mut_ptr(), buffer.len()) != 0 {
            return None;
        }
        CStr::from_ptr(buffer.as_ptr()).to_string_lossy()
    };
    with_sockets(|sockets| {
        let entry = sockets.get(name.as_ref())?;
        Some(Registered { shared: entry.shared.clone(), on_change: entry.on_change.clone() })
    })
}

unsafe extern "C" fn new_connection(vid: i32) -> i32 {
    if let Some(entry) = entry(vid) {
        entry.shared.front_end.set(true);
    }
    0
}

fn tell(entry: &Registered) {
    if let Some(on_change) = &entry.on_change {
        on_change();
    }
}

unsafe extern "C" fn new_device(vid: i32) -> i32 {
    let Some(entry) = entry(vid) else { return -1 };
    // SAFETY: the library passes a live guest and holds none of its locks here.
    unsafe {
        for ring in (1..sys::rte_vhost_get_vring_num(vid)).step_by(2) {
            sys::rte_vhost_enable_guest_notification(vid, ring, 0);
        }
    }
    entry.shared.started(vid);
    tell(&entry);
    0
}

unsafe extern "C" fn destroy_device(vid: i32) {
    if let Some(entry) = entry(vid) {
        entry.shared.stopped(vid);
        tell(&entry);
    }
}

unsafe extern "C" fn destroy_connection(vid: i32) {
    wait_for_starts();
    if let Some(entry) = entry(vid) {
        entry.shared.closed(vid);
        entry.shared.front_end.set(false);
        tell(&entry);
    }
}

unsafe extern "C" fn vring_state_changed(vid: i32, ring: u16, enable: i32) -> i32 {
    if let Some(entry) = entry(vid) {
        entry.shared.ring(vid, ring, enable != 0);
        tell(&entry);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Eal;
    use std::ffi::CString;

    /// A guest can move between ports of either kind, and between us and ovs-vswitchd, while it
    /// runs.
    #[test]
    fn both_kinds_of_ports_offer_the_same_features() {
        let eal = Eal::init(&crate::EalConfig::default()).expect("EAL starts");
        let path = std::env::temp_dir().join(format!("weft-features-{}", std::process::id()));
        let path = path.to_str().expect("a path of text");
        let pool = Arc::new(crate::Pools::new(eal).expect("pools").default_pool().clone());
        let common = Config {
            path: path.into(),
            mode: Mode::Client,
            n_txq: 1,
            tx_retries: 0,
            offloads: false,
            on_change: None,
            warn: None,
            info: None,
        };
        let config = VhostConfig { common, iommu: false, postcopy: false, pool: (*pool).clone() };
        let name = CString::new(path).expect("no NUL in it");
        register(&name, &config).expect("registered");
        let (mut features, mut protocol) = (0, 0);
        // SAFETY: both fill what they are given; the path is registered.
        unsafe {
            assert_eq!(sys::rte_vhost_driver_get_features(name.as_ptr(), &mut features), 0);
            let ret = sys::rte_vhost_driver_get_protocol_features(name.as_ptr(), &mut protocol);
            assert_eq!(ret, 0);
        }
        unregister(&name);
        assert_eq!(features, vhost_user::FEATURES);
        let missing = protocol & !vhost_user::PROTOCOL_FEATURES;
        // A channel back, cryptography, descriptors and notifications on that channel.
        assert_eq!(missing & !(1 << 5 | 1 << 7 | 1 << 10 | 1 << 11), 0, "{missing:#x}");
    }
}
