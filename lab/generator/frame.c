/* What a flow's frame looks like.
 *
 * Flow number f, rule r = f mod rules, MAC d = f mod dmacs, source and guest as order.c planned:
 *   udp4 tcp4 vlan  02:00:00:d, 48.0.0.0 + f -> 16.0.0.0 + 256 r + f mod 256, port 1024 + f mod 2^14 -> 5001
 *   udp6            the same with fd00:: + f -> fd01::r:(f mod 256)
 *   vxlan           outer 172.16.0.1 + source -> 172.31.0.1, port 49152 + f mod 2^14 -> 4789, VNI 100 + guest mod vnis;
 *                   inner 02:00:01:00:guest, 48.0.0.0 + f -> 16.0.0.0 + f; with order=scatter the inner source stays
 *   conn            TCP connections, c = f / 2, of which the odd flows answer: see connection_of()
 *   table           what record f mod n says, with bits of f in the places that it leaves free
 *   pcap            packet f mod n of the file, as it is */
#include <string.h>

#include "write.h"

static const uint16_t header_bytes[] = {
	[KIND_UDP4] = 42, [KIND_TCP4] = 54, [KIND_UDP6] = 62, [KIND_VLAN] = 46, [KIND_VXLAN] = 92,
	[KIND_CONN] = 54, [KIND_TABLE] = 54, [KIND_PCAP] = 0,
};

uint32_t
frame_least_size(const struct config *config)
{
	return RTE_MAX(64, header_bytes[config->kind] + RTE_ETHER_CRC_LEN);
}

void
frame_init(struct frame_constants *f, const struct device *device, uint16_t port)
{
	const struct config *config = &device->config;

	f->header = header_bytes[config->kind];
	f->port = port;
	f->flows = config->flows;
	f->rules = divisor_of(config->kind == KIND_TABLE ? device->table.n :
			      config->kind == KIND_PCAP  ? device->replay.n :
							   config->rules);
	f->length = config->size > SIZE_UNIFORM ? config->size - RTE_ETHER_CRC_LEN : 0;
	f->sourced = config->order == ORDER_BURST || config->order == ORDER_SCATTER;
	f->one_source = config->order == ORDER_SCATTER;
	f->vnis = divisor_of(config->vnis);
	f->sources = divisor_of(config->sources);
	f->new_rules = divisor_of(device->table.n_new ? device->table.n_new : 1);
	f->macs = divisor_of(config->kind == KIND_VXLAN ? config->guests : config->dmacs);
}

/* Buffer lengths of the next packets: fixed, IMIX 7:4:1 of 64, 594 and 1518 bytes, or uniform. */
static void
plan_lengths(struct rx_queue *q, struct plan *plan, uint32_t n)
{
	static const uint16_t imix[12] = {64, 594, 64, 64, 594, 64, 1518, 64, 594, 64, 594, 64};
	uint32_t least = frame_least_size(q->config);

	for (uint32_t i = 0; i < n; i++) {
		uint32_t size;

		if (q->config->size == SIZE_IMIX) {
			size = imix[q->size_state];
			q->size_state = q->size_state == 11 ? 0 : q->size_state + 1;
		} else {
			size = 64 + ((random_at(&q->order) >> 32) * (1518 - 64 + 1) >> 32);
		}
		plan->length[i] = RTE_MAX(size, least) - RTE_ETHER_CRC_LEN;
	}
}

/* Fills `out` with remainders; n is a multiple of eight, for SIMD. */
static void
plan_remainders(uint32_t *restrict out, const uint32_t *restrict in, uint32_t n, struct divisor d)
{
	if (d.n == 1) {
		memset(out, 0, n * sizeof *out);
		return;
	}
	for (uint32_t i = 0; i < n; i += 8)
		for (uint32_t k = i; k < i + 8; k++)
			out[k] = remainder_of(in[k], &d);
}

/* Records of flows that were never seen stand behind the others. */
static void
plan_new_records(const struct rx_queue *q, struct plan *plan, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (plan->flow[i] >= q->frame.flows)
			plan->rule[i] = q->table->n + remainder_of(plan->flow[i], &q->frame.new_rules);
}

/* Rules and MACs of flows; of VXLAN's outer sources, guests and VNIs. */
static void
plan_fields(const struct rx_queue *q, struct plan *plan, uint32_t n)
{
	const struct frame_constants *f = &q->frame;

	n = RTE_ALIGN_CEIL(n, 8);
	if (q->config->kind != KIND_VXLAN) {
		plan_remainders(plan->rule, plan->flow, n, f->rules);
		plan_remainders(plan->mac, plan->flow, n, f->macs);
		if (q->config->kind == KIND_TABLE && q->table->n_new)
			plan_new_records(q, plan, n);
		return;
	}
	plan_remainders(plan->mac, f->sourced ? plan->source : plan->flow, n, f->macs);
	if (!f->sourced)
		plan_remainders(plan->source, plan->flow, n, f->sources);
	plan_remainders(plan->rule, plan->mac, n, f->vnis);
	for (uint32_t i = 0; i < n; i++)
		plan->rule[i] += 100;
}

/* An IPv4 and UDP header; the UDP checksum is 0: none (RFC 768). */
static __rte_always_inline void
write_udp4(uint8_t *ip, uint32_t total, uint32_t src, uint32_t dst, uint16_t sport, uint16_t dport)
{
	write_ip4(ip, 17, total, src, dst, sport, dport);
	put32(ip + 24, be16(total - 20));
}

/* The ones' complement sum of big-endian words, not folded. */
static uint32_t
sum_of(const uint8_t *at, uint32_t bytes)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i + 1 < bytes; i += 2)
		sum += at[i] << 8 | at[i + 1];
	return bytes & 1 ? sum + (at[bytes - 1] << 8) : sum;
}

uint32_t
fill_payload(uint8_t *at, uint32_t header, uint32_t length, struct words stamp)
{
	memset(at + header, 0, length - header);
	if (length < header + sizeof(struct stamp))
		return 0;
	put_words(at + length - sizeof(struct stamp), stamp);
	return sum_of(at + header, length - header);
}

static __rte_always_inline void
write_udp6(uint8_t *at, uint32_t flow, uint32_t rule, uint16_t sport, uint32_t length, uint32_t payload)
{
	uint32_t udp = length - 54, low = flow & 0xff;
	uint32_t sum = 17 + 2 * udp + 0xfd00 + 0xfd01 + halves(flow) + halves(rule) + low + sport + DPORT + payload;

	sum = checksum(halves(halves(sum)));
	put64(at + 14, 0x60 | be16(udp) << 32 | 0x4011ull << 48);
	put64(at + 22, 0x00fd);
	put64(at + 30, be32(flow) << 32);
	put64(at + 38, 0x01fd);
	put64(at + 46, be32(rule) | be32(low) << 32);
	put64(at + 54, be16(sport) | be16(DPORT) << 16 | be16(udp) << 32 | be16(sum ? sum : 0xffff) << 48);
}

static __rte_always_inline void
write_flat(const struct rx_queue *q, uint8_t *at, enum kind kind, uint32_t flow, uint32_t rule, uint32_t dmac,
	   uint32_t length, struct words stamp)
{
	uint32_t src = SRC_NET + flow, dst = DST_NET + (rule << 8) + (flow & 0xff), sport = 1024 + (flow & 0x3fff);
	static const uint16_t types[] = {[KIND_TCP4] = 0x800, [KIND_UDP6] = 0x86dd,
					 [KIND_VLAN] = 0x8100};

	write_eth(at, 0, dmac, q->frame.port, types[kind]);
	if (kind == KIND_VLAN) {
		put32(at + 14, be16(100) | be16(0x0800) << 16);
		write_udp4(at + 18, length - 18, src, dst, sport, DPORT);
	} else {
		uint32_t payload = fill_payload(at, q->frame.header, length, stamp);

		if (kind == KIND_TCP4)
			write_tcp4(at, src, dst, sport, DPORT, length, payload);
		else
			write_udp6(at, flow, rule, sport, length, payload);
	}
}

/* A packet of a TCP connection. */
struct segment {
	uint32_t connection, seq, ack;
	uint8_t flags;
	bool reply;
};

/* Connections that are opened side by side: an answer comes some vectors after what it answers. */
#define OPENED_TOGETHER 4096u
/* Connections that are opened and closed, again and again. */
#define NEW_CONNECTIONS (1u << 20)

/* Flows that were never seen: connections that are opened and reset, or SYNs that nobody answers. The others' are
 * acknowledgements in both directions. Each segment, a SYN too, carries `data` bytes, which sequence numbers count:
 * connection tracking takes a RST for invalid whose number is not the next one. */
static struct segment
connection_of(const struct rx_queue *q, uint32_t flow, uint32_t data)
{
	const uint32_t next = 2 + data; /* behind a side's SYN */
	const struct segment steps[4] = {
		{.seq = 1, .flags = 0x02}, {.seq = 1, .ack = next, .flags = 0x12, .reply = true},
		{.seq = next, .ack = next, .flags = 0x10}, {.seq = next + data, .ack = next, .flags = 0x14},
	};
	uint32_t n = flow - q->frame.flows, in_block = n % (4 * OPENED_TOGETHER);
	struct segment s;

	if (flow < q->frame.flows)
		return (struct segment){.connection = flow / 2, .seq = 1, .ack = 1, .flags = 0x10, .reply = flow & 1};
	if (q->config->flood)
		return (struct segment){.connection = flow, .seq = 1, .flags = 0x02};
	s = steps[in_block / OPENED_TOGETHER];
	s.connection = n / (4 * OPENED_TOGETHER) * OPENED_TOGETHER + in_block % OPENED_TOGETHER;
	s.connection = q->frame.flows / 2 + s.connection % NEW_CONNECTIONS;
	return s;
}

/* Client 48.0.0.0 + c, port 1024 + c mod 2^14, to 16.0.0.1; with nat answers come from 17.0.0.1. */
static void
write_conn(const struct rx_queue *q, uint8_t *at, uint32_t flow, uint32_t dmac, uint32_t length, struct words stamp)
{
	struct segment s = connection_of(q, flow, length - q->frame.header);
	uint32_t client = SRC_NET + s.connection, server = DST_NET + 1, port = 1024 + (s.connection & 0x3fff);
	uint32_t payload = fill_payload(at, q->frame.header, length, stamp);

	write_eth(at, 0, dmac, q->frame.port, 0x0800);
	if (!s.reply)
		write_segment4(at, client, server, port, DPORT, length, payload, s.seq, s.ack, s.flags);
	else
		write_segment4(at, server + (q->config->nat ? 1u << 24 : 0), client, DPORT, port, length, payload, s.seq,
			       s.ack, s.flags);
}

static __rte_always_inline void
write_frame(struct rx_queue *q, uint8_t *at, enum kind kind, const struct plan *plan, uint32_t i, uint32_t length)
{
	struct words last = {plan->tag[i] | (uint64_t)plan->flow[i] << 32,
			     plan->sequence[i] | (uint64_t)plan->tsc[i] << 32};

	if (kind == KIND_PCAP) {
		memcpy(at, q->replay->bytes + q->replay->packets[plan->rule[i]].at, length);
		return;
	}
	if (kind == KIND_CONN) {
		write_conn(q, at, plan->flow[i], plan->mac[i], length, last);
		return;
	}
	write_flat(q, at, kind, plan->flow[i], plan->rule[i], plan->mac[i], length, last);
	if (kind != KIND_VLAN)
		return;
	if (likely(length >= header_bytes[kind] + sizeof(struct stamp)))
		put_words(at + length - sizeof(struct stamp), last);
	else
		memset(at + header_bytes[kind], 0, length - header_bytes[kind]);
}

/* Packet by packet: kinds whose payload is summed, or that are not measured with. */
static __rte_always_inline uint64_t
burst(struct rx_queue *q, struct rte_mbuf **packets, const struct plan *plan, uint32_t n, enum kind kind)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct rte_mbuf *m = packets[i];
		uint32_t length = q->frame.length ? q->frame.length : plan->length[i];

		if (i + PREFETCH < n)
			prefetch(q, packets[i + PREFETCH]);
		if (kind == KIND_PCAP)
			length = q->replay->packets[plan->rule[i]].length;
		bytes += length;
		write_mbuf(q, m, length, _mm_crc32_u32(q->stream, plan->flow[i]));
		write_frame(q, (uint8_t *)m + q->buffer_offset, kind, plan, i, length);
	}
	prefetch_next(q);
	return bytes;
}

void
frame_plan(struct rx_queue *q, struct plan *plan, uint32_t n)
{
	if (!q->frame.length)
		plan_lengths(q, plan, n);
	plan_fields(q, plan, n);
}

uint64_t
frame_write(struct rx_queue *q, struct rte_mbuf **packets, struct plan *plan, uint32_t n, uint32_t tsc, uint32_t step)
{
	plan_stamps(q, plan, n, tsc, step);
	switch (q->config->kind) {
	case KIND_UDP4:
	case KIND_TABLE:
		return udp4_burst(q, packets, plan, n);
	case KIND_VXLAN:
		return vxlan_burst(q, packets, plan, n);
	case KIND_TCP4:
		return burst(q, packets, plan, n, KIND_TCP4);
	case KIND_UDP6:
		return burst(q, packets, plan, n, KIND_UDP6);
	case KIND_VLAN:
		return burst(q, packets, plan, n, KIND_VLAN);
	case KIND_CONN:
		return burst(q, packets, plan, n, KIND_CONN);
	case KIND_PCAP:
		return burst(q, packets, plan, n, KIND_PCAP);
	}
	return 0;
}
