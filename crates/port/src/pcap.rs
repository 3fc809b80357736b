//! Captures of what dummy ports receive and send, which tests read (pcap, as in
//! draft-ietf-opsawg-pcap, with microseconds and Ethernet headers).

use crate::PortError;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Magic number, version 2.4, time zone, accuracy, longest packet, link type (Ethernet), in this
/// machine's byte order, which readers recognize by the magic number.
const HEADER: [u32; 6] = [0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 0xffff, 1];

/// A capture file; packets are written at once.
pub(crate) struct Pcap(Mutex<File>);

/// The captures of a port.
#[derive(Clone, Default)]
pub(crate) struct Captures {
    /// The capture of received packets.
    pub rx: Option<Arc<Pcap>>,
    /// The capture of sent packets.
    pub tx: Option<Arc<Pcap>>,
}

impl Captures {
    /// Opens the captures of the options `pcap` (one file for both directions), `rxq_pcap` and
    /// `tx_pcap`. Packets are appended to existing files.
    pub fn open(options: &BTreeMap<String, String>) -> Result<Captures, PortError> {
        let open = |name| options.get(name).map(|path| Pcap::open(path).map(Arc::new)).transpose();
        if let Some(both) = open("pcap")? {
            return Ok(Captures { rx: Some(both.clone()), tx: Some(both) });
        }
        Ok(Captures { rx: open("rxq_pcap")?, tx: open("tx_pcap")? })
    }
}

impl Pcap {
    fn open(path: &str) -> Result<Pcap, PortError> {
        let os = |source| PortError::Os { what: path.into(), source };
        let mut file = OpenOptions::new().append(true).create(true).open(path).map_err(os)?;
        if file.metadata().map_err(os)?.len() == 0 {
            let bytes: Vec<u8> = HEADER.iter().flat_map(|word| word.to_ne_bytes()).collect();
            file.write_all(&bytes).map_err(os)?;
        }
        Ok(Pcap(Mutex::new(file)))
    }

    /// Writes a packet; it is left out if the disk is full.
    pub fn add(&self, packet: &[u8]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let len = packet.len() as u32;
        let words = [now.as_secs() as u32, now.subsec_micros(), len, len];
        let mut record: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        record.extend_from_slice(packet);
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&record);
    }
}
