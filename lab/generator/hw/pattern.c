/* From rte_flow's items to a pattern: layers that must be there and bits of them. Whether a
 * frame fits it. */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "adapter.h"

/* A field that an adapter can match on: bytes of the header. */
struct field {
	uint8_t at, bytes;
};

/* An item's struct starts with the header as it is in the packet. */
struct kind_of_item {
	enum rte_flow_item_type type;
	enum layer layer;
	uint8_t bytes; /* of the header */
	uint8_t order; /* a pattern's items go up; equal ones exclude each other */
	const void *mask;
	struct field fields[8];
};

static const struct rte_flow_item_ipv6_frag_ext frag_mask;

static const struct kind_of_item kinds[] = {
	{RTE_FLOW_ITEM_TYPE_ETH, LAYER_ETH, 14, 1, &rte_flow_item_eth_mask, {{0, 6}, {6, 6}, {12, 2}}},
	{RTE_FLOW_ITEM_TYPE_VLAN, LAYER_VLAN, 4, 2, &rte_flow_item_vlan_mask, {{0, 2}, {2, 2}}},
	{RTE_FLOW_ITEM_TYPE_IPV4, LAYER_IPV4, 20, 4, &rte_flow_item_ipv4_mask,
	 {{1, 1}, {6, 2}, {8, 1}, {9, 1}, {12, 4}, {16, 4}}},
	{RTE_FLOW_ITEM_TYPE_IPV6, LAYER_IPV6, 40, 4, &rte_flow_item_ipv6_mask,
	 {{0, 4}, {6, 1}, {7, 1}, {8, 16}, {24, 16}}},
	{RTE_FLOW_ITEM_TYPE_IPV6_FRAG_EXT, LAYER_FRAG6, 8, 5, &frag_mask, {{0, 1}, {2, 2}}},
	{RTE_FLOW_ITEM_TYPE_TCP, LAYER_TCP, 20, 6, &rte_flow_item_tcp_mask, {{0, 2}, {2, 2}, {13, 1}}},
	{RTE_FLOW_ITEM_TYPE_UDP, LAYER_UDP, 8, 6, &rte_flow_item_udp_mask, {{0, 2}, {2, 2}}},
	{RTE_FLOW_ITEM_TYPE_SCTP, LAYER_SCTP, 12, 6, &rte_flow_item_sctp_mask, {{0, 2}, {2, 2}}},
	{RTE_FLOW_ITEM_TYPE_ICMP, LAYER_ICMP, 8, 6, &rte_flow_item_icmp_mask, {{0, 1}, {1, 1}}},
	{RTE_FLOW_ITEM_TYPE_ICMP6, LAYER_ICMP6, 4, 6, &rte_flow_item_icmp6_mask, {{0, 1}, {1, 1}}},
	{RTE_FLOW_ITEM_TYPE_VXLAN, LAYER_VXLAN, 8, 7, &rte_flow_item_vxlan_mask, {{0, 1}, {4, 3}}},
};

#define HEADER_MOST 40

static int
refuse(struct rte_flow_error *error, int code, enum rte_flow_error_type type, const void *cause, const char *message)
{
	return rte_flow_error_set(error, code, type, cause, message);
}

/* The part of a pattern that was read. */
struct reading {
	struct pattern *pattern;
	const struct hw_config *config;
	enum widen widen;
	struct rte_flow_error *error;
	uint32_t base;  /* 0, or LAYERS behind a VXLAN item */
	uint8_t order;
	uint32_t vlans;
};

/* Bits of a header that no field has cannot be matched. */
static int
check_fields(struct reading *r, const struct kind_of_item *kind, const struct rte_flow_item *item, const uint8_t *mask)
{
	bool known[HEADER_MOST] = {};

	for (const struct field *f = kind->fields; f < kind->fields + RTE_DIM(kind->fields); f++)
		memset(known + f->at, true, f->bytes);
	for (uint32_t i = 0; i < kind->bytes; i++)
		if (mask[i] && !known[i])
			return refuse(r->error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM_MASK, item,
				      "the adapter cannot match on such a field");
	return 0;
}

/* Tests for what `mask` has of a header of so many bytes. The last word may overlap the one
 * before it. */
static int
add_tests(struct reading *r, uint32_t layer, const struct rte_flow_item *item, const uint8_t *spec, const uint8_t *mask,
	  uint32_t bytes)
{
	struct pattern *p = r->pattern;
	uint8_t left[HEADER_MOST];

	memcpy(left, mask, bytes);
	for (uint32_t i = 0; i < bytes; i += 4) {
		struct test t = {.layer = layer, .offset = RTE_MIN(i, bytes - 4)};

		memcpy(&t.mask, left + t.offset, 4);
		memset(left + t.offset, 0, 4);
		if (!t.mask)
			continue;
		if (p->n == TESTS_MOST)
			return refuse(r->error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM_NUM, item, "too many fields");
		memcpy(&t.value, spec + t.offset, 4);
		t.value &= t.mask;
		p->tests[p->n++] = t;
	}
	return 0;
}

static bool
partial(const uint8_t *mask, const struct field *f)
{
	uint32_t zeros = 0, ones = 0;

	for (uint32_t i = f->at; i < f->at + f->bytes; i++) {
		zeros += mask[i] == 0;
		ones += mask[i] == 0xff;
	}
	return zeros < f->bytes && ones < f->bytes;
}

/* Masks that have some bits of a field: not all adapters can, and some do not say so. Fields that
 * are several (VLAN's tag, IPv6's first word, fragments) are let be. */
static int
widen_fields(struct reading *r, const struct kind_of_item *kind, const struct rte_flow_item *item, uint8_t *mask)
{
	static const uint32_t several = 1u << LAYER_VLAN | 1u << LAYER_FRAG6;

	for (const struct field *f = kind->fields; f < kind->fields + RTE_DIM(kind->fields) && f->bytes; f++) {
		bool let_be = several >> kind->layer & 1 || (kind->layer == LAYER_IPV6 && f->at == 0) ||
			      (kind->layer == LAYER_IPV4 && f->at == 6);

		if (let_be || r->widen == WIDEN_NOT || !partial(mask, f))
			continue;
		if (r->widen == WIDEN_REFUSE)
			return refuse(r->error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM_MASK, item,
				      "the adapter has no partial masks");
		memset(mask + f->at, 0, f->bytes);
	}
	return 0;
}

/* Bits beside the header that say whether another one is there. */
static void
add_presence(struct pattern *p, uint32_t layer, bool masked, bool there)
{
	if (masked && there)
		p->need |= 1u << layer;
	else if (masked)
		p->forbid |= 1u << layer;
}

static int
read_presence(struct reading *r, const struct rte_flow_item *item, const void *spec, const void *mask)
{
	if (item->type == RTE_FLOW_ITEM_TYPE_ETH) {
		const struct rte_flow_item_eth *s = spec, *m = mask;

		add_presence(r->pattern, r->base + LAYER_VLAN, m->has_vlan && r->config->vlan, s->has_vlan);
	} else if (item->type == RTE_FLOW_ITEM_TYPE_VLAN) {
		const struct rte_flow_item_vlan *s = spec, *m = mask;

		if (m->has_more_vlan && r->vlans == 2)
			return refuse(r->error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM_MASK, item,
				      "the adapter sees two VLAN tags at most");
		add_presence(r->pattern, r->base + LAYER_VLAN2, m->has_more_vlan, s->has_more_vlan);
	} else if (item->type == RTE_FLOW_ITEM_TYPE_IPV6) {
		const struct rte_flow_item_ipv6 *s = spec, *m = mask;
		struct rte_flow_item_ipv6 others = *m;

		others.has_frag_ext = 0;
		others.reserved = 0;
		memset(&others.hdr, 0, sizeof others.hdr);
		if (memcmp(&others, &(struct rte_flow_item_ipv6){}, sizeof others))
			return refuse(r->error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM_MASK, item,
				      "of extension headers the adapter sees fragments only");
		add_presence(r->pattern, r->base + LAYER_FRAG6, m->has_frag_ext, s->has_frag_ext);
	}
	return 0;
}

/* `last`: only of the fragment offset. The field is taken out of the mask. */
static int
read_range(struct reading *r, const struct kind_of_item *kind, const struct rte_flow_item *item, uint8_t *mask)
{
	const uint8_t *spec = item->spec, *last = item->last;
	uint32_t at = kind->layer == LAYER_IPV4 ? 6 : 2;
	struct range range = {.layer = r->base + kind->layer, .offset = at};

	if (!last || !memcmp(last, (uint8_t[HEADER_MOST]){}, kind->bytes))
		return 0;
	for (uint32_t i = 0; i < kind->bytes; i++)
		if (last[i] && (last[i] & mask[i]) != (spec[i] & mask[i]) && (i & ~1u) != at)
			return refuse(r->error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM_LAST, item,
				      "the adapter matches ranges of fragment offsets only");
	range.mask = mask[at] << 8 | mask[at + 1];
	range.low = (spec[at] << 8 | spec[at + 1]) & range.mask;
	range.high = (last[at] << 8 | last[at + 1]) & range.mask;
	if ((kind->layer != LAYER_IPV4 && kind->layer != LAYER_FRAG6) || r->pattern->ranged)
		return refuse(r->error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM_LAST, item,
			      "the adapter matches one range of fragment offsets");
	if (range.high < range.low)
		return refuse(r->error, EINVAL, RTE_FLOW_ERROR_TYPE_ITEM_LAST, item, "last is less than spec");
	mask[at] = mask[at + 1] = 0;
	r->pattern->range = range;
	r->pattern->ranged = true;
	return 0;
}

/* Where the item stands among the others; false: where it cannot. */
static bool
read_place(struct reading *r, const struct kind_of_item *kind, uint32_t *layer)
{
	bool more = kind->layer == LAYER_VLAN && r->order == kind->order && r->vlans == 1;

	if ((kind->order <= r->order && !more) || (kind->layer == LAYER_VXLAN && r->base))
		return false;
	if (kind->layer == LAYER_FRAG6 && r->order == 4 && !(r->pattern->need & 1u << (r->base + LAYER_IPV6)))
		return false;
	r->vlans += kind->layer == LAYER_VLAN;
	r->order = kind->order;
	*layer = r->base + kind->layer + more;
	if (kind->layer == LAYER_VXLAN) {
		r->base = LAYERS;
		r->order = r->vlans = 0;
	}
	return true;
}

static int
read_item(struct reading *r, const struct kind_of_item *kind, const struct rte_flow_item *item)
{
	const void *mask = item->mask ? item->mask : kind->mask;
	uint8_t bits[HEADER_MOST];
	uint32_t layer;
	int ret;

	if ((item->mask || item->last) && !item->spec)
		return refuse(r->error, EINVAL, RTE_FLOW_ERROR_TYPE_ITEM_SPEC, item, "mask or last without spec");
	if (!read_place(r, kind, &layer))
		return refuse(r->error, EINVAL, RTE_FLOW_ERROR_TYPE_ITEM, item, "this item cannot follow that one");
	r->pattern->need |= 1u << layer;
	if (!item->spec)
		return 0;
	memcpy(bits, mask, kind->bytes);
	ret = check_fields(r, kind, item, bits);
	ret = ret ? ret : widen_fields(r, kind, item, bits);
	ret = ret ? ret : read_presence(r, item, item->spec, mask);
	ret = ret ? ret : read_range(r, kind, item, bits);
	return ret ? ret : add_tests(r, layer, item, item->spec, bits, kind->bytes);
}

int
pattern_of(struct pattern *pattern, const struct hw_config *config, bool widen, const struct rte_flow_item *items,
	   struct rte_flow_error *error)
{
	struct reading r = {.pattern = pattern, .config = config, .error = error};

	r.widen = widen ? WIDEN_SILENTLY : config->widen;
	memset(pattern, 0, offsetof(struct pattern, tests));
	for (const struct rte_flow_item *i = items; i->type != RTE_FLOW_ITEM_TYPE_END; i++) {
		const struct kind_of_item *kind = kinds;
		int ret;

		/* Ports were looked at by who knows them. */
		if (i->type == RTE_FLOW_ITEM_TYPE_VOID || i->type == RTE_FLOW_ITEM_TYPE_PORT_ID ||
		    i->type == RTE_FLOW_ITEM_TYPE_PORT_REPRESENTOR || i->type == RTE_FLOW_ITEM_TYPE_REPRESENTED_PORT)
			continue;
		while (kind < kinds + RTE_DIM(kinds) && kind->type != i->type)
			kind++;
		if (kind == kinds + RTE_DIM(kinds))
			return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM, i, "the adapter does not know this item");
		ret = read_item(&r, kind, i);
		if (ret)
			return ret;
	}
	if (pattern->need & pattern->forbid)
		return refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ITEM, items, "a header is asked for and excluded");
	return 0;
}

bool
pattern_fits(const struct pattern *p, const struct layers *layers, const uint8_t *bytes)
{
	if ((layers->present & p->need) != p->need || (layers->present & p->forbid))
		return false;
	for (uint32_t i = 0; i < p->n; i++) {
		const struct test *t = &p->tests[i];
		uint32_t word;

		memcpy(&word, bytes + layers->at[t->layer] + t->offset, sizeof word);
		if ((word ^ t->value) & t->mask)
			return false;
	}
	if (p->ranged) {
		const uint8_t *at = bytes + layers->at[p->range.layer] + p->range.offset;
		uint16_t value = (at[0] << 8 | at[1]) & p->range.mask;

		return value >= p->range.low && value <= p->range.high;
	}
	return true;
}

void
pattern_word(const struct pattern *p, uint32_t layer, uint32_t offset, uint32_t *value, uint32_t *mask)
{
	uint8_t values[HEADER_MOST + 4] = {}, masks[HEADER_MOST + 4] = {};

	for (uint32_t i = 0; i < p->n; i++) {
		const struct test *t = &p->tests[i];

		for (uint32_t k = 0; t->layer == layer && k < 4; k++) {
			values[t->offset + k] |= ((const uint8_t *)&t->value)[k];
			masks[t->offset + k] |= ((const uint8_t *)&t->mask)[k];
		}
	}
	*value = *mask = 0;
	for (uint32_t k = 0; k < 4; k++) {
		*value = *value << 8 | values[offset + k];
		*mask = *mask << 8 | masks[offset + k];
	}
}
