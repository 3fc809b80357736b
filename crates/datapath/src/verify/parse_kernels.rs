//! A corpus for parse kernels, and their comparison with the scalar parser.

use crate::batch::columns::Columns;
use crate::batch::keys::{Keys, Layout, key_of};
use crate::cpu::Level;
use crate::parse::job::{ALL_BITS, Matched, ParseJob};
use crate::parse::profile::{Family, PROBE_AT, PROFILES, Profile, ProfileStats};
use crate::parse::scalar::parse;
use flow::Key;
use packet::{HeapPool, Pool, VECTOR};
use telemetry::Drop;

/// A frame that the profile claims. Its free bytes come from `seed`; `spare` bytes follow it.
pub(crate) fn frame(p: &Profile, seed: u64, spare: usize) -> Vec<u8> {
    let mut x = seed;
    let mut d: Vec<u8> = (0..p.least as usize + spare).map(|_| next(&mut x)).collect();
    for i in 0..16 {
        let (mask, value) = (p.probe_mask[i], p.probe[i]);
        d[PROBE_AT + i] = d[PROBE_AT + i] & !mask | value;
    }
    if p.family != Family::Arp {
        let inside = p.end_least - p.end_base + next(&mut x) as u16 % (spare as u16 + 1);
        d[p.len_at as usize..][..2].copy_from_slice(&inside.to_be_bytes());
    }
    if p.flags_mask != 0 {
        d[p.flags_at as usize] = 0x50 | next(&mut x) & 0x0f;
    }
    d
}

fn next(x: &mut u64) -> u8 {
    *x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*x >> 56) as u8
}

/// The result of parsing a vector: key, layout and `same` of each packet (None: dropped), and how
/// many packets profiles claimed.
pub(crate) type Parsed = (Vec<Option<(Key, Layout, bool)>>, usize);

/// Parses frames as one vector.
fn parse_all(
    frames: &[Vec<u8>],
    matched: &Matched,
    level: Level,
    profile_stats: &mut ProfileStats,
) -> Parsed {
    let pool = HeapPool::new();
    let packets: Vec<_> = frames.iter().filter_map(|f| pool.packet(f)).collect();
    assert_eq!(packets.len(), frames.len().min(VECTOR), "frames of a vector fit buffers");
    let (mut keys, mut columns) = (Keys::new(), Columns::new());
    let mut failed = Vec::new();
    let claimed = ParseJob {
        packets: &packets,
        range: 0..packets.len(),
        some: None,
        since: 0,
        in_port: 0x1234,
        vlan_limit: 2,
        matched,
        keys: &mut keys,
        columns: &mut columns,
        profile_stats,
        failed: &mut failed,
    }
    .run(level);
    let all = (0..packets.len()).map(|i| {
        let key = key_of(&keys.line.0[i], &keys.ext[i], keys.have[i]);
        let dropped = failed.contains(&(i as u8, Drop::Truncated));
        assert!(dropped || columns.len[i] as usize == frames[i].len());
        (!dropped).then_some((key, columns.layout[i], columns.same[i]))
    });
    let all = all.collect();
    pool.free(&packets);
    (all, claimed)
}

/// The results of the scalar parser for each frame alone.
fn expected(frames: &[Vec<u8>], matched: &Matched) -> Vec<Option<(Key, Layout, bool)>> {
    let mut last: Option<Key> = None;
    let each = frames.iter().map(|f| {
        let (mut line, mut ext) = ([0; 8], [[0; 8]; 3]);
        let layout = parse(f, 0x1234, 2, &mut line, &mut ext);
        let key = layout.map(|l| key_of(&line, &ext, l.ext));
        let counts = layout.is_some_and(|l| l.ext == 0 || !matched.ext);
        let differs = |before: &Key, key: &Key| {
            (0..8).any(|w| (before.words[w] ^ key.words[w]) & matched.line[w] != 0)
        };
        let same = counts && last.zip(key).is_some_and(|(before, key)| !differs(&before, &key));
        last = key.filter(|_| counts);
        Some((key?, layout?, same))
    });
    each.collect()
}

/// True if a level agrees with the scalar parser about frames of every profile, cut at every
/// length.
pub(crate) fn agrees(level: Level) -> bool {
    PROFILES.iter().flat_map(|p| [(p, &ALL_BITS), (p, &FEW_BITS)]).all(|(p, matched)| {
        let frames = cut(p);
        let (did, _) = parse_all(&frames, matched, level, &mut ProfileStats::default());
        did == expected(&frames, matched)
    })
}

/// Ethernet types, and a few bits of addresses and ports.
const FEW_BITS: Matched = Matched { line: [0, 0xff << 32, 3, 5, 0, 0, 0, !0], ext: false };

/// A frame of a profile, cut at every length.
fn cut(p: &Profile) -> Vec<Vec<u8>> {
    let whole = frame(p, p.index as u64 + 1, 20);
    (0..=whole.len()).map(|n| whole[..n].to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels() -> impl Iterator<Item = Level> {
        Level::ALL.into_iter().filter(|l| l.detected())
    }

    /// Frames of profile `kind` in turn, or of one profile.
    fn corpus(n: usize, kind: Option<usize>) -> Vec<Vec<u8>> {
        let each =
            |i: usize| frame(&PROFILES[kind.unwrap_or(i % PROFILES.len())], i as u64, i % 30);
        (0..n).map(each).collect()
    }

    #[test]
    fn every_level_agrees_on_frames_cut_at_every_length() {
        for (level, p) in levels().flat_map(|l| PROFILES.iter().map(move |p| (l, p))) {
            for matched in [&ALL_BITS, &FEW_BITS] {
                let frames = cut(p);
                let (got, _) = parse_all(&frames, matched, level, &mut ProfileStats::default());
                for (n, (got, should)) in got.iter().zip(expected(&frames, matched)).enumerate() {
                    assert_eq!(*got, should, "{}, profile {}, {n} bytes", level.name(), p.index);
                }
            }
        }
    }

    #[test]
    fn vectors_of_every_size_and_what_kernels_must_claim() {
        for level in levels() {
            let mut profile_stats = ProfileStats::default();
            for n in 0..=VECTOR {
                let frames = corpus(n, None);
                let (got, claimed) = parse_all(&frames, &ALL_BITS, level, &mut profile_stats);
                assert_eq!(got, expected(&frames, &ALL_BITS), "{} {n}", level.name());
                assert_eq!(claimed, if level == Level::Scalar { 0 } else { n });
            }
        }
    }

    #[test]
    fn no_kernel_claims_a_tcp_header_of_wrong_length() {
        let kinds = || PROFILES.iter().filter(|p| p.flags_mask != 0);
        assert_eq!(kinds().count(), 4);
        for (level, p) in levels().flat_map(|l| kinds().map(move |p| (l, p))) {
            // Each length that a header can name, of packets that have room for 40 bytes.
            let named = |n: u8| {
                let mut d = frame(p, 1, 20);
                d[p.flags_at as usize] = n << 4;
                let inside = p.end_least - p.end_base + 20;
                d[p.len_at as usize..][..2].copy_from_slice(&inside.to_be_bytes());
                d
            };
            let frames: Vec<Vec<u8>> = (0..16).map(named).collect();
            let (got, claimed) = parse_all(&frames, &ALL_BITS, level, &mut ProfileStats::default());
            assert_eq!(got, expected(&frames, &ALL_BITS), "{}, profile {}", level.name(), p.index);
            let fit = 10 - 5 + 1;
            assert_eq!(claimed, if level == Level::Scalar { 0 } else { fit });
            let with_ports = |r: &Option<(Key, _, _)>| {
                r.is_some_and(|(key, ..)| key.get::<1>(flow::at::FLAGS)[0] & flow::flag::L4 != 0)
            };
            assert_eq!(got.iter().filter(|r| with_ports(r)).count(), fit);
        }
    }

    #[test]
    fn every_position_of_an_odd_packet() {
        for level in levels() {
            for (kind, odd) in [(0, vec![0; 13]), (1, vec![0xff; 100]), (4, vec![0x45; 41])] {
                let frames = corpus(VECTOR, Some(kind));
                for at in 0..VECTOR {
                    let mut frames = frames.clone();
                    frames[at] = odd.clone();
                    let (got, claimed) =
                        parse_all(&frames, &ALL_BITS, level, &mut ProfileStats::default());
                    assert_eq!(got, expected(&frames, &ALL_BITS), "{} {at}", level.name());
                    assert_eq!(claimed, if level == Level::Scalar { 0 } else { VECTOR - 1 });
                }
            }
        }
    }

    #[test]
    fn runs_of_equal_keys_are_seen() {
        for level in levels() {
            for p in &PROFILES {
                let mut frames = vec![frame(p, 1, 6); 7];
                frames[3] = frame(p, 2, 6);
                let (got, _) = parse_all(&frames, &ALL_BITS, level, &mut ProfileStats::default());
                assert_eq!(got, expected(&frames, &ALL_BITS), "{}", level.name());
                let same = got.iter().flatten().filter(|(_, _, same)| *same).count();
                assert_eq!(same, if p.family == Family::V4 { 4 } else { 0 });
            }
        }
    }

    /// The table that AVX-512 permutes by, done byte by byte.
    #[test]
    fn picks_make_the_same_line() {
        for p in PROFILES.iter().filter(|p| p.family != Family::V6) {
            let d = frame(p, 7, 9);
            let mut line = [0u8; 64];
            for (i, b) in line.iter_mut().enumerate() {
                let picked = if p.pick[i] & 0x80 != 0 { 0 } else { d[p.pick[i] as usize] };
                *b = picked & p.and[i] | p.or[i];
            }
            line[flow::at::IN_PORT..flow::at::IN_PORT + 2].copy_from_slice(&[0x12, 0x34]);
            let want = crate::parse::scalar::extract(&d, 0x1234, 2).unwrap();
            assert_eq!(line[..], want.bytes()[..64], "profile {}", p.index);
        }
    }
}
