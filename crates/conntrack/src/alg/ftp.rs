//! Reads what FTP's control connection says of data connections: the command PORT and the reply 227
//! (RFC 959), the command EPRT and the reply 229 (RFC 2428).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

/// Bytes of a segment that are looked at (as in OVS); lines that matter are shorter.
const LOOKED_AT_BYTES: usize = 128;
/// Longest text of an address: that of IPv6.
pub const ADDRESS_BYTES_MAX: usize = 39;

/// What a segment says of a data connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FtpText {
    /// The segment says nothing about a data connection.
    Other,
    /// Where a data connection will go to.
    Announces(Announcement),
    /// The segment begins like such a command or reply, and is malformed.
    Bad,
}

/// Where a data connection will go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The address in the text, as a number; None: there is none, and the sender's is meant.
    pub address: Option<u128>,
    /// The port in the text.
    pub port: u16,
    /// Where the text of the address is.
    pub text: Range<usize>,
    /// True: the address is written with commas (PORT, 227); false: in the usual notation.
    pub commas: bool,
}

/// Reads a segment's payload. `from_server`: it is the server's reply; `v6`: addresses are IPv6's.
pub fn read(payload: &[u8], from_server: bool, v6: bool) -> FtpText {
    let b = &payload[..payload.len().min(LOOKED_AT_BYTES)];
    let begins = |with: &str| {
        b.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with.as_bytes()))
    };
    let found = match from_server {
        false if begins("PORT") && !v6 => numbers(b, 4),
        false if begins("EPRT") => extended(b, v6),
        true if begins("227") && !v6 => numbers(b, 3),
        true if begins("229") => port_only(b),
        _ => return FtpText::Other,
    };
    found.map_or(FtpText::Bad, FtpText::Announces)
}

/// The decimal number at `at`, up to `max`, and where it ends.
fn number(b: &[u8], at: usize, max: u32) -> Option<(u32, usize)> {
    let digits = b.get(at..)?.iter().take_while(|c| c.is_ascii_digit()).count();
    let text = std::str::from_utf8(&b[at..at + digits]).ok()?;
    let n = text.parse::<u32>().ok().filter(|n| *n <= max)?;
    Some((n, at + digits))
}

/// Reads `h1,h2,h3,h4,p1,p2` behind `from`: an address and a port.
fn numbers(b: &[u8], from: usize) -> Option<Announcement> {
    let mut at = from + b[from..].iter().position(u8::is_ascii_digit)?;
    let start = at;
    let (mut value, mut end) = ([0; 6], at);
    for (i, v) in value.iter_mut().enumerate() {
        let (n, behind) = number(b, at, 255)?;
        *v = n;
        if i == 3 {
            end = behind;
        }
        if i < 5 && b.get(behind) != Some(&b',') {
            return None;
        }
        at = behind + 1;
    }
    let address = value[..4].iter().fold(0, |a, n| a << 8 | u128::from(*n));
    let port = (value[4] << 8 | value[5]) as u16;
    announced(Some(address), port, start..end, true)
}

/// The announcement of this address and port; None: port 0 cannot be meant.
fn announced(
    address: Option<u128>,
    port: u16,
    text: Range<usize>,
    commas: bool,
) -> Option<Announcement> {
    (port != 0).then_some(Announcement { address, port, text, commas })
}

/// Reads `EPRT |1|ADDRESS|PORT|`, with any mark in place of the bars; 2 in place of 1 is IPv6.
fn extended(b: &[u8], v6: bool) -> Option<Announcement> {
    let start = 4 + b[4..].iter().position(|c| *c != b' ')?;
    let mark = *b.get(start).filter(|c| c.is_ascii_graphic() && !c.is_ascii_alphanumeric())?;
    let ends = |from: usize| Some(from + b.get(from..)?.iter().position(|c| *c == mark)?);
    let family = start + 1;
    let address = ends(family)? + 1;
    let end = ends(address)?;
    let wants: &[u8] = if v6 { b"2" } else { b"1" };
    if &b[family..address - 1] != wants {
        return None;
    }
    let text = std::str::from_utf8(&b[address..end]).ok()?;
    let value = match v6 {
        true => text.parse::<Ipv6Addr>().ok()?.into(),
        false => u32::from(text.parse::<Ipv4Addr>().ok()?).into(),
    };
    let (port, behind) = number(b, end + 1, 0xffff)?;
    if b.get(behind) != Some(&mark) {
        return None;
    }
    announced(Some(value), port as u16, address..end, false)
}

/// Reads `229 ... (|||PORT|)`, with any mark in place of the bars.
fn port_only(b: &[u8]) -> Option<Announcement> {
    let open = b.iter().position(|c| *c == b'(')?;
    let mark = *b.get(open + 1)?;
    if b.get(open + 1..open + 4)? != [mark; 3] || mark.is_ascii_digit() {
        return None;
    }
    let (port, behind) = number(b, open + 4, 0xffff)?;
    if b.get(behind) != Some(&mark) {
        return None;
    }
    announced(None, port as u16, 0..0, false)
}

/// The text of an address, and its length.
pub fn address(address: u128, v6: bool, commas: bool) -> ([u8; ADDRESS_BYTES_MAX], usize) {
    use std::io::Write;
    let mut text = [0; ADDRESS_BYTES_MAX];
    let mut rest = &mut text[..];
    let addr = crate::tuple::address(address, v6);
    let _ = write!(rest, "{addr}");
    let len = ADDRESS_BYTES_MAX - rest.len();
    if commas {
        text[..len].iter_mut().filter(|c| **c == b'.').for_each(|c| *c = b',');
    }
    (text, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(line: &str, from_server: bool, v6: bool) -> Option<(Option<u128>, u16, String)> {
        match read(line.as_bytes(), from_server, v6) {
            FtpText::Announces(a) => Some((a.address, a.port, line[a.text].into())),
            _ => None,
        }
    }

    #[test]
    fn lines_that_announce() {
        let v4 = Some(0x0a01_0101);
        let text = || "10,1,1,1".to_string();
        assert_eq!(port("PORT 10,1,1,1,4,1\r\n", false, false), Some((v4, 1025, text())));
        assert_eq!(port("port 10,1,1,1,0,21\r\n", false, false), Some((v4, 21, text())));
        let passive = "227 Entering Passive Mode (10,1,1,1,255,255).\r\n";
        assert_eq!(port(passive, true, false), Some((v4, 65535, text())));
        let extended = Some((v4, 80, "10.1.1.1".to_string()));
        assert_eq!(port("EPRT |1|10.1.1.1|80|\r\n", false, false), extended);
        let v6 = Some((Some(0xfc00 << 112 | 1), 80, "fc00::1".to_string()));
        assert_eq!(port("EPRT !2!fc00::1!80!\r\n", false, true), v6);
        let only = "229 Entering Extended Passive Mode (|||1234|)\r\n";
        assert_eq!(port(only, true, true), Some((None, 1234, String::new())));
    }

    #[test]
    fn lines_that_do_not() {
        for (line, from_server, v6) in [
            ("PORT 10,1,1,1,4,1\r\n", true, false),
            ("227 Entering Passive Mode (10,1,1,1,255,255).\r\n", false, false),
            ("USER x\r\n", false, false),
            ("", false, false),
            ("22", true, false),
        ] {
            assert_eq!(read(line.as_bytes(), from_server, v6), FtpText::Other, "{line}");
        }
        for (line, from_server, v6) in [
            ("PORT 10,1,1,1,4\r\n", false, false),
            ("PORT 10,1,1,256,4,1\r\n", false, false),
            ("PORT 10,1,1,1,0,0\r\n", false, false),
            ("PORT 10,1,1,1,4,", false, false),
            ("PORT", false, false),
            ("EPRT |2|10.1.1.1|80|\r\n", false, true),
            ("EPRT |1|10.1.1.1|80\r\n", false, false),
            ("EPRT", false, false),
            ("227 no numbers\r\n", true, false),
            ("229 (||1234|)\r\n", true, true),
            ("229 (|||65536|)\r\n", true, true),
            ("229", true, true),
        ] {
            assert_eq!(read(line.as_bytes(), from_server, v6), FtpText::Bad, "{line}");
        }
    }

    #[test]
    fn addresses_as_text() {
        let text = |n, v6, commas| {
            let (text, len) = address(n, v6, commas);
            String::from_utf8(text[..len].to_vec()).unwrap()
        };
        assert_eq!(text(0x0a01_01ff, false, true), "10,1,1,255");
        assert_eq!(text(u128::MAX, true, false), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
    }
}
