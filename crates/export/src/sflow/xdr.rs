//! XDR (RFC 4506), as far as sFlow needs it.

use std::net::IpAddr;

/// Bytes that grow by whole words.
#[derive(Default)]
pub(crate) struct Xdr(Vec<u8>);

impl Xdr {
    pub fn u32(&mut self, v: u32) {
        self.0.extend(v.to_be_bytes());
    }

    pub fn u64(&mut self, v: u64) {
        self.0.extend(v.to_be_bytes());
    }

    /// Bytes without their length, filled up to a whole word.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Length and bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.fixed(bytes);
    }

    /// Kind and address.
    pub fn address(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => {
                self.u32(1);
                self.fixed(&ip.octets());
            }
            IpAddr::V6(ip) => {
                self.u32(2);
                self.fixed(&ip.octets());
            }
        }
    }

    /// A record: its kind, the length of what `write` writes, and that.
    pub fn record(&mut self, kind: u32, write: impl FnOnce(&mut Xdr)) {
        let mut inner = Xdr::default();
        write(&mut inner);
        self.u32(kind);
        self.bytes(&inner.0);
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}
