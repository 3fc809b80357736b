/* rte_flow's operations, and the adapter's coming and going. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_cycles.h>
#include <rte_malloc.h>

#include "adapter.h"

/* Slots that are free when the adapter is full: one that was just left is the last to be taken
 * again. */
#define SPARE_SLOTS 1024
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

	if (slot && slot < a->n_slots && a->rules[slot].device == hw->device && handle_of(a, slot) == flow)
		return slot;
	hw->device->counters->hw.stale_handles++;
	LOG(ERR, "%p is no rule of port %u: it was destroyed, or went with a stop or reset\n", (const void *)flow,
	    hw->device->port);
	refuse(error, ENOENT, RTE_FLOW_ERROR_TYPE_HANDLE, flow, "no such rule");
	return 0;
}

/* ---- the adapter ---- */

static struct adapter *
adapter_new(const struct hw_config *config)
{
	struct adapter *a = calloc(1, sizeof *a);

	if (!a)
		return NULL;
	pthread_mutex_init(&a->lock, NULL);
	a->capacity = config->rules;
	a->n_slots = config->rules + SPARE_SLOTS + 1;
	a->rules = calloc(a->n_slots, sizeof *a->rules);
	a->free = calloc(a->n_slots, sizeof *a->free);
	if (!a->rules || !a->free) {
		free(a->rules);
		free(a->free);
		free(a);
		return NULL;
	}
	a->n_free = a->n_slots - 1;
	for (uint32_t i = 0; i < a->n_free; i++)
		a->free[i] = i + 1;
	return a;
}

static void
adapter_free(struct adapter *a)
{
	for (uint32_t i = 0; i < a->n_slots; i++)
		free(a->rules[i].pattern);
	free(a->rules);
	free(a->free);
	free(a);
}

/* The adapter's firmware works on one call at a time: who calls waits. */
static void
spend_time(struct hw *hw)
{
	const struct hw_config *config = &hw->device->config.hw;
	struct adapter *a = hw->adapter;
	uint64_t now = rte_rdtsc(), hz = rte_get_tsc_hz(), until;
	struct timespec pause;

	until = now + hz / 1000000 * config->delay_us;
	if (config->rate) {
		a->ready_tsc = RTE_MAX(a->ready_tsc, now) + hz / config->rate;
		until = RTE_MAX(until, a->ready_tsc);
	}
	if (until == now)
		return;
	pause.tv_sec = (until - now) / hz;
	pause.tv_nsec = (until - now) % hz * 1e9 / hz;
	nanosleep(&pause, NULL);
}

/* ---- operations ---- */

/* What create and validate look at; the adapter's lock is held. */
static int
read_rule(struct hw *hw, struct pattern *pattern, struct verdict *verdict, const struct rte_flow_attr *attr,
	  const struct rte_flow_item *items, const struct rte_flow_action *actions, struct rte_flow_error *error)
{
	const struct hw_config *config = &hw->device->config.hw;
	int ret;

	if (attr->transfer)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ATTR_TRANSFER, attr, "the adapter has no transfer rules");
	if (attr->egress)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ATTR_EGRESS, attr, "the adapter has no egress rules");
	if (!attr->ingress)
		return refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ATTR_INGRESS, attr, "a rule needs a direction");
	if (attr->group >= config->groups)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ATTR_GROUP, attr, "the adapter has no such group");
	if (attr->priority >= config->priorities)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ATTR_PRIORITY, attr, "the adapter has no such priority");
	ret = pattern_of(pattern, items, error);
	ret = ret ? ret : verdict_of(verdict, hw, actions, error);
	if (!ret && hw->adapter->n_rules >= hw->adapter->capacity)
		ret = refuse(error, config->full_errno, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "the adapter's table is full");
	return ret;
}

static int
flow_validate(struct rte_eth_dev *dev, const struct rte_flow_attr *attr, const struct rte_flow_item items[],
	      const struct rte_flow_action actions[], struct rte_flow_error *error)
{
	struct hw *hw = hw_of(dev);
	struct pattern pattern;
	struct verdict verdict;
	int ret;

	pthread_mutex_lock(&hw->adapter->lock);
	ret = read_rule(hw, &pattern, &verdict, attr, items, actions, error);
	pthread_mutex_unlock(&hw->adapter->lock);
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
	free(a->rules[slot].pattern);
	a->rules[slot].pattern = NULL;
	a->rules[slot].device = NULL;
	a->free[(a->next_free + a->n_free++) % a->n_slots] = slot;
	a->n_rules--;
}

static struct rte_flow *
insert(struct hw *hw, const struct pattern *pattern, const struct verdict *verdict, const struct rte_flow_attr *attr,
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
	slot = take_slot(a);
	a->rules[slot] = (struct rule){
		.device = hw->device,
		.pattern = copy,
		.verdict = *verdict,
		.generation = a->rules[slot].generation + 1,
		.priority = attr->priority,
		.sequence = a->sequence++,
	};
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
	struct pattern pattern;
	struct verdict verdict;

	pthread_mutex_lock(&hw->adapter->lock);
	spend_time(hw);
	if (!read_rule(hw, &pattern, &verdict, attr, items, actions, error))
		flow = insert(hw, &pattern, &verdict, attr, error);
	*(flow ? &counters->created : &counters->refused) += 1;
	counters->rules = hw->n_rules;
	pthread_mutex_unlock(&hw->adapter->lock);
	return flow;
}

static int
flow_destroy(struct rte_eth_dev *dev, struct rte_flow *flow, struct rte_flow_error *error)
{
	struct hw *hw = hw_of(dev);
	struct hw_counters *counters = &hw->device->counters->hw;
	uint32_t slot;

	pthread_mutex_lock(&hw->adapter->lock);
	spend_time(hw);
	slot = slot_of(hw, flow, error);
	if (slot) {
		rules_remove(hw, slot);
		leave_slot(hw->adapter, slot);
		counters->destroyed++;
		counters->rules = hw->n_rules;
	}
	pthread_mutex_unlock(&hw->adapter->lock);
	return slot ? 0 : -ENOENT;
}

/* All rules of the port. */
static void
remove_all(struct hw *hw)
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
	remove_all(hw);
	pthread_mutex_unlock(&hw->adapter->lock);
	return 0;
}

/* What the rule counted in queues that know it already. */
static struct hits
hits_of(const struct hw *hw, uint32_t slot)
{
	struct hits sum = {};

	for (uint32_t i = 0; i < hw->n_queues; i++) {
		const struct hw_queue *q = hw->queues[i];

		if (__atomic_load_n(&q->made, __ATOMIC_ACQUIRE) < hw->adapter->rules[slot].change)
			continue;
		sum.packets += q->hits[slot].packets - q->base[slot].packets;
		sum.bytes += q->hits[slot].bytes - q->base[slot].bytes;
	}
	return sum;
}

static int
query_count(struct hw *hw, uint32_t slot, struct rte_flow_query_count *count)
{
	struct rule *rule = &hw->adapter->rules[slot];
	struct hits hits = hits_of(hw, slot);

	count->hits_set = count->bytes_set = 1;
	count->hits = hits.packets - rule->told.packets;
	count->bytes = hits.bytes - rule->told.bytes;
	if (count->reset)
		rule->told = hits;
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
};

/* ---- coming and going ---- */

int
hw_open(struct device *d)
{
	struct hw *hw = calloc(1, sizeof *hw);

	if (!hw)
		return -ENOMEM;
	hw->device = d;
	hw->adapter = adapter_new(&d->config.hw);
	hw->sampler = sampler_new(d);
	d->hw = hw;
	hw->slots = calloc(d->config.hw.rules, sizeof *hw->slots);
	if (hw->adapter && hw->sampler && hw->slots)
		return 0;
	hw_close(d);
	return -ENOMEM;
}

static void
free_queues(struct hw *hw)
{
	hw->n_queues = 0;
	for (uint32_t i = 0; i < MAX_QUEUES; i++) {
		if (hw->queues[i])
			hw_queue_free(hw->queues[i]);
		rte_free(hw->queues[i]);
		hw->queues[i] = NULL;
	}
}

void
hw_close(struct device *d)
{
	struct hw *hw = d->hw;

	if (!hw)
		return;
	free_queues(hw);
	rte_free(hw->winners);
	free(hw->slots);
	sampler_free(hw->sampler);
	if (hw->adapter)
		adapter_free(hw->adapter);
	free(hw);
	d->hw = NULL;
}

int
hw_start(struct device *d, uint16_t n_queues)
{
	struct hw *hw = d->hw;
	int ret = 0;

	free_queues(hw);
	for (uint32_t i = 0; i < n_queues && !ret; i++) {
		hw->queues[i] = rte_zmalloc(NULL, sizeof *hw->queues[i], RTE_CACHE_LINE_SIZE);
		ret = hw->queues[i] ? hw_queue_setup(hw, hw->queues[i]) : -ENOMEM;
		d->rx[i]->hw = hw->queues[i];
	}
	if (ret)
		free_queues(hw);
	else
		hw->n_queues = n_queues;
	return ret;
}

void
hw_stop(struct device *d)
{
	struct hw *hw = d->hw;

	pthread_mutex_lock(&hw->adapter->lock);
	hw->n_queues = 0;
	if (hw->n_rules)
		LOG(NOTICE, "port %u stopped: its %u rules are gone\n", d->port, hw->n_rules);
	remove_all(hw);
	pthread_mutex_unlock(&hw->adapter->lock);
}
