/* rte_flow's operations, and the adapter's coming and going. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_cycles.h>
#include <rte_malloc.h>

#include "adapter.h"

#define SLOT_BITS 24

static int
refuse(struct rte_flow_error *error, int code, enum rte_flow_error_type type, const void *cause, const char *message)
{
	return rte_flow_error_set(error, code, type, cause, message);
}

static struct hw *
hw_of(struct rte_eth_dev *dev)
{
	struct device *d = dev->data->dev_private;

	return d->hw;
}

/* ---- handles: a number, so that one that is no longer good is found out ---- */

static struct rte_flow *
handle_of(const struct adapter *a, uint32_t slot)
{
	return (struct rte_flow *)((uintptr_t)a->rules[slot].generation << SLOT_BITS | slot);
}

/* The rule's slot, or 0 with *error set and a log line: a real adapter's driver would have used
 * freed memory. */
static uint32_t
slot_of(struct hw *hw, const struct rte_flow *flow, struct rte_flow_error *error)
{
	uint32_t slot = (uintptr_t)flow & ((1u << SLOT_BITS) - 1);
	struct adapter *a = hw->adapter;

	if (slot && slot < a->n_slots && a->rules[slot].device && handle_of(a, slot) == flow)
		return slot;
	hw->device->counters->hw.stale_handles++;
	LOG(ERR, "%p is no rule of port %u: it was destroyed, or went with a stop or reset\n", (const void *)flow,
	    hw->device->port);
	refuse(error, ENOENT, RTE_FLOW_ERROR_TYPE_HANDLE, flow, "no such rule");
	return 0;
}

/* ---- operations ---- */

/* The adapter's firmware works on one call at a time: who calls waits. */
static void
spend_time(struct hw *hw)
{
	const struct hw_config *config = &hw->device->config.hw;
	struct adapter *a = hw->adapter;
	uint64_t now = rte_rdtsc(), hz = rte_get_tsc_hz(), until;
	uint64_t slow_us = hw->device->counters->faults.slow_us;
	struct timespec pause;

	until = now + hz / 1000000 * (config->delay_us + slow_us);
	if (config->rate) {
		/* A caller that slept too long makes up for it. */
		a->ready_tsc = RTE_MAX(a->ready_tsc, now - hz / 100) + hz / config->rate;
		until = RTE_MAX(until, a->ready_tsc);
	}
	if (until <= now)
		return;
	pause.tv_sec = (until - now) / hz;
	pause.tv_nsec = (until - now) % hz * 1e9 / hz;
	nanosleep(&pause, NULL);
}

static int
check_attr(const struct hw *hw, const struct rte_flow_attr *attr, struct rte_flow_error *error)
{
	const struct hw_config *config = &hw->device->config.hw;

	if (hw->gone)
		return refuse(error, EIO, RTE_FLOW_ERROR_TYPE_STATE, NULL, "the adapter does not answer");
	if (attr->transfer && !config->transfer)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ATTR_TRANSFER, attr, "the adapter has no transfer rules");
	if (attr->transfer && (attr->ingress || attr->egress))
		return refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ATTR_TRANSFER, attr, "a transfer rule has no direction");
	if (attr->egress)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ATTR_EGRESS, attr, "the adapter has no egress rules");
	if (!attr->transfer && !attr->ingress)
		return refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ATTR_INGRESS, attr, "a rule needs a direction");
	if (attr->ingress && config->no_partial)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ATTR_INGRESS, attr, "the adapter has transfer rules only");
	if (attr->group >= config->groups)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ATTR_GROUP, attr, "the adapter has no such group");
	if (attr->priority >= config->priorities)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ATTR_PRIORITY, attr, "the adapter has no such priority");
	return 0;
}

/* Whose packets a transfer rule is about: of the port that an item names, or that it is made on. */
static struct hw *
origin_of(struct hw *hw, const struct rte_flow_attr *attr, const struct rte_flow_item *items, struct rte_flow_error *error)
{
	for (const struct rte_flow_item *i = items; i->type != RTE_FLOW_ITEM_TYPE_END; i++) {
		const struct rte_flow_item_port_id *id = i->spec;
		const struct rte_flow_item_ethdev *ethdev = i->spec;
		int place;

		if (i->type != RTE_FLOW_ITEM_TYPE_PORT_ID && i->type != RTE_FLOW_ITEM_TYPE_REPRESENTED_PORT &&
		    i->type != RTE_FLOW_ITEM_TYPE_PORT_REPRESENTOR)
			continue;
		place = i->spec ? adapter_place(hw->adapter, i->type == RTE_FLOW_ITEM_TYPE_PORT_ID ? id->id : ethdev->port_id) : -1;
		if (place < 0 || !attr->transfer || i->type == RTE_FLOW_ITEM_TYPE_PORT_REPRESENTOR) {
			refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM, i, "the adapter cannot match on this port");
			return NULL;
		}
		return hw->adapter->ports[place];
	}
	return hw;
}

/* What create and validate look at; the adapter's lock is held. *hw becomes the port whose
 * packets it is about. */
static int
read_rule(struct hw **hw, struct pattern *pattern, struct act *act, const struct rte_flow_attr *attr,
	  const struct rte_flow_item *items, const struct rte_flow_action *actions, struct rte_flow_error *error)
{
	const struct device *d = (*hw)->device;
	int ret = check_attr(*hw, attr, error);

	if (ret)
		return ret;
	*hw = origin_of(*hw, attr, items, error);
	if (!*hw)
		return -ENOTSUP;
	ret = pattern_of(pattern, &d->config.hw, d->counters->faults.widen, items, error);
	ret = ret ? ret : act_of(act, *hw, attr, actions, error);
	if (!ret && (*hw)->adapter->n_rules >= (*hw)->adapter->capacity)
		return refuse(error, d->config.hw.full_errno, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
			      "the adapter's table is full");
	return ret ? ret : same_check(*hw, pattern, attr, error);
}

static int
flow_validate(struct rte_eth_dev *dev, const struct rte_flow_attr *attr, const struct rte_flow_item items[],
	      const struct rte_flow_action actions[], struct rte_flow_error *error)
{
	struct hw *hw = hw_of(dev);
	struct adapter *a = hw->adapter;
	struct pattern pattern;
	struct act act;
	int ret;

	pthread_mutex_lock(&a->lock);
	ret = read_rule(&hw, &pattern, &act, attr, items, actions, error);
	pthread_mutex_unlock(&a->lock);
	return ret;
}

static uint32_t
take_slot(struct adapter *a)
{
	uint32_t slot = a->free[a->next_free++ % a->n_slots];

	a->n_free--;
	a->n_rules++;
	return slot;
}

static void
leave_slot(struct adapter *a, uint32_t slot)
{
	same_remove(a, slot);
	free(a->rules[slot].pattern);
	a->rules[slot].pattern = NULL;
	a->rules[slot].device = NULL;
	a->free[(a->next_free + a->n_free++) % a->n_slots] = slot;
	a->n_rules--;
}

static struct rte_flow *
insert(struct hw *hw, const struct pattern *pattern, const struct act *act, const struct rte_flow_attr *attr,
       struct rte_flow_error *error)
{
	struct adapter *a = hw->adapter;
	size_t size = offsetof(struct pattern, tests) + pattern->n * sizeof *pattern->tests;
	struct pattern *copy = malloc(size);
	uint32_t slot;

	if (!copy) {
		refuse(error, ENOMEM, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "no memory for the rule");
		return NULL;
	}
	memcpy(copy, pattern, size);
	if (fault_of_effect(hw))
		copy->forbid |= copy->need;
	slot = take_slot(a);
	a->rules[slot] = (struct rule){
		.device = hw->device,
		.pattern = copy,
		.verdict = act->verdict,
		.age_s = act->age_s,
		.age_context = act->age_context,
		.age_tsc = rte_rdtsc(),
		.group = attr->group,
		.transfer = attr->transfer,
		.generation = a->rules[slot].generation + 1,
		.priority = attr->priority,
		.sequence = a->sequence++,
	};
	hw->n_ages += act->age_s > 0;
	same_add(a, slot);
	rules_add(hw, slot);
	return handle_of(a, slot);
}

static struct rte_flow *
flow_create(struct rte_eth_dev *dev, const struct rte_flow_attr *attr, const struct rte_flow_item items[],
	    const struct rte_flow_action actions[], struct rte_flow_error *error)
{
	struct hw *hw = hw_of(dev);
	struct hw_counters *counters = &hw->device->counters->hw;
	struct rte_flow *flow = NULL;
	struct adapter *a = hw->adapter;
	struct pattern pattern;
	struct act act;
	int fault;

	pthread_mutex_lock(&a->lock);
	spend_time(hw);
	fault = fault_of_create(hw);
	if (fault)
		refuse(error, fault, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "a fault that was asked for");
	else if (!read_rule(&hw, &pattern, &act, attr, items, actions, error))
		flow = insert(hw, &pattern, &act, attr, error);
	*(flow ? &counters->created : &counters->refused) += 1;
	if (hw)
		hw->device->counters->hw.rules = hw->n_rules;
	pthread_mutex_unlock(&a->lock);
	return flow;
}

static void
destroy(struct adapter *a, uint32_t slot)
{
	struct hw *hw = a->rules[slot].device->hw;

	hw->n_ages -= a->rules[slot].age_s > 0;
	rules_remove(hw, slot);
	leave_slot(a, slot);
	hw->device->counters->hw.destroyed++;
	hw->device->counters->hw.rules = hw->n_rules;
}

static int
flow_destroy(struct rte_eth_dev *dev, struct rte_flow *flow, struct rte_flow_error *error)
{
	struct hw *hw = hw_of(dev);
	int fault = hw->device->counters->faults.destroy_errno, ret = 0;
	uint32_t slot;

	pthread_mutex_lock(&hw->adapter->lock);
	spend_time(hw);
	slot = slot_of(hw, flow, error);
	if (!slot)
		ret = -ENOENT;
	else if (fault)
		ret = refuse(error, fault, RTE_FLOW_ERROR_TYPE_HANDLE, flow, "a fault that was asked for");
	else
		destroy(hw->adapter, slot);
	pthread_mutex_unlock(&hw->adapter->lock);
	return ret;
}

void
hw_remove_all(struct hw *hw)
{
	struct adapter *a = hw->adapter;
	struct hw_counters *counters = &hw->device->counters->hw;

	for (uint32_t i = 0; i < hw->n_rules; i++)
		leave_slot(a, hw->slots[i]);
	counters->destroyed += hw->n_rules;
	counters->rules = 0;
	rules_flush(hw);
}

static int
flow_flush(struct rte_eth_dev *dev, struct rte_flow_error *error)
{
	struct hw *hw = hw_of(dev);

	pthread_mutex_lock(&hw->adapter->lock);
	spend_time(hw);
	hw_remove_all(hw);
	pthread_mutex_unlock(&hw->adapter->lock);
	return 0;
}

static int
query_count(struct hw *hw, uint32_t slot, struct rte_flow_query_count *count)
{
	struct rule *rule = &hw->adapter->rules[slot];
	uint64_t fault = hw->device->counters->faults.count;
	struct hits hits = queues_hits(rule->device->hw, slot);

	/* Frozen; or half of it, which is less than before. */
	if (fault)
		hits = fault == 1 ? rule->told : (struct hits){hits.packets / 2, hits.bytes / 2};

	count->hits_set = count->bytes_set = 1;
	count->hits = hits.packets - rule->told.packets;
	count->bytes = hits.bytes - rule->told.bytes;
	if (count->reset)
		rule->told = hits;
	return 0;
}

static int
query_age(const struct rule *rule, struct rte_flow_query_age *age)
{
	age->aged = rule->aged;
	age->sec_since_last_hit_valid = 1;
	age->sec_since_last_hit = (rte_rdtsc() - rule->age_tsc) / rte_get_tsc_hz();
	return 0;
}

static int
flow_aged(struct rte_eth_dev *dev, void **contexts, uint32_t n, struct rte_flow_error *error)
{
	struct hw *hw = hw_of(dev);
	uint32_t found = 0;

	pthread_mutex_lock(&hw->adapter->lock);
	for (uint32_t i = 0; i < hw->n_rules; i++) {
		struct rule *r = &hw->adapter->rules[hw->slots[i]];

		if (!r->aged || (n && r->age_told))
			continue;
		if (n && found == n)
			break;
		if (n) {
			contexts[found] = r->age_context ? r->age_context : handle_of(hw->adapter, hw->slots[i]);
			r->age_told = true;
		}
		found++;
	}
	pthread_mutex_unlock(&hw->adapter->lock);
	return found;
}

static int
flow_dump(struct rte_eth_dev *dev, struct rte_flow *flow, FILE *file, struct rte_flow_error *error)
{
	struct hw *hw = hw_of(dev);
	struct adapter *a = hw->adapter;

	pthread_mutex_lock(&a->lock);
	for (uint32_t i = 0; i < hw->n_rules; i++) {
		const struct rule *r = &a->rules[hw->slots[i]];

		if (flow && handle_of(a, hw->slots[i]) != flow)
			continue;
		fprintf(file, "%p %s group %u priority %u layers %06x not %06x", (void *)handle_of(a, hw->slots[i]),
			r->transfer ? "transfer" : "ingress", r->group, r->priority, r->pattern->need, r->pattern->forbid);
		for (const struct test *t = r->pattern->tests; t < r->pattern->tests + r->pattern->n; t++)
			fprintf(file, " %u+%u=%08x/%08x", t->layer, t->offset, rte_be_to_cpu_32(t->value),
				rte_be_to_cpu_32(t->mask));
		fprintf(file, ": flags %x mark %u to %u packets %lu\n", r->verdict.flags, r->verdict.mark, r->verdict.to,
			(unsigned long)queues_hits(hw, hw->slots[i]).packets);
	}
	pthread_mutex_unlock(&a->lock);
	return 0;
}

static int
flow_query(struct rte_eth_dev *dev, struct rte_flow *flow, const struct rte_flow_action *action, void *data,
	   struct rte_flow_error *error)
{
	struct hw *hw = hw_of(dev);
	uint32_t slot;
	int ret;

	pthread_mutex_lock(&hw->adapter->lock);
	slot = slot_of(hw, flow, error);
	if (!slot)
		ret = -ENOENT;
	else if (action->type == RTE_FLOW_ACTION_TYPE_AGE && hw->adapter->rules[slot].age_s)
		ret = query_age(&hw->adapter->rules[slot], data);
	else if (action->type != RTE_FLOW_ACTION_TYPE_COUNT)
		ret = refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, action, "this action has nothing to tell");
	else if (!(hw->adapter->rules[slot].verdict.flags & VERDICT_COUNT))
		ret = refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION, action, "the rule does not count");
	else
		ret = query_count(hw, slot, data);
	pthread_mutex_unlock(&hw->adapter->lock);
	return ret;
}

static int
flow_isolate(struct rte_eth_dev *dev, int set, struct rte_flow_error *error)
{
	struct hw *hw = hw_of(dev);

	pthread_mutex_lock(&hw->adapter->lock);
	hw->isolated = set;
	queues_change_all(hw);
	pthread_mutex_unlock(&hw->adapter->lock);
	return 0;
}

const struct rte_flow_ops hw_flow_ops = {
	.validate = flow_validate,
	.create = flow_create,
	.destroy = flow_destroy,
	.flush = flow_flush,
	.query = flow_query,
	.isolate = flow_isolate,
	.dev_dump = flow_dump,
	.get_aged_flows = flow_aged,
};
