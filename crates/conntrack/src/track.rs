//! What `ct` does with one packet, in the order of OVS's userspace datapath. The same code runs
//! over the table that packet threads share and over its twin.

use crate::alg::{self, Edit, Expected, Skew};
use crate::conn::{Conn, Known, Meta, Translation, state};
use crate::count::{Count, Refused};
use crate::extract::{Bad, Seen, extract};
use crate::machine::{self, Note, Peers, Verdict};
use crate::nat;
use crate::policy::Class;
use crate::rewrite::translate;
use crate::tuple::Tuple;
use action::Ct;

/// Times that a packet is looked at again because another thread made or ended its connection
/// meanwhile.
const AGAIN_COUNT_MAX: usize = 4;

/// Where connections are kept.
pub trait Store {
    /// Names a connection; worthless once that has ended.
    type Ref: Copy + PartialEq;

    /// The connection that has this tuple in one of its directions, and whether that is the
    /// answers'.
    fn find(&mut self, tuple: &Tuple, now: u64) -> Option<(Self::Ref, bool)>;
    /// A connection; None: it has ended.
    fn read(&mut self, at: Self::Ref, now: u64) -> Option<Conn>;
    /// Calls `change`, which says what becomes of the connection's ends and which timeout starts;
    /// possibly several times, of which the last one counts. None: the connection has ended.
    fn update(
        &mut self,
        at: Self::Ref,
        now: u64,
        change: &mut dyn FnMut(&mut Peers) -> Option<Class>,
    ) -> Option<()>;
    /// Keeps a new connection, which `came` began.
    ///
    /// # Errors
    /// When it is not kept, and why.
    fn insert(&mut self, conn: &Conn, class: Class, came: Arrival) -> Result<Self::Ref, Refused>;
    /// Ends a connection.
    fn end(&mut self, at: Self::Ref);
    /// Sets masked bits of the mark; what it is then.
    fn set_mark(&mut self, at: Self::Ref, mark: (u32, u32)) -> u32;
    /// Sets masked bits of the label; what it is then.
    fn set_label(&mut self, at: Self::Ref, label: (u128, u128)) -> u128;
    /// A number for a connection, which stays another's when that has ended.
    fn name(&self, at: Self::Ref) -> u64;
    /// The connection of that name, if it has not ended.
    fn parent(&mut self, name: u64, now: u64) -> Option<Conn>;
    /// The announced connection that begins with this tuple, if there is one.
    fn expected(&mut self, tuple: &Tuple, now: u64) -> Option<Expected>;
    /// Announces a connection; false: there are too many, or another one announced it.
    fn expect(&mut self, tuple: &Tuple, what: Expected, came: Arrival) -> bool;
    /// How far sequence numbers of a direction are moved.
    fn skew(&mut self, at: Self::Ref, reply: bool) -> Skew;
    /// Sets by how much sequence numbers of a direction differ.
    fn set_skew(&mut self, at: Self::Ref, reply: bool, skew: Skew);
    /// A keyed hash of a tuple and of what it is translated to.
    fn hash(&self, tuple: &Tuple, nat: &action::Nat) -> u64;
    /// A random number.
    fn random(&mut self) -> u32;
    /// True if sequence numbers of TCP are checked.
    fn checks_sequence(&self) -> bool;
    /// Counts something.
    fn count(&mut self, what: Count);
}

/// Where the packet's IP header is, and what is known of its checksums.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// Offset of the IP header.
    pub l3: usize,
    /// The checksums are known to be right.
    pub sound: bool,
}

/// How a packet came: whom its work is charged to, and when.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    /// The port that it came in by.
    pub port: u16,
    /// What the clock shows, in milliseconds.
    pub now: u64,
}

/// Sends a packet through connection tracking: fills its metadata, translates it; a text in it that
/// its helper has replaced, which is left to the caller.
#[must_use]
pub fn track<S: Store>(
    store: &mut S,
    ct: &Ct,
    data: &mut [u8],
    at: At,
    meta: &mut Meta<S::Ref>,
    came: Arrival,
) -> Option<Edit> {
    let known = meta.conn.filter(|_| meta.state != 0 && meta.zone == ct.zone && !ct.force);
    if let Some(known) = known
        && let Some(conn) = store.read(known.at, came.now)
        && conn.alg.is_none()
    {
        again(store, ct, data, at, meta, &known, &conn);
        return None;
    }
    track_seen(store, ct, data, &extract(data, at.l3, ct.zone, at.sound), meta, came)
}

/// [`track`] for a packet that no earlier `ct` found a connection for, and that was read before
/// ([`extract`]).
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

/// A packet whose connection is known from an earlier `ct` in the zone: nothing happens to the
/// connection.
fn again<S: Store>(
    store: &mut S,
    ct: &Ct,
    data: &mut [u8],
    at: At,
    meta: &mut Meta<S::Ref>,
    known: &Known<S::Ref>,
    conn: &Conn,
) {
    if ct.nat.is_some() {
        if conn.nat != Translation::None
            && let Ok(seen) = extract(data, at.l3, ct.zone, true)
        {
            handle_nat(data, &seen, meta, conn, known.reply, ct.zone);
        }
        meta.conn = None;
    }
    (meta.mark, meta.label) = (conn.mark, conn.label);
    if conn.parent.is_none() {
        mark(store, ct, meta, known.at);
    }
}

fn mark<S: Store>(store: &mut S, ct: &Ct, meta: &mut Meta<S::Ref>, at: S::Ref) {
    if ct.mark.1 != 0 {
        meta.mark = store.set_mark(at, ct.mark);
    }
    if ct.label.1 != 0 {
        meta.label = store.set_label(at, ct.label);
    }
}

/// What became of a packet at its connection.
enum Met {
    /// The packet belongs to the connection that was found, if one was.
    Done,
    /// There is no connection: the packet may begin one.
    Begins,
    /// The connection ended meanwhile.
    Again,
}

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
            Met::Again => continue,
            Met::Done => {}
            Met::Begins => match begin(store, ct, data, seen, meta, came, &mut found) {
                Err(Refused::Exists) => continue,
                Err(_) => found.conn = None,
                Ok(made) => found.conn = made,
            },
        }
        let edit = found.conn.as_ref().and_then(|(at, conn)| {
            let translated = translates(ct, conn, before);
            let p = alg::Packet { at: *at, conn, reply: found.reply, translated };
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

/// What is known of a packet's connection.
struct Found<R> {
    conn: Option<(R, Conn)>,
    /// The packet answers.
    reply: bool,
    /// The connection that announced the packet's, which it begins.
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

/// Looks for the packet's connection, puts it into `found`, and tells that of the packet.
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
    if let Some((at, true)) = place
        && ct.force
    {
        store.end(at);
        place = None;
    }
    let of_tuple = place.is_some();
    let place = place.or_else(|| by_first_tuple(store, ct, seen, meta, now));
    let Some((at, is_reply)) = place else {
        if seen.related {
            meta.state = state::INV;
            return Met::Done;
        }
        return Met::Begins;
    };
    found.reply = is_reply;
    let Some(conn) = store.read(at, now) else { return Met::Again };
    let (_, conn) = found.conn.insert((at, conn));
    let conn = &*conn;
    if seen.related {
        meta.state |= state::REL | if is_reply { state::RPL } else { 0 };
    } else {
        if conn.parent.is_some() {
            meta.state |= state::REL;
        }
        let translated = of_tuple && translates(ct, conn, meta.state);
        let p = alg::Packet { at, conn, reply: is_reply, translated };
        let segment = alg::acknowledge(store, data, seen, &p);
        let check = store.checks_sequence();
        let mut judged = (Verdict::Invalid, Note::None);
        let done = store.update(at, now, &mut |peers| {
            let (verdict, class, note) = machine::update(peers, &segment, is_reply, check);
            judged = (verdict, note);
            class
        });
        if done.is_none() {
            return Met::Again;
        }
        note(store, judged.1);
        match judged.0 {
            Verdict::Valid => {
                let rpl = if is_reply { state::RPL } else { 0 };
                meta.state = (meta.state | state::EST | rpl) & !state::NEW;
            }
            Verdict::StillNew => meta.state |= state::NEW,
            Verdict::Invalid => meta.state = state::INV,
            Verdict::Again => {
                store.end(at);
                return Met::Begins;
            }
        }
    }
    // Invalid packets of a connection, too (as OVS does).
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

/// Finds the connection by the packet's tuple. A packet that this zone translated before has the
/// tuple that answers are the reverse of.
fn look_up<S: Store>(
    store: &mut S,
    seen: &Seen,
    meta: &Meta<S::Ref>,
    now: u64,
) -> Option<(S::Ref, bool)> {
    if meta.state & (state::SNAT | state::DNAT) == 0 {
        return store.find(&seen.tuple, now);
    }
    let found = store.find(&seen.tuple.reversed(), now).map(|(at, reply)| (at, !reply));
    if found.is_none() {
        store.count(Count::NatMiss);
    }
    found
}

/// A translated packet whose tuple is not known may be known by its connection's first tuple.
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
    store.find(&Tuple { zone: meta.zone, ..tuple }, now).map(|(at, _)| (at, false))
}

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

fn apply_nat<R>(data: &mut [u8], seen: &Seen, meta: &mut Meta<R>, conn: &Conn, reply: bool) {
    let how = if reply { conn.nat.reversed() } else { conn.nat };
    meta.state |= match how {
        Translation::None => return,
        Translation::Source => state::SNAT,
        Translation::Destination => state::DNAT,
    };
    translate(data, seen, how, if reply { &conn.orig } else { &conn.reply });
}

/// A packet without a connection: it may be the first one of a connection, which is kept if `ct`
/// says so.
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
        let Some(answer) = answer(store, &conn.orig, nat, now) else {
            store.count(Count::NatExhausted);
            return Ok(None);
        };
        conn.reply = answer;
    }
    let at = match store.insert(&conn, class, came) {
        Ok(at) => at,
        Err(why) => {
            refused(store, why);
            return Err(why);
        }
    };
    apply_nat(data, seen, meta, &conn, false);
    Ok(Some((at, conn)))
}

fn answer<S: Store>(store: &mut S, orig: &Tuple, nat: &action::Nat, now: u64) -> Option<Tuple> {
    let hash = store.hash(orig, nat);
    let random = store.random();
    let mut turn = 0u32;
    let rounds = || {
        turn = turn.wrapping_add(1);
        random.wrapping_mul(turn | 1).rotate_left(turn)
    };
    nat::choose(orig, nat, hash, rounds, |t| store.find(t, now).is_none())
}

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

/// Writes down what the packet takes along.
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
    let Some((at, conn)) = &found.conn else {
        let parent = found.parent.unwrap_or_default();
        (meta.mark, meta.label, meta.conn) = (parent.mark, parent.label, None);
        meta.tuple = found.parent.map(|p| p.orig).or(seen.map(|s| s.tuple));
        return;
    };
    // An announced connection stands for the one that announced it, and has its mark and label.
    let parent = conn.parent.and_then(|name| store.parent(name, now));
    let tuple = parent.map_or(conn.orig, |parent| parent.orig);
    (meta.mark, meta.label, meta.tuple) = (conn.mark, conn.label, Some(tuple));
    if conn.parent.is_none() {
        mark(store, ct, meta, *at);
    }
    let reply = found.reply;
    let related = seen.is_some_and(|s| s.related);
    meta.conn = ct.nat.is_none().then_some(Known { at: *at, reply, related });
}

/// As `ct_clear`: the packet is one that connection tracking did not see.
pub fn clear<R>(meta: &mut Meta<R>) {
    meta.state = 0;
    meta.conn = None;
}
