//! Random packets: mostly well formed, sometimes cut or damaged.
#![allow(dead_code)]

/// A small deterministic generator of random numbers.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

fn l4(r: &mut Rng, proto: u8) -> Vec<u8> {
    let mut p = Vec::new();
    match proto {
        6 => {
            p.extend(r.bytes(12));
            p.extend([0x50, r.next() as u8]);
            p.extend(r.bytes(6));
        }
        17 => {
            p.extend(r.bytes(6));
            p.extend(if r.chance(20) { vec![0, 0] } else { r.bytes(2) });
        }
        132 => p.extend(r.bytes(12)),
        58 => {
            p.extend([r.pick(&[135, 136, 128, 1]), if r.chance(90) { 0 } else { 1 }]);
            p.extend(r.bytes(6));
            p.extend(r.bytes(16));
            for _ in 0..r.below(4) {
                p.extend([r.pick(&[1, 2, 2, 3, 14]), r.pick(&[1, 1, 1, 2, 0])]);
                p.extend(r.bytes(6));
            }
        }
        _ => p.extend(r.bytes(8)),
    }
    let more = r.below(30) as usize;
    p.extend(r.bytes(more));
    p
}

const PROTOS: [u8; 8] = [6, 6, 17, 17, 1, 58, 132, 2];

fn ipv4(r: &mut Rng) -> Vec<u8> {
    let proto = r.pick(&PROTOS);
    let body = l4(r, proto);
    let options = if r.chance(10) { r.below(4) as usize } else { 0 };
    let total = 20 + 4 * options + body.len();
    let frag: u16 = if r.chance(15) { r.pick(&[0x2000, 0x2010, 0x0010, 0x4000]) } else { 0 };
    let mut p = vec![0x45 + options as u8, r.next() as u8];
    p.extend((total as u16).to_be_bytes());
    p.extend(r.bytes(2));
    p.extend(frag.to_be_bytes());
    p.extend([r.next() as u8, proto]);
    p.extend(r.bytes(2 + 8 + 4 * options));
    p.extend(body);
    p
}

fn ipv6(r: &mut Rng) -> Vec<u8> {
    let proto = r.pick(&PROTOS);
    let mut body = Vec::new();
    let mut chain = Vec::new();
    for _ in 0..(if r.chance(30) { 1 + r.below(3) } else { 0 }) {
        chain.push(r.pick(&[0u8, 43, 60, 51, 44]));
    }
    for (i, h) in chain.iter().enumerate() {
        let next = chain.get(i + 1).copied().unwrap_or(proto);
        match h {
            44 => {
                body.extend([next, 0]);
                body.extend(r.pick(&[0u16, 1, 0x10, 0x11, 2]).to_be_bytes());
                body.extend(r.bytes(4));
            }
            51 => {
                let n = r.below(3) as usize;
                body.extend([next, n as u8]);
                body.extend(r.bytes((n + 2) * 4 - 2));
            }
            _ => {
                let n = r.below(2) as usize;
                body.extend([next, n as u8]);
                body.extend(r.bytes((n + 1) * 8 - 2));
            }
        }
    }
    body.extend(l4(r, proto));
    let mut p = vec![0x60 | r.below(16) as u8];
    p.extend(r.bytes(3));
    p.extend((body.len() as u16).to_be_bytes());
    p.extend([chain.first().copied().unwrap_or(proto), r.next() as u8]);
    p.extend(r.bytes(32));
    p.extend(body);
    p
}

/// A network service header (RFC 8300) and what may be behind it.
fn nsh(r: &mut Rng) -> Vec<u8> {
    let kind = r.pick(&[1, 1, 2, 3]);
    let words = if kind == 1 { 4 } else { r.below(8) as usize };
    let base = r.pick(&[0, 0x1000, 0x2000, 0x4000, 0, 0]) | r.next() as u16 & 0xfc0;
    let length = 2 + words as u16;
    let mut p = (base | length).to_be_bytes().to_vec();
    p.extend([kind, 1 + r.below(5) as u8]);
    p.extend(r.bytes(4 + 4 * words));
    let n = r.below(60) as usize;
    p.extend(r.bytes(n));
    p
}

/// Any packet of at least 14 bytes.
pub fn packet(r: &mut Rng) -> Vec<u8> {
    let mut p = r.bytes(12);
    for _ in 0..r.pick(&[0, 0, 0, 1, 1, 2, 3]) {
        p.extend(r.pick(&[0x8100u16, 0x8100, 0x88a8]).to_be_bytes());
        p.extend(r.bytes(2));
    }
    match r.below(11) {
        0..4 => {
            p.extend([8, 0]);
            p.extend(ipv4(r));
        }
        4..7 => {
            p.extend([0x86, 0xdd]);
            p.extend(ipv6(r));
        }
        7 => {
            p.extend(r.pick(&[[8, 6], [0x80, 0x35]]));
            p.extend([0, 1, 8, 0, 6, 4, u8::from(r.chance(5)), r.below(4) as u8]);
            p.extend(r.bytes(20));
        }
        8 => {
            p.extend(r.pick(&[[0x88, 0x47], [0x88, 0x48]]));
            for _ in 0..1 + r.below(3) {
                p.extend(r.bytes(4));
            }
            let n = r.below(30) as usize;
            p.extend(r.bytes(n));
        }
        9 => {
            p.extend([0x89, 0x4f]);
            p.extend(nsh(r));
        }
        _ => {
            let n = r.below(60) as usize;
            p.extend((n as u16).to_be_bytes());
            if r.chance(70) {
                p.extend([0xaa, 0xaa, 3, 0, 0, u8::from(r.chance(10))]);
                p.extend(r.pick(&[[8u8, 0], [0x80, 0x9b], [1, 0]]));
            }
            p.extend(r.bytes(n));
        }
    }
    if r.chance(30) {
        let pad = r.below(40) as usize;
        p.extend(r.bytes(pad));
    }
    if r.chance(15) {
        let n = 14 + r.below(p.len() as u64 - 13) as usize;
        p.truncate(n);
    }
    if r.chance(10) {
        let at = 12 + r.below(p.len() as u64 - 12) as usize;
        p[at] = r.next() as u8;
    }
    p
}
