/* See shim.h: rules of rte_flow from flat headers. The library's calls are not inline, but their arguments are trees of
 * pointers to bit fields, which C makes best. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include "shim.h"

#define HEADERS_MAX 8
#define QUEUES_MAX 256

static const enum rte_flow_item_type KINDS[] = {
    [WEFT_HEADER_ETH] = RTE_FLOW_ITEM_TYPE_ETH,     [WEFT_HEADER_VLAN] = RTE_FLOW_ITEM_TYPE_VLAN,
    [WEFT_HEADER_IPV4] = RTE_FLOW_ITEM_TYPE_IPV4,   [WEFT_HEADER_IPV6] = RTE_FLOW_ITEM_TYPE_IPV6,
    [WEFT_HEADER_TCP] = RTE_FLOW_ITEM_TYPE_TCP,     [WEFT_HEADER_UDP] = RTE_FLOW_ITEM_TYPE_UDP,
    [WEFT_HEADER_SCTP] = RTE_FLOW_ITEM_TYPE_SCTP,   [WEFT_HEADER_ICMP] = RTE_FLOW_ITEM_TYPE_ICMP,
    [WEFT_HEADER_ICMP6] = RTE_FLOW_ITEM_TYPE_ICMP6,
};

/* All items begin with the header as it is on the wire; flags that some have behind it are 0. */
union item {
    struct rte_flow_item_eth eth;
    struct rte_flow_item_vlan vlan;
    struct rte_flow_item_ipv4 ipv4;
    struct rte_flow_item_ipv6 ipv6;
    struct rte_flow_item_tcp tcp;
    struct rte_flow_item_udp udp;
    struct rte_flow_item_sctp sctp;
    struct rte_flow_item_icmp icmp;
    struct rte_flow_item_icmp6 icmp6;
    uint8_t bytes[WEFT_HEADER_MAX];
};

static int failed(int ret, const struct rte_flow_error *from, struct weft_flow_error *to)
{
    to->type = (int32_t)from->type;
    snprintf(to->message, sizeof to->message, "%s", from->message ? from->message : "");
    return ret == -1 && rte_errno != 0 ? -rte_errno : ret;
}

static void fill(struct rte_flow_item *items, union item (*store)[2], const struct weft_header *h,
                 unsigned int n)
{
    unsigned int i;

    for (i = 0; i < n; i++) {
        memset(store[i], 0, sizeof store[i]);
        memcpy(store[i][0].bytes, h[i].spec, WEFT_HEADER_MAX);
        memcpy(store[i][1].bytes, h[i].mask, WEFT_HEADER_MAX);
        items[i] = (struct rte_flow_item){ .type = KINDS[h[i].kind] };
        if (!h[i].any) {
            items[i].spec = &store[i][0];
            items[i].mask = &store[i][1];
        }
    }
    items[n] = (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_END };
}

int weft_flow_mark(uint16_t port, const struct weft_header *headers, unsigned int n, uint32_t mark,
                   uint16_t n_queues, uint64_t rss, struct rte_flow **flow,
                   struct weft_flow_error *error)
{
    const struct rte_flow_attr attr = { .ingress = 1 };
    struct rte_flow_item items[HEADERS_MAX + 1];
    union item store[HEADERS_MAX][2];
    struct rte_flow_error e = { .type = RTE_FLOW_ERROR_TYPE_NONE };
    struct rte_flow_action_mark to_mark = { .id = mark };
    uint16_t queues[QUEUES_MAX];
    struct rte_flow_action_rss to_rss = { .types = rss, .queue = queues };
    const struct rte_flow_action actions[] = {
        { .type = RTE_FLOW_ACTION_TYPE_MARK, .conf = &to_mark },
        { .type = RTE_FLOW_ACTION_TYPE_RSS, .conf = &to_rss },
        { .type = RTE_FLOW_ACTION_TYPE_END },
    };
    int ret;

    if (n > HEADERS_MAX || n_queues > QUEUES_MAX)
        return failed(-EINVAL, &e, error);
    fill(items, store, headers, n);
    for (to_rss.queue_num = 0; to_rss.queue_num < n_queues; to_rss.queue_num++)
        queues[to_rss.queue_num] = (uint16_t)to_rss.queue_num;
    if (flow == NULL) {
        ret = rte_flow_validate(port, &attr, items, actions, &e);
        return ret == 0 ? 0 : failed(ret, &e, error);
    }
    rte_errno = 0;
    *flow = rte_flow_create(port, &attr, items, actions, &e);
    return *flow != NULL ? 0 : failed(rte_errno != 0 ? -rte_errno : -EIO, &e, error);
}

int weft_flow_destroy(uint16_t port, struct rte_flow *flow, struct weft_flow_error *error)
{
    struct rte_flow_error e = { .type = RTE_FLOW_ERROR_TYPE_NONE };
    int ret = rte_flow_destroy(port, flow, &e);

    return ret == 0 ? 0 : failed(ret, &e, error);
}

int weft_flow_flush(uint16_t port, struct weft_flow_error *error)
{
    struct rte_flow_error e = { .type = RTE_FLOW_ERROR_TYPE_NONE };
    int ret = rte_flow_flush(port, &e);

    return ret == 0 ? 0 : failed(ret, &e, error);
}
