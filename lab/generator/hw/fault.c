/* What goes wrong: words in the `stats` file, which may be written at any time. And what is
 * looked after ten times a second, by the thread that EAL has for a driver's interrupts: resets,
 * ages, counters in the file. */
#include <errno.h>

#include <ethdev_driver.h>
#include <rte_alarm.h>
#include <rte_cycles.h>

#include "adapter.h"

#define WATCH_US 100000

/* Are marks of some packets to be lost or wrong? */
bool
fault_of_marks(const struct hw *hw)
{
	const volatile struct hw_faults *f = &hw->device->counters->faults;

	return f->lose_per_mille | f->wrong_per_mille | f->other_per_mille;
}

/* The errno of a create that is to fail, or 0. */
int
fault_of_create(struct hw *hw)
{
	const volatile struct hw_faults *f = &hw->device->counters->faults;
	int code = f->create_errno ? f->create_errno : EIO;

	hw->creates++;
	if (f->refuse_above && hw->n_rules >= f->refuse_above)
		return code;
	return f->fail_every && hw->creates % f->fail_every == 0 ? code : 0;
}

/* Is the rule that was made last to be without effect? */
bool
fault_of_effect(const struct hw *hw)
{
	const volatile struct hw_faults *f = &hw->device->counters->faults;

	return f->void_every && hw->creates % f->void_every == 0;
}

/* Takes marks away, or changes their lowest or their ninth bit, of so many packets per mille. */
void
fault_marks(struct rx_queue *q, struct rte_mbuf **packets, uint32_t n)
{
	struct device *d = q->hw->hw->device;
	const volatile struct hw_faults *f = &d->counters->faults;
	uint32_t lost = 0, wrong = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct rte_mbuf *m = packets[i];
		uint32_t draw = (random_at(&q->order) >> 32) * 1000 >> 32;

		if (!(m->ol_flags & RTE_MBUF_F_RX_FDIR_ID))
			continue;
		if (draw < f->lose_per_mille) {
			m->ol_flags = q->ol_flags;
			lost++;
		} else if (draw < f->lose_per_mille + f->wrong_per_mille) {
			m->hash.fdir.hi ^= 1;
			wrong++;
		} else if (draw < f->lose_per_mille + f->wrong_per_mille + f->other_per_mille) {
			m->hash.fdir.hi ^= 1 << 8;
			wrong++;
		}
	}
	__atomic_fetch_add(&d->counters->hw.lost_marks, lost, __ATOMIC_RELAXED);
	__atomic_fetch_add(&d->counters->hw.wrong_marks, wrong, __ATOMIC_RELAXED);
}

/* Rules that had no packet for so long. True if one is new among them. */
static bool
find_aged(struct hw *hw)
{
	uint64_t now = rte_rdtsc(), hz = rte_get_tsc_hz();
	bool found = false;

	for (uint32_t i = 0; hw->n_ages && i < hw->n_rules; i++) {
		struct rule *r = &hw->adapter->rules[hw->slots[i]];
		uint64_t packets;

		if (!r->age_s)
			continue;
		packets = queues_hits(hw, hw->slots[i]).packets;
		if (packets != r->age_packets) {
			r->age_packets = packets;
			r->age_tsc = now;
			r->aged = r->age_told = false;
		} else if (!r->aged && now - r->age_tsc > r->age_s * hz) {
			r->aged = found = true;
		}
	}
	return found;
}

void
hw_refresh(struct hw *hw)
{
	struct hw_counters *c = &hw->device->counters->hw;
	struct hits hits;

	pthread_mutex_lock(&hw->adapter->lock);
	hits = bulk_delivered(hw->adapter, hw->place);
	c->delivered_packets = hits.packets;
	c->delivered_bytes = hits.bytes;
	hits = bulk_dropped(hw);
	c->dropped_packets = hits.packets;
	pthread_mutex_unlock(&hw->adapter->lock);
}

/* Resets and removals that were asked for. */
static void
take_faults(struct hw *hw, bool *reset, bool *removed)
{
	volatile struct hw_faults *f = &hw->device->counters->faults;

	if (f->reset != hw->resets) {
		LOG(NOTICE, "port %u was reset: its %u rules are gone\n", hw->device->port, hw->n_rules);
		hw->resets = f->reset;
		hw_remove_all(hw);
		*reset = true;
	}
	*removed = f->gone && !hw->gone;
	hw->gone = f->gone;
}

/* Sets the link of a started port; true: it changed. */
static bool
take_link(struct hw *hw, struct rte_eth_dev *dev)
{
	volatile struct hw_faults *f = &hw->device->counters->faults;
	bool up = !f->link_down, was_up = dev->data->dev_link.link_status == RTE_ETH_LINK_UP;

	if (!dev->data->dev_started || up == was_up)
		return false;
	dev->data->dev_link.link_status = up ? RTE_ETH_LINK_UP : RTE_ETH_LINK_DOWN;
	return true;
}

static void
watch(void *context)
{
	struct hw *hw = context;
	struct rte_eth_dev *dev = &rte_eth_devices[hw->device->port];
	bool reset = false, removed = false, aged;

	pthread_mutex_lock(&hw->adapter->lock);
	take_faults(hw, &reset, &removed);
	aged = find_aged(hw);
	pthread_mutex_unlock(&hw->adapter->lock);
	if (*hw->device->config.stats)
		hw_refresh(hw);
	if (take_link(hw, dev) && dev->data->dev_conf.intr_conf.lsc)
		rte_eth_dev_callback_process(dev, RTE_ETH_EVENT_INTR_LSC, NULL);
	if (reset)
		rte_eth_dev_callback_process(dev, RTE_ETH_EVENT_INTR_RESET, NULL);
	if (removed)
		rte_eth_dev_callback_process(dev, RTE_ETH_EVENT_INTR_RMV, NULL);
	if (aged)
		rte_eth_dev_callback_process(dev, RTE_ETH_EVENT_FLOW_AGED, NULL);
	rte_eal_alarm_set(WATCH_US, watch, hw);
}

void
watch_start(struct hw *hw)
{
	rte_eal_alarm_set(WATCH_US, watch, hw);
}

void
watch_stop(struct hw *hw)
{
	rte_eal_alarm_cancel(watch, hw);
}
