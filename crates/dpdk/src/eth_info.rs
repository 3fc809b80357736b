//! What an ethdev port says about itself: capabilities, link, counters.

use dpdk_sys as sys;
use std::collections::BTreeMap;
use std::ffi::CStr;

/// Capabilities and identity of a device, in DPDK's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EthInfo {
    /// DPDK's port number.
    pub port: u16,
    /// Driver, such as `net_null`.
    pub driver: String,
    /// `bus_name=...` and what the bus adds, such as vendor and device id.
    pub bus: String,
    /// NUMA node (0 when unknown).
    pub numa: usize,
    /// Kernel interface behind it, 0 if none.
    pub ifindex: u32,
    /// Least receive buffer, bytes.
    pub min_rx_bufsize: u32,
    /// Longest frame received, bytes.
    pub max_rx_pktlen: u32,
    /// Least and greatest layer-3 MTU.
    pub mtu: (u16, u16),
    /// Most receive queues.
    pub max_rx_queues: u16,
    /// Most transmit queues.
    pub max_tx_queues: u16,
    /// Most MAC addresses.
    pub max_mac_addrs: u32,
    /// Most MAC addresses in the hash filter.
    pub max_hash_mac_addrs: u32,
    /// Most virtual functions.
    pub max_vfs: u16,
    /// Most VMDq pools.
    pub max_vmdq_pools: u16,
    /// RSS hash functions (`RTE_ETH_RSS_*`).
    pub rss: u64,
    /// True if the device checks checksums of received IPv4, TCP and UDP.
    pub rx_checksums: bool,
    /// True if the device can interrupt when its link changes.
    pub link_interrupt: bool,
    pub(crate) rx_desc: DescLimit,
    pub(crate) tx_desc: DescLimit,
}

impl EthInfo {
    /// True if the device is asked to check checksums of received packets. `net_tap` would do so on
    /// the CPU, for every packet; `net_virtio` would also deliver packets whose checksums are still
    /// to be computed.
    pub(crate) fn checks_checksums(&self) -> bool {
        let on_cpu = ["net_tap", "net_virtio", "net_virtio_user"];
        self.rx_checksums && !on_cpu.contains(&self.driver.as_str())
    }
}

/// Limits of a descriptor ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DescLimit {
    max: u16,
    min: u16,
    align: u16,
}

impl DescLimit {
    fn new(raw: &sys::rte_eth_desc_lim) -> Self {
        DescLimit { max: raw.nb_max, min: raw.nb_min, align: raw.nb_align.max(1) }
    }

    /// The nearest size the device takes.
    pub(crate) fn fit(&self, wanted: u16) -> u16 {
        let max = if self.max == 0 { u16::MAX } else { self.max };
        let aligned = wanted.max(1).div_ceil(self.align).saturating_mul(self.align);
        aligned.max(self.min).min(max / self.align * self.align)
    }
}

/// Link state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthLink {
    /// True if there is a carrier.
    pub up: bool,
    /// Mbit/s, 0 when unknown.
    pub mbps: u32,
    /// True: full duplex; false: half duplex.
    pub full_duplex: bool,
}

/// Basic and extended counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EthStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets lost for want of a descriptor.
    pub rx_missed: u64,
    /// Bad packets.
    pub rx_errors: u64,
    /// Receive buffers that could not be allocated.
    pub rx_no_buffer: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// The driver's own counters under its own names.
    pub extended: BTreeMap<String, u64>,
}

/// A C string as text; empty for null.
unsafe fn text(pointer: *const libc::c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the caller passes NUL-terminated strings of DPDK.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// The raw description; None when the port is gone.
pub(crate) fn raw_info(port: u16) -> Option<sys::rte_eth_dev_info> {
    // SAFETY: the struct is plain data that the call fills.
    unsafe {
        let mut raw: sys::rte_eth_dev_info = std::mem::zeroed();
        (sys::rte_eth_dev_info_get(port, &mut raw) == 0).then_some(raw)
    }
}

pub(crate) fn info(port: u16) -> Option<EthInfo> {
    let raw = raw_info(port)?;
    // SAFETY: the driver's flags live as long as the device, which exists while the port does.
    let link_interrupt = unsafe { sys::weft_eth_has_link_interrupt(&raw) != 0 };
    // SAFETY: the names in `raw` are static; the device exists while the port does.
    let (driver, bus, numa) = unsafe {
        let bus = sys::rte_bus_name(sys::rte_dev_bus(raw.device));
        let more = text(sys::rte_dev_bus_info(raw.device));
        let comma = if more.is_empty() { "" } else { ", " };
        let bus = format!("bus_name={}{comma}{more}", text(bus));
        (text(raw.driver_name), bus, sys::rte_eth_dev_socket_id(port).max(0) as usize)
    };
    Some(EthInfo {
        port,
        driver,
        bus,
        numa,
        ifindex: raw.if_index,
        min_rx_bufsize: raw.min_rx_bufsize,
        max_rx_pktlen: raw.max_rx_pktlen,
        mtu: (raw.min_mtu, raw.max_mtu),
        max_rx_queues: raw.max_rx_queues,
        max_tx_queues: raw.max_tx_queues,
        max_mac_addrs: raw.max_mac_addrs,
        max_hash_mac_addrs: raw.max_hash_mac_addrs,
        max_vfs: raw.max_vfs,
        max_vmdq_pools: raw.max_vmdq_pools,
        rss: raw.flow_type_rss_offloads,
        rx_checksums: raw.rx_offload_capa & sys::WEFT_RX_CHECKSUMS == sys::WEFT_RX_CHECKSUMS,
        link_interrupt,
        rx_desc: DescLimit::new(&raw.rx_desc_lim),
        tx_desc: DescLimit::new(&raw.tx_desc_lim),
    })
}

pub(crate) fn mac(port: u16) -> [u8; 6] {
    let mut address = sys::rte_ether_addr { addr_bytes: [0; 6] };
    // SAFETY: fills the address, or leaves it zero when there is no such port.
    unsafe { sys::rte_eth_macaddr_get(port, &mut address) };
    address.addr_bytes
}

pub(crate) fn link(port: u16) -> EthLink {
    // SAFETY: plain data that the call fills; zero means down.
    let raw = unsafe {
        let mut raw: sys::rte_eth_link = std::mem::zeroed();
        sys::rte_eth_link_get_nowait(port, &mut raw);
        raw
    };
    let known = raw.link_speed != u32::MAX;
    EthLink {
        up: raw.link_status() != 0,
        mbps: if known { raw.link_speed } else { 0 },
        full_duplex: raw.link_duplex() != 0,
    }
}

pub(crate) fn stats(port: u16) -> EthStats {
    // SAFETY: plain data that the call fills.
    let raw = unsafe {
        let mut raw: sys::rte_eth_stats = std::mem::zeroed();
        sys::rte_eth_stats_get(port, &mut raw);
        raw
    };
    EthStats {
        rx_packets: raw.ipackets,
        rx_bytes: raw.ibytes,
        rx_missed: raw.imissed,
        rx_errors: raw.ierrors,
        rx_no_buffer: raw.rx_nombuf,
        tx_packets: raw.opackets,
        tx_bytes: raw.obytes,
        tx_errors: raw.oerrors,
        extended: extended(port),
    }
}

/// The driver's extended counters by name; empty when it has none or changes them meanwhile.
fn extended(port: u16) -> BTreeMap<String, u64> {
    // SAFETY: the arrays have the length given, and no more than the returned count is read.
    unsafe {
        let count = sys::rte_eth_xstats_get_names(port, std::ptr::null_mut(), 0);
        let count = count.max(0) as usize;
        let mut names: Vec<sys::rte_eth_xstat_name> = vec![std::mem::zeroed(); count];
        let mut values: Vec<sys::rte_eth_xstat> = vec![std::mem::zeroed(); count];
        let size = count as u32;
        if sys::rte_eth_xstats_get_names(port, names.as_mut_ptr(), size) != count as i32
            || sys::rte_eth_xstats_get(port, values.as_mut_ptr(), size) != count as i32
        {
            return BTreeMap::new();
        }
        let named = |x: &sys::rte_eth_xstat| {
            names.get(x.id as usize).map(|n| (text(n.name.as_ptr()), x.value))
        };
        values.iter().filter_map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_sizes_fit_the_device() {
        let limit = DescLimit { max: 4096, min: 64, align: 32 };
        assert_eq!([1, 33, 2048, 65535].map(|n| limit.fit(n)), [64, 64, 2048, 4096]);
        let none = DescLimit { max: 0, min: 0, align: 1 };
        assert_eq!([0, 2048].map(|n| none.fit(n)), [1, 2048]);
    }
}
