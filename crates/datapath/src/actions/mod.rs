//! Step 4: each packet's program.

pub(crate) mod ct;
pub(crate) mod interpret;
pub(crate) mod patch;
pub(crate) mod program;
pub(crate) mod rewrite;
pub(crate) mod sequence;

use crate::actions::interpret::Sink;
use crate::actions::program::{Kind, Program};
use crate::actions::rewrite::Place;
use crate::batch::Vector;
use crate::mem::prefetch;
use crate::messages::Execute;
use crate::parse::frame::Frame;
use crate::tunnel;
use crate::tx::{TxState, total};
use crate::verify::{self, Twin};
use flow::PortNo;
use packet::Packet;
use telemetry::Drop;

/// So many packets ahead the line is fetched that an outer header is written to: nobody has touched
/// it yet.
const HEADER_PREFETCH_PACKETS: usize = 16;

impl Vector {
    /// Step 4. Clears the vector.
    pub fn act(&mut self, tx: &mut TxState) {
        let now_ms = tx.now_ms;
        self.count_all(now_ms);
        let (mut n, end) = (0, self.packets.len());
        if self.validate {
            self.validate_programs();
        }
        while n < end {
            let program = self.programs.get(self.keys.program[n]);
            n += match program.kind {
                Kind::Output => {
                    let run = run_length(&self.keys.program[n..end]);
                    let lengths = &self.columns.len[n..n + run];
                    tx.send_all(program.out, &self.packets[n..n + run], lengths);
                    run
                }
                Kind::TunnelPushOutput => {
                    let out = program.out;
                    self.encapsulate_run(out, n, tx)
                }
                kind => {
                    self.execute(program, n, self.packets[n], tx);
                    if kind == Kind::TunnelPop && self.one_pass {
                        self.decap_rules.learn(
                            &self.table.store,
                            self.keys.megaflow[n],
                            &program.ops,
                        );
                    }
                    1
                }
            };
        }
        self.packets.clear();
        self.in_port.clear();
        self.finish(now_ms);
    }

    /// Credits the megaflows. A run of packets of one megaflow counts once.
    fn count_all(&self, now_ms: u64) {
        let (mut n, end) = (0, self.packets.len());
        while n < end {
            let run = run_length(&self.keys.megaflow[n..end]);
            let bytes = total(&self.columns.len[n..n + run]);
            prefetch(self.programs.get(self.keys.program[n]));
            self.count(self.keys.megaflow[n], run as u64, bytes, now_ms);
            n += run;
        }
    }

    /// Credits a megaflow; 0 is none.
    #[inline]
    fn count(&self, megaflow: u32, packets: u64, bytes: u64, now_ms: u64) {
        if megaflow != 0 {
            self.table.store.counters(megaflow).add(packets, bytes, now_ms);
        }
    }

    /// Compares what fast kinds of programs will do with what the interpreter does.
    fn validate_programs(&mut self) {
        let fast = |i: &usize| {
            let kind = self.programs.get(self.keys.program[*i]).kind;
            !matches!(kind, Kind::Generic | Kind::TunnelPop)
        };
        let fast: Vec<_> = (0..self.packets.len()).filter(fast).collect();
        let found: Vec<_> = fast.iter().filter_map(|i| self.compare(*i)).collect();
        self.count_validated(Twin::Interpreter, fast.len(), found);
    }

    /// What program and interpreter do differently with packet `i`.
    fn compare(&self, i: usize) -> Option<String> {
        let program = self.programs.get(self.keys.program[i]);
        verify::compare(
            self.packets[i].data(),
            |sink, p| self.execute(program, i, p, sink),
            |sink, p| self.interpret(program, i, p, sink),
        )
    }

    #[inline]
    fn execute<S: Sink>(&self, program: &Program, i: usize, mut p: Packet, tx: &mut S) {
        let done = match program.kind {
            Kind::Output => Ok(()),
            Kind::Drop => Err(program.drop),
            Kind::SetEthOutput => {
                program.patch.ethernet(p.data_mut());
                Ok(())
            }
            Kind::PatchOutput => {
                let (line, layout) = (&self.keys.line.0[i], self.columns.layout[i]);
                match program.patch.apply(p.data_mut(), line, layout) {
                    true => Ok(()),
                    false => self.rewrite(program, i, &mut p),
                }
            }
            Kind::SetOutput => self.rewrite(program, i, &mut p),
            Kind::PushVlanOutput => rewrite::push_vlan(&mut p, program.tpid, program.tci),
            Kind::PopVlanOutput => {
                rewrite::pop_vlan(&mut p);
                Ok(())
            }
            Kind::Steps => return self.steps(program, i, p, tx),
            Kind::TunnelPushOutput => self.encapsulate(program, i, &mut p),
            Kind::Generic | Kind::TunnelPop => return self.interpret(program, i, p, tx),
        };
        match done {
            Ok(()) => tx.output(program.out, p),
            Err(why) => {
                tx.dropped(self.in_port[i], why);
                tx.free(p);
            }
        }
    }

    #[inline(never)]
    fn rewrite(&self, program: &Program, i: usize, p: &mut Packet) -> Result<(), Drop> {
        let place = Place { line: &self.keys.line.0[i], layout: self.columns.layout[i] };
        for op in program.ops.iter() {
            if let action::Op::Set(rw) = op {
                rewrite::apply(p, &place, rw)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn encapsulate(&self, program: &Program, i: usize, p: &mut Packet) -> Result<(), Drop> {
        let k = self.keys.get(i);
        let entropy = tunnel::entropy(k.line, &k.ext[0], k.have);
        match (&program.template, program.ops.first()) {
            (Some(template), _) => template.push(p, entropy),
            (None, Some(action::Op::TunnelPush(t))) => tunnel::push(p, t, entropy),
            _ => Ok(()),
        }
    }

    /// Packets from `n` on that are encapsulated and go to the same port; how many those are.
    fn encapsulate_run(&mut self, out: PortNo, n: usize, tx: &mut TxState) -> usize {
        let (mut unsent, mut i) = (n, n);
        while i < self.packets.len() {
            let program = self.programs.get(self.keys.program[i]);
            if program.kind != Kind::TunnelPushOutput || program.out != out {
                break;
            }
            if let Some(later) = self.packets.get(i + 2 * HEADER_PREFETCH_PACKETS) {
                prefetch(later.as_raw());
            }
            if let Some(next) = self.packets.get(i + HEADER_PREFETCH_PACKETS) {
                prefetch(next.data().as_ptr().wrapping_sub(64));
            }
            let mut p = self.packets[i];
            match self.encapsulate(program, i, &mut p) {
                Ok(()) => self.columns.len[i] = p.len() as u16,
                Err(why) => {
                    tx.send_all(out, &self.packets[unsent..i], &self.columns.len[unsent..i]);
                    tx.dropped(self.in_port[i], why);
                    tx.free(p);
                    unsent = i + 1;
                }
            }
            i += 1;
        }
        tx.send_all(out, &self.packets[unsent..i], &self.columns.len[unsent..i]);
        i - n
    }

    /// By steps, or by the interpreter if the packet is not as plain as they take.
    #[inline(never)]
    fn steps<S: Sink>(&self, program: &Program, i: usize, p: Packet, tx: &mut S) {
        let at = (&self.keys.line.0[i], self.columns.layout[i]);
        match &program.steps {
            Some(steps) if steps.claims(p.len(), at.0, at.1) => {
                steps.run(tx, p, at, [self.in_port[i], program.out]);
            }
            _ => self.interpret(program, i, p, tx),
        }
    }

    #[inline(never)]
    fn interpret<S: Sink>(&self, program: &Program, i: usize, p: Packet, tx: &mut S) {
        interpret::run(tx, &program.ops, program.drop, p, self.frame(i));
    }

    /// Packet `i` as the interpreter wants it.
    pub(crate) fn frame(&self, i: usize) -> Frame {
        let k = self.keys.get(i);
        let mut ext = [[0; 8]; 3];
        for (l, e) in ext.iter_mut().enumerate().filter(|(l, _)| k.have & (1 << l) != 0) {
            *e = k.ext[l];
        }
        Frame {
            line: *k.line,
            ext,
            have: k.have,
            layout: self.columns.layout[i],
            vlan_limit: self.vlan_limit,
            tags: self.vlan_limit,
            depth: if i < self.meta.len() { self.depth[i] } else { 0 },
            ct: self.meta.get(i).and_then(|m| m.as_ref()).map(|m| m.ct).unwrap_or_default(),
        }
    }

    /// Executes operations on an injected packet.
    pub fn inject(&mut self, e: &Execute, tx: &mut TxState) {
        tx.stats(e.in_port).injected.add(1);
        let frame = Frame::new(&e.packet, e.in_port, self.vlan_limit);
        match (frame, tx.make(&e.packet)) {
            (Some(f), Some(p)) => interpret::run(tx, &e.ops, Drop::Policy, p, f),
            (None, made) => {
                tx.dropped(e.in_port, Drop::Truncated);
                made.into_iter().for_each(|p| tx.free(p));
            }
            (_, None) => tx.dropped(e.in_port, Drop::NoBuffer),
        }
    }
}

/// How many of the first entries are equal; there is at least one.
#[inline]
fn run_length(of: &[u32]) -> usize {
    let first = of[0];
    match of.get(1) {
        Some(second) if *second == first => {}
        _ => return 1,
    }
    let whole = of.chunks_exact(8).take_while(|c| c.iter().fold(0, |d, x| d | (x ^ first)) == 0);
    let n = whole.count() * 8;
    n + of[n..].iter().take_while(|x| **x == first).count()
}
