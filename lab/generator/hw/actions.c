/* From rte_flow's actions to a verdict. */
#include <errno.h>

#include "adapter.h"

static int
refuse(struct rte_flow_error *error, int code, enum rte_flow_error_type type, const void *cause, const char *message)
{
	return rte_flow_error_set(error, code, type, cause, message);
}

static int
read_mark(struct verdict *v, const struct hw *hw, const struct rte_flow_action *action, struct rte_flow_error *error)
{
	const struct rte_flow_action_mark *mark = action->conf;
	uint32_t bits = hw->device->config.hw.mark_bits;

	if (!mark)
		return refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action, "MARK needs a number");
	if (bits < 32 && (!mark->id || mark->id >= (1u << bits) - 1))
		return refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action,
			      "the adapter has no such mark");
	v->mark = mark->id;
	v->flags |= VERDICT_MARK;
	return 0;
}

/* A queue that is not the one where the packet comes anyway is refused: each queue makes its own
 * packets. */
static int
read_queue(const struct hw *hw, const struct rte_flow_action *action, struct rte_flow_error *error)
{
	const struct rte_flow_action_queue *queue = action->conf;

	if (!queue || queue->index >= hw->device->n_rx)
		return refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action, "no such queue");
	if (hw->device->n_rx > 1)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, action,
			      "with several queues the adapter spreads packets by RSS only");
	return 0;
}

/* The port's own spreading is all there is: every queue, in order. */
static int
read_rss(const struct hw *hw, const struct rte_flow_action *action, struct rte_flow_error *error)
{
	const struct rte_flow_action_rss *rss = action->conf;
	bool own;

	if (!rss)
		return refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action, "RSS needs queues");
	own = rss->queue_num == hw->device->n_rx || (!rss->queue_num && !rss->queue);
	for (uint32_t i = 0; i < rss->queue_num && own; i++)
		own = rss->queue[i] == i;
	if (!own)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action,
			      "RSS goes to all of the port's queues, in order");
	if (rss->level > 1)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action,
			      "RSS is of outer headers");
	if (!rss->types && hw->device->n_rx > 1)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action,
			      "RSS of no type would send all packets to one queue");
	return 0;
}

static int
read_action(struct verdict *v, const struct hw *hw, const struct rte_flow_action *action, uint32_t *fates,
	    struct rte_flow_error *error)
{
	switch (action->type) {
	case RTE_FLOW_ACTION_TYPE_VOID:
		return 0;
	case RTE_FLOW_ACTION_TYPE_MARK:
		return read_mark(v, hw, action, error);
	case RTE_FLOW_ACTION_TYPE_FLAG:
		v->flags |= VERDICT_FLAG;
		return 0;
	case RTE_FLOW_ACTION_TYPE_COUNT:
		v->flags |= VERDICT_COUNT;
		return 0;
	case RTE_FLOW_ACTION_TYPE_DROP:
		v->flags |= VERDICT_DROP;
		++*fates;
		return 0;
	case RTE_FLOW_ACTION_TYPE_PASSTHRU:
		++*fates;
		return 0;
	case RTE_FLOW_ACTION_TYPE_QUEUE:
		++*fates;
		return read_queue(hw, action, error);
	case RTE_FLOW_ACTION_TYPE_RSS:
		++*fates;
		return read_rss(hw, action, error);
	default:
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, action,
			      "the adapter does not know this action");
	}
}

int
verdict_of(struct verdict *v, const struct hw *hw, const struct rte_flow_action *actions, struct rte_flow_error *error)
{
	uint32_t fates = 0;

	*v = (struct verdict){};
	for (const struct rte_flow_action *a = actions; a->type != RTE_FLOW_ACTION_TYPE_END; a++) {
		int ret = read_action(v, hw, a, &fates, error);

		if (ret)
			return ret;
		if (fates > 1)
			return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, a, "a packet has one fate");
	}
	if (!fates && !v->flags)
		return refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION_NUM, actions, "no action");
	return 0;
}

bool
verdict_general(const struct verdict *v)
{
	return v->flags != VERDICT_MARK || !v->mark;
}
