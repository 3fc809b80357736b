#!/bin/bash
# Builds target/lab/librte_net_weftgen.so, the lab's packet generator. Does nothing when it is newer than its sources.
# Usage: build.sh      prints the path of the shared object to load
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../plugin.sh"
build_plugin "$here" librte_net_weftgen -lrte_ethdev
