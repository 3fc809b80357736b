//! Helpers (OVS: ALGs): the control connections of some protocols announce other connections, which
//! are related to them (`+rel`). FTP writes addresses into its text; when NAT translates the
//! connection, its helper translates the text, too.

mod expect;
pub mod ftp;
mod sequence;

pub use expect::{Expectations, Expected};
pub use sequence::SeqShift;

use crate::conn::{Conn, Meta, Translation, state};
use crate::count::Count;
use crate::extract::Seen;
use crate::machine::{Segment, TcpSegment};
use crate::track::{Arrival, Store};
use crate::tuple::Tuple;
use action::{Alg, Ct};
use ftp::{ADDRESS_BYTES_MAX, FtpText};
use wire::{IP_TCP, IP_UDP, Ipv4, Ipv6, checksum};

/// TFTP's port (RFC 1350).
const TFTP_PORT: u16 = 69;

/// A replacement of a text in a packet by another one, which may be longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    l3: usize,
    l4: usize,
    at: usize,
    remove: usize,
    text: [u8; ADDRESS_BYTES_MAX],
    len: usize,
}

impl Edit {
    /// Bytes by which the packet becomes longer; negative: shorter.
    pub fn growth(&self) -> isize {
        self.len as isize - self.remove as isize
    }

    /// Replaces the text in a packet of `len` bytes. `data` has room for the longer of both.
    pub fn apply(&self, data: &mut [u8], len: usize) {
        data.copy_within(self.at + self.remove..len, self.at + self.len);
        data[self.at..self.at + self.len].copy_from_slice(&self.text[..self.len]);
        let (ip, growth) = (&mut data[self.l3..], self.growth() as u16);
        let (pseudo, end) = if let Some(mut ip) = Ipv4::new(&mut *ip) {
            let total = ip.total_len().wrapping_add(growth);
            ip.set_total_len(total);
            ip.fill_checksum();
            let end = self.l3 + usize::from(total);
            (checksum::pseudo_v4(ip.src(), ip.dst(), IP_TCP, end - self.l4), end)
        } else if let Some(mut ip) = Ipv6::new(&mut *ip) {
            let payload = ip.payload_len().wrapping_add(growth);
            ip.set_payload_len(payload);
            let end = self.l3 + wire::IPV6_LEN + usize::from(payload);
            (checksum::pseudo_v6(&ip.src(), &ip.dst(), IP_TCP, end - self.l4), end)
        } else {
            return;
        };
        data[self.l4 + 16..self.l4 + 18].fill(0);
        let sum = pseudo.bytes(&data[self.l4..end]).finish();
        data[self.l4 + 16..self.l4 + 18].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The helper of a connection that `ct` commits.
pub fn of(ct: &Ct, tuple: &Tuple) -> Option<Alg> {
    match (ct.alg?, tuple.proto) {
        (Alg::Ftp, IP_TCP) => Some(Alg::Ftp),
        (Alg::Tftp, IP_UDP) => Some(Alg::Tftp),
        _ => None,
    }
}

/// A packet's connection, and the packet's relation to it.
pub struct Packet<'a, R> {
    /// The reference to the connection.
    pub conn_ref: R,
    /// The connection.
    pub conn: &'a Conn,
    /// True if the packet has the reply direction.
    pub reply: bool,
    /// True if this `ct` translates the packet.
    pub translated: bool,
}

/// Shifts the acknowledgement number of a translated FTP segment back to the numbers of the end
/// that it acknowledges; returns the segment for the state machine, changed in this way.
pub fn acknowledge<S: Store>(
    store: &mut S,
    data: &mut [u8],
    seen: &Seen,
    p: &Packet<'_, S::Ref>,
) -> Segment {
    let mut segment = seen.segment;
    if let (Some(Alg::Ftp), Segment::Tcp(t), true) = (p.conn.alg, &mut segment, p.translated) {
        let seq_shift = store.seq_shift(p.conn_ref, !p.reply);
        if !seq_shift.is_none() && t.flags & wire::tcp_flags::ACK != 0 {
            t.ack = seq_shift.back(t.ack);
            sequence::write(data, seen.place.l4, 8, t.ack);
        }
    }
    segment
}

/// Runs the connection's helper on a packet; returns the text that is to be replaced, if any.
pub fn serve<S: Store>(
    store: &mut S,
    data: &mut [u8],
    seen: &Seen,
    meta: &mut Meta<S::Ref>,
    p: &Packet<'_, S::Ref>,
    came: Arrival,
) -> Option<Edit> {
    if seen.related || meta.state & state::INV != 0 {
        return None;
    }
    match (p.conn.alg?, seen.segment) {
        (Alg::Tftp, _) => {
            if !p.reply && p.conn.orig.dport == TFTP_PORT {
                expect(store, p, (p.conn.reply.dport, p.conn.orig.sport), came);
            }
            None
        }
        (Alg::Ftp, Segment::Tcp(t)) => {
            let edit = match announced(store, data, seen, &t, p, came) {
                Ok(edit) => edit,
                Err(Malformed) => {
                    meta.state = state::INV;
                    None
                }
            };
            let seq_shift = if p.translated {
                store.seq_shift(p.conn_ref, p.reply)
            } else {
                SeqShift::default()
            };
            if !seq_shift.is_none() {
                sequence::write(data, seen.place.l4, 4, seq_shift.forth(t.seq));
            }
            edit
        }
        _ => None,
    }
}

/// A segment that announces a data connection in a malformed way, or one to the address of another
/// host.
struct Malformed;

/// Adds the expectation of the data connection that a segment announces, if it does; returns the
/// replacement of the address in its text.
fn announced<S: Store>(
    store: &mut S,
    data: &[u8],
    seen: &Seen,
    t: &TcpSegment,
    p: &Packet<'_, S::Ref>,
    came: Arrival,
) -> Result<Option<Edit>, Malformed> {
    let conn = p.conn;
    let start = seen.place.end - t.len as usize;
    let found = match ftp::read(&data[start..seen.place.end], p.reply, conn.orig.v6) {
        FtpText::Other => return Ok(None),
        FtpText::Bad => return Err(Malformed),
        FtpText::Announces(found) => found,
    };
    let (own, shown) = match p.reply {
        true => (conn.reply.src, conn.orig.dst),
        false => (conn.orig.src, conn.reply.dst),
    };
    if found.address.is_some_and(|named| named != own) {
        return Err(Malformed);
    }
    expect(store, p, (found.port, found.port), came);
    if !p.translated || found.address.is_none() || own == shown {
        return Ok(None);
    }
    let (text, len) = ftp::address(shown, conn.orig.v6, found.commas);
    let place = seen.place;
    let (at, remove) = (start + found.text.start, found.text.len());
    let edit = Edit { l3: place.l3, l4: place.l4, at, remove, text, len };
    let mut seq_shift = store.seq_shift(p.conn_ref, p.reply);
    seq_shift.grow(t.seq.wrapping_add(t.len), edit.growth() as i32);
    store.set_seq_shift(p.conn_ref, p.reply, seq_shift);
    Ok(Some(edit))
}

/// Adds an expectation of a connection to the end that sent the packet. `port`: the port as the
/// other end knows it, and as it is.
fn expect<S: Store>(store: &mut S, p: &Packet<'_, S::Ref>, port: (u16, u16), came: Arrival) {
    let Packet { conn, reply, .. } = p;
    // The two addresses as the other end knows them, from which the connection comes; then the
    // sender's own address, and the other end's as the sender knows it.
    let (src, dst, own, other) = match reply {
        true => (conn.orig.src, conn.orig.dst, conn.reply.src, conn.reply.dst),
        false => (conn.reply.src, conn.reply.dst, conn.orig.src, conn.orig.dst),
    };
    let how = if *reply { conn.nat } else { conn.nat.reversed() };
    let nat = if p.translated { how } else { Translation::None };
    let to = match nat {
        Translation::Source => (other, 0),
        _ => (own, port.1),
    };
    let tuple = Tuple { src, dst, sport: 0, dport: port.0, ..conn.orig };
    let parent = store.name(p.conn_ref);
    if !store.expect(&tuple, Expected { parent, nat, to }, came) {
        store.count(Count::NotExpected);
    }
}

/// Fills in what an expected connection has of its parent and of the expectation.
pub fn adopt(conn: &mut Conn, what: &Expected, parent: &Conn, translates: bool) {
    (conn.mark, conn.label, conn.parent) = (parent.mark, parent.label, Some(what.parent));
    if !translates {
        return;
    }
    conn.nat = what.nat;
    match what.nat {
        Translation::None => {}
        Translation::Source => conn.reply.dst = what.to.0,
        Translation::Destination => (conn.reply.src, conn.reply.sport) = what.to,
    }
}
