//! Numbers of actions and of their vendors on the wire.

pub(crate) const VENDOR: u16 = 0xffff;
pub(crate) const NICIRA: u32 = 0x2320;
pub(crate) const ONF: u32 = 0x4f4e_4600;
/// ONF's copy-field of 1.3 and 1.4.
pub(crate) const ONF_COPY_FIELD: u16 = 3200;

/// Standard actions of 1.0.
pub(crate) mod act10 {
    pub const OUTPUT: u16 = 0;
    pub const SET_VLAN_VID: u16 = 1;
    pub const SET_VLAN_PCP: u16 = 2;
    pub const STRIP_VLAN: u16 = 3;
    pub const SET_DL_SRC: u16 = 4;
    pub const SET_DL_DST: u16 = 5;
    pub const SET_NW_TOS: u16 = 8;
    pub const SET_TP_DST: u16 = 10;
    pub const ENQUEUE: u16 = 11;
}

/// Standard actions of 1.1 and later.
pub(crate) mod act11 {
    pub const OUTPUT: u16 = 0;
    pub const SET_VLAN_VID: u16 = 1;
    pub const SET_VLAN_PCP: u16 = 2;
    pub const SET_DL_SRC: u16 = 3;
    pub const SET_DL_DST: u16 = 4;
    pub const SET_NW_SRC: u16 = 5;
    pub const SET_NW_DST: u16 = 6;
    pub const SET_NW_TOS: u16 = 7;
    pub const SET_NW_ECN: u16 = 8;
    pub const SET_TP_SRC: u16 = 9;
    pub const SET_TP_DST: u16 = 10;
    pub const SET_MPLS_LABEL: u16 = 13;
    pub const SET_MPLS_TC: u16 = 14;
    pub const SET_MPLS_TTL: u16 = 15;
    pub const DEC_MPLS_TTL: u16 = 16;
    pub const PUSH_VLAN: u16 = 17;
    pub const POP_VLAN: u16 = 18;
    pub const PUSH_MPLS: u16 = 19;
    pub const POP_MPLS: u16 = 20;
    pub const SET_QUEUE: u16 = 21;
    pub const GROUP: u16 = 22;
    pub const SET_NW_TTL: u16 = 23;
    pub const DEC_NW_TTL: u16 = 24;
    pub const SET_FIELD: u16 = 25;
    pub const COPY_FIELD: u16 = 28;
    pub const METER: u16 = 29;
}

/// `NXAST_*`.
#[allow(missing_docs)]
pub(crate) mod nxast {
    pub const RESUBMIT: u16 = 1;
    pub const SET_TUNNEL: u16 = 2;
    pub const SET_QUEUE: u16 = 4;
    pub const POP_QUEUE: u16 = 5;
    pub const REG_MOVE: u16 = 6;
    pub const REG_LOAD: u16 = 7;
    pub const NOTE: u16 = 8;
    pub const SET_TUNNEL64: u16 = 9;
    pub const MULTIPATH: u16 = 10;
    pub const RESUBMIT_TABLE: u16 = 14;
    pub const BUNDLE: u16 = 12;
    pub const BUNDLE_LOAD: u16 = 13;
    pub const OUTPUT_REG: u16 = 15;
    pub const LEARN: u16 = 16;
    pub const EXIT: u16 = 17;
    pub const DEC_TTL: u16 = 18;
    pub const FIN_TIMEOUT: u16 = 19;
    pub const CONTROLLER: u16 = 20;
    pub const DEC_TTL_CNT_IDS: u16 = 21;
    pub const WRITE_METADATA: u16 = 22;
    pub const PUSH_MPLS: u16 = 23;
    pub const POP_MPLS: u16 = 24;
    pub const SET_MPLS_TTL: u16 = 25;
    pub const DEC_MPLS_TTL: u16 = 26;
    pub const STACK_PUSH: u16 = 27;
    pub const STACK_POP: u16 = 28;
    pub const SAMPLE: u16 = 29;
    pub const SET_MPLS_LABEL: u16 = 30;
    pub const SET_MPLS_TC: u16 = 31;
    pub const OUTPUT_REG2: u16 = 32;
    pub const REG_LOAD2: u16 = 33;
    pub const CONJUNCTION: u16 = 34;
    pub const CT: u16 = 35;
    pub const NAT: u16 = 36;
    pub const CONTROLLER2: u16 = 37;
    pub const SAMPLE2: u16 = 38;
    pub const OUTPUT_TRUNC: u16 = 39;
    pub const GROUP: u16 = 40;
    pub const SAMPLE3: u16 = 41;
    pub const CLONE: u16 = 42;
    pub const CT_CLEAR: u16 = 43;
    pub const RESUBMIT_TABLE_CT: u16 = 44;
    pub const DEC_NSH_TTL: u16 = 48;
    pub const CHECK_PKT_LARGER: u16 = 49;
    pub const LEARN2: u16 = 45;
    pub const RAW_ENCAP: u16 = 46;
    pub const RAW_DECAP: u16 = 47;
    pub const DELETE_FIELD: u16 = 50;
    pub const DEBUG_SLOW: u16 = 254;
    pub const DEBUG_RECIRC: u16 = 255;
}

/// Properties of [`nxast::CONTROLLER2`].
pub(crate) mod controller2 {
    pub const MAX_LEN: u16 = 0;
    pub const ID: u16 = 1;
    pub const REASON: u16 = 2;
    pub const USERDATA: u16 = 3;
    pub const PAUSE: u16 = 4;
    pub const METER: u16 = 5;
}
