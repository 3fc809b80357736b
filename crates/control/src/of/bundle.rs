//! Bundles: messages kept until the commit, then applied as one change.

use super::conn::Conn;
use openflow::{BundleStep, OfError, Reply, Request};

/// Messages one bundle may hold.
const MAX_MESSAGES: usize = 1 << 20;
/// Bundles one connection may have open.
const MAX_BUNDLES: usize = 64;

/// An open bundle.
pub struct Bundle {
    flags: u16,
    closed: bool,
    /// (xid, message), in order.
    pub messages: Vec<(u32, Request)>,
}

/// Everything but commit: the reply.
pub fn control(conn: &mut Conn, id: u32, step: BundleStep, flags: u16) -> Result<Reply, OfError> {
    let answer = match step {
        BundleStep::OpenRequest => {
            open(conn, id, flags)?;
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

fn open(conn: &mut Conn, id: u32, flags: u16) -> Result<(), OfError> {
    if conn.bundles.remove(&id).is_some() {
        return Err(OfError::BundleBadId);
    }
    if conn.bundles.len() >= MAX_BUNDLES {
        return Err(OfError::BundleOutOfBundles);
    }
    conn.bundles.insert(id, Bundle { flags, closed: false, messages: Vec::new() });
    Ok(())
}

/// Keeps a message for the commit; a bundle that was not opened opens itself.
pub fn add(conn: &mut Conn, id: u32, flags: u16, xid: u32, inner: Request) -> Result<(), OfError> {
    match inner {
        Request::FlowMod(_)
        | Request::GroupMod(_)
        | Request::PortMod(_)
        | Request::PacketOut(_) => {}
        _ => return Err(OfError::BundleMsgUnsup),
    }
    if !conn.bundles.contains_key(&id) {
        open(conn, id, flags)?;
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
    bundle.messages.push((xid, inner));
    Ok(())
}

/// Takes a bundle out for its commit.
pub fn take(conn: &mut Conn, id: u32, flags: u16) -> Result<Vec<(u32, Request)>, OfError> {
    let bundle = conn.bundles.remove(&id).ok_or(OfError::BundleBadId)?;
    if bundle.flags != flags {
        return Err(OfError::BundleBadFlags);
    }
    Ok(bundle.messages)
}
