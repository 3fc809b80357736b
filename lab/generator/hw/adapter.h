/* An emulated adapter's flow rules (rte_flow).
 *
 * args.c     the arguments hw...
 * layers.c   where a frame's headers are
 * pattern.c  from items to a pattern, and whether a frame fits it
 * actions.c  from actions to a verdict
 * rules.c    the rules that there are, and which of two wins
 * columns.c  which flow numbers a pattern means, by arithmetic
 * queue.c    how a change reaches a receive queue
 * bulk.c     packets that the adapter forwards, by arithmetic
 * rx.c       receive with rules
 * same.c     rules that are there already, and masks that exclude each other
 * fault.c    what goes wrong with it, and what is looked after from time to time
 * ports.c    ports that share an adapter
 * flow.c     rte_flow's operations
 * life.c     the adapter's coming and going */
#ifndef HW_ADAPTER_H
#define HW_ADAPTER_H

#include <pthread.h>

#include <rte_flow_driver.h>
#include <rte_spinlock.h>

#include "weftgen.h"

/* Headers, outer ones first; the inner ones behind a VXLAN header follow in the same order. */
enum layer {
	LAYER_ETH, LAYER_VLAN, LAYER_VLAN2, LAYER_IPV4, LAYER_IPV6, LAYER_FRAG6,
	LAYER_TCP, LAYER_UDP, LAYER_SCTP, LAYER_ICMP, LAYER_ICMP6, LAYER_VXLAN, LAYERS,
};
#define LAYERS_ALL (2 * LAYERS)

struct layers {
	uint32_t present; /* a bit per layer that is there as a whole */
	uint16_t at[LAYERS_ALL];
};

/* 32 bits of a header: as they lie in the packet. */
struct test {
	uint8_t layer, offset;
	uint32_t value, mask;
};

/* 16 bits of a header that lie between two numbers. */
struct range {
	uint8_t layer, offset;
	uint16_t mask, low, high; /* host byte order */
};

#define TESTS_MOST 64

/* Which frames a rule is about. */
struct pattern {
	uint32_t need, forbid; /* layers */
	uint16_t n;
	bool ranged;
	struct range range;
	struct test tests[TESTS_MOST]; /* a stored pattern has only n */
};

enum {
	VERDICT_MARK = 1, /* with a number; flagged too */
	VERDICT_FLAG = 2,
	VERDICT_DROP = 4,
	VERDICT_COUNT = 8,
	VERDICT_FORWARD = 16, /* to another port of the adapter, or out of this one */
	VERDICT_JUMP = 32,
};

#define PORTS_MOST 32

/* What becomes of a packet. */
struct verdict {
	uint32_t mark; /* of a jump: the group */
	uint16_t flags;
	uint8_t to;   /* a port's place in the adapter */
	int16_t grow; /* bytes more, by headers that come and go */
};

struct hits {
	uint64_t packets, bytes;
};

struct rule {
	struct device *device; /* of the port it was made on; NULL: no rule */
	struct pattern *pattern;
	struct verdict verdict;
	uint32_t generation; /* part of the handle: it outlives the rule */
	uint32_t priority, group;
	bool transfer;
	uint64_t sequence; /* when it was made */
	uint64_t change;   /* the first that queues were told of it */
	bool shadowed;     /* somewhere another rule wins */
	uint32_t next;     /* slot, among rules of the same hash */
	uint32_t place;    /* in its port's list */
	struct hits told;  /* at the last query that reset */
	uint32_t age_s;    /* AGE's timeout; 0: none */
	bool aged, age_told;
	void *age_context;
	uint64_t age_packets, age_tsc; /* when they last grew */
};

/* What a rule's actions are. */
struct act {
	struct verdict verdict;
	uint32_t age_s;
	void *age_context;
};

/* The number that decides which rules a packet fits. All packets with the same one are alike to
 * all rules. */
enum column { COLUMN_NONE, COLUMN_RULE, COLUMN_MAC, COLUMN_SOURCE, COLUMN_FLOW, COLUMN_BYTES };

/* What one receive queue knows: for each number of its column the mark, or the rule's slot if
 * rules do more than mark. */
struct table {
	enum column column;
	bool general;
	uint32_t n;
	uint32_t n_host;          /* cells whose packets reach the host */
	struct verdict *verdicts; /* by slot */
	uint64_t *since;          /* by cell: packets that passed when it got its verdict */
	uint64_t *host;           /* a bit per cell: its packets reach the host */
	uint32_t cells[];
};

/* A change on its way to a receive queue. */
struct change {
	struct change *next;
	uint64_t from_packets, from_tsc;
	uint64_t sequence;
	struct table *table, *old; /* all cells at once, or ... */
	uint32_t slot;             /* ... if not 0, its verdict, or ... */
	struct verdict verdict;
	uint32_t cell, value; /* ... one cell */
};

/* A receive queue's side. */
struct hw_queue {
	struct hw *hw;
	struct table *table;
	struct change *last; /* that was made */
	uint64_t seen;       /* packets that came in, dropped ones too */
	uint64_t made;       /* sequence of the last change that was made */
	struct hits *hits, *base; /* by slot */
	uint64_t bulk; /* packets that passed: the p-th is of flow p mod the queue's flows */
	struct hits to[PORTS_MOST]; /* forwarded so far, without what is due by arithmetic */
	struct hits dropped;
	rte_spinlock_t lock; /* of `since`, `hits`, `to` and the table against who adds them up */
	uint64_t pass_clock, passes, over; /* what the ceiling lets pass, and not; 32 bits of fraction */
	/* The control side's. */
	struct change *first, *end;
};

/* One port's side. */
struct hw {
	struct device *device;
	struct adapter *adapter;
	struct sampler *sampler;
	enum column column;
	uint32_t n_cells, n_general, n_shadowed, n_ages;
	uint32_t jumps[2][4]; /* rules that lead to a group, ingress and transfer */
	uint32_t place;       /* among the adapter's ports */
	uint32_t resets, creates;
	struct hits to_before[PORTS_MOST], dropped_before; /* until the last stop */
	bool gone;
	uint32_t n_rules, *slots; /* of its rules */
	uint32_t *winners; /* by cell: the slot */
	bool started, isolated;
	uint16_t n_queues;
	uint64_t changes;
	struct hw_queue *queues[MAX_QUEUES];
};

/* What ports share. Its lock is held in every call. */
struct adapter {
	pthread_mutex_t lock;
	char name[32];
	uint16_t domain;
	uint32_t n_ports;
	struct hw *ports[PORTS_MOST];
	uint32_t capacity, n_rules;
	uint32_t n_slots, *free, n_free, next_free;
	uint64_t sequence, ready_tsc;
	struct rule *rules; /* by slot; slot 0 is no rule */
	uint32_t *chains;   /* by hash, as many as slots: the first rule's slot */
};

/* args.c: false if the key is not of an adapter; *ret is then not touched. */
bool hw_config_parse(struct hw_config *config, const char *key, const char *value, int *ret);

/* layers.c */
void layers_of(struct layers *layers, const uint8_t *bytes, uint32_t length);

/* pattern.c: 0, or a negative errno with *error set. */
int pattern_of(struct pattern *pattern, const struct hw_config *config, bool widen, const struct rte_flow_item *items,
	       struct rte_flow_error *error);
bool pattern_fits(const struct pattern *pattern, const struct layers *layers, const uint8_t *bytes);
/* Four bytes of a header as one number, most significant byte first. */
void pattern_word(const struct pattern *pattern, uint32_t layer, uint32_t offset, uint32_t *value, uint32_t *mask);

/* actions.c: 0, or a negative errno with *error set. */
int act_of(struct act *act, const struct hw *hw, const struct rte_flow_attr *attr,
	   const struct rte_flow_action *actions, struct rte_flow_error *error);
/* Does it more than mark? */
bool verdict_general(const struct verdict *verdict);

/* columns.c */
struct sampler *sampler_new(struct device *device);
void sampler_free(struct sampler *sampler);
enum column column_of(const struct device *device, const struct pattern *pattern);
enum column column_join(const struct device *device, enum column a, enum column b);
uint32_t column_cells(const struct device *device, enum column column);
/* Calls visit with every cell whose packets fit the pattern. */
void column_visit(struct hw *hw, enum column column, const struct pattern *pattern,
		  void (*visit)(void *context, uint32_t cell), void *context);
/* Do this cell's packets fit the pattern? */
bool column_fits(struct hw *hw, uint32_t cell, const struct pattern *pattern);

/* rules.c: these change what is received, too. */
void rules_add(struct hw *hw, uint32_t slot);
void rules_remove(struct hw *hw, uint32_t slot);
void rules_flush(struct hw *hw);
/* Is it in group 0, or does a rule there lead to its group? */
bool rule_active(const struct hw *hw, const struct rule *rule);
/* The slot of the rule that wins; 0: none. */
uint32_t rules_winner(const struct hw *hw, const uint8_t *bytes, uint32_t length);

/* queue.c */
int hw_queue_setup(struct hw *hw, struct hw_queue *queue);
void hw_queue_free(struct hw_queue *queue);
void queues_change_cell(struct hw *hw, uint32_t cell, uint32_t slot);
/* The slot's verdict; its counts begin. */
void queues_change_slot(struct hw *hw, uint32_t slot);
void queues_change_all(struct hw *hw);
/* The rule's packets in queues that know it. */
struct hits queues_hits(struct hw *hw, uint32_t slot);
void queue_make_changes(struct hw_queue *queue, uint64_t now, bool at_once);

/* life.c, which is ethdev.c's side */
int hw_open(struct device *device);
void hw_close(struct device *device);
int hw_start(struct device *device, uint16_t n_queues);
void hw_stop(struct device *device);

extern const struct rte_flow_ops hw_flow_ops;
void hw_remove_all(struct hw *hw);

/* bulk.c: are the queue's flows such that what is forwarded can be computed? */
bool bulk_possible(const struct rx_queue *queue);
/* Lets pass what came due until n packets reached the host; their flows are then planned. */
uint32_t bulk_pass(struct rx_queue *queue, struct plan *plan, uint32_t n, uint64_t now);
/* Of the packets that passed in bulk: how many of a cell since it got its verdict. */
uint64_t bulk_count(const struct hw *hw, uint32_t queue, const struct table *table, uint32_t cell, uint64_t bulk);
/* A cell's verdict ends; all verdicts do. */
void bulk_settle(struct hw_queue *queue, uint32_t cell);
void bulk_settle_all(struct hw_queue *queue, struct table *next);
/* What all ports of the adapter forwarded to one of them; what a port's rules dropped. */
struct hits bulk_delivered(const struct adapter *adapter, uint32_t place);
struct hits bulk_dropped(const struct hw *hw);
/* The port stops: keeps what its queues know. */
void bulk_keep(struct hw *hw);
uint32_t frame_bytes(const struct rx_queue *queue);

/* fault.c */
/* Are marks of some packets to be lost or wrong? */
bool fault_of_marks(const struct hw *hw);
int fault_of_create(struct hw *hw);
bool fault_of_effect(const struct hw *hw);
void fault_marks(struct rx_queue *queue, struct rte_mbuf **packets, uint32_t n);
void watch_start(struct hw *hw);
void watch_stop(struct hw *hw);
void hw_refresh(struct hw *hw);

/* same.c: 0, or a negative errno with *error set if there is such a rule, or masks are too many. */
int same_check(const struct hw *hw, const struct pattern *pattern, const struct rte_flow_attr *attr,
	       struct rte_flow_error *error);
void same_add(struct adapter *adapter, uint32_t slot);
void same_remove(struct adapter *adapter, uint32_t slot);

/* ports.c */
struct adapter *adapter_join(struct hw *hw);
void adapter_leave(struct hw *hw);
/* The place of the port with DPDK's number; -1: none of this adapter. */
int adapter_place(const struct adapter *adapter, uint32_t port);

/* rx.c */
uint16_t weftgen_rx_hw(void *queue, struct rte_mbuf **packets, uint16_t n);

#endif
