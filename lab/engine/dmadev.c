/* The driver's face towards DPDK. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <bus_vdev_driver.h>
#include <rte_cycles.h>
#include <rte_eal.h>

#include "engine.h"

int engine_log_type;

static struct engine *
engine_of(const struct rte_dma_dev *dev)
{
	return dev->data->dev_private;
}

static int
info_get(const struct rte_dma_dev *dev, struct rte_dma_info *info, uint32_t size)
{
	const struct engine *e = engine_of(dev);

	if (size < sizeof *info)
		return -EINVAL;
	info->dev_capa = RTE_DMA_CAPA_MEM_TO_MEM | RTE_DMA_CAPA_OPS_COPY | RTE_DMA_CAPA_HANDLES_ERRORS;
	if (e->config.sva)
		info->dev_capa |= RTE_DMA_CAPA_SVA;
	info->max_vchans = 1;
	info->max_desc = (uint16_t)e->config.desc;
	info->min_desc = DESCS_MIN;
	info->numa_node = (int16_t)e->config.numa;
	return 0;
}

static int
configure(struct rte_dma_dev *dev, const struct rte_dma_conf *conf, uint32_t size)
{
	return size < sizeof *conf ? -EINVAL : 0;
}

static int
vchan_setup(struct rte_dma_dev *dev, uint16_t vchan, const struct rte_dma_vchan_conf *conf, uint32_t size)
{
	if (size < sizeof *conf)
		return -EINVAL;
	return engine_setup(engine_of(dev), conf->nb_desc);
}

static int
start(struct rte_dma_dev *dev)
{
	struct engine *e = engine_of(dev);

	return e->jobs ? engine_start(e) : -EINVAL;
}

static int
stop(struct rte_dma_dev *dev)
{
	engine_stop(engine_of(dev));
	return 0;
}

static int
dev_close(struct rte_dma_dev *dev)
{
	engine_free(engine_of(dev));
	return 0;
}

static int
vchan_status(const struct rte_dma_dev *dev, uint16_t vchan, enum rte_dma_vchan_status *status)
{
	struct engine *e = engine_of(dev);
	uint32_t done;

	engine_look(e);
	done = __atomic_load_n(&e->batches_done, __ATOMIC_ACQUIRE);
	*status = done == e->batches_in && !e->wanted ? RTE_DMA_VCHAN_IDLE : RTE_DMA_VCHAN_ACTIVE;
	return 0;
}

static int
stats_get(const struct rte_dma_dev *dev, uint16_t vchan, struct rte_dma_stats *stats, uint32_t size)
{
	if (size < sizeof *stats)
		return -EINVAL;
	*stats = engine_of(dev)->stats;
	return 0;
}

static int
stats_reset(struct rte_dma_dev *dev, uint16_t vchan)
{
	memset(&engine_of(dev)->stats, 0, sizeof(struct rte_dma_stats));
	return 0;
}

static int
dump(const struct rte_dma_dev *dev, FILE *f)
{
	const struct engine *e = engine_of(dev);
	static const char *const modes[] = { "thread", "lazy", "null" };

	fprintf(f, "  emulated: mode %s, latency %u ns, %u GB/s, %u ns per copy, %u places, %u cycles per doorbell\n",
		modes[e->config.mode], e->config.latency_ns, e->config.gbps, e->config.tdesc_ns, e->config.wq,
		e->config.doorbell_cycles);
	fprintf(f, "  doorbells %lu, busy by the model %lu cycles, copying %lu cycles%s\n", e->doorbells,
		e->modelled_cycles, e->copy_cycles, e->hung ? ", hangs" : "");
	return 0;
}

static uint16_t
burst_capacity(const void *private, uint16_t vchan)
{
	const struct engine *e = private;
	uint32_t done = __atomic_load_n(&e->batches_done, __ATOMIC_ACQUIRE);
	uint32_t room = e->mask - (e->enqueued - e->reported);
	uint32_t held = e->enqueued - e->submitted;

	if (e->config.full || e->batches_in - done >= e->config.wq)
		return 0;
	return (uint16_t)RTE_MIN(room, e->config.batch > held ? e->config.batch - held : 0);
}

static int
submit(void *private, uint16_t vchan)
{
	engine_submit(private);
	return 0;
}

static int
copy(void *private, uint16_t vchan, rte_iova_t src, rte_iova_t dst, uint32_t length, uint64_t flags)
{
	struct engine *e = private;
	uint32_t at = e->enqueued;

	if (at - e->reported >= e->mask)
		return -ENOSPC;
	e->jobs[at & e->mask] = (struct job){
		.src = src, .dst = dst, .len = length, .fence = flags & RTE_DMA_OP_FLAG_FENCE,
	};
	e->enqueued = at + 1;
	if (flags & RTE_DMA_OP_FLAG_SUBMIT)
		engine_submit(e);
	return (uint16_t)at;
}

/* Copies that may be reported: those of batches that are done. */
static uint32_t
ready(struct engine *e)
{
	uint32_t done;

	engine_look(e);
	done = __atomic_load_n(&e->batches_done, __ATOMIC_ACQUIRE);
	if (done == 0)
		return 0;
	/* A batch's place is used again only when all before it were reported: this one is the last that is done. */
	return e->batches[(done - 1) & e->batches_mask].end - e->reported;
}

static uint16_t
completed(void *private, uint16_t vchan, const uint16_t max, uint16_t *last, bool *has_error)
{
	struct engine *e = private;
	uint32_t n = 0, most = RTE_MIN(ready(e), (uint32_t)max);

	while (n < most && e->jobs[(e->reported + n) & e->mask].status == RTE_DMA_STATUS_SUCCESSFUL)
		n++;
	*has_error = n < most;
	e->reported += n;
	e->stats.completed += n;
	*last = (uint16_t)(e->reported - 1);
	return (uint16_t)n;
}

static uint16_t
completed_status(void *private, uint16_t vchan, const uint16_t max, uint16_t *last, enum rte_dma_status_code *status)
{
	struct engine *e = private;
	uint32_t most = RTE_MIN(ready(e), (uint32_t)max);

	for (uint32_t n = 0; n < most; n++) {
		status[n] = e->jobs[(e->reported + n) & e->mask].status;
		e->stats.errors += status[n] != RTE_DMA_STATUS_SUCCESSFUL;
	}
	e->reported += most;
	e->stats.completed += most;
	*last = (uint16_t)(e->reported - 1);
	return (uint16_t)most;
}

static const struct rte_dma_dev_ops ops = {
	.dev_info_get = info_get,
	.dev_configure = configure,
	.dev_start = start,
	.dev_stop = stop,
	.dev_close = dev_close,
	.vchan_setup = vchan_setup,
	.vchan_status = vchan_status,
	.stats_get = stats_get,
	.stats_reset = stats_reset,
	.dev_dump = dump,
};

static int
probe(struct rte_vdev_device *vdev)
{
	const char *name = rte_vdev_device_name(vdev);
	struct rte_dma_dev *dev;
	struct config config;
	struct engine *e;

	if (rte_eal_process_type() != RTE_PROC_PRIMARY || !name)
		return -EINVAL;
	if (args_read(rte_vdev_device_args(vdev), &config))
		return -EINVAL;
	dev = rte_dma_pmd_allocate(name, config.numa, sizeof *e);
	if (!dev)
		return -ENOMEM;
	e = dev->data->dev_private;
	e->config = config;
	dev->device = &vdev->device;
	dev->dev_ops = &ops;
	dev->fp_obj->dev_private = e;
	dev->fp_obj->copy = copy;
	dev->fp_obj->submit = submit;
	dev->fp_obj->completed = completed;
	dev->fp_obj->completed_status = completed_status;
	dev->fp_obj->burst_capacity = burst_capacity;
	dev->state = RTE_DMA_DEV_READY;
	return 0;
}

static int
remove_dev(struct rte_vdev_device *vdev)
{
	const char *name = rte_vdev_device_name(vdev);
	int id = name ? rte_dma_get_dev_id_by_name(name) : -1;

	if (id < 0)
		return -EINVAL;
	rte_dma_stop((int16_t)id);
	return rte_dma_pmd_release(name);
}

static struct rte_vdev_driver driver = {
	.probe = probe,
	.remove = remove_dev,
	.drv_flags = RTE_VDEV_DRV_NEED_IOVA_AS_VA,
};

RTE_PMD_REGISTER_VDEV(dma_weftemu, driver);
RTE_LOG_REGISTER(engine_log_type, lab.engine, NOTICE);
