//! vhost-user sockets: what is known about the guest, its queues.

use super::client::Client;
use super::library::{Registered, VhostConfig, register, start, unregister, with_sockets};
use super::queue::{VhostRx, VhostTx};
use super::state::VhostState;
use crate::{DpdkError, DpdkPool, Eal};
use dpdk_sys as sys;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vhost_user::{Claim, Counters, Info, Mode};

/// A registered socket; dropping it disconnects the guest. Its queues then find no guest.
pub struct VhostSocket {
    path: CString,
    mode: Mode,
    shared: Arc<VhostState>,
    pool: Arc<DpdkPool>,
    /// Rings on which the current guest was asked not to notify us, and the change they belong to.
    quiet: (u64, u64),
    /// Connects, where a front-end makes the socket.
    client: Option<Client>,
    _claim: Claim,
}

impl VhostSocket {
    /// Registers the socket whose path was claimed, and starts to connect or listen.
    pub fn open(_eal: Eal, config: &VhostConfig, claim: Claim) -> Result<VhostSocket, DpdkError> {
        let common = &config.common;
        let what = format!("vhost-user socket '{}'", common.path);
        let no_path = |_| DpdkError::new(&what, "contains a NUL byte");
        let path = CString::new(common.path.as_str()).map_err(no_path)?;
        let shared = Arc::new(VhostState::new(common.n_txq.max(1), common.tx_retries));
        let entry = Registered { shared: shared.clone(), on_change: common.on_change.clone() };
        with_sockets(|sockets| sockets.insert(common.path.clone(), entry));
        let client = match begin(&path, config, &shared) {
            Ok(client) => client,
            Err((step, ret)) => {
                with_sockets(|sockets| sockets.remove(&common.path));
                return Err(DpdkError::code(format!("{what}: cannot {step}"), ret));
            }
        };
        let (pool, mode) = (config.pool.clone(), common.mode);
        Ok(VhostSocket { path, mode, shared, pool, quiet: (0, 0), client, _claim: claim })
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

    /// True if a guest is served.
    pub fn connected(&self) -> bool {
        self.shared.connected()
    }

    /// Times a guest came or went.
    pub fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::Relaxed)
    }

    /// Counters of receiving and of sending.
    pub fn counters(&self) -> (Counters, Counters) {
        self.shared.counters()
    }

    /// Administrative state: down, nothing is received and what is sent is dropped.
    pub fn set_up(&self, up: bool) {
        self.shared.up.store(up, Ordering::Relaxed);
    }

    /// Administrative state.
    pub fn is_up(&self) -> bool {
        self.shared.up.load(Ordering::Relaxed)
    }

    /// See [`Config::tx_retries`].
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
    pub fn info(&self) -> Option<Info> {
        let guest = self.shared.enter_control()?;
        let (vid, mut info) = (guest.vid, Info::default());
        info.socket = self.path.to_string_lossy().into_owned();
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
        // The callbacks that this makes need the entry, and the lock on the table free.
        match self.client.take() {
            Some(client) => drop(client),
            None => unregister(&self.path),
        }
        with_sockets(|sockets| sockets.remove(self.path.to_string_lossy().as_ref()));
    }
}

/// Registers the socket, and listens or connects; on failure says at which step, with nothing left
/// registered.
fn begin(
    path: &CStr,
    config: &VhostConfig,
    shared: &Arc<VhostState>,
) -> Result<Option<Client>, (&'static str, i32)> {
    register(path, config)?;
    let started = match config.common.mode {
        Mode::Client => Client::new(path, config, shared).map(Some).map_err(|_| "connect"),
        Mode::Server => start(path).then_some(None).ok_or("start"),
    };
    started.map_err(|step| {
        unregister(path);
        (step, -1)
    })
}
