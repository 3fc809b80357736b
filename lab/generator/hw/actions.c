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

/* A port of the same adapter, or the host's own side of this one. */
static int
read_port(struct act *act, const struct hw *hw, uint32_t port, bool representor, const struct rte_flow_action *action,
	  struct rte_flow_error *error)
{
	int place = adapter_place(hw->adapter, port);

	if (place < 0)
		return refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action, "the port is not on this adapter");
	/* What is sent to a representor reaches the host there; only this port's own packets are
	 * made. */
	if (representor && port != hw->device->port)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action,
			      "the adapter passes packets to the host on the port where they came in");
	if (!representor) {
		act->verdict.flags |= VERDICT_FORWARD;
		act->verdict.to = place;
	}
	return 0;
}

static int
read_to_port(struct act *act, const struct hw *hw, const struct rte_flow_action *action, struct rte_flow_error *error)
{
	const struct rte_flow_action_port_id *id = action->conf;
	const struct rte_flow_action_ethdev *ethdev = action->conf;

	if (!action->conf)
		return refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action, "a port is needed");
	if (action->type == RTE_FLOW_ACTION_TYPE_PORT_ID)
		return read_port(act, hw, id->original ? hw->device->port : id->id, false, action, error);
	return read_port(act, hw, ethdev->port_id, action->type == RTE_FLOW_ACTION_TYPE_PORT_REPRESENTOR, action, error);
}

/* Headers that come and go: what is sent is counted with them. */
static int
read_headers(struct act *act, const struct rte_flow_action *action, struct rte_flow_error *error)
{
	const struct rte_flow_action_raw_encap *encap = action->conf;
	const struct rte_flow_action_raw_decap *decap = action->conf;

	switch (action->type) {
	case RTE_FLOW_ACTION_TYPE_VXLAN_DECAP:
		act->verdict.grow -= 50;
		return 0;
	case RTE_FLOW_ACTION_TYPE_VXLAN_ENCAP:
		act->verdict.grow += 50;
		break;
	case RTE_FLOW_ACTION_TYPE_RAW_ENCAP:
		act->verdict.grow += encap ? RTE_MIN(encap->size, 256u) : 0;
		break;
	case RTE_FLOW_ACTION_TYPE_RAW_DECAP:
		act->verdict.grow -= decap ? RTE_MIN(decap->size, 256u) : 0;
		break;
	case RTE_FLOW_ACTION_TYPE_OF_POP_VLAN:
		act->verdict.grow -= 4;
		return 0;
	default:
		act->verdict.grow += 4;
	}
	return action->conf ? 0 : refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action, "a header is needed");
}

static bool
is_set(enum rte_flow_action_type type)
{
	switch (type) {
	case RTE_FLOW_ACTION_TYPE_SET_MAC_SRC:
	case RTE_FLOW_ACTION_TYPE_SET_MAC_DST:
	case RTE_FLOW_ACTION_TYPE_SET_IPV4_SRC:
	case RTE_FLOW_ACTION_TYPE_SET_IPV4_DST:
	case RTE_FLOW_ACTION_TYPE_SET_IPV6_SRC:
	case RTE_FLOW_ACTION_TYPE_SET_IPV6_DST:
	case RTE_FLOW_ACTION_TYPE_SET_TP_SRC:
	case RTE_FLOW_ACTION_TYPE_SET_TP_DST:
	case RTE_FLOW_ACTION_TYPE_SET_TTL:
	case RTE_FLOW_ACTION_TYPE_OF_SET_VLAN_VID:
	case RTE_FLOW_ACTION_TYPE_OF_SET_VLAN_PCP:
		return true;
	default:
		return false;
	}
}

/* Actions of rules that forward. */
static int
read_transfer(struct act *act, const struct hw *hw, const struct rte_flow_action *action, uint32_t *fates,
	      struct rte_flow_error *error)
{
	switch (action->type) {
	case RTE_FLOW_ACTION_TYPE_PORT_ID:
	case RTE_FLOW_ACTION_TYPE_REPRESENTED_PORT:
	case RTE_FLOW_ACTION_TYPE_PORT_REPRESENTOR:
		++*fates;
		return read_to_port(act, hw, action, error);
	case RTE_FLOW_ACTION_TYPE_VXLAN_ENCAP:
	case RTE_FLOW_ACTION_TYPE_VXLAN_DECAP:
	case RTE_FLOW_ACTION_TYPE_RAW_ENCAP:
	case RTE_FLOW_ACTION_TYPE_RAW_DECAP:
	case RTE_FLOW_ACTION_TYPE_OF_PUSH_VLAN:
	case RTE_FLOW_ACTION_TYPE_OF_POP_VLAN:
		return read_headers(act, action, error);
	case RTE_FLOW_ACTION_TYPE_DEC_TTL:
		return 0;
	default:
		if (!is_set(action->type))
			return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, action,
				      "the adapter does not know this action");
		return action->conf ? 0 :
				      refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action,
					     "a value is needed");
	}
}

/* Actions of rules of the host's side. */
static int
read_ingress(struct act *act, const struct hw *hw, const struct rte_flow_action *action, uint32_t *fates,
	     struct rte_flow_error *error)
{
	switch (action->type) {
	case RTE_FLOW_ACTION_TYPE_MARK:
		return read_mark(&act->verdict, hw, action, error);
	case RTE_FLOW_ACTION_TYPE_FLAG:
		act->verdict.flags |= VERDICT_FLAG;
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

static int
read_jump(struct act *act, const struct hw *hw, const struct rte_flow_attr *attr, const struct rte_flow_action *action,
	  struct rte_flow_error *error)
{
	const struct rte_flow_action_jump *jump = action->conf;

	if (!jump || attr->group || !jump->group || jump->group >= hw->device->config.hw.groups)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action,
			      "rules of group 0 jump, to a group that there is");
	act->verdict.flags |= VERDICT_JUMP;
	act->verdict.mark = jump->group;
	return 0;
}

static int
read_age(struct act *act, const struct rte_flow_action *action, struct rte_flow_error *error)
{
	const struct rte_flow_action_age *age = action->conf;

	if (!age || !age->timeout)
		return refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action, "AGE needs a timeout");
	act->age_s = age->timeout;
	act->age_context = age->context;
	act->verdict.flags |= VERDICT_COUNT;
	return 0;
}

static int
read_action(struct act *act, const struct hw *hw, const struct rte_flow_attr *attr,
	    const struct rte_flow_action *action, uint32_t *fates, struct rte_flow_error *error)
{
	switch (action->type) {
	case RTE_FLOW_ACTION_TYPE_VOID:
		return 0;
	case RTE_FLOW_ACTION_TYPE_COUNT:
		act->verdict.flags |= VERDICT_COUNT;
		return 0;
	case RTE_FLOW_ACTION_TYPE_AGE:
		return read_age(act, action, error);
	case RTE_FLOW_ACTION_TYPE_JUMP:
		++*fates;
		return read_jump(act, hw, attr, action, error);
	case RTE_FLOW_ACTION_TYPE_DROP:
		act->verdict.flags |= VERDICT_DROP;
		++*fates;
		return 0;
	default:
		return attr->transfer ? read_transfer(act, hw, action, fates, error) :
					read_ingress(act, hw, action, fates, error);
	}
}

int
act_of(struct act *act, const struct hw *hw, const struct rte_flow_attr *attr, const struct rte_flow_action *actions,
       struct rte_flow_error *error)
{
	uint32_t fates = 0;

	*act = (struct act){};
	for (const struct rte_flow_action *a = actions; a->type != RTE_FLOW_ACTION_TYPE_END; a++) {
		int ret = read_action(act, hw, attr, a, &fates, error);

		if (ret)
			return ret;
		if (fates > 1)
			return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, a, "a packet has one fate");
	}
	if (!fates && (!act->verdict.flags || attr->transfer))
		return refuse(error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION_NUM, actions, "no fate");
	if (act->verdict.flags & VERDICT_JUMP && act->verdict.flags != VERDICT_JUMP)
		return refuse(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, actions, "a rule that jumps does nothing else");
	return 0;
}

bool
verdict_general(const struct verdict *v)
{
	return !(v->flags & VERDICT_JUMP) && (v->flags != VERDICT_MARK || !v->mark);
}
