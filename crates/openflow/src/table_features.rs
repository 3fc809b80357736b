//! What a controller asks tables to be (OpenFlow 1.3+: a table features request with a body).

use crate::OfError;

/// One message of a table features request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFeaturesPart {
    /// Others with its transaction id follow and belong to the same request.
    pub more: bool,
    /// The tables that it names, up to the first that cannot be read, whose error is sent when the
    /// whole request is there. A request without tables only asks.
    pub tables: Vec<Result<TableFeatures, OfError>>,
}

/// How one table is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFeatures {
    /// Its number.
    pub table: u8,
    /// What is asked of it; that of a request's first table counts for all.
    pub command: TableCommand,
    /// Name, at most [`TableFeatures::NAME_BYTES_MAX`] bytes long; empty: none.
    pub name: String,
    /// `OFPTC_*` (1.4+).
    pub capabilities: u32,
    /// How many flows it is to hold.
    pub max_entries: u32,
    /// The highest table that packets are to reach from it, at least itself. None: something is
    /// asked for that no table here can do.
    pub reach: Option<u8>,
}

impl TableFeatures {
    /// `OFP_MAX_TABLE_NAME_LEN` without the zero at its end.
    pub const NAME_BYTES_MAX: usize = 31;
}

/// `OFPTFC_*` (1.5; earlier versions replace).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableCommand {
    /// The tables of the request are all that there are.
    Replace,
    /// Tables that are not named stay as they are.
    Modify,
    /// Named tables take part in the pipeline.
    Enable,
    /// Named tables take no part in the pipeline.
    Disable,
}
