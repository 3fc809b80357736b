//! The validating mode: compares kernels and programs with their twins, on live traffic.
//!
//! Parse kernels are compared with the scalar parser, decapsulation in one pass with the two steps,
//! and compiled programs with the interpreter: whole keys and layouts, every output byte by byte,
//! every drop. Both programs run on copies, so the traffic is not changed. The result of a lookup
//! is verified word by word (`lookup::Table::compare`). Decisions in direct mode are compared with
//! the pipeline's decisions with masks.

pub(crate) mod compose;
pub(crate) mod levels;
pub(crate) mod parse_kernels;

use crate::actions::fragments::Paused;
use crate::actions::interpret::Sink;
use crate::batch::Batch;
use crate::batch::keys::{EXT1, key_of};
use crate::parse::frame::{Frame, keep_metadata};
use crate::parse::job::{ParseJob, agree};
use crate::parse::scalar::parse;
use crate::tunnel;
use action::{Ct, Decision, Meter, Op, Punt, Verdict};
use conntrack::alg::Edit;
use conntrack::ipf::Fragment;
use conntrack::{IpHeader, Meta, Ref};
use flow::{Key, PortNo};
use packet::{HeapPool, Packet, Pool};
use std::fmt::Write;
use std::sync::Arc;
use telemetry::Drop;

/// Environment variable that starts workers in the validating mode.
pub const VALIDATE_VARIABLE: &str = "WEFT_VALIDATE";

/// Differences that one worker reports in words; all of them are counted.
pub(crate) const DIFFERENCES_REPORTED_MAX: u64 = 32;

/// True if the environment switches the validating mode on.
pub(crate) fn asked() -> bool {
    std::env::var(VALIDATE_VARIABLE).is_ok_and(|v| !matches!(v.as_str(), "" | "0" | "false"))
}

/// The pair of twins that was compared.
#[derive(Clone, Copy)]
pub(crate) enum Twin {
    Parser,
    Megaflows,
    WholeWay,
    TwoSteps,
    Interpreter,
}

/// What a program does to one packet.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    outputs: Vec<(PortNo, Vec<u8>)>,
    drops: Vec<Drop>,
    copies: u64,
    /// Punts and recirculations; no compiled program does these.
    others: u32,
}

/// A sink that records what programs do.
#[derive(Default)]
pub(crate) struct Record {
    outcome: Outcome,
    pool: HeapPool,
}

impl Record {
    /// What `program` does to a copy of a packet; None: the packet is too long for a buffer.
    fn of(data: &[u8], program: impl FnOnce(&mut Record, Packet)) -> Option<Outcome> {
        let mut record = Record::default();
        let copy = record.pool.packet(data)?;
        program(&mut record, copy);
        Some(record.outcome)
    }
}

impl Sink for Record {
    fn output(&mut self, port: PortNo, packet: Packet) {
        self.outcome.outputs.push((port, packet.data().to_vec()));
        self.free(packet);
    }
    fn free(&mut self, packet: Packet) {
        self.pool.free(&[packet]);
    }
    fn dropped(&mut self, _: PortNo, why: Drop) {
        self.outcome.drops.push(why);
    }
    fn copies(&mut self, _: PortNo, n: u64) {
        self.outcome.copies += n;
    }
    fn copy(&mut self, packet: &Packet) -> Option<Packet> {
        self.pool.copy(packet)
    }
    fn punt(&mut self, _: &Arc<Punt>, _: &Packet, _: Key, _: PortNo) {
        self.outcome.others += 1;
    }
    fn recirculate(&mut self, _: u32, packet: Packet, _: &Frame) {
        self.outcome.others += 1;
        self.free(packet);
    }
    fn track(
        &mut self,
        _: &Ct,
        _: &mut [u8],
        _: IpHeader,
        _: PortNo,
        _: &mut Meta<Ref>,
    ) -> Option<Edit> {
        self.outcome.others += 1;
        None
    }
    fn gather(&mut self, _: &Ct, _: Fragment, paused: Paused) -> Option<Paused> {
        Some(paused)
    }
    fn meter(&mut self, _: &Meter, _: usize) -> Verdict {
        Verdict::Pass
    }
    fn random(&mut self) -> u32 {
        0
    }
}

/// Compares two programs on copies of a packet; returns the difference in words.
pub(crate) fn compare(
    data: &[u8],
    fast: impl FnOnce(&mut Record, Packet),
    twin: impl FnOnce(&mut Record, Packet),
) -> Option<String> {
    let (did, should) = (Record::of(data, fast)?, Record::of(data, twin)?);
    (did != should).then(|| format!("act: {did:x?} instead of {should:x?} on {}", hex(data)))
}

/// An outer packet, copied before it was decapsulated in one pass.
pub(crate) struct Outer {
    pub data: Vec<u8>,
    pub frame: Frame,
}

impl Outer {
    /// Compares the inner packet and its frame with what `TunnelPop` makes of the outer packet;
    /// returns the difference in words.
    pub fn compare(mut self, pop: &Op, inner: &[u8], frame: &Frame) -> Option<String> {
        let Op::TunnelPop { port, kind, options } = pop else { return None };
        let pool = HeapPool::new();
        let mut packet = pool.packet(&self.data)?;
        let popped = tunnel::pop(&mut packet, *port, *kind, options, &mut self.frame);
        let whole = |data: &[u8], f: &Frame| (data.to_vec(), f.key(), f.layout);
        let (did, should) = (whole(inner, frame), whole(packet.data(), &self.frame));
        pool.free(&[packet]);
        (popped.is_err() || did != should).then(|| {
            let text = |(data, key, layout): &(Vec<u8>, Key, _)| {
                format!(
                    "{} {} {} {layout:?}",
                    hex(data),
                    hex(&key.bytes()[..128]),
                    hex(&key.bytes()[128..])
                )
            };
            let (did, should, outer) = (text(&did), text(&should), hex(&self.data));
            format!("decapsulation: {did} instead of {should} ({popped:?}) on {outer}")
        })
    }
}

/// Compares the keys that a kernel made of a job's packets with those of the scalar parser; returns
/// the differences in words.
pub(crate) fn compare_parse(job: &ParseJob<'_>) -> Vec<String> {
    let mut differences = Vec::new();
    for i in job.range.clone() {
        let p = &job.packets[i];
        let (mut line, mut ext) = ([0; 8], [[0; 8]; 3]);
        let whole = p.segments() == 1;
        let layout =
            whole.then(|| parse(p.data(), job.in_port, job.vlan_limit, &mut line, &mut ext));
        let should = layout.flatten().map(|l| (key_of(&line, &ext, l.ext), l));
        let failed = job.failed.iter().any(|(n, _)| usize::from(*n) == i);
        let keys = &job.keys;
        let key = key_of(&keys.line.0[i], &keys.ext[i], keys.have[i]);
        let did = (!failed).then_some((key, job.columns.layout[i]));
        let follows = i > job.since
            && (keys.have[i] | keys.have[i - 1] == 0 || !job.matched.ext)
            && agree(&keys.line.0[i], &keys.line.0[i - 1], &job.matched.line)
            && !failed;
        if did != should || job.columns.same[i] != follows {
            let text = |x: &Option<(Key, _)>| x.map_or("none".into(), |(k, _)| hex(k.bytes()));
            differences.push(format!(
                "parse: {} instead of {} (follows: {}, {follows}) on {}",
                text(&did),
                text(&should),
                job.columns.same[i],
                hex(p.data())
            ));
        }
    }
    differences
}

/// Compares the key of a packet that waited with the key that parsing it again gives; returns the
/// difference in words.
pub(crate) fn compare_waited(batch: &Batch, i: usize) -> Option<String> {
    let (did, data) = (batch.frame(i), batch.packets[i].data());
    let mut should = Frame::new(data, batch.in_port[i], batch.vlan_limit)?;
    keep_metadata(&did.line, &mut should.line);
    should.ext[1..].copy_from_slice(&did.ext[1..]);
    should.have |= did.have & !EXT1;
    let all = |f: &Frame| (f.key(), f.layout);
    (all(&did) != all(&should)).then(|| {
        let text = |f: &Frame| hex(&f.key().bytes()[..128]);
        let (did, should) = (text(&did), text(&should));
        format!("waited: {did} instead of {should} on {}", hex(data))
    })
}

/// Compares a decision in direct mode with the decision with a mask; returns the difference in
/// words.
pub(crate) fn compare_decision(did: &Decision, should: &Decision, key: &Key) -> Option<String> {
    let text = |d: &Decision| {
        let effects = if d.effects.is_some() { "effects" } else { "no effects" };
        format!("{:?}, {:?}, credits {:?}, {effects}", d.ops, d.drop, d.credits)
    };
    let (did, should) = (text(did), text(should));
    (did != should).then(|| format!("direct: {did} instead of {should} for {}", hex(key.bytes())))
}

/// The first 128 bytes, in hexadecimal.
fn hex(data: &[u8]) -> String {
    data.iter().take(128).fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::columns::Columns;
    use crate::batch::keys::Keys;
    use crate::parse::job::ALL_BITS;
    use crate::parse::profile::ProfileStats;
    use crate::verify::levels::preferred_level;

    #[test]
    fn a_wrong_key_layout_or_follower_is_found() {
        let pool = HeapPool::new();
        let mut frame = vec![0; 60];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[17] = 46;
        frame[23] = 17;
        let packets = [&frame[..], &frame, &frame[..9]].map(|f| pool.packet(f).unwrap());
        let (mut keys, mut columns) = (Keys::new(), Columns::new());
        let mut job = ParseJob {
            packets: &packets,
            range: 0..3,
            some: None,
            since: 0,
            in_port: 7,
            vlan_limit: 1,
            matched: &ALL_BITS,
            keys: &mut keys,
            columns: &mut columns,
            profile_stats: &mut ProfileStats::default(),
            failed: &mut Vec::new(),
        };
        job.run(preferred_level());
        assert_eq!(compare_parse(&job), Vec::<String>::new());
        assert!(job.columns.same[1]);
        job.columns.same[1] = false;
        job.columns.layout[0].l4 = 1;
        assert_eq!(compare_parse(&job).len(), 2);
        job.keys.line.0[2][0] = 1;
        job.failed.clear();
        let found = compare_parse(&job);
        assert!(found[2].contains("instead of none"), "{found:?}");
        pool.free(&packets);
    }

    #[test]
    fn outputs_and_drops_are_compared() {
        let out = |port| move |r: &mut Record, p| r.output(port, p);
        assert_eq!(compare(&[1, 2], out(3), out(3)), None);
        let said = compare(&[1, 2], out(3), out(4)).unwrap();
        assert!(said.ends_with("on 0102"), "{said}");
        let drop = |why| {
            move |r: &mut Record, p| {
                r.dropped(1, why);
                r.free(p);
            }
        };
        assert!(compare(&[], drop(Drop::Policy), drop(Drop::BadAction)).is_some());
        assert_eq!(compare(&[0; 9000], out(3), out(4)), None, "too long to be compared");
    }
}
