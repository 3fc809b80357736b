//! Segments of a TCP connection that follow each other, given to the kernel as one frame. The
//! kernel, and the host that receives the frame, then do their work once instead of once per
//! segment. The conditions are those of Linux's GRO: cutting the frame again ([`crate::gso`])
//! makes exactly the segments that were merged.

use crate::checksum::{Sum, internet, pseudo_v4, pseudo_v6};
use crate::vnet::{GSO_TCP_V4, GSO_TCP_V6, VNET_LEN, VnetHeader};
use crate::{ETH_LEN, IPV4_LEN, IPV6_LEN, Ipv4, Ipv6, TCP_LEN, Tcp, tcp_flags};
use std::ops::Range;

/// Bytes of an IP packet, at most: its length has 16 bits.
const IP_BYTES_MAX: usize = 0xffff;
/// Bytes of the longest headers of a merged frame: Ethernet, IPv6 without extension headers, TCP
/// with all its options.
const HEADER_BYTES_MAX: usize = ETH_LEN + IPV6_LEN + 60;
/// Bits that a segment in front of others may have.
const FIRST_FLAGS: u16 = tcp_flags::ACK | tcp_flags::ECE;
/// Bits that the last segment may have besides.
const LAST_FLAGS: u16 = tcp_flags::PSH | tcp_flags::FIN;
/// Offset of the checksum in a TCP header.
const TCP_SUM: usize = 16;

/// The headers of a frame made of several segments.
pub struct Merged {
    /// How many segments it has: at least two.
    pub segments: usize,
    /// Bytes of each segment's headers, which are replaced by the frame's.
    pub header_len: usize,
    /// The header of virtio-net, then the frame's headers.
    bytes: [u8; VNET_LEN + HEADER_BYTES_MAX],
}

impl Merged {
    /// What is sent in front of the segments' payloads.
    pub fn headers(&self) -> &[u8] {
        &self.bytes[..VNET_LEN + self.header_len]
    }

    /// Merges the first of these frames with as many of the following ones as possible; None: it
    /// cannot be merged with the second one.
    ///
    /// `frames`: each with whether its checksums are known to be right; else they are checked.
    pub fn new<'a>(frames: impl IntoIterator<Item = (&'a [u8], bool)>) -> Option<Merged> {
        let mut frames = frames.into_iter();
        let (first, first_is_sound) = frames.next()?;
        let first = Segment::read(first)?;
        let (mut last, mut segments, mut len) = (first, 1, first.bytes.len() - ETH_LEN);
        for (frame, next_is_sound) in frames {
            let Some(next) = first.follower(frame, (segments, last)) else { break };
            let longer = len + next.payload();
            // Whoever sees a segment that was damaged on its way has to see that it was.
            let first_is_sound = segments > 1 || first_is_sound || first.is_sound();
            let sound = first_is_sound && (next_is_sound || next.is_sound());
            if longer > IP_BYTES_MAX || !sound {
                break;
            }
            (last, segments, len) = (next, segments + 1, longer);
        }
        (segments > 1).then(|| first.headers_of(segments, len, last))?
    }
}

/// A segment of TCP in an untagged frame, which has payload.
#[derive(Clone, Copy)]
struct Segment<'a> {
    bytes: &'a [u8],
    v6: bool,
    /// Where the TCP header is.
    l4: usize,
    /// Where the payload is.
    body: usize,
    seq: u32,
    flags: u16,
}

impl<'a> Segment<'a> {
    /// Reads a frame; None: it is not one of those that may be merged.
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (l3, v6) = match bytes.get(12..ETH_LEN)? {
            [8, 0] => (bytes.get(ETH_LEN..)?, false),
            [0x86, 0xdd] => (bytes.get(ETH_LEN..)?, true),
            _ => return None,
        };
        let l4 = ETH_LEN + if v6 { IPV6_LEN } else { IPV4_LEN };
        match v6 {
            false => {
                let ip = Ipv4::new(l3)?;
                let whole = usize::from(ip.total_len()) == l3.len() && !ip.is_fragment();
                (whole && ip.header_len() == IPV4_LEN && ip.proto() == crate::IP_TCP)
                    .then_some(())?;
            }
            true => {
                let ip = Ipv6::new(l3)?;
                let whole = usize::from(ip.payload_len()) + IPV6_LEN == l3.len();
                (whole && ip.next() == crate::IP_TCP).then_some(())?;
            }
        }
        let tcp = Tcp::new(&bytes[l4..])?;
        let body = l4 + tcp.header_len();
        let valid = tcp.header_len() >= TCP_LEN && body < bytes.len();
        let (seq, flags) = (tcp.seq(), tcp.flags());
        valid.then_some(Segment { bytes, v6, l4, body, seq, flags })
    }

    /// Bytes of payload.
    fn payload(&self) -> usize {
        self.bytes.len() - self.body
    }

    /// The frame as the segment behind `last`, the segment with index `i - 1`; None: it is not that
    /// one.
    fn follower(&self, frame: &'a [u8], (i, last): (usize, Segment<'a>)) -> Option<Segment<'a>> {
        let next = Segment::read(frame)?;
        let follows = last.payload() == self.payload()
            && last.flags == self.flags
            && self.flags & !FIRST_FLAGS == 0
            && next.flags & !LAST_FLAGS == self.flags
            && next.payload() <= self.payload()
            && next.seq == last.seq.wrapping_add(last.payload() as u32)
            && (next.v6, next.body) == (self.v6, self.body)
            && self.same_parts().iter().all(|r| self.bytes[r.clone()] == frame[r.clone()])
            && (self.v6 || next.id() == self.id().wrapping_add(i as u16));
        follows.then_some(next)
    }

    /// The headers' parts that all segments of a frame have in common: everything but lengths,
    /// identification, sequence number, flags and checksums.
    fn same_parts(&self) -> [Range<usize>; 6] {
        let (l3, l4) = (ETH_LEN, self.l4);
        let [begin, middle, end] = match self.v6 {
            false => [0..l3 + 2, l3 + 6..l3 + 10, l3 + 12..l4 + 4],
            true => [0..l3 + 4, l3 + 6..l3 + 8, l3 + 8..l4 + 4],
        };
        // Acknowledgement and header length; window; urgent pointer and options.
        [begin, middle, end, l4 + 8..l4 + 13, l4 + 14..l4 + 16, l4 + 18..self.body]
    }

    /// The identification of an IPv4 packet.
    fn id(&self) -> u16 {
        u16::from_be_bytes([self.bytes[ETH_LEN + 4], self.bytes[ETH_LEN + 5]])
    }

    /// The sum of the pseudo header with a segment of `len` bytes.
    fn pseudo(&self, len: usize) -> Option<Sum> {
        let l3 = self.bytes.get(ETH_LEN..)?;
        Some(match self.v6 {
            true => {
                let ip = Ipv6::new(l3)?;
                pseudo_v6(&ip.src(), &ip.dst(), crate::IP_TCP, len)
            }
            false => {
                let ip = Ipv4::new(l3)?;
                pseudo_v4(ip.src(), ip.dst(), crate::IP_TCP, len)
            }
        })
    }

    /// True if all its checksums are right.
    fn is_sound(&self) -> bool {
        #[cfg(test)]
        tests::SUMMED.with(|n| n.set(n.get() + 1));
        let (l3, l4) = (&self.bytes[ETH_LEN..self.l4], &self.bytes[self.l4..]);
        (self.v6 || internet(l3) == 0)
            && self.pseudo(l4.len()).is_some_and(|sum| sum.bytes(l4).finish() == 0)
    }

    /// The headers of a frame that begins with this segment, ends with `last`, and whose IP packet
    /// has `len` bytes.
    fn headers_of(&self, segments: usize, len: usize, last: Segment<'_>) -> Option<Merged> {
        let mut merged =
            Merged { segments, header_len: self.body, bytes: [0; VNET_LEN + HEADER_BYTES_MAX] };
        let (vnet, rest) = merged.bytes.split_first_chunk_mut()?;
        let gso = if self.v6 { GSO_TCP_V6 } else { GSO_TCP_V4 };
        let (needs_csum, csum_start, csum_offset) = (true, self.l4, TCP_SUM);
        let header =
            VnetHeader { needs_csum, gso, gso_size: self.payload(), csum_start, csum_offset };
        header.write(self.body, vnet);
        let out = rest.get_mut(..self.body)?;
        out.copy_from_slice(&self.bytes[..self.body]);
        match self.v6 {
            true => Ipv6::new(&mut out[ETH_LEN..])?.set_payload_len((len - IPV6_LEN) as u16),
            false => {
                let mut ip = Ipv4::new(&mut out[ETH_LEN..self.l4])?;
                ip.set_total_len(len as u16);
                ip.fill_checksum();
            }
        }
        let pseudo = self.pseudo(ETH_LEN + len - self.l4)?.fold();
        let mut tcp = Tcp::new(&mut out[self.l4..])?;
        tcp.set_ctl(tcp.ctl() | last.flags);
        tcp.set_checksum(pseudo);
        Some(merged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gso::Plan;
    use std::cell::Cell;

    /// Segments of a burst.
    const BURST: usize = 32;

    thread_local! {
        /// Segments whose checksums were computed.
        pub static SUMMED: Cell<usize> = const { Cell::new(0) };
    }

    fn stream(v6: bool, lens: &[usize]) -> Vec<Vec<u8>> {
        testkit::tcp_stream(v6, u32::MAX - 1000, lens)
    }

    fn merge(frames: &[Vec<u8>]) -> Option<Merged> {
        Merged::new(frames.iter().map(|f| (f.as_slice(), false)))
    }

    /// Cuts what was merged of these frames, as the kernel would.
    fn cut(merged: &Merged, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let (vnet, headers) = merged.headers().split_first_chunk().unwrap();
        let mut whole = headers.to_vec();
        frames[..merged.segments].iter().for_each(|f| whole.extend(&f[merged.header_len..]));
        // The kernel believes the IP header's length and the TCP header's sum.
        let segment = Segment::read(&whole).expect("a whole packet");
        let sum = segment.pseudo(whole.len() - segment.l4).map(Sum::fold);
        assert_eq!(Tcp::new(&whole[segment.l4..]).map(|tcp| tcp.checksum()), sum);
        let plan = Plan::new(&whole, &VnetHeader::read(vnet)).expect("a frame that can be cut");
        let segment = |i| {
            let mut out = vec![0; plan.len(i)];
            plan.write(&whole, i, &mut out).map(|()| out)
        };
        (0..plan.count()).map(|i| segment(i).unwrap()).collect()
    }

    #[test]
    fn cutting_makes_the_same_segments() {
        for v6 in [false, true] {
            for lens in [&[100, 100][..], &[1448, 1448, 1448, 7], &[9000; 8], &[1448; 46]] {
                let frames = stream(v6, lens);
                let merged = merge(&frames).expect("segments that follow each other");
                let most = (IP_BYTES_MAX - 72) / lens[0];
                assert_eq!(merged.segments, lens.len().min(most));
                assert_eq!(cut(&merged, &frames), frames[..merged.segments]);
            }
        }
    }

    #[test]
    fn a_segment_of_another_length_is_the_last_one_or_not_in() {
        let count = |lens: &[usize]| merge(&stream(false, lens)).map_or(1, |m| m.segments);
        assert_eq!(count(&[100, 100, 50, 50]), 3);
        assert_eq!(count(&[100, 100, 101, 100]), 2);
        assert_eq!(count(&[50, 100]), 1);
        assert_eq!(count(&[100]), 1);
    }

    /// Whatever bit differs in any of three segments: what is merged is cut into the same segments,
    /// and a segment whose checksum is wrong is not merged.
    #[test]
    fn every_changed_bit_is_still_there() {
        for v6 in [false, true] {
            let frames = stream(v6, &[40, 40, 40]);
            assert_eq!(merge(&frames).map(|m| m.segments), Some(3));
            for (which, at) in (0..3).flat_map(|w| (0..frames[0].len()).map(move |at| (w, at))) {
                for bit in 0..8 {
                    let mut changed = frames.clone();
                    changed[which][at] ^= 1 << bit;
                    let Some(merged) = merge(&changed) else { continue };
                    assert_eq!(cut(&merged, &changed), changed[..merged.segments], "{which} {at}");
                    assert!(merged.segments <= which, "{which} {at}: its checksum is wrong");
                }
            }
        }
    }

    /// Whichever of a burst's segments are damaged, none is summed more than three times: as the
    /// first one of a frame, and as the one behind another.
    #[test]
    fn a_segment_is_summed_three_times_at_most() {
        let frames = stream(false, &[1000; BURST]);
        for every in 1..BURST {
            let mut frames = frames.clone();
            frames.iter_mut().step_by(every).for_each(|f| f[100] ^= 1);
            SUMMED.set(0);
            let mut at = 0;
            while at < frames.len() {
                at += merge(&frames[at..]).map_or(1, |m| m.segments);
            }
            assert!(SUMMED.get() <= 3 * BURST, "{} of {BURST}", SUMMED.get());
        }
    }

    #[test]
    fn frames_that_end_early_are_not_read_behind_their_end() {
        for v6 in [false, true] {
            let frames = stream(v6, &[40, 40]);
            for len in 0..frames[0].len() {
                assert!(Merged::new([&frames[0][..len], &frames[1]].map(|f| (f, false))).is_none());
                assert!(
                    Merged::new([&frames[0][..], &frames[1][..len]].map(|f| (f, false))).is_none()
                );
            }
        }
    }
}
