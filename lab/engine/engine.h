/* The lab's emulated copy engine: what its files share. */
#ifndef ENGINE_H
#define ENGINE_H
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <rte_dmadev_pmd.h>
#include <rte_log.h>

#define DESCS_MIN 32
#define DESCS_MAX 4096
#define WQ_MAX 1024
#define LINE 64

extern int engine_log_type;
#define LOG(level, ...) rte_log(RTE_LOG_##level, engine_log_type, "dma_weftemu: " __VA_ARGS__)

/* Who copies: a thread; the caller, inside `completed`; nobody. */
enum mode { MODE_THREAD, MODE_LAZY, MODE_NULL };

/* What the arguments say; see README.md. */
struct config {
	enum mode mode;
	int32_t lcore;
	int32_t numa;
	uint32_t latency_ns;
	uint32_t gbps;
	uint32_t tdesc_ns;
	uint32_t doorbell_cycles;
	uint32_t wq;
	uint32_t batch;
	uint32_t desc;
	uint32_t error;
	uint32_t code;
	uint32_t hang;
	uint32_t slow_us;
	uint32_t sva;
	uint32_t full;
	uint32_t check;
};

struct job {
	rte_iova_t src;
	rte_iova_t dst;
	uint32_t len;
	uint16_t status;
	bool fence;
};

/* What one submit handed over; it is done as a whole. */
struct batch {
	uint32_t end;
	uint64_t due;
};

/*
 * One engine. All indices count on and wrap at 2^32; the place in a ring is the low bits. The caller of the data path
 * owns the first part, whoever copies the second, and each reads the other's index.
 */
struct engine {
	struct config config;
	struct job *jobs;
	uint32_t mask;
	/* Copies enqueued, handed over, and reported; batches handed over. */
	uint32_t enqueued;
	uint32_t submitted;
	uint32_t reported;
	uint32_t batches_in;
	/* When the last batch that was handed over is done; cycles. */
	uint64_t busy_until;
	bool wanted;
	struct batch *batches;
	uint32_t batches_mask;
	double cycles_per_byte;
	uint64_t cycles_per_desc;
	uint64_t latency_cycles;
	uint64_t slow_cycles;
	struct rte_dma_stats stats;
	uint64_t doorbells;
	uint64_t modelled_cycles;

	/* Batches that the engine's side may see, and those that are done; copies that were looked at. */
	uint32_t batches_shown __rte_aligned(2 * LINE);
	uint32_t batches_done __rte_aligned(2 * LINE);
	uint32_t done;
	uint64_t looked_at;
	uint64_t copy_cycles;
	bool hung;
	bool stopping;
	bool running;
	pthread_t thread;
};

/* args.c: reads the device's arguments; 0, or a negative errno after a line in the log. */
int args_read(const char *text, struct config *config);

/* vfio.c: does an engine without the CPU's page tables reach this memory? */
bool vfio_holds(uintptr_t at, size_t len);

/* model.c: the engine's side. */
int engine_setup(struct engine *e, uint32_t descs);
int engine_start(struct engine *e);
void engine_stop(struct engine *e);
void engine_free(struct engine *e);
/* Hands over what was enqueued. */
void engine_submit(struct engine *e);
/* Lets an engine without a thread work as far as it is due, and hands over what waits for a place. */
void engine_look(struct engine *e);

#endif
