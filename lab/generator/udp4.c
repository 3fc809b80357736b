/* UDP over IPv4 in plain Ethernet, and flows from a table, eight packets at a time. */
#include "vector.h"

/* Fields by arithmetic: flow f of rule r. */
static void
plan_udp4(struct plan *plan, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += LANES) {
		v8 flow = load8(plan->flow + i);

		store8(plan->src + i, SRC_NET + flow);
		store8(plan->dst + i, DST_NET + (load8(plan->rule + i) << 8) + (flow & 0xff));
		store8(plan->ports + i, (1024 + (flow & 0x3fff)) << 16 | DPORT);
	}
}

/* Bits of a flow's number, spread by an odd multiplier, take the places that a record leaves free. */
static __rte_always_inline v8
spread(v8 flow, uint32_t multiplier, v8 wild)
{
	v8 bits = flow * multiplier;

	return (bits >> 16 | bits << 16) & wild;
}

/* Four records: their first, second, ... words, the upper halves being words four further on. */
static __rte_always_inline void
turn_records(v8 words[4], const struct record *records, const uint32_t *rules)
{
	v8 r[4];

	for (int i = 0; i < 4; i++)
		r[i] = load8(&records[rules[i]].src);
	turn8(words, r[0], r[1], r[2], r[3]);
}

/* Fields by record. Returns whether all are UDP. */
static bool
plan_table(const struct rx_queue *q, struct plan *plan, uint32_t n)
{
	const v8 low = {0, 1, 2, 3, 8, 9, 10, 11}, high = {4, 5, 6, 7, 12, 13, 14, 15};
	const struct record *records = q->table->records;
	v8 others = all8(0), a[4], b[4];

	RTE_BUILD_BUG_ON(sizeof(struct record) != sizeof(v8));
	for (uint32_t i = n; i < RTE_ALIGN_CEIL(n, LANES); i++)
		plan->rule[i] = plan->rule[0];
	for (uint32_t i = 0; i < n; i++)
		__builtin_prefetch(&records[plan->rule[i]]);
	for (uint32_t i = 0; i < n; i += LANES) {
		v8 flow = load8(plan->flow + i);

		turn_records(a, records, plan->rule + i);
		turn_records(b, records, plan->rule + i + 4);
#define FIELD(n, half) __builtin_shuffle(a[n], b[n], half)
		store8(plan->src + i, FIELD(0, low) | spread(flow, 0x9e3779b1, FIELD(3, low)));
		store8(plan->dst + i, FIELD(1, low) | spread(flow, 0x85ebca6b, FIELD(0, high)));
		store8(plan->ports + i, FIELD(2, low) | spread(flow, 0xc2b2ae35, FIELD(1, high)));
		store8(plan->mac + i, FIELD(2, high));
		others |= FIELD(3, high) ^ 17;
#undef FIELD
	}
	return _mm256_testz_si256((__m256i)others, (__m256i)others);
}

/*  0 MAC header and half a word of IPv4 | 16 IPv4 from its length, half of the destination
 * 32 the other half, ports, UDP length | 40 no UDP checksum. The stamp may begin at 44. */
static __rte_always_inline void
write8_udp4(const struct rx_queue *q, const struct plan *plan, uint32_t first, uint8_t *const *at, uint32_t offset,
	    uint32_t same, v8 length)
{
	v8 src = load8(plan->src + first), dst = load8(plan->dst + first), ports = load8(plan->ports + first);

	put8_eth(at, offset, q->frame.port, load8(plan->mac + first));
	put8_ip(at, offset + 16, length - 14, src, dst);
	put8_be(at, offset + 32, dst << 16 | ports >> 16, ports << 16 | (length - 34), all8(0), all8(0));
	put8_stamps(at, plan, first, offset, same);
}

static __rte_noinline void
write_tcp(const struct rx_queue *q, uint8_t *at, const struct plan *plan, uint32_t i, uint32_t length)
{
	struct words stamp = {plan->tag[i] | (uint64_t)plan->flow[i] << 32,
			      plan->sequence[i] | (uint64_t)plan->tsc[i] << 32};
	uint32_t payload = fill_payload(at, 54, length, stamp), ports = plan->ports[i];

	write_eth(at, 0, plan->mac[i], q->frame.port, 0x0800);
	write_tcp4(at, plan->src[i], plan->dst[i], ports >> 16, ports, length, payload);
}

uint64_t
udp4_burst(struct rx_queue *q, struct rte_mbuf **packets, struct plan *plan, uint32_t n)
{
	uint32_t length = q->frame.length;
	bool udp = true;
	uint64_t bytes;

	if (q->config->kind == KIND_TABLE)
		udp = plan_table(q, plan, n);
	else
		plan_udp4(plan, n);
	if (length == 60)
		bytes = write_eights(q, packets, plan, n, 60, 1, write8_udp4);
	else
		bytes = write_eights(q, packets, plan, n, length, 1, write8_udp4);
	for (uint32_t i = 0; !udp && i < n; i++)
		if (q->table->records[plan->rule[i]].protocol == 6)
			write_tcp(q, (uint8_t *)packets[i] + q->buffer_offset, plan, i, packets[i]->data_len);
	return bytes;
}
