//! Reading and writing big-endian message bodies.

use crate::OfError;

/// Result of a decoding step.
pub(crate) type Result<T> = std::result::Result<T, OfError>;

/// A cursor over a message body; running out of bytes is [`OfError::BadLen`].
#[derive(Clone, Copy)]
pub(crate) struct Rd<'a>(pub &'a [u8]);

impl<'a> Rd<'a> {
    /// The next `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        if n > self.0.len() {
            return Err(OfError::BadLen);
        }
        let (head, tail) = self.0.split_at(n);
        self.0 = tail;
        Ok(head)
    }
    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(OfError::BadLen)?;
        self.0 = tail;
        Ok(*head)
    }
    /// Passes over `n` bytes.
    pub fn skip(&mut self, n: usize) -> Result<()> {
        self.bytes(n).map(|_| ())
    }
    /// A byte.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }
    /// A 16-bit number.
    pub fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }
    /// A 32-bit number.
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }
    /// A 64-bit number.
    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }
    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
    /// True if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Bytes left.
    pub fn left(&self) -> usize {
        self.0.len()
    }
    /// `n` bytes and the padding that follows up to a multiple of 8 (which may be cut off at the
    /// end).
    pub fn padded(&mut self, n: usize) -> Result<&'a [u8]> {
        let body = self.bytes(n)?;
        self.skip((n.next_multiple_of(8) - n).min(self.left()))?;
        Ok(body)
    }
    /// A property (type, its body without the 4-byte header), with its padding passed over, which
    /// must be there; [`OfError::PropBadLen`] if it is cut or says less than its header's length.
    pub fn property(&mut self) -> Result<(u16, Rd<'a>)> {
        let bad = |_| OfError::PropBadLen;
        let mut head = *self;
        let (kind, len) = (head.u16().map_err(bad)?, usize::from(head.u16().map_err(bad)?));
        if len < 4 {
            return Err(OfError::PropBadLen);
        }
        let whole = self.bytes(len.next_multiple_of(8)).map_err(bad)?;
        Ok((kind, Rd(&whole[4..len])))
    }
    /// The number that is all of a property's body.
    pub fn only_u32(&mut self) -> Result<u32> {
        let number = self.u32().map_err(|_| OfError::PropBadLen)?;
        if self.is_empty() { Ok(number) } else { Err(OfError::PropBadLen) }
    }
    /// Why a property is refused whose type says nothing to us; types from `experimenter` on are
    /// experimenters'.
    pub fn unknown_property(&mut self, kind: u16, experimenter: u16) -> OfError {
        if kind < experimenter {
            return OfError::PropBadType;
        }
        match (self.u32(), self.u32()) {
            (Ok(0), Ok(_)) => OfError::PropBadExperimenter,
            (Ok(_), Ok(_)) => OfError::PropBadExpType,
            _ => OfError::PropBadLen,
        }
    }
}

/// Writing big-endian numbers at the end of a message.
pub(crate) trait Put {
    /// A byte.
    fn u8(&mut self, v: u8);
    /// A 16-bit number.
    fn u16(&mut self, v: u16);
    /// A 32-bit number.
    fn u32(&mut self, v: u32);
    /// A 64-bit number.
    fn u64(&mut self, v: u64);
    /// Bytes as they are.
    fn raw(&mut self, v: &[u8]);
    /// `n` zero bytes.
    fn pad(&mut self, n: usize);
    /// Zeros until the length counted from `start` is a multiple of 8.
    fn align8(&mut self, start: usize);
    /// A text in a field of `n` bytes, zero-filled, its last byte always zero.
    fn text(&mut self, s: &str, n: usize);
    /// Stores `len() - start` as the 16-bit number at `at`.
    fn patch_len(&mut self, at: usize, start: usize);
    /// A property: `body` writes what follows the 4-byte header; padded to 8 bytes.
    fn property(&mut self, kind: u16, body: impl FnOnce(&mut Vec<u8>));
    /// Seconds and nanoseconds (32 bits each).
    fn duration(&mut self, ns: u64);
}

impl Put for Vec<u8> {
    fn u8(&mut self, v: u8) {
        self.push(v);
    }
    fn u16(&mut self, v: u16) {
        self.extend(v.to_be_bytes());
    }
    fn u32(&mut self, v: u32) {
        self.extend(v.to_be_bytes());
    }
    fn u64(&mut self, v: u64) {
        self.extend(v.to_be_bytes());
    }
    fn raw(&mut self, v: &[u8]) {
        self.extend_from_slice(v);
    }
    fn pad(&mut self, n: usize) {
        self.resize(self.len() + n, 0);
    }
    fn align8(&mut self, start: usize) {
        let len = self.len() - start;
        self.pad(len.next_multiple_of(8) - len);
    }
    fn text(&mut self, s: &str, n: usize) {
        let take = s.len().min(n - 1);
        self.raw(&s.as_bytes()[..take]);
        self.pad(n - take);
    }
    fn patch_len(&mut self, at: usize, start: usize) {
        let len = (self.len() - start) as u16;
        self[at..at + 2].copy_from_slice(&len.to_be_bytes());
    }
    fn property(&mut self, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
        let start = self.len();
        self.u16(kind);
        self.u16(0);
        body(self);
        self.patch_len(start + 2, start);
        self.align8(start);
    }
    fn duration(&mut self, ns: u64) {
        self.u32((ns / 1_000_000_000).min(u64::from(u32::MAX)) as u32);
        self.u32((ns % 1_000_000_000) as u32);
    }
}
