//! What `ct` does with one packet, in the order of OVS's userspace datapath. The same code serves
//! the table that packet threads share and its twin.

use crate::alg::{self, Edit, Expected, SeqShift};
use crate::conn::{Conn, Meta, PacketConn, Translation, state};
use crate::count::{Count, Refused};
use crate::extract::{Bad, Seen, extract};
use crate::machine::{self, Note, Peers, Verdict};
use crate::nat;
use crate::policy::Class;
use crate::rewrite::translate;
use crate::searches::Searches;
use crate::tuple::Tuple;
use action::Ct;

/// Attempts to track a packet whose connection other threads make or end meanwhile.
const AGAIN_COUNT_MAX: usize = 4;

/// Where connections are stored: the table ([`crate::Worker`]), or its twin ([`crate::Model`]).
pub trait Store {
    /// A reference to a connection, valid until the connection ends.
    type Ref: Copy + PartialEq;

    /// The connection that has this tuple in one of its directions; true: in the reply direction.
    fn find(&mut self, tuple: &Tuple, now: u64) -> Option<(Self::Ref, bool)>;
    /// A copy of the connection; None: it has ended.
    fn read(&mut self, conn_ref: Self::Ref, now: u64) -> Option<Conn>;
    /// Changes the connection's ends by `change`, which returns the class of the timeout that
    /// starts. `change` is called again where another thread changed the connection meanwhile;
    /// after a bounded number of calls the connection stays as it is. None: the connection has
    /// ended.
    fn update(
        &mut self,
        conn_ref: Self::Ref,
        now: u64,
        change: &mut dyn FnMut(&mut Peers) -> Option<Class>,
    ) -> Option<()>;
    /// Stores a new connection; `came`: the arrival of its first packet.
    ///
    /// The connection is not stored, for the reason that is returned.
    fn insert(&mut self, conn: &Conn, class: Class, came: Arrival) -> Result<Self::Ref, Refused>;
    /// Ends the connection.
    fn end(&mut self, conn_ref: Self::Ref);
    /// Sets the bits of the mark that the mask has (value, mask); returns the whole mark.
    fn set_mark(&mut self, conn_ref: Self::Ref, mark: (u32, u32)) -> u32;
    /// Sets the bits of the label that the mask has (value, mask); returns the whole label.
    fn set_label(&mut self, conn_ref: Self::Ref, label: (u128, u128)) -> u128;
    /// The connection's name: its reference as a number, which others may keep beyond its end
    /// ([`Store::parent`]).
    fn name(&self, conn_ref: Self::Ref) -> u64;
    /// The connection of this name; None: it has ended.
    fn parent(&mut self, name: u64, now: u64) -> Option<Conn>;
    /// The expectation that a connection with this first tuple meets: a helper announced it.
    fn expected(&mut self, tuple: &Tuple, now: u64) -> Option<Expected>;
    /// Adds an expectation; `came`: the arrival of the packet that announced the connection. False:
    /// there are too many, or another connection announced the same tuple.
    fn expect(&mut self, tuple: &Tuple, what: Expected, came: Arrival) -> bool;
    /// The shift of a direction's TCP sequence numbers.
    fn seq_shift(&mut self, conn_ref: Self::Ref, reply: bool) -> SeqShift;
    /// Sets the shift of a direction's TCP sequence numbers.
    fn set_seq_shift(&mut self, conn_ref: Self::Ref, reply: bool, seq_shift: SeqShift);
    /// A keyed hash of a tuple and of the addresses that it is translated to.
    fn hash(&self, tuple: &Tuple, nat: &action::Nat) -> u64;
    /// A random number.
    fn random(&mut self) -> u32;
    /// The account of NAT's searches for free tuples.
    fn searches(&mut self) -> &mut Searches;
    /// True if sequence numbers of TCP are checked.
    fn checks_sequence(&self) -> bool;
    /// Counts an exception.
    fn count(&mut self, what: Count);
}

/// Where the packet's IP header is, and what is known of its checksums.
#[derive(Clone, Copy, Debug)]
pub struct IpHeader {
    /// Offset of the IP header.
    pub l3: usize,
    /// The checksums are known to be right.
    pub sound: bool,
}

/// A packet's arrival: the port to which its work is charged, and the time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    /// The packet's input port.
    pub port: u16,
    /// Time of the arrival, milliseconds.
    pub now: u64,
}

/// Executes `ct` on a packet: finds its connection or begins one, fills its metadata, and
/// translates it. Returns the text that the connection's helper wants to be replaced, if any; the
/// caller replaces it ([`Edit::apply`]).
#[must_use]
pub fn track<S: Store>(
    store: &mut S,
    ct: &Ct,
    data: &mut [u8],
    ip: IpHeader,
    meta: &mut Meta<S::Ref>,
    came: Arrival,
) -> Option<Edit> {
    let packet_conn = meta.conn.filter(|_| meta.state != 0 && meta.zone == ct.zone && !ct.force);
    if let Some(packet_conn) = packet_conn
        && let Some(conn) = store.read(packet_conn.conn_ref, came.now)
        && conn.alg.is_none()
    {
        again(store, ct, data, ip, meta, &packet_conn, &conn);
        return None;
    }
    track_seen(store, ct, data, &extract(data, ip.l3, ct.zone, ip.sound), meta, came)
}

/// Does what [`track`] does, for a packet that was read before ([`extract`]) and whose connection
/// no earlier `ct` found.
#[must_use]
pub fn track_seen<S: Store>(
    store: &mut S,
    ct: &Ct,
    data: &mut [u8],
    seen: &Result<Seen, Bad>,
    meta: &mut Meta<S::Ref>,
    came: Arrival,
) -> Option<Edit> {
    match seen {
        Ok(seen) => first(store, ct, data, seen, meta, came),
        Err(bad) => {
            match bad {
                Bad::IpChecksum => store.count(Count::IpChecksum),
                Bad::Checksum => store.count(Count::L4Checksum),
                Bad::Shape => {}
            }
            *meta = Meta { conn: meta.conn, ..Meta::default() };
            meta.state = state::INV;
            finish(store, ct, meta, None, &Found::default(), came.now);
            None
        }
    }
}

/// Handles a packet whose connection an earlier `ct` of the zone found: translates it, and sets
/// mark and label. The state of the connection does not change.
fn again<S: Store>(
    store: &mut S,
    ct: &Ct,
    data: &mut [u8],
    ip: IpHeader,
    meta: &mut Meta<S::Ref>,
    packet_conn: &PacketConn<S::Ref>,
    conn: &Conn,
) {
    if ct.nat.is_some() {
        if conn.nat != Translation::None
            && let Ok(seen) = extract(data, ip.l3, ct.zone, true)
        {
            handle_nat(data, &seen, meta, conn, packet_conn.reply, ct.zone);
        }
        meta.conn = None;
    }
    (meta.mark, meta.label) = (conn.mark, conn.label);
    if conn.parent.is_none() {
        mark(store, ct, meta, packet_conn.conn_ref);
    }
}

/// Sets mark and label of a connection as `ct` says, and copies them to the packet's metadata.
fn mark<S: Store>(store: &mut S, ct: &Ct, meta: &mut Meta<S::Ref>, conn_ref: S::Ref) {
    if ct.mark.1 != 0 {
        meta.mark = store.set_mark(conn_ref, ct.mark);
    }
    if ct.label.1 != 0 {
        meta.label = store.set_label(conn_ref, ct.label);
    }
}

/// The result of looking for a packet's connection ([`meet`]).
enum Met {
    /// The packet is handled: it belongs to the connection that was found, or is invalid.
    Done,
    /// There is no connection: the packet may begin one.
    Begins,
    /// The connection ended meanwhile: the packet is to be looked up again.
    Ended,
}

/// Handles a packet whose connection no earlier `ct` found.
fn first<S: Store>(
    store: &mut S,
    ct: &Ct,
    data: &mut [u8],
    seen: &Seen,
    meta: &mut Meta<S::Ref>,
    came: Arrival,
) -> Option<Edit> {
    if meta.state != 0 && meta.zone != ct.zone {
        meta.state = 0;
    }
    let (before, mut found) = (meta.state, Found::default());
    for _ in 0..AGAIN_COUNT_MAX {
        meta.state = before;
        found.conn = None;
        match meet(store, ct, data, seen, meta, came.now, &mut found) {
            Met::Ended => continue,
            Met::Done => {}
            Met::Begins => match begin(store, ct, data, seen, meta, came, &mut found) {
                Err(Refused::Exists) => continue,
                Err(_) => found.conn = None,
                Ok(made) => found.conn = made,
            },
        }
        let edit = found.conn.as_ref().and_then(|(conn_ref, conn)| {
            let translated = translates(ct, conn, before);
            let p = alg::Packet { conn_ref: *conn_ref, conn, reply: found.reply, translated };
            alg::serve(store, data, seen, meta, &p, came)
        });
        finish(store, ct, meta, Some(seen), &found, came.now);
        return edit;
    }
    store.count(Count::Busy);
    meta.state = state::NEW;
    finish(store, ct, meta, Some(seen), &Found::default(), came.now);
    None
}

/// What was found out about a packet's connection.
struct Found<R> {
    conn: Option<(R, Conn)>,
    /// True if the packet has the reply direction.
    reply: bool,
    /// For a packet that begins an announced connection: the connection that announced it.
    parent: Option<Conn>,
}

impl<R> Default for Found<R> {
    fn default() -> Self {
        Found { conn: None, reply: false, parent: None }
    }
}

/// True if this `ct` translates packets of a connection that had this state before in its zone.
fn translates(ct: &Ct, conn: &Conn, before: u8) -> bool {
    let done = before & (state::SNAT | state::DNAT) != 0;
    ct.nat.is_some() && conn.nat != Translation::None && !done
}

/// Finds the packet's connection, stores it in `found`, and lets its state machine decide about the
/// packet.
fn meet<S: Store>(
    store: &mut S,
    ct: &Ct,
    data: &mut [u8],
    seen: &Seen,
    meta: &mut Meta<S::Ref>,
    now: u64,
    found: &mut Found<S::Ref>,
) -> Met {
    let mut place = look_up(store, seen, meta, now);
    if let Some((conn_ref, true)) = place
        && ct.force
    {
        store.end(conn_ref);
        place = None;
    }
    let of_tuple = place.is_some();
    let place = place.or_else(|| by_first_tuple(store, ct, seen, meta, now));
    let Some((conn_ref, is_reply)) = place else {
        if seen.related {
            meta.state = state::INV;
            return Met::Done;
        }
        return Met::Begins;
    };
    found.reply = is_reply;
    let Some(conn) = store.read(conn_ref, now) else { return Met::Ended };
    let (_, conn) = found.conn.insert((conn_ref, conn));
    let conn = &*conn;
    if seen.related {
        meta.state |= state::REL | if is_reply { state::RPL } else { 0 };
    } else {
        if conn.parent.is_some() {
            meta.state |= state::REL;
        }
        let translated = of_tuple && translates(ct, conn, meta.state);
        let p = alg::Packet { conn_ref, conn, reply: is_reply, translated };
        let segment = alg::acknowledge(store, data, seen, &p);
        let check = store.checks_sequence();
        let mut judged = (Verdict::Invalid, Note::None);
        let done = store.update(conn_ref, now, &mut |peers| {
            let (verdict, class, note) = machine::update(peers, &segment, is_reply, check);
            judged = (verdict, note);
            class
        });
        if done.is_none() {
            return Met::Ended;
        }
        note(store, judged.1);
        match judged.0 {
            Verdict::Valid => {
                let rpl = if is_reply { state::RPL } else { 0 };
                meta.state = (meta.state | state::EST | rpl) & !state::NEW;
            }
            Verdict::StillNew => meta.state |= state::NEW,
            Verdict::Invalid => meta.state = state::INV,
            Verdict::Reopens => {
                store.end(conn_ref);
                return Met::Begins;
            }
        }
    }
    // As in OVS, invalid packets of a connection are translated, too.
    if ct.nat.is_some() && of_tuple {
        handle_nat(data, seen, meta, conn, is_reply, ct.zone);
    }
    Met::Done
}

fn note<S: Store>(store: &mut S, note: Note) {
    match note {
        Note::None => {}
        Note::SequenceFailed => store.count(Count::SequenceFailed),
        Note::SequenceBypassed => store.count(Count::SequenceBypassed),
        Note::Flags => store.count(Count::TcpFlags),
    }
}

/// Finds the connection by the packet's tuple. For a packet that an earlier `ct` translated, the
/// reverse of its tuple is looked up, which is the connection's tuple of the other direction.
fn look_up<S: Store>(
    store: &mut S,
    seen: &Seen,
    meta: &Meta<S::Ref>,
    now: u64,
) -> Option<(S::Ref, bool)> {
    if meta.state & (state::SNAT | state::DNAT) == 0 {
        return store.find(&seen.tuple, now);
    }
    let found = store.find(&seen.tuple.reversed(), now).map(|(conn_ref, reply)| (conn_ref, !reply));
    if found.is_none() {
        store.count(Count::NatMiss);
    }
    found
}

/// Finds the connection of a translated packet by the original tuple in its metadata, if this `ct`
/// has no NAT.
fn by_first_tuple<S: Store>(
    store: &mut S,
    ct: &Ct,
    seen: &Seen,
    meta: &Meta<S::Ref>,
    now: u64,
) -> Option<(S::Ref, bool)> {
    if meta.state & (state::SNAT | state::DNAT) == 0 || ct.nat.is_some() {
        return None;
    }
    let tuple = meta.tuple.filter(|t| t.v6 == seen.tuple.v6 && t.proto != 0)?;
    store.find(&Tuple { zone: meta.zone, ..tuple }, now).map(|(conn_ref, _)| (conn_ref, false))
}

/// Translates a packet, unless an earlier `ct` of this zone did.
fn handle_nat<R>(
    data: &mut [u8],
    seen: &Seen,
    meta: &mut Meta<R>,
    conn: &Conn,
    reply: bool,
    zone: u16,
) {
    let translated = meta.state & (state::SNAT | state::DNAT) != 0;
    if conn.nat == Translation::None || translated && zone == meta.zone {
        return;
    }
    meta.state &= !(state::SNAT | state::DNAT);
    apply_nat(data, seen, meta, conn, reply);
}

/// Translates a packet, and sets the bit of `ct_state` that says so.
fn apply_nat<R>(data: &mut [u8], seen: &Seen, meta: &mut Meta<R>, conn: &Conn, reply: bool) {
    let how = if reply { conn.nat.reversed() } else { conn.nat };
    meta.state |= match how {
        Translation::None => return,
        Translation::Source => state::SNAT,
        Translation::Destination => state::DNAT,
    };
    translate(data, seen, how, if reply { &conn.orig } else { &conn.reply });
}

/// Handles a packet without a connection. If the packet may begin one, its state is new, and with
/// `commit` the connection is stored and returned.
fn begin<S: Store>(
    store: &mut S,
    ct: &Ct,
    data: &mut [u8],
    seen: &Seen,
    meta: &mut Meta<S::Ref>,
    came: Arrival,
    found: &mut Found<S::Ref>,
) -> Result<Option<(S::Ref, Conn)>, Refused> {
    let now = came.now;
    found.reply = false;
    if !machine::may_begin(&seen.segment) {
        meta.state = state::INV;
        return Ok(None);
    }
    meta.state = state::NEW;
    let expected = store.expected(&seen.tuple, now);
    let expected = expected.and_then(|e| Some((e, store.parent(e.parent, now)?)));
    if let Some((_, parent)) = &expected {
        meta.state |= state::REL;
        found.parent = Some(*parent);
    }
    if !ct.commit {
        return Ok(None);
    }
    let (peers, class) = machine::begin(&seen.segment);
    let mut conn = Conn {
        orig: seen.tuple,
        reply: seen.tuple.reversed(),
        peers,
        policy: ct.timeout,
        alg: alg::of(ct, &seen.tuple),
        ..Conn::default()
    };
    if let Some((what, parent)) = &expected {
        alg::adopt(&mut conn, what, parent, ct.nat.is_some());
        if conn.nat != Translation::None && store.find(&conn.reply, now).is_some() {
            store.count(Count::NatExhausted);
            return Ok(None);
        }
    } else if let Some(nat) = &ct.nat {
        conn.nat = nat::translation(nat);
        let Some(reply) = reply_tuple(store, &conn.orig, nat, came) else {
            store.count(Count::NatExhausted);
            return Ok(None);
        };
        conn.reply = reply;
    }
    let conn_ref = match store.insert(&conn, class, came) {
        Ok(conn_ref) => conn_ref,
        Err(why) => {
            refused(store, why);
            return Err(why);
        }
    };
    apply_nat(data, seen, meta, &conn, false);
    Ok(Some((conn_ref, conn)))
}

/// The reply tuple of a translated connection; None: no tuple is free, or the packet's port had so
/// many tried that no more are looked up.
fn reply_tuple<S: Store>(
    store: &mut S,
    orig: &Tuple,
    nat: &action::Nat,
    came: Arrival,
) -> Option<Tuple> {
    let hash = store.hash(orig, nat);
    let random = store.random();
    let mut round = 0u32;
    let rounds = || {
        round = round.wrapping_add(1);
        random.wrapping_mul(round | 1).rotate_left(round)
    };
    let (mut tries, allowed) = (0, store.searches().allowed(came));
    let is_free = |t: &Tuple| {
        let may = tries < allowed;
        tries += u32::from(may);
        may && store.find(t, came.now).is_none()
    };
    let found = nat::choose(orig, nat, hash, rounds, is_free);
    store.searches().had(came, tries);
    found
}

/// Counts a connection that was not stored.
fn refused<S: Store>(store: &mut S, why: Refused) {
    match why {
        Refused::Exists => {}
        Refused::Full => store.count(Count::Full),
        Refused::ZoneFull => store.count(Count::ZoneFull),
        Refused::HalfOpen => store.count(Count::HalfOpen),
        Refused::PortHalfOpen => store.count(Count::PortHalfOpen),
        Refused::Busy => store.count(Count::Busy),
    }
}

/// Fills the packet's metadata, and sets mark and label of its connection as `ct` says.
fn finish<S: Store>(
    store: &mut S,
    ct: &Ct,
    meta: &mut Meta<S::Ref>,
    seen: Option<&Seen>,
    found: &Found<S::Ref>,
    now: u64,
) {
    if meta.state & state::INV != 0 {
        store.count(Count::Invalid);
    }
    meta.state |= state::TRK;
    meta.zone = ct.zone;
    let Some((conn_ref, conn)) = &found.conn else {
        let parent = found.parent.unwrap_or_default();
        (meta.mark, meta.label, meta.conn) = (parent.mark, parent.label, None);
        meta.tuple = found.parent.map(|p| p.orig).or(seen.map(|s| s.tuple));
        return;
    };
    // The metadata of an announced connection has the original tuple of the one that announced it,
    // and `ct` does not set its mark and label.
    let parent = conn.parent.and_then(|name| store.parent(name, now));
    let tuple = parent.map_or(conn.orig, |parent| parent.orig);
    (meta.mark, meta.label, meta.tuple) = (conn.mark, conn.label, Some(tuple));
    if conn.parent.is_none() {
        mark(store, ct, meta, *conn_ref);
    }
    let reply = found.reply;
    let related = seen.is_some_and(|s| s.related);
    meta.conn = ct.nat.is_none().then_some(PacketConn { conn_ref: *conn_ref, reply, related });
}
