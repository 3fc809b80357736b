/* Guests that send: every virtio-user port that EAL was given is one guest, at most 16; all of them run on this core.
 * (Guests that echo or count need no driver: bare.c.)
 * Usage: guests EAL-OPTIONS -d librte_net_weftgen.so --vdev=net_weftgen0,flows=... --vdev=net_virtio_user0,... -- COUNTERS
 * What the generator makes is sent: guest i has queue i of it and so flows of its own; what its ring has no room for is
 * lost. The buffers' size is that of WEFT_GUEST_BUFFER, bytes.
 * COUNTERS is a file like that of the generator's argument `stats`: guest i counts what it would send as receive queue i,
 * and what did not fit as missed. Several processes may share the file: together they play more guests than DPDK has
 * ports for one, and a generator queues. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#define BURST 32
#define DESCRIPTORS 1024
#define QUEUES 16

/* As in lab/generator/weftgen.h. */
struct counters {
	char magic[8];
	uint64_t tsc_hz, n_rx, n_tx, unused[4];
	uint64_t rx[QUEUES][8], tx[QUEUES][8];
	uint64_t latency[QUEUES][256];
};

static struct counters *
map_counters(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	struct counters *c;

	if (fd < 0 || ftruncate(fd, sizeof *c))
		return NULL;
	c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (c == MAP_FAILED)
		return NULL;
	memcpy(c->magic, "weftgen1", sizeof c->magic);
	c->tsc_hz = rte_get_tsc_hz();
	c->n_rx = QUEUES;
	return c;
}

/* The ports, by what they are. */
struct ports {
	uint16_t guests, guest[QUEUES];
	int generator; /* -1: none */
};

static int
find_ports(struct ports *p)
{
	char name[RTE_ETH_NAME_MAX_LEN];
	uint16_t port;

	RTE_ETH_FOREACH_DEV(port) {
		if (rte_eth_dev_get_name_by_port(port, name))
			return -1;
		if (!strncmp(name, "net_weftgen", strlen("net_weftgen")))
			p->generator = port;
		else if (p->guests < QUEUES)
			p->guest[p->guests++] = port;
		else
			return -1;
	}
	return p->guests && p->generator >= 0 ? 0 : -1;
}

/* Of a generator only the receive queues are used. */
static int
start(uint16_t port, uint16_t queues, struct rte_mempool *pool)
{
	const struct rte_eth_conf conf = {0};

	if (rte_eth_dev_configure(port, queues, 1, &conf))
		return -1;
	for (uint16_t q = 0; q < queues; q++)
		if (rte_eth_rx_queue_setup(port, q, DESCRIPTORS, SOCKET_ID_ANY, NULL, pool))
			return -1;
	return rte_eth_tx_queue_setup(port, 0, DESCRIPTORS, SOCKET_ID_ANY, NULL) || rte_eth_dev_start(port) ? -1 : 0;
}

static int
start_all(const struct ports *p, struct rte_mempool *pool)
{
	for (uint16_t i = 0; i < p->guests; i++)
		if (start(p->guest[i], 1, pool))
			return -1;
	return start(p->generator, p->guests, pool);
}

static void
add(uint64_t *counter, uint64_t n)
{
	__atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

/* One burst of a guest's own packets. */
static void
send_burst(const struct ports *p, uint16_t i, uint64_t *counters)
{
	struct rte_mbuf *packets[BURST];
	uint16_t n = rte_eth_rx_burst(p->generator, i, packets, BURST);
	uint16_t sent = rte_eth_tx_burst(p->guest[i], 0, packets, n);

	if (sent < n)
		rte_pktmbuf_free_bulk(packets + sent, n - sent);
	add(&counters[0], n);
	add(&counters[3], n - sent);
}

int
main(int argc, char **argv)
{
	int used = rte_eal_init(argc, argv);
	const char *buffer = getenv("WEFT_GUEST_BUFFER");
	struct ports ports = {.generator = -1};
	struct counters *counters;
	struct rte_mempool *pool;

	if (used < 0 || argc - used != 2) {
		fprintf(stderr, "usage: guests EAL-OPTIONS -- COUNTERS\n");
		return 2;
	}
	if (find_ports(&ports)) {
		fprintf(stderr, "guests: a generator and 1 to %d guests are needed\n", QUEUES);
		return 1;
	}
	counters = map_counters(argv[used + 1]);
	if (!counters) {
		fprintf(stderr, "guests: %s cannot be written\n", argv[used + 1]);
		return 1;
	}
	/* A generator has 2,048 buffers in rotation per queue. */
	pool = rte_pktmbuf_pool_create("guests", ports.guests * 4 * DESCRIPTORS + 4096, 256, 0,
				       buffer ? atoi(buffer) : RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
	if (!pool) {
		fprintf(stderr, "guests: no memory for a pool\n");
		return 1;
	}
	if (start_all(&ports, pool)) {
		fprintf(stderr, "guests: a port does not start\n");
		return 1;
	}
	for (;;)
		for (uint16_t i = 0; i < ports.guests; i++)
			send_burst(&ports, i, counters->rx[i]);
}
