//! Reads `Interface.options`.

use dpdk::FlowControl;
use port::{PortConfig, PortError};
use std::collections::BTreeMap;

/// Descriptors per queue by default.
const DEFAULT_DESC: u16 = 2048;
/// Descriptors per queue of `afxdp` by default: each holds a buffer.
const AFXDP_DESC: u16 = 1024;
/// Descriptors per queue, at most.
const MAX_DESC: u16 = 4096;
/// Queues, at most.
const MAX_QUEUES: u16 = 1024;
/// Enqueue attempts after the first on a vhost port: by default, and at most.
const TX_RETRIES: (u32, u32) = (8, 32);

fn get<'a>(options: &'a BTreeMap<String, String>, key: &str) -> Option<&'a str> {
    options.get(key).map(|v| v.trim()).filter(|v| !v.is_empty())
}

/// The options of a `dpdk` or `afxdp` interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EthOptions {
    pub devargs: String,
    pub n_rxq: u16,
    pub n_rxd: u16,
    pub n_txd: u16,
    pub n_txq: u16,
    pub mtu: Option<u16>,
    /// The device interrupts when its link changes (`dpdk-lsc-interrupt`).
    pub link_interrupt: bool,
}

impl EthOptions {
    pub(crate) fn read(config: &PortConfig) -> Result<Self, PortError> {
        let options = &config.options;
        let n_rxq = get(options, "n_rxq").and_then(|n| n.parse::<u16>().ok()).unwrap_or(1);
        let n_rxq = n_rxq.clamp(1, MAX_QUEUES);
        let devargs = match config.kind.as_str() {
            "afxdp" => afxdp_devargs(config, n_rxq)?,
            _ => dpdk_devargs(config)?,
        };
        let default = if config.kind == "afxdp" { AFXDP_DESC } else { DEFAULT_DESC };
        Ok(EthOptions {
            devargs,
            n_rxq,
            n_rxd: descriptors(get(options, "n_rxq_desc"), default),
            n_txd: descriptors(get(options, "n_txq_desc"), default),
            n_txq: config.n_txq.clamp(1, MAX_QUEUES as usize) as u16,
            mtu: config.mtu_request,
            link_interrupt: get(options, "dpdk-lsc-interrupt") == Some("true"),
        })
    }
}

/// Flow control of a `dpdk` interface, and true if an option says something about it.
pub(crate) fn flow_control(config: &PortConfig) -> (FlowControl, bool) {
    let value = |key: &str| get(&config.options, key);
    let [rx, tx, autoneg] = ["rx-flow-ctrl", "tx-flow-ctrl", "flow-ctrl-autoneg"].map(value);
    let on = |value: Option<&str>| value == Some("true");
    let asked = rx.or(tx).or(autoneg).is_some();
    (FlowControl { rx: on(rx), tx: on(tx), autoneg: on(autoneg) }, asked)
}

/// The device of a `dpdk` interface; empty if none is named.
pub(crate) fn devargs(config: &PortConfig) -> &str {
    get(&config.options, "dpdk-devargs").unwrap_or("")
}

fn dpdk_devargs(config: &PortConfig) -> Result<String, PortError> {
    let devargs = get(&config.options, "dpdk-devargs").map(String::from);
    devargs.ok_or_else(|| {
        PortError::Device(format!(
            "interface '{}' has no 'options:dpdk-devargs': say which device to use, a PCI \
             address or a virtual device such as net_tap0",
            config.name
        ))
    })
}

/// The arguments of the virtual device that drives the kernel interface with the port's name.
fn afxdp_devargs(config: &PortConfig, n_rxq: u16) -> Result<String, PortError> {
    let name = &config.name;
    if !interface_exists(name) {
        return Err(PortError::Device(format!("there is no kernel interface '{name}'")));
    }
    let mode = match get(&config.options, "xdp-mode").unwrap_or("best-effort") {
        "best-effort" => "",
        "native-with-zerocopy" => "",
        "native" | "generic" => ",force_copy=1",
        other => return Err(PortError::Device(format!("'{other}' is not an xdp-mode"))),
    };
    Ok(format!("net_af_xdp_{name},iface={name},queue_count={n_rxq}{mode}"))
}

/// True if there is a kernel interface of this name in this namespace.
fn interface_exists(name: &str) -> bool {
    // SAFETY: the string is NUL-terminated and only read.
    std::ffi::CString::new(name).is_ok_and(|n| unsafe { libc::if_nametoindex(n.as_ptr()) } != 0)
}

/// True if there is a kernel interface of this index in this namespace. This does not wait for the
/// kernel's lock of devices.
pub(crate) fn has_index(ifindex: u32) -> bool {
    let mut name = [0; libc::IFNAMSIZ];
    // SAFETY: the buffer has room for a name.
    !unsafe { libc::if_indextoname(ifindex, name.as_mut_ptr()) }.is_null()
}

/// A power of two up to 4096, or the default, as OVS reads these options.
fn descriptors(value: Option<&str>, default: u16) -> u16 {
    let parsed = value.and_then(|v| v.parse::<u16>().ok());
    parsed.filter(|n| n.is_power_of_two() && *n <= MAX_DESC).unwrap_or(default)
}

/// `tx-retries-max`: 0 to 32, otherwise the default 8.
pub(crate) fn tx_retries(config: &PortConfig) -> u32 {
    let parsed = get(&config.options, "tx-retries-max").and_then(|v| v.parse::<u32>().ok());
    parsed.filter(|n| *n <= TX_RETRIES.1).unwrap_or(TX_RETRIES.0)
}

/// `vhost-rings`: true if DPDK's vhost library moves the packets, and not the crate `vhost-user`.
pub(crate) fn vhost_library(config: &PortConfig) -> Result<bool, PortError> {
    match get(&config.options, "vhost-rings").unwrap_or("own") {
        "own" => Ok(false),
        "library" => Ok(true),
        other => Err(PortError::Device(format!(
            "'{other}' is not a way to serve 'vhost-rings': own (the default) or library"
        ))),
    }
}

/// `vhost-server-path` of a `dpdkvhostuserclient` interface.
pub(crate) fn server_path(config: &PortConfig) -> Result<String, PortError> {
    let path = get(&config.options, "vhost-server-path").map(String::from);
    path.ok_or_else(|| {
        PortError::Device(format!(
            "interface '{}' has no 'options:vhost-server-path': say where the guest's socket is",
            config.name
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(options: &[(&str, &str)]) -> PortConfig {
        let options = options.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        PortConfig { name: "p".into(), kind: "dpdk".into(), options, ..Default::default() }
    }

    #[test]
    fn descriptors_are_powers_of_two() {
        let cases = [("", 2048), ("512", 512), ("1000", 2048), ("8192", 2048), ("-4", 2048)];
        for (text, n) in cases {
            let options = [("dpdk-devargs", "net_null0"), ("n_rxq_desc", text)];
            assert_eq!(EthOptions::read(&config(&options)).unwrap().n_rxd, n, "{text}");
        }
    }

    #[test]
    fn missing_options_are_named() {
        let error = EthOptions::read(&config(&[])).unwrap_err().to_string();
        assert!(error.contains("dpdk-devargs"), "{error}");
        let error = server_path(&config(&[("vhost-server-path", " ")])).unwrap_err().to_string();
        assert!(error.contains("vhost-server-path"), "{error}");
    }

    #[test]
    fn retries_have_a_limit() {
        for (text, n) in [("0", 0), ("32", 32), ("33", 8), ("x", 8)] {
            assert_eq!(tx_retries(&config(&[("tx-retries-max", text)])), n);
        }
    }
}
