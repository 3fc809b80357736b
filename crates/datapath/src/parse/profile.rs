//! Profiles: the headers of common kinds of packets, as masks and permutations.
//!
//! A profile claims a packet by its bytes 12..28; at most one profile claims a packet. Its lengths
//! are checked after that. A packet that no profile claims, or whose lengths are invalid, goes to
//! the scalar parser.

use crate::batch::keys::{EXT1, Layout};
use crate::parse::scalar::{ARP, ICMP, IPV4, IPV6, TCP, UDP};
use flow::{at, flag};

/// The layer-3 half of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// IPv4 without options and fragments.
    V4,
    /// IPv6 without extension headers.
    V6,
    /// Ethernet/IPv4 ARP.
    Arp,
}

/// In a permutation: a byte that no byte of the packet goes to.
const NONE: u8 = 0x80;
/// Where the probed bytes start.
pub(crate) const PROBE_AT: usize = 12;
/// The shortest frame of any profile, bytes.
pub(crate) const PROFILE_BYTES_MIN: usize = 42;

/// The headers of one kind of packet. All fields are about key line 0, except `family`, which says
/// what the other lines hold.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Profile {
    /// Which bits of bytes 12..28 make a packet one of this kind, and their values.
    pub probe_mask: [u8; 16],
    pub probe: [u8; 16],
    /// Key bytes 0..16 are packet bytes 0..16 under this mask.
    pub keep: [u8; 16],
    /// Key bytes 16..32 are a permutation of the 16 packet bytes at `window`, and of those at 12.
    pub from_window: [u8; 16],
    pub from_probe: [u8; 16],
    /// All of line 0: which packet byte (or [`NONE`]), which of its bits, and constant bits.
    pub pick: [u8; 64],
    pub and: [u8; 64],
    pub or: [u8; 64],
    pub window: u16,
    /// Where the TCP flags are in the packet, and which bits they have (0: the profile has none).
    pub flags_at: u16,
    pub flags_mask: u16,
    /// Shortest frame, bytes.
    pub least: u16,
    /// The datagram ends at `end_base` plus the 16-bit number at `len_at`, and not before
    /// `end_least`.
    pub len_at: u16,
    pub end_base: u16,
    pub end_least: u16,
    /// The layout, except for its end.
    pub layout: Layout,
    pub family: Family,
    /// The profile's index in [`PROFILES`].
    pub index: u8,
}

/// Number of profiles.
pub(crate) const PROFILES_COUNT: usize = 12;

/// All profiles.
pub(crate) static PROFILES: [Profile; PROFILES_COUNT] = {
    let mut all = [profile(0, false, Family::V4, UDP); PROFILES_COUNT];
    let mut n = 0;
    let mut tag = 0;
    while tag < 2 {
        let kinds = [
            (Family::V4, UDP),
            (Family::V4, TCP),
            (Family::V4, ICMP),
            (Family::V6, UDP),
            (Family::V6, TCP),
            (Family::Arp, 0),
        ];
        let mut k = 0;
        while k < kinds.len() {
            all[n] = profile(n as u8, tag == 1, kinds[k].0, kinds[k].1);
            n += 1;
            k += 1;
        }
        tag += 1;
    }
    all
};

const fn profile(index: u8, tagged: bool, family: Family, proto: u8) -> Profile {
    let l3: usize = if tagged { 18 } else { 14 };
    let (eth_type, header) = match family {
        Family::V4 => (IPV4, 20),
        Family::V6 => (IPV6, 40),
        Family::Arp => (ARP, 28),
    };
    let l4_bytes = match (family, proto) {
        (Family::Arp, _) => 0,
        (_, TCP) => 20,
        _ => 8,
    };
    let l4 = l3 + header;
    let arp = matches!(family, Family::Arp);
    let mut p = Profile {
        probe_mask: [0; 16],
        probe: [0; 16],
        keep: [0; 16],
        from_window: [NONE; 16],
        from_probe: [NONE; 16],
        pick: [NONE; 64],
        and: [0xff; 64],
        or: [0; 64],
        window: (l3
            + match family {
                Family::V4 => 8,
                Family::V6 => 32,
                Family::Arp => 12,
            }) as u16,
        flags_at: 0,
        flags_mask: 0,
        least: (l4 + l4_bytes) as u16,
        len_at: match family {
            Family::V4 => l3 as u16 + 2,
            Family::V6 => l3 as u16 + 4,
            Family::Arp => 0,
        },
        end_base: if matches!(family, Family::V6) { l4 } else { l3 } as u16,
        end_least: (l4 + l4_bytes) as u16,
        layout: Layout {
            l3: l3 as u16,
            l4: if arp { 0 } else { l4 as u16 },
            end: 0,
            ext: if matches!(family, Family::V4) { 0 } else { EXT1 },
            sane: true,
        },
        family,
        index,
    };
    p = probed(p, tagged, l3, eth_type, family, proto);
    p = picked(p, tagged, l3, l4, family, proto);
    if proto == TCP {
        p.flags_at = l4 as u16 + 12;
        p.flags_mask = u16::from_ne_bytes([0x0f, 0xff]);
    }
    windows(p)
}

/// Sets `probe_mask` and `probe`, and the constants that follow from them.
const fn probed(
    mut p: Profile,
    tagged: bool,
    l3: usize,
    eth_type: u16,
    family: Family,
    proto: u8,
) -> Profile {
    let base = PROBE_AT;
    let kind = eth_type.to_be_bytes();
    let mut i = 0;
    while i < 2 {
        p = expect(p, l3 - 2 + i - base, 0xff, kind[i]);
        p.or[at::ETH_TYPE + i] = kind[i];
        if tagged {
            p = expect(p, i, 0xff, [0x81, 0x00][i]);
        }
        i += 1;
    }
    match family {
        Family::V4 => {
            p = expect(p, l3 - base, 0xff, 0x45);
            // Neither "more fragments" nor an offset.
            p = expect(p, l3 + 6 - base, 0x3f, 0);
            p = expect(p, l3 + 7 - base, 0xff, 0);
            p = expect(p, l3 + 9 - base, 0xff, proto);
        }
        Family::V6 => p = expect(p, l3 + 6 - base, 0xff, proto),
        Family::Arp => {
            // Ethernet, IPv4, address lengths 6 and 4, an operation below 256.
            let head = [0, 1, 8, 0, 6, 4, 0];
            let mut i = 0;
            while i < head.len() {
                p = expect(p, l3 + i - base, 0xff, head[i]);
                i += 1;
            }
        }
    }
    if !matches!(family, Family::Arp) {
        p.or[at::PROTO] = proto;
        p.or[at::FLAGS] = flag::L4;
    }
    p
}

const fn expect(mut p: Profile, i: usize, mask: u8, value: u8) -> Profile {
    p.probe_mask[i] = mask;
    p.probe[i] = value;
    p
}

/// Sets `pick`: which packet byte each byte of line 0 comes from.
const fn picked(
    mut p: Profile,
    tagged: bool,
    l3: usize,
    l4: usize,
    family: Family,
    proto: u8,
) -> Profile {
    p = copy(p, 0, 0, 12);
    if tagged {
        p = copy(p, at::VLAN, 14, 2);
        p.or[at::VLAN] = 0x10;
    }
    match family {
        Family::V4 => {
            p = copy(p, at::IP_SRC, l3 + 12, 8);
            p = copy(p, at::TOS, l3 + 1, 1);
            p = copy(p, at::TTL, l3 + 8, 1);
        }
        // The traffic class and the flow label are not on byte boundaries: see `line1`.
        Family::V6 => p = copy(p, at::TTL, l3 + 7, 1),
        Family::Arp => {
            p = copy(p, at::IP_SRC, l3 + 14, 4);
            p = copy(p, at::IP_DST, l3 + 24, 4);
            p = copy(p, at::PROTO, l3 + 7, 1);
            return p;
        }
    }
    match proto {
        ICMP => {
            p = copy(p, at::TP_SRC + 1, l4, 1);
            copy(p, at::TP_DST + 1, l4 + 1, 1)
        }
        TCP => {
            p = copy(p, at::TP_SRC, l4, 4);
            p = copy(p, at::TCP_FLAGS, l4 + 12, 2);
            p.and[at::TCP_FLAGS] = 0x0f;
            p
        }
        _ => copy(p, at::TP_SRC, l4, 4),
    }
}

const fn copy(mut p: Profile, to: usize, from: usize, n: usize) -> Profile {
    let mut i = 0;
    while i < n {
        p.pick[to + i] = (from + i) as u8;
        i += 1;
    }
    p
}

/// Sets the permutation for kernels that permute 16 bytes at a time.
const fn windows(mut p: Profile) -> Profile {
    let window = p.window as usize;
    assert!(window + 16 <= p.least as usize && p.least as usize >= PROFILE_BYTES_MIN);
    let mut i = 0;
    while i < 16 {
        if p.pick[i] != NONE {
            assert!(p.pick[i] as usize == i, "key bytes 0..16 stay where they are");
            p.keep[i] = 0xff;
        }
        let from = p.pick[16 + i] as usize;
        if from >= window && from < window + 16 {
            p.from_window[i] = (from - window) as u8;
        } else if from >= PROBE_AT && from < PROBE_AT + 16 {
            p.from_probe[i] = (from - PROBE_AT) as u8;
        } else {
            assert!(from == NONE as usize, "every byte is in a window");
        }
        i += 1;
    }
    p
}

/// The profile that claims a packet whose bytes 12..28 are `probe`.
pub(crate) fn find(probe: &[u8; 16]) -> Option<&'static Profile> {
    let probe = u128::from_ne_bytes(*probe);
    PROFILES
        .iter()
        .find(|p| probe & u128::from_ne_bytes(p.probe_mask) == u128::from_ne_bytes(p.probe))
}

/// Profiles that are tried on a port's packets before all are searched.
const PROFILES_TRIED_MAX: usize = 4;
/// Packets of a port after which its profiles are ranked again.
const STATS_PACKETS_MIN: u32 = 4096;

/// Which profiles a port's packets matched, and therefore are tried first.
#[derive(Clone)]
pub(crate) struct ProfileStats {
    /// The profiles that are tried first, the most frequent one first.
    pub tried: [&'static Profile; PROFILES_TRIED_MAX],
    /// Packets that each profile claimed; halved at each ranking.
    pub claimed: [u32; PROFILES_COUNT],
    seen: u32,
}

impl Default for ProfileStats {
    fn default() -> Self {
        let tried = std::array::from_fn(|i| &PROFILES[i]);
        ProfileStats { tried, claimed: [0; PROFILES_COUNT], seen: 0 }
    }
}

impl ProfileStats {
    /// Counts parsed packets, and ranks the profiles if they are enough.
    pub fn judge(&mut self, packets: usize) {
        self.seen += packets as u32;
        if self.seen < STATS_PACKETS_MIN {
            return;
        }
        self.seen = 0;
        let mut order: [u8; PROFILES_COUNT] = std::array::from_fn(|i| i as u8);
        order.sort_by_key(|i| std::cmp::Reverse(self.claimed[*i as usize]));
        self.tried = std::array::from_fn(|i| &PROFILES[order[i] as usize]);
        self.claimed.iter_mut().for_each(|c| *c /= 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_exclude_each_other() {
        for (i, a) in PROFILES.iter().enumerate() {
            assert_eq!(a.index as usize, i);
            assert_eq!(find(&a.probe).map(|p| p.index), Some(a.index));
            for b in &PROFILES[i + 1..] {
                let differ =
                    |n: usize| (a.probe[n] ^ b.probe[n]) & a.probe_mask[n] & b.probe_mask[n] != 0;
                assert!((0..16).any(differ), "{i} and {}", b.index);
            }
        }
    }

    #[test]
    fn a_study_puts_the_most_frequent_first() {
        let mut s = ProfileStats::default();
        s.claimed[7] = 3000;
        s.claimed[5] = 1096;
        s.judge(4095);
        assert_eq!(s.tried[0].index, 0);
        s.judge(1);
        assert_eq!((s.tried[0].index, s.tried[1].index), (7, 5));
        assert_eq!(s.claimed[7], 1500);
    }
}
