/* What the arguments hw... say: which adapter is emulated. README.md has the list. */
#ifndef HW_CONFIG_H
#define HW_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

/* The lag is what waits in the receive ring at the instant of a change. */
#define LAG_OF_RING UINT32_MAX

/* What becomes of a mask that has some bits of a field. */
enum widen { WIDEN_NOT, WIDEN_REFUSE, WIDEN_SILENTLY };

struct hw_config {
	bool on;
	bool transfer;      /* rules that forward */
	bool no_partial;    /* no marks */
	bool keep;          /* rules survive a stop */
	bool vlan;          /* has_vlan counts; else it is accepted and ignored */
	enum widen widen;
	uint32_t masks;     /* distinct masks per type of packet, 0: no limit */
	uint32_t pps;       /* packets per second that the adapter forwards, 0: no limit */
	uint32_t vf;        /* of a representor: which one */
	bool representor;
	char adapter[32];   /* ports of one adapter share its rules and forward to each other */
	bool check;         /* every packet's bytes are matched too, and compared */
	uint32_t rules;     /* capacity */
	int full_errno;     /* of the first create beyond it */
	uint32_t rate;      /* creates and destroys per second, 0: no limit */
	uint32_t delay_us;  /* of each of them */
	uint32_t async_us;  /* from its end to its effect */
	uint32_t lag;       /* packets per queue that were classified before a change, and come after it */
	uint32_t mark_bits; /* marks are 1 to 2^mark_bits - 2; 0 too with 32 bits */
	uint32_t groups, priorities;
};

#endif
