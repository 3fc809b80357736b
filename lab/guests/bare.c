/* Guests without drivers: rings and buffers, and nothing else to wait for. All of them run on this core.
 * Usage: bare-guests split|packed echo|sink|source=BYTES COUNTERS SOCKET...
 *   echo    swaps buffers between its two rings: every packet leaves by the ring it would leave by
 *   sink    counts and gives the buffer back
 *   source  sends packets of so many bytes, zeros as the memory has, as fast as they are taken
 * A guest listens on each SOCKET (vhost-user). It reads one word of each packet, kicks nobody and wants no calls. Its
 * buffers hold a frame of 1518 bytes, or have the size of WEFT_GUEST_BUFFER, bytes. Its memory is
 * of hugepages if there are any; only of hugepages with WEFT_GUEST_PAGES=huge, and never with WEFT_GUEST_PAGES=small.
 * COUNTERS is a file like that of the generator's argument `stats`; guest i counts as transmit queue i mod 16. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/virtio_ring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define SIZE 1024
#define BURST 64
#define MAX_GUESTS 64
#define QUEUES 16
#define GUEST_PHYSICAL 0x100000000ull
/* Bytes of the virtio-net header. */
#define HEADER 12

/* As in lab/generator/weftgen.h. */
struct counters {
	char magic[8];
	uint64_t tsc_hz, n_rx, n_tx, unused[4];
	uint64_t rx[QUEUES][8], tx[QUEUES][8];
	uint64_t latency[QUEUES][256];
};

/* One ring of either layout, and which buffer each of its ids has. */
struct ring {
	union {
		struct vring_desc *desc;
		struct vring_packed_desc *slots;
	};
	struct vring_avail *avail;
	struct vring_used *used;
	uint16_t flags; /* of every descriptor */
	uint16_t put, got; /* counted through; modulo SIZE a place, and SIZE's bit says which lap */
	uint32_t buffer[SIZE];
	uint16_t idle[SIZE], first, n_idle; /* ids whose buffer is ours; first in, first out, so that they stay in order */
};

struct guest {
	uint8_t *memory;
	struct ring in, out;
	uint64_t *counter;
};

static int packed, echo;
/* Bytes that a source puts into a buffer, header and frame; 0: no source. */
static uint32_t made;
/* Bytes of a buffer. An odd number of lines, so that buffers spread over the cache. */
static uint32_t room = 1600;
static uint64_t memory_size;

static void
fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Gives the device the buffer of `id`; a split ring shows it with `show`. */
static inline void
put(struct ring *r, uint16_t id, uint32_t len)
{
	uint16_t at = r->put % SIZE, lap = r->put / SIZE & 1;

	if (packed) {
		r->slots[at].addr = GUEST_PHYSICAL + r->buffer[id];
		r->slots[at].len = len;
		r->slots[at].id = id;
		__atomic_store_n(&r->slots[at].flags, r->flags | (lap ? 1 << VRING_PACKED_DESC_F_USED : 1 << VRING_PACKED_DESC_F_AVAIL),
				 __ATOMIC_RELEASE);
	} else {
		r->desc[id] = (struct vring_desc){GUEST_PHYSICAL + r->buffer[id], len, r->flags, 0};
		r->avail->ring[at] = id;
	}
	r->put++;
}

static inline void
show(struct ring *r)
{
	if (!packed)
		__atomic_store_n(&r->avail->idx, r->put, __ATOMIC_RELEASE);
}

static inline void
add_idle(struct ring *r, uint16_t id)
{
	r->idle[(r->first + r->n_idle++) % SIZE] = id;
}

static inline uint16_t
take_idle(struct ring *r)
{
	r->n_idle--;
	return r->idle[r->first++ % SIZE];
}

/* Takes back up to `max` buffers that the device has used. */
static inline unsigned
get(struct ring *r, unsigned max, uint16_t *ids, uint32_t *lens)
{
	unsigned n = 0;

	if (!packed) {
		uint16_t ready = __atomic_load_n(&r->used->idx, __ATOMIC_ACQUIRE) - r->got;

		for (max = ready < max ? ready : max; n < max; n++, r->got++) {
			ids[n] = r->used->ring[r->got % SIZE].id % SIZE;
			lens[n] = r->used->ring[r->got % SIZE].len;
		}
		return n;
	}
	for (; n < max; n++, r->got++) {
		struct vring_packed_desc *slot = &r->slots[r->got % SIZE];
		uint16_t flags = __atomic_load_n(&slot->flags, __ATOMIC_ACQUIRE);
		int avail = flags >> VRING_PACKED_DESC_F_AVAIL & 1, used = flags >> VRING_PACKED_DESC_F_USED & 1;

		if (avail != used || used == (r->got / SIZE & 1))
			break;
		ids[n] = slot->id % SIZE;
		lens[n] = slot->len;
	}
	return n;
}

/* A source writes the first word of each packet, as who makes packets does. */
static inline void
send_all(struct guest *g)
{
	uint16_t ids[BURST];
	uint32_t lens[BURST];
	unsigned n = get(&g->out, BURST, ids, lens);

	for (unsigned i = 0; i < n; i++)
		add_idle(&g->out, ids[i]);
	if (!g->out.n_idle)
		return;
	for (n = g->out.n_idle < BURST ? g->out.n_idle : BURST; n; n--) {
		uint16_t id = take_idle(&g->out);

		*(volatile uint32_t *)(g->memory + g->out.buffer[id] + HEADER) = id;
		put(&g->out, id, made);
		++*(volatile uint64_t *)g->counter;
	}
	show(&g->out);
}

static inline void
serve(struct guest *g)
{
	uint16_t ids[BURST], done[BURST];
	uint32_t lens[BURST], unused[BURST], sum = 0;
	unsigned n = get(&g->in, BURST, ids, lens), freed;

	if (!n)
		return;
	for (unsigned i = 0; i < n; i++)
		__builtin_prefetch(g->memory + g->in.buffer[ids[i]]);
	while (echo && g->out.n_idle < n && (freed = get(&g->out, BURST, done, unused)))
		for (unsigned i = 0; i < freed; i++)
			add_idle(&g->out, done[i]);
	for (unsigned i = 0; i < n; i++) {
		uint16_t id = ids[i];
		uint32_t full = g->in.buffer[id];

		sum += *(volatile uint32_t *)(g->memory + full);
		if (echo && g->out.n_idle) {
			uint16_t out = take_idle(&g->out);

			g->in.buffer[id] = g->out.buffer[out];
			g->out.buffer[out] = full;
			put(&g->out, out, lens[i]);
		}
		put(&g->in, id, room);
	}
	show(&g->out);
	show(&g->in);
	*(volatile uint64_t *)g->counter += n;
}

/* Lays a ring out at `*at`, all its buffers idle. */
static void
lay_out(struct ring *r, uint8_t **at, uint32_t buffers, uint16_t flags)
{
	r->desc = (void *)*at;
	r->avail = (void *)(*at + 16 * SIZE);
	r->used = (void *)(*at + 20 * SIZE);
	*at += 32 * SIZE;
	r->flags = flags;
	/* No calls. For a packed ring the same place holds the driver's event area. */
	if (packed)
		((uint16_t *)r->avail)[1] = VRING_PACKED_EVENT_FLAG_DISABLE;
	else
		r->avail->flags = VRING_AVAIL_F_NO_INTERRUPT;
	for (uint32_t i = 0; i < SIZE; i++) {
		r->buffer[i] = buffers + i * room;
		add_idle(r, i);
	}
}

/* One message to the switch, with a descriptor unless it is negative; `reply`: eight bytes come back. */
static uint64_t
say(int fd, uint32_t request, const void *payload, uint32_t size, int pass, int reply)
{
	struct { uint32_t request, flags, size; uint8_t payload[64]; } __attribute__((packed)) m = {request, 1, size, {0}};
	char control[CMSG_SPACE(sizeof pass)] = {0};
	struct iovec iov = {&m, 12 + size};
	struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
	uint64_t answer = 0;

	memcpy(m.payload, payload, size);
	if (pass >= 0) {
		h.msg_control = control;
		h.msg_controllen = sizeof control;
		*CMSG_FIRSTHDR(&h) = (struct cmsghdr){CMSG_LEN(sizeof pass), SOL_SOCKET, SCM_RIGHTS};
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&h)), &pass, sizeof pass);
	}
	if (sendmsg(fd, &h, MSG_NOSIGNAL) != (ssize_t)iov.iov_len)
		fail("vhost-user");
	if (reply) {
		if (recv(fd, &m, 20, MSG_WAITALL) != 20)
			fail("vhost-user reply");
		memcpy(&answer, m.payload, sizeof answer);
	}
	return answer;
}

enum { GET_FEATURES = 1, SET_FEATURES, SET_OWNER, SET_MEM_TABLE = 5, SET_NUM = 8, SET_ADDR, SET_BASE, SET_KICK = 12,
       SET_CALL, GET_PROTOCOL = 15, SET_PROTOCOL, SET_ENABLE = 18 };

static void
offer_ring(int fd, uint32_t i, struct ring *r)
{
	uint32_t num[2] = {i, SIZE}, base[2] = {i, packed ? 1 << 15 : 0}, on[2] = {i, 1};
	uint64_t index = i;
	struct { uint32_t i, flags; void *desc, *used, *avail, *log; } addr = {i, 0, r->desc, r->used, r->avail, NULL};

	say(fd, SET_NUM, num, sizeof num, -1, 0);
	say(fd, SET_BASE, base, sizeof base, -1, 0);
	say(fd, SET_ADDR, &addr, sizeof addr, -1, 0);
	say(fd, SET_CALL, &index, sizeof index, eventfd(0, 0), 0);
	say(fd, SET_KICK, &index, sizeof index, eventfd(0, 0), 0);
	say(fd, SET_ENABLE, on, sizeof on, -1, 0);
}

/* Features: protocol features, version 1, and packed rings if wanted; as Linux does, not the one for buffers in order. */
static void
negotiate(int fd)
{
	uint64_t want = 1ull << 30 | 1ull << 32, offered = say(fd, GET_FEATURES, NULL, 0, -1, 1), none = 0;

	if (packed)
		want |= 1ull << 34;
	if ((offered & want) != want) {
		fprintf(stderr, "bare-guests: offered are only features %llx\n", (unsigned long long)offered);
		exit(1);
	}
	say(fd, SET_OWNER, NULL, 0, -1, 0);
	say(fd, GET_PROTOCOL, NULL, 0, -1, 1);
	say(fd, SET_PROTOCOL, &none, sizeof none, -1, 0);
	say(fd, SET_FEATURES, &want, sizeof want, -1, 0);
}

static int
listen_on(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strncpy(a.sun_path, path, sizeof a.sun_path - 1);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 1))
		fail(path);
	return fd;
}

/* Memory that can be shared, of the pages that are asked for. */
static int
memory_of(uint64_t size, uint8_t **at)
{
	const char *pages = getenv("WEFT_GUEST_PAGES");
	int only_huge = pages && !strcmp(pages, "huge"), only_small = pages && !strcmp(pages, "small");

	for (int flags = MFD_CLOEXEC | (only_small ? 0 : MFD_HUGETLB); ; flags = MFD_CLOEXEC) {
		int fd = memfd_create("guest", flags);

		if (fd >= 0 && !ftruncate(fd, size) &&
		    (*at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0)) != MAP_FAILED)
			return fd;
		if (only_huge || flags == MFD_CLOEXEC)
			fail("guest memory");
		close(fd);
	}
}

/* Waits for the switch and gives it the guest's memory and rings. */
static void
start(struct guest *g, int listener)
{
	uint8_t *at;
	int fd = accept(listener, NULL, NULL), memory = memory_of(memory_size, &at);

	if (fd < 0)
		fail("accept");
	g->memory = at;
	lay_out(&g->in, &at, 128 << 10, VRING_DESC_F_WRITE);
	lay_out(&g->out, &at, (128 << 10) + SIZE * room, 0);
	while (g->in.n_idle)
		put(&g->in, take_idle(&g->in), room);
	show(&g->in);
	negotiate(fd);
	struct { uint32_t n, padding; uint64_t guest, size, user, offset; } table = {
		1, 0, GUEST_PHYSICAL, memory_size, (uintptr_t)g->memory, 0};
	say(fd, SET_MEM_TABLE, &table, sizeof table, memory, 0);
	offer_ring(fd, 0, &g->in);
	offer_ring(fd, 1, &g->out);
}

static uint64_t
nanoseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint64_t
tsc_hz(void)
{
	uint64_t ns = nanoseconds(), tsc = __rdtsc();

	usleep(50000);
	tsc = __rdtsc() - tsc;
	return tsc * 1e9 / (nanoseconds() - ns);
}

static struct counters *
map_counters(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	struct counters *c;

	if (fd < 0 || ftruncate(fd, sizeof *c) ||
	    (c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
		fail(path);
	memcpy(c->magic, "weftgen1", sizeof c->magic);
	c->tsc_hz = tsc_hz();
	c->n_tx = QUEUES;
	return c;
}

int
main(int argc, char **argv)
{
	static struct guest guests[MAX_GUESTS];
	int listeners[MAX_GUESTS], n = argc - 4;
	struct counters *counters;

	if (n < 1 || n > MAX_GUESTS || (strcmp(argv[1], "split") && strcmp(argv[1], "packed")) ||
	    (strcmp(argv[2], "echo") && strcmp(argv[2], "sink") && sscanf(argv[2], "source=%u", &made) != 1)) {
		fprintf(stderr, "usage: bare-guests split|packed echo|sink|source=BYTES COUNTERS SOCKET... (up to %d)\n", MAX_GUESTS);
		return 2;
	}
	packed = !strcmp(argv[1], "packed");
	echo = !strcmp(argv[2], "echo");
	if (getenv("WEFT_GUEST_BUFFER"))
		room = (atoi(getenv("WEFT_GUEST_BUFFER")) + 63) / 64 * 64 | 64;
	if (made && (made += HEADER) > room) {
		fprintf(stderr, "bare-guests: a buffer holds %u bytes\n", room - HEADER);
		return 2;
	}
	memory_size = ((128 << 10) + 2ull * SIZE * room + (2 << 20) - 1) >> 21 << 21;
	counters = map_counters(argv[3]);
	for (int i = 0; i < n; i++)
		listeners[i] = listen_on(argv[4 + i]);
	for (int i = 0; i < n; i++) {
		guests[i].counter = &counters->tx[i % QUEUES][0];
		start(&guests[i], listeners[i]);
	}
	for (;;)
		for (int i = 0; i < n; i++)
			made ? send_all(&guests[i]) : serve(&guests[i]);
}
