/* Which flow comes next. Flows are numbers; what a number looks like is frame.c's concern. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include <rte_malloc.h>

#include "weftgen.h"

/* Ranks of Zipf that are intervals of one; later ones are in intervals that grow by a constant ratio. */
#define ZIPF_SINGLE 128
#define PAPER_RUN 32u

/* Splits the ranks into at most ZIPF_INTERVALS intervals; returns how many. */
static uint32_t
zipf_intervals(struct zipf_interval *intervals, uint32_t flows)
{
	double ratio = pow((double)flows / ZIPF_SINGLE, 1.0 / (ZIPF_INTERVALS - ZIPF_SINGLE - 1));
	double edge = ZIPF_SINGLE;
	uint32_t n = 0, start = 0;

	while (start < flows && n < ZIPF_INTERVALS) {
		uint32_t end = start + 1;

		if (start >= ZIPF_SINGLE) {
			edge = RTE_MAX(edge * ratio, (double)start + 1);
			end = n == ZIPF_INTERVALS - 1 ? flows : RTE_MIN((uint32_t)edge, flows);
		}
		intervals[n++] = (struct zipf_interval){.start = start, .width = end - start};
		start = end;
	}
	return n;
}

/* The sum of 1/r^s for r in (start, start + width], by the midpoint integral for intervals. */
static double
zipf_weight(const struct zipf_interval *v, double s)
{
	double low = v->start + 0.5, high = v->start + v->width + 0.5;

	if (v->width == 1)
		return pow(v->start + 1.0, -s);
	if (fabs(s - 1.0) < 1e-9)
		return log(high / low);
	return (pow(high, 1 - s) - pow(low, 1 - s)) / (1 - s);
}

/* Walker's alias method over the intervals (Vose's construction). */
static void
zipf_alias(struct zipf *z, double s)
{
	double scaled[ZIPF_INTERVALS], sum = 0;
	uint32_t small[ZIPF_INTERVALS], large[ZIPF_INTERVALS], n_small = 0, n_large = 0;

	for (uint32_t i = 0; i < z->n; i++)
		sum += scaled[i] = zipf_weight(&z->intervals[i], s);
	for (uint32_t i = 0; i < z->n; i++) {
		scaled[i] *= z->n / sum;
		z->picks[i] = UINT32_MAX << ZIPF_BITS | i;
		if (scaled[i] < 1.0)
			small[n_small++] = i;
		else
			large[n_large++] = i;
	}
	while (n_small && n_large) {
		uint32_t l = small[--n_small], g = large[n_large - 1];

		z->picks[l] = (uint32_t)(scaled[l] * (UINT32_MAX >> ZIPF_BITS)) << ZIPF_BITS | g;
		scaled[g] -= 1.0 - scaled[l];
		if (scaled[g] < 1.0) {
			n_large--;
			small[n_small++] = g;
		}
	}
}

static int
zipf_init(struct order_state *o, double s)
{
	o->zipf = rte_zmalloc(NULL, sizeof *o->zipf, RTE_CACHE_LINE_SIZE);
	if (!o->zipf)
		return -ENOMEM;
	o->zipf->n = zipf_intervals(o->zipf->intervals, o->flows);
	zipf_alias(o->zipf, s);
	return 0;
}

int
order_init(struct order_state *o, const struct config *config, uint32_t queue, uint32_t n_queues)
{
	uint64_t first = (uint64_t)config->flows * queue / n_queues;
	uint64_t end = (uint64_t)config->flows * (queue + 1) / n_queues;

	*o = (struct order_state){
		.order = config->order,
		.tunnel = config->kind == KIND_VXLAN,
		.random = (config->seed + 1) * 0x9e3779b97f4a7c15ull + queue * 0xbf58476d1ce4e5b9ull,
		.key = ((config->seed + 1) * 0x9e3779b97f4a7c15ull >> 32) + queue * 0x85ebca6bu,
		.sources = config->sources,
		.first = first,
		.flows = RTE_MAX(end - first, 1ull),
		.new_threshold = config->new_share * (UINT32_MAX / 1000),
		.new_next = config->flows + queue * ((NEVER_SEEN_LIMIT - config->flows) / n_queues),
	};
	return config->order == ORDER_ZIPF ? zipf_init(o, config->s) : 0;
}

void
order_free(struct order_state *o)
{
	rte_free(o->zipf);
	o->zipf = NULL;
}

static void
next_seq(struct order_state *o, struct plan *plan, uint32_t n)
{
	if (o->flows == 1) {
		for (uint32_t i = 0; i < n; i++)
			plan->flow[i] = o->first;
		return;
	}
	for (uint32_t i = 0; i < n;) {
		uint32_t run = RTE_MIN(n - i, o->flows - o->next), flow = o->first + o->next;

		for (uint32_t j = 0; j < run; j++)
			plan->flow[i + j] = flow + j;
		i += run;
		o->next = o->next + run == o->flows ? 0 : o->next + run;
	}
}

/* Random words, 32 bits each: MurmurHash3's finalizer over a counter, which the compiler makes SIMD of. */
static void
draw(struct order_state *o, uint32_t *words, uint32_t n)
{
	uint32_t key = o->key + (uint32_t)(o->drawn >> 32), first = o->drawn;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t x = (first + i) * 0x9e3779b1u ^ key;

		x = (x ^ x >> 16) * 0x85ebca6bu;
		x = (x ^ x >> 13) * 0xc2b2ae35u;
		words[i] = x ^ x >> 16;
	}
	o->drawn += n;
}

static void
next_uniform(struct order_state *o, struct plan *plan, uint32_t n)
{
	uint32_t words[MAX_BURST], first = o->first, flows = o->flows;

	draw(o, words, n);
	for (uint32_t i = 0; i < n; i++)
		plan->flow[i] = first + ((uint64_t)words[i] * flows >> 32);
}

static void
next_zipf(struct order_state *o, struct plan *plan, uint32_t n)
{
	const struct zipf *z = o->zipf;
	uint32_t picks[MAX_BURST], within[MAX_BURST];
	uint64_t n_intervals = z->n;

	draw(o, picks, n);
	draw(o, within, n);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t place = picks[i] * n_intervals;
		uint32_t mine = place >> 32, pick = z->picks[mine];
		/* No branch between interval and alias: it would be mispredicted. */
		uint32_t keep = -(uint32_t)((uint32_t)place >> ZIPF_BITS < pick >> ZIPF_BITS);
		const struct zipf_interval *v =
			&z->intervals[(mine & keep) | (pick % ZIPF_INTERVALS & ~keep)];

		plan->flow[i] = o->first + v->start + ((uint64_t)within[i] * v->width >> 32);
	}
}

/* Runs of 32 packets: of one outer source while the inner flow goes on (VXLAN), else of one flow. */
static void
next_burst(struct order_state *o, struct plan *plan, uint32_t n, bool tunnel)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t run = o->count++ / PAPER_RUN;

		if (tunnel) {
			plan->flow[i] = o->first + o->next;
			o->next = o->next + 1 == o->flows ? 0 : o->next + 1;
		} else {
			plan->flow[i] = o->first + run % o->flows;
		}
		plan->source[i] = run % o->sources;
	}
}

/* Every packet of another outer source out of 32, and of another inner flow. */
static void
next_scatter(struct order_state *o, struct plan *plan, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		plan->flow[i] = o->first + o->next;
		plan->source[i] = o->count++ % RTE_MIN(o->sources, PAPER_RUN);
		o->next = o->next + 1 == o->flows ? 0 : o->next + 1;
	}
}

/* Replaces a share of the flows by numbers that were never used. */
static void
mix_new(struct order_state *o, struct plan *plan, uint32_t n)
{
	uint32_t words[MAX_BURST], next = o->new_next;

	draw(o, words, n);
	for (uint32_t i = 0; i < n; i++) {
		/* No branch: it would be mispredicted. */
		uint32_t new = words[i] < o->new_threshold, keep = new - 1;

		plan->flow[i] = (plan->flow[i] & keep) | (next & ~keep);
		next = (next + new) % NEVER_SEEN_LIMIT;
	}
	o->new_next = next;
}

void
order_next(struct order_state *o, struct plan *plan, uint32_t n)
{
	switch (o->order) {
	case ORDER_UNIFORM:
		next_uniform(o, plan, n);
		break;
	case ORDER_ZIPF:
		next_zipf(o, plan, n);
		break;
	case ORDER_BURST:
		next_burst(o, plan, n, o->tunnel);
		break;
	case ORDER_SCATTER:
		next_scatter(o, plan, n);
		break;
	default:
		next_seq(o, plan, n);
	}
	if (o->new_threshold)
		mix_new(o, plan, n);
}
