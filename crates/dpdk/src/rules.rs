//! An adapter's rules, by `rte_flow`.
//!
//! Calls block as long as the driver likes: they belong on a thread of their own. The library takes
//! a lock per port around each. A handle does not keep its device open: once that is closed, calls
//! answer ENODEV.

mod forward;

use crate::eth::{Dev, EthDev};
use dpdk_sys as sys;
use port::{
    AdapterPort, ForwardRule, Header, MarkRule, PATTERN_BYTES, Pattern, RuleCount, RuleError,
    RuleId, RuleTable,
};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// The rules of one started device.
pub struct EthRules {
    dev: Weak<Dev>,
    queues: u16,
    /// Rules of the device by the number that the caller knows; a handle is used once.
    flows: BTreeMap<RuleId, *mut sys::rte_flow>,
    next: u64,
    /// Resets of the adapter that were heeded.
    upsets: u32,
}

// SAFETY: handles mean something to the library only, which locks around every use.
unsafe impl Send for EthRules {}

impl EthRules {
    /// The rules of a device that was started with so many receive queues.
    pub fn new(dev: &EthDev, queues: u16) -> EthRules {
        let upsets = dev.upsets().load(Ordering::Acquire);
        let dev = Arc::downgrade(dev.shared());
        EthRules { dev, queues, flows: BTreeMap::new(), next: 1, upsets }
    }

    /// The open device. Handles of before a reset mean nothing and are not used any more.
    fn dev(&mut self) -> Result<Arc<Dev>, RuleError> {
        let dev = self.dev.upgrade().ok_or_else(|| RuleError {
            errno: libc::ENODEV,
            kind: 0,
            message: "the device is closed".into(),
        })?;
        let upsets = dev.upsets.lock().unwrap_or_else(|e| e.into_inner()).count();
        if upsets != self.upsets {
            self.upsets = upsets;
            self.flows.clear();
        }
        Ok(dev)
    }

    /// A number for a new rule.
    fn keep(&mut self, flow: *mut sys::rte_flow) -> RuleId {
        let id = RuleId(self.next);
        self.next += 1;
        self.flows.insert(id, flow);
        id
    }

    /// Makes a rule that marks packets.
    fn mark(&mut self, rule: &MarkRule) -> Result<*mut sys::rte_flow, RuleError> {
        let dev = self.dev()?;
        let headers = headers(&rule.pattern);
        let (mut flow, mut error) = (std::ptr::null_mut(), no_error());
        dev.has_rules.store(true, Ordering::Relaxed);
        // SAFETY: the device is open while `dev` lives; the arrays have the length given and are
        // copied.
        let ret = unsafe {
            let (n, rss) = (headers.len() as u32, dev.info.rss & sys::WEFT_RSS);
            let queues = self.queues;
            sys::weft_flow_mark(
                dev.port,
                headers.as_ptr(),
                n,
                rule.mark,
                queues,
                rss,
                &mut flow,
                &mut error,
            )
        };
        refused(ret, &error).map(|()| flow)
    }
}

impl RuleTable for EthRules {
    fn create(&mut self, rule: &MarkRule) -> Result<RuleId, RuleError> {
        let flow = self.mark(rule)?;
        Ok(self.keep(flow))
    }

    fn destroy(&mut self, rule: RuleId) -> Result<(), RuleError> {
        let dev = self.dev()?;
        let flow = self.flows.remove(&rule).ok_or_else(no_rule)?;
        let mut error = no_error();
        // SAFETY: the device is open and was not stopped since the rule was made; the handle is
        // used once.
        let ret = unsafe { sys::weft_flow_destroy(dev.port, flow, &mut error) };
        refused(ret, &error)
    }

    fn flush(&mut self) -> Result<(), RuleError> {
        let dev = self.dev()?;
        self.flows.clear();
        let mut error = no_error();
        // SAFETY: the device is open.
        let ret = unsafe { sys::weft_flow_flush(dev.port, &mut error) };
        refused(ret, &error)
    }

    fn place(&self) -> Option<AdapterPort> {
        let port = self.dev.upgrade()?.port;
        // SAFETY: the device is open, or the number is refused.
        let domain = unsafe { sys::weft_flow_domain(port) };
        Some(AdapterPort { adapter: u16::try_from(domain).ok()?, port })
    }

    fn forward(&mut self, rule: &ForwardRule) -> Result<RuleId, RuleError> {
        let dev = self.dev()?;
        dev.has_rules.store(true, Ordering::Relaxed);
        let flow = forward::create(dev.port, rule)?;
        Ok(self.keep(flow))
    }

    fn count(&mut self, rule: RuleId) -> Result<RuleCount, RuleError> {
        let dev = self.dev()?;
        let flow = *self.flows.get(&rule).ok_or_else(no_rule)?;
        forward::count(dev.port, flow)
    }
}

/// Ends all rules of a device that is about to be stopped: drivers differ in what becomes of them.
pub(crate) fn flush(port: u16) {
    // SAFETY: the port is the caller's.
    unsafe { sys::weft_flow_flush(port, &mut no_error()) };
}

fn no_rule() -> RuleError {
    RuleError { errno: libc::ENOENT, kind: 0, message: "no such rule".into() }
}

fn no_error() -> sys::weft_flow_error {
    sys::weft_flow_error { type_: 0, message: [0; 124] }
}

fn refused(ret: i32, error: &sys::weft_flow_error) -> Result<(), RuleError> {
    if ret == 0 {
        return Ok(());
    }
    let errno = ret.abs();
    // SAFETY: both are NUL-terminated.
    let (said, text) = unsafe {
        let said = CStr::from_ptr(error.message.as_ptr());
        (said, CStr::from_ptr(sys::rte_strerror(errno)))
    };
    let message = if said.is_empty() { text } else { said };
    let message = message.to_string_lossy().into_owned();
    Err(RuleError { errno, kind: error.type_, message })
}

/// A pattern cut into headers.
fn headers(pattern: &Pattern) -> Vec<sys::weft_header> {
    let mut at = 0;
    let one = |header: &Header| {
        let from = at;
        at += header.len();
        let (mut spec, mut mask) = ([0; 40], [0; 40]);
        let end = at.min(PATTERN_BYTES);
        if from < end {
            spec[..end - from].copy_from_slice(&pattern.value[from..end]);
            mask[..end - from].copy_from_slice(&pattern.mask[from..end]);
        }
        let any = mask.iter().all(|m| *m == 0).into();
        sys::weft_header { kind: kind(*header) as u16, any, spec, mask }
    };
    pattern.headers.iter().map(one).collect()
}

fn kind(header: Header) -> u32 {
    match header {
        Header::Ethernet => sys::WEFT_HEADER_ETH,
        Header::Vlan => sys::WEFT_HEADER_VLAN,
        Header::Ipv4 => sys::WEFT_HEADER_IPV4,
        Header::Ipv6 => sys::WEFT_HEADER_IPV6,
        Header::Tcp => sys::WEFT_HEADER_TCP,
        Header::Udp => sys::WEFT_HEADER_UDP,
        Header::Sctp => sys::WEFT_HEADER_SCTP,
        Header::Icmp => sys::WEFT_HEADER_ICMP,
        Header::Icmp6 => sys::WEFT_HEADER_ICMP6,
        Header::Vxlan => sys::WEFT_HEADER_VXLAN,
    }
}
