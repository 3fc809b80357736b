/*
 * A stand-in for VFIO's default container, for engines that do not use the CPU's page tables (sva=0): it remembers what
 * was mapped. It takes the place of EAL's functions where this object is preloaded (LD_PRELOAD); else nothing is mapped.
 */
#include <errno.h>
#include <pthread.h>

#include <rte_errno.h>
#include <rte_memory.h>
#include <rte_vfio.h>

#include "engine.h"

/* As many as EAL keeps of a container. */
#define MAPS_MAX 256

static struct {
	uintptr_t at;
	size_t len;
} maps[MAPS_MAX];
static unsigned int n_maps;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int
failed(int error)
{
	rte_errno = error;
	return -1;
}

int
rte_vfio_container_dma_map(int container, uint64_t vaddr, uint64_t iova, uint64_t len)
{
	int ret = 0;

	if (container != RTE_VFIO_DEFAULT_CONTAINER_FD || vaddr != iova || !len)
		return failed(EINVAL);
	pthread_mutex_lock(&lock);
	for (unsigned int i = 0; i < n_maps; i++)
		if (vaddr < maps[i].at + maps[i].len && maps[i].at < vaddr + len)
			ret = EEXIST;
	if (!ret && n_maps == MAPS_MAX)
		ret = ENOMEM;
	if (!ret) {
		maps[n_maps].at = vaddr;
		maps[n_maps++].len = len;
	}
	pthread_mutex_unlock(&lock);
	return ret ? failed(ret) : 0;
}

int
rte_vfio_container_dma_unmap(int container, uint64_t vaddr, uint64_t iova, uint64_t len)
{
	bool found = false;

	pthread_mutex_lock(&lock);
	for (unsigned int i = 0; i < n_maps && !found; i++)
		if (maps[i].at == vaddr && maps[i].len == len && vaddr == iova) {
			maps[i] = maps[--n_maps];
			found = true;
		}
	pthread_mutex_unlock(&lock);
	return found && container == RTE_VFIO_DEFAULT_CONTAINER_FD ? 0 : failed(ENOENT);
}

/* The end of what is mapped from an address on, or that address. */
static uintptr_t
end_of_map(uintptr_t at)
{
	for (unsigned int i = 0; i < n_maps; i++)
		if (at - maps[i].at < maps[i].len)
			return maps[i].at + maps[i].len;
	return at;
}

bool
vfio_holds(uintptr_t at, size_t len)
{
	uintptr_t end = at + len, next;

	/* EAL maps its own memory. */
	if (rte_mem_virt2memseg((void *)at, NULL))
		return true;
	pthread_mutex_lock(&lock);
	while (at < end && (next = end_of_map(at)) != at)
		at = next;
	pthread_mutex_unlock(&lock);
	return at >= end;
}
