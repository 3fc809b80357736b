//! BFD control packets (RFC 5880, section 4.1) in UDP and IPv4 (RFC 5881), as ovs-vswitchd sends
//! and reads them.

use super::bfd_conf::Conf;
use wire::{ETH_IPV4, IP_UDP, Ipv4, Udp};

/// UDP port of BFD control packets (RFC 5881, section 4).
pub const UDP_PORT: u16 = 3784;
/// A peer more than one hop away cannot send this TTL (RFC 5881, section 5).
pub const TTL: u8 = 255;
const ETH_LEN: usize = 14;
const LEN: usize = 24;
const VERSION: u8 = 1;
/// Internetwork control.
const TOS: u8 = 0xc0;

/// Bits of the second byte, below the state.
pub mod flag {
    /// The receiver is to answer at once.
    pub const POLL: u8 = 1 << 5;
    /// The answer to a poll.
    pub const FINAL: u8 = 1 << 4;
    pub const CONTROL_PLANE_INDEPENDENT: u8 = 1 << 3;
    pub const AUTHENTICATED: u8 = 1 << 2;
    pub const DEMAND: u8 = 1 << 1;
    pub const MULTIPOINT: u8 = 1;
}

/// `bfd.SessionState`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    AdminDown,
    #[default]
    Down,
    Init,
    Up,
}

impl State {
    /// As the database and `bfd/show` have it.
    pub fn name(self) -> &'static str {
        match self {
            State::AdminDown => "admin_down",
            State::Down => "down",
            State::Init => "init",
            State::Up => "up",
        }
    }
}

/// A diagnostic: why the session left state Up last, or what is wrong behind the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diag(pub u8);

impl Diag {
    pub const NONE: Diag = Diag(0);
    pub const EXPIRED: Diag = Diag(1);
    pub const REMOTE_DOWN: Diag = Diag(3);
    pub const PATH_DOWN: Diag = Diag(5);
    pub const CPATH_DOWN: Diag = Diag(6);
    pub const REVERSE_CPATH_DOWN: Diag = Diag(8);

    /// As the database and `bfd/show` have it.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "No Diagnostic",
            1 => "Control Detection Time Expired",
            2 => "Echo Function Failed",
            3 => "Neighbor Signaled Session Down",
            4 => "Forwarding Plane Reset",
            5 => "Path Down",
            6 => "Concatenated Path Down",
            7 => "Administratively Down",
            8 => "Reverse Concatenated Path Down",
            _ => "Invalid Diagnostic",
        }
    }
}

/// What a control packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    pub diag: Diag,
    pub state: State,
    /// Bits of [`flag`].
    pub flags: u8,
    pub mult: u8,
    pub my_disc: u32,
    pub your_disc: u32,
    /// Microseconds.
    pub min_tx_us: u32,
    /// Microseconds.
    pub min_rx_us: u32,
}

/// Why a packet is none for the session, in ovs-vswitchd's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("TTL is not 255")]
    Ttl,
    #[error("Received too-short BFD control message")]
    Short,
    #[error("Incorrect version")]
    Version,
    #[error("Authenticated control message with authentication disabled")]
    Authenticated,
    #[error("Unexpected length")]
    Length,
    #[error("Zero multiplier")]
    Multiplier,
    #[error("Unsupported multipoint flag")]
    Multipoint,
    #[error("NULL my_disc")]
    MyDisc,
    #[error("Incorrect your_disc")]
    YourDisc,
    #[error("Null your_disc")]
    NullYourDisc,
    #[error("more control messages than it was offered to send")]
    Rate,
}

impl Control {
    /// Reads a frame, in the order of RFC 5880, section 6.8.6.
    pub fn read(frame: &[u8]) -> Result<Control, Refusal> {
        let l3 = wire::l3(frame).ok_or(Refusal::Short)?;
        let ip = Ipv4::new(&frame[l3.at..]).ok_or(Refusal::Short)?;
        if ip.ttl() != TTL {
            return Err(Refusal::Ttl);
        }
        let b = ip.payload().get(wire::UDP_LEN..).and_then(|b| b.first_chunk::<LEN>());
        let b = b.ok_or(Refusal::Short)?;
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let control = Control {
            diag: Diag(b[0] & 0x1f),
            state: [State::AdminDown, State::Down, State::Init, State::Up][usize::from(b[1] >> 6)],
            flags: b[1] & 0x3f,
            mult: b[2],
            my_disc: word(4),
            your_disc: word(8),
            min_tx_us: word(12),
            min_rx_us: word(16),
        };
        match control {
            _ if b[0] >> 5 != VERSION => Err(Refusal::Version),
            c if c.flags & flag::AUTHENTICATED != 0 => Err(Refusal::Authenticated),
            _ if usize::from(b[3]) < LEN => Err(Refusal::Length),
            Control { mult: 0, .. } => Err(Refusal::Multiplier),
            c if c.flags & flag::MULTIPOINT != 0 => Err(Refusal::Multipoint),
            Control { my_disc: 0, .. } => Err(Refusal::MyDisc),
            c => Ok(c),
        }
    }

    fn bytes(&self) -> [u8; LEN] {
        let mut b = [0; LEN];
        b[0] = VERSION << 5 | self.diag.0;
        b[1] = (self.state as u8) << 6 | self.flags;
        b[2] = self.mult;
        b[3] = LEN as u8;
        let words = [self.my_disc, self.your_disc, self.min_tx_us, self.min_rx_us];
        for (place, word) in b[4..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        b
    }

    /// The frame that an interface with address `mac` sends, from UDP port `source_port`.
    pub fn frame(&self, conf: &Conf, mac: [u8; 6], source_port: u16) -> Vec<u8> {
        let mut f = Vec::with_capacity(ETH_LEN + wire::IPV4_LEN + wire::UDP_LEN + LEN);
        f.extend(conf.dst_mac);
        f.extend(conf.src_mac.unwrap_or(mac));
        f.extend(ETH_IPV4.to_be_bytes());
        let mut ip = [0; wire::IPV4_LEN];
        if let Some(mut ip) = Ipv4::init(&mut ip, wire::IPV4_LEN) {
            ip.set_tos(TOS);
            ip.set_total_len((wire::IPV4_LEN + wire::UDP_LEN + LEN) as u16);
            ip.set_ttl(TTL);
            ip.set_proto(IP_UDP);
            ip.set_src(conf.src_ip.octets());
            ip.set_dst(conf.dst_ip.octets());
            ip.fill_checksum();
        }
        f.extend(ip);
        let mut udp = [0; wire::UDP_LEN];
        if let Some(mut udp) = Udp::new(&mut udp) {
            udp.set_src(source_port);
            udp.set_dst(UDP_PORT);
            udp.set_length((wire::UDP_LEN + LEN) as u16);
        }
        f.extend(udp);
        f.extend(self.bytes());
        f
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROL: Control = Control {
        diag: Diag::EXPIRED,
        state: State::Init,
        flags: flag::POLL,
        mult: 5,
        my_disc: 0x1234_5678,
        your_disc: 9,
        min_tx_us: 100_000,
        min_rx_us: 1_000_000,
    };

    fn frame() -> Vec<u8> {
        let conf = [("enable".to_string(), "true".to_string())].into();
        CONTROL.frame(&Conf::read(&conf).unwrap().0, [2, 0, 0, 0, 0, 7], 49_152)
    }

    #[test]
    fn a_frame_is_the_one_of_ovs_vswitchd() {
        let hex: String = frame().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "002320000001020000000007080045c0003400000000ff1164fba9fe0101a9fe0100c0000ec800200000\
             21a005181234567800000009000186a0000f424000000000"
        );
        assert_eq!(Control::read(&frame()), Ok(CONTROL));
    }

    #[test]
    fn what_is_none_is_refused_by_name() {
        const IP: usize = ETH_LEN;
        const BFD: usize = ETH_LEN + wire::IPV4_LEN + wire::UDP_LEN;
        let cases: [(usize, &[u8], Refusal); 8] = [
            (IP + 8, &[254], Refusal::Ttl),
            (IP + 3, &[0x33], Refusal::Short),
            (BFD, &[0x41], Refusal::Version),
            (BFD + 1, &[flag::AUTHENTICATED], Refusal::Authenticated),
            (BFD + 3, &[23], Refusal::Length),
            (BFD + 2, &[0], Refusal::Multiplier),
            (BFD + 1, &[flag::MULTIPOINT], Refusal::Multipoint),
            (BFD + 4, &[0; 4], Refusal::MyDisc),
        ];
        for (at, bytes, refusal) in cases {
            let mut f = frame();
            f[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(Control::read(&f), Err(refusal), "{bytes:?} at {at}");
        }
        (0..frame().len()).for_each(|n| {
            assert_eq!(Control::read(&frame()[..n]), Err(Refusal::Short), "{n} bytes")
        });
    }
}
