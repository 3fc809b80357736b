//! The state machines of connections, per protocol, as in OVS 3.1's userspace datapath. TCP is
//! followed as OpenBSD's pf does it (Guido van Rooij, "Real Stateful TCP Packet Filtering in IP
//! Filter", 2001).

use crate::policy::Class;
use wire::tcp_flags::{ACK, FIN, PSH, RST, SYN, URG};

/// States of one end of a TCP connection. The numbers are OVS's; states that no packet leads to are
/// left out.
pub mod state {
    #![allow(missing_docs)]
    pub const CLOSED: u8 = 0;
    pub const SYN_SENT: u8 = 2;
    pub const ESTABLISHED: u8 = 4;
    pub const CLOSING: u8 = 7;
    pub const FIN_WAIT_2: u8 = 9;
    pub const TIME_WAIT: u8 = 10;
}

/// States of connections of other protocols than TCP, in [`Peer::state`] of the first end: which
/// packets there were. ICMP's have only the first and the last one.
pub mod stage {
    #![allow(missing_docs)]
    pub const FIRST: u8 = 0;
    pub const MULTIPLE: u8 = 1;
    pub const BOTH_WAYS: u8 = 2;
}

/// The window scale was in a SYN.
pub const WSCALE_KNOWN: u8 = 0x80;
/// The connection's first packet was no SYN.
pub const WSCALE_UNKNOWN: u8 = 0x40;
/// Bits of the window scale itself.
pub const WSCALE: u8 = 0xf;
/// Largest window scale (RFC 7323).
pub(crate) const WSCALE_MAX: u8 = 14;
/// How far acknowledgements may lag: a window and one more packet, in bytes.
const ACK_SKEW_BYTES_MAX: i32 = 0xffff + 1500;

/// One end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// A number of [`state`] or [`stage`].
    pub state: u8,
    /// Window scale: bits [`WSCALE_KNOWN`], [`WSCALE_UNKNOWN`], [`WSCALE`].
    pub wscale: u8,
    /// Largest window that this end announced, not scaled.
    pub max_win: u16,
    /// The sequence number behind the last byte that this end sent.
    pub seqlo: u32,
    /// The sequence number behind the last byte that this end may send.
    pub seqhi: u32,
}

/// The two ends of a connection: the sender of the first packet, then the other one.
pub type Peers = [Peer; 2];

/// What the state machines read of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// TCP.
    Tcp(TcpSegment),
    /// ICMP or ICMPv6.
    Icmp {
        /// True if the message is a request, which may begin a connection.
        request: bool,
    },
    /// Anything else.
    Other,
}

/// A TCP segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpSegment {
    /// Bits of [`wire::tcp_flags`].
    pub flags: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Window.
    pub window: u16,
    /// Bytes of payload.
    pub len: u32,
    /// The window scale option, as in [`Peer::wscale`]; 0: it has none.
    pub wscale: u8,
}

/// What a connection's state machine decides about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet belongs to the connection.
    Valid,
    /// The packet belongs to the connection, which is still new.
    StillNew,
    /// The packet begins another connection with the same tuple.
    Reopens,
    /// The packet cannot belong to the connection, and nothing changed.
    Invalid,
}

/// What is counted of a TCP segment: why it is invalid, or that its sequence numbers were not
/// checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Note {
    None,
    SequenceFailed,
    SequenceBypassed,
    Flags,
}

/// True if a connection may begin with this segment.
pub fn may_begin(segment: &Segment) -> bool {
    match segment {
        Segment::Tcp(t) => flags_fit(t.flags) && t.flags & (SYN | ACK) != (SYN | ACK),
        Segment::Icmp { request } => *request,
        Segment::Other => true,
    }
}

/// The ends of a connection that begins with `segment`, and its first timeout.
pub fn begin(segment: &Segment) -> (Peers, Class) {
    match segment {
        Segment::Tcp(t) => (begin_tcp(t), Class::TcpSynSent),
        Segment::Icmp { .. } => (Peers::default(), Class::IcmpFirst),
        Segment::Other => (Peers::default(), Class::UdpFirst),
    }
}

/// Changes the ends of a connection by one of its packets; `reply`: the second end sent the packet.
/// The class names the timeout that starts now; None: the present timeout goes on. `check`:
/// sequence numbers are checked.
#[inline]
pub fn update(
    peers: &mut Peers,
    segment: &Segment,
    reply: bool,
    check: bool,
) -> (Verdict, Option<Class>, Note) {
    match segment {
        Segment::Tcp(t) => {
            // By value, so that the ends stay in registers.
            let [mut src, mut dst] = by_sender(*peers, reply);
            let made = update_tcp(&mut src, &mut dst, t, check);
            *peers = by_sender([src, dst], reply);
            made
        }
        Segment::Icmp { .. } => {
            let (verdict, class) = update_icmp(&mut peers[0].state, reply);
            (verdict, Some(class), Note::None)
        }
        Segment::Other => {
            let (verdict, class) = update_other(&mut peers[0].state, reply);
            (verdict, Some(class), Note::None)
        }
    }
}

/// The ends in the other order, if `reply`.
#[inline(always)]
fn by_sender([a, b]: Peers, reply: bool) -> Peers {
    if reply { [b, a] } else { [a, b] }
}

/// Does what [`update`] does for a TCP segment that leaves both ends established. False: this
/// segment does not, and nothing was changed.
#[inline(always)]
pub fn stay_established(src: &mut Peer, dst: &mut Peer, t: &TcpSegment) -> bool {
    if (src.state, dst.state) != (state::ESTABLISHED, state::ESTABLISHED)
        || t.flags & (SYN | FIN | RST | ACK) != ACK
    {
        return false;
    }
    let c = checked(src, dst, t);
    let fits = in_window(src, dst, t, &c);
    if fits {
        slide(src, dst, &c);
    }
    fits
}

fn update_icmp(at: &mut u8, reply: bool) -> (Verdict, Class) {
    if reply {
        *at = stage::BOTH_WAYS;
    }
    match *at {
        stage::BOTH_WAYS => (Verdict::Valid, Class::IcmpReply),
        _ => (Verdict::StillNew, Class::IcmpFirst),
    }
}

#[inline]
fn update_other(at: &mut u8, reply: bool) -> (Verdict, Class) {
    *at = match (reply, *at) {
        (true, _) | (_, stage::BOTH_WAYS) => stage::BOTH_WAYS,
        _ => stage::MULTIPLE,
    };
    match *at {
        stage::BOTH_WAYS => (Verdict::Valid, Class::UdpMultiple),
        _ => (Verdict::StillNew, Class::UdpSingle),
    }
}

/// True if a sane sender sets these flags together.
#[inline]
fn flags_fit(flags: u16) -> bool {
    let begins = if flags & SYN != 0 { flags & (RST | FIN) == 0 } else { flags & (ACK | RST) != 0 };
    begins && (flags & ACK != 0 || flags & (FIN | PSH | URG) == 0)
}

/// The ends of a TCP connection that begins with this segment.
fn begin_tcp(t: &TcpSegment) -> Peers {
    let syn = u32::from(t.flags & SYN != 0);
    let fin = u32::from(t.flags & FIN != 0);
    let wscale = if syn == 1 { t.wscale } else { WSCALE_UNKNOWN };
    let src = Peer {
        state: state::SYN_SENT,
        wscale,
        max_win: t.window.max(1).div_ceil(1 << (wscale & WSCALE)),
        seqlo: t.seq,
        seqhi: t.seq.wrapping_add(t.len + 1 + syn + fin),
    };
    let dst_scale = if syn == 1 { 0 } else { WSCALE_UNKNOWN };
    [src, Peer { state: state::CLOSED, wscale: dst_scale, max_win: 1, seqlo: 0, seqhi: 1 }]
}

/// `a - b` as TCP compares sequence numbers (RFC 9293, section 3.4).
pub(crate) fn ahead(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

/// A segment as it is checked: corrected for what senders are known to leave out.
struct Checked {
    /// First and last sequence number.
    seq: u32,
    end: u32,
    ack: u32,
    window: u32,
    /// How many bits the sender's window is shifted by.
    src_scale: u8,
    /// How many bits the receiver's window is shifted by.
    dst_scale: u8,
    /// How far the acknowledgement is behind what the other end sent.
    ack_skew: i32,
}

#[inline]
fn update_tcp(
    src: &mut Peer,
    dst: &mut Peer,
    t: &TcpSegment,
    check: bool,
) -> (Verdict, Option<Class>, Note) {
    if !flags_fit(t.flags) {
        return (Verdict::Invalid, None, Note::Flags);
    }
    if t.flags & (SYN | ACK) == SYN {
        if dst.state >= state::FIN_WAIT_2 && src.state >= state::FIN_WAIT_2 {
            (src.state, dst.state) = (state::CLOSED, state::CLOSED);
            return (Verdict::Reopens, None, Note::None);
        }
        if src.state <= state::SYN_SENT {
            src.state = state::SYN_SENT;
            return (Verdict::StillNew, Some(Class::TcpSynSent), Note::None);
        }
    }
    let before = (*src, *dst);
    let c = checked(src, dst, t);
    let fits = in_window(src, dst, t, &c);
    if fits || !check {
        slide(src, dst, &c);
        step(src, dst, t.flags);
        let note = if fits { Note::None } else { Note::SequenceBypassed };
        return (Verdict::Valid, Some(tcp_class(src.state, dst.state)), note);
    }
    if in_loose_window(src, dst, &c) {
        slide(src, dst, &c);
        if t.flags & FIN != 0 && src.state < state::CLOSING {
            src.state = state::CLOSING;
        }
        if t.flags & RST != 0 {
            (src.state, dst.state) = (state::TIME_WAIT, state::TIME_WAIT);
        }
        return (Verdict::Valid, None, Note::None);
    }
    (*src, *dst) = before;
    (Verdict::Invalid, None, Note::SequenceFailed)
}

/// How many bits the windows of sender and receiver are shifted by.
#[inline]
fn scales(src: &Peer, dst: &Peer, flags: u16) -> (u8, u8) {
    let both = src.wscale & dst.wscale;
    match flags & SYN != 0 {
        false if both & WSCALE_KNOWN != 0 => (src.wscale & WSCALE, dst.wscale & WSCALE),
        false if both & WSCALE_UNKNOWN != 0 => (WSCALE_MAX, WSCALE_MAX),
        _ => (0, 0),
    }
}

/// Corrects a segment; the first segment of an end also initialises that end.
#[inline]
fn checked(src: &mut Peer, dst: &mut Peer, t: &TcpSegment) -> Checked {
    let (src_scale, dst_scale) = scales(src, dst, t.flags);
    let length = t.len + u32::from(t.flags & SYN != 0) + u32::from(t.flags & FIN != 0);
    let mut c = Checked {
        seq: t.seq,
        end: t.seq.wrapping_add(length),
        ack: t.ack,
        window: t.window.into(),
        src_scale,
        dst_scale,
        ack_skew: 0,
    };
    let known = src.state < state::SYN_SENT && first_of_end(src, dst, t, &mut c);
    let no_ack = t.flags & ACK == 0 || (t.ack == 0 && t.flags & (ACK | RST) == (ACK | RST));
    if no_ack {
        c.ack = dst.seqlo;
    }
    if c.seq == c.end {
        (c.seq, c.end) = (src.seqlo, src.seqlo);
    }
    if !known {
        c.ack_skew = ahead(dst.seqlo, c.ack);
    }
    c
}

/// Initialises the sender's end by its first segment. True: the end's window begins with this
/// segment, so its acknowledgement number is not checked.
fn first_of_end(src: &mut Peer, dst: &mut Peer, t: &TcpSegment, c: &mut Checked) -> bool {
    if t.flags & SYN != 0 && dst.wscale & WSCALE_KNOWN != 0 {
        src.wscale = t.wscale;
        if src.wscale & WSCALE_KNOWN != 0 {
            c.src_scale = src.wscale & WSCALE;
            c.window = c.window.div_ceil(1 << c.src_scale);
            c.dst_scale = dst.wscale & WSCALE;
        } else {
            dst.max_win = (u32::from(dst.max_win) << (dst.wscale & WSCALE)) as u16;
            dst.wscale = 0;
        }
    }
    src.seqlo = t.seq;
    src.state = state::SYN_SENT;
    let high = c.end.wrapping_add((u32::from(dst.max_win) << c.dst_scale).max(1));
    let slides = src.seqhi == 1 || ahead(high, src.seqhi) >= 0;
    if slides {
        src.seqhi = high;
    }
    src.max_win = src.max_win.max(c.window as u16);
    slides
}

/// True if the segment is inside the windows of both ends.
#[inline]
fn in_window(src: &Peer, dst: &Peer, t: &TcpSegment, c: &Checked) -> bool {
    let back = u32::from(dst.max_win) << c.dst_scale;
    ahead(src.seqhi, c.end) >= 0
        && ahead(c.seq, src.seqlo.wrapping_sub(back)) >= 0
        && c.ack_skew >= -ACK_SKEW_BYTES_MAX
        && c.ack_skew <= ACK_SKEW_BYTES_MAX << c.src_scale
        && (t.flags & RST == 0 || ahead(t.seq, src.seqlo).unsigned_abs() <= 1)
}

/// True if the segment is near the sender's window while an end is not known yet or closes: then it
/// is valid, too.
fn in_loose_window(src: &Peer, dst: &Peer, c: &Checked) -> bool {
    let skew = ACK_SKEW_BYTES_MAX as u32;
    (dst.state < state::SYN_SENT
        || dst.state >= state::FIN_WAIT_2
        || src.state >= state::FIN_WAIT_2)
        && ahead(src.seqhi.wrapping_add(skew), c.end) >= 0
        && ahead(c.seq, src.seqlo.wrapping_sub(skew)) >= 0
}

/// Moves the windows of both ends by a valid segment.
#[inline]
fn slide(src: &mut Peer, dst: &mut Peer, c: &Checked) {
    src.max_win = src.max_win.max(c.window as u16);
    if ahead(c.end, src.seqlo) > 0 {
        src.seqlo = c.end;
    }
    let window = c.window << c.src_scale;
    if ahead(c.ack.wrapping_add(window), dst.seqhi) >= 0 {
        dst.seqhi = c.ack.wrapping_add(window.max(1));
    }
}

/// Moves the states of both ends by the flags of a valid segment.
#[inline]
fn step(src: &mut Peer, dst: &mut Peer, flags: u16) {
    if flags & SYN != 0 && src.state < state::SYN_SENT {
        src.state = state::SYN_SENT;
    }
    if flags & FIN != 0 && src.state < state::CLOSING {
        src.state = state::CLOSING;
    }
    if flags & ACK != 0 {
        match dst.state {
            state::SYN_SENT => dst.state = state::ESTABLISHED,
            state::CLOSING => dst.state = state::FIN_WAIT_2,
            _ => {}
        }
    }
    if flags & RST != 0 {
        (src.state, dst.state) = (state::TIME_WAIT, state::TIME_WAIT);
    }
}

/// The timeout of a connection whose ends have these states.
#[inline]
fn tcp_class(a: u8, b: u8) -> Class {
    let (low, high) = (a.min(b), a.max(b));
    match () {
        () if low >= state::FIN_WAIT_2 => Class::TcpClose,
        () if low >= state::CLOSING => Class::TcpTimeWait,
        () if low < state::ESTABLISHED => Class::TcpSynRecv,
        () if high >= state::CLOSING => Class::TcpFinWait,
        () => Class::TcpEstablished,
    }
}
