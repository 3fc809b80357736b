/* The arguments hw... */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapter.h"

/* What real adapters are like (documentation and drivers of DPDK 22.11). */
static const struct profile {
	const char *name;
	struct hw_config config;
} profiles[] = {
	/* The guaranteed filters of flow director, one group. */
	{"i40e", {.rules = 8192, .full_errno = ENOBUFS, .mark_bits = 32, .groups = 1, .priorities = 1,
		  .masks = 1, .widen = WIDEN_SILENTLY}},
	{"ice", {.rules = 16384, .full_errno = ENOSPC, .mark_bits = 32, .groups = 1, .priorities = 2}},
	{"cx5", {.rules = 65536, .full_errno = ENOMEM, .mark_bits = 24, .groups = 4, .priorities = 8,
		 .vlan = true, .transfer = true}},
	{"agilio", {.rules = 65000, .full_errno = ENOBUFS, .mark_bits = 24, .groups = 1, .priorities = 1,
		    .vlan = true, .transfer = true, .no_partial = true}},
	{"full", {.rules = 1 << 17, .full_errno = ENOSPC, .mark_bits = 32, .groups = 4, .priorities = 8,
		  .vlan = true, .transfer = true}},
};

static int
parse_profile(struct hw_config *config, const char *value)
{
	for (uint32_t i = 0; i < RTE_DIM(profiles); i++)
		if (!strcmp(profiles[i].name, value)) {
			*config = profiles[i].config;
			config->on = true;
			config->lag = LAG_OF_RING;
			return 0;
		}
	LOG(ERR, "hw=%s: no such adapter\n", value);
	return -EINVAL;
}

static int
parse_errno(struct hw_config *config, const char *value)
{
	static const struct { const char *name; int code; } known[] = {
		{"ENOBUFS", ENOBUFS}, {"ENOSPC", ENOSPC}, {"ENOMEM", ENOMEM},
	};

	for (uint32_t i = 0; i < RTE_DIM(known); i++)
		if (!strcmp(known[i].name, value)) {
			config->full_errno = known[i].code;
			return 0;
		}
	LOG(ERR, "hw_full_error=%s: ENOBUFS, ENOSPC or ENOMEM is expected\n", value);
	return -EINVAL;
}

static int
parse_widen(struct hw_config *config, const char *value)
{
	static const char *const names[] = {"exact", "refuse", "ignore"};

	for (uint32_t i = 0; i < RTE_DIM(names); i++)
		if (!strcmp(names[i], value)) {
			config->widen = i;
			return 0;
		}
	LOG(ERR, "hw_widen=%s: exact, refuse or ignore is expected\n", value);
	return -EINVAL;
}

static int
parse_words(struct hw_config *config, const char *key, const char *value)
{
	if (!strcmp(key, "role") && (!strcmp(value, "uplink") || !strcmp(value, "vf"))) {
		config->representor = !strcmp(value, "vf");
		return 0;
	}
	if (!strcmp(key, "adapter") && *value && strlen(value) < sizeof config->adapter) {
		strcpy(config->adapter, value);
		return 0;
	}
	LOG(ERR, "%s=%s: %s is expected\n", key, value, *key == 'r' ? "uplink or vf" : "a name of at most 31 bytes");
	return -EINVAL;
}

static int
parse_numeric(struct hw_config *c, const char *key, const char *value)
{
	const struct { const char *key; uint32_t least, most; uint32_t *number; bool *flag; } known[] = {
		{"hw_rules", 1, 1 << 20, &c->rules, NULL},
		{"hw_rate", 0, 10000000, &c->rate, NULL},
		{"hw_delay", 0, 10000000, &c->delay_us, NULL},
		{"hw_async", 0, 10000000, &c->async_us, NULL},
		{"hw_lag", 0, 1 << 24, &c->lag, NULL},
		{"hw_mark_bits", 8, 32, &c->mark_bits, NULL},
		{"hw_groups", 1, 4, &c->groups, NULL},
		{"hw_prio", 1, 1 << 16, &c->priorities, NULL},
		{"hw_masks", 0, 16, &c->masks, NULL},
		{"hw_pps", 0, 1000000000, &c->pps, NULL},
		{"vf", 0, 255, &c->vf, NULL},
		{"hw_check", 0, 1, NULL, &c->check},
		{"hw_vlan", 0, 1, NULL, &c->vlan},
		{"hw_transfer", 0, 1, NULL, &c->transfer},
		{"hw_keep", 0, 1, NULL, &c->keep},
	};

	for (uint32_t i = 0; i < RTE_DIM(known); i++) {
		uint64_t n;

		if (strcmp(known[i].key, key))
			continue;
		if (number_parse(key, value, known[i].least, known[i].most, &n))
			return -EINVAL;
		if (known[i].flag)
			*known[i].flag = n;
		else
			*known[i].number = n;
		return 0;
	}
	LOG(ERR, "%s: no such argument\n", key);
	return -EINVAL;
}

bool
hw_config_parse(struct hw_config *config, const char *key, const char *value, int *ret)
{
	bool words = !strcmp(key, "adapter") || !strcmp(key, "role");

	/* By it DPDK finds a representor again; the number is `vf`'s. */
	if (!strcmp(key, "representor"))
		return true;
	if (strncmp(key, "hw", 2) && strcmp(key, "vf") && !words)
		return false;
	if (!strcmp(key, "hw"))
		*ret = parse_profile(config, value);
	else if (!config->on)
		LOG(ERR, "%s: hw, which says what adapter it is, comes first\n", key), *ret = -EINVAL;
	else if (words)
		*ret = parse_words(config, key, value);
	else if (!strcmp(key, "hw_widen"))
		*ret = parse_widen(config, value);
	else if (!strcmp(key, "hw_full_error"))
		*ret = parse_errno(config, value);
	else
		*ret = parse_numeric(config, key, value);
	return true;
}
