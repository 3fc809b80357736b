/* Packets that an adapter forwards or drops without the host: they are counted, not made. Those
 * that come due pass in turns, the p-th being of flow p mod the queue's flows: what each rule
 * had is arithmetic, packets are conserved exactly, and the next packet for the host is found by
 * a look at 64 flows at a time. Where flows do not come in turns or at equal shares (zipf,
 * burst, scatter, new), sizes are mixed, or no rate is set, packets are looked up one by one
 * (rx.c). */
#include <string.h>

#include <rte_cycles.h>

#include "adapter.h"

uint32_t
frame_bytes(const struct rx_queue *q)
{
	return q->frame.length;
}

bool
bulk_possible(const struct rx_queue *q)
{
	const struct config *c = q->config;

	return c->rate && q->frame.length && c->kind != KIND_PCAP && !c->new_share &&
	       (c->order == ORDER_SEQ || c->order == ORDER_UNIFORM);
}

/* How many numbers below z leave the remainder r. */
static uint64_t
below(uint64_t z, uint64_t n, uint64_t r)
{
	return z > r ? (z - r - 1) / n + 1 : 0;
}

/* How many numbers a column has that flows go through in turns. */
static uint32_t
modulus_of(const struct hw *hw, const struct table *t)
{
	return t->column == COLUMN_RULE && hw->device->config.kind == KIND_TABLE ? hw->device->table.n : t->n;
}

/* How many of the first y flows of the queue are in the cell. */
static uint64_t
flows_of(const struct hw *hw, const struct order_state *o, const struct table *t, uint32_t cell, uint64_t y)
{
	uint64_t first = o->first, n;

	switch (t->column) {
	case COLUMN_NONE:
		return y;
	case COLUMN_FLOW:
		return cell >= first && cell < first + y;
	default:
		n = modulus_of(hw, t);
		return below(first + y, n, cell) - below(first, n, cell);
	}
}

uint64_t
bulk_count(const struct hw *hw, uint32_t queue, const struct table *t, uint32_t cell, uint64_t bulk)
{
	const struct order_state *o = &hw->device->rx[queue]->order;
	uint64_t all = flows_of(hw, o, t, cell, o->flows), since = t->since[cell];

	return (bulk / o->flows - since / o->flows) * all + flows_of(hw, o, t, cell, bulk % o->flows) -
	       flows_of(hw, o, t, cell, since % o->flows);
}

static uint32_t
number_of(const struct hw *hw, const struct hw_queue *q)
{
	uint32_t i = 0;

	while (hw->queues[i] != q)
		i++;
	return i;
}

static void
credit(struct hits *hits, uint64_t packets, uint64_t bytes)
{
	hits->packets += packets;
	hits->bytes += bytes;
}

/* To whom a cell's packets went. */
static void
credit_verdict(struct hits *to, struct hits *dropped, const struct verdict *v, uint64_t packets, uint32_t bytes)
{
	if (v->flags & VERDICT_FORWARD)
		credit(&to[v->to], packets, packets * (bytes + v->grow));
	else if (v->flags & VERDICT_DROP)
		credit(dropped, packets, packets * bytes);
}

void
bulk_settle(struct hw_queue *q, uint32_t cell)
{
	uint32_t i, bytes, slot;
	struct table *t = q->table;
	uint64_t packets;

	if (!t->general || t->column == COLUMN_BYTES)
		return;
	i = number_of(q->hw, q);
	bytes = frame_bytes(q->hw->device->rx[i]);
	packets = bulk_count(q->hw, i, t, cell, q->bulk);
	slot = t->cells[cell];
	t->since[cell] = q->bulk;
	credit(&q->hits[slot], packets, packets * bytes);
	credit_verdict(q->to, &q->dropped, &t->verdicts[slot], packets, bytes);
}

void
bulk_settle_all(struct hw_queue *q, struct table *next)
{
	for (uint32_t cell = 0; q->bulk && cell < q->table->n; cell++)
		bulk_settle(q, cell);
	for (uint32_t cell = 0; next->general && cell < next->n; cell++)
		next->since[cell] = q->bulk;
}

/* What the adapter's own ceiling lets pass of so many packets; the lower 32 bits are a fraction. */
static uint64_t
pass(struct rx_queue *q, uint64_t now, uint64_t packets)
{
	struct hw_queue *hq = q->hw;
	uint64_t most = (uint64_t)q->ring_size << 32, over, lost;

	if (!q->config->hw.pps)
		return packets;
	hq->passes += RTE_MIN(now - hq->pass_clock, 1ull << 30) *
		      (uint64_t)(q->config->hw.pps * 4294967296.0 / q->n_queues / rte_get_tsc_hz());
	hq->pass_clock = now;
	/* A ring's worth may wait. */
	hq->passes = RTE_MIN(hq->passes, most);
	over = packets > hq->passes ? packets - hq->passes : 0;
	hq->passes -= packets - over;
	hq->over += over;
	lost = hq->over >> 32;
	hq->over = (uint32_t)hq->over;
	hq->seen += lost;
	__atomic_fetch_add(&hq->hw->device->counters->hw.over_ceiling, lost, __ATOMIC_RELAXED);
	return packets - over;
}

/* What came due. More of the host's packets than the ring has room for are lost. */
static uint64_t
come_due(struct rx_queue *q, uint64_t now)
{
	const struct hw_queue *hq = q->hw;
	const struct table *t = hq->table;
	uint64_t limit = q->config->limit, most, due;

	if (unlikely(q->rate != *q->wanted_rate))
		rx_set_rate(q, now);
	if (limit && hq->seen >= limit)
		return 0;
	q->due += pass(q, now, RTE_MIN(now - q->clock, 1ull << 30) * q->per_cycle);
	q->clock = now;
	most = t->n_host ? (uint64_t)q->ring_size * t->n / t->n_host : UINT64_MAX;
	due = q->due >> 32;
	if (limit)
		due = RTE_MIN(due, limit - hq->seen);
	if (due > most) {
		q->counters->missed += due - most;
		q->hw->seen += due - most;
		due = most;
		q->due = due << 32 | (uint32_t)q->due;
	}
	return due;
}

/* The next cell from `cell` on, below `end`, whose packets reach the host; `end` if there is
 * none. */
static uint32_t
next_host(const struct table *t, uint32_t cell, uint32_t end)
{
	uint32_t word = cell / 64;
	uint64_t bits = t->host[word] >> cell % 64 << cell % 64;

	while (!bits && (word + 1) * 64 < end)
		bits = t->host[++word];
	return bits ? RTE_MIN(word * 64 + __builtin_ctzll(bits), end) : end;
}

uint32_t
bulk_pass(struct rx_queue *q, struct plan *plan, uint32_t n, uint64_t now)
{
	struct hw_queue *hq = q->hw;
	const struct table *t = hq->table;
	const struct order_state *o = &q->order;
	uint64_t due = come_due(q, now), passed = 0;
	uint32_t turns = modulus_of(hq->hw, t), made = 0, at = hq->bulk % o->flows;

	while (passed < due && made < n) {
		uint32_t flow = o->first + at, cell = t->column == COLUMN_FLOW ? flow : flow % turns;
		uint64_t run = RTE_MIN(o->flows - at, due - passed);
		uint32_t end = cell + RTE_MIN(run, (uint64_t)turns - cell), host = next_host(t, cell, end);

		if (!t->n_host) {
			passed = due;
			break;
		}
		if (host < end)
			plan->flow[made++] = flow + host - cell;
		passed += host - cell + (host < end);
		at = (at + (host - cell) + (host < end)) % o->flows;
	}
	q->due -= passed << 32;
	hq->seen += passed;
	__atomic_store_n(&hq->bulk, hq->bulk + passed, __ATOMIC_RELAXED);
	__atomic_fetch_add(&hq->hw->device->counters->hw.passed, passed - made, __ATOMIC_RELAXED);
	return made;
}

/* A queue's, with what is due by arithmetic. */
static void
add_queue(const struct hw *hw, uint32_t i, struct hits *to, struct hits *dropped)
{
	struct hw_queue *q = hw->queues[i];
	uint32_t bytes = frame_bytes(hw->device->rx[i]);
	uint64_t bulk;

	rte_spinlock_lock(&q->lock);
	bulk = __atomic_load_n(&q->bulk, __ATOMIC_RELAXED);
	for (uint32_t p = 0; p < PORTS_MOST; p++)
		credit(&to[p], q->to[p].packets, q->to[p].bytes);
	credit(dropped, q->dropped.packets, q->dropped.bytes);
	for (uint32_t c = 0; bulk && q->table->general && q->table->column != COLUMN_BYTES && c < q->table->n; c++)
		credit_verdict(to, dropped, &q->table->verdicts[q->table->cells[c]],
			       bulk_count(hw, i, q->table, c, bulk), bytes);
	rte_spinlock_unlock(&q->lock);
}

/* All that a port's rules forwarded and dropped. */
static void
add_port(const struct hw *hw, struct hits *to, struct hits *dropped)
{
	for (uint32_t p = 0; p < PORTS_MOST; p++)
		credit(&to[p], hw->to_before[p].packets, hw->to_before[p].bytes);
	credit(dropped, hw->dropped_before.packets, hw->dropped_before.bytes);
	for (uint32_t i = 0; i < hw->n_queues; i++)
		add_queue(hw, i, to, dropped);
}

struct hits
bulk_delivered(const struct adapter *a, uint32_t place)
{
	struct hits to[PORTS_MOST] = {}, dropped = {};

	for (uint32_t p = 0; p < a->n_ports; p++)
		if (a->ports[p])
			add_port(a->ports[p], to, &dropped);
	return to[place];
}

struct hits
bulk_dropped(const struct hw *hw)
{
	struct hits to[PORTS_MOST] = {}, dropped = {};

	add_port(hw, to, &dropped);
	return dropped;
}

void
bulk_keep(struct hw *hw)
{
	struct hits to[PORTS_MOST] = {}, dropped = {};

	add_port(hw, to, &dropped);
	memcpy(hw->to_before, to, sizeof to);
	hw->dropped_before = dropped;
}
