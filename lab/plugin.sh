# Builds a DPDK plug-in of the lab: what the build.sh of each has in common. To be sourced, not run.
# The driver headers that libdpdk-dev lacks come from Debian's source package of the installed version,
# by apt, with a sources list and state of its own: the system's apt state is not touched.
# Usage: build_plugin FOLDER NAME LIBRARY...      builds target/lab/NAME.so, unless it is newer than its sources, and
#                                                 prints the path to load
# With SANITIZE=1 in the environment it is another file, with AddressSanitizer and UBSan: its user preloads libasan.

# deb-src entries for the Debian mirrors that this system is configured with.
source_lists() {
    local f
    mkdir -p "$1"
    for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -r "$f" ] && sed -nE 's|^deb(-src)?( +\[[^]]*\])? +(\S*/debian(-security)?/?) |deb-src\2 \3 |p' "$f"
    done > "$1/debian.list"
    for f in /etc/apt/sources.list.d/*.sources; do
        [ -r "$f" ] && awk -v RS= '/URIs:[^\n]*\/debian(-security)?\/?([ \n]|$)/ {
            gsub(/Types:[^\n]*/, "Types: deb-src"); print $0 "\n" }' "$f"
    done > "$1/debian.sources"
    cat "$1"/debian.* | grep -q deb-src
}

# Fetches the source package and keeps the headers: fetch_headers VERSION FOLDER
fetch_headers() {
    work=$(mktemp -d -p "${2%/*}")
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/lists/partial"
    source_lists "$work/parts" || { echo "lab: apt has no Debian mirror configured" >&2; exit 1; }
    local apt=(apt-get -qq -o Dir::Etc::sourcelist=- -o Dir::Etc::sourceparts="$work/parts"
        -o Dir::State::Lists="$work/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
        -o APT::Sandbox::User=root)
    echo "lab: fetching the source package dpdk $1" >&2
    (cd "$work" && "${apt[@]}" update && "${apt[@]}" source --download-only "dpdk=$1" &&
        dpkg-source --no-check -x dpdk_*.dsc source) >"$work/log" 2>&1 ||
        { tail -n 5 "$work/log" >&2; echo "lab: no source package dpdk $1" >&2; exit 1; }
    mkdir "$work/headers"
    (cd "$work/source" && cp lib/ethdev/ethdev_driver.h lib/ethdev/ethdev_vdev.h lib/dmadev/rte_dmadev_pmd.h \
        lib/eal/include/dev_driver.h drivers/bus/vdev/bus_vdev_driver.h "$work/headers")
    mv -T "$work/headers" "$2"
}

build_plugin() {
    local here=$1 name=$2 out version headers so dir copy sources
    local flags=(-O3 -march=native -flto)
    shift 2
    if [ -n "${SANITIZE:-}" ]; then
        flags=(-O1 -march=native -fsanitize=address,undefined -fno-sanitize-recover=undefined) name+=-sanitized
    fi
    out=${CARGO_TARGET_DIR:-$here/../../target}/lab
    mkdir -p "$out"
    out=$(cd "$out" && pwd)
    so=$out/$name.so
    version=$(dpkg-query -W -f '${source:Version}' libdpdk-dev 2>/dev/null) ||
        { echo "lab: libdpdk-dev is not installed (scripts/deps.sh build)" >&2; exit 1; }
    headers=$out/dpdk-$version-headers
    # One at a time: tests run side by side.
    exec 9>"$out/plugin.lock"
    flock 9
    if [ ! -e "$so" ] || [ -n "$(find "$here" -newer "$so" -name '*.[chs]*')" ] || [ ! -d "$headers" ]; then
        [ -d "$headers" ] || fetch_headers "$version" "$headers"
        mapfile -t sources < <(find "$here" -name '*.c')
        # shellcheck disable=SC2046
        ${CC:-gcc} -std=gnu11 "${flags[@]}" -fPIC -shared -g1 -Wall -Wextra -Werror \
            -Wno-unused-parameter -DALLOW_INTERNAL_API -DALLOW_EXPERIMENTAL_API -I"$headers" -I"$here" \
            $(pkg-config --cflags libdpdk | sed 's/-march=[^ ]*//') "${sources[@]}" -o "$so.$$" \
            "$@" -lrte_bus_vdev -lrte_kvargs -lrte_mempool -lrte_mbuf -lrte_eal -lm
        mv "$so.$$" "$so"
    fi
    # DPDK loads no driver from below a directory that everybody may write to, such as /tmp: it gets a copy.
    dir=$out
    while [ "$dir" != / ] && [ -z "$(find "$dir" -maxdepth 0 -perm -o=w)" ]; do dir=$(dirname "$dir"); done
    if [ "$dir" != / ]; then
        copy=/run/weft-lab/$(cksum <<<"$out" | cut -d' ' -f1)
        install -D -C -m 755 "$so" "$copy/${so##*/}"
        so=$copy/${so##*/}
    fi
    echo "$so"
}
