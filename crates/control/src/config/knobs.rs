//! What becomes of every column of the database, and of every key that Open vSwitch 3.1 knows: the
//! one list from which columns to monitor, the log's notices (`super::notices`) and the tables in
//! docs/SUPPORT.md are made.

use super::form::Form;
use super::qos::EGRESS_POLICER;

/// What becomes of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// The setting does what it does in ovs-vswitchd.
    Works,
    /// Only these values have an effect; any other is reported in the log.
    Only(&'static [&'static str]),
    /// Only numbers from the first to the second have an effect; any other value is reported in
    /// the log.
    Numbers(i64, i64),
    /// Numbers from the first to the second have an effect; another number counts as the one that
    /// is nearest, and any other value has none. The log reports both.
    Within(u64, u64),
    /// Values of this form do what they do in ovs-vswitchd, at most as far as the setting goes; any
    /// other is reported in the log.
    Of(Form),
    /// The setting has no effect; the log says so unless it has one of these values, which ask for
    /// nothing.
    No(&'static [&'static str]),
    /// The setting has no effect, and no user misses it: it tunes threads of ovs-vswitchd that are
    /// not here. The log says so as information.
    Unneeded,
    /// The daemon writes it.
    Reported,
    /// Not for the switch: ovsdb-server, tools and management layers read and write it.
    Foreign,
}
use Support::{Foreign, No, Numbers, Of, Only, Reported, Unneeded, Within, Works};

impl Support {
    /// True if some values have no effect.
    pub fn may_be_refused(self) -> bool {
        !matches!(self, Works | Reported | Foreign)
    }
}

/// A column, or `COLUMN:KEY` of a map, or `*` for all columns of a table; what becomes of it; a
/// remark.
pub type Knob = (&'static str, Support, &'static str);

/// Nothing but true asks for something.
const OFF: Support = No(&["false"]);
const ANY: Support = No(&[]);
const FLAG: Support = Of(Form::Flag);
const WHOLE: Support = Of(Form::Whole);
const U16: i64 = u16::MAX as i64;
const U32: Support = Numbers(0, u32::MAX as i64);
/// Descriptors of a ring: powers of two.
const DESCRIPTORS: Support =
    Only(&["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096"]);
/// Entries of a table of learned addresses or of multicast groups, as in ovs-vswitchd.
const TABLE_SIZE: Support = Within(10, 1_000_000);
const DUMMY_QUEUES_MAX: u64 = port::DUMMY_QUEUES_MAX as u64;
const QUEUE_SIZE: Support = Numbers(1, 512);
const TUNING: &str = "nothing here is tuned by it";
const NO_REVALIDATORS: &str = "there are no handler and revalidator threads";
const NO_OFFLOAD: &str = "there is no kernel datapath";
const MII: &str = "links are as drivers and the kernel say";
const NO_CT_STATE: &str = "connections have no such state";

const OPEN_VSWITCH: &[Knob] = &[
    ("bridges", Works, ""),
    ("next_cfg", Works, ""),
    ("cur_cfg", Reported, ""),
    ("datapaths", Works, ""),
    ("datapath_types", Reported, ""),
    ("iface_types", Reported, ""),
    ("dpdk_initialized", Reported, ""),
    ("dpdk_version", Reported, ""),
    ("statistics", Reported, ""),
    ("ssl", Works, "OpenFlow only; ovsdb-server reads the row by itself"),
    ("manager_options", Works, "for in-band control only; ovsdb-server talks to them"),
    ("external_ids", Foreign, ""),
    ("ovs_version", Foreign, ""),
    ("db_version", Foreign, ""),
    ("system_type", Foreign, ""),
    ("system_version", Foreign, ""),
    ("other_config:bundle-idle-timeout", WHOLE, ""),
    ("other_config:dpdk-alloc-mem", Works, ""),
    ("other_config:dpdk-extra", Works, ""),
    ("other_config:dpdk-hugepage-dir", Works, ""),
    ("other_config:dpdk-init", Only(&["true", "try"]), "DPDK is always started"),
    ("other_config:dpdk-lcore-mask", Works, ""),
    ("other_config:dpdk-socket-limit", Works, ""),
    ("other_config:dpdk-socket-mem", Works, ""),
    ("other_config:emc-insert-inv-prob", Only(&["0"]), "0 switches the signature cache off"),
    ("other_config:enable-statistics", FLAG, ""),
    ("other_config:flow-limit", Within(1000, u32::MAX as u64), ""),
    ("other_config:flow-restore-wait", FLAG, ""),
    (
        "other_config:hw-offload",
        FLAG,
        "adapters forward packets or mark them (Hardware offload, above)",
    ),
    ("other_config:max-idle", Within(100, u64::MAX), ""),
    ("other_config:max-revalidator", Unneeded, NO_REVALIDATORS),
    ("other_config:min-revalidate-pps", Unneeded, NO_REVALIDATORS),
    ("other_config:n-handler-threads", Unneeded, NO_REVALIDATORS),
    ("other_config:n-offload-threads", WHOLE, ""),
    ("other_config:n-revalidator-threads", Unneeded, NO_REVALIDATORS),
    ("other_config:offload-rebalance", OFF, NO_OFFLOAD),
    ("other_config:per-port-memory", OFF, "one pool of packets serves all ports"),
    ("other_config:pmd-auto-lb", FLAG, ""),
    ("other_config:pmd-auto-lb-improvement-threshold", Of(Form::Between(0, 100)), ""),
    ("other_config:pmd-auto-lb-load-threshold", Of(Form::Between(0, 100)), ""),
    ("other_config:pmd-auto-lb-rebal-interval", Of(Form::Between(0, 20_000)), ""),
    ("other_config:pmd-cpu-mask", Works, ""),
    ("other_config:pmd-maxsleep", Of(Form::Sleeps), ""),
    ("other_config:pmd-perf-metrics", FLAG, ""),
    ("other_config:pmd-rxq-assign", Only(&["cycles", "roundrobin", "group"]), ""),
    ("other_config:pmd-rxq-isolate", FLAG, ""),
    (
        "other_config:pmd-sleep-max",
        Of(Form::Sleeps),
        "the name of pmd-maxsleep in later versions, with values for single cores",
    ),
    (
        "other_config:shared-mempool-config",
        ANY,
        "read and logged with dpdk-init=true; one pool of packets serves all ports",
    ),
    ("other_config:smc-enable", FLAG, ""),
    ("other_config:stats-update-interval", WHOLE, ""),
    ("other_config:tc-policy", No(&["none"]), NO_OFFLOAD),
    ("other_config:tx-flush-interval", Within(0, 1_000_000), ""),
    (
        "other_config:userspace-tso-enable",
        FLAG,
        "of ports that are added afterwards; false takes effect at the next start",
    ),
    ("other_config:vhost-async-support", FLAG, "takes effect at once"),
    ("other_config:vhost-iommu-support", FLAG, ""),
    ("other_config:vhost-postcopy-support", FLAG, ""),
    ("other_config:vhost-sock-dir", Works, ""),
    ("other_config:vlan-limit", WHOLE, ""),
    ("other_config:private_key", Foreign, ""),
    ("other_config:certificate", Foreign, ""),
    ("other_config:ca_cert", Foreign, ""),
    ("other_config:ipsec_skb_mark", Foreign, ""),
];

const BRIDGE: &[Knob] = &[
    ("name", Works, ""),
    ("ports", Works, ""),
    ("controller", Works, ""),
    ("datapath_type", Only(&["system", "netdev", "dummy"]), "all are the one datapath"),
    ("fail_mode", Works, ""),
    ("flood_vlans", Works, ""),
    ("flow_tables", Works, ""),
    ("mirrors", Works, ""),
    ("protocols", Works, ""),
    ("datapath_id", Reported, ""),
    ("datapath_version", Reported, ""),
    ("status", Reported, ""),
    ("rstp_status", Reported, ""),
    ("external_ids", Foreign, ""),
    ("auto_attach", Works, ""),
    ("ipfix", Works, ""),
    ("netflow", Works, ""),
    ("sflow", Works, ""),
    ("mcast_snooping_enable", Works, ""),
    ("rstp_enable", Works, ""),
    ("stp_enable", Works, ""),
    ("other_config:controller-queue-size", QUEUE_SIZE, ""),
    ("other_config:datapath-id", Of(Form::DatapathId), ""),
    ("other_config:disable-in-band", FLAG, ""),
    ("other_config:dp-desc", Works, ""),
    ("other_config:dp-sn", Works, ""),
    ("other_config:forward-bpdu", FLAG, ""),
    ("other_config:hwaddr", Of(Form::Address), ""),
    ("other_config:in-band-queue", Numbers(0, i32::MAX as i64), ""),
    ("other_config:mac-aging-time", U32, ""),
    ("other_config:mac-table-size", TABLE_SIZE, ""),
    ("other_config:mcast-snooping-aging-time", Within(15, 3600), ""),
    ("other_config:mcast-snooping-disable-flood-unregistered", FLAG, ""),
    ("other_config:mcast-snooping-table-size", TABLE_SIZE, ""),
    ("other_config:rstp-address", Works, ""),
    ("other_config:rstp-ageing-time", ANY, "mac-aging-time is the one age of addresses"),
    ("other_config:rstp-force-protocol-version", WHOLE, ""),
    ("other_config:rstp-forward-delay", WHOLE, ""),
    ("other_config:rstp-max-age", WHOLE, ""),
    ("other_config:rstp-priority", Numbers(0, U16), ""),
    ("other_config:rstp-transmit-hold-count", Within(1, 10), ""),
    ("other_config:stp-forward-delay", WHOLE, ""),
    (
        "other_config:stp-hello-time",
        WHOLE,
        "seconds, as documented; ovs-vswitchd takes milliseconds",
    ),
    ("other_config:stp-max-age", WHOLE, ""),
    ("other_config:stp-priority", Numbers(0, U16), ""),
    ("other_config:stp-system-id", Works, ""),
];

const PORT: &[Knob] = &[
    ("name", Works, ""),
    ("interfaces", Works, ""),
    ("tag", Works, ""),
    ("trunks", Works, ""),
    ("cvlans", Works, ""),
    ("vlan_mode", Works, ""),
    ("protected", Works, ""),
    ("qos", Works, "by type, see QoS"),
    ("bond_active_slave", Reported, ""),
    ("rstp_statistics", Reported, ""),
    ("rstp_status", Reported, ""),
    ("statistics", Reported, ""),
    ("status", Reported, ""),
    ("external_ids", Foreign, ""),
    ("fake_bridge", Foreign, ""),
    ("bond_mode", Works, ""),
    ("bond_downdelay", Works, ""),
    ("bond_fake_iface", OFF, "a bond has no interface of its own"),
    ("bond_updelay", Works, ""),
    ("lacp", Works, ""),
    ("mac", ANY, "only a bond's fake interface has it"),
    ("other_config:all-members-active", FLAG, ""),
    ("other_config:bond-detect-mode", No(&["carrier"]), MII),
    ("other_config:bond-hash-basis", U32, ""),
    ("other_config:bond-miimon-interval", ANY, MII),
    ("other_config:bond-primary", Works, ""),
    ("other_config:bond-rebalance-interval", WHOLE, ""),
    ("other_config:lacp-fallback-ab", FLAG, ""),
    ("other_config:lacp-system-id", Works, ""),
    ("other_config:lacp-system-priority", Numbers(1, U16), ""),
    ("other_config:lacp-time", Of(Form::Pace), ""),
    ("other_config:lb-output-action", FLAG, "bonds of mode balance-tcp always work like that"),
    ("other_config:mcast-snooping-flood", FLAG, ""),
    ("other_config:mcast-snooping-flood-reports", FLAG, ""),
    ("other_config:priority-tags", Only(&["never", "if-nonzero", "always", "true", "false"]), ""),
    ("other_config:qinq-ethtype", Only(&["802.1ad", "802.1q"]), ""),
    (
        "other_config:rstp-admin-p2p-mac",
        Of(Form::Between(0, 2)),
        "2 (the standard's auto) counts as 0, as in ovs-vswitchd",
    ),
    ("other_config:rstp-enable", FLAG, ""),
    ("other_config:rstp-path-cost", U32, ""),
    ("other_config:rstp-port-admin-edge", FLAG, ""),
    ("other_config:rstp-port-auto-edge", FLAG, ""),
    ("other_config:rstp-port-mcheck", FLAG, ""),
    ("other_config:rstp-port-num", Works, ""),
    ("other_config:rstp-port-priority", Of(Form::Byte), ""),
    ("other_config:stp-enable", FLAG, ""),
    ("other_config:stp-path-cost", U32, ""),
    ("other_config:stp-port-num", Works, ""),
    ("other_config:stp-port-priority", Of(Form::Byte), ""),
    ("other_config:transient", Foreign, ""),
];

const AUTO_ATTACH: &[Knob] =
    &[("system_name", Works, ""), ("system_description", Works, ""), ("mappings", Works, "")];

const INTERFACE: &[Knob] = &[
    ("name", Works, ""),
    ("type", Works, "those of iface_types; others end in error"),
    ("options", Works, "by type, below"),
    ("ingress_policing_burst", Works, ""),
    ("ingress_policing_kpkts_burst", Works, ""),
    ("ingress_policing_kpkts_rate", Works, ""),
    ("ingress_policing_rate", Works, ""),
    ("mac", Works, ""),
    ("mtu_request", Works, ""),
    ("ofport_request", Works, ""),
    ("admin_state", Reported, ""),
    ("duplex", Reported, ""),
    ("error", Reported, ""),
    ("ifindex", Reported, ""),
    ("link_resets", Reported, ""),
    ("link_speed", Reported, ""),
    ("link_state", Reported, ""),
    ("mac_in_use", Reported, ""),
    ("mtu", Reported, ""),
    ("ofport", Reported, ""),
    ("statistics", Reported, ""),
    ("status", Reported, ""),
    ("bfd_status", Reported, ""),
    ("cfm_fault", Reported, ""),
    ("cfm_fault_status", Reported, ""),
    ("cfm_flap_count", Reported, ""),
    ("cfm_health", Reported, ""),
    ("cfm_remote_mpids", Reported, ""),
    ("cfm_remote_opstate", Reported, ""),
    ("lacp_current", Reported, ""),
    ("external_ids", Foreign, ""),
    ("bfd:enable", Works, ""),
    ("bfd:min_rx", Works, ""),
    ("bfd:min_tx", Works, ""),
    ("bfd:decay_min_rx", Works, ""),
    ("bfd:forwarding_if_rx", Works, ""),
    ("bfd:cpath_down", Works, ""),
    ("bfd:check_tnl_key", Works, ""),
    ("bfd:bfd_local_src_mac", Works, ""),
    ("bfd:bfd_local_dst_mac", Works, ""),
    ("bfd:bfd_remote_dst_mac", Works, ""),
    ("bfd:bfd_src_ip", Works, ""),
    ("bfd:bfd_dst_ip", Works, ""),
    ("bfd:oam", Works, ""),
    ("bfd:mult", Works, ""),
    ("cfm_mpid", Works, ""),
    ("lldp:enable", Only(&["true", "false"]), ""),
    ("other_config:cfm_ccm_pcp", Works, ""),
    ("other_config:cfm_ccm_vlan", Works, ""),
    ("other_config:cfm_demand", Works, ""),
    ("other_config:cfm_extended", Works, ""),
    ("other_config:cfm_interval", Works, ""),
    ("other_config:cfm_opstate", Works, ""),
    ("other_config:emc-enable", ANY, TUNING),
    ("other_config:lacp-aggregation-key", Numbers(0, U16), ""),
    ("other_config:lacp-port-id", Numbers(1, U16), ""),
    ("other_config:lacp-port-priority", Numbers(1, U16), ""),
    ("other_config:pmd-rxq-affinity", Works, ""),
    ("other_config:tx-steering", Only(&["thread", "hash"]), "changing it opens the port again"),
];

/// `Interface.options` by types of interfaces, separated by blanks.
pub(super) const OPTIONS: &[(&str, &[Knob])] = &[
    (
        "dpdk",
        &[
            ("dpdk-devargs", Works, ""),
            ("n_rxq", Numbers(1, U16), ""),
            ("n_rxq_desc", DESCRIPTORS, ""),
            ("n_txq_desc", DESCRIPTORS, ""),
            (
                "dpdk-lsc-interrupt",
                FLAG,
                "a change of the link is taken over at once, not within a second",
            ),
            ("dpdk-vf-mac", ANY, ""),
            ("flow-ctrl-autoneg", FLAG, ""),
            ("rx-flow-ctrl", FLAG, ""),
            ("tx-flow-ctrl", FLAG, ""),
        ],
    ),
    ("dpdkvhostuser", &[("tx-retries-max", Numbers(0, 32), ""), ("vhost-rings", Works, "")]),
    (
        "dpdkvhostuserclient",
        &[
            ("vhost-server-path", Works, ""),
            ("tx-retries-max", Numbers(0, 32), ""),
            ("vhost-rings", Works, "own (default) or library: who serves the guest's rings"),
        ],
    ),
    (
        "afxdp",
        &[
            ("n_rxq", Numbers(1, U16), ""),
            ("n_rxq_desc", DESCRIPTORS, ""),
            ("n_txq_desc", DESCRIPTORS, ""),
            ("xdp-mode", Works, ""),
            ("use-need-wakeup", ANY, "the driver decides"),
        ],
    ),
    ("patch", &[("peer", Works, "")]),
    (
        "dummy dummy-internal dummy-pmd",
        &[
            ("ifindex", Works, ""),
            ("n_rxq", Within(1, DUMMY_QUEUES_MAX), "of dummy-pmd ports; others have one"),
            ("n_txq", Within(1, DUMMY_QUEUES_MAX), "of dummy-pmd ports; others have one"),
            ("numa_id", WHOLE, ""),
            ("pcap", Works, ""),
            ("pstream", Works, ""),
            ("rxq_pcap", Works, ""),
            ("stream", Works, ""),
            ("tx_pcap", Works, ""),
        ],
    ),
    (
        "vxlan geneve gre ip6gre erspan ip6erspan gtpu",
        &[
            ("remote_ip", Works, ""),
            ("local_ip", Works, ""),
            ("key", Works, ""),
            ("in_key", Works, ""),
            ("out_key", Works, ""),
            ("dst_port", Works, ""),
            ("tos", Works, ""),
            ("ttl", Works, ""),
            ("df_default", Works, ""),
            ("csum", Works, ""),
            ("seq", Works, ""),
            ("egress_pkt_mark", Works, ""),
            ("exts", Only(&["gbp", "gpe"]), ""),
        ],
    ),
    ("vxlan gre", &[("packet_type", Only(&["legacy_l2", "legacy_l3", "ptap"]), "")]),
    ("geneve ip6gre erspan ip6erspan", &[("packet_type", Only(&["legacy_l2", "ptap"]), "")]),
    ("gtpu", &[("packet_type", Only(&["legacy_l3"]), "")]),
    (
        "erspan ip6erspan",
        &[
            ("erspan_ver", Works, ""),
            ("erspan_idx", Works, ""),
            ("erspan_dir", Works, ""),
            ("erspan_hwid", Works, ""),
        ],
    ),
];

const CONTROLLER: &[Knob] = &[
    (
        "target",
        Only(&["tcp:", "ptcp:", "ssl:", "pssl:", "unix:", "punix:"]),
        "by their beginnings; the others end in status:last_error",
    ),
    ("type", Works, ""),
    ("controller_burst_limit", Works, ""),
    ("controller_rate_limit", Works, ""),
    ("enable_async_messages", Works, ""),
    ("inactivity_probe", Works, ""),
    ("max_backoff", Works, ""),
    ("is_connected", Reported, ""),
    ("role", Reported, ""),
    ("status", Reported, ""),
    ("external_ids", Foreign, ""),
    ("connection_mode", Works, ""),
    ("controller_queue_size", QUEUE_SIZE, ""),
    ("local_gateway", Works, ""),
    ("local_ip", Works, ""),
    ("local_netmask", Works, ""),
    ("other_config:dscp", Numbers(0, 63), ""),
];

const MANAGER: &[Knob] = &[
    ("target", Works, "for in-band control only; ovsdb-server talks to it"),
    ("connection_mode", Works, ""),
    ("external_ids", Foreign, ""),
    ("inactivity_probe", Foreign, ""),
    ("is_connected", Foreign, ""),
    ("max_backoff", Foreign, ""),
    ("other_config:dscp", Foreign, ""),
    ("status", Foreign, ""),
];

const FLOW_TABLE: &[Knob] = &[
    ("name", Works, ""),
    ("flow_limit", Works, ""),
    ("groups", Works, ""),
    ("overflow_policy", Works, ""),
    ("external_ids", Foreign, ""),
    ("prefixes", Works, "lookups are as fast without them"),
];

const DATAPATH: &[Knob] = &[
    ("capabilities", Reported, ""),
    ("datapath_version", Foreign, ""),
    ("external_ids", Foreign, ""),
    ("ct_zones", Works, ""),
];

const CT_TIMEOUT_POLICY: &[Knob] = &[
    ("timeouts", Works, ""),
    ("timeouts:tcp_close_wait", ANY, NO_CT_STATE),
    ("timeouts:tcp_last_ack", ANY, NO_CT_STATE),
    ("timeouts:tcp_syn_sent2", ANY, NO_CT_STATE),
    ("timeouts:tcp_retransmit", ANY, NO_CT_STATE),
    ("timeouts:tcp_unack", ANY, NO_CT_STATE),
    ("external_ids", Foreign, ""),
];

const MIRROR: &[Knob] = &[
    ("name", Works, ""),
    ("select_all", Works, ""),
    ("select_src_port", Works, ""),
    ("select_dst_port", Works, ""),
    ("select_vlan", Works, ""),
    ("output_port", Works, ""),
    ("output_vlan", Works, ""),
    ("snaplen", Works, ""),
    ("statistics", Reported, ""),
    ("external_ids", Foreign, ""),
];

pub(super) const QOS_TYPE: Knob = (
    "type",
    Only(&[
        EGRESS_POLICER,
        "linux-htb",
        "linux-hfsc",
        "linux-sfq",
        "linux-codel",
        "linux-fq_codel",
        "linux-netem",
        "linux-noop",
    ]),
    "`linux-*` are for ports of type system, internal and tap",
);

/// Keys of types that are not supported are not here: only the type is said to have no effect.
const QOS: &[Knob] = &[
    QOS_TYPE,
    ("queues", Works, "of linux-htb and linux-hfsc"),
    ("other_config:cir", WHOLE, ""),
    ("other_config:cbs", WHOLE, ""),
    ("other_config:max-rate", WHOLE, ""),
    ("other_config:perturb", WHOLE, ""),
    ("other_config:quantum", WHOLE, ""),
    ("other_config:target", WHOLE, ""),
    ("other_config:limit", WHOLE, ""),
    ("other_config:interval", WHOLE, ""),
    ("other_config:flows", WHOLE, ""),
    ("other_config:latency", WHOLE, ""),
    ("other_config:loss", WHOLE, ""),
    ("external_ids", Foreign, ""),
];

const QUEUE: &[Knob] = &[
    ("dscp", Works, ""),
    ("other_config:min-rate", WHOLE, ""),
    ("other_config:max-rate", WHOLE, ""),
    ("other_config:burst", WHOLE, ""),
    ("other_config:priority", WHOLE, ""),
    ("external_ids", Foreign, ""),
];

const NETFLOW: &[Knob] = &[
    ("targets", Works, "IP:PORT"),
    ("engine_id", Works, ""),
    ("engine_type", Works, ""),
    ("active_timeout", Works, ""),
    ("add_id_to_interface", Works, ""),
    ("external_ids", Foreign, ""),
];

const SFLOW: &[Knob] = &[
    ("targets", Works, "IP[:PORT]"),
    ("agent", Works, ""),
    ("header", Works, ""),
    ("polling", Works, ""),
    ("sampling", Works, ""),
    ("external_ids", Foreign, ""),
];

const IPFIX: &[Knob] = &[
    ("targets", Works, "IP[:PORT]"),
    ("sampling", Works, ""),
    ("obs_domain_id", Works, ""),
    ("obs_point_id", Works, ""),
    ("cache_active_timeout", Works, ""),
    ("cache_max_flows", Works, "131,072 at most"),
    ("external_ids", Foreign, ""),
    ("other_config:enable-input-sampling", FLAG, ""),
    ("other_config:enable-output-sampling", FLAG, ""),
    ("other_config:enable-tunnel-sampling", FLAG, "headers that packets came with"),
    ("other_config:virtual_obs_id", Works, ""),
];

const SSL: &[Knob] = &[
    ("private_key", Works, ""),
    ("certificate", Works, ""),
    ("ca_cert", Works, ""),
    ("bootstrap_ca_cert", Works, ""),
    ("external_ids", Foreign, ""),
];

const SETS: &[Knob] = &[
    ("id", Works, ""),
    ("bridge", Works, ""),
    ("ipfix", Works, ""),
    ("external_ids", Foreign, ""),
];

/// All tables of the schema.
pub const TABLES: &[(&str, &[Knob])] = &[
    ("Open_vSwitch", OPEN_VSWITCH),
    ("Bridge", BRIDGE),
    ("Port", PORT),
    ("Interface", INTERFACE),
    ("Controller", CONTROLLER),
    ("Flow_Table", FLOW_TABLE),
    ("Datapath", DATAPATH),
    ("Manager", MANAGER),
    ("SSL", SSL),
    ("QoS", QOS),
    ("Queue", QUEUE),
    ("Mirror", MIRROR),
    ("NetFlow", NETFLOW),
    ("sFlow", SFLOW),
    ("IPFIX", IPFIX),
    ("Flow_Sample_Collector_Set", SETS),
    ("CT_Zone", &[("timeout_policy", Works, ""), ("external_ids", Foreign, "")]),
    ("CT_Timeout_Policy", CT_TIMEOUT_POLICY),
    ("AutoAttach", AUTO_ATTACH),
];

/// The knobs of a table; none for one that the schema of 3.1 does not have.
pub(super) fn table(name: &str) -> &'static [Knob] {
    TABLES.iter().find(|(table, _)| *table == name).map_or(&[], |(_, knobs)| knobs)
}

/// The columns of a table that the daemon writes: the configuration is not read from them.
pub(super) fn reported(knobs: &[Knob]) -> impl Iterator<Item = &'static str> {
    knobs.iter().filter(|(name, state, _)| *state == Reported && !name.contains(':')).map(|k| k.0)
}

/// The columns of a table that the daemon monitors, because it reads or writes them; each once.
pub(super) fn columns(knobs: &[Knob]) -> Vec<&'static str> {
    let used = knobs.iter().filter(|(name, state, _)| *name != "*" && *state != Foreign);
    let mut names: Vec<_> =
        used.map(|(name, ..)| name.split_once(':').map_or(*name, |(column, _)| column)).collect();
    names.dedup();
    names
}
