/* The device arguments. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_kvargs.h>
#include <rte_log.h>

#include "hw/adapter.h"

static const char *const orders[] = {"seq", "uniform", "zipf", "burst", "scatter", "sink", NULL};
static const char *const kinds[] = {"udp4", "tcp4", "udp6", "vlan", "vxlan", "conn", NULL};
static const char *const keys[] = {
	"flows", "order", "s",    "size",  "kind",    "new",   "seed",  "rules", "dmacs", "guests",
	"vnis",  "rate",  "ring", "limit", "offload", "track", "stats", "table", "pcap",  "sources", "hw",
	"hw_rules", "hw_full_error", "hw_rate", "hw_delay", "hw_async", "hw_lag", "hw_mark_bits", "hw_groups",
	"hw_prio", "hw_check", "hw_masks", "hw_pps", "hw_vlan", "hw_transfer", "hw_keep", "hw_widen", "adapter", "role",
	"vf", "representor", "nat", "flood", NULL,
};

static int
index_of(const char *const *names, const char *name)
{
	for (int i = 0; names[i]; i++)
		if (!strcmp(names[i], name))
			return i;
	return -1;
}

int
number_parse(const char *key, const char *text, uint64_t least, uint64_t most, uint64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	if (end == text || *end || errno || *text == '-' || *value < least || *value > most) {
		LOG(ERR, "%s=%s: a number from %lu to %lu is expected\n", key, text, (unsigned long)least,
		    (unsigned long)most);
		return -EINVAL;
	}
	return 0;
}

/* Where a numeric argument goes, and its limits. */
struct numeric {
	const char *key;
	uint64_t least, most;
	uint32_t *narrow;
	uint64_t *wide;
	bool *flag;
};

static int
parse_numeric(struct config *c, const char *key, const char *value)
{
	const struct numeric known[] = {
		{"flows", 1, 100000000, .narrow = &c->flows},
		{"rules", 1, 1 << 20, .narrow = &c->rules},
		{"dmacs", 1, 1 << 24, .narrow = &c->dmacs},
		{"guests", 1, 1024, .narrow = &c->guests},
		{"vnis", 1, 1024, .narrow = &c->vnis},
		{"sources", 1, 1024, .narrow = &c->sources},
		{"new", 0, 1000, .narrow = &c->new_share},
		{"ring", 2048, 1 << 16, .narrow = &c->ring},
		{"seed", 0, UINT64_MAX, .wide = &c->seed},
		{"rate", 0, 1000000000, .wide = &c->rate},
		{"limit", 0, UINT64_MAX, .wide = &c->limit},
		{"offload", 0, 1, .flag = &c->offload},
		{"track", 0, 1, .flag = &c->track},
		{"nat", 0, 1, .flag = &c->nat},
		{"flood", 0, 1, .flag = &c->flood},
	};

	for (unsigned int i = 0; i < RTE_DIM(known); i++) {
		uint64_t n;

		if (strcmp(known[i].key, key))
			continue;
		if (number_parse(key, value, known[i].least, known[i].most, &n))
			return -EINVAL;
		if (known[i].narrow)
			*known[i].narrow = n;
		if (known[i].wide)
			*known[i].wide = n;
		if (known[i].flag)
			*known[i].flag = n;
		return 0;
	}
	LOG(ERR, "%s: no such argument\n", key);
	return -EINVAL;
}

static int
parse_name(const char *key, const char *value, const char *const *names, int *index)
{
	*index = index_of(names, value);
	if (*index < 0)
		LOG(ERR, "%s=%s: no such %s\n", key, value, key);
	return *index < 0 ? -EINVAL : 0;
}

static int
parse_size(struct config *c, const char *value)
{
	uint64_t n;

	c->size = !strcmp(value, "imix") ? SIZE_IMIX : !strcmp(value, "uniform") ? SIZE_UNIFORM : 0;
	if (c->size)
		return 0;
	if (number_parse("size", value, 64, MAX_SIZE, &n))
		return -EINVAL;
	c->size = n;
	return 0;
}

static int
parse_s(struct config *c, const char *value)
{
	char *end;

	c->s = strtod(value, &end);
	if (end != value && !*end && c->s >= 0.0 && c->s <= 4.0)
		return 0;
	LOG(ERR, "s=%s: a number from 0 to 4 is expected\n", value);
	return -EINVAL;
}

static int
parse_path(const char *key, const char *value, char *path, size_t size)
{
	if (snprintf(path, size, "%s", value) < (int)size)
		return 0;
	LOG(ERR, "%s: the path is too long\n", key);
	return -EINVAL;
}

static int
parse_one(const char *key, const char *value, void *config)
{
	struct config *c = config;
	int index, ret;

	if (!value) {
		LOG(ERR, "%s: a value is expected\n", key);
		return -EINVAL;
	}
	if (hw_config_parse(&c->hw, key, value, &ret))
		return ret;
	if (!strcmp(key, "order")) {
		ret = parse_name(key, value, orders, &index);
		c->order = ret ? c->order : (enum order)index;
		return ret;
	}
	if (!strcmp(key, "kind")) {
		ret = parse_name(key, value, kinds, &index);
		c->kind = ret ? c->kind : (enum kind)index;
		return ret;
	}
	if (!strcmp(key, "size"))
		return parse_size(c, value);
	if (!strcmp(key, "s"))
		return parse_s(c, value);
	if (!strcmp(key, "stats"))
		return parse_path(key, value, c->stats, sizeof c->stats);
	if (!strcmp(key, "table"))
		return parse_path(key, value, c->table, sizeof c->table);
	if (!strcmp(key, "pcap"))
		return parse_path(key, value, c->pcap, sizeof c->pcap);
	return parse_numeric(c, key, value);
}

/* What the arguments say together. */
static int
check(struct config *c)
{
	uint32_t least;

	if ((*c->table || *c->pcap) && (c->kind != KIND_UDP4 || (*c->table && *c->pcap))) {
		LOG(ERR, "table and pcap go neither together nor with a kind\n");
		return -EINVAL;
	}
	c->kind = *c->table ? KIND_TABLE : *c->pcap ? KIND_PCAP : c->kind;
	least = frame_least_size(c);

	if (c->size > SIZE_UNIFORM && c->size < least) {
		LOG(ERR, "size=%u: frames of kind %s have at least %u bytes\n", c->size, kinds[c->kind], least);
		return -EINVAL;
	}
	if ((c->nat || c->flood) && c->kind != KIND_CONN) {
		LOG(ERR, "nat and flood go with kind=conn\n");
		return -EINVAL;
	}
	if (c->ring & (c->ring - 1)) {
		LOG(ERR, "ring=%u: a power of two is expected\n", c->ring);
		return -EINVAL;
	}
	return 0;
}

int
config_parse(struct config *c, const char *args)
{
	struct rte_kvargs *kvargs;
	int ret;

	*c = (struct config){
		.flows = 1, .rules = 1, .dmacs = 1, .guests = 32, .vnis = 1, .sources = 1024, .size = 64,
		.ring = 2048, .seed = 1, .s = 1.0, .order = ORDER_SEQ, .kind = KIND_UDP4, .offload = true, .track = true,
	};
	if (args && *args) {
		kvargs = rte_kvargs_parse(args, keys);
		if (!kvargs) {
			LOG(ERR, "'%s': an argument is unknown or has no value\n", args);
			return -EINVAL;
		}
		ret = rte_kvargs_process(kvargs, NULL, parse_one, c);
		rte_kvargs_free(kvargs);
		if (ret)
			return -EINVAL;
	}
	return check(c);
}
