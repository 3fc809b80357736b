/* The last 16 bytes of frames: who made them when, and for sampled flows the how manieth it is. */
#include "vector.h"

/* Numbers the packets of sampled flows. Those of one flow often follow each other: its counter stays in a register. */
static __rte_noinline void
plan_numbers(struct rx_queue *q, struct plan *plan, uint32_t n)
{
	uint32_t last = 0, count = q->slots[0];

	for (uint32_t i = 0; i < n; i++) {
		uint32_t local = plan->flow[i] - q->order.first, slot = local >> q->track_shift;

		if ((local & q->track_mask) || slot >= SLOTS)
			continue;
		if (slot != last) {
			q->slots[last] = count;
			count = q->slots[slot];
			last = slot;
		}
		plan->tag[i] += (STAMP_TRACKED - STAMP_PLAIN) + (slot << (16 + STAMP_STREAM_BITS));
		plan->sequence[i] = count++;
	}
	q->slots[last] = count;
}

void
plan_stamps(struct rx_queue *q, struct plan *plan, uint32_t n, uint32_t tsc, uint32_t step)
{
	uint32_t mask = q->track_mask, shift = q->track_shift;
	v8 sampled = all8(0), now = tsc + (v8){0, 1, 2, 3, 4, 5, 6, 7} * step;

	for (uint32_t i = 0; i < n; i += LANES) {
		v8 local = load8(plan->flow + i) - q->order.first;

		store8(plan->tag + i, all8(STAMP_PLAIN | q->stream << 16));
		store8(plan->sequence + i, all8(0));
		store8(plan->tsc + i, now);
		sampled |= (v8)((local & mask) == 0) & (v8)(local >> shift < SLOTS);
		now += LANES * step;
	}
	/* One burst of eight is enough where every flow is sampled, and where the most frequent one is in most bursts: a
	 * branch that goes now this way, now that way costs more than numbers do. */
	if (!_mm256_testz_si256((__m256i)sampled, (__m256i)sampled) &&
	    ((mask && q->order.order != ORDER_ZIPF) || q->bursts++ % 8 == 0))
		plan_numbers(q, plan, n);
}
