//! What a link is and can be, in OpenFlow's terms.

use ::port::{Link, Medium};
use openflow::port_features;

/// Current, advertised and supported features (`OFPPF_*`), and the current and the highest speed in
/// kbit/s (0: unknown).
pub fn of(link: &Link) -> ([u32; 3], [u32; 2]) {
    let [advertised, supported] =
        [link.abilities.advertised, link.abilities.supported].map(of_modes);
    let speeds = [link.mbps, fastest(supported)].map(|mbps| mbps.saturating_mul(1000));
    ([current(link), advertised, supported], speeds)
}

/// The mode that the link runs in, with what it runs over, as `OFPPF_*`.
fn current(link: &Link) -> u32 {
    let duplex = usize::from(link.full_duplex == Some(true));
    let medium = match link.abilities.medium {
        Some(Medium::Copper) => port_features::COPPER,
        Some(Medium::Fiber) => port_features::FIBER,
        None => 0,
    };
    let negotiates = if link.abilities.negotiates { port_features::AUTONEG } else { 0 };
    let speed = match link.mbps {
        10 => 1 << duplex,
        100 => 4 << duplex,
        1000 => 16 << duplex,
        10_000 => 64,
        40_000 => 128,
        100_000 => 256,
        1_000_000 => 512,
        0 => 0,
        _ => 1024,
    };
    speed | medium | negotiates
}

/// Modes of the kernel's ethtool as `OFPPF_*`; those that OpenFlow does not have are left out.
fn of_modes(kernel: u32) -> u32 {
    let one = |bit: u32, is: u32| if kernel >> bit & 1 == 1 { is } else { 0 };
    // The six modes up to 1 Gbit/s are the same bits in both.
    let plain = kernel & 0x3f;
    plain
        | one(6, port_features::AUTONEG)
        | one(7, port_features::COPPER)
        | one(10, port_features::FIBER)
        | one(12, port_features::FD_10GB)
        | one(13, port_features::PAUSE)
        | one(14, port_features::PAUSE_ASYM)
}

/// The fastest of modes, Mbit/s; 0: none.
fn fastest(modes: u32) -> u32 {
    [(6, 10_000), (5, 1000), (4, 1000), (3, 100), (2, 100), (1, 10), (0, 10)]
        .into_iter()
        .find(|(bit, _)| modes >> bit & 1 == 1)
        .map_or(0, |(_, mbps)| mbps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::port::Abilities;

    #[test]
    fn an_adapter_of_10_gbit() {
        // Twisted pair, negotiated: 100 Mbit/s, 1 and 10 Gbit/s full duplex, pauses.
        let supported = 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13;
        let abilities = Abilities {
            medium: Some(Medium::Copper),
            negotiates: true,
            supported,
            advertised: 1 << 5 | 1 << 10 | 1 << 14,
        };
        let link = Link { mbps: 1000, full_duplex: Some(true), abilities, ..Link::default() };
        let current = 1 << 5 | port_features::COPPER | port_features::AUTONEG;
        let advertised = 1 << 5 | port_features::FIBER | port_features::PAUSE_ASYM;
        let supported = 1 << 3
            | 1 << 5
            | port_features::FD_10GB
            | port_features::COPPER
            | port_features::AUTONEG
            | port_features::PAUSE;
        assert_eq!(of(&link), ([current, advertised, supported], [1_000_000, 10_000_000]));
    }

    #[test]
    fn a_port_without_an_adapter_has_no_features() {
        assert_eq!(of(&Link::default()), ([0; 3], [0; 2]));
    }
}
