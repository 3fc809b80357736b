//! The key and its byte offsets.

/// Lines of a whole key.
pub const LINES: usize = 6;
/// Lines that come from the packet and its metadata (the datapath's part).
pub const PACKET_LINES: usize = 4;
/// 64-bit words in a whole key.
pub const WORDS: usize = LINES * 8;

/// Datapath port number (dense, over all bridges; like OVS's odp_port). 0xffff: none.
pub type PortNo = u16;
/// No datapath port.
pub const NO_PORT: PortNo = 0xffff;
/// Lowest number of a bond: packets are sent to bonds as to ports, and ports have lower numbers.
pub const BOND_NO_MIN: PortNo = 0xf000;

/// The input port of a packet that came in by no port, but of whoever has this number: packets of
/// each number are charged to a share of their own. No packet is received under such a port, as
/// bonds only send. More than 4,095 numbers share some of them.
pub const fn origin_port(number: usize) -> PortNo {
    BOND_NO_MIN + (number % (NO_PORT - BOND_NO_MIN) as usize) as PortNo
}

/// True if packets of this input port came in by a port.
pub const fn is_received(in_port: PortNo) -> bool {
    in_port < BOND_NO_MIN
}

/// Offsets of the MPLS label stack entries that a [`Key`] has room for, outermost first. An entry
/// is there if the one in front of it is not the bottom of the stack.
pub const LABELS: [usize; 3] = [at::MPLS, at::IP_DST, at::TP_SRC];

/// Byte offsets of fields in a [`Key`]. Multi-byte fields are big-endian.
#[allow(missing_docs)]
pub mod at {
    // line 0
    pub const ETH_DST: usize = 0;
    pub const ETH_SRC: usize = 6;
    pub const ETH_TYPE: usize = 12;
    /// Outer VLAN TCI; bit 0x1000 set: a tag is present; 0: none.
    pub const VLAN: usize = 14;
    /// IPv4 source; ARP/RARP sender protocol address; top MPLS label stack entry; of neighbour
    /// discovery the word in front of the target.
    pub const IP_SRC: usize = 16;
    pub const MPLS: usize = 16;
    pub const ND_RESERVED: usize = 16;
    /// IPv4 destination; ARP/RARP target protocol address; second MPLS label stack entry.
    pub const IP_DST: usize = 20;
    /// Flags, TTL, metadata type and next protocol of a network service header, a byte each.
    pub const NSH_FLAGS: usize = 16;
    pub const NSH_TTL: usize = 17;
    pub const NSH_MDTYPE: usize = 18;
    pub const NSH_NP: usize = 19;
    /// Service path identifier (24 bits) and service index.
    pub const NSH_SPI: usize = 20;
    pub const NSH_SI: usize = 23;
    /// TCP/UDP/SCTP source port; ICMP(v6) type in the low byte (as a 16-bit number). With the
    /// destination port: third MPLS label stack entry.
    pub const TP_SRC: usize = 24;
    /// Destination port; ICMP(v6) code in the low byte (as a 16-bit number).
    pub const TP_DST: usize = 26;
    /// IP protocol / next header after extension headers; low byte of the ARP opcode.
    pub const PROTO: usize = 28;
    pub const TOS: usize = 29;
    pub const TTL: usize = 30;
    /// [`super::frag`] bits.
    pub const FRAG: usize = 31;
    /// 12 bits of TCP flags; of neighbour discovery in the low byte the type of the first option
    /// with a link-layer address.
    pub const TCP_FLAGS: usize = 32;
    pub const ND_OPTIONS_TYPE: usize = 33;
    /// Inner VLAN TCI of a double-tagged frame, same form.
    pub const VLAN1: usize = 34;
    /// Datapath input port.
    pub const IN_PORT: usize = 36;
    pub const CT_STATE: usize = 38;
    /// [`super::flag`] bits.
    pub const FLAGS: usize = 39;
    pub const CT_MARK: usize = 40;
    /// Recirculation id (4 bytes); 0 for a packet just received from a port.
    pub const RECIRC: usize = 44;
    /// Low 32 bits of the tunnel id (VNI, GRE key).
    pub const TUN_ID: usize = 48;
    pub const TUN_SRC: usize = 52;
    /// Bytes 56..64 of line 0 are never matched.
    pub const PAYLOAD: usize = 56;
    // line 1
    pub const IPV6_SRC: usize = 64;
    /// Four context headers of a network service header, if its metadata is of type 1.
    pub const NSH_C: usize = 64;
    pub const IPV6_DST: usize = 80;
    pub const ND_TARGET: usize = 96;
    /// ARP sender hardware address; ND source link-layer option.
    pub const ARP_SHA: usize = 112;
    /// ARP target hardware address; ND target link-layer option.
    pub const ARP_THA: usize = 118;
    /// 20 bits.
    pub const IPV6_LABEL: usize = 124;
    // line 2
    pub const TUN_DST: usize = 128;
    pub const TUN_FLAGS: usize = 132;
    pub const TUN_TOS: usize = 134;
    pub const TUN_TTL: usize = 135;
    pub const TUN_IPV6_SRC: usize = 136;
    pub const TUN_IPV6_DST: usize = 152;
    pub const TUN_GBP_ID: usize = 168;
    pub const TUN_GBP_FLAGS: usize = 170;
    /// Number of 32-bit words of tunnel options, from which their position in the packet follows;
    /// never matched.
    pub const TUN_OPTION_WORDS: usize = 171;
    pub const TUN_TP_SRC: usize = 172;
    pub const TUN_TP_DST: usize = 174;
    pub const PKT_MARK: usize = 176;
    pub const PRIORITY: usize = 180;
    /// A digest of the options of the outer header (8 bytes); 0: no options. A key does not contain
    /// their bytes. Without [`super::flag::TUNNEL_OPTIONS`] the bytes are the fields of ERSPAN and
    /// GTP-U.
    pub const TUN_OPTIONS: usize = 184;
    /// First byte of a GTP-U header: version and flags.
    pub const TUN_GTPU_FLAGS: usize = 184;
    /// Index of an ERSPAN header of version 1: 20 bits.
    pub const TUN_ERSPAN_IDX: usize = 185;
    /// Version of the ERSPAN header: 1 (type II) or 2 (type III); 0: there is none.
    pub const TUN_ERSPAN_VER: usize = 188;
    /// Direction and hardware id (6 bits) of an ERSPAN header of version 2.
    pub const TUN_ERSPAN_DIR: usize = 189;
    pub const TUN_ERSPAN_HWID: usize = 190;
    /// Message type of a GTP-U header.
    pub const TUN_GTPU_MSGTYPE: usize = 191;
    // line 3
    pub const CT_LABEL: usize = 192;
    pub const CT_IPV6_SRC: usize = 208;
    pub const CT_IPV6_DST: usize = 224;
    pub const CT_NW_SRC: usize = 240;
    pub const CT_NW_DST: usize = 244;
    pub const CT_TP_SRC: usize = 248;
    pub const CT_TP_DST: usize = 250;
    pub const CT_NW_PROTO: usize = 252;
    pub const CT_ZONE: usize = 254;
    // line 4
    pub const METADATA: usize = 256;
    /// OpenFlow input port (32 bits; reserved ports as in OpenFlow 1.1+, e.g. LOCAL 0xfffffffe).
    pub const OF_IN_PORT: usize = 264;
    pub const ACTSET_OUTPUT: usize = 268;
    pub const CONJ_ID: usize = 272;
    pub const PACKET_TYPE: usize = 276;
    pub const DP_HASH: usize = 280;
    /// High 32 bits of the tunnel id: no packet comes in with any, flows may set them.
    pub const TUN_ID_HIGH: usize = 284;
    /// Number that identifies a flow's match on tunnel options (8 bytes); 0: no such match.
    pub const TUN_MATCH: usize = 288;
    // line 5
    /// reg0..reg15, four bytes each.
    pub const REG: usize = 320;
}

/// Bits of the byte at [`at::FRAG`] (OVS's nw_frag).
pub mod frag {
    /// The packet is a fragment.
    pub const ANY: u8 = 1;
    /// The packet is a fragment other than the first (no L4 header).
    pub const LATER: u8 = 2;
}

/// Bits of the byte at [`at::FLAGS`].
pub mod flag {
    /// The packet was received from a tunnel: the tunnel fields are valid.
    pub const TUNNEL: u8 = 1;
    /// The outer VLAN tag's TPID is 0x88a8.
    pub const VLAN_88A8: u8 = 2;
    /// The inner VLAN tag's TPID is 0x88a8.
    pub const VLAN1_88A8: u8 = 4;
    /// The L4 header is complete, so ports can be rewritten.
    pub const L4: u8 = 8;
    /// The packet was received from a tunnel with an outer header that reported congestion (ECN
    /// CE).
    pub const TUNNEL_CE: u8 = 16;
    /// The packet was received from a tunnel with options in the outer header.
    pub const TUNNEL_OPTIONS: u8 = 32;
    /// The packet was received from a tunnel without an Ethernet header. It has one in memory, with
    /// the right Ethertype and without addresses.
    pub const BARE: u8 = 64;
    /// The packet was looked up before, and a network service header was removed since, in which
    /// there was no Ethernet header. As with [`BARE`] it has one in memory.
    pub const UNWRAPPED: u8 = 128;
    /// All flags of a tunnel.
    pub const TUNNEL_ALL: u8 = TUNNEL | TUNNEL_CE | TUNNEL_OPTIONS | BARE;
}

/// A key, a masked key or a mask: `LINES` lines of 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C, align(64))]
pub struct Key {
    /// The words in memory order (native loads of network-order bytes).
    pub words: [u64; WORDS],
}

/// A mask has the form of a key; its 1-bits are matched.
pub type Mask = Key;

impl Default for Key {
    fn default() -> Self {
        Key::ZERO
    }
}

impl Key {
    /// All zero: the empty packet, or the mask that matches everything.
    pub const ZERO: Key = Key { words: [0; WORDS] };

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8; WORDS * 8] {
        // SAFETY: [u64; N] is plain memory of N*8 bytes.
        unsafe { &*self.words.as_ptr().cast() }
    }

    /// The bytes, mutable.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8; WORDS * 8] {
        // SAFETY: as above; every bit pattern is valid for u64.
        unsafe { &mut *self.words.as_mut_ptr().cast() }
    }

    /// `N` bytes at an offset of [`at`].
    #[inline]
    pub fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes()[at..at + N].try_into().unwrap()
    }

    /// Writes bytes at an offset of [`at`].
    #[inline]
    pub fn set<const N: usize>(&mut self, at: usize, v: [u8; N]) {
        self.bytes_mut()[at..at + N].copy_from_slice(&v);
    }

    /// A byte.
    #[inline]
    pub fn u8(&self, at: usize) -> u8 {
        self.bytes()[at]
    }
    /// A big-endian 16-bit number.
    #[inline]
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.get(at))
    }
    /// A big-endian 32-bit number.
    #[inline]
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.get(at))
    }
    /// A big-endian 64-bit number.
    #[inline]
    pub fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.get(at))
    }
    /// Writes a byte.
    #[inline]
    pub fn set_u8(&mut self, at: usize, v: u8) {
        self.bytes_mut()[at] = v;
    }
    /// Writes a big-endian 16-bit number.
    #[inline]
    pub fn set_u16(&mut self, at: usize, v: u16) {
        self.set(at, v.to_be_bytes());
    }
    /// Writes a big-endian 32-bit number.
    #[inline]
    pub fn set_u32(&mut self, at: usize, v: u32) {
        self.set(at, v.to_be_bytes());
    }
    /// Writes a big-endian 64-bit number.
    #[inline]
    pub fn set_u64(&mut self, at: usize, v: u64) {
        self.set(at, v.to_be_bytes());
    }

    /// Line `i` as words.
    #[inline]
    pub fn line(&self, i: usize) -> &[u64; 8] {
        self.words[i * 8..i * 8 + 8].try_into().unwrap()
    }

    /// `self & mask`.
    #[inline]
    pub fn masked(&self, mask: &Mask) -> Key {
        let mut out = *self;
        for i in 0..WORDS {
            out.words[i] &= mask.words[i];
        }
        out
    }

    /// `self |= other` (masks: match more bits).
    #[inline]
    pub fn or(&mut self, other: &Key) {
        for i in 0..WORDS {
            self.words[i] |= other.words[i];
        }
    }

    /// Whether `(self & mask) == (other & mask)`.
    #[inline]
    pub fn matches(&self, other: &Key, mask: &Mask) -> bool {
        (0..WORDS).all(|i| (self.words[i] ^ other.words[i]) & mask.words[i] == 0)
    }

    /// Whether every bit of `self` is also set in `other`, that is `self` wildcards at least as
    /// much.
    pub fn subset_of(&self, other: &Mask) -> bool {
        (0..WORDS).all(|i| self.words[i] & !other.words[i] == 0)
    }

    /// Whether a packet can match both (`self`, `mask`) and (`other`, `other_mask`).
    pub fn overlaps(&self, mask: &Mask, other: &Key, other_mask: &Mask) -> bool {
        (0..WORDS)
            .all(|i| (self.words[i] ^ other.words[i]) & mask.words[i] & other_mask.words[i] == 0)
    }

    /// Whether no bit is set.
    pub fn is_zero(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key[")?;
        for (i, w) in self.words.iter().enumerate().filter(|(_, w)| **w != 0) {
            write!(f, " {}:{:016x}", i * 8, w.to_be())?;
        }
        write!(f, " ]")
    }
}
