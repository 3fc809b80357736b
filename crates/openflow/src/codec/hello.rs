//! HELLO with its version bitmap (OpenFlow 1.3.1 section 6.3.1, errata 1.0.2).

use crate::buf::{Put, Rd};
use crate::framing::{HEADER_LEN, MessageHeader};
use crate::{OfError, Version};

/// Our HELLO: `versions` is a bitmap `1 << wire version`. The header has the highest one.
pub fn encode_hello(xid: u32, versions: u32) -> Vec<u8> {
    let highest = versions.checked_ilog2().unwrap_or(1) as u8;
    let mut m = vec![highest, 0, 0, 0];
    m.u32(xid);
    m.property(1, |m| m.u32(versions));
    m.patch_len(2, 0);
    m
}

/// The versions a HELLO offers: its bitmap, or without one everything up to the header's version.
/// Damaged elements are passed over, as if they were not there.
pub(crate) fn offered(version: u8, body: &[u8]) -> u32 {
    let mut rd = Rd(body);
    while let Ok((kind, mut element)) = rd.property() {
        if let (1, Ok(bits)) = (kind, element.u32()) {
            return bits;
        }
    }
    let below = 1u32.checked_shl(u32::from(version) + 1).map_or(u32::MAX, |top| top - 1);
    below & !1
}

/// The versions a peer's HELLO (a whole message) offers.
///
/// # Errors
/// [`OfError::BadType`] for another message, [`OfError::BadLen`] for a cut one.
pub fn decode_hello(message: &[u8]) -> Result<u32, OfError> {
    let header = MessageHeader::read(message).ok_or(OfError::BadLen)?;
    match header.kind {
        0 => Ok(offered(header.version, &message[HEADER_LEN..])),
        _ => Err(OfError::BadType),
    }
}

/// The highest version in a bitmap.
pub fn highest(versions: u32) -> Option<Version> {
    let known = versions & 0x7e;
    super::kinds::version(known.checked_ilog2()? as u8)
}

/// The version both ends use: the highest in both bitmaps. `None`: there is none.
pub fn agree(ours: u32, theirs: u32) -> Option<Version> {
    highest(ours & theirs)
}

/// HELLO_FAILED, INCOMPATIBLE with a text (the one error whose data is text).
pub fn hello_failed(xid: u32, ours: u32, theirs: u32) -> Vec<u8> {
    let text = format!("we support versions 0x{ours:02x}, you support versions 0x{theirs:02x}");
    let header = (ours.checked_ilog2().unwrap_or(1) as u8).min(6);
    let mut m = vec![header, 1, 0, 0];
    m.u32(xid);
    m.u32(0);
    m.raw(text.as_bytes());
    m.patch_len(2, 0);
    m
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmap_and_bare_headers() {
        let h = encode_hello(7, 0b111_0010);
        assert_eq!(h, [6, 0, 0, 16, 0, 0, 0, 7, 0, 1, 0, 8, 0, 0, 0, 0x72]);
        assert_eq!(offered(6, &h[8..]), 0x72);
        assert_eq!(offered(4, &[]), 0b1_1110);
        assert_eq!(offered(255, &[0, 1, 0, 3]), u32::MAX - 1);
        assert_eq!(agree(0x72, 0x1e), Some(Version::V13));
        assert_eq!(agree(0x70, 0x02), None);
    }
}
