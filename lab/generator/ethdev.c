/* The driver's face towards DPDK. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ethdev_driver.h>
#include <ethdev_vdev.h>
#include <rte_cycles.h>
#include <rte_malloc.h>

#include "hw/adapter.h"

int weftgen_log_type;

static const struct rte_eth_link link_up = {
	.link_speed = RTE_ETH_SPEED_NUM_100G,
	.link_duplex = RTE_ETH_LINK_FULL_DUPLEX,
	.link_status = RTE_ETH_LINK_UP,
	.link_autoneg = RTE_ETH_LINK_FIXED,
};

static int
configure(struct rte_eth_dev *dev)
{
	struct device *d = dev->data->dev_private;

	d->counters->n_rx = d->n_rx = dev->data->nb_rx_queues;
	d->counters->n_tx = dev->data->nb_tx_queues;
	d->checks_checksums = (dev->data->dev_conf.rxmode.offloads & RTE_ETH_RX_OFFLOAD_CHECKSUM) != 0;
	LOG(INFO, "port %u: checksums are %s\n", dev->data->port_id, d->checks_checksums ? "checked" : "left alone");
	return 0;
}

static void
rx_release(struct rte_eth_dev *dev, uint16_t index)
{
	struct rx_queue *q = dev->data->rx_queues[index];

	if (!q || !q->ring)
		return;
	rte_mempool_put_bulk(q->pool, (void **)q->ring, q->ring_size);
	rte_free(q->ring);
	rte_free(q->scratch);
	order_free(&q->order);
	q->ring = NULL;
	q->scratch = NULL;
}

/* Where a packet starts in each buffer of the pool, if it is the same for all. */
static int
find_offset(struct rx_queue *q)
{
	q->buffer_offset = sizeof(struct rte_mbuf) + rte_pktmbuf_priv_size(q->pool) + RTE_PKTMBUF_HEADROOM;
	for (uint32_t i = 0; i < q->ring_size; i++)
		if ((uint8_t *)q->ring[i]->buf_addr + RTE_PKTMBUF_HEADROOM != (uint8_t *)q->ring[i] + q->buffer_offset)
			return -EINVAL;
	return 0;
}

static int
fill_ring(struct rx_queue *q)
{
	q->ring = rte_zmalloc(NULL, q->ring_size * sizeof *q->ring, RTE_CACHE_LINE_SIZE);
	if (!q->ring)
		return -ENOMEM;
	if (rte_mempool_get_bulk(q->pool, (void **)q->ring, q->ring_size)) {
		LOG(ERR, "the pool has no %u buffers\n", q->ring_size);
		rte_free(q->ring);
		q->ring = NULL;
		return -ENOMEM;
	}
	return 0;
}

static void
init_rx(struct rx_queue *q, struct device *d, uint16_t port, uint16_t index, uint16_t n_queues)
{
	uint32_t flows = RTE_MAX(d->config.flows / n_queues, 1u);

	q->config = &d->config;
	q->counters = &d->counters->rx[index];
	q->stream = port % (1 << STAMP_STREAM_BITS);
	q->track_shift = 0;
	while (flows >> q->track_shift > SLOTS)
		q->track_shift++;
	q->track_mask = (1u << q->track_shift) - 1;
	/* data_off, refcnt 1, nb_segs 1, port */
	q->rearm = RTE_PKTMBUF_HEADROOM | 1ull << 16 | 1ull << 32 | (uint64_t)port << 48;
	q->ol_flags = 0;
	if (d->config.offload)
		q->ol_flags = RTE_MBUF_F_RX_RSS_HASH;
	if (d->checks_checksums)
		q->ol_flags |= RTE_MBUF_F_RX_IP_CKSUM_GOOD | RTE_MBUF_F_RX_L4_CKSUM_GOOD;
	q->head = 0;
	q->wanted_rate = &d->counters->rate;
	q->n_queues = n_queues;
	rx_set_rate(q, rte_rdtsc());
	q->table = &d->table;
	q->replay = &d->replay;
	frame_init(&q->frame, d, port);
}

static int
rx_setup(struct rte_eth_dev *dev, uint16_t index, uint16_t descriptors, unsigned int socket,
	 const struct rte_eth_rxconf *conf, struct rte_mempool *pool)
{
	struct device *d = dev->data->dev_private;
	struct rx_queue *q = d->rx[index];
	int ret;

	if (rte_pktmbuf_data_room_size(pool) < RTE_PKTMBUF_HEADROOM + RTE_MAX(d->config.size, 1518u)) {
		LOG(ERR, "the pool's buffers are too small for the packets\n");
		return -EINVAL;
	}
	if (!q)
		q = d->rx[index] = rte_zmalloc_socket(NULL, sizeof *q, RTE_CACHE_LINE_SIZE, socket);
	if (!q)
		return -ENOMEM;
	q->pool = pool;
	q->ring_size = d->config.ring;
	ret = fill_ring(q);
	if (ret)
		return ret;
	dev->data->rx_queues[index] = q;
	init_rx(q, d, dev->data->port_id, index, dev->data->nb_rx_queues);
	ret = find_offset(q);
	q->scratch = rte_zmalloc(NULL, q->buffer_offset + MAX_SIZE, RTE_CACHE_LINE_SIZE);
	if (!ret && !q->scratch)
		ret = -ENOMEM;
	if (!ret)
		ret = order_init(&q->order, &d->config, index, dev->data->nb_rx_queues);
	if (ret)
		rx_release(dev, index);
	return ret;
}

static int
tx_setup(struct rte_eth_dev *dev, uint16_t index, uint16_t descriptors, unsigned int socket,
	 const struct rte_eth_txconf *conf)
{
	struct device *d = dev->data->dev_private;
	struct tx_queue *q = d->tx[index];

	if (!q)
		q = d->tx[index] = rte_zmalloc_socket(NULL, sizeof *q, RTE_CACHE_LINE_SIZE, socket);
	if (!q)
		return -ENOMEM;
	q->track = d->config.track;
	q->counters = &d->counters->tx[index];
	q->latency = d->counters->latency[index];
	dev->data->tx_queues[index] = q;
	return 0;
}

static int
start(struct rte_eth_dev *dev)
{
	struct device *d = dev->data->dev_private;

	for (uint16_t i = 0; i < dev->data->nb_rx_queues; i++)
		d->rx[i]->clock = rte_rdtsc();
	if (d->hw && hw_start(d, dev->data->nb_rx_queues))
		return -ENOMEM;
	dev->data->dev_link = link_up;
	return 0;
}

static int
stop(struct rte_eth_dev *dev)
{
	struct device *d = dev->data->dev_private;

	if (d->hw)
		hw_stop(d);
	dev->data->dev_link.link_status = RTE_ETH_LINK_DOWN;
	return 0;
}

static int
accept_mode(struct rte_eth_dev *dev)
{
	return 0;
}

static int
link_update(struct rte_eth_dev *dev, int wait)
{
	return 0;
}

static int
mtu_set(struct rte_eth_dev *dev, uint16_t mtu)
{
	return 0;
}

static int
mac_set(struct rte_eth_dev *dev, struct rte_ether_addr *mac)
{
	return 0;
}

static int
flow_control_get(struct rte_eth_dev *dev, struct rte_eth_fc_conf *conf)
{
	struct device *d = dev->data->dev_private;

	if (!d->config.offload)
		return -ENOTSUP;
	*conf = d->flow_control;
	return 0;
}

static int
flow_control_set(struct rte_eth_dev *dev, struct rte_eth_fc_conf *conf)
{
	static const char *const modes[] = {"none", "rx_pause", "tx_pause", "full"};
	struct device *d = dev->data->dev_private;

	d->flow_control = *conf;
	LOG(INFO, "port %u: flow control %s, autoneg %u\n", d->port, modes[conf->mode], conf->autoneg);
	return 0;
}

static int
flow_ops(struct rte_eth_dev *dev, const struct rte_flow_ops **ops)
{
	struct device *d = dev->data->dev_private;

	*ops = d->hw ? &hw_flow_ops : NULL;
	return 0;
}

static int
info(struct rte_eth_dev *dev, struct rte_eth_dev_info *info)
{
	struct device *d = dev->data->dev_private;

	info->max_mac_addrs = 1;
	info->max_rx_pktlen = 9728;
	info->max_mtu = 9728 - RTE_ETHER_HDR_LEN - RTE_ETHER_CRC_LEN;
	info->max_rx_queues = MAX_QUEUES;
	info->max_tx_queues = MAX_QUEUES;
	info->speed_capa = RTE_ETH_LINK_SPEED_100G;
	if (d->hw) {
		info->switch_info.name = *d->config.hw.adapter ? d->config.hw.adapter : "net_weftgen";
		info->switch_info.domain_id = d->hw->adapter->domain;
		info->switch_info.port_id = d->hw->place;
	}
	if (d->hw && d->config.hw.keep)
		info->dev_capa |= RTE_ETH_DEV_CAPA_FLOW_RULE_KEEP;
	if (d->config.offload) {
		info->rx_offload_capa = RTE_ETH_RX_OFFLOAD_CHECKSUM | RTE_ETH_RX_OFFLOAD_RSS_HASH;
		info->flow_type_rss_offloads = RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_TCP;
	}
	return 0;
}

/* ---- counters ---- */

/* Private memory, or the file that `stats` names. */
static int
map_counters(struct device *d)
{
	int fd, ret = 0;

	if (!*d->config.stats) {
		d->counters = rte_zmalloc(NULL, sizeof *d->counters, RTE_CACHE_LINE_SIZE);
		if (!d->counters)
			return -ENOMEM;
	} else {
		fd = open(d->config.stats, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
		if (fd < 0 || ftruncate(fd, sizeof *d->counters))
			ret = -errno;
		if (!ret) {
			d->counters = mmap(NULL, sizeof *d->counters, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			if (d->counters == MAP_FAILED)
				ret = -errno;
		}
		if (fd >= 0)
			close(fd);
		if (ret) {
			d->counters = NULL;
			LOG(ERR, "stats=%s: %s\n", d->config.stats, strerror(-ret));
			return ret;
		}
	}
	memcpy(d->counters->magic, "weftgen1", sizeof d->counters->magic);
	d->counters->tsc_hz = rte_get_tsc_hz();
	d->counters->rate = d->config.rate;
	return 0;
}

static void
unmap_counters(struct device *d)
{
	if (*d->config.stats && d->counters)
		munmap(d->counters, sizeof *d->counters);
	else
		rte_free(d->counters);
	d->counters = NULL;
}

/* Adds up one field over all queues, less what was there at the last reset. */
#define SUM(d, side, field)                                                                                            \
	({                                                                                                             \
		uint64_t sum_ = 0;                                                                                     \
		for (int i_ = 0; i_ < MAX_QUEUES; i_++)                                                                \
			sum_ += (d)->counters->side[i_].field - (d)->base.side[i_].field;                              \
		sum_;                                                                                                  \
	})

static int
stats_get(struct rte_eth_dev *dev, struct rte_eth_stats *stats)
{
	struct device *d = dev->data->dev_private;

	stats->ipackets = SUM(d, rx, packets);
	stats->ibytes = SUM(d, rx, bytes);
	stats->imissed = SUM(d, rx, missed);
	stats->rx_nombuf = SUM(d, rx, no_buffer);
	stats->opackets = SUM(d, tx, packets);
	stats->obytes = SUM(d, tx, bytes);
	return 0;
}

static int
stats_reset(struct rte_eth_dev *dev)
{
	struct device *d = dev->data->dev_private;

	d->base = *d->counters;
	return 0;
}

/* Nanoseconds below which `share` of the sampled packets stayed in the switch: a bucket's upper edge. */
static uint64_t
latency_ns(const struct device *d, double share)
{
	uint64_t total = SUM(d, tx, latency_samples), seen = 0;

	for (uint32_t b = 0; total && b < LATENCY_BUCKETS; b++) {
		for (int i = 0; i < MAX_QUEUES; i++)
			seen += d->counters->latency[i][b] - d->base.latency[i][b];
		if (seen >= total * share)
			return (double)((9ull + (b & 7)) << (b >> 3)) / 8 * 1e9 / d->counters->tsc_hz;
	}
	return 0;
}

/* OVS shows only counters whose names end in _errors or _dropped or contain _management_. */
static const char *const xstat_names[] = {
	"tx_sequence_lost_errors",      "tx_sequence_reordered_errors", "tx_management_tracked_packets",
	"tx_management_latency_p50_ns", "tx_management_latency_p99_ns", "tx_management_latency_p999_ns",
};

static int
xstats_get(struct rte_eth_dev *dev, struct rte_eth_xstat *stats, unsigned int n)
{
	struct device *d = dev->data->dev_private;
	const uint64_t values[RTE_DIM(xstat_names)] = {
		SUM(d, tx, lost),    SUM(d, tx, reordered), SUM(d, tx, tracked),
		latency_ns(d, 0.50), latency_ns(d, 0.99),   latency_ns(d, 0.999),
	};

	for (unsigned int i = 0; n >= RTE_DIM(values) && i < RTE_DIM(values); i++)
		stats[i] = (struct rte_eth_xstat){.id = i, .value = values[i]};
	return RTE_DIM(values);
}

static int
xstats_names(struct rte_eth_dev *dev, struct rte_eth_xstat_name *names, unsigned int n)
{
	for (unsigned int i = 0; names && i < RTE_MIN(n, RTE_DIM(xstat_names)); i++)
		snprintf(names[i].name, sizeof names[i].name, "%s", xstat_names[i]);
	return RTE_DIM(xstat_names);
}

/* ---- coming and going ---- */

static int
close_device(struct rte_eth_dev *dev)
{
	struct device *d = dev->data->dev_private;

	for (uint16_t i = 0; i < dev->data->nb_rx_queues; i++)
		rx_release(dev, i);
	for (int i = 0; i < MAX_QUEUES; i++) {
		rte_free(d->rx[i]);
		rte_free(d->tx[i]);
		d->rx[i] = NULL;
		d->tx[i] = NULL;
	}
	hw_close(d);
	file_free(d);
	unmap_counters(d);
	dev->data->mac_addrs = NULL; /* part of dev_private */
	return 0;
}

static const struct eth_dev_ops ops = {
	.dev_configure = configure,
	.dev_start = start,
	.dev_stop = stop,
	.dev_close = close_device,
	.dev_infos_get = info,
	.rx_queue_setup = rx_setup,
	.rx_queue_release = rx_release,
	.tx_queue_setup = tx_setup,
	.link_update = link_update,
	.mtu_set = mtu_set,
	.mac_addr_set = mac_set,
	.flow_ctrl_get = flow_control_get,
	.flow_ctrl_set = flow_control_set,
	.promiscuous_enable = accept_mode,
	.promiscuous_disable = accept_mode,
	.allmulticast_enable = accept_mode,
	.allmulticast_disable = accept_mode,
	.stats_get = stats_get,
	.stats_reset = stats_reset,
	.xstats_get = xstats_get,
	.xstats_get_names = xstats_names,
	.xstats_reset = stats_reset,
	.flow_ops_get = flow_ops,
};

static int
probe(struct rte_vdev_device *vdev)
{
	struct rte_eth_dev *dev;
	struct config config;
	struct device *d;
	int ret;

	if (rte_eal_process_type() != RTE_PROC_PRIMARY) {
		LOG(ERR, "secondary processes are not supported\n");
		return -ENOTSUP;
	}
	if (config_parse(&config, rte_vdev_device_args(vdev)))
		return -EINVAL;
	if (vdev->device.numa_node == SOCKET_ID_ANY)
		vdev->device.numa_node = rte_socket_id() == (unsigned int)SOCKET_ID_ANY ? 0 : rte_socket_id();
	dev = rte_eth_vdev_allocate(vdev, sizeof *d);
	if (!dev)
		return -ENOMEM;
	d = dev->data->dev_private;
	d->config = config;
	d->port = dev->data->port_id;
	ret = file_load(d);
	if (!ret)
		ret = map_counters(d);
	if (!ret && config.hw.on) {
		dev->data->dev_flags |= RTE_ETH_DEV_INTR_LSC;
		ret = hw_open(d);
	}
	if (ret) {
		unmap_counters(d);
		file_free(d);
		rte_eth_dev_release_port(dev);
		return ret;
	}
	if (config.hw.representor) {
		dev->data->dev_flags |= RTE_ETH_DEV_REPRESENTOR;
		dev->data->representor_id = config.hw.vf;
		dev->data->backer_port_id = dev->data->port_id;
	}
	d->mac = (struct rte_ether_addr){{6, 0x77, 0x65, 0x66, 0x74, dev->data->port_id}};
	dev->data->mac_addrs = &d->mac;
	dev->data->promiscuous = 1;
	dev->data->dev_link = link_up;
	dev->data->dev_link.link_status = RTE_ETH_LINK_DOWN;
	dev->dev_ops = &ops;
	dev->rx_pkt_burst = config.order == ORDER_SINK ? weftgen_rx_nothing : d->hw ? weftgen_rx_hw : weftgen_rx;
	dev->tx_pkt_burst = weftgen_tx;
	rte_eth_dev_probing_finish(dev);
	return 0;
}

static int
remove_device(struct rte_vdev_device *vdev)
{
	struct rte_eth_dev *dev = rte_eth_dev_allocated(rte_vdev_device_name(vdev));

	if (!dev)
		return 0;
	close_device(dev);
	return rte_eth_dev_release_port(dev);
}

static struct rte_vdev_driver driver = {.probe = probe, .remove = remove_device};

RTE_PMD_REGISTER_VDEV(net_weftgen, driver);
RTE_LOG_REGISTER(weftgen_log_type, pmd.net.weftgen, NOTICE);
