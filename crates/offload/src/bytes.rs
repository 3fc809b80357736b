//! Megaflows as bytes: what the first 64 bytes of its packets are.
//!
//! Headers lie at fixed places in the packets that a rule is for: Ethernet, at most one tag, IPv4
//! without options or IPv6 without extension headers, neither a fragment, and L4. Which of them it
//! is follows from the megaflow; what a megaflow covers besides (it may say nothing about tags)
//! goes the ordinary way.

use crate::Reason;
use flow::{FIELDS, Key, Mask, at, flag};
use port::{Header, PATTERN_BYTES as BYTES, Pattern};
use wire::{
    ETH_IPV4, ETH_IPV6, ETH_QINQ, ETH_VLAN, IP_ICMP, IP_ICMPV6, IP_IGMP, IP_SCTP, IP_TCP, IP_UDP,
};

/// Ethertypes and protocols.
/// IPv6 next headers behind which there is more to read: hop-by-hop, routing, fragment,
/// authentication, destination options.
const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];
/// Below, an Ethertype is a length.
const ETHERTYPE_MIN: u16 = 0x600;

/// What proves that a packet belongs to a megaflow, without parsing it: its bytes, and that it is
/// whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstBytes {
    /// The packet's first bytes, where `mask` has bits; zero elsewhere.
    pub value: [u8; BYTES],
    /// Bits that count.
    pub mask: [u8; BYTES],
    /// Least bytes of the packet.
    pub least: u16,
    /// Where the length field of the IP header is, two bytes; 0: there is none.
    pub length_at: u8,
    /// The datagram ends so many bytes after the packet's start, plus the length field.
    pub end_base: u8,
    /// The least end of the datagram; its end is not behind the packet's.
    pub end_least: u8,
}

impl FirstBytes {
    /// Does the packet belong to the megaflow? The plain way, which the datapath's is compared
    /// with.
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

/// A megaflow on its way to bytes.
struct Maker<'a> {
    key: &'a Key,
    /// What is not said yet.
    left: Mask,
    /// What every packet of this form has, though no byte of it says so.
    fixed: Key,
    value: [u8; BYTES],
    mask: [u8; BYTES],
    /// The part of `mask` that only says of which form the packet is: headers say that to an
    /// adapter.
    form: [u8; BYTES],
    headers: Vec<Header>,
    /// Where the next header is.
    next: usize,
    /// Packets have a whole IP header.
    ip: bool,
    /// It is known what is behind that.
    l4: bool,
}

/// What a megaflow's packets begin with, for the datapath and for an adapter; or why that cannot be
/// said.
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
    // The port's own table has no others.
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
    /// Nothing of these bytes of the key is left to say.
    fn done(&mut self, at: usize, n: usize) {
        self.left.bytes_mut()[at..at + n].fill(0);
    }

    /// These bytes of the packet are those of the key, where its mask has bits among `bits`.
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

    /// Packets of this form have this byte.
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

    /// No lengths but the packet's.
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

    /// Ethernet and a tag; which Ethertype is behind.
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
                // A header says that there is a tag, not which.
                self.form[12..14].fill(0);
            }
            self.fixed.set_u8(at::FLAGS, bit);
            let tag = self.header(Header::Vlan);
            // The bit that means "there is one" in a key is CFI in a tag.
            self.left.set_u16(at::VLAN, self.left.u16(at::VLAN) & !0x1000);
            self.put(tag, at::VLAN, 2)?;
        }
        let type_at = self.next - 2;
        self.form16(type_at, eth_type);
        if ![ETH_IPV4, ETH_IPV6].contains(&eth_type) {
            // No header says this one.
            self.form[type_at..type_at + 2].fill(0);
        }
        Ok(eth_type)
    }

    fn ipv4(&mut self, mask: &Mask) -> Result<FirstBytes, Reason> {
        let l3 = self.header(Header::Ipv4);
        self.ip = true;
        self.form(l3, 0x45, 0xff);
        // Neither "more fragments" nor an offset.
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
        // Without it, extension headers may follow.
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

    /// L4 of the protocol that the byte at `proto_at` names; its bytes.
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
            // IGMP has types like ICMP.
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
                // A key's line 1 of neighbour discovery depends on what is behind the header.
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

    /// What is left must be what all packets of this form have.
    fn rest(&mut self) -> Result<(), Reason> {
        if self.left.u16(at::VLAN1) & self.key.u16(at::VLAN1) != 0 {
            return Err(Reason::Match("second VLAN tag".into()));
        }
        // What no header of the pattern says anything about differs from packet to packet.
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

/// The field at this byte of a key, by OVS's name.
fn reason_at(byte: usize) -> Reason {
    let field = FIELDS.iter().find(|f| (f.offset()..f.offset() + f.bytes()).contains(&byte));
    Reason::Match(match field {
        Some(f) => f.name(),
        None if byte == at::FLAGS => "tunnel flags".into(),
        None => "metadata".into(),
    })
}
