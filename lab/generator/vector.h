/* Frames of eight packets at a time: fields are vectors of eight 32-bit words, host byte order, and are turned into 16 bytes of
 * each packet, which is one store. On stores, and on all that is done packet by packet, the generator spends its time. */
#ifndef VECTOR_H
#define VECTOR_H

#include "write.h"

#define LANES 8

typedef uint32_t v8 __attribute__((vector_size(32)));
typedef uint8_t v32 __attribute__((vector_size(32)));

static __rte_always_inline v8
all8(uint32_t value)
{
	return (v8){} + value;
}

static __rte_always_inline v8
load8(const uint32_t *words)
{
	return (v8)_mm256_loadu_si256((const void *)words);
}

static __rte_always_inline void
store8(uint32_t *words, v8 v)
{
	_mm256_storeu_si256((void *)words, (__m256i)v);
}

/* Between host and network byte order. */
static __rte_always_inline v8
swap8(v8 v)
{
	const v32 order = {3,  2,  1,  0,  7,  6,  5,  4,  11, 10, 9,  8,  15, 14, 13, 12,
			   19, 18, 17, 16, 23, 22, 21, 20, 27, 26, 25, 24, 31, 30, 29, 28};

	return (v8)__builtin_shuffle((v32)v, order);
}

static __rte_always_inline v8
halves8(v8 v)
{
	return (v >> 16) + (v & 0xffff);
}

/* The i-th words of a, b, c, d, for i = 0 and 4, 1 and 5, 2 and 6, 3 and 7. */
static __rte_always_inline void
turn8(v8 rows[4], v8 a, v8 b, v8 c, v8 d)
{
	const v8 low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};
	const v8 even = {0, 1, 8, 9, 4, 5, 12, 13}, odd = {2, 3, 10, 11, 6, 7, 14, 15};
	v8 ab = __builtin_shuffle(a, b, low), cd = __builtin_shuffle(c, d, low);
	v8 ab_high = __builtin_shuffle(a, b, high), cd_high = __builtin_shuffle(c, d, high);

	rows[0] = __builtin_shuffle(ab, cd, even);
	rows[1] = __builtin_shuffle(ab, cd, odd);
	rows[2] = __builtin_shuffle(ab_high, cd_high, even);
	rows[3] = __builtin_shuffle(ab_high, cd_high, odd);
}

/* Words a, b, c, d: the i-th of each become 16 bytes at at[i] + offset. */
static __rte_always_inline void
put8(uint8_t *const *at, uint32_t offset, v8 a, v8 b, v8 c, v8 d)
{
	v8 rows[4];

	turn8(rows, a, b, c, d);
	for (int i = 0; i < 4; i++) {
		_mm_storeu_si128((void *)(at[i] + offset), _mm256_castsi256_si128((__m256i)rows[i]));
		_mm_storeu_si128((void *)(at[i + 4] + offset), _mm256_extracti128_si256((__m256i)rows[i], 1));
	}
}

/* The same of words in network byte order, but for words that are constant. */
static __rte_always_inline void
put8_be(uint8_t *const *at, uint32_t offset, v8 a, v8 b, v8 c, v8 d)
{
	put8(at, offset, swap8(a), swap8(b), swap8(c), swap8(d));
}

/* A MAC header: 02:00:GG:HH:HH:HH from 06:00:00:00:00:PP, IPv4 without options or TOS. 16 bytes. */
static __rte_always_inline void
put8_eth(uint8_t *const *at, uint32_t offset, uint32_t port, v8 mac)
{
	put8_be(at, offset, 0x02000000 | mac >> 16, mac << 16 | 0x0600, all8(port), all8(0x08004500));
}

/* The rest of an IPv4 header's first half (RFC 791: DF, TTL 64), for UDP, and the addresses but for 16 bits. 16 bytes. */
static __rte_always_inline void
put8_ip(uint8_t *const *at, uint32_t offset, v8 total, v8 src, v8 dst)
{
	v8 sum = 0x4500 + 0x4000 + 0x4011 + total + halves8(src) + halves8(dst);

	sum = ~halves8(halves8(sum));
	put8_be(at, offset, total << 16, all8(0x40004011), sum << 16 | src >> 16, src << 16 | dst >> 16);
}

/* What a driver says about received packets, as write_mbuf() does. The hash is another for every flow. */
static __rte_always_inline void
put8_mbuf(const struct rx_queue *q, uint8_t *const *at, v8 length, v8 flow)
{
	v8 hash = flow * 0x9e3779b1u ^ q->stream;

	hash = (hash ^ hash >> 16) * 0x85ebca6bu;
	hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
	for (int i = 0; i < LANES; i++)
		_mm_storeu_si128((void *)(at[i] + offsetof(struct rte_mbuf, rearm_data)),
				 _mm_set_epi64x(q->ol_flags, q->rearm));
	put8(at, offsetof(struct rte_mbuf, rx_descriptor_fields1), all8(0), length, length, hash ^ hash >> 16);
}

/* Eight frames, at at[i] + offset, the first of which is packet `first` of the plan; `same` is their length, or 0. */
typedef void (*write8)(const struct rx_queue *q, const struct plan *plan, uint32_t first, uint8_t *const *at,
		       uint32_t offset, uint32_t same, v8 length);

static __rte_always_inline void
put8_stamps(uint8_t *const *mbufs, const struct plan *plan, uint32_t first, uint32_t offset, uint32_t same)
{
	uint8_t *at[LANES];

	for (int i = 0; i < LANES; i++)
		at[i] = mbufs[i] + offset + (same ? same : plan->length[first + i]) - sizeof(struct stamp);
	put8(at, 0, load8(plan->tag + first), load8(plan->flow + first), load8(plan->sequence + first),
	     load8(plan->tsc + first));
}

static __rte_always_inline void
prefetch8(uint8_t *const *at, uint32_t offset, uint32_t lines, uint32_t same)
{
	for (int i = 0; i < LANES; i++) {
		__builtin_prefetch(at[i], 1, 3);
		for (uint32_t line = 0; line < lines; line++)
			__builtin_prefetch(at[i] + offset + line * RTE_CACHE_LINE_SIZE, 1, 3);
		if (same > lines * RTE_CACHE_LINE_SIZE)
			__builtin_prefetch(at[i] + offset + same - 1, 1, 3);
	}
}

/* All packets of a plan. `same` is the length of all, or 0; `lines` cache lines of a frame are written besides its end.
 * Lanes without a packet write to a buffer that nobody reads. Returns the bytes. */
static __rte_always_inline uint64_t
write_eights(const struct rx_queue *q, struct rte_mbuf **packets, struct plan *plan, uint32_t n, uint32_t same,
	     uint32_t lines, write8 write)
{
	uint8_t *at[MAX_BURST + LANES];
	uint32_t offset = q->buffer_offset, all = RTE_ALIGN_CEIL(n, LANES);
	uint64_t bytes = (uint64_t)n * same;

	memcpy(at, packets, n * sizeof *at);
	for (uint32_t i = n; i < all; i++) {
		at[i] = q->scratch;
		plan->length[i] = 60;
	}
	for (uint32_t i = 0; i < LANES; i++)
		at[all + i] = (uint8_t *)q->ring[(q->head + i) & (q->ring_size - 1)];
	for (uint32_t i = 0; !same && i < n; i++)
		bytes += plan->length[i];
	for (uint32_t i = 0; i < all; i += LANES) {
		v8 length = same ? all8(same) : load8(plan->length + i);

		prefetch8(at + i + LANES, offset, lines, same);
		put8_mbuf(q, at + i, length, load8(plan->flow + i));
		write(q, plan, i, at + i, offset, same, length);
	}
	return bytes;
}

#endif
