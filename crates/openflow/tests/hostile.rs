//! Random and damaged bytes give errors, never panics, and what is accepted encodes to something
//! that decodes to itself.

use openflow::Version;
use openflow::actions::decode_actions;
use openflow::instructions::{decode_instructions, encode_instructions};
use openflow::matching::*;

const VERSIONS: [Version; 6] =
    [Version::V10, Version::V11, Version::V12, Version::V13, Version::V14, Version::V15];

/// xorshift64*.
fn next(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

#[test]
fn random_actions_and_matches_never_panic() {
    let mut s = 0x1234_5678_9abc_def1;
    let mut accepted = 0;
    for round in 0..200_000 {
        let len = 8 * (1 + next(&mut s) as usize % 6);
        let mut buf: Vec<u8> = (0..len).map(|_| (next(&mut s) >> 40) as u8).collect();
        if round % 2 == 0 && len >= 16 {
            // A Nicira action of a likely type that fills the buffer.
            let kind = (next(&mut s) % 52) as u8;
            buf[..10].copy_from_slice(&[255, 255, 0, len as u8, 0, 0, 0x23, 0x20, 0, kind]);
        } else {
            buf[..4].copy_from_slice(&[0, (next(&mut s) % 30) as u8, 0, len as u8]);
        }
        let version = VERSIONS[next(&mut s) as usize % VERSIONS.len()];
        accepted += usize::from(decode_actions(version, &buf).is_ok());
        _ = decode_oxm_list(&buf);
        _ = decode_match(version, &buf);
        _ = decode_nx_match(&buf);
        if let Ok(list) = decode_instructions(version, &buf) {
            let mut out = vec![];
            encode_instructions(version, &list, &mut out);
            let again = decode_instructions(version, &out).unwrap();
            let mut twice = vec![];
            encode_instructions(version, &again, &mut twice);
            assert_eq!(out, twice, "{version:?} {list:?}");
        }
    }
    assert!(accepted > 100, "{accepted}");
}
