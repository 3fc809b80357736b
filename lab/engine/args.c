/* The device's arguments. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <rte_common.h>
#include <rte_kvargs.h>

#include "engine.h"

struct number {
	const char *key;
	size_t offset;
	int64_t min;
	int64_t max;
};

#define NUMBER(name, field, min, max) { name, offsetof(struct config, field), min, max }

static const struct number numbers[] = {
	NUMBER("lcore", lcore, -1, 1023),
	NUMBER("numa", numa, -1, 63),
	NUMBER("latency", latency_ns, 0, 1000000000),
	NUMBER("gbps", gbps, 1, 1000),
	NUMBER("tdesc", tdesc_ns, 0, 1000000),
	NUMBER("doorbell", doorbell_cycles, 0, 1000000),
	NUMBER("wq", wq, 1, WQ_MAX),
	NUMBER("batch", batch, 1, DESCS_MAX),
	NUMBER("desc", desc, DESCS_MIN, DESCS_MAX),
	NUMBER("error", error, 0, INT32_MAX),
	NUMBER("code", code, 1, 256),
	NUMBER("hang", hang, 0, INT32_MAX),
	NUMBER("slow", slow_us, 0, 10000000),
	NUMBER("sva", sva, 0, 1),
	NUMBER("full", full, 0, 1),
	NUMBER("check", check, 0, 1),
};

static const char *const keys[] = {
	"mode", "lcore", "numa", "latency", "gbps", "tdesc", "doorbell", "wq", "batch", "desc", "error", "code", "hang",
	"slow", "sva", "full", "check", NULL,
};

static int
read_mode(const char *key, const char *value, void *arg)
{
	static const char *const modes[] = { "thread", "lazy", "null" };
	struct config *c = arg;

	for (unsigned int i = 0; value && i < RTE_DIM(modes); i++)
		if (!strcmp(value, modes[i])) {
			c->mode = i;
			return 0;
		}
	LOG(ERR, "%s is thread, lazy or null\n", key);
	return -EINVAL;
}

static int
read_number(const char *key, const char *value, void *arg)
{
	for (unsigned int i = 0; i < RTE_DIM(numbers); i++) {
		const struct number *n = &numbers[i];
		char *end = NULL;
		long long v;

		if (strcmp(key, n->key))
			continue;
		errno = 0;
		v = value ? strtoll(value, &end, 0) : 0;
		if (!value || end == value || *end || errno || v < n->min || v > n->max) {
			LOG(ERR, "%s is a number from %lld to %lld\n", key, (long long)n->min, (long long)n->max);
			return -EINVAL;
		}
		*(int32_t *)((char *)arg + n->offset) = (int32_t)v;
		return 0;
	}
	return -EINVAL;
}

int
args_read(const char *text, struct config *c)
{
	struct rte_kvargs *args;
	int ret = 0;

	*c = (struct config){
		.lcore = -1, .numa = -1, .latency_ns = 900, .gbps = 30, .tdesc_ns = 20, .wq = 16, .batch = 1024,
		.desc = 1024, .code = RTE_DMA_STATUS_INVALID_ADDR, .sva = 1,
	};
	if (!text || !*text)
		return 0;
	args = rte_kvargs_parse(text, keys);
	if (!args) {
		LOG(ERR, "unknown argument in '%s'\n", text);
		return -EINVAL;
	}
	for (unsigned int i = 0; ret >= 0 && keys[i]; i++)
		ret = rte_kvargs_process(args, keys[i], i ? read_number : read_mode, c);
	rte_kvargs_free(args);
	return ret < 0 ? -EINVAL : 0;
}
