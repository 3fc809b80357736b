//! Keys, masks and fields: a packet's header fields in the form that is matched, in 64-byte lines.
//!
//! *Place*: flow row. *Knows*: field positions, names, values as text. *Does not know*: tables,
//! priorities, actions, packets' bytes (the datapath's parser fills a [`Key`]), wire codes (OXM/NXM
//! numbers live in `openflow`).
//!
//! A [`Key`] is six lines of eight 64-bit words. All fields are stored in **network byte order**
//! at fixed byte offsets, so that OXM payloads are copied in and out as they are. Masking is AND on
//! whole words; a rule stores only its significant words.
//!
//! - Line 0, which every packet has: Ethernet, VLAN, IPv4, ARP, MPLS or NSH, L4, in_port,
//!   conntrack, tunnel id and source. Bytes 56..64 are not matched: they are a rule's payload.
//! - Line 1, of IPv6, ARP and NSH: IPv6 addresses or NSH's contexts, ND target, hardware addresses
//!   of ARP and ND, flow label.
//! - Line 2, of tunnelled packets: tunnel destination and the rest of the outer header, packet
//!   mark, priority, digest of options.
//! - Line 3, of packets after `ct`: conntrack label and original tuple.
//! - Line 4, only inside the pipeline: OpenFlow metadata, in_port, action-set output, conjunction.
//! - Line 5, only inside the pipeline: registers 0..15.
//!
//! The datapath uses lines 0..=3 ([`PACKET_LINES`]).

mod field;
mod key;
mod parse_match;
mod parse_odp;
mod text;
mod text_match;
mod text_odp;
mod tun_metadata;

pub use field::{FIELDS, Field, Format};
pub use key::*;
pub use parse_match::{
    PortNumber, field_named, parse_match, parse_match_tun, parse_port, parse_value,
};
pub use parse_odp::{DatapathPortNumber, parse_odp, parse_odp_options};
pub use text::{TEXT_MAX, TextError, number, parse_ct_state};
pub use text_match::{
    NSH, PortName, ct_state_text, exact_mask, flow_text, match_text, megaflow_text, packet_mask,
    port_text,
};
pub use text_odp::{DatapathPortName, odp_key_text, odp_text};
pub use tun_metadata::*;
