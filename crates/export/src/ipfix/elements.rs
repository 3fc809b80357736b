//! Information elements (IANA's "IPFIX Information Elements"; tunnels: VMware's own, as Open
//! vSwitch uses them), in the order in which templates and records have them.

/// An element: its number, the bytes of a value, and the enterprise whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub id: u16,
    pub bytes: u16,
    pub enterprise: u32,
}

/// Length of an element whose values say theirs themselves (RFC 7011, section 7).
pub(super) const VARIABLE: u16 = 65535;
const VMWARE: u32 = 6876;

const fn iana(id: u16, bytes: u16) -> Element {
    Element { id, bytes, enterprise: 0 }
}

const fn vmware(id: u16, bytes: u16) -> Element {
    Element { id, bytes, enterprise: VMWARE }
}

/// What each record begins with.
pub(super) const COMMON: &[Element] = &[
    iana(138, 4), // observationPointId
    iana(61, 1),  // flowDirection
    iana(56, 6),  // sourceMacAddress
    iana(80, 6),  // destinationMacAddress
    iana(256, 2), // ethernetType
    iana(240, 1), // ethernetHeaderLength
];
/// The interface that the packet came in on.
pub(super) const INGRESS: &[Element] = &[
    iana(10, 4),        // ingressInterface
    iana(368, 4),       // ingressInterfaceType
    iana(82, VARIABLE), // interfaceName
    iana(83, VARIABLE), // interfaceDescription
];
/// The interface that it goes out by.
pub(super) const EGRESS: &[Element] = &[
    iana(14, 4),        // egressInterface
    iana(369, 4),       // egressInterfaceType
    iana(82, VARIABLE), // interfaceName
    iana(83, VARIABLE), // interfaceDescription
];
pub(super) const VLAN: &[Element] = &[
    iana(58, 2),  // vlanId
    iana(243, 2), // dot1qVlanId
    iana(244, 1), // dot1qPriority
];
pub(super) const IP: &[Element] = &[
    iana(60, 1),  // ipVersion
    iana(192, 1), // ipTTL
    iana(4, 1),   // protocolIdentifier
    iana(195, 1), // ipDiffServCodePoint
    iana(196, 1), // ipPrecedence
    iana(5, 1),   // ipClassOfService
];
pub(super) const IPV4: &[Element] = &[
    iana(8, 4),  // sourceIPv4Address
    iana(12, 4), // destinationIPv4Address
];
pub(super) const IPV6: &[Element] = &[
    iana(27, 16), // sourceIPv6Address
    iana(28, 16), // destinationIPv6Address
    iana(31, 4),  // flowLabelIPv6
];
pub(super) const PORTS: &[Element] = &[
    iana(7, 2),  // sourceTransportPort
    iana(11, 2), // destinationTransportPort
];
pub(super) const ICMP4: &[Element] = &[
    iana(176, 1), // icmpTypeIPv4
    iana(177, 1), // icmpCodeIPv4
];
pub(super) const ICMP6: &[Element] = &[
    iana(178, 1), // icmpTypeIPv6
    iana(179, 1), // icmpCodeIPv6
];
pub(super) const TUNNEL: &[Element] = &[
    vmware(893, 4),        // tunnelSourceIPv4Address
    vmware(894, 4),        // tunnelDestinationIPv4Address
    vmware(895, 1),        // tunnelProtocolIdentifier
    vmware(896, 2),        // tunnelSourceTransportPort
    vmware(897, 2),        // tunnelDestinationTransportPort
    vmware(891, 1),        // tunnelType
    vmware(892, VARIABLE), // tunnelKey
];
/// Elements that are reported where `other_config:virtual_obs_id` is set.
pub(super) const VIRTUAL: &[Element] = &[vmware(898, VARIABLE)]; // virtualObsID
/// What was counted of each flow.
pub(super) const COUNTS: &[Element] = &[
    iana(158, 4), // flowStartDeltaMicroseconds
    iana(159, 4), // flowEndDeltaMicroseconds
    iana(133, 8), // droppedPacketDeltaCount
    iana(135, 8), // droppedPacketTotalCount
    iana(2, 8),   // packetDeltaCount
    iana(86, 8),  // packetTotalCount
    iana(354, 8), // ingressUnicastPacketTotalCount
    iana(355, 8), // ingressMulticastPacketTotalCount
    iana(356, 8), // ingressBroadcastPacketTotalCount
    iana(357, 8), // egressUnicastPacketTotalCount
    iana(358, 8), // egressBroadcastPacketTotalCount
    iana(19, 8),  // postMCastPacketDeltaCount
    iana(174, 8), // postMCastPacketTotalCount
    iana(352, 8), // layer2OctetDeltaCount
    iana(353, 8), // layer2OctetTotalCount
    iana(136, 1), // flowEndReason
];
/// Counters of flows of IP.
pub(super) const IP_COUNTS: &[Element] = &[
    iana(132, 8), // droppedOctetDeltaCount
    iana(134, 8), // droppedOctetTotalCount
    iana(1, 8),   // octetDeltaCount
    iana(85, 8),  // octetTotalCount
    iana(198, 8), // octetDeltaSumOfSquares
    iana(199, 8), // octetTotalSumOfSquares
    iana(25, 8),  // minimumIpTotalLength
    iana(26, 8),  // maximumIpTotalLength
    iana(20, 8),  // postMCastOctetDeltaCount
    iana(175, 8), // postMCastOctetTotalCount
];
/// Counters of flows of TCP.
pub(super) const TCP_COUNTS: &[Element] = &[
    iana(222, 8), // tcpAckTotalCount
    iana(219, 8), // tcpFinTotalCount
    iana(221, 8), // tcpPshTotalCount
    iana(220, 8), // tcpRstTotalCount
    iana(218, 8), // tcpSynTotalCount
    iana(223, 8), // tcpUrgTotalCount
];
/// Elements about the exporter itself: what it is reported by, and what it reports.
pub(super) const EXPORTER: &[Element] = &[
    iana(144, 4), // exportingProcessId
    iana(167, 8), // notSentPacketTotalCount
];
