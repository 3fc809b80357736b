//! The slow twin of the table, for one thread: connections in a map, all of which are examined for
//! each packet.

use crate::alg::{Expectations, Expected, SeqShift};
use crate::conn::Conn;
use crate::count::{Count, Refused};
use crate::machine::Peers;
use crate::policy::{Class, Policies};
use crate::searches::Searches;
use crate::table::Limits;
use crate::track::{Arrival, Store};
use crate::tuple::Tuple;
use std::collections::HashMap;

/// The connections, limits and counters of the twin.
#[derive(Default)]
pub struct Model {
    conns: HashMap<u64, Conn>,
    next: u64,
    expectations: Expectations,
    seq_shifts: HashMap<(u64, bool), SeqShift>,
    /// Limits, as the table has them.
    pub limits: Limits,
    /// Timeout policies.
    pub policies: Policies,
    /// All exceptions that were counted, in order.
    pub counts: Vec<Count>,
    searches: Searches,
}

impl Model {
    /// All connections that have not ended.
    pub fn all(&self, now: u64) -> impl Iterator<Item = &Conn> {
        self.conns.values().filter(move |c| c.expires > now)
    }

    /// Ends all connections of a zone; None: of all.
    pub fn flush(&mut self, zone: Option<u16>) {
        self.conns.retain(|_, c| zone.is_some_and(|z| z != c.orig.zone));
    }

    fn has(&self, tuple: &Tuple, now: u64) -> bool {
        self.all(now).any(|c| c.orig == *tuple || c.reply == *tuple)
    }
}

impl Store for Model {
    type Ref = u64;

    fn find(&mut self, tuple: &Tuple, now: u64) -> Option<(u64, bool)> {
        let live = || self.conns.iter().filter(|(_, c)| c.expires > now);
        live().find(|(_, c)| c.orig == *tuple).map(|(conn_ref, _)| (*conn_ref, false)).or_else(
            || live().find(|(_, c)| c.reply == *tuple).map(|(conn_ref, _)| (*conn_ref, true)),
        )
    }

    fn read(&mut self, conn_ref: u64, now: u64) -> Option<Conn> {
        self.conns.get(&conn_ref).filter(|c| c.expires > now).copied()
    }

    fn update(
        &mut self,
        conn_ref: u64,
        now: u64,
        change: &mut dyn FnMut(&mut Peers) -> Option<Class>,
    ) -> Option<()> {
        let conn = self.conns.get_mut(&conn_ref)?;
        if let Some(class) = change(&mut conn.peers) {
            conn.expires = now + u64::from(self.policies.millis(conn.policy, class));
        }
        Some(())
    }

    fn insert(&mut self, conn: &Conn, class: Class, came: Arrival) -> Result<u64, Refused> {
        let now = came.now;
        if self.has(&conn.orig, now) || self.has(&conn.reply, now) {
            return Err(Refused::Exists);
        }
        let zone = conn.orig.zone;
        if let Some(limit) = self.limits.of(zone)
            && self.all(now).filter(|c| c.orig.zone == zone).count() >= limit as usize
        {
            return Err(Refused::ZoneFull);
        }
        if self.all(now).count() >= self.limits.total() as usize {
            return Err(Refused::Full);
        }
        let expires = now + u64::from(self.policies.millis(conn.policy, class));
        self.next += 1;
        self.conns.insert(self.next, Conn { expires, ..*conn });
        Ok(self.next)
    }

    fn end(&mut self, conn_ref: u64) {
        self.conns.remove(&conn_ref);
    }

    fn set_mark(&mut self, conn_ref: u64, (value, mask): (u32, u32)) -> u32 {
        let Some(conn) = self.conns.get_mut(&conn_ref) else { return value & mask };
        conn.mark = conn.mark & !mask | value & mask;
        conn.mark
    }

    fn set_label(&mut self, conn_ref: u64, (value, mask): (u128, u128)) -> u128 {
        let Some(conn) = self.conns.get_mut(&conn_ref) else { return value & mask };
        conn.label = conn.label & !mask | value & mask;
        conn.label
    }

    fn name(&self, conn_ref: u64) -> u64 {
        conn_ref
    }

    fn parent(&mut self, name: u64, now: u64) -> Option<Conn> {
        self.read(name, now)
    }

    fn expected(&mut self, tuple: &Tuple, now: u64) -> Option<Expected> {
        let lives = |conn_ref| self.conns.get(&conn_ref).is_some_and(|c| c.expires > now);
        self.expectations.find(tuple, lives)
    }

    fn expect(&mut self, tuple: &Tuple, what: Expected, came: Arrival) -> bool {
        let lives = |conn_ref| self.conns.get(&conn_ref).is_some_and(|c| c.expires > came.now);
        self.expectations.add(tuple, what, came.port, lives)
    }

    fn seq_shift(&mut self, conn_ref: u64, reply: bool) -> SeqShift {
        self.seq_shifts.get(&(conn_ref, reply)).copied().unwrap_or_default()
    }

    fn set_seq_shift(&mut self, conn_ref: u64, reply: bool, seq_shift: SeqShift) {
        self.seq_shifts.insert((conn_ref, reply), seq_shift);
    }

    fn hash(&self, tuple: &Tuple, nat: &action::Nat) -> u64 {
        crate::table::Secret::fixed().hash_translation(tuple, nat)
    }

    fn searches(&mut self) -> &mut Searches {
        &mut self.searches
    }

    fn random(&mut self) -> u32 {
        0x9e37_79b9
    }

    fn checks_sequence(&self) -> bool {
        self.limits.checks_sequence()
    }

    fn count(&mut self, what: Count) {
        self.counts.push(what);
    }
}
