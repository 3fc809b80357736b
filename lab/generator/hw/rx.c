/* Receive with rules: what the marks cost is a load from the queue's table and two stores into
 * the buffer. */
#include <rte_branch_prediction.h>
#include <rte_cycles.h>

#include "adapter.h"

#define MARKED (RTE_MBUF_F_RX_FDIR | RTE_MBUF_F_RX_FDIR_ID)

static __rte_always_inline const uint32_t *
numbers(const struct plan *plan, enum column column)
{
	static const uint32_t zeros[MAX_BURST];

	switch (column) {
	case COLUMN_RULE:
		return plan->rule;
	case COLUMN_MAC:
		return plan->mac;
	case COLUMN_SOURCE:
		return plan->source;
	case COLUMN_FLOW:
		return plan->flow;
	default:
		return zeros;
	}
}

/* All that rules do is mark. */
static void
put_marks(const struct rx_queue *q, struct rte_mbuf **packets, const uint32_t *restrict cells,
	  const uint32_t *restrict number, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t mark = cells[number[i]];
		struct rte_mbuf *m = packets[i];

		/* Arithmetic: a branch would be mispredicted where some packets are marked. */
		m->ol_flags = q->ol_flags | (-(uint64_t)(mark != 0) & MARKED);
		m->hash.fdir.hi = mark;
	}
}

static void
put_verdict(const struct rx_queue *q, struct rte_mbuf *m, const struct verdict *v)
{
	m->ol_flags = q->ol_flags;
	if (v->flags & VERDICT_MARK) {
		m->ol_flags |= MARKED;
		m->hash.fdir.hi = v->mark;
	} else if (v->flags & VERDICT_FLAG) {
		m->ol_flags |= RTE_MBUF_F_RX_FDIR;
	}
}

static void
count(struct hw_queue *hq, uint32_t slot, uint32_t bytes)
{
	hq->hits[slot].packets++;
	hq->hits[slot].bytes += bytes;
}

/* Bytes of a planned packet. */
static uint32_t
length_of(const struct rx_queue *q, const struct plan *plan, uint32_t i)
{
	if (q->config->kind == KIND_PCAP)
		return q->replay->packets[plan->rule[i]].length;
	return q->frame.length ? q->frame.length : plan->length[i];
}

/* Counts, and takes out what is dropped. Returns how many are left, and the slots of these. */
static uint32_t
filter(const struct rx_queue *q, struct plan *plan, uint32_t *slots, uint32_t n)
{
	const struct table *t = q->hw->table;
	const uint32_t *number = numbers(plan, t->column);
	uint32_t left = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t slot = t->cells[number[i]];
		const struct verdict *v = &t->verdicts[slot];

		if (v->flags & VERDICT_COUNT)
			count(q->hw, slot, length_of(q, plan, i));
		if (v->flags & (VERDICT_DROP | VERDICT_FORWARD)) {
			struct hits *h = v->flags & VERDICT_DROP ? &q->hw->dropped : &q->hw->to[v->to];

			h->packets++;
			h->bytes += length_of(q, plan, i) + v->grow;
			continue;
		}
		slots[left] = slot;
		plan->flow[left] = plan->flow[i];
		plan->source[left] = plan->source[i];
		plan->rule[left] = plan->rule[i];
		plan->mac[left] = plan->mac[i];
		plan->length[left++] = plan->length[i];
	}
	return left;
}

/* hw_check: is a packet's mark what its bytes say? Only if no change is under way. */
static void
check(struct rx_queue *q, struct rte_mbuf **packets, uint32_t n)
{
	struct hw *hw = q->hw->hw;
	struct hw_counters *c = &hw->device->counters->hw;

	pthread_mutex_lock(&hw->adapter->lock);
	for (uint32_t i = 0; i < n && q->hw->made == hw->changes; i++) {
		struct rte_mbuf *m = packets[i];
		uint32_t slot = rules_winner(hw, rte_pktmbuf_mtod(m, const uint8_t *), m->data_len);
		struct rte_mbuf wanted = {};

		put_verdict(q, &wanted, &hw->adapter->rules[slot].verdict);
		c->checked++;
		if (wanted.ol_flags == m->ol_flags && (!(m->ol_flags & MARKED) || wanted.hash.fdir.hi == m->hash.fdir.hi))
			continue;
		if (!c->check_failed++)
			LOG(ERR, "a packet has mark %u, flags %lx; its bytes say %u, %lx\n", m->hash.fdir.hi,
			    (unsigned long)m->ol_flags, wanted.hash.fdir.hi, (unsigned long)wanted.ol_flags);
	}
	pthread_mutex_unlock(&hw->adapter->lock);
}

/* Rules that do more than mark. */
static uint32_t
general_burst(struct rx_queue *q, struct rte_mbuf **packets, struct plan *plan, uint32_t n, uint32_t tsc)
{
	uint32_t slots[MAX_BURST], left;

	left = filter(q, plan, slots, n);
	n = left ? rx_rotate(q, packets, left) : 0;
	if (!n)
		return 0;
	q->counters->no_buffer += left - n;
	q->counters->bytes += frame_write(q, packets, plan, n, tsc, q->step);
	for (uint32_t i = 0; i < n; i++)
		put_verdict(q, packets[i], &q->hw->table->verdicts[slots[i]]);
	return n;
}

/* Most packets are not the host's. */
static uint32_t
bulk_burst(struct rx_queue *q, struct rte_mbuf **packets, uint32_t n, uint64_t now)
{
	const struct table *t = q->hw->table;
	const uint32_t *number;
	struct plan plan;

	n = bulk_pass(q, &plan, RTE_MIN(n, (uint32_t)MAX_BURST), now);
	if (!n)
		return 0;
	frame_plan(q, &plan, n);
	if (!rx_rotate(q, packets, n))
		return 0;
	q->counters->bytes += frame_write(q, packets, &plan, n, now, q->step);
	number = numbers(&plan, t->column);
	for (uint32_t i = 0; i < n; i++)
		put_verdict(q, packets[i], &t->verdicts[t->cells[number[i]]]);
	return n;
}

/* The slow way: every packet's bytes are compared with every rule. */
static uint32_t
bytes_burst(struct rx_queue *q, struct rte_mbuf **packets, struct plan *plan, uint32_t n, uint32_t tsc)
{
	struct hw *hw = q->hw->hw;
	uint32_t left = 0;

	frame_write(q, packets, plan, n, tsc, q->step);
	pthread_mutex_lock(&hw->adapter->lock);
	queue_make_changes(q->hw, 0, true);
	for (uint32_t i = 0; i < n; i++) {
		struct rte_mbuf *m = packets[i];
		uint32_t slot = rules_winner(hw, rte_pktmbuf_mtod(m, const uint8_t *), m->data_len);
		const struct verdict *v = &hw->adapter->rules[slot].verdict;

		if (v->flags & VERDICT_COUNT)
			count(q->hw, slot, m->data_len);
		if (v->flags & (VERDICT_DROP | VERDICT_FORWARD) || (!slot && hw->isolated)) {
			struct hits *h = v->flags & VERDICT_FORWARD ? &q->hw->to[v->to] : &q->hw->dropped;

			h->packets++;
			h->bytes += m->data_len + v->grow;
			rte_pktmbuf_free(m);
			continue;
		}
		put_verdict(q, m, v);
		q->counters->bytes += m->data_len;
		packets[left++] = m;
	}
	pthread_mutex_unlock(&hw->adapter->lock);
	return left;
}

static uint32_t
plain_burst(struct rx_queue *q, struct rte_mbuf **packets, struct plan *plan, uint32_t n, uint32_t tsc)
{
	const struct table *t = q->hw->table;

	q->counters->bytes += frame_write(q, packets, plan, n, tsc, q->step);
	put_marks(q, packets, t->cells, numbers(plan, t->column), n);
	return n;
}

uint16_t
weftgen_rx_hw(void *queue, struct rte_mbuf **packets, uint16_t want)
{
	struct rx_queue *q = queue;
	struct hw_queue *hq = q->hw;
	uint64_t now = rte_rdtsc();
	uint32_t tsc, n;
	struct plan plan;
	bool general;

	if (unlikely(__atomic_load_n(&hq->last->next, __ATOMIC_RELAXED)))
		queue_make_changes(hq, now, false);
	if (unlikely(hq->hw->gone))
		return 0;
	if (hq->table->general && hq->table->n_host < hq->table->n && bulk_possible(q)) {
		n = bulk_burst(q, packets, RTE_MIN(want, q->ring_size - q->head), now);
		goto made;
	}
	n = rx_due(q, hq->seen, now, RTE_MIN(want, q->ring_size - q->head), &tsc);
	general = hq->table->general && hq->table->column != COLUMN_BYTES;
	if (n && !general)
		n = rx_rotate(q, packets, n);
	if (!n)
		return 0;
	order_next(&q->order, &plan, n);
	frame_plan(q, &plan, n);
	hq->seen += n;
	if (unlikely(hq->table->column == COLUMN_BYTES))
		n = bytes_burst(q, packets, &plan, n, tsc);
	else if (general)
		n = general_burst(q, packets, &plan, n, tsc);
	else
		n = plain_burst(q, packets, &plan, n, tsc);
made:
	q->counters->packets += n;
	q->counters->tsc = now;
	if (unlikely(fault_of_marks(hq->hw)))
		fault_marks(q, packets, n);
	if (unlikely(q->config->hw.check) && hq->table->column != COLUMN_BYTES)
		check(q, packets, n);
	return n;
}
