/* The C shim: DPDK functions that are inline in the headers, one call per burst. */
#ifndef WEFT_SHIM_H
#define WEFT_SHIM_H
#include <stddef.h>
#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;

/* Receives up to n packets; returns how many. The queue must exist and be started. */
uint16_t weft_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n);
/* Sends up to n packets; returns how many the driver took. */
uint16_t weft_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n);
/* All or nothing: 0 on success. Like weft_free_bulk it leaves alone the second line of an mbuf: of one that is free or
 * has no successor, `next` is NULL, and nothing else of it means anything without flags. */
int weft_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **pkts, unsigned int n);
/* Frees n packets (chains too) of any pools. */
void weft_free_bulk(struct rte_mbuf **pkts, unsigned int n);
/* This thread's rte_errno. */
int weft_errno(void);
/* This thread's lcore id, UINT32_MAX for a thread that EAL does not know. */
uint32_t weft_lcore_id(void);
/* Sends EAL's log lines to sink(text, length) for good; 0 on success. */
int weft_log_to(void (*sink)(const char *text, size_t len));

#endif
