/* Transmit: counts, checks what the stamps say, frees. */
#include <string.h>

#include <immintrin.h>
#include <rte_branch_prediction.h>
#include <rte_cycles.h>
#include <rte_memzone.h>

#include "weftgen.h"

/* refcnt and nb_segs in the mbuf's rearm word; both are 1 in a packet that goes back as it is. */
#define SIMPLE_MASK 0x0000ffffffff0000ull
#define SIMPLE 0x0000000100010000ull
#define SHARED_FLAGS (RTE_MBUF_F_INDIRECT | RTE_MBUF_F_EXTERNAL)

/* The sampled flow that was seen last, in registers. */
struct current {
	struct tx_slot *slot;
	struct tx_slot value;
};

/* A sampled flow's packet: is it the one that is due? (RFC 4737 section 3.3: a smaller number is a reordered packet.) */
static __rte_always_inline void
check_sequence(struct tx_queue *q, struct current *c, const struct stamp *s)
{
	uint64_t stream = s->stream & ((1 << STAMP_STREAM_BITS) - 1);
	uint32_t slot = s->stream >> STAMP_STREAM_BITS;
	struct tx_slot *t = &q->slots[(slot ^ stream * 0x9d) % SLOTS];
	uint64_t tag = 1ull << 63 | stream << 32 | s->flow;
	int32_t ahead;

	if (t != c->slot) {
		*c->slot = c->value;
		*c = (struct current){t, *t};
	}
	ahead = s->sequence - c->value.expected;
	if (likely(c->value.tag == tag && ahead == 0)) {
		c->value.expected++;
	} else if (c->value.tag != tag) {
		c->value = (struct tx_slot){.tag = tag, .expected = s->sequence + 1};
	} else if (ahead > 0) {
		q->counters->lost += ahead;
		c->value.expected = s->sequence + 1;
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

/* One packet of the burst, any of them, counts for all n: else a switch that sends many packets at once after a pause would
 * seem to have paused for few. */
static void
sample_latency(struct tx_queue *q, struct rte_mbuf **packets, uint32_t n, uint64_t now)
{
	uint32_t any = (uint32_t)now * 0x9e3779b1u, cycles, log;
	struct rte_mbuf *m = packets[(uint64_t)any * n >> 32];
	struct stamp s;

	if (m->nb_segs != 1 || m->data_len < sizeof s)
		return;
	memcpy(&s, stamp_of(m), sizeof s);
	if (s.magic != STAMP_TRACKED && s.magic != STAMP_PLAIN)
		return;
	cycles = RTE_MAX((uint32_t)now - s.tsc, 8u);
	log = 31 - __builtin_clz(cycles);
	q->latency[log << 3 | ((cycles >> (log - 3)) & 7)] += n;
	q->counters->latency_samples += n;
}

/* Where a pool's objects lie, so that a buffer's pool is known without a look at its second line: in a memory zone that
 * nobody but the pool has. */
struct find {
	uintptr_t object, start, size;
};

static void
find_zone(const struct rte_memzone *zone, void *find)
{
	struct find *f = find;

	if (f->object - (uintptr_t)zone->addr < zone->len) {
		f->start = (uintptr_t)zone->addr;
		f->size = zone->len;
	}
}

static __rte_noinline void
learn_pool(struct tx_queue *q, struct rte_mbuf *m)
{
	struct find find = {.object = (uintptr_t)m};

	if (m->pool == q->pool && q->unzoned)
		return;
	rte_memzone_walk(find_zone, &find);
	q->pool = m->pool;
	q->pool_start = find.start;
	q->pool_size = find.size;
	q->unzoned = !find.size;
}

static __rte_noinline uint64_t
look_tracked(struct tx_queue *q, const struct rte_mbuf *m, const struct stamp *s, struct current *current)
{
	if (m->nb_segs != 1)
		return 0;
	check_sequence(q, current, s);
	return 1;
}

/* What is not 0 if packets cannot go back to the pool as they are. */
struct unusual {
	__m128i words; /* of refcnt, nb_segs and flags */
	uint64_t outside;
};

/* Looks at one packet, at as little of it as possible. */
static __rte_always_inline void
look(struct tx_queue *q, const struct rte_mbuf *m, struct unusual *u)
{
	const __m128i usual = _mm_set_epi64x(0, SIMPLE);
	uint64_t offset = (uintptr_t)m - q->pool_start;

	u->words = _mm_or_si128(u->words, _mm_xor_si128(usual, _mm_loadu_si128((const void *)&m->rearm_data)));
	u->outside |= offset | (q->pool_size - 1 - offset);
}

static __rte_always_inline const struct stamp *
tracked_stamp(const struct rte_mbuf *m)
{
	uint32_t length = m->data_len;
	const struct stamp *s = (const void *)((const uint8_t *)m->buf_addr + m->data_off + length - sizeof *s);

	return likely(length >= sizeof *s) && unlikely(s->magic == STAMP_TRACKED) ? s : NULL;
}

uint16_t
weftgen_tx(void *queue, struct rte_mbuf **packets, uint16_t n)
{
	struct tx_queue *q = queue;
	uint64_t now = rte_rdtsc(), bytes = 0, tracked = 0;
	struct current current = {&q->slots[0], q->slots[0]};
	struct unusual u = {};

	if (!n)
		return 0;
	if (unlikely((uintptr_t)packets[0] - q->pool_start >= q->pool_size))
		learn_pool(q, packets[0]);
	for (uint16_t i = 0; i < n; i++) {
		look(q, packets[i], &u);
		bytes += packets[i]->pkt_len;
	}
	for (uint16_t i = 0; q->track && i < n; i++) {
		const struct stamp *s = tracked_stamp(packets[i]);

		if (s)
			tracked += look_tracked(q, packets[i], s, &current);
	}
	*current.slot = current.value;
	sample_latency(q, packets, n, now);
	q->counters->tracked += tracked;
	q->counters->bytes += bytes;
	q->counters->packets += n;
	q->counters->tsc = now;
	u.words = _mm_and_si128(u.words, _mm_set_epi64x(SHARED_FLAGS, SIMPLE_MASK));
	if (likely(_mm_testz_si128(u.words, u.words) && !(u.outside >> 63)))
		rte_mempool_put_bulk(q->pool, (void **)packets, n);
	else
		for (uint16_t i = 0; i < n; i++)
			rte_pktmbuf_free(packets[i]);
	return n;
}
