/* What the bindings are generated from; see generate.sh. */
#include <rte_config.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_version.h>
#include <rte_log.h>
#include <rte_lcore.h>
#include <rte_dev.h>
#include <rte_bus.h>
#include <rte_malloc.h>
#include <rte_mempool.h>
#include <rte_mbuf.h>
#include <rte_ethdev.h>
#include <rte_vhost.h>
#include <rte_dmadev.h>

/* Sets of flags that the headers write as macros bindgen cannot evaluate. */
static const uint64_t WEFT_RSS = RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_TCP;
static const uint64_t WEFT_RX_CHECKSUMS = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM |
    RTE_ETH_RX_OFFLOAD_TCP_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
static const uint64_t WEFT_DMA_COPIES = RTE_DMA_CAPA_MEM_TO_MEM | RTE_DMA_CAPA_OPS_COPY;
static const uint64_t WEFT_DMA_SVA = RTE_DMA_CAPA_SVA;
