//! Answers ARP requests for the IPv4 address of a dummy port, as a host behind the port would.

use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};
use wire::{ARP_LEN, ARP_REPLY, ARP_REQUEST, Arp, ETH_ARP, ETH_LEN, Ethernet, Mac};

/// The addresses of the host behind a dummy port.
pub(crate) struct Station(Mutex<(Mac, Option<Ipv4Addr>)>);

impl Station {
    /// A station without an IPv4 address.
    pub fn new(mac: Mac) -> Station {
        Station(Mutex::new((mac, None)))
    }

    /// Changes its addresses.
    pub fn change(&self, change: impl FnOnce(&mut (Mac, Option<Ipv4Addr>))) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The answer to an untagged ARP request for its address; None: the frame is something else.
    pub fn answer(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let (mac, ip) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ip = ip?.octets();
        let (eth, request) = (Ethernet::new(frame)?, Arp::new(frame.get(ETH_LEN..)?)?);
        let asks = eth.ethertype() == ETH_ARP
            && request.is_ethernet_ipv4()
            && request.op() == ARP_REQUEST
            && request.tpa() == ip;
        asks.then_some(())?;
        let mut reply = frame[..ETH_LEN + ARP_LEN].to_vec();
        let mut header = Ethernet::new(&mut reply[..])?;
        header.set_dst(request.sha());
        header.set_src(mac);
        let mut arp = Arp::new(&mut reply[ETH_LEN..])?;
        arp.set_op(ARP_REPLY);
        arp.set_sha(mac);
        arp.set_spa(ip);
        arp.set_tha(request.sha());
        arp.set_tpa(request.spa());
        Some(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_its_address_are_answered() {
        let (me, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let mut request = vec![0xff; 6];
        request.extend(other);
        request.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        request.extend(other);
        request.extend([10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
        let station = Station::new(me);
        assert_eq!(station.answer(&request), None, "it has no address");
        station.change(|s| s.1 = Some(Ipv4Addr::new(10, 0, 0, 1)));
        let reply = station.answer(&request).unwrap();
        assert_eq!(reply[..12], [other, me].concat());
        assert_eq!(reply[20..22], [0, 2]);
        assert_eq!(reply[22..], [&me[..], &[10, 0, 0, 1], &other, &[10, 0, 0, 2]].concat());
        assert_eq!(station.answer(&reply), None, "replies are not requests");
        for len in 0..request.len() {
            assert_eq!(station.answer(&request[..len]), None);
        }
        station.change(|s| s.1 = Some(Ipv4Addr::new(10, 0, 0, 3)));
        assert_eq!(station.answer(&request), None, "another one's");
    }
}
