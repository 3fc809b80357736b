/* The engine's side: when a batch is done by the model, and who copies. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_debug.h>
#include <rte_malloc.h>
#include <rte_pause.h>

#include "engine.h"

/* Looks of an idle thread before it sleeps, and how long. */
#define LOOKS_MAX 2000
#define SLEEP_NS 20000
/* `slow` meets one batch of so many. */
#define SLOW_EVERY 1000

int
engine_setup(struct engine *e, uint32_t descs)
{
	const struct config *c = &e->config;
	double hz = (double)rte_get_tsc_hz();
	uint32_t batches = rte_align32pow2(c->wq + 1);

	engine_free(e);
	descs = rte_align32pow2(descs);
	e->jobs = rte_zmalloc(NULL, descs * sizeof *e->jobs, LINE);
	e->batches = rte_zmalloc(NULL, batches * sizeof *e->batches, LINE);
	if (!e->jobs || !e->batches) {
		engine_free(e);
		return -ENOMEM;
	}
	e->mask = descs - 1;
	e->batches_mask = batches - 1;
	e->cycles_per_byte = hz / (c->gbps * 1e9);
	e->cycles_per_desc = (uint64_t)(c->tdesc_ns * hz / 1e9);
	e->latency_cycles = (uint64_t)(c->latency_ns * hz / 1e9);
	e->slow_cycles = (uint64_t)(c->slow_us * hz / 1e6);
	return 0;
}

void
engine_free(struct engine *e)
{
	rte_free(e->jobs);
	rte_free(e->batches);
	e->jobs = NULL;
	e->batches = NULL;
}

/* Is memory mapped there? */
static bool
is_mapped(rte_iova_t at, uint32_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uintptr_t begin = at & ~(page - 1), end = at + len;

	for (uintptr_t p = begin; p < end; p += page) {
		unsigned char in;

		if (mincore((void *)p, page, &in))
			return false;
	}
	return true;
}

/* Does one copy, or not: its status. */
static uint16_t
work(struct engine *e, const struct job *j, bool failed)
{
	const struct config *c = &e->config;
	uint64_t began;

	e->looked_at++;
	if (failed && j->fence)
		return RTE_DMA_STATUS_NOT_ATTEMPTED;
	if (!j->src)
		return RTE_DMA_STATUS_INVALID_SRC_ADDR;
	if (!j->dst)
		return RTE_DMA_STATUS_INVALID_DST_ADDR;
	if (c->error && e->looked_at % c->error == 0)
		return (uint16_t)c->code;
	if (!c->sva && !(vfio_holds(j->src, j->len) && vfio_holds(j->dst, j->len)))
		return RTE_DMA_STATUS_INVALID_ADDR;
	if (c->check && !(is_mapped(j->src, j->len) && is_mapped(j->dst, j->len)))
		rte_panic("dma_weftemu: a copy from %#lx to %#lx of %u bytes: not mapped\n", j->src, j->dst, j->len);
	if (c->mode == MODE_NULL)
		return RTE_DMA_STATUS_SUCCESSFUL;
	began = rte_rdtsc();
	memcpy((void *)(uintptr_t)j->dst, (const void *)(uintptr_t)j->src, j->len);
	e->copy_cycles += rte_rdtsc() - began;
	return RTE_DMA_STATUS_SUCCESSFUL;
}

/* Does a batch's copies. False: it hangs. */
static bool
work_batch(struct engine *e, uint32_t end)
{
	bool failed = false;
	uint32_t i;

	for (i = e->done; i != end; i++) {
		struct job *j = &e->jobs[i & e->mask];

		if (e->config.hang && e->looked_at + 1 >= e->config.hang) {
			__atomic_store_n(&e->hung, true, __ATOMIC_RELAXED);
			return false;
		}
		j->status = work(e, j, failed);
		failed |= j->status != RTE_DMA_STATUS_SUCCESSFUL;
		if (failed && j->status == RTE_DMA_STATUS_SUCCESSFUL && j->fence)
			j->status = RTE_DMA_STATUS_NOT_ATTEMPTED;
	}
	e->done = end;
	return true;
}

static bool
is_stopping(const struct engine *e)
{
	return __atomic_load_n(&e->stopping, __ATOMIC_RELAXED);
}

/* Waits for a time; true: the engine is to stop. */
static bool
wait_until(const struct engine *e, uint64_t due)
{
	while (rte_rdtsc() < due && !is_stopping(e))
		rte_pause();
	return is_stopping(e);
}

static void *
run(void *arg)
{
	const struct timespec nap = { .tv_nsec = SLEEP_NS };
	struct engine *e = arg;
	unsigned int idle = 0;

	prctl(PR_SET_TIMERSLACK, 1000);
	while (!is_stopping(e)) {
		uint32_t in = __atomic_load_n(&e->batches_shown, __ATOMIC_ACQUIRE);
		struct batch b;

		if (e->batches_done == in || e->hung) {
			if (++idle < LOOKS_MAX)
				rte_pause();
			else
				nanosleep(&nap, NULL);
			continue;
		}
		idle = 0;
		b = e->batches[e->batches_done & e->batches_mask];
		if (!work_batch(e, b.end) || wait_until(e, b.due))
			continue;
		__atomic_store_n(&e->batches_done, e->batches_done + 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void
pin(pthread_t thread, int lcore)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(lcore, &set);
	if (pthread_setaffinity_np(thread, sizeof set, &set))
		LOG(WARNING, "cannot run on core %d\n", lcore);
}

int
engine_start(struct engine *e)
{
	e->enqueued = e->submitted = e->reported = 0;
	e->batches_in = e->batches_shown = e->batches_done = e->done = 0;
	e->busy_until = 0;
	e->wanted = e->hung = e->stopping = false;
	if (e->config.mode != MODE_THREAD)
		return 0;
	if (pthread_create(&e->thread, NULL, run, e))
		return -EAGAIN;
	pthread_setname_np(e->thread, "dma-weftemu");
	if (e->config.lcore >= 0)
		pin(e->thread, e->config.lcore);
	e->running = true;
	return 0;
}

/* When this returns nothing more is written. */
void
engine_stop(struct engine *e)
{
	__atomic_store_n(&e->stopping, true, __ATOMIC_RELAXED);
	if (e->running)
		pthread_join(e->thread, NULL);
	e->running = false;
}

/* Hands over what was enqueued, if a place in the work queue is free. */
void
engine_submit(struct engine *e)
{
	uint32_t done = __atomic_load_n(&e->batches_done, __ATOMIC_ACQUIRE);
	uint64_t now, cycles = 0;

	e->wanted = false;
	if (e->submitted == e->enqueued)
		return;
	if (e->batches_in - done >= e->config.wq) {
		e->wanted = true;
		return;
	}
	for (uint32_t i = e->submitted; i != e->enqueued; i++) {
		uint64_t bytes = (uint64_t)(e->jobs[i & e->mask].len * e->cycles_per_byte);

		cycles += RTE_MAX(bytes, e->cycles_per_desc);
	}
	now = rte_rdtsc();
	if (e->slow_cycles && e->doorbells % SLOW_EVERY == SLOW_EVERY - 1)
		cycles += e->slow_cycles;
	e->busy_until = RTE_MAX(now + e->latency_cycles, e->busy_until) + cycles;
	e->modelled_cycles += cycles;
	e->batches[e->batches_in & e->batches_mask] = (struct batch){ .end = e->enqueued, .due = e->busy_until };
	e->stats.submitted += e->enqueued - e->submitted;
	e->submitted = e->enqueued;
	e->doorbells++;
	__atomic_store_n(&e->batches_shown, ++e->batches_in, __ATOMIC_RELEASE);
	while (e->config.doorbell_cycles && rte_rdtsc() - now < e->config.doorbell_cycles)
		;
}

void
engine_look(struct engine *e)
{
	if (e->config.mode != MODE_THREAD && e->batches_done != e->batches_in && !e->hung) {
		uint64_t now = rte_rdtsc();

		while (e->batches_done != e->batches_in) {
			const struct batch *b = &e->batches[e->batches_done & e->batches_mask];

			if (now < b->due || !work_batch(e, b->end))
				break;
			e->batches_done++;
		}
	}
	if (e->wanted)
		engine_submit(e);
}
