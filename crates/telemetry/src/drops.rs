//! Every reason for which a packet ends without being sent: a name, and one sentence of help.

macro_rules! drops {
    ($($(#[$doc:meta])* $variant:ident $name:literal $help:literal;)*) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum Drop { $($variant),* }

        impl Drop {
            /// All reasons, in order of their number.
            pub const ALL: &'static [Drop] = &[$(Drop::$variant),*];
            /// The counter's name.
            pub fn name(self) -> &'static str { match self { $(Drop::$variant => $name),* } }
            /// One sentence for an operator.
            pub fn help(self) -> &'static str { match self { $(Drop::$variant => $help),* } }
        }
    };
}

drops! {
    Policy "policy" "The flow that matched has no output: the rules say drop.";
    NoPort "no_port" "The packet came from, or was to go to, a port that no bridge has.";
    Truncated "truncated" "The frame is shorter than an Ethernet header.";
    Segmented "segmented" "The driver delivered a chain of buffers, which is not supported.";
    TooLong "too_long" "The packet is longer than the output port's MTU.";
    TxFull "tx_full" "The output port's queue was full.";
    TxBusy "tx_busy" "Another thread had the output port's queue for longer than packets could wait here.";
    TxDown "tx_down" "The output port is down or gone.";
    RingFull "ring_full" "The ring to the thread that owns the output port was full.";
    PuntFull "punt_full" "The queue of packets to the control side was full.";
    PuntRate "punt_rate" "The input port used up its budget of packets to the control side.";
    SampleFull "sample_full" "A sampled copy was lost: the queue of packets to the control side was full.";
    SampleRate "sample_rate" "A sampled copy was lost: the input port used up its budget of samples.";
    NoBuffer "no_buffer" "No packet buffer was free for a copy.";
    NoHeadroom "no_headroom" "No room in front of the packet for the header to add.";
    BadAction "bad_action" "The action does not fit the packet (for example a port rewrite without a port).";
    PacketType "packet_type" "The packet has no Ethernet header, without which its port does not take it, or a tunnel cannot carry it without one, or an encap or decap does not fit what it begins with.";
    TooManyLabels "too_many_mpls_labels" "The packet would get a fourth MPLS label stack entry, or one of more than three is to be removed from it.";
    TtlExpired "ttl_expired" "The TTL or hop limit would have reached zero.";
    RecircLimit "recirc_limit" "The packet was recirculated too often, or its bridge has as many recirculations as it may have.";
    DepthLimit "depth_limit" "The pipeline's tables, groups and bridges are nested too deep.";
    ResubmitLimit "resubmit_limit" "The pipeline has too many table lookups, actions or outputs for one packet.";
    StackLimit "stack_limit" "The pipeline's actions pushed too many values on the stack.";
    MissTime "miss_time" "Packets of new flows from the input port take the pipeline so long that other ports would wait for them.";
    ActionTime "action_time" "So many copies of the packet were to be sent or looked up again that other ports would wait for all such packets of the input port.";
    Meter "meter" "A meter's rate was exceeded.";
    Policed "policed" "The input port brought more than its ingress policing rate and burst allow.";
    TxPoliced "tx_policed" "The output port was sent more than its egress policer's rate and burst allow.";
    RxFull "rx_full" "The input port's receive queue was full: the switch did not read fast enough.";
    BadOffload "bad_offload" "The kernel left work on the packet (segmentation, checksum) that the port cannot finish.";
    TunnelHeader "tunnel_header" "The tunnel header of a packet that was to be decapsulated is malformed or not supported.";
    TunnelChecksum "tunnel_checksum" "A checksum in the tunnel header of a packet that was to be decapsulated is wrong.";
    TunnelUnknown "tunnel_unknown" "No tunnel port is configured for the packet's tunnel key and outer addresses.";
    TunnelOptions "tunnel_options" "The tunnel header has an unknown critical option, malformed ones or too many, or it is to be one that ERSPAN does not have (no version, a key of more than 10 bits).";
    TunnelEcn "tunnel_ecn" "The outer header reports congestion, and the inner packet cannot carry that on.";
    TunnelRoute "tunnel_route" "There is no route to the tunnel's remote address through a port of a bridge.";
    TunnelNeighbour "tunnel_neighbour" "The next hop's hardware address is not known yet; it has been asked for.";
    NshDecap "nsh_decap_error" "The network service header that was to be removed is malformed, or it does not say of what is inside that it is an Ethernet frame, IPv4, IPv6 or NSH.";
    MirrorPort "mirror_port" "The packet came in on a port that is reserved for a mirror's output.";
    SpanningTree "spanning_tree" "The packet came in on a port that a spanning tree (STP, RSTP) keeps from forwarding, or it is a BPDU and the port takes no part in the tree.";
    FlowRestoreWait "flow_restore_wait" "Nothing is forwarded until other_config:flow-restore-wait, true since the start, is cleared.";
    FragmentTimeout "fragment_timeout" "A fragment waited for the rest of its datagram, for connection tracking, for 15 seconds.";
    Shutdown "shutdown" "The packet was in flight when its port or the switch went away.";
}
impl Drop {
    /// How many reasons there are.
    pub const COUNT: usize = Drop::ALL.len();
}
