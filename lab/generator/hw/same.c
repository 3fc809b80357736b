/* Rules that are there already, and masks that exclude each other: some adapters have one mask per
 * type of packets, that of the first rule. */
#include <errno.h>
#include <string.h>

#include "adapter.h"

/* Masks that are told apart, at most. */
#define MASKS_MOST 16

/* The same layers and bits: rules that the adapter keeps in one table. */
static bool
same_masks(const struct pattern *a, const struct pattern *b)
{
	bool same = a->need == b->need && a->forbid == b->forbid && a->n == b->n && a->ranged == b->ranged;

	for (uint32_t i = 0; i < a->n && same; i++)
		same = a->tests[i].layer == b->tests[i].layer && a->tests[i].offset == b->tests[i].offset &&
		       a->tests[i].mask == b->tests[i].mask;
	return same;
}

static bool
same_values(const struct pattern *a, const struct pattern *b)
{
	bool same = !a->ranged || !memcmp(&a->range, &b->range, sizeof a->range);

	for (uint32_t i = 0; i < a->n && same; i++)
		same = a->tests[i].value == b->tests[i].value;
	return same;
}

/* FNV-1a of what decides whether two patterns are the same. */
static uint32_t
hash_of(const struct adapter *a, const struct pattern *p)
{
	uint64_t hash = 0xcbf29ce484222325 ^ p->need;

	for (uint32_t i = 0; i < p->n; i++)
		hash = (hash ^ p->tests[i].value ^ (uint64_t)p->tests[i].mask << 32) * 0x100000001b3;
	return (hash ^ hash >> 32) % a->n_slots;
}

void
same_add(struct adapter *a, uint32_t slot)
{
	uint32_t *chain = &a->chains[hash_of(a, a->rules[slot].pattern)];

	a->rules[slot].next = *chain;
	*chain = slot;
}

void
same_remove(struct adapter *a, uint32_t slot)
{
	uint32_t *at = &a->chains[hash_of(a, a->rules[slot].pattern)];

	while (*at != slot)
		at = &a->rules[*at].next;
	*at = a->rules[slot].next;
}

/* Rules that were there first have each of the masks. */
static bool
masks_exceeded(const struct hw *hw, const struct pattern *pattern, const struct rte_flow_attr *attr, uint32_t masks)
{
	const struct pattern *seen[MASKS_MOST];
	uint32_t n = 0;

	for (uint32_t i = 0; i < hw->n_rules; i++) {
		const struct rule *r = &hw->adapter->rules[hw->slots[i]];
		uint32_t k = 0;

		if (r->transfer != attr->transfer || r->group != attr->group || r->pattern->need != pattern->need)
			continue;
		if (same_masks(r->pattern, pattern))
			return false;
		while (k < n && !same_masks(seen[k], r->pattern))
			k++;
		if (k == n && n < MASKS_MOST)
			seen[n++] = r->pattern;
	}
	return n >= masks;
}

int
same_check(const struct hw *hw, const struct pattern *pattern, const struct rte_flow_attr *attr,
	   struct rte_flow_error *error)
{
	const struct adapter *a = hw->adapter;
	uint32_t masks = hw->device->config.hw.masks;

	for (uint32_t slot = a->chains[hash_of(a, pattern)]; slot; slot = a->rules[slot].next) {
		const struct rule *r = &a->rules[slot];

		if (r->device == hw->device && r->transfer == attr->transfer && r->group == attr->group &&
		    r->priority == attr->priority && same_masks(r->pattern, pattern) && same_values(r->pattern, pattern))
			return rte_flow_error_set(error, EEXIST, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
						  "there is such a rule already");
	}
	if (masks && masks_exceeded(hw, pattern, attr, masks))
		return rte_flow_error_set(error, EINVAL, RTE_FLOW_ERROR_TYPE_ITEM_MASK, NULL,
					  "another mask is in use for packets of this type");
	return 0;
}
