//! A second opinion on frames: `tshark`.

/// What `tshark` reads in the fields of frames, one line for each, with all checksums verified.
pub fn dissect(frames: &[Vec<u8>], fields: &[&str]) -> Vec<String> {
    let mut pcap = Vec::new();
    for n in [0xa1b2_c3d4u32, 2 | 4 << 16, 0, 0, 65535, 1] {
        pcap.extend(n.to_le_bytes());
    }
    for f in frames {
        let len = f.len() as u32;
        for n in [0, 0, len, len] {
            pcap.extend(n.to_le_bytes());
        }
        pcap.extend(f);
    }
    let path = std::env::temp_dir().join(format!("weft-test-{}.pcap", std::process::id()));
    std::fs::write(&path, pcap).unwrap();
    let mut c = std::process::Command::new("tshark");
    c.arg("-r").arg(&path).args(["-T", "fields"]);
    c.args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]);
    c.args(["-o", "tcp.check_checksum:TRUE"]);
    c.args(fields.iter().flat_map(|f| ["-e", f]));
    let out = c.output().expect("tshark");
    std::fs::remove_file(&path).unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap().lines().map(Into::into).collect()
}
