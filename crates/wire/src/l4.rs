//! TCP, UDP, SCTP.

use crate::field::header;
use crate::{SCTP_LEN, TCP_LEN, UDP_LEN};

/// Bits of [`Tcp::flags`] (RFC 9293, RFC 3168).
#[allow(missing_docs)]
pub mod tcp_flags {
    pub const FIN: u16 = 0x001;
    pub const SYN: u16 = 0x002;
    pub const RST: u16 = 0x004;
    pub const PSH: u16 = 0x008;
    pub const ACK: u16 = 0x010;
    pub const URG: u16 = 0x020;
    pub const ECE: u16 = 0x040;
    pub const CWR: u16 = 0x080;
    pub const NS: u16 = 0x100;
}

header! {
    /// A TCP header with its options (RFC 9293). `new` checks that it is complete.
    Tcp, TCP_LEN, {
        /// Source port.
        src set_src: u16, 0;
        /// Destination port.
        dst set_dst: u16, 2;
        /// Sequence number.
        seq set_seq: u32, 4;
        /// Acknowledgement number.
        ack set_ack: u32, 8;
        /// Data offset (4 bits) and flags (12 bits).
        ctl set_ctl: u16, 12;
        /// Window.
        window set_window: u16, 14;
        /// Checksum.
        checksum set_checksum: u16, 16;
        /// Urgent pointer.
        urgent set_urgent: u16, 18;
    }
}

impl<B: AsRef<[u8]>> Tcp<B> {
    #[inline]
    fn fits(b: &[u8]) -> bool {
        if b.len() < TCP_LEN {
            return false;
        }
        let len = usize::from(b[12] >> 4) * 4;
        len >= TCP_LEN && len <= b.len()
    }

    /// Bytes of the header, 20..=60.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.bytes()[12] >> 4) * 4
    }

    /// The twelve bits behind the data offset.
    #[inline]
    pub fn flags(&self) -> u16 {
        self.ctl() & 0xfff
    }
}

header! {
    /// A UDP header (RFC 768).
    Udp, UDP_LEN, {
        /// Source port.
        src set_src: u16, 0;
        /// Destination port.
        dst set_dst: u16, 2;
        /// Bytes of header and payload.
        length set_length: u16, 4;
        /// Checksum; zero: none was made.
        checksum set_checksum: u16, 6;
    }
}

impl<B: AsRef<[u8]>> Udp<B> {
    #[inline]
    fn fits(b: &[u8]) -> bool {
        b.len() >= UDP_LEN
    }
}

header! {
    /// An SCTP common header (RFC 9260).
    Sctp, SCTP_LEN, {
        /// Source port.
        src set_src: u16, 0;
        /// Destination port.
        dst set_dst: u16, 2;
        /// Verification tag.
        tag set_tag: u32, 4;
        /// CRC32c as its four bytes stand on the wire; see [`crate::sctp_checksum`].
        checksum set_checksum: [u8; 4], 8;
    }
}

impl<B: AsRef<[u8]>> Sctp<B> {
    #[inline]
    fn fits(b: &[u8]) -> bool {
        b.len() >= SCTP_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_offset_is_checked() {
        let mut raw = [0u8; 24];
        assert!(Tcp::new(&raw).is_none(), "offset 0");
        raw[12] = 0x61;
        raw[13] = 0x12;
        let t = Tcp::new(&raw).unwrap();
        assert_eq!((t.header_len(), t.flags()), (24, 0x112));
        assert!(Tcp::new(&raw[..23]).is_none());
    }

    #[test]
    fn udp_and_sctp_lengths() {
        let mut raw = [0u8; 12];
        assert!(Udp::new(&raw[..7]).is_none() && Sctp::new(&raw[..11]).is_none());
        Sctp::new(&mut raw).unwrap().set_checksum([1, 2, 3, 4]);
        Udp::new(&mut raw).unwrap().set_dst(53);
        assert_eq!(raw, [0, 0, 0, 53, 0, 0, 0, 0, 1, 2, 3, 4]);
    }
}
