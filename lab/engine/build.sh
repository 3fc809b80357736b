#!/bin/bash
# Builds target/lab/librte_dma_weftemu.so, the lab's emulated copy engine. Does nothing when it is newer than its sources.
# Usage: build.sh      prints the path of the shared object to load
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../plugin.sh"
build_plugin "$here" librte_dma_weftemu -lrte_dmadev
