//! vhost-user sockets: registration, the library's callbacks, what is known about the guest.

use super::queue::{VhostRx, VhostTx};
use super::state::{Shared, VhostCounters};
use crate::{DpdkError, DpdkPool, Eal};
use dpdk_sys as sys;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Longest path of a UNIX socket, without the NUL.
const PATH_MAX: usize = 107;

/// Who makes the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The guest; we connect, and again whenever it comes back.
    Client,
    /// We do, and unlink it in the end.
    Server,
}

/// Called when a guest, or one of its queues, comes or goes. Runs on the library's thread and
/// must neither block nor touch the socket.
pub type OnChange = Arc<dyn Fn() + Send + Sync>;

/// How to serve a guest.
#[derive(Clone)]
pub struct VhostConfig {
    /// Path of the socket.
    pub path: String,
    /// Who makes it.
    pub mode: Mode,
    /// Offer the IOMMU feature?
    pub iommu: bool,
    /// Offer post-copy live migration?
    pub postcopy: bool,
    /// Send handles.
    pub n_txq: usize,
    /// Attempts to send after the first when the guest's queue is full but moves.
    pub tx_retries: u32,
    /// Move packets by the library's functions only, never by our own.
    pub library: bool,
    /// Where received packets are put.
    pub pool: Arc<DpdkPool>,
    /// Whom to tell about changes.
    pub on_change: Option<OnChange>,
}

/// What is known about a connected guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VhostInfo {
    /// NUMA node of its memory, if known.
    pub numa: Option<usize>,
    /// The socket.
    pub socket: String,
    /// Negotiated virtio features.
    pub features: u64,
    /// MTU the guest was told, if any.
    pub mtu: Option<u16>,
    /// Do the library's functions move the packets?
    pub library: bool,
    /// Entries of each ring.
    pub vrings: Vec<u16>,
}

/// A registered socket; dropping it disconnects the guest. Its queues then find no guest.
pub struct VhostSocket {
    path: CString,
    mode: Mode,
    shared: Arc<Shared>,
    pool: Arc<DpdkPool>,
    /// Rings on which the current guest was told not to notify us, and the change they belong to.
    quiet: (u64, u64),
}

struct Entry {
    shared: Arc<Shared>,
    on_change: Option<OnChange>,
}

static SOCKETS: Mutex<Option<HashMap<String, Entry>>> = Mutex::new(None);

fn with_sockets<T>(f: impl FnOnce(&mut HashMap<String, Entry>) -> T) -> T {
    let mut sockets = SOCKETS.lock().unwrap_or_else(|e| e.into_inner());
    f(sockets.get_or_insert_default())
}

impl VhostSocket {
    /// Registers the socket and starts to connect or listen.
    pub fn open(_eal: Eal, config: &VhostConfig) -> Result<VhostSocket, DpdkError> {
        let what = format!("vhost-user socket '{}'", config.path);
        let error = |reason: &str| DpdkError::new(&what, reason);
        if config.path.len() > PATH_MAX {
            return Err(error("the path is longer than 107 bytes"));
        }
        let path = CString::new(config.path.as_str()).map_err(|_| error("contains a NUL byte"))?;
        if config.mode == Mode::Server {
            remove_stale(Path::new(&config.path)).map_err(|reason| error(&reason))?;
        }
        let shared = Arc::new(Shared::new(
            config.n_txq.max(1),
            config.tx_retries,
            !config.library && !config.postcopy,
        ));
        let entry = Entry { shared: shared.clone(), on_change: config.on_change.clone() };
        let fresh = with_sockets(|sockets| match sockets.contains_key(&config.path) {
            true => false,
            false => sockets.insert(config.path.clone(), entry).is_none(),
        });
        if !fresh {
            return Err(error("another port uses it already"));
        }
        if let Err((step, ret)) = register(&path, config) {
            with_sockets(|sockets| sockets.remove(&config.path));
            return Err(DpdkError::code(format!("{what}: cannot {step}"), ret));
        }
        let (pool, mode) = (config.pool.clone(), config.mode);
        Ok(VhostSocket { path, mode, shared, pool, quiet: (0, 0) })
    }

    /// Queues the guest sends on; 1 without a guest. More handles may be taken when it grows, and
    /// those beyond it may be dropped when it shrinks; neither has to be.
    pub fn n_rxq(&self) -> usize {
        self.shared.n_rxq()
    }

    /// Send handles in total.
    pub fn n_txq(&self) -> usize {
        self.shared.tx.len()
    }

    /// A receive handle; None when it is out already.
    pub fn rx(&self, index: usize) -> Option<VhostRx> {
        VhostRx::take(&self.shared, &self.pool, index)
    }

    /// A send handle; None when it is out already.
    pub fn tx(&self, index: usize) -> Option<VhostTx> {
        VhostTx::take(&self.shared, index)
    }

    /// Who makes the socket.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Is a guest served?
    pub fn connected(&self) -> bool {
        self.shared.connected()
    }

    /// Times a guest came or went.
    pub fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::Relaxed)
    }

    /// Counters of receiving and of sending.
    pub fn counters(&self) -> (VhostCounters, VhostCounters) {
        self.shared.counters()
    }

    /// What guests did wrong on rings that we serve ourselves, and how often.
    pub fn misdeeds(&self) -> Vec<(vhost::Misdeed, u64)> {
        self.shared.misdeeds()
    }

    /// Administrative state: down, nothing is received and what is sent is dropped.
    pub fn set_up(&self, up: bool) {
        self.shared.up.store(up, Ordering::Relaxed);
    }

    /// Administrative state.
    pub fn is_up(&self) -> bool {
        self.shared.up.load(Ordering::Relaxed)
    }

    /// See [`VhostConfig::tx_retries`].
    pub fn set_tx_retries(&self, most: u32) {
        self.shared.retries_max.store(most, Ordering::Relaxed);
    }

    /// Tells the guest not to notify us on rings that were enabled since the last call: we poll.
    /// To be called now and then; a ring that is not quiet costs the guest time, nothing else.
    pub fn quieten(&mut self) {
        let generation = self.changes();
        if self.quiet.1 != generation {
            self.quiet = (0, generation);
        }
        let mut fresh = self.shared.all_rx() & !self.quiet.0;
        if fresh == 0 {
            return;
        }
        let Some(guest) = self.shared.enter_control() else { return };
        while fresh != 0 {
            let pair = fresh.trailing_zeros();
            fresh &= fresh - 1;
            self.quiet.0 |= 1 << pair;
            // SAFETY: the guest is held.
            unsafe { sys::rte_vhost_enable_guest_notification(guest.vid, pair as u16 * 2 + 1, 0) };
        }
    }

    /// What is known about the guest; None without one.
    pub fn info(&self) -> Option<VhostInfo> {
        let guest = self.shared.enter_control()?;
        let (vid, mut info) = (guest.vid, VhostInfo::default());
        info.socket = self.path.to_string_lossy().into_owned();
        info.library = !self.shared.is_own();
        // SAFETY: the guest is held; each call fills what it is given and fails cleanly.
        unsafe {
            info.numa = usize::try_from(sys::rte_vhost_get_numa_node(vid)).ok();
            sys::rte_vhost_get_negotiated_features(vid, &mut info.features);
            let mut mtu = 0;
            info.mtu = (sys::rte_vhost_get_mtu(vid, &mut mtu) == 0 && mtu > 0).then_some(mtu);
            for ring in 0..sys::rte_vhost_get_vring_num(vid) {
                let mut vring: sys::rte_vhost_vring = std::mem::zeroed();
                if sys::rte_vhost_get_vhost_vring(vid, ring, &mut vring) == 0 {
                    info.vrings.push(vring.size);
                }
            }
        }
        Some(info)
    }
}

impl Drop for VhostSocket {
    fn drop(&mut self) {
        self.shared.leaving.wait(&self.path);
        // The callbacks that this makes need the entry, and the lock on the table free.
        // SAFETY: registered by us; the string is NUL-terminated.
        unsafe { sys::rte_vhost_driver_unregister(self.path.as_ptr()) };
        with_sockets(|sockets| sockets.remove(self.path.to_string_lossy().as_ref()));
    }
}

/// Removes a socket nobody listens on. Anything else at this path is an error.
fn remove_stale(path: &Path) -> Result<(), String> {
    let Ok(meta) = path.symlink_metadata() else { return Ok(()) };
    if !meta.file_type().is_socket() {
        return Err("something that is not a socket is there".into());
    }
    if UnixStream::connect(path).is_ok() {
        return Err("another process listens on it".into());
    }
    std::fs::remove_file(path).map_err(|e| format!("cannot remove the old socket: {e}"))
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

/// Registers and starts; on failure says at which step, with nothing left registered.
fn register(path: &CStr, config: &VhostConfig) -> Result<(), (&'static str, i32)> {
    let mut flags = sys::RTE_VHOST_USER_NET_COMPLIANT_OL_FLAGS;
    for (on, flag) in [
        (config.mode == Mode::Client, sys::RTE_VHOST_USER_CLIENT),
        (config.iommu, sys::RTE_VHOST_USER_IOMMU_SUPPORT),
        (config.postcopy, sys::RTE_VHOST_USER_POSTCOPY_SUPPORT),
    ] {
        flags |= if on { flag } else { 0 };
    }
    // Without checksum offload a guest may not use what depends on it (virtio 1.1, 5.1.3.1); the
    // rest of the features stay those of OVS, so that running guests can reconnect here.
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
        let failed = steps.into_iter().find(|(_, ret)| *ret != 0);
        let started = || ("start", sys::rte_vhost_driver_start(path.as_ptr()));
        match failed.or_else(|| Some(started()).filter(|(_, ret)| *ret != 0)) {
            None => Ok(()),
            Some(failure) => {
                sys::rte_vhost_driver_unregister(path.as_ptr());
                Err(failure)
            }
        }
    }
}

/// The socket a connection belongs to. The entry is cloned out so that no lock is held.
fn entry(vid: i32) -> Option<Entry> {
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
        Some(Entry { shared: entry.shared.clone(), on_change: entry.on_change.clone() })
    })
}

struct Messages(sys::rte_vhost_user_extern_ops);

// SAFETY: functions, never written.
unsafe impl Sync for Messages {}

static MESSAGES: Messages = Messages(sys::rte_vhost_user_extern_ops {
    pre_msg_handle: Some(before_message),
    post_msg_handle: Some(after_message),
});

/// The number of vhost-user's SET_MEM_TABLE, with which every message begins.
const SET_MEM_TABLE: u32 = 5;

unsafe extern "C" fn new_connection(vid: i32) -> i32 {
    if let Some(entry) = entry(vid) {
        entry.shared.leaving.ended();
    }
    // SAFETY: the library passes a live guest; the functions are static.
    unsafe { sys::rte_vhost_extern_callback_register(vid, &MESSAGES.0, std::ptr::null_mut()) }
}

/// The library holds the locks of all rings here, or has none that matters (GET_VRING_BASE).
unsafe extern "C" fn before_message(vid: i32, message: *mut libc::c_void) -> i32 {
    // SAFETY: a message begins with its number.
    let sets_memory = unsafe { message.cast::<u32>().read() } == SET_MEM_TABLE;
    if let Some(entry) = entry(vid) {
        entry.shared.before_message(vid, sets_memory);
    }
    sys::RTE_VHOST_MSG_RESULT_NOT_HANDLED
}

unsafe extern "C" fn after_message(vid: i32, message: *mut libc::c_void) -> i32 {
    // SAFETY: a message begins with its number, and answers keep it.
    let sets_memory = unsafe { message.cast::<u32>().read() } == SET_MEM_TABLE;
    if let Some(entry) = entry(vid) {
        entry.shared.after_message(vid, sets_memory);
    }
    sys::RTE_VHOST_MSG_RESULT_NOT_HANDLED
}

fn tell(entry: &Entry) {
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
    if let Some(entry) = entry(vid) {
        entry.shared.closed(vid);
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
