/* net_weftgen: a virtual Ethernet device that makes packets on receive and counts and frees them on transmit.
 *
 * args.c    the device arguments
 * order.c   which flow comes next
 * frame.c   what a flow's frame looks like
 * udp4.c    the same for plain UDP frames, eight at a time
 * vxlan.c   the same for VXLAN
 * stamp.c   what the packets' stamps say
 * file.c    flows and packets that come from a file
 * rx.c      receive: the rotation of buffers, rate, metadata
 * tx.c      transmit: counts, sequence and latency checks, free
 * ethdev.c  the driver's face towards DPDK, counters
 * hw/       flow rules, if it is told to be an adapter that has them */
#ifndef WEFTGEN_H
#define WEFTGEN_H

#include <stdbool.h>
#include <stdint.h>

#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

#include "hw/config.h"

#define MAX_QUEUES 16
/* On the wire: Ethernet with an MTU of 9000. */
#define MAX_SIZE 9018
/* What one call hands out at most. Small, so that plans stay in few cache lines. */
#define MAX_BURST 32
/* Sampled flows per receive queue, whose packets carry a sequence number of the flow. */
#define SLOTS 1024
/* Latency histogram: 8 buckets per power of two of TSC cycles. */
#define LATENCY_BUCKETS 256
#define NEVER_SEEN_LIMIT (1u << 28)

enum order { ORDER_SEQ, ORDER_UNIFORM, ORDER_ZIPF, ORDER_BURST, ORDER_SCATTER, ORDER_SINK };
enum kind { KIND_UDP4, KIND_TCP4, KIND_UDP6, KIND_VLAN, KIND_VXLAN, KIND_CONN, KIND_TABLE, KIND_PCAP };
enum { SIZE_IMIX = 1, SIZE_UNIFORM = 2 };

/* The device arguments; see README.md. */
struct config {
	uint32_t flows, rules, dmacs, guests, vnis, sources, size, new_share, ring;
	uint64_t seed, rate, limit;
	double s;
	enum order order;
	enum kind kind;
	bool offload, track, nat, flood;
	char stats[256], table[256], pcap[256];
	struct hw_config hw;
};

/* A set of flows: one per combination of the bits that are 1 in `wild`. 32 bytes in the file; host byte order. */
struct record {
	uint32_t src, dst, ports; /* the source port is the high half */
	uint32_t wild_src, wild_dst, wild_ports;
	uint32_t dmac;     /* the low 24 bits */
	uint32_t protocol; /* 6 or 17 */
};

/* What the argument `table` names: "weftflow", n, n_new, 48 bytes of zeros, then the records. */
struct flow_table {
	uint32_t n;     /* of flows 0 to flows - 1 */
	uint32_t n_new; /* after them: of flows that were never seen; 0 if they are made from the others */
	struct record *records;
};

/* What the argument `pcap` names. */
struct replay {
	uint32_t n;
	uint8_t *bytes;
	struct {
		uint32_t at;
		uint16_t length;
	} *packets;
};

/* Counters as they lie in the file that the argument `stats` names: host byte order, cache lines of 64-bit words. */
struct rx_counters {
	uint64_t packets, bytes, no_buffer, missed, tsc, unused[3];
} __rte_cache_aligned;

struct tx_counters {
	uint64_t packets, bytes, tracked, lost, reordered, latency_samples, tsc, unused;
} __rte_cache_aligned;

/* Of flow rules; the places are documented. */
struct hw_counters {
	uint64_t rules; /* that there are */
	uint64_t created, refused, destroyed, stale_handles;
	uint64_t checked, check_failed;
	uint64_t passed;       /* forwarded or dropped without the host, by arithmetic */
	uint64_t over_ceiling; /* lost by hw_pps */
	uint64_t delivered_packets, delivered_bytes; /* to this port's VF, or out of this port */
	uint64_t dropped_packets;                    /* by rules */
	uint64_t lost_marks, wrong_marks;            /* faults */
	uint64_t unused[18];
} __rte_cache_aligned;

/* What is to go wrong: may be written at any time. */
struct hw_faults {
	uint64_t refuse_above;  /* creates fail if there are so many rules */
	uint64_t fail_every;    /* every so manieth create fails */
	uint64_t create_errno;  /* with this; EIO if 0 */
	uint64_t destroy_errno; /* destroys fail with this, and the rule stays */
	uint64_t slow_us;       /* more per call */
	uint64_t lose_per_mille, wrong_per_mille; /* marks */
	uint64_t stale_packets; /* hw_lag */
	uint64_t widen;         /* partial masks are ignored */
	uint64_t count;         /* 1: counters are frozen; 2: they are half of what they were */
	uint64_t reset;         /* another number than before: rules are gone, and an event */
	uint64_t gone;          /* the adapter does not answer, and an event */
	uint64_t other_per_mille; /* marks of another slot: bit 8 */
	uint64_t void_every;      /* every so manieth rule takes no effect */
	uint64_t link_down;       /* there is no carrier, and an event for each change */
	uint64_t unused[17];
} __rte_cache_aligned;

struct counters {
	char magic[8]; /* "weftgen1" */
	uint64_t tsc_hz, n_rx, n_tx;
	uint64_t rate; /* packets/s of all queues; 0: none; can be written while it runs if the argument `rate` was given */
	uint64_t unused[3];
	struct rx_counters rx[MAX_QUEUES];
	struct tx_counters tx[MAX_QUEUES];
	uint64_t latency[MAX_QUEUES][LATENCY_BUCKETS];
	struct hw_counters hw;
	struct hw_faults faults;
};

/* The last 16 bytes of every frame that has room for them. Host byte order. */
struct stamp {
	uint16_t magic;    /* STAMP_TRACKED or STAMP_PLAIN */
	uint16_t stream;   /* the port that made it (6 bits), the flow's slot if tracked */
	uint32_t flow;
	uint32_t sequence; /* among the flow's tracked packets if tracked, else 0 */
	uint32_t tsc;      /* low half of the TSC when it was made, or was due by `rate` */
};
#define STAMP_TRACKED 0x4757
#define STAMP_PLAIN 0x4756
#define STAMP_STREAM_BITS 6

/* Zipf: ranks in intervals, and Walker's alias table over these: a threshold of 24 bits above the alias. 3 KiB, which
 * stay in L1 beside the packets. */
#define ZIPF_BITS 8
#define ZIPF_INTERVALS (1u << ZIPF_BITS)

struct zipf {
	uint32_t n; /* intervals in use */
	uint32_t picks[ZIPF_INTERVALS];
	struct zipf_interval {
		uint32_t start, width;
	} intervals[ZIPF_INTERVALS];
};

/* One flow-order generator. */
struct order_state {
	enum order order;
	uint64_t random, count, drawn;
	uint32_t sources; /* outer ones */
	uint32_t key;
	bool tunnel; /* `source` is an outer source */
	uint32_t first, flows, next;
	uint32_t new_threshold, new_next;
	struct zipf *zipf;
};

/* What one burst is made of, before it is written. */
struct plan {
	uint32_t flow[MAX_BURST];
	uint32_t source[MAX_BURST]; /* vxlan: the outer source */
	uint32_t rule[MAX_BURST];   /* vxlan: the VNI */
	uint32_t mac[MAX_BURST];
	uint32_t length[MAX_BURST]; /* unless all have the same */
	uint32_t src[MAX_BURST], dst[MAX_BURST], ports[MAX_BURST]; /* udp4 and table */
	uint32_t tag[MAX_BURST], sequence[MAX_BURST], tsc[MAX_BURST]; /* stamps, with the flow */
	uint32_t mark[MAX_BURST], mark_flags[MAX_BURST]; /* if rules do more than mark */
};

/* Remainders without division: for a < 2^28, a / n = a multiplier >> shift (Granlund and Montgomery 1994). */
struct divisor {
	uint32_t n, shift, multiplier;
};

static inline struct divisor
divisor_of(uint32_t n)
{
	struct divisor d = {.n = n, .shift = 28};

	while ((1ull << (d.shift - 28)) < n)
		d.shift++;
	d.multiplier = ((1ull << d.shift) + n - 1) / n;
	return d;
}

static inline uint32_t
remainder_of(uint32_t a, const struct divisor *d)
{
	return a - (uint32_t)((uint64_t)a * d->multiplier >> d->shift) * d->n;
}

struct frame_constants {
	struct divisor rules, macs, new_rules, vnis, sources;
	uint32_t flows;
	uint32_t length; /* of every buffer; 0: they differ */
	uint16_t header; /* bytes before the payload */
	uint8_t port;    /* last byte of the source MAC */
	bool sourced;    /* `order` says what the outer source is; else it is the flow modulo `sources` */
	bool one_source; /* of inner packets */
};

struct rx_queue {
	struct rte_mempool *pool;
	struct rte_mbuf **ring;
	uint8_t *scratch; /* a buffer that nobody reads */
	uint32_t head, ring_size, buffer_offset;
	uint32_t stream;
	uint32_t track_mask, track_shift, bursts;
	uint64_t rearm, ol_flags;
	const struct config *config;
	const struct flow_table *table;
	const struct replay *replay;
	struct rx_counters *counters;
	struct order_state order;
	struct frame_constants frame;
	/* With `rate`: packets that came due up to `clock` and wait; the low 32 bits are the fraction. */
	uint64_t clock, per_cycle, due;
	uint64_t rate; /* what these are made from */
	const volatile uint64_t *wanted_rate;
	uint32_t n_queues;
	uint32_t step; /* cycles between two packets */
	uint32_t size_state;
	struct hw_queue *hw;
	uint32_t slots[SLOTS];
};

struct tx_slot {
	uint64_t tag; /* 1, stream, flow */
	uint32_t expected;
};

struct tx_queue {
	bool track;
	struct rte_mempool *pool; /* whose objects are all that lies in pool_size bytes from pool_start */
	uintptr_t pool_start, pool_size;
	bool unzoned; /* the pool's memory is its own: packets are freed one by one */
	struct tx_counters *counters;
	uint64_t *latency;
	struct tx_slot slots[SLOTS];
};

struct device {
	struct config config;
	struct flow_table table;
	struct replay replay;
	struct rte_ether_addr mac;
	bool checks_checksums;               /* the host asked for it */
	struct rte_eth_fc_conf flow_control; /* as it was set; nothing is paused */
	uint16_t port, n_rx; /* receive queues */
	struct hw *hw;       /* NULL: an adapter without flow rules */
	struct counters *counters;
	struct counters base; /* at the last reset */
	struct rx_queue *rx[MAX_QUEUES];
	struct tx_queue *tx[MAX_QUEUES];
};

/* args.c: 0, or -EINVAL after one log line that says what is wrong. */
int config_parse(struct config *config, const char *args);
int number_parse(const char *key, const char *text, uint64_t least, uint64_t most, uint64_t *value);

/* order.c */
int order_init(struct order_state *order, const struct config *config, uint32_t queue, uint32_t n_queues);
void order_free(struct order_state *order);
void order_next(struct order_state *order, struct plan *plan, uint32_t n);

/* frame.c: sizes are those of the wire, with the 4 bytes of FCS that no buffer contains. */
uint32_t frame_least_size(const struct config *config);
void frame_init(struct frame_constants *frame, const struct device *device, uint16_t port);
/* What the flows' numbers say: lengths, rules, MACs. */
void frame_plan(struct rx_queue *queue, struct plan *plan, uint32_t n);
/* Writes metadata and frames; the i-th has the time stamp tsc + i step. Returns the bytes written. */
uint64_t frame_write(struct rx_queue *queue, struct rte_mbuf **packets, struct plan *plan, uint32_t n, uint32_t tsc,
		     uint32_t step);

/* udp4.c, vxlan.c: frame_write() for kind udp4 and for table; for vxlan. The stamps are planned. */
uint64_t udp4_burst(struct rx_queue *queue, struct rte_mbuf **packets, struct plan *plan, uint32_t n);
uint64_t vxlan_burst(struct rx_queue *queue, struct rte_mbuf **packets, struct plan *plan, uint32_t n);

/* stamp.c: the i-th packet was made, or due, at tsc + i step. */
void plan_stamps(struct rx_queue *queue, struct plan *plan, uint32_t n, uint32_t tsc, uint32_t step);

/* file.c: 0, or a negative errno after one log line. */
int file_load(struct device *device);
void file_free(struct device *device);

/* rx.c, tx.c */
void rx_set_rate(struct rx_queue *queue, uint64_t now);
/* How many packets to make of the n that are wanted; *tsc: when the first was due. */
uint32_t rx_due(struct rx_queue *queue, uint64_t made, uint64_t now, uint32_t n, uint32_t *tsc);
/* Hands out n buffers at most, and puts fresh ones into the ring; 0 if the pool is empty. */
uint32_t rx_rotate(struct rx_queue *queue, struct rte_mbuf **packets, uint32_t n);
uint16_t weftgen_rx(void *queue, struct rte_mbuf **packets, uint16_t n);
uint16_t weftgen_rx_nothing(void *queue, struct rte_mbuf **packets, uint16_t n);
uint16_t weftgen_tx(void *queue, struct rte_mbuf **packets, uint16_t n);

extern int weftgen_log_type;
#define LOG(level, ...) rte_log(RTE_LOG_##level, weftgen_log_type, "net_weftgen: " __VA_ARGS__)

/* The next 64 random bits: a hash of a counter, so that steps do not wait for each other (SplitMix64). */
static inline uint64_t
random_at(struct order_state *order)
{
	uint64_t z = order->random += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

#endif
