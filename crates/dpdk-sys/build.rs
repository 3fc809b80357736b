//! Compiles the C shim with the flags of the installed DPDK and links what the bindings name.

use std::process::Command;

fn pkg_config(option: &str) -> Vec<String> {
    let output = Command::new("pkg-config")
        .args([option, "libdpdk"])
        .output()
        .expect("pkg-config is needed to find DPDK (Debian: apt install pkg-config libdpdk-dev)");
    assert!(
        output.status.success(),
        "DPDK 22.11 is needed (Debian: apt install libdpdk-dev): {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).split_whitespace().map(String::from).collect()
}

fn main() {
    let version = pkg_config("--modversion").join("");
    assert!(version.starts_with("22.11"), "the bindings are of DPDK 22.11, found {version}");
    let mut build = cc::Build::new();
    build.file("shim.c").file("flow.c").opt_level(3).warnings(true);
    for flag in pkg_config("--cflags") {
        build.flag(flag);
    }
    // The headers are not ours: their warnings say nothing about the shim.
    // rte_dma_* is experimental in 22.11.
    build.define("ALLOW_EXPERIMENTAL_API", None);
    build.flag("-Wno-unused-parameter").flag("-Wno-deprecated-declarations");
    build.compile("weft_dpdk_shim");
    for flag in pkg_config("--libs-only-L") {
        println!("cargo:rustc-link-search=native={}", flag.trim_start_matches("-L"));
    }
    for lib in ["vhost", "dmadev", "ethdev", "mbuf", "mempool", "eal"] {
        println!("cargo:rustc-link-lib=dylib=rte_{lib}");
    }
    println!("cargo:rerun-if-changed=shim.c");
    println!("cargo:rerun-if-changed=flow.c");
    println!("cargo:rerun-if-changed=shim.h");
}
