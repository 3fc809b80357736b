/* The C shim: DPDK functions that are inline in the headers, one call per burst. */
#ifndef WEFT_SHIM_H
#define WEFT_SHIM_H
#include <stddef.h>
#include <stdint.h>

/* Most statuses that one call asks for. */
#define WEFT_DMA_STATUSES_MAX 64

struct rte_mbuf;
struct rte_mempool;
struct rte_flow;

/* A header of a rule's pattern. */
#define WEFT_HEADER_MAX 40
struct weft_header {
    uint16_t kind; /* WEFT_HEADER_* */
    uint16_t any;  /* not 0: neither spec nor mask is given */
    uint8_t spec[WEFT_HEADER_MAX]; /* as on the wire */
    uint8_t mask[WEFT_HEADER_MAX];
};
enum {
    WEFT_HEADER_ETH,
    WEFT_HEADER_VLAN,
    WEFT_HEADER_IPV4,
    WEFT_HEADER_IPV6,
    WEFT_HEADER_TCP,
    WEFT_HEADER_UDP,
    WEFT_HEADER_SCTP,
    WEFT_HEADER_ICMP,
    WEFT_HEADER_ICMP6,
    WEFT_HEADER_VXLAN,
};
/* What a rule that forwards does to a packet. */
#define WEFT_EDIT_MAX 128
struct weft_edit {
    uint16_t kind; /* WEFT_EDIT_* */
    uint16_t size; /* of bytes */
    uint8_t bytes[WEFT_EDIT_MAX]; /* as on the wire; of a tag: TPID and TCI */
};
enum {
    WEFT_EDIT_MAC_SRC,
    WEFT_EDIT_MAC_DST,
    WEFT_EDIT_IPV4_SRC,
    WEFT_EDIT_IPV4_DST,
    WEFT_EDIT_IPV6_SRC,
    WEFT_EDIT_IPV6_DST,
    WEFT_EDIT_TTL,
    WEFT_EDIT_TP_SRC,
    WEFT_EDIT_TP_DST,
    WEFT_EDIT_POP_VLAN,
    WEFT_EDIT_PUSH_VLAN,
    WEFT_EDIT_VXLAN_DECAP,
    WEFT_EDIT_VXLAN_ENCAP,
};
/* What a driver says of a rule it refuses. */
struct weft_flow_error {
    int32_t type; /* enum rte_flow_error_type */
    char message[124];
};

/* Receives up to n packets; returns how many. The queue must exist and be started. */
uint16_t weft_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n);
/* Sends up to n packets; returns how many the driver took. */
uint16_t weft_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n);
/* All or nothing: 0 on success. Like weft_free_bulk it leaves alone the second line of an mbuf: of one that is free or
 * has no successor, `next` is NULL, and nothing else of it means anything without flags. */
int weft_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **pkts, unsigned int n);
/* Frees n packets (chains too) of any pools. */
void weft_free_bulk(struct rte_mbuf **pkts, unsigned int n);

/* A pool of which each buffer, with its headers, is one page of the system: without hugepages no buffer lies across two
 * pages, and net_af_xdp takes it that there are no gaps between buffers. */
struct rte_mempool *weft_page_pool(const char *name, unsigned int n, unsigned int cache, int numa);
/* This thread's rte_errno. */
int weft_errno(void);
/* This thread's lcore id, UINT32_MAX for a thread that EAL does not know. */
uint32_t weft_lcore_id(void);
/* A copy: `from`, `to` and `len` of vhost::Job, which is laid out alike. */
struct weft_job {
    const void *from;
    void *to;
    uint32_t len;
    uint32_t slot;
};
/* Copies that channel 0 of a device takes now. */
uint16_t weft_dma_room(int16_t dev);
/* Enqueues up to n copies; returns how many the driver took, from the first on. */
uint16_t weft_dma_copy(int16_t dev, const struct weft_job *jobs, uint16_t n);
/* Rings the doorbell for what was enqueued. */
void weft_dma_submit(int16_t dev);
/* Copies that were made since the last call, at most n, in the order of their enqueueing; failed: the next one was not,
 * and weft_dma_statuses has to be called. */
uint16_t weft_dma_completed(int16_t dev, uint16_t n, int *failed);
/* As weft_dma_completed, with what became of each; returns how many. */
uint16_t weft_dma_statuses(int16_t dev, uint16_t n, uint32_t *status);
/* Maps memory for all devices of VFIO's default container, under its own addresses, or undoes that. 0, or a negative
 * error number. */
int weft_dma_map(uint64_t at, uint64_t len);
int weft_dma_unmap(uint64_t at, uint64_t len);
/* Sends EAL's log lines to sink(text, length) for good; 0 on success. */
int weft_log_to(void (*sink)(const char *text, size_t len));
/* Counts resets of a port's adapter from now on, and removals, too, if they are wanted; 0 on success. */
int weft_eth_watch(uint16_t port, int removals, uint32_t *count);
/* Nothing is written to count any more. */
void weft_eth_unwatch(uint16_t port, int removals, uint32_t *count);
/* Whom to call when a port's link changes. */
struct weft_link_watch {
    void (*changed)(void *arg);
    void *arg;
};
/* Has DPDK call watch->changed(watch->arg) from now on, mostly on EAL's interrupt thread; 0 on success. The port's
 * configuration asks for the interrupt. */
int weft_eth_watch_link(uint16_t port, struct weft_link_watch *watch);
/* The watch is not used any more. */
void weft_eth_unwatch_link(uint16_t port, struct weft_link_watch *watch);
/* True if a device can interrupt when its link changes. */
int weft_eth_has_link_interrupt(const struct rte_eth_dev_info *info);
/* Has a port send pause frames when its queues are full (rx), heed those it receives (tx), and agree on both with its
 * link's other end (autoneg). 0, or a negative error number; -ENOTSUP: the device has no flow control. */
int weft_eth_flow_control(uint16_t port, int rx, int tx, int autoneg);
/* A rule that marks packets and leaves them to RSS over the first n_queues queues, with hash types rss.
 * 0, or a negative error number. */
int weft_flow_mark(uint16_t port, const struct weft_header *headers, unsigned int n, uint32_t mark,
                   uint16_t n_queues, uint64_t rss, struct rte_flow **flow,
                   struct weft_flow_error *error);
int weft_flow_destroy(uint16_t port, struct rte_flow *flow, struct weft_flow_error *error);
int weft_flow_flush(uint16_t port, struct weft_flow_error *error);
/* A rule that edits and counts packets and sends them to a port of the same adapter, by DPDK's number, or drops them,
 * or leaves them to the host. Of an Ethernet header the lowest bit of byte 14 may say that a tag follows. */
#define WEFT_TO_NOBODY (-1)
#define WEFT_TO_HOST (-2)
int weft_flow_forward(uint16_t port, const struct weft_header *headers, unsigned int n,
                      const struct weft_edit *edits, unsigned int n_edits, int32_t to,
                      struct rte_flow **flow, struct weft_flow_error *error);
int weft_flow_count(uint16_t port, struct rte_flow *flow, uint64_t *packets, uint64_t *bytes,
                    struct weft_flow_error *error);
/* The switch domain that the port is in; negative: none. */
int32_t weft_flow_domain(uint16_t port);

#endif
