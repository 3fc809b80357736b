//! NAT: chooses the reply tuple of a translated connection, which no other connection may have.

use crate::conn::Translation;
use crate::tuple::{Tuple, number};
use action::{Nat, NatSide};
use wire::{IP_SCTP, IP_TCP, IP_UDP};

/// Tuples tried in the first round of a search through ports; each further round tries half as many
/// from another place, down to [`TRIES_COUNT_MIN`]: 248 in all.
const TRIES_COUNT_MAX: u32 = 128;
/// Tuples tried in the last round of a search.
const TRIES_COUNT_MIN: u32 = 8;

/// The side that `nat` translates.
pub fn translation(nat: &Nat) -> Translation {
    match nat.side {
        None => Translation::None,
        Some(NatSide::Source) => Translation::Source,
        Some(NatSide::Destination) => Translation::Destination,
    }
}

/// The reply tuple of a connection that begins with `orig` and is translated as `nat` says; None:
/// none of the tuples that were tried is free. `hash` chooses the address and the first port,
/// `random` the port with which each further round begins.
pub fn choose(
    orig: &Tuple,
    nat: &Nat,
    hash: u64,
    mut random: impl FnMut() -> u32,
    mut free: impl FnMut(&Tuple) -> bool,
) -> Option<Tuple> {
    let mut reply = orig.reversed();
    let how = translation(nat);
    let address = nat.addresses.map(|range| pick(&range, orig.v6, hash));
    match (how, address) {
        (Translation::None, _) => return Some(reply),
        (_, None) => {}
        (Translation::Source, Some(a)) => reply.dst = a,
        (Translation::Destination, Some(a)) => reply.src = a,
    }
    if !matches!(orig.proto, IP_TCP | IP_UDP | IP_SCTP) {
        return free(&reply).then_some(reply);
    }
    let ports = nat.ports.map(|(min, max)| {
        let count = u64::from(max.saturating_sub(min)) + 1;
        Ports { min, max: max.max(min), first: min + (hash % count) as u16 }
    });
    let mut try_all = |ports: Ports, set: fn(&mut Tuple, u16)| {
        search(ports, &mut random, |port| {
            set(&mut reply, port);
            free(&reply).then_some(reply)
        })
    };
    match (how, ports) {
        (Translation::Source, Some(ports)) => try_all(ports, |a, p| a.dport = p),
        (Translation::Destination, Some(ports)) => {
            // If no destination port is free, the first one may be free for another source port.
            try_all(ports, |a, p| a.sport = p)
                .or_else(|| reply_with(&mut reply, ports.first, orig, &mut random, &mut free))
        }
        _ => try_all(class_of(orig.sport), |a, p| a.dport = p),
    }
}

/// Searches for a free reply tuple with this source port, by its destination port.
fn reply_with(
    reply: &mut Tuple,
    sport: u16,
    orig: &Tuple,
    random: &mut impl FnMut() -> u32,
    free: &mut impl FnMut(&Tuple) -> bool,
) -> Option<Tuple> {
    reply.sport = sport;
    search(class_of(orig.sport), random, |port| {
        reply.dport = port;
        free(reply).then_some(*reply)
    })
}

/// A range of ports to try, and the port to begin with.
#[derive(Clone, Copy)]
struct Ports {
    min: u16,
    max: u16,
    first: u16,
}

/// The ports that may replace a source port: a privileged port stays privileged.
fn class_of(port: u16) -> Ports {
    let (min, max) = match port {
        0..512 => (1, 511),
        512..1024 => (600, 1023),
        _ => (1024, 65535),
    };
    Ports { min, max, first: port }
}

/// Tries ports in bounded rounds, until `found` returns a value for one.
fn search<T>(
    ports: Ports,
    random: &mut impl FnMut() -> u32,
    mut found: impl FnMut(u16) -> Option<T>,
) -> Option<T> {
    let count = u32::from(ports.max - ports.min) + 1;
    let mut tries = count.min(TRIES_COUNT_MAX);
    let mut port = ports.first;
    loop {
        for _ in 0..tries {
            if let Some(t) = found(port) {
                return Some(t);
            }
            port = if port >= ports.max || port < ports.min { ports.min } else { port + 1 };
        }
        if tries >= count || tries <= TRIES_COUNT_MIN {
            return None;
        }
        tries /= 2;
        port = ports.min + (random() % count) as u16;
    }
}

/// An address of the range. Of IPv6 ranges the first 2^32 - 1 addresses are used.
fn pick(range: &(std::net::IpAddr, std::net::IpAddr), v6: bool, hash: u64) -> u128 {
    let (min, max) = (number(&range.0), number(&range.1));
    let count = max.saturating_sub(min).min(u128::from(u32::MAX - 1)) + 1;
    let picked = min + u128::from(hash >> 32) % count;
    if v6 { picked } else { picked & u128::from(u32::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orig() -> Tuple {
        Tuple { src: 1, dst: 2, sport: 5000, dport: 80, proto: IP_TCP, ..Tuple::default() }
    }

    fn source(ports: Option<(u16, u16)>) -> Nat {
        let address = std::net::IpAddr::from([0, 0, 0, 9]);
        let addresses = Some((address, address));
        Nat { side: Some(NatSide::Source), addresses, ports, ..Nat::default() }
    }

    #[test]
    fn source_port_stays_if_it_is_free() {
        let reply = choose(&orig(), &source(None), 7, || 0, |_| true).unwrap();
        assert_eq!((reply.dst, reply.dport, reply.src, reply.sport), (9, 5000, 2, 80));
        let reply = choose(&orig(), &source(None), 7, || 0, |t| t.dport != 5000).unwrap();
        assert_eq!(reply.dport, 5001);
    }

    #[test]
    fn a_search_ends_after_248_tries() {
        let mut tries = 0;
        let free = |_: &Tuple| {
            tries += 1;
            false
        };
        assert_eq!(choose(&orig(), &source(None), 7, || 12345, free), None);
        assert_eq!(tries, 248);
    }

    #[test]
    fn every_port_of_a_small_range_is_tried_once() {
        let mut seen = Vec::new();
        let free = |t: &Tuple| {
            seen.push(t.dport);
            false
        };
        assert_eq!(choose(&orig(), &source(Some((100, 104))), 3, || 0, free), None);
        seen.sort_unstable();
        assert_eq!(seen, [100, 101, 102, 103, 104]);
    }
}
