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
	{"i40e", {.rules = 8192, .full_errno = ENOBUFS, .mark_bits = 32, .groups = 1, .priorities = 1}},
	{"ice", {.rules = 16384, .full_errno = ENOSPC, .mark_bits = 32, .groups = 1, .priorities = 2}},
	{"cx5", {.rules = 1 << 20, .full_errno = ENOMEM, .mark_bits = 24, .groups = 4, .priorities = 8}},
	{"agilio", {.rules = 65000, .full_errno = ENOBUFS, .mark_bits = 0, .groups = 1, .priorities = 1}},
	{"full", {.rules = 1 << 20, .full_errno = ENOSPC, .mark_bits = 32, .groups = 4, .priorities = 8}},
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
		{"hw_check", 0, 1, NULL, &c->check},
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
	if (strncmp(key, "hw", 2))
		return false;
	if (!strcmp(key, "hw"))
		*ret = parse_profile(config, value);
	else if (!config->on)
		LOG(ERR, "%s: hw, which says what adapter it is, comes first\n", key), *ret = -EINVAL;
	else if (!strcmp(key, "hw_full_error"))
		*ret = parse_errno(config, value);
	else
		*ret = parse_numeric(config, key, value);
	return true;
}
