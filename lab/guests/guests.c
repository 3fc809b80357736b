/* Guests: every virtio-user port that EAL was given is one guest; all of them run on this core.
 * Usage: guests EAL-OPTIONS --vdev=net_virtio_user0,path=...,server=1 ... -- echo|sink|source COUNTERS
 *   echo    sends every packet back by the ring it would leave by
 *   sink    counts and frees
 *   source  sends what generators make (-d librte_net_weftgen.so --vdev=net_weftgen0,flows=... for every 16 guests):
 *           guest i has queue i mod 16 of generator i / 16, and so flows of its own; what its ring has no room for is lost
 * The buffers' size is that of WEFT_GUEST_BUFFER, bytes.
 * COUNTERS is a file like that of the generator's argument `stats`: guest i counts what it received as transmit queue
 * i mod 16, and what it would send as receive queue i mod 16, with what did not fit as missed. */
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

enum role { ECHO, SINK, SOURCE };

static const char *const roles[] = {[ECHO] = "echo", [SINK] = "sink", [SOURCE] = "source"};

/* The ports, by what they are. */
struct ports {
	uint16_t guests, generators;
	uint16_t guest[MAX_GUESTS], generator[MAX_GUESTS / QUEUES];
};

static int
find_ports(struct ports *p)
{
	char name[RTE_ETH_NAME_MAX_LEN];
	uint16_t port;

	RTE_ETH_FOREACH_DEV(port) {
		int made = !rte_eth_dev_get_name_by_port(port, name) && !strncmp(name, "net_weftgen", 11);
		uint16_t *n = made ? &p->generators : &p->guests;

		if (*n == (made ? MAX_GUESTS / QUEUES : MAX_GUESTS))
			return -1;
		(made ? p->generator : p->guest)[(*n)++] = port;
	}
	return p->guests ? 0 : -1;
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
	for (uint16_t i = 0; i < p->generators; i++)
		if (start(p->generator[i], RTE_MIN(p->guests - i * QUEUES, QUEUES), pool))
			return -1;
	return 0;
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

/* One burst of a guest's own packets. */
static void
send_burst(const struct ports *p, uint16_t i, uint64_t *counters)
{
	struct rte_mbuf *packets[BURST];
	uint16_t n = rte_eth_rx_burst(p->generator[i / QUEUES], i % QUEUES, packets, BURST);
	uint16_t sent = rte_eth_tx_burst(p->guest[i], 0, packets, n);

	if (sent < n)
		rte_pktmbuf_free_bulk(packets + sent, n - sent);
	counters[0] += n;
	counters[3] += n - sent;
}

static void
run(const struct ports *p, enum role role, struct counters *c)
{
	for (;;)
		for (uint16_t i = 0; i < p->guests; i++)
			if (role == SOURCE)
				send_burst(p, i, c->rx[i % QUEUES]);
			else
				serve(p->guest[i], role == ECHO, &c->tx[i % QUEUES][0]);
}

static int
role_of(const char *word)
{
	for (int i = 0; i < (int)RTE_DIM(roles); i++)
		if (!strcmp(word, roles[i]))
			return i;
	return -1;
}

int
main(int argc, char **argv)
{
	int used = rte_eal_init(argc, argv);
	int role = used >= 0 && argc - used == 3 ? role_of(argv[used + 1]) : -1;
	const char *buffer = getenv("WEFT_GUEST_BUFFER");
	struct ports ports = {0};
	struct counters *counters;
	struct rte_mempool *pool;

	if (role < 0) {
		fprintf(stderr, "usage: guests EAL-OPTIONS -- echo|sink|source COUNTERS\n");
		return 2;
	}
	if (find_ports(&ports)) {
		fprintf(stderr, "guests: 1 to %d guests are possible\n", MAX_GUESTS);
		return 1;
	}
	if (role == SOURCE && ports.generators * QUEUES < ports.guests) {
		fprintf(stderr, "guests: a generator is needed for every %d guests that send\n", QUEUES);
		return 1;
	}
	counters = map_counters(argv[used + 2]);
	if (!counters) {
		fprintf(stderr, "guests: %s cannot be written\n", argv[used + 2]);
		return 1;
	}
	/* A generator has 2,048 buffers in rotation per queue. */
	pool = rte_pktmbuf_pool_create("guests", ports.guests * (role == SOURCE ? 4 : 2) * DESCRIPTORS + 4096, 256, 0,
				       buffer ? atoi(buffer) : RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
	if (!pool) {
		fprintf(stderr, "guests: no memory for a pool\n");
		return 1;
	}
	if (start_all(&ports, pool)) {
		fprintf(stderr, "guests: a port does not start\n");
		return 1;
	}
	run(&ports, role, counters);
}
