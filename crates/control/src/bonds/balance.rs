//! Which interface of a bond has which of its 256 buckets, and how load moves between them.

use datapath::BOND_BUCKETS;
use openflow::OfPort;

/// Less difference than this between two interfaces, in bytes per interval, is left alone: about
/// 1 Mbit/s (as ovs-vswitchd).
const OVERLOAD_BYTES_MIN: u64 = 100_000;
/// Less difference than this part of the lesser load is left alone, too.
const OVERLOAD_SHARE: u64 = 32;
/// A move that brings less than this part of what would be ideal is not made.
const GAIN_SHARE: u64 = 10;

/// What a bucket sent lately.
#[derive(Debug, PartialEq, Eq)]
pub struct Load {
    pub bucket: u8,
    pub bytes: u64,
}

/// A bucket that moved.
#[derive(Debug, PartialEq, Eq)]
pub struct Shift {
    pub bucket: u8,
    pub bytes: u64,
    pub from: OfPort,
    pub to: OfPort,
    /// What the first interface sends now, and the second.
    pub left: u64,
    pub arrived: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    member: Option<OfPort>,
    /// Bytes of late: half of the older ones are forgotten at each rebalancing.
    bytes: u64,
    /// The datapath's counter at the last look.
    seen: u64,
}

/// The buckets of a bond.
#[derive(Debug)]
pub struct Buckets([Bucket; BOND_BUCKETS]);

impl Default for Buckets {
    fn default() -> Self {
        Buckets([Bucket::default(); BOND_BUCKETS])
    }
}

impl Buckets {
    /// The interface of each bucket, in order.
    pub fn members(&self) -> impl Iterator<Item = Option<OfPort>> + '_ {
        self.0.iter().map(|b| b.member)
    }

    /// The datapath's counters of bytes.
    pub fn count(&mut self, total: impl Fn(u8) -> u64) {
        for (i, b) in (0..=u8::MAX).zip(&mut self.0) {
            let now = total(i);
            b.bytes += now.saturating_sub(std::mem::replace(&mut b.seen, now));
        }
    }

    /// What an interface's buckets sent lately, those with a kilobyte or more.
    pub fn loads(&self, member: OfPort) -> impl Iterator<Item = Load> + '_ {
        let own = (0..=u8::MAX).zip(&self.0).filter(move |(_, b)| b.member == Some(member));
        own.filter(|(_, b)| b.bytes >= 1024).map(|(bucket, b)| Load { bucket, bytes: b.bytes })
    }

    /// How many buckets an interface has, and the bytes that they sent lately.
    pub fn of(&self, member: OfPort) -> (usize, u64) {
        let own = || self.0.iter().filter(|b| b.member == Some(member));
        (own().count(), own().map(|b| b.bytes).sum())
    }

    /// Gives a bucket to an interface.
    pub fn migrate(&mut self, bucket: u8, to: OfPort) {
        self.0[usize::from(bucket)].member = Some(to);
    }

    /// Gives the buckets of interfaces that are not enabled to those that are, and its share to one
    /// that has none: those that carry least, of the interface that has most.
    pub fn assign(&mut self, enabled: &[OfPort]) {
        let mut have: Vec<(usize, OfPort)> = enabled
            .iter()
            .map(|p| (self.0.iter().filter(|b| b.member == Some(*p)).count(), *p))
            .collect();
        for b in &mut self.0 {
            if b.member.is_none_or(|p| !enabled.contains(&p)) {
                let least = have.iter_mut().min();
                b.member = least.map(|(n, p)| {
                    *n += 1;
                    *p
                });
            }
        }
        while let (Some((0, new)), Some((most, rich))) =
            (have.iter().min().copied(), have.iter().max().copied())
            && most > 1
        {
            let share = BOND_BUCKETS / enabled.len();
            let mut of_rich: Vec<usize> =
                (0..BOND_BUCKETS).filter(|i| self.0[*i].member == Some(rich)).collect();
            of_rich.sort_by_key(|i| self.0[*i].bytes);
            let moved = share.min(most / 2).max(1);
            of_rich[..moved].iter().for_each(|i| self.0[*i].member = Some(new));
            for (n, p) in &mut have {
                match *p {
                    p if p == new => *n += moved,
                    p if p == rich => *n -= moved,
                    _ => {}
                }
            }
        }
    }

    /// Moves load from the interfaces that send most to those that send least.
    pub fn rebalance(&mut self, enabled: &[OfPort]) -> Vec<Shift> {
        let load = |all: &Self, p: OfPort| -> u64 {
            all.0.iter().filter(|b| b.member == Some(p)).map(|b| b.bytes).sum()
        };
        let mut loads: Vec<(u64, OfPort)> = enabled.iter().map(|p| (load(self, *p), *p)).collect();
        let mut out = Vec::new();
        // A bucket moves once.
        let mut moved = [false; BOND_BUCKETS];
        while loads.len() > 1 {
            loads.sort_unstable();
            let ((least, to), (most, from)) = (loads[0], loads[loads.len() - 1]);
            if most - least < OVERLOAD_BYTES_MIN.max(least / OVERLOAD_SHARE) {
                break;
            }
            let chosen = self.choose(from, (most - least) / 2, &moved);
            if chosen.is_empty() {
                loads.pop();
                continue;
            }
            let last = loads.len() - 1;
            for i in chosen {
                let bytes = self.0[i].bytes;
                (self.0[i].member, moved[i]) = (Some(to), true);
                loads[last].0 -= bytes;
                loads[0].0 += bytes;
                let (left, arrived) = (loads[last].0, loads[0].0);
                out.push(Shift { bucket: i as u8, bytes, from, to, left, arrived });
            }
        }
        self.0.iter_mut().for_each(|b| b.bytes /= 2);
        out
    }

    /// Buckets of an interface whose move brings it closer to `ideal` bytes less; the heaviest that
    /// fit, or the lightest if none does.
    fn choose(&self, from: OfPort, ideal: u64, moved: &[bool; BOND_BUCKETS]) -> Vec<usize> {
        let own = |i: &usize| {
            let b = &self.0[*i];
            b.member == Some(from) && b.bytes > 0 && !moved[*i]
        };
        let mut own: Vec<usize> = (0..BOND_BUCKETS).filter(own).collect();
        own.sort_by_key(|i| std::cmp::Reverse(self.0[*i].bytes));
        // Where one bucket is all of the load, its move changes nothing.
        let (Some(lightest), true) = (own.last().copied(), own.len() > 1) else { return vec![] };
        let threshold = ideal / GAIN_SHARE;
        let (mut chosen, mut sum) = (Vec::new(), 0);
        for i in own {
            let bytes = self.0[i].bytes;
            if sum + bytes <= ideal {
                chosen.push(i);
                sum += bytes;
            }
            if ideal - sum < threshold {
                break;
            }
        }
        if chosen.is_empty() {
            sum = self.0[lightest].bytes;
            chosen.push(lightest);
        }
        // How much the lesser of both loads grows.
        let gain = sum.min((2 * ideal).saturating_sub(sum));
        if gain > 0 && gain >= threshold { chosen } else { vec![] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(b: &Buckets, ports: &[OfPort]) -> Vec<usize> {
        ports.iter().map(|p| b.members().filter(|m| *m == Some(*p)).count()).collect()
    }

    #[test]
    fn interfaces_share_and_take_over() {
        let mut b = Buckets::default();
        b.assign(&[1, 2]);
        assert_eq!(counts(&b, &[1, 2]), [128, 128]);
        let before: Vec<_> = b.members().collect();
        b.assign(&[2]);
        assert_eq!(counts(&b, &[1, 2]), [0, 256]);
        b.assign(&[1, 2]);
        assert_eq!(counts(&b, &[1, 2]), [128, 128]);
        b.assign(&[1, 2, 3]);
        assert!(counts(&b, &[1, 2, 3]).iter().all(|n| *n >= 64), "{:?}", counts(&b, &[1, 2, 3]));
        b.assign(&[]);
        assert!(b.members().all(|m| m.is_none()));
        assert_eq!(before.len(), 256);
    }

    /// Buckets that sent these bytes, all by interface 1 of two.
    fn loaded(bytes: &[u64]) -> Buckets {
        let mut b = Buckets::default();
        b.assign(&[1]);
        let bytes = bytes.to_vec();
        b.count(|i| bytes.get(usize::from(i)).copied().unwrap_or(0));
        b
    }

    #[test]
    fn load_moves_until_it_is_even() {
        let mut b = loaded(&[400_000; 10]);
        let shifts = b.rebalance(&[1, 2]);
        assert_eq!(shifts.len(), 5, "{shifts:?}");
        let last = shifts.last().unwrap();
        assert_eq!((last.from, last.to, last.left, last.arrived), (1, 2, 2_000_000, 2_000_000));
        assert_eq!(b.rebalance(&[1, 2]), [], "it is even");
    }

    #[test]
    fn little_or_undividable_load_stays() {
        assert_eq!(loaded(&[9_000; 10]).rebalance(&[1, 2]), []);
        assert_eq!(loaded(&[9_000_000]).rebalance(&[1, 2]), []);
        // The lightest goes where none fits.
        let shifts = loaded(&[9_000_000, 8_000_000]).rebalance(&[1, 2]);
        assert_eq!(shifts.iter().map(|s| s.bucket).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn old_load_is_forgotten() {
        let mut b = loaded(&[4096]);
        assert_eq!(b.loads(1).collect::<Vec<_>>(), [Load { bucket: 0, bytes: 4096 }]);
        (0..3).for_each(|_| drop(b.rebalance(&[1])));
        assert_eq!(b.loads(1).count(), 0);
    }
}
