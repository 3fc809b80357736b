/* See shim.h. Only what is inline in DPDK's headers, or needs C types, is here. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <unistd.h>
#include <rte_dmadev.h>
#include <rte_ethdev.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_pause.h>
#include <rte_vfio.h>
#include "shim.h"

uint16_t weft_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n)
{
    return rte_eth_rx_burst(port, queue, pkts, n);
}

uint16_t weft_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n)
{
    return rte_eth_tx_burst(port, queue, pkts, n);
}

int weft_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **pkts, unsigned int n)
{
    unsigned int i;

    if (rte_mempool_get_bulk(pool, (void **)pkts, n) != 0)
        return -1;
    for (i = 0; i < n; i++)
        rte_prefetch0_write(pkts[i]);
    for (i = 0; i < n; i++) {
        struct rte_mbuf *m = pkts[i];

        m->data_off = RTE_PKTMBUF_HEADROOM;
        m->port = RTE_MBUF_PORT_INVALID;
        m->ol_flags = 0;
        m->packet_type = 0;
        m->pkt_len = 0;
        m->data_len = 0;
    }
    return 0;
}

struct rte_mempool *weft_page_pool(const char *name, unsigned int n, unsigned int cache, int numa)
{
    const unsigned int flags = RTE_MEMPOOL_F_NO_SPREAD;
    const uint32_t page = getpagesize();
    struct rte_pktmbuf_pool_private priv = { 0 };
    struct rte_mempool_objsz size;
    struct rte_mempool *pool;
    uint32_t elt;

    rte_mempool_calc_obj_size(page / 2, flags, &size);
    elt = page - size.header_size - size.trailer_size;
    pool = rte_mempool_create_empty(name, n, elt, cache, sizeof(priv), numa, flags);
    if (pool == NULL)
        return NULL;
    priv.mbuf_data_room_size = elt - sizeof(struct rte_mbuf);
    if (rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL) == 0) {
        rte_pktmbuf_pool_init(pool, &priv);
        if (rte_mempool_populate_default(pool) >= 0) {
            rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
            return pool;
        }
    }
    rte_mempool_free(pool);
    return NULL;
}

/* Is it one whole buffer of this pool that nobody else uses? */
static inline int is_plain(const struct rte_mbuf *m, const struct rte_mempool *pool)
{
    return m->pool == pool && m->nb_segs == 1 && rte_mbuf_refcnt_read(m) == 1 && RTE_MBUF_DIRECT(m);
}

void weft_free_bulk(struct rte_mbuf **pkts, unsigned int n)
{
    struct rte_mempool *pool = n > 0 ? pkts[0]->pool : NULL;
    unsigned int i = 0;

    while (i < n && is_plain(pkts[i], pool))
        i++;
    if (i == n && n > 0)
        rte_mempool_put_bulk(pool, (void *const *)pkts, n);
    else
        rte_pktmbuf_free_bulk(pkts, n);
}

uint16_t weft_dma_room(int16_t dev)
{
    return rte_dma_burst_capacity(dev, 0);
}

uint16_t weft_dma_copy(int16_t dev, const struct weft_job *jobs, uint16_t n)
{
    uint16_t i;

    for (i = 0; i < n; i++) {
        const struct weft_job *j = &jobs[i];

        if (rte_dma_copy(dev, 0, (rte_iova_t)(uintptr_t)j->from, (rte_iova_t)(uintptr_t)j->to, j->len, 0) < 0)
            break;
    }
    return i;
}

void weft_dma_submit(int16_t dev)
{
    rte_dma_submit(dev, 0);
}

uint16_t weft_dma_completed(int16_t dev, uint16_t n, int *failed)
{
    bool has_error = false;
    uint16_t last, done = rte_dma_completed(dev, 0, n, &last, &has_error);

    *failed = has_error;
    return done;
}

uint16_t weft_dma_statuses(int16_t dev, uint16_t n, uint32_t *status)
{
    enum rte_dma_status_code codes[WEFT_DMA_STATUSES_MAX];
    uint16_t last, i;

    n = RTE_MIN(n, WEFT_DMA_STATUSES_MAX);
    n = rte_dma_completed_status(dev, 0, n, &last, codes);
    for (i = 0; i < n; i++)
        status[i] = codes[i];
    return n;
}

/* What a call of VFIO's returned, which does not always say why it failed. */
static int vfio_result(int ret)
{
    return ret == 0 ? 0 : rte_errno > 0 ? -rte_errno : -EIO;
}

int weft_dma_map(uint64_t at, uint64_t len)
{
    rte_errno = 0;
    return vfio_result(rte_vfio_container_dma_map(RTE_VFIO_DEFAULT_CONTAINER_FD, at, at, len));
}

int weft_dma_unmap(uint64_t at, uint64_t len)
{
    rte_errno = 0;
    return vfio_result(rte_vfio_container_dma_unmap(RTE_VFIO_DEFAULT_CONTAINER_FD, at, at, len));
}

int weft_errno(void)
{
    return rte_errno;
}

uint32_t weft_lcore_id(void)
{
    return rte_lcore_id();
}

static void (*log_sink)(const char *text, size_t len);

static ssize_t log_write(void *cookie, const char *text, size_t len)
{
    (void)cookie;
    log_sink(text, len);
    return (ssize_t)len;
}

int weft_log_to(void (*sink)(const char *text, size_t len))
{
    cookie_io_functions_t io = { .write = log_write };
    FILE *file;

    log_sink = sink;
    file = fopencookie(NULL, "w", io);
    if (file == NULL)
        return -1;
    setvbuf(file, NULL, _IOLBF, BUFSIZ);
    return rte_openlog_stream(file);
}

static const enum rte_eth_event_type upsets[] = { RTE_ETH_EVENT_INTR_RESET, RTE_ETH_EVENT_INTR_RMV };

static int count_upset(uint16_t port, enum rte_eth_event_type event, void *count, void *more)
{
    (void)port, (void)event, (void)more;
    __atomic_fetch_add((uint32_t *)count, 1, __ATOMIC_RELEASE);
    return 0;
}

int weft_eth_watch(uint16_t port, int removals, uint32_t *count)
{
    int ret = 0;

    for (int i = 0; i < 1 + !!removals && ret == 0; i++)
        ret = rte_eth_dev_callback_register(port, upsets[i], count_upset, count);
    return ret;
}

void weft_eth_unwatch(uint16_t port, int removals, uint32_t *count)
{
    for (int i = 0; i < 1 + !!removals; i++) {
        /* It is being called. */
        while (rte_eth_dev_callback_unregister(port, upsets[i], count_upset, count) == -EAGAIN)
            rte_pause();
    }
}

static int link_changed(uint16_t port, enum rte_eth_event_type event, void *arg, void *more)
{
    const struct weft_link_watch *watch = arg;

    (void)port, (void)event, (void)more;
    watch->changed(watch->arg);
    return 0;
}

int weft_eth_watch_link(uint16_t port, struct weft_link_watch *watch)
{
    return rte_eth_dev_callback_register(port, RTE_ETH_EVENT_INTR_LSC, link_changed, watch);
}

void weft_eth_unwatch_link(uint16_t port, struct weft_link_watch *watch)
{
    /* It is being called. */
    while (rte_eth_dev_callback_unregister(port, RTE_ETH_EVENT_INTR_LSC, link_changed, watch) == -EAGAIN)
        rte_pause();
}

int weft_eth_has_link_interrupt(const struct rte_eth_dev_info *info)
{
    return !!(*info->dev_flags & RTE_ETH_DEV_INTR_LSC);
}

int weft_eth_flow_control(uint16_t port, int rx, int tx, int autoneg)
{
    static const enum rte_eth_fc_mode modes[2][2] = {
        {RTE_ETH_FC_NONE, RTE_ETH_FC_RX_PAUSE},
        {RTE_ETH_FC_TX_PAUSE, RTE_ETH_FC_FULL},
    };
    enum rte_eth_fc_mode mode = modes[!!rx][!!tx];
    struct rte_eth_fc_conf conf;
    int ret;

    memset(&conf, 0, sizeof conf);
    ret = rte_eth_dev_flow_ctrl_get(port, &conf);
    if (ret < 0 || (conf.mode == mode && !!conf.autoneg == !!autoneg))
        return ret;
    conf.mode = mode;
    conf.autoneg = !!autoneg;
    return rte_eth_dev_flow_ctrl_set(port, &conf);
}
