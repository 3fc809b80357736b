//! Changes of a port's link, as its driver reports them by an interrupt.

use dpdk_sys as sys;
use std::sync::Arc;

/// Called by a thread of DPDK when a link has changed; must neither block nor panic.
pub type OnLinkChange = Arc<dyn Fn() + Send + Sync>;

/// A callback that is registered for a port; dropping this ends it.
pub(crate) struct LinkWatch {
    port: u16,
    watch: Box<sys::weft_link_watch>,
    /// The callback, to which `watch` points: it lives as long as the registration.
    _on_change: Box<OnLinkChange>,
}

// SAFETY: only DPDK follows the pointers, and the callback is one for any thread.
unsafe impl Send for LinkWatch {}

impl LinkWatch {
    /// Registers the callback; None: DPDK has no memory for it.
    pub fn new(port: u16, on_change: &OnLinkChange) -> Option<LinkWatch> {
        let mut on_change = Box::new(on_change.clone());
        let arg = std::ptr::from_mut(&mut *on_change).cast();
        let mut watch = Box::new(sys::weft_link_watch { changed: Some(changed), arg });
        // SAFETY: the watch and what it points to live until they are unregistered.
        let ret = unsafe { sys::weft_eth_watch_link(port, &mut *watch) };
        (ret == 0).then_some(LinkWatch { port, watch, _on_change: on_change })
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        // SAFETY: registered by `new` for this port.
        unsafe { sys::weft_eth_unwatch_link(self.port, &mut *self.watch) };
    }
}

/// # Safety
/// `arg` is that of a [`LinkWatch`] which lives.
unsafe extern "C" fn changed(arg: *mut libc::c_void) {
    // SAFETY: the caller's promise.
    let on_change = unsafe { &*arg.cast::<OnLinkChange>() };
    on_change();
}
