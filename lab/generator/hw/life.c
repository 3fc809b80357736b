/* An adapter's coming and going. */
#include <errno.h>
#include <stdlib.h>

#include <rte_malloc.h>

#include "adapter.h"

int
hw_open(struct device *d)
{
	struct hw *hw = calloc(1, sizeof *hw);

	if (!hw)
		return -ENOMEM;
	hw->device = d;
	d->hw = hw;
	hw->adapter = adapter_join(hw);
	hw->sampler = sampler_new(d);
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
	watch_stop(hw);
	if (hw->adapter)
		adapter_leave(hw);
	free_queues(hw);
	rte_free(hw->winners);
	free(hw->slots);
	sampler_free(hw->sampler);
	free(hw);
	d->hw = NULL;
}

int
hw_start(struct device *d, uint16_t n_queues)
{
	struct hw *hw = d->hw;
	int ret = 0;

	free_queues(hw);
	/* A port that makes no packets has nobody to tell of rules. */
	if (d->config.order == ORDER_SINK)
		n_queues = 0;
	for (uint32_t i = 0; i < n_queues && !ret; i++) {
		hw->queues[i] = rte_zmalloc(NULL, sizeof *hw->queues[i], RTE_CACHE_LINE_SIZE);
		ret = hw->queues[i] ? hw_queue_setup(hw, hw->queues[i]) : -ENOMEM;
		d->rx[i]->hw = hw->queues[i];
	}
	if (ret)
		free_queues(hw);
	else
		hw->n_queues = n_queues;
	if (!ret)
		watch_start(hw);
	return ret;
}

void
hw_stop(struct device *d)
{
	struct hw *hw = d->hw;

	watch_stop(hw);
	for (uint32_t i = 0; i < PORTS_MOST; i++)
		if (hw->adapter->ports[i])
			hw_refresh(hw->adapter->ports[i]);
	pthread_mutex_lock(&hw->adapter->lock);
	bulk_keep(hw);
	hw->n_queues = 0;
	if (hw->n_rules && !d->config.hw.keep) {
		LOG(NOTICE, "port %u stopped: its %u rules are gone\n", d->port, hw->n_rules);
		hw_remove_all(hw);
	}
	pthread_mutex_unlock(&hw->adapter->lock);
}
