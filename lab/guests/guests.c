/* Guests: every virtio-user port that EAL was given is one guest; all of them run on this core.
 * Usage: guests EAL-OPTIONS --vdev=net_virtio_user0,path=...,server=1 ... -- echo|sink COUNTERS
 *   echo  sends every packet back by the ring it would leave by
 *   sink  counts and frees
 * COUNTERS is a file like that of the generator's argument `stats`; guest i counts as transmit queue i mod 16. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#define BURST 32
#define DESCRIPTORS 1024
#define MAX_GUESTS 64
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
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	struct counters *c;

	if (fd < 0 || ftruncate(fd, sizeof *c))
		return NULL;
	c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (c == MAP_FAILED)
		return NULL;
	memcpy(c->magic, "weftgen1", sizeof c->magic);
	c->tsc_hz = rte_get_tsc_hz();
	c->n_tx = QUEUES;
	return c;
}

static int
start(uint16_t port, struct rte_mempool *pool)
{
	const struct rte_eth_conf conf = {0};

	return rte_eth_dev_configure(port, 1, 1, &conf) ||
	       rte_eth_rx_queue_setup(port, 0, DESCRIPTORS, SOCKET_ID_ANY, NULL, pool) ||
	       rte_eth_tx_queue_setup(port, 0, DESCRIPTORS, SOCKET_ID_ANY, NULL) || rte_eth_dev_start(port);
}

static void
serve(uint16_t port, int echo, uint64_t *counter)
{
	struct rte_mbuf *packets[BURST];
	uint16_t n = rte_eth_rx_burst(port, 0, packets, BURST), sent = 0;

	if (!n)
		return;
	if (echo)
		sent = rte_eth_tx_burst(port, 0, packets, n);
	if (sent < n)
		rte_pktmbuf_free_bulk(packets + sent, n - sent);
	*counter += n;
}

int
main(int argc, char **argv)
{
	int used = rte_eal_init(argc, argv);
	struct counters *counters;
	struct rte_mempool *pool;
	uint16_t guests;
	int echo;

	if (used < 0 || argc - used != 3 || (strcmp(argv[used + 1], "echo") && strcmp(argv[used + 1], "sink"))) {
		fprintf(stderr, "usage: guests EAL-OPTIONS -- echo|sink COUNTERS\n");
		return 2;
	}
	echo = !strcmp(argv[used + 1], "echo");
	counters = map_counters(argv[used + 2]);
	guests = rte_eth_dev_count_avail();
	if (!counters || !guests || guests > MAX_GUESTS) {
		fprintf(stderr, "guests: %u ports (1 to %d), counters in %s\n", guests, MAX_GUESTS, argv[used + 2]);
		return 1;
	}
	pool = rte_pktmbuf_pool_create("guests", guests * 2 * DESCRIPTORS + 4096, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE,
				       SOCKET_ID_ANY);
	for (uint16_t i = 0; pool && i < guests; i++)
		if (start(i, pool)) {
			fprintf(stderr, "guests: port %u does not start\n", i);
			return 1;
		}
	if (!pool) {
		fprintf(stderr, "guests: no memory for a pool\n");
		return 1;
	}
	for (;;)
		for (uint16_t i = 0; i < guests; i++)
			serve(i, echo, &counters->tx[i % QUEUES][0]);
}
