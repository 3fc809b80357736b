//! Arguments of a `net_memif` device that concern its socket (DPDK's guide to the memif driver).

use super::socket::Address;
use std::path::{Path, PathBuf};

/// The abstract address on which the driver listens if no socket is given.
const DEFAULT_SOCKET: &str = "/run/memif.sock";

/// The arguments of a device in server role.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerArgs {
    /// The address to which clients connect.
    pub address: Address,
    /// Number of the device behind that address.
    pub id: u32,
    /// Name and arguments, without `socket`, `socket-abstract` and `id`.
    rest: String,
}

impl ServerArgs {
    /// Reads the arguments. None: not a memif device, or one that connects to a server.
    pub fn read(devargs: &str) -> Option<ServerArgs> {
        let name = devargs.strip_prefix("vdev:").unwrap_or(devargs);
        if !name.starts_with("net_memif") {
            return None;
        }
        let (mut socket, mut is_abstract, mut id, mut server) = (DEFAULT_SOCKET, true, 0, false);
        let mut rest: Vec<&str> = Vec::new();
        for part in devargs.split(',') {
            match part.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
                Some(("socket", value)) => socket = value,
                // The driver searches these values for the words that it knows.
                Some(("socket-abstract", value)) => is_abstract = value.contains("yes"),
                Some(("id", value)) => id = number(value),
                Some(("role", value)) => {
                    server = value.contains("server") || value.contains("master");
                    rest.push(part);
                }
                _ => rest.push(part),
            }
        }
        let address = match is_abstract {
            true => Address::Abstract(socket.into()),
            false => Address::Path(PathBuf::from(socket)),
        };
        server.then(|| ServerArgs { address, id, rest: rest.join(",") })
    }

    /// The arguments of the same device at another socket, with another number.
    pub fn at(&self, socket: &Path, id: u32) -> String {
        format!("{},id={id},socket={},socket-abstract=no", self.rest, socket.display())
    }
}

/// A number as the driver reads it: leading digits; without digits 0.
fn number(text: &str) -> u32 {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    text[..digits].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_others() {
        for other in ["net_memif0", "net_memif0,role=client,socket=/a", "net_null0,role=server"] {
            assert_eq!(ServerArgs::read(other), None, "{other}");
        }
        let args = ServerArgs::read("net_memif0,role=server").unwrap();
        assert_eq!(args.address, Address::Abstract("/run/memif.sock".into()));
        assert_eq!(args.id, 0);
        let args = "net_memif3,id=7x,role=master,bsize=4096,socket=/a/b,socket-abstract=no";
        let args = ServerArgs::read(args).unwrap();
        assert_eq!((args.address.clone(), args.id), (Address::Path("/a/b".into()), 7));
        assert_eq!(
            args.at(Path::new("/c"), 9),
            "net_memif3,role=master,bsize=4096,id=9,socket=/c,socket-abstract=no"
        );
    }
}
