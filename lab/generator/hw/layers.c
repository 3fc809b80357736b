/* Where a frame's headers are. A header that is cut off is not there, nor is what follows it. */
#include <string.h>

#include "adapter.h"

#define EXTENSIONS_MOST 8
#define VXLAN_PORT 4789

static uint32_t
word16(const uint8_t *at)
{
	return at[0] << 8 | at[1];
}

/* What is left of the frame, in one walk over it. */
struct walk {
	struct layers *layers;
	const uint8_t *bytes;
	uint32_t at, end, base;
};

static bool
there(struct walk *w, enum layer layer, uint32_t bytes)
{
	if (w->end - w->at < bytes)
		return false;
	w->layers->present |= 1u << (w->base + layer);
	w->layers->at[w->base + layer] = w->at;
	return true;
}

/* RFC 7348. An inner header of VXLAN is not looked into for another one. */
static void
walk_udp(struct walk *w)
{
	if (!there(w, LAYER_UDP, 8))
		return;
	w->at += 8;
	if (w->base || word16(w->bytes + w->at - 6) != VXLAN_PORT || !there(w, LAYER_VXLAN, 8))
		return;
	w->at += 8;
	w->base = LAYERS;
}

static void
walk_l4(struct walk *w, uint8_t protocol)
{
	switch (protocol) {
	case 6:
		there(w, LAYER_TCP, 20);
		break;
	case 17:
		walk_udp(w);
		break;
	case 132:
		there(w, LAYER_SCTP, 12);
		break;
	case 1:
		there(w, LAYER_ICMP, 4);
		break;
	case 58:
		there(w, LAYER_ICMP6, 4);
		break;
	}
}

/* RFC 791. */
static void
walk_ipv4(struct walk *w)
{
	const uint8_t *ip = w->bytes + w->at;
	uint32_t length;

	if (w->end - w->at < 20 || *ip >> 4 != 4)
		return;
	length = (*ip & 15) * 4;
	if (length < 20 || !there(w, LAYER_IPV4, length))
		return;
	w->at += length;
	if (!(word16(ip + 6) & 0x1fff))
		walk_l4(w, ip[9]);
}

/* RFC 8200. */
static void
walk_ipv6(struct walk *w)
{
	uint8_t next;

	if (w->end - w->at < 40 || w->bytes[w->at] >> 4 != 6 || !there(w, LAYER_IPV6, 40))
		return;
	next = w->bytes[w->at + 6];
	w->at += 40;
	for (uint32_t i = 0; i < EXTENSIONS_MOST && (next == 0 || next == 43 || next == 44 || next == 60); i++) {
		const uint8_t *extension = w->bytes + w->at;
		uint32_t length;

		if (w->end - w->at < 8)
			return;
		length = next == 44 ? 8 : (extension[1] + 1) * 8;
		if (next == 44)
			there(w, LAYER_FRAG6, 8);
		if (w->end - w->at < length)
			return;
		w->at += length;
		if (next == 44 && word16(extension + 2) >> 3)
			return;
		next = extension[0];
	}
	walk_l4(w, next);
}

static void
walk_eth(struct walk *w)
{
	uint32_t type;

	if (!there(w, LAYER_ETH, 14))
		return;
	w->at += 14;
	type = word16(w->bytes + w->at - 2);
	for (int tags = 0; tags < 2 && (type == 0x8100 || type == 0x88a8); tags++) {
		if (!there(w, tags ? LAYER_VLAN2 : LAYER_VLAN, 4))
			return;
		w->at += 4;
		type = word16(w->bytes + w->at - 2);
	}
	if (type == 0x0800)
		walk_ipv4(w);
	else if (type == 0x86dd)
		walk_ipv6(w);
}

void
layers_of(struct layers *layers, const uint8_t *bytes, uint32_t length)
{
	struct walk w = {.layers = layers, .bytes = bytes, .end = length};

	layers->present = 0;
	walk_eth(&w);
	if (w.base)
		walk_eth(&w);
}
