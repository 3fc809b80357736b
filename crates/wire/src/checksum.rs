//! The internet checksum (RFC 1071) and its incremental update (RFC 1624).
//!
//! A checksum is a number in host order, as [`crate::Ipv4::checksum`] gives it.

/// A running ones-complement sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Adds one 16-bit word.
    #[inline]
    #[must_use]
    pub fn word(self, w: u16) -> Self {
        Sum(self.0 + u64::from(w))
    }

    /// Adds four 16-bit words.
    #[inline]
    #[must_use]
    fn words(self, w: u64) -> Self {
        Sum(self.0 + fold32(w))
    }

    /// Adds bytes that start at an even place of the summed area. An odd last byte is padded with
    /// zero, so only the last piece may be of odd length. Pieces are shorter than 2^32 bytes.
    #[inline]
    #[must_use]
    pub fn bytes(self, b: &[u8]) -> Self {
        // In the machine's byte order, as a sum in the other order is the same with its bytes
        // swapped (RFC 1071, section 2 (B)): so the loop becomes one of vectors.
        let mut sum = 0;
        let mut words = b.chunks_exact(4);
        for w in words.by_ref() {
            sum += u64::from(u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
        }
        let tail = words.remainder();
        let at = |i: usize| tail.get(i).copied().unwrap_or(0);
        sum += u64::from(u32::from_ne_bytes([at(0), at(1), at(2), 0]));
        Sum(self.0 + u64::from(u16::from_be(Sum(sum).fold())))
    }

    /// The sum in 16 bits, not complemented.
    #[inline]
    pub fn fold(self) -> u16 {
        let s = fold32(self.0);
        let s = (s & 0xffff) + (s >> 16);
        let s = (s & 0xffff) + (s >> 16);
        ((s & 0xffff) + (s >> 16)) as u16
    }

    /// The checksum: the complement of the sum.
    #[inline]
    pub fn finish(self) -> u16 {
        !self.fold()
    }

    /// The checksum for UDP, where zero is sent as 0xffff (RFC 768).
    #[inline]
    pub fn finish_udp(self) -> u16 {
        match self.finish() {
            0 => 0xffff,
            sum => sum,
        }
    }
}

impl std::ops::AddAssign for Sum {
    #[inline]
    fn add_assign(&mut self, other: Sum) {
        self.0 += other.0;
    }
}

#[inline]
fn fold32(s: u64) -> u64 {
    (s & 0xffff_ffff) + (s >> 32)
}

/// The checksum of `b`; 0 when `b` contains its own right checksum.
#[inline]
pub fn internet(b: &[u8]) -> u16 {
    Sum::default().bytes(b).finish()
}

/// The pseudo header of IPv4 (RFC 9293): addresses, protocol, bytes of the transport packet.
#[inline]
pub fn pseudo_v4(src: [u8; 4], dst: [u8; 4], proto: u8, len: usize) -> Sum {
    Sum::default().bytes(&src).bytes(&dst).word(u16::from(proto)).bytes(&(len as u32).to_be_bytes())
}

/// The pseudo header of IPv6 (RFC 8200, section 8.1).
#[inline]
pub fn pseudo_v6(src: &[u8; 16], dst: &[u8; 16], proto: u8, len: usize) -> Sum {
    Sum::default().bytes(src).bytes(dst).word(u16::from(proto)).bytes(&(len as u32).to_be_bytes())
}

/// The checksum after one aligned 16-bit word changed from `old` to `new`.
#[inline]
pub fn update16(sum: u16, old: u16, new: u16) -> u16 {
    Sum::default().word(!sum).word(!old).word(new).finish()
}

/// The checksum after the bytes `old` at offset `at` of the summed area became `new` (of the same
/// length; a longer one counts as if the other were padded with zeros). Only the parity of `at`
/// matters.
#[inline]
pub fn update(sum: u16, at: usize, old: &[u8], new: &[u8]) -> u16 {
    let (mut was, mut is) = (Sum::default().bytes(old).fold(), Sum::default().bytes(new).fold());
    if at % 2 == 1 {
        (was, is) = (was.swap_bytes(), is.swap_bytes());
    }
    update16(sum, was, is)
}

/// The checksum after four aligned 16-bit words changed from `old` to `new`.
#[inline]
pub fn update_words(sum: u16, old: u64, new: u64) -> u16 {
    Sum::default().word(!sum).words(!old).words(new).finish()
}

/// As [`update`], for UDP: zero stays zero (no checksum was made) and never becomes zero.
#[inline]
pub fn update_udp(sum: u16, at: usize, old: &[u8], new: &[u8]) -> u16 {
    match sum {
        0 => 0,
        _ => match update(sum, at, old, new) {
            0 => 0xffff,
            sum => sum,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The plainest way: add 16-bit words one by one.
    fn twin(b: &[u8]) -> u16 {
        let mut s = 0u32;
        for w in b.chunks(2) {
            s += u32::from(w[0]) << 8 | w.get(1).map_or(0, |&x| u32::from(x));
            s = (s & 0xffff) + (s >> 16);
        }
        !(s as u16)
    }

    /// RFC 1071, section 3: the sum of these bytes is 0xddf2.
    #[test]
    fn known_vectors() {
        let b = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().bytes(&b).fold(), 0xddf2);
        // RFC 1624, section 4.
        assert_eq!(update16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn udp_zero() {
        assert_eq!(Sum::default().word(0xffff).finish_udp(), 0xffff);
        assert_eq!(update_udp(0, 0, &[1, 2], &[3, 4]), 0);
        assert_eq!(update_udp(0xdd2f, 0, &[0x55, 0x55], &[0x32, 0x85]), 0xffff);
    }

    #[test]
    fn pseudo_headers_are_what_they_say() {
        let mut raw = vec![10, 0, 0, 1, 10, 0, 0, 2, 0, 17];
        raw.extend(1500u16.to_be_bytes());
        assert_eq!(pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 17, 1500).finish(), twin(&raw));
        let (s, d) = ([0xfe; 16], [0x20; 16]);
        let raw = [&s[..], &d[..], &70000u32.to_be_bytes(), &[0, 0, 0, 58]].concat();
        assert_eq!(pseudo_v6(&s, &d, 58, 70000).finish(), twin(&raw));
    }

    proptest! {
        #[test]
        fn fast_equals_plain(b in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(internet(&b), twin(&b));
        }

        #[test]
        fn extremes(n in 0usize..70_000, v in prop_oneof![Just(0u8), Just(0xffu8)]) {
            let b = vec![v; n];
            prop_assert_eq!(internet(&b), twin(&b));
        }

        #[test]
        fn incremental_equals_full(
            mut b in proptest::collection::vec(any::<u8>(), 20..120),
            new in proptest::collection::vec(any::<u8>(), 1..20),
            at in 0usize..100,
        ) {
            let at = at % (b.len() - new.len() + 1);
            b.push(1); // an all-zero area has two right checksums
            let before = internet(&b);
            let old = b[at..at + new.len()].to_vec();
            b[at..at + new.len()].copy_from_slice(&new);
            prop_assert_eq!(update(before, at, &old, &new), internet(&b));
        }

        #[test]
        fn four_words_are_updated_as_their_bytes_are(sum: u16, old: u64, new: u64) {
            let bytes = update(sum, 0, &old.to_be_bytes(), &new.to_be_bytes());
            prop_assert_eq!(update_words(sum, old, new), bytes);
        }

        #[test]
        fn word_update_equals_full(mut b in proptest::collection::vec(any::<u8>(), 4..40), v: u16) {
            b[0] = 1;
            let before = internet(&b);
            let old = u16::from_be_bytes([b[2], b[3]]);
            b[2..4].copy_from_slice(&v.to_be_bytes());
            prop_assert_eq!(update16(before, old, v), internet(&b));
        }
    }
}
