#!/bin/bash
# Runs the datapath's tests of the AVX-512 kernels in an emulator (bochs) that boots Debian's kernel, for machines whose
# CPU has no AVX-512. `scripts/deps.sh avx512` installs what it takes; where that is missing it says so and does nothing.
# Arguments: cargo's for the build, such as --release. What was run is in target/avx512/console.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
work=$target/avx512
kernel=$target/guest-kernel/vmlinuz
minutes=${WEFT_AVX512_MINUTES:-60}
boot=/usr/lib/ISOLINUX/isolinux.bin
loader=/usr/lib/syslinux/modules/bios/ldlinux.c32
bios=/usr/share/bochs/BIOS-bochs-latest
vga=/usr/share/bochs/VGABIOS-lgpl-latest
for f in /usr/bin/bochs /usr/bin/xorriso /usr/bin/cpio /usr/bin/script /bin/busybox "$kernel" $boot $loader $bios $vga; do
    [ -e "$f" ] || { echo "weft: AVX-512 kernels are not tested: no $f (scripts/deps.sh avx512)"; exit 0; }
done

# Programs, their libraries and what runs them, as a file system in memory.
rm -rf "$work"
mkdir -p "$work"/root/{bin,dev,proc,tests} "$work/disc"
cargo test -p datapath --lib --test twins --no-run "$@" 2>&1 | tee "$work/build"
for program in $(sed -n 's/.*Executable .*(\(.*\))$/\1/p' "$work/build"); do
    name=$(basename "${program%-*}")
    strip -o "$work/root/tests/$name" "$program"
    for library in $(ldd "$program" | grep -o '/[^ ]*'); do
        mkdir -p "$work/root/$(dirname "$library")"
        cp "$library" "$work/root/$library"
    done
done
cp /bin/busybox "$work/root/bin/"
cat > "$work/root/init" <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t devtmpfs dev /dev
exec >/dev/ttyS0 2>&1
export WEFT_LEVEL=avx512
echo "CPU: $(grep -m1 ^flags /proc/cpuinfo | tr ' ' '\n' | grep -E 'avx|bmi' | xargs)"
/tests/datapath --test-threads=1 level:: parse:: lookup::probe lookup::tests && /tests/twins --test-threads=1 && echo passed
for c in S h u t d o w n; do printf $c | dd of=/dev/port bs=1 seek=$((0x8900)); done 2>/dev/null
END
chmod +x "$work/root/init"
(cd "$work/root" && find . | cpio -o -H newc --quiet > ../disc/initrd)

# What the emulated CPU says about PKRU and about compacted states is wrong: the kernel would do without AVX altogether.
cp "$kernel" "$work/disc/linux"
cp $boot $loader "$work/disc/"
cat > "$work/disc/isolinux.cfg" <<'END'
default linux
prompt 0
label linux
 kernel linux
 append initrd=initrd console=ttyS0,115200 quiet mitigations=off no_timer_check tsc=reliable nokaslr panic=-1 random.trust_cpu=on clearcpuid=515,321,323 nosmap nosmep nopti
END
xorriso -as mkisofs -quiet -o "$work/disc.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 \
    -boot-info-table "$work/disc" 2>/dev/null
# Writing the word to port 8900 ends the emulator; its debugger is told to go on.
cat > "$work/bochsrc" <<END
config_interface: textconfig
display_library: term
cpu: model=corei3_cnl, count=1, ips=20000000, reset_on_triple_fault=0
memory: guest=1024, host=1024
romimage: file=$bios
vgaromimage: file=$vga
sound: driver=dummy, waveoutdrv=dummy
speaker: enabled=0
ata0-master: type=cdrom, path=$work/disc.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/console
log: $work/log
panic: action=fatal
error: action=ignore
info: action=ignore
debug: action=ignore
clock: sync=none
END
echo c > "$work/commands"
echo "weft: emulating, for up to $minutes minutes"
# The emulator's debugger wants a terminal, and its screen, a pseudo-terminal that it makes, somebody who reads it.
mkfifo "$work/keys"
exec 3<>"$work/keys"
read_screen() {
    until screen=$(grep -aom1 '/dev/pts/[0-9]*' "$work/screen"); do sleep 1; done 2>/dev/null
    exec cat "$screen" >/dev/null 2>&1
}
read_screen &
reader=$!
trap 'kill $reader 2>/dev/null || true' EXIT
TERM=xterm timeout -k 5 "${minutes}m" script -qfc "exec bochs -q -f $work/bochsrc -rc $work/commands" "$work/screen" \
    <&3 >/dev/null || true
cat "$work/console"
grep -q '^passed' "$work/console" || { echo "weft: AVX-512 kernels failed, or were not done in time" >&2; exit 1; }
