//! Bundles: messages kept until the commit, then applied as one change.

use super::account::{CONNECTION_BYTES_MAX, REPLY_SHARE_BYTES};
use super::conn::Conn;
use super::open_bundles::Bundle;
use ofproto::BundleItem;
use openflow::codec::{self, Dialect, ERROR_DATA};
use openflow::framing::MessageHeader;
use openflow::{BundleStep, OfError, Reply, Request};
use std::rc::Rc;

/// Bytes that are allocated together: at least, and of a bundle that has that much already.
const CHUNK: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 20;
/// Bundles one connection may have open: Antrea's own tests have 10,000. What is in them is bounded
/// by the connection's bytes.
const CONNECTION_BUNDLES_MAX: usize = 16_384;
/// Nanoseconds without a new message after which a bundle is given up, unless `other_config` of the
/// database (`bundle-idle-timeout`) says otherwise; as in ovs-vswitchd.
pub const IDLE_TIMEOUT: u64 = 10_000_000_000;

/// Messages that wait for the commit, as they came: decoded ones are ten times as large.
#[derive(Default)]
pub struct Messages {
    chunks: Vec<Vec<u8>>,
    /// What the chunks have room for.
    held: usize,
}

impl Messages {
    /// Bytes that are allocated for the messages.
    pub fn held(&self) -> usize {
        self.held
    }

    fn push(&mut self, message: &[u8]) {
        match self.chunks.last_mut() {
            Some(last) if last.capacity() - last.len() >= message.len() => last.extend(message),
            _ => {
                let room = self.held.clamp(*CHUNK.start(), *CHUNK.end()).max(message.len());
                let mut chunk = Vec::with_capacity(room);
                self.held += chunk.capacity();
                chunk.extend(message);
                self.chunks.push(chunk);
            }
        }
    }

    /// The message at (chunk, byte), and where the next one is.
    fn at(&self, (chunk, byte): (usize, usize)) -> Option<(&[u8], (usize, usize))> {
        let whole = self.chunks.get(chunk)?;
        let rest = &whole[byte..];
        let len = usize::from(MessageHeader::read(rest)?.len);
        let next = if byte + len < whole.len() { (chunk, byte + len) } else { (chunk + 1, 0) };
        Some((&rest[..len], next))
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut at = (0, 0);
        std::iter::from_fn(move || {
            let (message, next) = self.at(at)?;
            at = next;
            Some(message)
        })
    }

    /// Message number `n`: its transaction id and as much of it as goes into an error reply.
    pub fn describe(&self, n: usize) -> Option<(u32, Vec<u8>)> {
        let message = self.iter().nth(n)?;
        Some((MessageHeader::read(message)?.xid, message[..message.len().min(ERROR_DATA)].to_vec()))
    }

    /// What they ask for, decoded one by one; `check` may refuse a message.
    pub fn items(
        self: Rc<Self>,
        dialect: Dialect,
        vlan_limit: u8,
        check: impl Fn(&Request) -> Result<(), OfError>,
    ) -> impl Iterator<Item = Result<BundleItem, OfError>> {
        let mut at = (0, 0);
        std::iter::from_fn(move || {
            let (message, next) = self.at(at)?;
            at = next;
            let request = codec::decode(dialect, message).map_err(|e| e.error);
            Some(request.and_then(|(_, r)| check(&r).and_then(|()| item(r, vlan_limit))))
        })
    }
}

/// A bundled message as the switch half takes it.
fn item(r: Request, vlan_limit: u8) -> Result<BundleItem, OfError> {
    match r {
        Request::FlowMod(m) => Ok(BundleItem::Flow(m)),
        Request::GroupMod(m) => Ok(BundleItem::Group(m)),
        Request::PortMod(m) => Ok(BundleItem::Port(m)),
        Request::PacketOut(m) => {
            let m = m.in_memory();
            // The switch half knows the port better than the parser could.
            let key = datapath::extract(&m.data, flow::NO_PORT, vlan_limit);
            Ok(BundleItem::PacketOut(Box::new((m, key.ok_or(OfError::BadPacket)?))))
        }
        _ => Err(OfError::BundleMsgUnsup),
    }
}

/// Everything but commit: the reply. `from`: the whole message, and when it came, ns.
pub fn control(
    conn: &mut Conn,
    id: u32,
    step: BundleStep,
    flags: u16,
    from: (&[u8], u64),
) -> Result<Reply, OfError> {
    let answer = match step {
        BundleStep::OpenRequest => {
            let bundle = opened(conn, id, flags, from)?;
            conn.bundles.insert(id, bundle);
            BundleStep::OpenReply
        }
        BundleStep::CloseRequest => {
            let mut bundle = conn.bundles.remove(id).ok_or(OfError::BundleBadId)?;
            if bundle.closed {
                return Err(OfError::BundleClosed);
            }
            if bundle.flags != flags {
                return Err(OfError::BundleBadFlags);
            }
            (bundle.closed, bundle.used) = (true, from.1);
            conn.bundles.insert(id, bundle);
            BundleStep::CloseReply
        }
        BundleStep::DiscardRequest => {
            conn.bundles.remove(id).ok_or(OfError::BundleBadId)?;
            BundleStep::DiscardReply
        }
        _ => return Err(OfError::BundleBadType),
    };
    // As from ovs-vswitchd: replies say nothing of the flags.
    Ok(Reply::BundleControl { id, step: answer, flags: 0 })
}

/// True if there is no room for another piece of a bundle.
fn is_full(conn: &Conn) -> bool {
    conn.held() + CHUNK.end() + REPLY_SHARE_BYTES > CONNECTION_BYTES_MAX
}

/// A bundle of `id` that opens; one that is open already is gone.
fn opened(conn: &mut Conn, id: u32, flags: u16, from: (&[u8], u64)) -> Result<Bundle, OfError> {
    if conn.bundles.remove(id).is_some() {
        return Err(OfError::BundleBadId);
    }
    if conn.bundles.count() >= CONNECTION_BUNDLES_MAX || is_full(conn) {
        return Err(OfError::BundleOutOfBundles);
    }
    let (opening, used) = (from.0[..from.0.len().min(ERROR_DATA)].to_vec(), from.1);
    Ok(Bundle { flags, closed: false, messages: Messages::default(), used, opening })
}

/// Keeps a message, which was decoded, for the commit; a bundle that was not opened opens itself,
/// and one whose message is refused is gone. `whole`: what the message came in.
pub fn add(conn: &mut Conn, id: u32, flags: u16, whole: &[u8], now: u64) -> Result<(), OfError> {
    let full = is_full(conn);
    let mut bundle = match conn.bundles.remove(id) {
        Some(bundle) => bundle,
        None => opened(conn, id, flags, (whole, now))?,
    };
    match () {
        () if bundle.closed => return Err(OfError::BundleClosed),
        () if bundle.flags != flags => return Err(OfError::BundleBadFlags),
        () if full => return Err(OfError::BundleMsgTooMany),
        () => bundle.used = now,
    }
    bundle.messages.push(inner_bytes(whole));
    conn.bundles.insert(id, bundle);
    Ok(())
}

/// The message inside a bundle-add message: behind header, bundle id and flags; in 1.3, where
/// bundles are ONF's extension, behind the experimenter header too.
fn inner_bytes(whole: &[u8]) -> &[u8] {
    const EXPERIMENTER: u8 = 4;
    let at = if whole.get(1) == Some(&EXPERIMENTER) { 24 } else { 16 };
    let inner = whole.get(at..).unwrap_or_default();
    let len = inner.get(2..4).map_or(0, |l| usize::from(u16::from_be_bytes([l[0], l[1]])));
    &inner[..len.min(inner.len())]
}

/// Takes a bundle out for its commit.
pub fn take(conn: &mut Conn, id: u32, flags: u16) -> Result<Messages, OfError> {
    let bundle = conn.bundles.remove(id).ok_or(OfError::BundleBadId)?;
    if bundle.flags != flags {
        return Err(OfError::BundleBadFlags);
    }
    Ok(bundle.messages)
}

#[cfg(test)]
mod tests {
    use super::super::account::CONNECTION_BYTES_MIN;
    use super::super::conn::Kind;
    use super::*;

    fn conn() -> Conn {
        let (out, _) = tokio::sync::mpsc::unbounded_channel();
        let (open, _) = tokio::sync::oneshot::channel();
        Conn::new("br0".into(), Kind::Service, out, Rc::default(), open)
    }

    /// A bundle-add message around one of `n` bytes.
    fn adding(n: u16) -> Vec<u8> {
        let mut m = vec![0; 16 + usize::from(n)];
        m[18..20].copy_from_slice(&n.to_be_bytes());
        m
    }

    #[test]
    fn all_bundles_of_a_connection_share_its_account() {
        let (mut conn, message) = (conn(), adding(60_000));
        let mut taken = 0;
        let error = (0..).find_map(|i| {
            taken += 60_000;
            add(&mut conn, i % 8, 3, &message, 0).err()
        });
        assert_eq!(error, Some(OfError::BundleMsgTooMany));
        assert!(taken > CONNECTION_BYTES_MAX * 3 / 4, "{taken}");
        assert!(conn.held() + REPLY_SHARE_BYTES <= CONNECTION_BYTES_MAX);
        // The bundle that wanted more is gone, and others have its room.
        assert_eq!(conn.bundles.count(), 7);
        assert_eq!(add(&mut conn, 0, 3, &message, 0), Ok(()));
        (0..8).for_each(|id| drop(conn.bundles.remove(id)));
        assert_eq!(conn.held(), CONNECTION_BYTES_MIN);
    }

    #[test]
    fn thousands_of_small_bundles_are_kept_in_little_room() {
        let mut conn = conn();
        let max = CONNECTION_BUNDLES_MAX as u32;
        (0..max).for_each(|id| add(&mut conn, id, 3, &adding(100), id.into()).unwrap());
        assert_eq!(add(&mut conn, max, 3, &adding(100), 0), Err(OfError::BundleOutOfBundles));
        let each = (conn.held() - CONNECTION_BYTES_MIN) / CONNECTION_BUNDLES_MAX;
        assert!(each <= CHUNK.start() + 400, "{each}");
        // Bundle 0 is used again, so that it is idle last.
        add(&mut conn, 0, 3, &adding(100), max.into()).unwrap();
        let mut left = usize::MAX;
        let idle = std::iter::from_fn(|| conn.bundles.next_idle(100, 10, &mut left));
        assert_eq!(idle.map(|b| b.used).collect::<Vec<_>>(), (1..90).collect::<Vec<_>>());
        while conn.bundles.next_idle(u64::MAX, 10, &mut left).is_some() {}
        assert_eq!((conn.bundles.count(), conn.held()), (0, CONNECTION_BYTES_MIN));
    }
}
