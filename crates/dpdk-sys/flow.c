/* See shim.h: rules of rte_flow from flat headers. The library's calls are not inline, but their arguments are trees of
 * pointers to bit fields, which C makes best. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include "shim.h"

#define HEADERS_MAX 10
#define EDITS_MAX 16
/* A tag takes three actions; COUNT, the port and END besides. */
#define ACTIONS_MAX (3 * EDITS_MAX + 3)
#define QUEUES_MAX 256

static const enum rte_flow_item_type KINDS[] = {
    [WEFT_HEADER_ETH] = RTE_FLOW_ITEM_TYPE_ETH,     [WEFT_HEADER_VLAN] = RTE_FLOW_ITEM_TYPE_VLAN,
    [WEFT_HEADER_IPV4] = RTE_FLOW_ITEM_TYPE_IPV4,   [WEFT_HEADER_IPV6] = RTE_FLOW_ITEM_TYPE_IPV6,
    [WEFT_HEADER_TCP] = RTE_FLOW_ITEM_TYPE_TCP,     [WEFT_HEADER_UDP] = RTE_FLOW_ITEM_TYPE_UDP,
    [WEFT_HEADER_SCTP] = RTE_FLOW_ITEM_TYPE_SCTP,   [WEFT_HEADER_ICMP] = RTE_FLOW_ITEM_TYPE_ICMP,
    [WEFT_HEADER_ICMP6] = RTE_FLOW_ITEM_TYPE_ICMP6, [WEFT_HEADER_VXLAN] = RTE_FLOW_ITEM_TYPE_VXLAN,
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
    struct rte_flow_item_vxlan vxlan;
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

    if (n > HEADERS_MAX || n_queues > QUEUES_MAX)
        return failed(-EINVAL, &e, error);
    fill(items, store, headers, n);
    for (to_rss.queue_num = 0; to_rss.queue_num < n_queues; to_rss.queue_num++)
        queues[to_rss.queue_num] = (uint16_t)to_rss.queue_num;
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

/* What an edit's action points to. */
union conf {
    struct rte_flow_action_set_mac mac;
    struct rte_flow_action_set_ipv4 ipv4;
    struct rte_flow_action_set_ipv6 ipv6;
    struct rte_flow_action_set_ttl ttl;
    struct rte_flow_action_set_tp tp;
    struct {
        struct rte_flow_action_of_push_vlan push;
        struct rte_flow_action_of_set_vlan_vid vid;
        struct rte_flow_action_of_set_vlan_pcp pcp;
    } vlan;
    struct {
        struct rte_flow_action_vxlan_encap encap;
        struct rte_flow_item items[5];
        union item headers[4];
    } tunnel;
};

static const enum rte_flow_action_type EDITS[] = {
    [WEFT_EDIT_MAC_SRC] = RTE_FLOW_ACTION_TYPE_SET_MAC_SRC,
    [WEFT_EDIT_MAC_DST] = RTE_FLOW_ACTION_TYPE_SET_MAC_DST,
    [WEFT_EDIT_IPV4_SRC] = RTE_FLOW_ACTION_TYPE_SET_IPV4_SRC,
    [WEFT_EDIT_IPV4_DST] = RTE_FLOW_ACTION_TYPE_SET_IPV4_DST,
    [WEFT_EDIT_IPV6_SRC] = RTE_FLOW_ACTION_TYPE_SET_IPV6_SRC,
    [WEFT_EDIT_IPV6_DST] = RTE_FLOW_ACTION_TYPE_SET_IPV6_DST,
    [WEFT_EDIT_TTL] = RTE_FLOW_ACTION_TYPE_SET_TTL,
    [WEFT_EDIT_TP_SRC] = RTE_FLOW_ACTION_TYPE_SET_TP_SRC,
    [WEFT_EDIT_TP_DST] = RTE_FLOW_ACTION_TYPE_SET_TP_DST,
    [WEFT_EDIT_POP_VLAN] = RTE_FLOW_ACTION_TYPE_OF_POP_VLAN,
    [WEFT_EDIT_VXLAN_DECAP] = RTE_FLOW_ACTION_TYPE_VXLAN_DECAP,
};

static void push_vlan(struct rte_flow_action **a, const struct weft_edit *e, union conf *c)
{
    uint16_t tci = (uint16_t)(e->bytes[2] << 8 | e->bytes[3]);

    memcpy(&c->vlan.push.ethertype, e->bytes, 2);
    c->vlan.vid.vlan_vid = rte_cpu_to_be_16(tci & 0xfff);
    c->vlan.pcp.vlan_pcp = (uint8_t)(tci >> 13);
    *(*a)++ = (struct rte_flow_action){ .type = RTE_FLOW_ACTION_TYPE_OF_PUSH_VLAN, .conf = &c->vlan.push };
    *(*a)++ = (struct rte_flow_action){ .type = RTE_FLOW_ACTION_TYPE_OF_SET_VLAN_PCP, .conf = &c->vlan.pcp };
    *(*a)++ = (struct rte_flow_action){ .type = RTE_FLOW_ACTION_TYPE_OF_SET_VLAN_VID, .conf = &c->vlan.vid };
}

/* An item's type and its header's bytes; masks are all ones. */
static void outer_item(union conf *c, unsigned int i, enum rte_flow_item_type type, const uint8_t *bytes, size_t n)
{
    memset(&c->tunnel.headers[i], 0, sizeof c->tunnel.headers[i]);
    memcpy(c->tunnel.headers[i].bytes, bytes, n);
    c->tunnel.items[i] = (struct rte_flow_item){ .type = type, .spec = &c->tunnel.headers[i] };
}

static int vxlan_encap(struct rte_flow_action **a, const struct weft_edit *e, union conf *c)
{
    int v6 = e->bytes[12] == 0x86;
    size_t ip = v6 ? 40 : 20, udp = 14 + ip;

    if (e->size != udp + 16)
        return -EINVAL;
    outer_item(c, 0, RTE_FLOW_ITEM_TYPE_ETH, e->bytes, 14);
    outer_item(c, 1, v6 ? RTE_FLOW_ITEM_TYPE_IPV6 : RTE_FLOW_ITEM_TYPE_IPV4, e->bytes + 14, ip);
    outer_item(c, 2, RTE_FLOW_ITEM_TYPE_UDP, e->bytes + udp, 8);
    outer_item(c, 3, RTE_FLOW_ITEM_TYPE_VXLAN, e->bytes + udp + 8, 8);
    c->tunnel.items[4] = (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_END };
    c->tunnel.encap.definition = c->tunnel.items;
    *(*a)++ = (struct rte_flow_action){ .type = RTE_FLOW_ACTION_TYPE_VXLAN_ENCAP, .conf = &c->tunnel.encap };
    return 0;
}

static int edit(struct rte_flow_action **a, const struct weft_edit *e, union conf *c)
{
    memset(c, 0, sizeof *c);
    if (e->kind == WEFT_EDIT_VXLAN_ENCAP)
        return vxlan_encap(a, e, c);
    if (e->kind == WEFT_EDIT_PUSH_VLAN) {
        push_vlan(a, e, c);
        return 0;
    }
    /* All others begin with the value as it is on the wire. */
    memcpy(c, e->bytes, e->size < sizeof *c ? e->size : sizeof *c);
    *(*a)++ = (struct rte_flow_action){ .type = EDITS[e->kind], .conf = e->size != 0 ? c : NULL };
    return 0;
}

/* With the way to name a port that drivers of before 22.11 know, if need be. */
static struct rte_flow *create(uint16_t port, const struct rte_flow_item *items, struct rte_flow_action *actions,
                               struct rte_flow_action *fate, uint16_t to, struct rte_flow_error *e)
{
    const struct rte_flow_attr attr = { .transfer = 1 };
    struct rte_flow_action_port_id id = { .id = to };
    struct rte_flow *flow;

    rte_errno = 0;
    flow = rte_flow_create(port, &attr, items, actions, e);
    if (flow != NULL || fate->type != RTE_FLOW_ACTION_TYPE_REPRESENTED_PORT || rte_errno != ENOTSUP ||
        (e->type != RTE_FLOW_ERROR_TYPE_ACTION && e->type != RTE_FLOW_ERROR_TYPE_ACTION_CONF))
        return flow;
    *fate = (struct rte_flow_action){ .type = RTE_FLOW_ACTION_TYPE_PORT_ID, .conf = &id };
    rte_errno = 0;
    return rte_flow_create(port, &attr, items, actions, e);
}

int weft_flow_forward(uint16_t port, const struct weft_header *headers, unsigned int n,
                      const struct weft_edit *edits, unsigned int n_edits, int32_t to,
                      struct rte_flow **flow, struct weft_flow_error *error)
{
    struct rte_flow_item items[HEADERS_MAX + 1];
    union item store[HEADERS_MAX][2];
    struct rte_flow_action actions[ACTIONS_MAX], *a = actions;
    union conf confs[EDITS_MAX];
    struct rte_flow_action_count count = { .id = 0 };
    struct rte_flow_action_ethdev represented = { .port_id = (uint16_t)to }, own = { .port_id = port };
    struct rte_flow_error e = { .type = RTE_FLOW_ERROR_TYPE_NONE };
    unsigned int i;

    if (n > HEADERS_MAX || n_edits > EDITS_MAX)
        return failed(-EINVAL, &e, error);
    fill(items, store, headers, n);
    /* Untagged ones are not to be taken for tagged ones, nor the other way round. */
    for (i = 0; i < n; i++)
        if (headers[i].kind == WEFT_HEADER_ETH) {
            int tag = headers[i].spec[14] & 1;

            memset(store[i][0].bytes + 14, 0, sizeof store[i][0] - 14);
            memset(store[i][1].bytes + 14, 0, sizeof store[i][1] - 14);
            store[i][0].eth.has_vlan = tag || (i + 1 < n && headers[i + 1].kind == WEFT_HEADER_VLAN);
            store[i][1].eth.has_vlan = 1;
            items[i].spec = &store[i][0];
            items[i].mask = &store[i][1];
        }
    *a++ = (struct rte_flow_action){ .type = RTE_FLOW_ACTION_TYPE_COUNT, .conf = &count };
    for (i = 0; i < n_edits; i++)
        if (edit(&a, &edits[i], &confs[i]) != 0)
            return failed(-EINVAL, &e, error);
    a[0] = (struct rte_flow_action){ .type = RTE_FLOW_ACTION_TYPE_REPRESENTED_PORT, .conf = &represented };
    if (to == WEFT_TO_HOST)
        a[0] = (struct rte_flow_action){ .type = RTE_FLOW_ACTION_TYPE_PORT_REPRESENTOR, .conf = &own };
    else if (to < 0)
        a[0] = (struct rte_flow_action){ .type = RTE_FLOW_ACTION_TYPE_DROP };
    a[1] = (struct rte_flow_action){ .type = RTE_FLOW_ACTION_TYPE_END };
    *flow = create(port, items, actions, a, (uint16_t)to, &e);
    return *flow != NULL ? 0 : failed(rte_errno != 0 ? -rte_errno : -EIO, &e, error);
}

int weft_flow_count(uint16_t port, struct rte_flow *flow, uint64_t *packets, uint64_t *bytes,
                    struct weft_flow_error *error)
{
    const struct rte_flow_action actions[] = {
        { .type = RTE_FLOW_ACTION_TYPE_COUNT },
        { .type = RTE_FLOW_ACTION_TYPE_END },
    };
    struct rte_flow_query_count count = { .reset = 0 };
    struct rte_flow_error e = { .type = RTE_FLOW_ERROR_TYPE_NONE };
    int ret = rte_flow_query(port, flow, actions, &count, &e);

    *packets = count.hits_set ? count.hits : 0;
    *bytes = count.bytes_set ? count.bytes : 0;
    return ret == 0 ? 0 : failed(ret, &e, error);
}

int32_t weft_flow_domain(uint16_t port)
{
    struct rte_eth_dev_info info;

    if (rte_eth_dev_info_get(port, &info) != 0 ||
        info.switch_info.domain_id == RTE_ETH_DEV_SWITCH_DOMAIN_ID_INVALID)
        return -1;
    return info.switch_info.domain_id;
}
