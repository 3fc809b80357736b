//! Megaflows as bytes: the first 64 bytes of a megaflow's packets.
//!
//! A rule is for packets whose headers are at fixed places: Ethernet, at most one tag, IPv4 without
//! options or IPv6 without extension headers, not a fragment, and L4. The megaflow says which of
//! these headers there are. Other packets that it matches (it may not match on tags at all) are
//! parsed and looked up as always.

use crate::Reason;
use flow::{FIELDS, Key, Mask, at, flag};
use port::{Header, PATTERN_BYTES as BYTES, Pattern};
use wire::{
    ETH_IPV4, ETH_IPV6, ETH_QINQ, ETH_VLAN, IP_ICMP, IP_ICMPV6, IP_IGMP, IP_SCTP, IP_TCP, IP_UDP,
};

/// IPv6 next headers that are extension headers: hop-by-hop, routing, fragment, authentication,
/// destination options.
const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];
/// Least Ethertype; a smaller number is a length.
const ETHERTYPE_MIN: u16 = 0x600;

/// A test of whether a packet belongs to a megaflow, without parsing it: the values of its first
/// bytes, and its lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstBytes {
    /// Values of the packet's first bytes, where `mask` has bits; zero elsewhere.
    pub value: [u8; BYTES],
    /// The bits that are compared.
    pub mask: [u8; BYTES],
    /// Least length of the packet, bytes.
    pub least: u16,
    /// Offset of the 16-bit length field of the IP header; 0: there is none.
    pub length_at: u8,
    /// The datagram ends at this offset plus the value of the length field.
    pub end_base: u8,
    /// Least end of the datagram, which is not behind the packet's end.
    pub end_least: u8,
}

impl FirstBytes {
    /// True if the packet belongs to the megaflow. The twin of the datapath's comparison.
    pub fn claims(&self, packet: &[u8]) -> bool {
        let byte = |i: usize| packet.get(i).copied().unwrap_or(0);
        let same = (0..BYTES).all(|i| (byte(i) ^ self.value[i]) & self.mask[i] == 0);
        if !same || packet.len() < usize::from(self.least) || packet.len() > 0xffff {
            return false;
        }
        if self.length_at == 0 {
            return true;
        }
        let at = usize::from(self.length_at);
        let length = usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
        let end = usize::from(self.end_base) + length;
        end >= usize::from(self.end_least) && end <= packet.len()
    }
}

/// Turns a megaflow into bytes, header by header.
struct Maker<'a> {
    key: &'a Key,
    /// The bits of the megaflow's mask that are not in the bytes yet.
    left: Mask,
    /// Key fields that every packet of this form has, though no byte of the packet holds them.
    fixed: Key,
    value: [u8; BYTES],
    mask: [u8; BYTES],
    /// The part of `mask` that only says which headers the packet has. To an adapter the pattern's
    /// headers say that.
    form: [u8; BYTES],
    headers: Vec<Header>,
    /// Offset of the next header.
    next: usize,
    /// True if packets have a complete IP header.
    ip: bool,
    /// True if the L4 header is known.
    l4: bool,
}

/// The first bytes of a megaflow's packets, for the datapath and for an adapter; or why they cannot
/// be given.
pub fn first_bytes(key: &Key, mask: &Mask) -> Result<(FirstBytes, Pattern), Reason> {
    if key.u32(at::RECIRC) != 0 || key.u8(at::FLAGS) & flag::TUNNEL != 0 {
        return Err(Reason::NotFirstPass);
    }
    let mut m = Maker {
        key,
        left: *mask,
        fixed: Key::ZERO,
        value: [0; BYTES],
        mask: [0; BYTES],
        form: [0; BYTES],
        headers: Vec::new(),
        next: 0,
        ip: false,
        l4: false,
    };
    // All packets in the port's own rule table came in on that port.
    m.done(at::IN_PORT, 2);
    m.done(at::PAYLOAD, 8);
    let eth_type = m.ethernet(mask)?;
    let mut bytes = match eth_type {
        ETH_IPV4 => m.ipv4(mask)?,
        ETH_IPV6 => m.ipv6(mask)?,
        _ => m.whole(0),
    };
    m.rest()?;
    (bytes.value, bytes.mask) = (m.value, m.mask);
    let mut pattern = Pattern { headers: m.headers, value: m.value, mask: m.mask };
    for i in 0..BYTES {
        pattern.mask[i] &= !m.form[i];
        pattern.value[i] &= pattern.mask[i];
    }
    Ok((bytes, pattern))
}

impl Maker<'_> {
    /// Removes these bytes of the key from what is left.
    fn done(&mut self, at: usize, n: usize) {
        self.left.bytes_mut()[at..at + n].fill(0);
    }

    /// Sets bytes of the packet from the key, where the key's mask has bits among `bits`.
    fn put(&mut self, packet: usize, at: usize, n: usize) -> Result<(), Reason> {
        for i in 0..n {
            let mask = self.left.u8(at + i);
            if mask != 0 && packet + i >= BYTES {
                return Err(reason_at(at + i));
            }
            if mask != 0 {
                self.mask[packet + i] |= mask;
                self.value[packet + i] |= self.key.u8(at + i) & mask;
            }
        }
        self.done(at, n);
        Ok(())
    }

    /// Sets a byte that all packets of this form have.
    fn form(&mut self, packet: usize, value: u8, mask: u8) {
        self.form[packet] |= mask & !self.mask[packet];
        self.mask[packet] |= mask;
        self.value[packet] |= value & mask;
    }

    fn form16(&mut self, packet: usize, value: u16) {
        let [high, low] = value.to_be_bytes();
        self.form(packet, high, 0xff);
        self.form(packet + 1, low, 0xff);
    }

    fn header(&mut self, header: Header) -> usize {
        let at = self.next;
        self.headers.push(header);
        self.next += header.len();
        at
    }

    /// The result, in which the packet's own length is the only one unless `length_at` is set.
    fn whole(&self, length_at: usize) -> FirstBytes {
        FirstBytes {
            value: [0; BYTES],
            mask: [0; BYTES],
            least: self.next as u16,
            length_at: length_at as u8,
            end_base: 0,
            end_least: 0,
        }
    }

    /// Adds Ethernet and a tag; returns the Ethertype behind them.
    fn ethernet(&mut self, mask: &Mask) -> Result<u16, Reason> {
        let eth_type = self.key.u16(at::ETH_TYPE);
        if mask.u16(at::ETH_TYPE) != 0xffff || eth_type < ETHERTYPE_MIN {
            return Err(reason_at(at::ETH_TYPE));
        }
        if [ETH_VLAN, ETH_QINQ].contains(&eth_type) {
            return Err(Reason::Match("second VLAN tag".into()));
        }
        self.header(Header::Ethernet);
        self.put(0, at::ETH_DST, 12)?;
        self.done(at::ETH_TYPE, 2);
        let tagged = self.key.u16(at::VLAN) & mask.u16(at::VLAN) & 0x1000 != 0;
        let flags = self.key.u8(at::FLAGS) & mask.u8(at::FLAGS);
        if tagged {
            let (tpid, bit) = match flags & flag::VLAN_88A8 {
                0 => (ETH_VLAN, 0),
                bit => (ETH_QINQ, bit),
            };
            self.form16(12, tpid);
            if tpid == ETH_QINQ {
                // A header in the pattern says that there is a tag, but not its Ethertype.
                self.form[12..14].fill(0);
            }
            self.fixed.set_u8(at::FLAGS, bit);
            let tag = self.header(Header::Vlan);
            // The bit that means "there is a tag" in a key is CFI in a tag.
            self.left.set_u16(at::VLAN, self.left.u16(at::VLAN) & !0x1000);
            self.put(tag, at::VLAN, 2)?;
        }
        let type_at = self.next - 2;
        self.form16(type_at, eth_type);
        if ![ETH_IPV4, ETH_IPV6].contains(&eth_type) {
            // No header in the pattern stands for this Ethertype.
            self.form[type_at..type_at + 2].fill(0);
        }
        Ok(eth_type)
    }

    fn ipv4(&mut self, mask: &Mask) -> Result<FirstBytes, Reason> {
        let l3 = self.header(Header::Ipv4);
        self.ip = true;
        self.form(l3, 0x45, 0xff);
        // No "more fragments", no offset.
        self.form(l3 + 6, 0, 0x3f);
        self.form(l3 + 7, 0, 0xff);
        self.put(l3 + 1, at::TOS, 1)?;
        self.put(l3 + 8, at::TTL, 1)?;
        self.put(l3 + 12, at::IP_SRC, 8)?;
        let l4 = match mask.u8(at::PROTO) {
            0xff => self.l4(l3 + 9, ETH_IPV4)?,
            0 => 0,
            _ => return Err(reason_at(at::PROTO)),
        };
        Ok(FirstBytes {
            least: (l3 + 20 + l4) as u16,
            end_base: l3 as u8,
            end_least: (l3 + 20 + l4) as u8,
            ..self.whole(l3 + 2)
        })
    }

    fn ipv6(&mut self, mask: &Mask) -> Result<FirstBytes, Reason> {
        let l3 = self.header(Header::Ipv6);
        self.ip = true;
        self.form(l3, 0x60, 0xf0);
        // Four bits of version, eight of traffic class, 20 of label.
        let (tos, tos_mask) = (self.key.u8(at::TOS), self.left.u8(at::TOS));
        let label = self.key.u32(at::IPV6_LABEL) & 0xf_ffff;
        let word = u32::from(tos) << 20 | label;
        let bits = u32::from(tos_mask) << 20 | self.left.u32(at::IPV6_LABEL) & 0xf_ffff;
        for (i, (v, m)) in word.to_be_bytes().into_iter().zip(bits.to_be_bytes()).enumerate() {
            self.mask[l3 + i] |= m;
            self.value[l3 + i] |= v & m;
        }
        self.done(at::TOS, 1);
        self.done(at::IPV6_LABEL, 4);
        self.put(l3 + 7, at::TTL, 1)?;
        self.put(l3 + 8, at::IPV6_SRC, 32)?;
        // Without a protocol, extension headers may follow.
        let proto = self.key.u8(at::PROTO);
        if mask.u8(at::PROTO) != 0xff || EXTENSIONS.contains(&proto) {
            return Err(reason_at(at::PROTO));
        }
        let l4 = self.l4(l3 + 6, ETH_IPV6)?;
        Ok(FirstBytes {
            least: (l3 + 40 + l4) as u16,
            end_base: (l3 + 40) as u8,
            end_least: (l3 + 40 + l4) as u8,
            ..self.whole(l3 + 4)
        })
    }

    /// Adds L4 of the protocol that the byte at `proto_at` names; returns its length.
    fn l4(&mut self, proto_at: usize, eth_type: u16) -> Result<usize, Reason> {
        let proto = self.key.u8(at::PROTO);
        self.done(at::PROTO, 1);
        self.l4 = true;
        let header = match (proto, eth_type) {
            (IP_TCP, _) => Header::Tcp,
            (IP_UDP, _) => Header::Udp,
            (IP_SCTP, _) => Header::Sctp,
            (IP_ICMP, ETH_IPV4) => Header::Icmp,
            (IP_ICMPV6, ETH_IPV6) => Header::Icmp6,
            // IGMP has a type and code as ICMP does.
            (IP_IGMP, ETH_IPV4) => return Err(Reason::Match("nw_proto=2".into())),
            _ => {
                self.mask[proto_at] = 0xff;
                self.value[proto_at] = proto;
                return Ok(0);
            }
        };
        self.form(proto_at, proto, 0xff);
        let l4 = self.header(header);
        self.fixed.set_u8(at::FLAGS, self.fixed.u8(at::FLAGS) | flag::L4);
        match header {
            Header::Icmp | Header::Icmp6 => {
                self.put(l4, at::TP_SRC + 1, 1)?;
                self.put(l4 + 1, at::TP_DST + 1, 1)?;
                // Line 1 of a key for neighbour discovery depends on what is behind the header.
                let nd = [(at::ND_TARGET, 16), (at::ARP_SHA, 12)];
                let asked = |(at, n): &(usize, usize)| {
                    self.left.bytes()[*at..at + n].iter().any(|m| *m != 0)
                };
                if header == Header::Icmp6 && nd.iter().any(asked) {
                    return Err(reason_at(at::ND_TARGET));
                }
                Ok(8)
            }
            _ => {
                self.put(l4, at::TP_SRC, 4)?;
                if header == Header::Tcp {
                    self.put(l4 + 12, at::TCP_FLAGS, 2)?;
                }
                Ok(header.len())
            }
        }
    }

    /// Checks that what is left of the mask is equal for all packets of this form.
    fn rest(&mut self) -> Result<(), Reason> {
        if self.left.u16(at::VLAN1) & self.key.u16(at::VLAN1) != 0 {
            return Err(Reason::Match("second VLAN tag".into()));
        }
        // Fields behind the last header of the pattern may differ from packet to packet.
        let unknown = match (self.ip, self.l4) {
            (_, true) => 0..0,
            (true, false) => at::TP_SRC..at::PROTO,
            (false, false) => at::IP_SRC..at::VLAN1,
        };
        let beyond = if self.ip { 0..0 } else { at::IPV6_SRC..at::TUN_DST };
        if let Some(i) = unknown.chain(beyond).find(|i| self.left.u8(*i) != 0) {
            return Err(reason_at(i));
        }
        let unsaid = self.left.u16(at::TCP_FLAGS) != 0 || self.left.u8(at::FLAGS) & flag::L4 != 0;
        if !self.l4 && unsaid {
            return Err(reason_at(at::PROTO));
        }
        let differs = |i: &usize| (self.key.u8(*i) ^ self.fixed.u8(*i)) & self.left.u8(*i) != 0;
        match (0..flow::PACKET_LINES * 64).find(differs) {
            None => Ok(()),
            Some(i) => Err(reason_at(i)),
        }
    }
}

/// The reason for the field at this byte of a key, with OVS's name for it.
fn reason_at(byte: usize) -> Reason {
    let field = FIELDS.iter().find(|f| (f.offset()..f.offset() + f.bytes()).contains(&byte));
    Reason::Match(match field {
        Some(f) => f.name(),
        None if byte == at::FLAGS => "tunnel flags".into(),
        None => "metadata".into(),
    })
}
