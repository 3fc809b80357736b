#!/bin/sh
# Regenerates src/bindings.rs from the installed DPDK headers. Run by hand when the allow-list or
# the DPDK version changes; needs bindgen-cli (cargo install bindgen-cli) and libclang.
set -eu
cd "$(dirname "$0")"
functions='rte_eal_init|rte_eal_cleanup|rte_eal_get_runtime_dir|rte_eal_has_hugepages|rte_eal_has_pci'
functions="$functions|rte_eal_iova_mode|rte_strerror|rte_version|rte_openlog_stream|rte_log_set_global_level"
functions="$functions|rte_log_set_level_pattern|rte_log_cur_msg_loglevel|rte_log_dump|rte_lcore_dump|rte_malloc_dump_stats"
functions="$functions|rte_memzone_dump"
functions="$functions|rte_thread_register|rte_thread_unregister"
functions="$functions|rte_pktmbuf_pool_create|rte_pktmbuf_free_bulk|rte_mempool_free"
functions="$functions|rte_mempool_avail_count|rte_mempool_in_use_count|rte_mempool_dump"
functions="$functions|rte_dev_probe|rte_dev_remove|rte_dev_name|rte_dev_bus_info|rte_dev_bus|rte_bus_name"
functions="$functions|rte_eth_iterator_(init|next|cleanup)|rte_eth_dev_(info_get|configure|start|stop|close)"
functions="$functions|rte_eth_dev_(count_avail|is_valid_port|socket_id|get_mtu|set_mtu|get_name_by_port)"
functions="$functions|rte_eth_dev_(set_link_up|set_link_down|adjust_nb_rx_tx_desc|get_port_by_name)"
functions="$functions|rte_eth_(rx|tx)_queue_setup|rte_eth_promiscuous_(enable|disable)"
functions="$functions|rte_eth_allmulticast_enable|rte_eth_link_get_nowait|rte_eth_macaddr_get"
functions="$functions|rte_eth_stats_get|rte_eth_xstats_get|rte_eth_xstats_get_names|rte_eth_find_next"
functions="$functions|rte_vhost_driver_(register|unregister|start|callback_register)"
functions="$functions|rte_vhost_driver_(disable|enable|get|set)_features"
functions="$functions|rte_vhost_driver_(get|set)_protocol_features"
functions="$functions|rte_vhost_get_(negotiated_features|mtu|numa_node|vring_num|ifname|vhost_vring|mem_table)"
functions="$functions|rte_vhost_(enqueue|dequeue)_burst|rte_vhost_enable_guest_notification"
functions="$functions|rte_vhost_(get|set)_vring_base|rte_vhost_extern_callback_register"
functions="$functions|rte_vhost_rx_queue_count|weft_.*"
functions="$functions|rte_dma_(next_dev|info_get|configure|vchan_setup|start|stop|stats_get|dump)"
types='rte_mbuf|rte_eth_conf|rte_eth_dev_info|rte_eth_stats|rte_eth_link|rte_eth_xstat'
types="$types|rte_eth_xstat_name|rte_ether_addr|rte_dev_iterator|rte_vhost_device_ops|rte_vhost_vring|rte_vhost_mem_region"
types="$types|rte_vhost_memory|rte_vhost_user_extern_ops|rte_dma_info|rte_dma_conf|rte_dma_vchan_conf|rte_dma_stats"
vars='RTE_ETH_(MQ_RX_.*|MQ_TX_NONE|RSS_(IP|UDP|TCP|SCTP)|RX_OFFLOAD_.*|TX_OFFLOAD_.*|LINK_.*|NAME_MAX_LEN)'
vars="$vars|RTE_ETH_DEV_.*|RTE_VHOST_USER_.*|RTE_PKTMBUF_HEADROOM|RTE_MAX_ETHPORTS|RTE_MAX_LCORE"
vars="$vars|RTE_MBUF_F_.*|VIRTIO_NET_F_.*|VIRTIO_RING_F_.*|VIRTIO_F_.*|RTE_MEMPOOL_CACHE_MAX_SIZE"
vars="$vars|RTE_DMA_STATUS_.*|RTE_DMA_DIR_MEM_TO_MEM|RTE_LOG_.*|VHOST_USER_PROTOCOL_F_.*|WEFT_.*|RTE_ETHER_.*"
rustup component add rustfmt >/dev/null 2>&1 || true
bindgen wrapper.h --output src/bindings.rs \
    --use-core --ctypes-prefix libc --rust-target 1.85 --rust-edition 2024 \
    --allowlist-function "$functions" --allowlist-type "$types" --allowlist-var "$vars" \
    --opaque-type 'rte_flow|rte_mempool|rte_mempool_.*|FILE|_IO_FILE|rte_device|rte_bus|rte_class' \
    --blocklist-type 'FILE|_IO_FILE' --raw-line 'use libc::FILE;' \
    --no-doc-comments --default-enum-style consts --no-prepend-enum-name \
    -- $(pkg-config --cflags libdpdk) -DALLOW_EXPERIMENTAL_API -include shim.h
