/* Stores into frames and buffers, packet by packet. */
#ifndef WRITE_H
#define WRITE_H

#include <string.h>

#include <immintrin.h>
#include <rte_branch_prediction.h>
#include <rte_byteorder.h>

#include "weftgen.h"

#define PREFETCH 8
#define SRC_NET 0x30000000u
#define DST_NET 0x10000000u
#define DPORT 5001
#define OUTER_SRC 0xac100001u
#define OUTER_DST 0xac1f0001u

/* Stores and conversions: whole words are put together in registers, since stores are what costs. */
static __rte_always_inline void
put64(uint8_t *at, uint64_t value)
{
	memcpy(at, &value, sizeof value);
}

static __rte_always_inline void
put32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, sizeof value);
}

/* The last 16 bytes, as two words. */
struct words {
	uint64_t low, high;
};

static __rte_always_inline void
put_words(uint8_t *at, struct words words)
{
	put64(at, words.low);
	put64(at + 8, words.high);
}

static __rte_always_inline uint64_t
be16(uint16_t value)
{
	return rte_cpu_to_be_16(value);
}

static __rte_always_inline uint64_t
be32(uint32_t value)
{
	return rte_cpu_to_be_32(value);
}

static __rte_always_inline uint32_t
halves(uint32_t value)
{
	return (value >> 16) + (value & 0xffff);
}

static __rte_always_inline uint16_t
checksum(uint32_t sum)
{
	return ~halves(halves(sum));
}

/* 02:00:GG:HH:HH:HH from 06:00:00:00:00:PP, type. */
static __rte_always_inline void
write_eth(uint8_t *at, uint8_t group, uint32_t host, uint8_t port, uint16_t type)
{
	put64(at, 0x0002 | (uint64_t)group << 16 | be32(host) >> 8 << 24 | 0x0006ull << 48);
	put64(at + 6, 0x0006 | (uint64_t)port << 40 | be16(type) << 48);
}

/* An IPv4 header (RFC 791: DF, TTL 64) with the ports that follow it. */
static __rte_always_inline void
write_ip4(uint8_t *ip, uint8_t protocol, uint32_t total, uint32_t src, uint32_t dst, uint16_t sport, uint16_t dport)
{
	uint32_t sum = 0x4500 + 0x4000 + 0x4000 + protocol + total + halves(src) + halves(dst);

	put64(ip, 0x45 | be16(total) << 16 | 0x40ull << 48);
	put64(ip + 8, 0x40 | (uint64_t)protocol << 8 | be16(checksum(sum)) << 16 | be32(src) << 32);
	put64(ip + 16, be32(dst) | be16(sport) << 32 | be16(dport) << 48);
}

/* frame.c: zeroes the payload, stamps it, and returns its sum. For kinds whose L4 checksum is not optional. */
uint32_t fill_payload(uint8_t *at, uint32_t header, uint32_t length, struct words stamp);

/* TCP with these numbers and flags. */
static __rte_always_inline void
write_segment4(uint8_t *at, uint32_t src, uint32_t dst, uint16_t sport, uint16_t dport, uint32_t length,
	       uint32_t payload, uint32_t seq, uint32_t ack, uint8_t flags)
{
	uint32_t sum = 6 + (length - 34) + halves(src) + halves(dst) + sport + dport + halves(seq) + halves(ack) +
		       (0x5000 | flags) + 0xffff + payload;

	write_ip4(at + 14, 6, length - 14, src, dst, sport, dport);
	put64(at + 38, be32(seq) | be32(ack) << 32);
	put64(at + 46, 0xffff0050 | flags << 8 | be16(checksum(sum)) << 32);
}

static __rte_always_inline void
write_tcp4(uint8_t *at, uint32_t src, uint32_t dst, uint16_t sport, uint16_t dport, uint32_t length, uint32_t payload)
{
	write_segment4(at, src, dst, sport, dport, length, payload, 0, 0, 0x10);
}

/* What a driver says about a received packet: one segment, its length, the adapter's RSS hash. */
static __rte_always_inline void
write_mbuf(const struct rx_queue *q, struct rte_mbuf *m, uint32_t length, uint32_t hash)
{
	RTE_BUILD_BUG_ON(offsetof(struct rte_mbuf, ol_flags) != offsetof(struct rte_mbuf, rearm_data) + 8);
	_mm_storeu_si128((void *)&m->rearm_data, _mm_set_epi64x(q->ol_flags, q->rearm));
	put64((uint8_t *)m->rx_descriptor_fields1, (uint64_t)length << 32);
	put64((uint8_t *)m->rx_descriptor_fields1 + 8, length | (uint64_t)hash << 32);
}

static __rte_always_inline void
prefetch(const struct rx_queue *q, struct rte_mbuf *m)
{
	__builtin_prefetch(m, 1, 3);
	__builtin_prefetch((uint8_t *)m + q->buffer_offset, 1, 3);
}

/* Those that come first next time. */
static __rte_always_inline void
prefetch_next(const struct rx_queue *q)
{
	for (uint32_t i = 0; i < PREFETCH; i++)
		prefetch(q, q->ring[(q->head + i) & (q->ring_size - 1)]);
}

#endif
