//! Table features requests: they ask how tables are, or name them. Those that name tables come in
//! many messages (254 tables are a megabyte), of which only what they ask for is kept.

use openflow::{OfError, TableCommand, TableFeatures, TableFeaturesPart};
use std::collections::BTreeMap;

/// Bytes of a request's last message that go into the error when it is given up: what the
/// specification asks for.
const TIMEOUT_DATA_BYTES: usize = 64;

/// A request, as far as its messages have come.
pub struct Pending {
    xid: u32,
    /// What is asked of the first table, and so of all.
    pub command: TableCommand,
    /// The tables by number.
    pub tables: BTreeMap<u8, TableFeatures>,
    /// Why it is to be refused, and the message that is to blame.
    pub fault: Option<(OfError, Vec<u8>)>,
    /// When its latest message came, ns, and the beginning of that.
    since: u64,
    latest: Vec<u8>,
}

impl Pending {
    fn new(xid: u32) -> Self {
        let (tables, latest) = (BTreeMap::new(), Vec::new());
        Pending { xid, command: TableCommand::Replace, tables, fault: None, since: 0, latest }
    }

    /// Bytes that are kept for it.
    pub fn held(&self) -> usize {
        let tables =
            self.tables.len() * (size_of::<TableFeatures>() + TableFeatures::NAME_BYTES_MAX);
        tables + self.fault.as_ref().map_or(0, |(_, message)| message.len()) + self.latest.len()
    }

    /// Adds a message's tables. A table may be asked for once.
    fn add(&mut self, tables: Vec<Result<TableFeatures, OfError>>) -> Result<(), OfError> {
        for table in tables {
            let table = table?;
            if self.tables.is_empty() {
                self.command = table.command;
            }
            if self.tables.insert(table.table, table).is_some() {
                return Err(OfError::TableFeaturesDupTable);
            }
        }
        Ok(())
    }

    /// Takes one message.
    fn take(&mut self, part: TableFeaturesPart, bytes: &[u8], now: u64) {
        if self.fault.is_none()
            && let Err(error) = self.add(part.tables)
        {
            self.tables.clear();
            self.fault = Some((error, bytes.to_vec()));
        }
        self.since = now;
        self.latest = bytes[..bytes.len().min(TIMEOUT_DATA_BYTES)].to_vec();
    }
}

/// Takes a message of a request, of which a connection may have one `begun`; the request, when it
/// is whole.
pub fn collect(
    begun: &mut Option<Pending>,
    xid: u32,
    part: TableFeaturesPart,
    (bytes, now): (&[u8], u64),
) -> Result<Option<Pending>, OfError> {
    let mut request = begun.take_if(|p| p.xid == xid).unwrap_or_else(|| Pending::new(xid));
    let more = part.more;
    request.take(part, bytes, now);
    match begun {
        _ if !more => Ok(Some(request)),
        Some(_) => Err(OfError::MultipartBufferOverflow),
        None => {
            *begun = Some(request);
            Ok(None)
        }
    }
}

/// Gives up a request whose next message has not come for `timeout` ns, the time of an idle bundle:
/// its transaction id, and what goes into the error.
pub fn expire(begun: &mut Option<Pending>, now: u64, timeout: u64) -> Option<(u32, Vec<u8>)> {
    let late = begun.take_if(|p| now.saturating_sub(p.since) > timeout)?;
    Some((late.xid, late.latest))
}
