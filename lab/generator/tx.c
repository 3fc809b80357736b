/* Transmit: counts, checks what the stamps say, frees. */
#include <string.h>

#include <rte_branch_prediction.h>
#include <rte_cycles.h>

#include "weftgen.h"

/* refcnt and nb_segs in the mbuf's rearm word; both are 1 in a packet that goes back as it is. */
#define SIMPLE_MASK 0x0000ffffffff0000ull
#define SIMPLE 0x0000000100010000ull
#define SHARED_FLAGS (RTE_MBUF_F_INDIRECT | RTE_MBUF_F_EXTERNAL)

/* A sampled flow's packet: is it the one that is due? (RFC 4737 section 3.3: a smaller number is a reordered packet.) */
static __rte_always_inline void
check_sequence(struct tx_queue *q, const struct stamp *s)
{
	uint64_t stream = s->stream & ((1 << STAMP_STREAM_BITS) - 1);
	uint32_t slot = s->stream >> STAMP_STREAM_BITS;
	struct tx_slot *t = &q->slots[(slot ^ stream * 0x9d) % SLOTS];
	uint64_t tag = 1ull << 63 | stream << 32 | s->flow;
	int32_t ahead = s->sequence - t->expected;

	if (likely(t->tag == tag && ahead == 0)) {
		t->expected++;
	} else if (t->tag != tag) {
		*t = (struct tx_slot){.tag = tag, .expected = s->sequence + 1};
	} else if (ahead > 0) {
		q->counters->lost += ahead;
		t->expected = s->sequence + 1;
	} else {
		/* It was counted as lost when a later one overtook it. */
		q->counters->reordered++;
		q->counters->lost -= q->counters->lost > 0;
	}
}

static __rte_always_inline const struct stamp *
stamp_of(struct rte_mbuf *m)
{
	return rte_pktmbuf_mtod_offset(m, const struct stamp *, (int)m->data_len - (int)sizeof(struct stamp));
}

static void
sample_latency(struct tx_queue *q, struct rte_mbuf *m, uint64_t now)
{
	struct stamp s;
	uint32_t cycles, log;

	if (m->nb_segs != 1 || m->data_len < sizeof s)
		return;
	memcpy(&s, stamp_of(m), sizeof s);
	if (s.magic != STAMP_TRACKED && s.magic != STAMP_PLAIN)
		return;
	cycles = RTE_MAX((uint32_t)now - s.tsc, 8u);
	log = 31 - __builtin_clz(cycles);
	q->latency[log << 3 | ((cycles >> (log - 3)) & 7)]++;
	q->counters->latency_samples++;
}

/* Bits that are all zero when the mbuf can go back to the pool as it is. */
static __rte_always_inline uint64_t
not_simple(const struct rte_mbuf *m, const struct rte_mempool *pool)
{
	uint64_t rearm;

	memcpy(&rearm, &m->rearm_data, sizeof rearm);
	return ((rearm ^ SIMPLE) & SIMPLE_MASK) | (m->ol_flags & SHARED_FLAGS) |
	       ((uintptr_t)m->pool ^ (uintptr_t)pool);
}

/* Returns how many packets carried a flow's sequence number. */
static __rte_always_inline uint32_t
check_sequences(struct tx_queue *q, struct rte_mbuf **packets, uint16_t n)
{
	uint32_t tracked = 0;

	for (uint16_t i = 0; i < n; i++) {
		struct rte_mbuf *m = packets[i];
		const struct stamp *s = stamp_of(m);

		if (unlikely(m->nb_segs != 1 || m->data_len < sizeof *s) || s->magic != STAMP_TRACKED)
			continue;
		check_sequence(q, s);
		tracked++;
	}
	return tracked;
}

uint16_t
weftgen_tx(void *queue, struct rte_mbuf **packets, uint16_t n)
{
	struct tx_queue *q = queue;
	uint64_t now = rte_rdtsc(), bytes = 0, special = 0;
	struct rte_mempool *pool;

	if (!n)
		return 0;
	pool = packets[0]->pool;
	for (uint16_t i = 0; i < n; i++) {
		special |= not_simple(packets[i], pool);
		bytes += packets[i]->pkt_len;
	}
	sample_latency(q, packets[0], now);
	if (q->track)
		q->counters->tracked += check_sequences(q, packets, n);
	q->counters->bytes += bytes;
	q->counters->packets += n;
	q->counters->tsc = now;
	if (likely(!special))
		rte_mempool_put_bulk(pool, (void **)packets, n);
	else
		for (uint16_t i = 0; i < n; i++)
			rte_pktmbuf_free(packets[i]);
	return n;
}
