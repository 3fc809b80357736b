/* Which of the generator's packets fit a pattern, by arithmetic: flow f's frame is made of f, of
 * f mod rules, f mod dmacs and so on (frame.c), so a pattern that looks at f mod rules only is a
 * matter of as many cells as there are rules. Cells that may fit are found from one field's
 * value; whether they do, a sample of their frames says. */
#include <errno.h>
#include <string.h>

#include <rte_malloc.h>

#include "adapter.h"
#include "write.h"

#define SAMPLES 8
#define SAMPLE_BYTES 2304
#define CELLS_MOST (1u << 24)

/* A queue that makes frames for nobody. */
struct sampler {
	struct rx_queue queue;
	struct rte_mbuf *ring[1];
	struct rx_counters counters;
	uint8_t buffers[SAMPLES + 1][SAMPLE_BYTES] __rte_cache_aligned;
};

/* Bits of frames that are not the same in all, and what they are made of. */
struct varying {
	enum kind kind;
	uint8_t layer, offset;
	uint32_t mask; /* of the four bytes there, most significant first */
	enum column column;
};

#define INNER(layer) (LAYERS + LAYER_##layer)

static const struct varying varying[] = {
	{KIND_UDP4, LAYER_ETH, 2, 0x00ffffff, COLUMN_MAC},
	{KIND_UDP4, LAYER_IPV4, 12, 0xffffffff, COLUMN_FLOW},
	{KIND_UDP4, LAYER_IPV4, 16, 0xffffff00, COLUMN_RULE},
	{KIND_UDP4, LAYER_IPV4, 16, 0x000000ff, COLUMN_FLOW},
	{KIND_UDP4, LAYER_UDP, 0, 0xffff0000, COLUMN_FLOW},
	{KIND_UDP4, LAYER_TCP, 0, 0xffff0000, COLUMN_FLOW},
	{KIND_UDP6, LAYER_ETH, 2, 0x00ffffff, COLUMN_MAC},
	{KIND_UDP6, LAYER_IPV6, 20, 0xffffffff, COLUMN_FLOW},
	{KIND_UDP6, LAYER_IPV6, 32, 0xffffffff, COLUMN_RULE},
	{KIND_UDP6, LAYER_IPV6, 36, 0xffffffff, COLUMN_FLOW},
	{KIND_UDP6, LAYER_UDP, 0, 0xffff0000, COLUMN_FLOW},
	{KIND_VXLAN, LAYER_IPV4, 12, 0xffffffff, COLUMN_SOURCE},
	{KIND_VXLAN, LAYER_UDP, 0, 0xffff0000, COLUMN_FLOW},
	{KIND_VXLAN, LAYER_VXLAN, 4, 0xffffff00, COLUMN_MAC},
	{KIND_VXLAN, INNER(ETH), 2, 0xffffffff, COLUMN_MAC},
	{KIND_VXLAN, INNER(IPV4), 12, 0xffffffff, COLUMN_FLOW},
	{KIND_VXLAN, INNER(IPV4), 16, 0xffffffff, COLUMN_FLOW},
	{KIND_VXLAN, INNER(UDP), 0, 0xffff0000, COLUMN_FLOW},
};

/* A field that says the number of its column: its value is base + (number << shift). */
struct numbered {
	enum kind kind;
	enum column column;
	uint8_t layer, offset;
	uint32_t base, shift;
};

static const struct numbered numbered[] = {
	{KIND_UDP4, COLUMN_RULE, LAYER_IPV4, 16, DST_NET, 8},
	{KIND_UDP4, COLUMN_MAC, LAYER_ETH, 2, 0, 0},
	{KIND_UDP4, COLUMN_FLOW, LAYER_IPV4, 12, SRC_NET, 0},
	{KIND_UDP6, COLUMN_RULE, LAYER_IPV6, 32, 0, 0},
	{KIND_UDP6, COLUMN_MAC, LAYER_ETH, 2, 0, 0},
	{KIND_UDP6, COLUMN_FLOW, LAYER_IPV6, 20, 0, 0},
	{KIND_VXLAN, COLUMN_SOURCE, LAYER_IPV4, 12, OUTER_SRC, 0},
	{KIND_VXLAN, COLUMN_MAC, INNER(ETH), 2, 0x01000000, 0},
	{KIND_VXLAN, COLUMN_FLOW, INNER(IPV4), 16, DST_NET, 0},
};

/* The kinds that differ in headers only. */
static enum kind
like(const struct device *d)
{
	enum kind kind = d->config.kind;

	return kind == KIND_TCP4 || kind == KIND_VLAN ? KIND_UDP4 : kind;
}

static bool
sourced(const struct device *d)
{
	return d->config.order == ORDER_BURST || d->config.order == ORDER_SCATTER;
}

uint32_t
column_cells(const struct device *d, enum column column)
{
	const struct config *c = &d->config;

	switch (column) {
	case COLUMN_RULE:
		return c->kind == KIND_TABLE ? d->table.n + d->table.n_new : c->kind == KIND_PCAP ? d->replay.n : c->rules;
	case COLUMN_MAC:
		return c->kind == KIND_VXLAN ? c->guests : c->dmacs;
	case COLUMN_SOURCE:
		return c->sources;
	case COLUMN_FLOW:
		return c->flows;
	default:
		return 1;
	}
}

/* Does every number of one column have one of the other? */
static bool
decides(const struct device *d, enum column a, enum column b)
{
	if (a == b || b == COLUMN_NONE || a == COLUMN_BYTES)
		return true;
	if (b == COLUMN_BYTES)
		return false;
	if (d->config.kind == KIND_VXLAN && sourced(d))
		return a == COLUMN_SOURCE && b == COLUMN_MAC;
	return a == COLUMN_FLOW;
}

enum column
column_join(const struct device *d, enum column a, enum column b)
{
	enum column join = COLUMN_FLOW;

	if (decides(d, a, b))
		return a;
	if (decides(d, b, a))
		return b;
	if (!decides(d, join, a) || !decides(d, join, b) || d->config.flows > CELLS_MOST)
		join = COLUMN_BYTES;
	return join;
}

/* Of a table's flows: the record says it, unless bits are looked at that it leaves to the flow's
 * number. */
static enum column
column_of_table(const struct device *d, const struct pattern *p)
{
	uint32_t value, src, dst, ports, more;

	pattern_word(p, LAYER_IPV4, 12, &value, &src);
	pattern_word(p, LAYER_IPV4, 16, &value, &dst);
	pattern_word(p, LAYER_UDP, 0, &value, &ports);
	pattern_word(p, LAYER_TCP, 0, &value, &more);
	ports |= more;
	for (uint32_t i = 0; i < d->table.n + d->table.n_new; i++) {
		const struct record *r = &d->table.records[i];

		if ((r->wild_src & src) | (r->wild_dst & dst) | (r->wild_ports & ports))
			return COLUMN_FLOW;
	}
	return COLUMN_RULE;
}

enum column
column_of(const struct device *d, const struct pattern *p)
{
	enum column column = COLUMN_NONE;

	if (d->config.kind == KIND_PCAP)
		return COLUMN_RULE;
	if (d->config.kind == KIND_TABLE)
		column = column_of_table(d, p);
	for (uint32_t i = 0; i < RTE_DIM(varying); i++) {
		const struct varying *v = &varying[i];
		uint32_t value, mask;

		if (v->kind != like(d))
			continue;
		pattern_word(p, v->layer, v->offset, &value, &mask);
		if (mask & v->mask)
			column = column_join(d, column, v->column);
	}
	return column == COLUMN_FLOW && d->config.flows > CELLS_MOST ? COLUMN_BYTES : column;
}

struct sampler *
sampler_new(struct device *d)
{
	struct sampler *s = rte_zmalloc(NULL, sizeof *s, RTE_CACHE_LINE_SIZE);
	struct rx_queue *q = s ? &s->queue : NULL;

	if (!s)
		return NULL;
	q->config = &d->config;
	q->table = &d->table;
	q->replay = &d->replay;
	q->counters = &s->counters;
	q->ring = s->ring;
	q->ring_size = 1;
	q->ring[0] = (struct rte_mbuf *)s->buffers[SAMPLES];
	q->scratch = s->buffers[SAMPLES];
	q->buffer_offset = sizeof(struct rte_mbuf);
	q->order.order = d->config.order;
	frame_init(&q->frame, d, d->port);
	q->frame.length = frame_least_size(&d->config) - RTE_ETHER_CRC_LEN;
	return s;
}

void
sampler_free(struct sampler *s)
{
	rte_free(s);
}

/* A flow and an outer source whose packets are in the cell. */
static void
example(const struct device *d, enum column column, uint32_t cell, uint32_t *flow, uint32_t *source)
{
	uint32_t n = d->table.n, n_new = d->table.n_new;

	*source = sourced(d) ? cell : 0;
	*flow = cell;
	/* A record of flows that were never seen is taken by the first such flow. */
	if (d->config.kind == KIND_TABLE && column == COLUMN_RULE && cell >= n)
		*flow = RTE_ALIGN_MUL_CEIL(d->config.flows, n_new) + cell - n;
}

/* Makes frames of n cells from the first one on, each `step` further, and says which of them
 * fit. */
static uint32_t
fitting(const struct hw *hw, enum column column, const struct pattern *p, uint32_t cell, uint32_t step, uint32_t n)
{
	struct sampler *s = hw->sampler;
	struct rte_mbuf *packets[SAMPLES];
	struct plan plan;
	uint32_t fit = 0;

	for (uint32_t i = 0; i < SAMPLES; i++) {
		example(hw->device, column, cell + RTE_MIN(i, n - 1) * step, &plan.flow[i], &plan.source[i]);
		packets[i] = (struct rte_mbuf *)s->buffers[i];
	}
	frame_plan(&s->queue, &plan, SAMPLES);
	frame_write(&s->queue, packets, &plan, SAMPLES, 0, 0);
	for (uint32_t i = 0; i < n; i++) {
		const uint8_t *bytes = s->buffers[i] + sizeof(struct rte_mbuf);
		struct layers layers;

		layers_of(&layers, bytes, packets[i]->data_len);
		fit |= (uint32_t)pattern_fits(p, &layers, bytes) << i;
	}
	return fit;
}

bool
column_fits(struct hw *hw, uint32_t cell, const struct pattern *p)
{
	return fitting(hw, hw->column, p, cell, 1, 1);
}

/* Cells that may fit: from first to end, each `step` further. */
struct cells {
	uint32_t first, end, step;
};

/* The numbers that a field's value and mask leave; all of them if the mask has holes. */
static struct cells
from_field(const struct device *d, const struct numbered *f, const struct pattern *p)
{
	struct cells c = {0, column_cells(d, f->column), 1};
	uint32_t value, mask;
	uint64_t low, high;

	pattern_word(p, f->layer, f->offset, &value, &mask);
	if (!mask || (~mask & (~mask + 1)))
		return c;
	low = value;
	high = value | ~mask;
	if (high < f->base) {
		c.end = 0;
		return c;
	}
	low = low < f->base ? 0 : (low - f->base) >> f->shift;
	high = (high - f->base) >> f->shift;
	c.first = RTE_MIN(low, c.end);
	c.end = RTE_MIN(high + 1, c.end);
	return c;
}

static struct cells
candidates(const struct device *d, enum column column, const struct pattern *p)
{
	struct cells best = {0, column_cells(d, column), 1};

	for (uint32_t i = 0; i < RTE_DIM(numbered); i++) {
		const struct numbered *f = &numbered[i];
		struct cells c;

		if (f->kind != like(d) || !decides(d, column, f->column))
			continue;
		c = from_field(d, f, p);
		if (f->column == column && c.end - c.first < (best.end - best.first) / best.step)
			best = c;
		/* One remainder of the flow's number. */
		else if (f->column != column && column == COLUMN_FLOW && c.end - c.first <= 1 && best.step == 1 &&
			 best.end - best.first == d->config.flows)
			best = (struct cells){c.first, c.end > c.first ? d->config.flows : c.first,
					      column_cells(d, f->column)};
	}
	return best;
}

/* Records without any flow of theirs are never used. */
static bool
used(const struct device *d, enum column column, uint32_t cell)
{
	return d->config.kind != KIND_TABLE || column != COLUMN_RULE || cell < d->config.flows || cell >= d->table.n;
}

void
column_visit(struct hw *hw, enum column column, const struct pattern *p, void (*visit)(void *context, uint32_t cell),
	     void *context)
{
	struct cells c = candidates(hw->device, column, p);

	for (uint64_t at = c.first; at < c.end; at += (uint64_t)SAMPLES * c.step) {
		uint32_t n = RTE_MIN((c.end - at + c.step - 1) / c.step, (uint64_t)SAMPLES);
		uint32_t fit = fitting(hw, column, p, at, c.step, n);

		for (; fit; fit &= fit - 1) {
			uint32_t cell = at + (uint64_t)__builtin_ctz(fit) * c.step;

			if (used(hw->device, column, cell))
				visit(context, cell);
		}
	}
}
