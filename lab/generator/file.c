/* Flows and packets that come from a file. All of it is read once, into hugepages. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <rte_malloc.h>

#include "weftgen.h"

/* Also the most packets of a pcap: remainder_of() wants numbers below 2^28. */
#define MOST_RECORDS (1u << 24)
#define MOST_BYTES (1l << 30)

/* The whole file, or NULL after a log line. */
static uint8_t *
read_all(const char *path, size_t *size)
{
	FILE *file = fopen(path, "rb");
	uint8_t *bytes = NULL;
	long length = -1;

	if (file && !fseek(file, 0, SEEK_END))
		length = ftell(file);
	if (length < 0 || length > MOST_BYTES) {
		LOG(ERR, "%s: %s\n", path, file && length >= 0 ? "larger than 1 GiB" : strerror(errno));
	} else {
		rewind(file);
		bytes = rte_malloc(NULL, RTE_MAX(length, 1l), RTE_CACHE_LINE_SIZE);
		if (!bytes || fread(bytes, 1, length, file) != (size_t)length) {
			LOG(ERR, "%s: %s\n", path, bytes ? "cannot be read" : "no memory for it");
			rte_free(bytes);
			bytes = NULL;
		}
	}
	if (file)
		fclose(file);
	*size = length;
	return bytes;
}

static int
load_table(struct device *d, const char *path)
{
	struct flow_table *t = &d->table;
	uint32_t counts[2];
	size_t size;
	uint8_t *bytes = read_all(path, &size);

	if (!bytes)
		return -EINVAL;
	t->records = (struct record *)bytes; /* so that it is freed */
	if (size < 64 || memcmp(bytes, "weftflow", 8))
		goto wrong;
	memcpy(counts, bytes + 8, sizeof counts);
	if (!counts[0] || counts[0] > MOST_RECORDS || counts[1] > MOST_RECORDS ||
	    size != 64 + sizeof(struct record) * ((size_t)counts[0] + counts[1]))
		goto wrong;
	memmove(bytes, bytes + 64, size - 64);
	t->n = counts[0];
	t->n_new = counts[1];
	for (uint32_t i = 0; i < t->n + t->n_new; i++)
		if (t->records[i].protocol != 6 && t->records[i].protocol != 17)
			goto wrong;
	return 0;
wrong:
	LOG(ERR, "table=%s: not a table of flows\n", path);
	return -EINVAL;
}

/* Classic pcap of Ethernet in host byte order (micro- or nanoseconds): 24 bytes, then 16 and the packet, and so on. */
static int
load_pcap(struct device *d, const char *path)
{
	struct replay *r = &d->replay;
	uint32_t head[6], each[4], most;
	size_t size, at = sizeof head;

	r->bytes = read_all(path, &size);
	if (!r->bytes)
		return -EINVAL;
	memcpy(head, r->bytes, RTE_MIN(size, sizeof head));
	if (size < sizeof head + sizeof each || (head[0] != 0xa1b2c3d4 && head[0] != 0xa1b23c4d) || head[5] != 1) {
		LOG(ERR, "pcap=%s: not a pcap file of Ethernet packets in this machine's byte order\n", path);
		return -EINVAL;
	}
	most = RTE_MIN(size / sizeof each, MOST_RECORDS);
	r->packets = rte_malloc(NULL, most * sizeof *r->packets, RTE_CACHE_LINE_SIZE);
	if (!r->packets)
		return -ENOMEM;
	while (at + sizeof each <= size && r->n < most) {
		memcpy(each, r->bytes + at, sizeof each);
		at += sizeof each;
		if (each[2] > size - at)
			break;
		if (each[2] >= RTE_ETHER_HDR_LEN && each[2] <= RTE_ETHER_MAX_LEN) {
			r->packets[r->n].at = at;
			r->packets[r->n++].length = each[2];
		}
		at += each[2];
	}
	if (d->config.flows == 1)
		d->config.flows = RTE_MAX(r->n, 1u);
	if (r->n)
		return 0;
	LOG(ERR, "pcap=%s: no packet of 14 to 1518 bytes\n", path);
	return -EINVAL;
}

int
file_load(struct device *d)
{
	if (*d->config.table)
		return load_table(d, d->config.table);
	return *d->config.pcap ? load_pcap(d, d->config.pcap) : 0;
}

void
file_free(struct device *d)
{
	rte_free(d->table.records);
	rte_free(d->replay.bytes);
	rte_free(d->replay.packets);
	d->table = (struct flow_table){0};
	d->replay = (struct replay){0};
}
