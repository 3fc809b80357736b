//! Which connections are flushed: those that agree with what is said of their tuples.

use crate::conn::Conn;
use crate::table::Table;
use crate::tuple::Tuple;
use std::net::IpAddr;

/// What is said of one of a connection's tuples; None: anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TupleFilter {
    /// Source address.
    pub src: Option<IpAddr>,
    /// Destination address.
    pub dst: Option<IpAddr>,
    /// Source port, or ICMP's identifier.
    pub sport: Option<u16>,
    /// Destination port.
    pub dport: Option<u16>,
    /// ICMP's type.
    pub icmp_type: Option<u8>,
    /// ICMP's code; those of connections are 0.
    pub icmp_code: Option<u8>,
}

/// What is said of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Zone.
    pub zone: Option<u16>,
    /// IP protocol.
    pub proto: Option<u8>,
    /// What the tuple of the first packet has to be.
    pub orig: TupleFilter,
    /// What the tuple of answers has to be.
    pub reply: TupleFilter,
}

/// The filter names a single connection, and there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent;

impl TupleFilter {
    fn is_empty(&self) -> bool {
        *self == TupleFilter::default()
    }

    fn fits(&self, t: &Tuple) -> bool {
        let port = |want: Option<u16>, is: u16| want.is_none_or(|w| w == is);
        self.src.is_none_or(|a| a == t.src_addr())
            && self.dst.is_none_or(|a| a == t.dst_addr())
            && port(self.sport, t.sport)
            && (t.is_icmp() || port(self.dport, t.dport))
            && (!t.is_icmp() || self.icmp_type.is_none_or(|k| k == t.icmp_type))
            && (!t.is_icmp() || self.icmp_code.is_none_or(|c| c == 0))
    }

    /// The whole tuple, if all of it is said. What is not said of ICMP's fields is 0 (as in OVS).
    fn whole(&self, proto: u8, zone: u16) -> Option<Tuple> {
        let (src, dst) = (self.src?, self.dst?);
        let v6 = src.is_ipv6();
        let mut t = Tuple {
            src: crate::tuple::number(&src),
            dst: crate::tuple::number(&dst),
            proto,
            v6,
            zone,
            ..Tuple::default()
        };
        if t.is_icmp() {
            let id = self.sport.unwrap_or(0);
            (t.sport, t.dport, t.icmp_type) = (id, id, self.icmp_type.unwrap_or(0));
        } else {
            (t.sport, t.dport) = (self.sport?, self.dport?);
        }
        Some(t)
    }
}

impl Filter {
    fn fits(&self, c: &Conn) -> bool {
        self.zone.is_none_or(|z| z == c.orig.zone)
            && self.proto.is_none_or(|p| p == c.orig.proto)
            && self.orig.fits(&c.orig)
            && self.reply.fits(&c.reply)
    }
}

impl Table {
    /// Ends the connections that the filter fits, of those from number `from` on, having looked at
    /// `count` entries at most; where to go on. Whole zones and single connections end at once.
    /// `now` in milliseconds.
    ///
    /// # Errors
    /// The filter names a single connection by its first tuple, and there is none.
    pub fn flush_where(
        &self,
        filter: &Filter,
        from: u32,
        count: u32,
        now: u64,
    ) -> Result<Option<u32>, Absent> {
        if filter.orig.is_empty() && filter.reply.is_empty() && filter.proto.is_none() {
            match filter.zone {
                Some(zone) => self.flush_zone(zone),
                None => self.flush(),
            }
            return Ok(None);
        }
        let whole = filter.proto.and_then(|p| filter.orig.whole(p, filter.zone.unwrap_or(0)));
        if let Some(tuple) = whole.filter(|_| filter.reply.is_empty()) {
            return self.flush_tuple(&tuple, now).then_some(None).ok_or(Absent);
        }
        Ok(self.show(from, count, now, |shown| {
            if filter.fits(&shown.conn) {
                self.flush_id(shown.id);
            }
        }))
    }
}
