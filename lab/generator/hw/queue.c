/* How a change reaches a receive queue. Packets that were classified before it still come with
 * what they were given: so a change is a node in a list that the queue takes up when so many
 * packets have come, and so much time has passed. */
#include <errno.h>
#include <stdlib.h>

#include <rte_cycles.h>
#include <rte_malloc.h>

#include "adapter.h"

static uint32_t
value_of(const struct hw *hw, bool general, uint32_t slot)
{
	return general ? slot : slot ? hw->adapter->rules[slot].verdict.mark : 0;
}

static bool
is_general(const struct hw *hw)
{
	return hw->n_general || hw->isolated;
}

/* Whether the cell's packets reach the host. */
static void
note_host(struct table *t, uint32_t cell)
{
	uint64_t bit = 1ull << cell % 64, *word = &t->host[cell / 64];
	bool reaches = !(t->verdicts[t->cells[cell]].flags & (VERDICT_DROP | VERDICT_FORWARD));

	t->n_host += reaches - !!(*word & bit);
	*word = reaches ? *word | bit : *word & ~bit;
}

static void
table_free(struct table *t)
{
	if (t) {
		free(t->verdicts);
		free(t->since);
		free(t->host);
	}
	rte_free(t);
}

/* What a queue is to know now. NULL: no memory. */
static struct table *
table_of(const struct hw *hw)
{
	uint32_t n = hw->column == COLUMN_BYTES ? 1 : hw->n_cells, n_slots = hw->adapter->n_slots;
	struct table *t = rte_zmalloc(NULL, sizeof *t + n * sizeof *t->cells, RTE_CACHE_LINE_SIZE);

	if (!t)
		return NULL;
	t->column = hw->column;
	t->n = n;
	t->general = is_general(hw);
	if (t->general) {
		t->verdicts = calloc(n_slots, sizeof *t->verdicts);
		if (!t->verdicts) {
			rte_free(t);
			return NULL;
		}
		t->since = calloc(n, sizeof *t->since);
		t->host = calloc(n / 64 + 1, sizeof *t->host);
		if (!t->since || !t->host) {
			table_free(t);
			return NULL;
		}
		t->verdicts[0].flags = hw->isolated ? VERDICT_DROP : 0;
		for (uint32_t i = 1; i < n_slots; i++)
			t->verdicts[i] = hw->adapter->rules[i].verdict;
	}
	for (uint32_t i = 0; i < n && hw->column != COLUMN_BYTES && hw->winners; i++)
		t->cells[i] = value_of(hw, t->general, hw->winners[i]);
	for (uint32_t i = 0; i < n && t->general; i++)
		note_host(t, i);
	return t;
}

int
hw_queue_setup(struct hw *hw, struct hw_queue *q)
{
	*q = (struct hw_queue){.hw = hw};
	q->first = q->end = q->last = calloc(1, sizeof *q->first);
	q->table = table_of(hw);
	q->hits = calloc(hw->adapter->n_slots, sizeof *q->hits);
	q->base = calloc(hw->adapter->n_slots, sizeof *q->base);
	rte_spinlock_init(&q->lock);
	if (q->first && q->table && q->hits && q->base)
		return 0;
	hw_queue_free(q);
	return -ENOMEM;
}

/* Those that were made; a table that another one replaced goes with the change. */
static void
free_made(struct hw_queue *q, const struct change *until)
{
	while (q->first != until) {
		struct change *c = q->first;

		q->first = c->next;
		table_free(c->old);
		free(c);
	}
}

void
hw_queue_free(struct hw_queue *q)
{
	for (struct change *c = q->last ? q->last->next : NULL; c; c = c->next)
		table_free(c->table);
	free_made(q, NULL);
	table_free(q->table);
	free(q->hits);
	free(q->base);
	*q = (struct hw_queue){};
}

static void
make(struct hw_queue *q, struct change *c)
{
	if (c->table) {
		bulk_settle_all(q, c->table);
		c->old = q->table;
		q->table = c->table;
	} else if (c->slot) {
		if (q->table->verdicts)
			q->table->verdicts[c->slot] = c->verdict;
		q->base[c->slot] = q->hits[c->slot];
	} else {
		struct table *t = q->table;

		if (t->general) {
			bulk_settle(q, c->cell);
			t->cells[c->cell] = c->value;
			note_host(t, c->cell);
		}
		t->cells[c->cell] = c->value;
	}
}

void
queue_make_changes(struct hw_queue *q, uint64_t now, bool at_once)
{
	struct change *c;

	while ((c = __atomic_load_n(&q->last->next, __ATOMIC_ACQUIRE))) {
		if (!at_once && (q->seen < c->from_packets || now < c->from_tsc))
			return;
		rte_spinlock_lock(&q->lock);
		make(q, c);
		rte_spinlock_unlock(&q->lock);
		__atomic_store_n(&q->made, c->sequence, __ATOMIC_RELEASE);
		__atomic_store_n(&q->last, c, __ATOMIC_RELEASE);
	}
}

/* Packets of the queue that were classified before now and did not come yet. */
static uint64_t
lag_of(const struct hw *hw, const struct rx_queue *q)
{
	const struct config *config = &hw->device->config;

	uint64_t stale = hw->device->counters->faults.stale_packets;

	if (config->hw.lag != LAG_OF_RING || stale)
		return stale ? stale : config->hw.lag;
	return q->rate ? RTE_MIN(q->due >> 32, (uint64_t)q->ring_size) : q->ring_size;
}

/* The adapter's lock is held: changes have one order. */
static void
give(struct hw *hw, uint32_t queue, struct change change)
{
	struct hw_queue *q = hw->queues[queue];
	struct change *c = malloc(sizeof *c);

	if (!c) {
		LOG(ERR, "no memory for a change of rules: it is lost\n");
		table_free(change.table);
		return;
	}
	change.from_packets = q->seen + lag_of(hw, hw->device->rx[queue]);
	change.from_tsc = rte_rdtsc() + rte_get_tsc_hz() / 1000000 * hw->device->config.hw.async_us;
	change.sequence = hw->changes;
	*c = change;
	free_made(q, __atomic_load_n(&q->last, __ATOMIC_ACQUIRE));
	__atomic_store_n(&q->end->next, c, __ATOMIC_RELEASE);
	q->end = c;
}

void
queues_change_cell(struct hw *hw, uint32_t cell, uint32_t slot)
{
	hw->changes++;
	for (uint32_t i = 0; i < hw->n_queues; i++)
		give(hw, i, (struct change){.cell = cell, .value = value_of(hw, is_general(hw), slot)});
}

void
queues_change_slot(struct hw *hw, uint32_t slot)
{
	hw->adapter->rules[slot].change = ++hw->changes;
	for (uint32_t i = 0; i < hw->n_queues; i++)
		give(hw, i, (struct change){.slot = slot, .verdict = hw->adapter->rules[slot].verdict});
}

void
queues_change_all(struct hw *hw)
{
	hw->changes++;
	for (uint32_t i = 0; i < hw->n_queues; i++) {
		struct table *t = table_of(hw);

		if (t)
			give(hw, i, (struct change){.table = t});
		else
			LOG(ERR, "no memory for a table of marks: a change of rules is lost\n");
	}
}

/* Cells of a rule, and what passed there in bulk. */
struct sum {
	struct hw *hw;
	uint32_t queue, slot;
	uint64_t bulk, packets;
};

static void
add_cell(void *context, uint32_t cell)
{
	struct sum *s = context;
	const struct table *t = s->hw->queues[s->queue]->table;

	if (cell < t->n && t->cells[cell] == s->slot)
		s->packets += bulk_count(s->hw, s->queue, t, cell, s->bulk);
}

struct hits
queues_hits(struct hw *hw, uint32_t slot)
{
	const struct rule *rule = &hw->adapter->rules[slot];
	struct hits hits = {};

	for (uint32_t i = 0; i < hw->n_queues; i++) {
		struct hw_queue *q = hw->queues[i];
		struct sum s = {.hw = hw, .queue = i, .slot = slot};

		if (__atomic_load_n(&q->made, __ATOMIC_ACQUIRE) < rule->change)
			continue;
		rte_spinlock_lock(&q->lock);
		s.bulk = __atomic_load_n(&q->bulk, __ATOMIC_RELAXED);
		hits.packets += q->hits[slot].packets - q->base[slot].packets;
		hits.bytes += q->hits[slot].bytes - q->base[slot].bytes;
		if (s.bulk && q->table->general && q->table->column != COLUMN_BYTES)
			column_visit(hw, q->table->column, rule->pattern, add_cell, &s);
		rte_spinlock_unlock(&q->lock);
		hits.packets += s.packets;
		hits.bytes += s.packets * frame_bytes(hw->device->rx[i]);
	}
	return hits;
}
