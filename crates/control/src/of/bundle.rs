//! Bundles: messages kept until the commit, then applied as one change.

use super::conn::Conn;
use openflow::codec::ERROR_DATA;
use openflow::{BundleStep, OfError, Reply, Request};

/// Messages one bundle may hold.
const MAX_MESSAGES: usize = 1 << 20;
/// Bundles one connection may have open.
const MAX_BUNDLES: usize = 64;
/// Nanoseconds after which a bundle that nobody adds to is given up, unless `other_config` of the
/// database (`bundle-idle-timeout`) says otherwise; as in ovs-vswitchd.
pub const IDLE_TIMEOUT: u64 = 10_000_000_000;

/// A message that waits for the commit.
pub struct Message {
    /// Its own transaction id.
    pub xid: u32,
    /// What it asks for.
    pub request: Request,
    /// All of it, for an error reply.
    pub bytes: Vec<u8>,
}

/// An open bundle.
pub struct Bundle {
    flags: u16,
    closed: bool,
    messages: Vec<Message>,
    /// When it was last added to, ns.
    used: u64,
    /// The message that opened it, for the error when it is given up.
    opening: Vec<u8>,
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
            open(conn, id, flags, from)?;
            BundleStep::OpenReply
        }
        BundleStep::CloseRequest => {
            let bundle = conn.bundles.get_mut(&id).ok_or(OfError::BundleBadId)?;
            if bundle.closed {
                conn.bundles.remove(&id);
                return Err(OfError::BundleClosed);
            }
            if bundle.flags != flags {
                conn.bundles.remove(&id);
                return Err(OfError::BundleBadFlags);
            }
            bundle.closed = true;
            bundle.used = from.1;
            BundleStep::CloseReply
        }
        BundleStep::DiscardRequest => {
            conn.bundles.remove(&id).ok_or(OfError::BundleBadId)?;
            BundleStep::DiscardReply
        }
        _ => return Err(OfError::BundleBadType),
    };
    Ok(Reply::BundleControl { id, step: answer, flags })
}

fn open(conn: &mut Conn, id: u32, flags: u16, from: (&[u8], u64)) -> Result<(), OfError> {
    if conn.bundles.remove(&id).is_some() {
        return Err(OfError::BundleBadId);
    }
    if conn.bundles.len() >= MAX_BUNDLES {
        return Err(OfError::BundleOutOfBundles);
    }
    let (opening, used) = (from.0[..from.0.len().min(ERROR_DATA)].to_vec(), from.1);
    conn.bundles.insert(id, Bundle { flags, closed: false, messages: Vec::new(), used, opening });
    Ok(())
}

/// Keeps a message (transaction id, itself, the whole that it came in) for the commit; a bundle that
/// was not opened opens itself.
pub fn add(
    conn: &mut Conn,
    id: u32,
    flags: u16,
    (xid, request, whole): (u32, Request, &[u8]),
    now: u64,
) -> Result<(), OfError> {
    match request {
        Request::FlowMod(_)
        | Request::GroupMod(_)
        | Request::PortMod(_)
        | Request::PacketOut(_) => {}
        _ => return Err(OfError::BundleMsgUnsup),
    }
    if !conn.bundles.contains_key(&id) {
        open(conn, id, flags, (whole, now))?;
    }
    let Some(bundle) = conn.bundles.get_mut(&id) else { return Err(OfError::BundleBadId) };
    let refused = match () {
        () if bundle.closed => Some(OfError::BundleClosed),
        () if bundle.flags != flags => Some(OfError::BundleBadFlags),
        () if bundle.messages.len() >= MAX_MESSAGES => Some(OfError::BundleMsgTooMany),
        () => None,
    };
    if let Some(error) = refused {
        conn.bundles.remove(&id);
        return Err(error);
    }
    bundle.used = now;
    bundle.messages.push(Message { xid, request, bytes: inner_bytes(whole).to_vec() });
    Ok(())
}

/// The message inside a bundle-add message: behind header, bundle id and flags; in 1.3, where bundles
/// are ONF's extension, behind the experimenter header too.
fn inner_bytes(whole: &[u8]) -> &[u8] {
    const EXPERIMENTER: u8 = 4;
    let at = if whole.get(1) == Some(&EXPERIMENTER) { 24 } else { 16 };
    let inner = whole.get(at..).unwrap_or_default();
    let len = inner.get(2..4).map_or(0, |l| usize::from(u16::from_be_bytes([l[0], l[1]])));
    &inner[..len.min(inner.len()).min(ERROR_DATA)]
}

/// Gives up bundles that were left alone for `timeout` ns; the messages that opened them.
pub fn expire(conn: &mut Conn, now: u64, timeout: u64) -> Vec<Vec<u8>> {
    let old = conn.bundles.iter().filter(|(_, b)| now.saturating_sub(b.used) > timeout);
    let ids: Vec<u32> = old.map(|(id, _)| *id).collect();
    ids.iter().filter_map(|id| conn.bundles.remove(id)).map(|b| b.opening).collect()
}

/// Takes a bundle out for its commit.
pub fn take(conn: &mut Conn, id: u32, flags: u16) -> Result<Vec<Message>, OfError> {
    let bundle = conn.bundles.remove(&id).ok_or(OfError::BundleBadId)?;
    if bundle.flags != flags {
        return Err(OfError::BundleBadFlags);
    }
    Ok(bundle.messages)
}
