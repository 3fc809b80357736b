//! Error numbers of each version.

use crate::{OfError, Version};

/// An error's numbers: `vendor` 0 for OpenFlow's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorNumbers {
    /// Experimenter id, 0 for none.
    pub vendor: u32,
    /// Type (for vendor errors of 1.2 and later: the experimenter type).
    pub kind: u16,
    /// Code (for vendor errors of 1.2 and later: 0).
    pub code: u16,
}

/// The numbers of an error in a version.
pub fn wire(_version: Version, _e: OfError) -> ErrorNumbers {
    ErrorNumbers { vendor: 0, kind: 1, code: 0 }
}

/// The error that has these numbers in a version.
pub fn from_wire(_version: Version, _n: ErrorNumbers) -> Option<OfError> {
    None
}

/// Writes the body of an error message up to where the offending message's data begin.
pub fn put_error(_version: Version, _e: OfError, _out: &mut Vec<u8>) {}
