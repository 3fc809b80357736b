//! Filters of the connections to be flushed, by their zones, protocols and tuples.

use crate::conn::Conn;
use crate::table::Table;
use crate::tuple::Tuple;
use std::net::IpAddr;

/// Conditions on one of a connection's tuples; None: any value.
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

/// Conditions on a connection; None: any value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Zone.
    pub zone: Option<u16>,
    /// IP protocol.
    pub proto: Option<u8>,
    /// Conditions on the tuple of the original direction.
    pub orig: TupleFilter,
    /// Conditions on the tuple of the reply direction.
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

    /// The one tuple that meets the conditions, if they name every field. ICMP fields that they do
    /// not name count as 0 (as in OVS).
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
    /// Ends the connections that meet the filter among `count` entries from entry `from` on;
    /// returns the entry to go on from, None: all are done. A filter for a whole zone, or for a
    /// single connection, is done by one call. `now` in milliseconds.
    ///
    /// The filter names a single connection by its tuple of the original direction, and there is
    /// none.
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
