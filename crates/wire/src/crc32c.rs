//! CRC32c (Castagnoli, reflected), as SCTP uses it (RFC 9260, appendix A).

const POLY: u32 = 0x82f6_3b78;

/// TABLES[k][b]: the CRC of byte b followed by k zero bytes.
static TABLES: [[u32; 256]; 4] = tables();

const fn tables() -> [[u32; 256]; 4] {
    let mut t = [[0u32; 256]; 4];
    let mut i = 0;
    while i < 256 {
        let (mut crc, mut bit) = (i as u32, 0);
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ POLY } else { crc >> 1 };
            bit += 1;
        }
        t[0][i] = crc;
        i += 1;
    }
    let mut k = 1;
    while k < 4 {
        let mut i = 0;
        while i < 256 {
            let c = t[k - 1][i];
            t[k][i] = c >> 8 ^ t[0][(c & 0xff) as usize];
            i += 1;
        }
        k += 1;
    }
    t
}

fn step(crc: u32, byte: u8) -> u32 {
    crc >> 8 ^ TABLES[0][(crc as u8 ^ byte) as usize]
}

fn update(mut crc: u32, bytes: &[u8]) -> u32 {
    let mut words = bytes.chunks_exact(4);
    for w in words.by_ref() {
        let x = (crc ^ u32::from_le_bytes([w[0], w[1], w[2], w[3]])).to_le_bytes();
        crc = TABLES[3][usize::from(x[0])]
            ^ TABLES[2][usize::from(x[1])]
            ^ TABLES[1][usize::from(x[2])]
            ^ TABLES[0][usize::from(x[3])];
    }
    words.remainder().iter().fold(crc, |c, &b| step(c, b))
}

/// CRC32c of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !update(!0, bytes)
}

/// The checksum of an SCTP packet (common header and chunks) as its four bytes stand on the wire;
/// the checksum field's present content does not matter. None when the header is cut short.
pub fn sctp_checksum(packet: &[u8]) -> Option<[u8; 4]> {
    let (head, tail) = (packet.get(..8)?, packet.get(12..)?);
    let crc = update(update(update(!0, head), &[0; 4]), tail);
    Some((!crc).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 3720, appendix B.4.
    #[test]
    fn known_vectors() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let up: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&up), 0x46dd_794e);
    }

    proptest! {
        #[test]
        fn words_equal_bytes(b in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(crc32c(&b), !b.iter().fold(!0, |c, &x| step(c, x)));
        }

        #[test]
        fn checksum_field_does_not_matter(mut b in proptest::collection::vec(any::<u8>(), 12..80)) {
            let sum = sctp_checksum(&b).unwrap();
            b[8..12].fill(0);
            prop_assert_eq!(crc32c(&b).to_le_bytes(), sum);
        }
    }

    #[test]
    fn short_packet() {
        assert_eq!(sctp_checksum(&[0; 11]), None);
    }
}
