//! What a `net_memif` device's arguments say (DPDK's guide to its memif driver): the driver's
//! words, defaults and ways to read numbers, as the ports are configured like DPDK's.

use super::message::{LOG2_SIZE_MAX, SECRET_BYTES};
use super::socket::Address;
use std::path::PathBuf;

/// Where the server listens if no socket is given, as an abstract address.
const DEFAULT_SOCKET: &str = "/run/memif.sock";
/// Bytes of a client's buffers, and its rings' size as a power of two, unless asked otherwise.
const DEFAULT_BUFFER_BYTES: u32 = 2048;
const DEFAULT_LOG2_SIZE: u8 = 10;
/// Bytes that a client's buffers may have.
const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 64..=65_535;

/// Which end a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// This end listens, and moves packets in the other end's memory.
    Server,
    /// This end connects, and shares memory of its own.
    Client,
}

/// A device's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Args {
    pub role: Role,
    /// Where the server listens.
    pub address: Address,
    /// Which of the devices behind that address.
    pub id: u32,
    /// What a client must know; all zero: nothing.
    pub secret: [u8; SECRET_BYTES],
    /// Bytes of a client's buffer, and descriptors of its ring as a power of two.
    pub buffer_bytes: u32,
    pub log2_size: u8,
    /// MAC address; None: a random one.
    pub mac: Option<[u8; 6]>,
    /// Was asked for, and is not done: shares a client's packet buffers instead of copying.
    pub zero_copy: bool,
}

impl Args {
    /// None: not a memif device.
    ///
    /// # Errors
    /// An argument that is not known, or a value that it cannot have.
    pub fn read(devargs: &str) -> Option<Result<Args, String>> {
        let name = devargs.strip_prefix("vdev:").unwrap_or(devargs);
        name.starts_with("net_memif").then(|| Args::read_all(name))
    }

    fn read_all(devargs: &str) -> Result<Args, String> {
        let (mut socket, mut is_abstract) = (DEFAULT_SOCKET, true);
        let mut args = Args {
            role: Role::Client,
            address: Address::Abstract(String::new()),
            id: 0,
            secret: [0; SECRET_BYTES],
            buffer_bytes: DEFAULT_BUFFER_BYTES,
            log2_size: DEFAULT_LOG2_SIZE,
            mac: None,
            zero_copy: false,
        };
        for part in devargs.split(',').skip(1).filter(|part| !part.trim().is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value.trim();
            let bad = || format!("'{value}' is not a value of '{}'", key.trim());
            match key.trim() {
                "socket" => socket = value,
                "socket-abstract" => is_abstract = yes(value).ok_or_else(bad)?,
                "id" => args.id = number(value),
                "role" => args.role = role(value).ok_or_else(bad)?,
                "secret" if value.len() <= SECRET_BYTES => {
                    args.secret[..value.len()].copy_from_slice(value.as_bytes());
                }
                "bsize" => args.buffer_bytes = number(value),
                "rsize" => args.log2_size = value.parse().map_err(|_| bad())?,
                "mac" => args.mac = Some(mac(value).ok_or_else(bad)?),
                "zero-copy" => args.zero_copy = yes(value).ok_or_else(bad)?,
                "secret" => return Err(bad()),
                other => return Err(format!("'{other}' is not an argument of memif devices")),
            }
        }
        if !BUFFER_BYTES.contains(&args.buffer_bytes) || args.log2_size > LOG2_SIZE_MAX {
            let (least, most) = (BUFFER_BYTES.start(), BUFFER_BYTES.end());
            return Err(format!("bsize is {least} to {most}, and rsize at most {LOG2_SIZE_MAX}"));
        }
        args.address = match is_abstract {
            true => Address::Abstract(socket.into()),
            false => Address::Path(PathBuf::from(socket)),
        };
        Ok(args)
    }
}

/// The driver searches these values for the words it knows.
fn yes(value: &str) -> Option<bool> {
    match (value.contains("yes"), value.contains("no")) {
        (true, _) => Some(true),
        (_, no) => no.then_some(false),
    }
}

fn role(value: &str) -> Option<Role> {
    let is = |words: [&str; 2]| words.iter().any(|word| value.contains(word));
    match (is(["server", "master"]), is(["client", "slave"])) {
        (true, _) => Some(Role::Server),
        (_, client) => client.then_some(Role::Client),
    }
}

fn mac(value: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = value.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

/// As the driver reads it: leading digits, nothing is 0.
fn number(text: &str) -> u32 {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    text[..digits].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Args, String> {
        Args::read(text).expect("a memif device")
    }

    #[test]
    fn servers_clients_and_others() {
        assert_eq!(Args::read("net_null0,role=server"), None);
        let args = read("net_memif0").unwrap();
        assert_eq!((args.role, args.buffer_bytes, args.log2_size), (Role::Client, 2048, 10));
        let args = read("net_memif0,role=server").unwrap();
        assert_eq!(args.address, Address::Abstract("/run/memif.sock".into()));
        assert_eq!((args.role, args.id, args.secret), (Role::Server, 0, [0; SECRET_BYTES]));
        let args = read(
            "vdev:net_memif3,id=7x,role=master,bsize=4096,rsize=4,socket=/a/b,socket-abstract=no,\
             secret=abc,mac=02:00:00:00:0a:ff,zero-copy=yes",
        );
        let args = args.unwrap();
        assert_eq!((args.address, args.id), (Address::Path("/a/b".into()), 7));
        assert_eq!((args.buffer_bytes, args.log2_size, args.zero_copy), (4096, 4, true));
        assert_eq!((&args.secret[..4], args.mac), (&b"abc\0"[..], Some([2, 0, 0, 0, 10, 255])));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("sockets=/a", "sockets"),
            ("role=both", "role"),
            ("rsize=15", "rsize"),
            ("rsize=x", "rsize"),
            ("bsize=3", "bsize"),
            ("mac=1:2", "mac"),
            ("secret=1234567890123456789012345", "secret"),
            ("socket-abstract=maybe", "socket-abstract"),
        ] {
            let error = read(&format!("net_memif0,{text}")).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
