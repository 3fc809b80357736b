/* VXLAN (RFC 7348) around UDP over IPv4, eight packets at a time:
 *  0 outer MAC header | 16 outer IPv4 | 32 the rest of it, UDP, VXLAN's flags | 44 VNI, inner MAC header to 59
 * 60 inner IPv4 to its checksum | 76 addresses and UDP. A frame that has no room for a stamp loses it to its header. */
#include "vector.h"

static __rte_always_inline void
write8_vxlan(const struct rx_queue *q, const struct plan *plan, uint32_t first, uint8_t *const *at, uint32_t offset,
	     uint32_t same, v8 length)
{
	v8 flow = load8(plan->flow + first), guest = load8(plan->mac + first), vni = load8(plan->rule + first);
	v8 low = flow & 0x3fff, total = length - 64;
	v8 src = q->frame.one_source ? all8(SRC_NET) : SRC_NET + flow, dst = DST_NET + flow;
	v8 sum = 0x4500 + 0x4000 + 0x4011 + total + halves8(src) + halves8(dst);

	sum = ~halves8(halves8(sum)) & 0xffff;
	put8_stamps(at, plan, first, offset, same);
	put8_eth(at, offset, q->frame.port, all8(0));
	put8_ip(at, offset + 16, length - 14, OUTER_SRC + load8(plan->source + first), all8(OUTER_DST));
	put8_be(at, offset + 32, OUTER_DST << 16 | (49152 + low), 4789 << 16 | (length - 34), all8(0x0800), all8(0));
	put8_be(at, offset + 44, vni >> 8, vni << 24 | 0x0200, 0x01000000 | guest, all8(0x06000000));
	put8_be(at, offset + 60, all8(q->frame.port << 16 | 0x0800), 0x45000000 | total, all8(0x4000), 0x40110000 | sum);
	put8_be(at, offset + 76, src, dst, (1024 + low) << 16 | DPORT, (total - 20) << 16);
}

uint64_t
vxlan_burst(struct rx_queue *q, struct rte_mbuf **packets, struct plan *plan, uint32_t n)
{
	return write_eights(q, packets, plan, n, q->frame.length, 2, write8_vxlan);
}
