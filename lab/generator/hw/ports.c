/* Ports that share an adapter: its rules' slots, its time, and whom it can forward to. */
#include <stdlib.h>
#include <string.h>

#include <rte_ethdev.h>

#include "adapter.h"

/* Slots that are free when the adapter is full: one that was just left is the last to be taken. */
#define SPARE_SLOTS 1024
#define ADAPTERS_MOST 64

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct adapter *all[ADAPTERS_MOST];

static void
adapter_free(struct adapter *a)
{
	for (uint32_t i = 0; a->rules && i < a->n_slots; i++)
		free(a->rules[i].pattern);
	free(a->rules);
	free(a->free);
	free(a->chains);
	free(a);
}

static struct adapter *
adapter_new(const struct hw_config *config)
{
	struct adapter *a = calloc(1, sizeof *a);

	if (!a)
		return NULL;
	pthread_mutex_init(&a->lock, NULL);
	memcpy(a->name, config->adapter, sizeof a->name);
	a->capacity = config->rules;
	a->n_slots = config->rules + SPARE_SLOTS + 1;
	a->rules = calloc(a->n_slots, sizeof *a->rules);
	a->free = calloc(a->n_slots, sizeof *a->free);
	a->chains = calloc(a->n_slots, sizeof *a->chains);
	if (!a->rules || !a->free || !a->chains || rte_eth_switch_domain_alloc(&a->domain)) {
		adapter_free(a);
		return NULL;
	}
	a->n_free = a->n_slots - 1;
	for (uint32_t i = 0; i < a->n_free; i++)
		a->free[i] = i + 1;
	return a;
}

/* The place of an adapter of this name, or of none. */
static struct adapter **
find(const char *name)
{
	struct adapter **none = NULL;

	for (uint32_t i = 0; i < ADAPTERS_MOST; i++) {
		if (all[i] && *name && !strcmp(all[i]->name, name))
			return &all[i];
		if (!all[i] && !none)
			none = &all[i];
	}
	return none;
}

struct adapter *
adapter_join(struct hw *hw)
{
	struct adapter **place, *a = NULL;
	uint32_t i = 0;

	pthread_mutex_lock(&all_lock);
	place = find(hw->device->config.hw.adapter);
	if (place && !*place)
		*place = adapter_new(&hw->device->config.hw);
	a = place ? *place : NULL;
	if (a) {
		pthread_mutex_lock(&a->lock);
		while (i < PORTS_MOST && a->ports[i])
			i++;
		if (i < PORTS_MOST) {
			a->ports[i] = hw;
			hw->place = i;
			a->n_ports = RTE_MAX(a->n_ports, i + 1);
		}
		pthread_mutex_unlock(&a->lock);
	}
	pthread_mutex_unlock(&all_lock);
	if (i < PORTS_MOST)
		return a;
	LOG(ERR, "adapter=%s: it has %u ports already\n", a->name, PORTS_MOST);
	return NULL;
}

void
adapter_leave(struct hw *hw)
{
	struct adapter *a = hw->adapter;
	bool used = false;

	pthread_mutex_lock(&all_lock);
	pthread_mutex_lock(&a->lock);
	hw_remove_all(hw);
	a->ports[hw->place] = NULL;
	for (uint32_t i = 0; i < PORTS_MOST; i++)
		used |= a->ports[i] != NULL;
	pthread_mutex_unlock(&a->lock);
	for (uint32_t i = 0; !used && i < ADAPTERS_MOST; i++)
		if (all[i] == a)
			all[i] = NULL;
	pthread_mutex_unlock(&all_lock);
	if (used)
		return;
	rte_eth_switch_domain_free(a->domain);
	adapter_free(a);
}

int
adapter_place(const struct adapter *a, uint32_t port)
{
	for (uint32_t i = 0; i < a->n_ports; i++)
		if (a->ports[i] && a->ports[i]->device->port == port)
			return i;
	return -1;
}
