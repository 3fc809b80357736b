/* Receive: buffers rotate through a ring as they do through an adapter's descriptors, so that none is hot. */
#include <string.h>

#include <rte_branch_prediction.h>
#include <rte_cycles.h>

#include "weftgen.h"

/* From `now` on, and nothing that came due before. */
void
rx_set_rate(struct rx_queue *q, uint64_t now)
{
	double rate = (double)*q->wanted_rate / q->n_queues;

	q->rate = *q->wanted_rate;
	q->per_cycle = rate * 4294967296.0 / rte_get_tsc_hz();
	q->step = rate > 0 ? RTE_MIN(rte_get_tsc_hz() / rate, 4e9) : 0;
	q->clock = now;
	q->due = 0;
}

/* How many of n packets came due by `now`; what waits beyond the ring is lost, as in an adapter. */
static uint32_t
take_due(struct rx_queue *q, uint64_t now, uint32_t n, uint32_t *first_tsc)
{
	uint64_t passed = RTE_MIN(now - q->clock, 1ull << 30), waiting;

	q->clock = now;
	q->due += passed * q->per_cycle;
	waiting = q->due >> 32;
	if (waiting > q->ring_size) {
		q->counters->missed += waiting - q->ring_size;
		q->due = (uint64_t)q->ring_size << 32 | (uint32_t)q->due;
		waiting = q->ring_size;
	}
	*first_tsc = now - waiting * q->step;
	n = RTE_MIN(n, waiting);
	q->due -= (uint64_t)n << 32;
	return n;
}

uint32_t
rx_rotate(struct rx_queue *q, struct rte_mbuf **packets, uint32_t n)
{
	struct rte_mbuf **slots = q->ring + q->head;

	n = RTE_MIN(n, q->ring_size - q->head);
	memcpy(packets, slots, n * sizeof *slots);
	if (unlikely(rte_mempool_get_bulk(q->pool, (void **)slots, n))) {
		q->counters->no_buffer += n;
		return 0;
	}
	q->head = (q->head + n) & (q->ring_size - 1);
	return n;
}

uint32_t
rx_due(struct rx_queue *q, uint64_t made, uint64_t now, uint32_t want, uint32_t *tsc)
{
	const struct config *config = q->config;
	uint32_t n = RTE_MIN(want, (uint32_t)MAX_BURST);

	*tsc = now;
	if (config->limit)
		n = RTE_MIN(n, config->limit - RTE_MIN(made, config->limit));
	if (config->rate && unlikely(q->rate != *q->wanted_rate))
		rx_set_rate(q, now);
	return config->rate ? take_due(q, now, n, tsc) : n;
}

uint16_t
weftgen_rx(void *queue, struct rte_mbuf **packets, uint16_t want)
{
	struct rx_queue *q = queue;
	struct rx_counters *counters = q->counters;
	uint64_t now = rte_rdtsc();
	uint32_t tsc, n = rx_due(q, counters->packets, now, want, &tsc);
	struct plan plan;

	if (n)
		n = rx_rotate(q, packets, n);
	if (!n)
		return 0;
	order_next(&q->order, &plan, n);
	frame_plan(q, &plan, n);
	counters->bytes += frame_write(q, packets, &plan, n, tsc, q->step);
	counters->packets += n;
	counters->tsc = now;
	return n;
}

/* Of a port that only takes packets. */
uint16_t
weftgen_rx_nothing(void *queue, struct rte_mbuf **packets, uint16_t want)
{
	return 0;
}
