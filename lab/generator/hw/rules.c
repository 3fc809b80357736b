/* The rules of a port, and which of two wins: the one of the lower priority number, then the one
 * that was there first. Rules that lose somewhere are remembered, so that a rule's end looks at
 * them only. */
#include <string.h>

#include <rte_malloc.h>

#include "adapter.h"

/* Cells that change one by one; if more do, all are replaced at once. */
#define CHANGED_MOST 64

static bool
wins(const struct rule *a, const struct rule *b)
{
	if (a->transfer != b->transfer)
		return a->transfer;
	if (a->group != b->group)
		return a->group < b->group;
	return a->priority != b->priority ? a->priority < b->priority : a->sequence < b->sequence;
}

bool
rule_active(const struct hw *hw, const struct rule *r)
{
	return !(r->verdict.flags & VERDICT_JUMP) && (!r->group || hw->jumps[r->transfer][r->group]);
}

/* A rule that comes or goes. */
struct placing {
	struct hw *hw;
	uint32_t slot;
	uint32_t n_changed, changed[CHANGED_MOST];
};

static void
note_change(struct placing *p, uint32_t cell)
{
	if (p->n_changed < CHANGED_MOST)
		p->changed[p->n_changed] = cell;
	p->n_changed++;
}

static void
shadow(struct hw *hw, uint32_t slot)
{
	struct rule *rule = &hw->adapter->rules[slot];

	if (!rule->shadowed)
		hw->n_shadowed++;
	rule->shadowed = true;
}

static void
claim(void *context, uint32_t cell)
{
	struct placing *p = context;
	struct hw *hw = p->hw;
	struct rule *rules = hw->adapter->rules;
	uint32_t holder = hw->winners[cell];

	if (holder && !wins(&rules[p->slot], &rules[holder])) {
		shadow(hw, p->slot);
		return;
	}
	if (holder)
		shadow(hw, holder);
	hw->winners[cell] = p->slot;
	note_change(p, cell);
}

static void
leave(void *context, uint32_t cell)
{
	struct placing *p = context;

	if (p->hw->winners[cell] != p->slot)
		return;
	p->hw->winners[cell] = 0;
	note_change(p, cell);
}

/* All rules in cells of this column. */
static void
place_all(struct hw *hw, enum column column)
{
	struct adapter *a = hw->adapter;

	rte_free(hw->winners);
	hw->column = column;
	hw->n_cells = column_cells(hw->device, column);
	hw->winners = rte_zmalloc(NULL, hw->n_cells * sizeof *hw->winners, RTE_CACHE_LINE_SIZE);
	if (!hw->winners) {
		LOG(ERR, "no memory for %u cells: rules are matched packet by packet\n", hw->n_cells);
		hw->column = COLUMN_BYTES;
	}
	if (hw->column == COLUMN_BYTES)
		LOG(NOTICE, "rules are matched packet by packet: not to be measured with\n");
	for (uint32_t i = 0; i < hw->n_rules && hw->column != COLUMN_BYTES; i++) {
		struct placing p = {.hw = hw, .slot = hw->slots[i]};

		if (rule_active(hw, &a->rules[p.slot]))
			column_visit(hw, column, a->rules[p.slot].pattern, claim, &p);
	}
}

/* Another rule for a cell whose winner went, of those that lost somewhere. */
static void
find_winner(struct hw *hw, uint32_t cell)
{
	struct adapter *a = hw->adapter;
	uint32_t best = 0;

	for (uint32_t i = 0; i < hw->n_rules; i++) {
		const struct rule *r = &a->rules[hw->slots[i]];

		if (r->shadowed && rule_active(hw, r) && (!best || wins(r, &a->rules[best])) && column_fits(hw, cell, r->pattern))
			best = hw->slots[i];
	}
	hw->winners[cell] = best;
}

/* Tells the queues. */
static void
publish(struct hw *hw, const struct placing *p, bool all)
{
	if (all || p->n_changed > CHANGED_MOST) {
		queues_change_all(hw);
		return;
	}
	for (uint32_t i = 0; i < p->n_changed; i++)
		queues_change_cell(hw, p->changed[i], hw->winners[p->changed[i]]);
}

void
rules_add(struct hw *hw, uint32_t slot)
{
	struct rule *rule = &hw->adapter->rules[slot];
	enum column column = column_of(hw->device, rule->pattern);
	struct placing p = {.hw = hw, .slot = slot};
	bool all = false, opened = false;

	if (rule->verdict.flags & VERDICT_JUMP)
		opened = !hw->jumps[rule->transfer][rule->verdict.mark]++;
	if (verdict_general(&rule->verdict) && !hw->n_general++)
		all = true;
	rule->place = hw->n_rules;
	hw->slots[hw->n_rules] = slot;
	if (hw->n_rules++)
		column = column_join(hw->device, hw->column, column);
	if (column != hw->column || !hw->winners || opened) {
		place_all(hw, column);
		all = true;
	} else if (column != COLUMN_BYTES && rule_active(hw, rule)) {
		column_visit(hw, column, rule->pattern, claim, &p);
	}
	queues_change_slot(hw, slot);
	publish(hw, &p, all);
}

void
rules_remove(struct hw *hw, uint32_t slot)
{
	struct rule *rule = &hw->adapter->rules[slot];
	struct placing p = {.hw = hw, .slot = slot};
	uint32_t last;
	bool all = false, closed = false;

	if (rule->verdict.flags & VERDICT_JUMP)
		closed = !--hw->jumps[rule->transfer][rule->verdict.mark];
	if (verdict_general(&rule->verdict) && !--hw->n_general)
		all = true;
	last = hw->slots[--hw->n_rules];
	hw->slots[rule->place] = last;
	hw->adapter->rules[last].place = rule->place;
	if (hw->column != COLUMN_BYTES)
		column_visit(hw, hw->column, rule->pattern, leave, &p);
	if (rule->shadowed)
		hw->n_shadowed--;
	rule->device = NULL;
	all |= closed;
	if (closed || (hw->n_shadowed && p.n_changed > CHANGED_MOST))
		place_all(hw, hw->column);
	else if (hw->n_shadowed)
		for (uint32_t i = 0; i < p.n_changed; i++)
			find_winner(hw, p.changed[i]);
	publish(hw, &p, all);
}

void
rules_flush(struct hw *hw)
{
	hw->n_rules = hw->n_general = hw->n_shadowed = hw->n_ages = 0;
	memset(hw->jumps, 0, sizeof hw->jumps);
	place_all(hw, COLUMN_NONE);
	queues_change_all(hw);
}

uint32_t
rules_winner(const struct hw *hw, const uint8_t *bytes, uint32_t length)
{
	const struct adapter *a = hw->adapter;
	struct layers layers;
	uint32_t best = 0;

	layers_of(&layers, bytes, length);
	for (uint32_t i = 0; i < hw->n_rules; i++) {
		const struct rule *r = &a->rules[hw->slots[i]];

		if (rule_active(hw, r) && (!best || wins(r, &a->rules[best])) && pattern_fits(r->pattern, &layers, bytes))
			best = hw->slots[i];
	}
	return best;
}
