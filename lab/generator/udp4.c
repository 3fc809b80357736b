/* UDP over IPv4 in plain Ethernet, a burst at a time: fields of all packets, then words of all packets (loops that the
 * compiler makes SIMD of), then stores. The frame's first 24 bytes are the same in every packet but for the MAC and, with
 * mixed sizes, the length:
 *   0 destination MAC, 6 source MAC, 12 type | 14 IPv4, 16 length, 20 DF, 22 TTL, 23 protocol
 *   24 IPv4 checksum, source, half of the destination | 32 the other half, ports, UDP length | 40 no UDP checksum */
#include "write.h"

#define HEADER 42

void
udp4_init(struct frame_constants *f)
{
	write_eth(f->first, 0, 0, f->port, 0x0800);
	put64(f->first + 14, 0x45 | 0x40ull << 48);
	put32(f->first + 22, 0x1140);
}

/* Fields by arithmetic: flow f of rule r. */
static void
plan_udp4(struct plan *plan, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		plan->src[i] = SRC_NET + plan->flow[i];
		plan->dst[i] = DST_NET + (plan->rule[i] << 8) + (plan->flow[i] & 0xff);
		plan->ports[i] = (1024 + (plan->flow[i] & 0x3fff)) << 16 | DPORT;
	}
}

/* Bits of a flow's number, spread by an odd multiplier, take the places that a record leaves free. */
static __rte_always_inline uint32_t
spread(uint32_t flow, uint32_t multiplier, uint32_t wild)
{
	uint32_t bits = flow * multiplier;

	return (bits >> 16 | bits << 16) & wild;
}

/* Fields by record. Records of flows that were never seen stand behind the others. Returns whether all are UDP. */
static bool
plan_table(const struct rx_queue *q, struct plan *plan, uint32_t n)
{
	bool udp = true;

	for (uint32_t i = 0; q->table->n_new && i < n; i++)
		if (plan->flow[i] >= q->frame.flows)
			plan->rule[i] = q->table->n + remainder_of(plan->flow[i], &q->frame.new_rules);
	for (uint32_t i = 0; i < n; i++)
		__builtin_prefetch(&q->table->records[plan->rule[i]]);
	for (uint32_t i = 0; i < n; i++) {
		const struct record *r = &q->table->records[plan->rule[i]];
		uint32_t flow = plan->flow[i];

		plan->src[i] = r->src | spread(flow, 0x9e3779b1, r->wild_src);
		plan->dst[i] = r->dst | spread(flow, 0x85ebca6b, r->wild_dst);
		plan->ports[i] = r->ports | spread(flow, 0xc2b2ae35, r->wild_ports);
		plan->mac[i] = r->dmac;
		udp &= r->protocol == 17;
	}
	return udp;
}

/* Words from fields, for UDP; lengths are those of the buffer. */
static void
plan_words(struct plan *restrict plan, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t src = plan->src[i], dst = plan->dst[i], ports = plan->ports[i];
		uint32_t sum = 0x4500 + 0x4000 + 0x4011 + (plan->length[i] - 14u);
		uint32_t swapped = __builtin_bswap32(dst);

		sum += (src >> 16) + (src & 0xffff) + (dst >> 16) + (dst & 0xffff);
		sum = ~halves(halves(sum)) & 0xffff;
		plan->at24[i] = (__builtin_bswap32(sum) >> 16) | (uint64_t)__builtin_bswap32(src) << 16 | (uint64_t)swapped << 48;
		plan->at32[i] = (swapped >> 16) | (uint64_t)__builtin_bswap32(ports) << 16 |
				(uint64_t)(__builtin_bswap32(plan->length[i] - 34u) >> 16) << 48;
	}
}

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
		plan->stamp_low[i] += (STAMP_TRACKED - STAMP_PLAIN) + ((uint64_t)slot << (16 + STAMP_STREAM_BITS));
		plan->stamp_high[i] |= count++;
	}
	q->slots[last] = count;
}

static void
plan_stamps(struct rx_queue *q, struct plan *plan, uint32_t n, uint32_t tsc, uint32_t step)
{
	uint32_t mask = q->track_mask, shift = q->track_shift, sampled = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t local = plan->flow[i] - q->order.first;

		plan->stamp_low[i] = STAMP_PLAIN | q->stream << 16 | (uint64_t)plan->flow[i] << 32;
		plan->stamp_high[i] = (uint64_t)(tsc + i * step) << 32;
		sampled |= ((local & mask) == 0) & (local >> shift < SLOTS);
	}
	/* One burst of eight is enough where every flow is sampled, and where the most frequent one is in most bursts: a
	 * branch that goes now this way, now that way costs more than numbers do. */
	if (sampled && ((mask && q->order.order != ORDER_ZIPF) || q->bursts++ % 8 == 0))
		plan_numbers(q, plan, n);
}

/* Anything but a frame of 64 bytes: zeros between header and stamp are not written where the payload is any. */
static __rte_always_inline void
end_frame(uint8_t *at, uint32_t length, struct words stamp)
{
	if (likely(length >= HEADER + sizeof(struct stamp)))
		put_words(at + length - sizeof(struct stamp), stamp);
	else
		memset(at + HEADER, 0, length - HEADER);
}

static __rte_always_inline void
write_udp(const struct rx_queue *q, uint8_t *at, const struct plan *plan, uint32_t i, uint32_t length, bool fixed)
{
	_mm256_storeu_si256((void *)at, _mm256_load_si256((const void *)q->frame.first));
	put32(at + 2, __builtin_bswap32(plan->mac[i]));
	put64(at + 24, plan->at24[i]);
	put64(at + 32, plan->at32[i]);
	put32(at + 40, 0);
	if (fixed) {
		put64(at + 44, plan->stamp_low[i]);
		put64(at + 52, plan->stamp_high[i]);
	}
	put32(at + 16, __builtin_bswap32(length - 14) >> 16);
}

static __rte_noinline void
write_tcp(const struct rx_queue *q, uint8_t *at, const struct plan *plan, uint32_t i, uint32_t length)
{
	struct words stamp = {plan->stamp_low[i], plan->stamp_high[i]};
	uint32_t payload = fill_payload(at, 54, length, stamp), ports = plan->ports[i];

	write_eth(at, 0, plan->mac[i], q->frame.port, 0x0800);
	write_tcp4(at, plan->src[i], plan->dst[i], ports >> 16, ports, length, payload);
}

static __rte_always_inline uint64_t
write_burst(struct rx_queue *q, struct rte_mbuf **packets, const struct plan *plan, uint32_t n, bool udp, bool fixed)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint8_t *at = (uint8_t *)packets[i] + q->buffer_offset;
		uint32_t length = fixed ? 60 : plan->length[i];

		if (i + PREFETCH < n)
			prefetch(q, packets[i + PREFETCH]);
		bytes += length;
		write_mbuf(q, packets[i], length, _mm_crc32_u32(q->stream, plan->flow[i]));
		if (!udp && q->table->records[plan->rule[i]].protocol == 6) {
			write_tcp(q, at, plan, i, length);
			continue;
		}
		write_udp(q, at, plan, i, length, fixed);
		if (!fixed)
			end_frame(at, length, (struct words){plan->stamp_low[i], plan->stamp_high[i]});
	}
	return bytes;
}

uint64_t
udp4_burst(struct rx_queue *q, struct rte_mbuf **packets, struct plan *plan, uint32_t n, uint32_t tsc, uint32_t step)
{
	bool udp = true, fixed = q->config->size == 64;
	uint64_t bytes;

	if (q->config->kind == KIND_TABLE)
		udp = plan_table(q, plan, n);
	else
		plan_udp4(plan, n);
	for (uint32_t i = 0; q->config->size > SIZE_UNIFORM && i < n; i++)
		plan->length[i] = q->config->size - RTE_ETHER_CRC_LEN;
	plan_words(plan, n);
	plan_stamps(q, plan, n, tsc, step);
	if (udp)
		bytes = fixed ? write_burst(q, packets, plan, n, true, true) : write_burst(q, packets, plan, n, true, false);
	else
		bytes = write_burst(q, packets, plan, n, false, false);
	prefetch_next(q);
	return bytes;
}
