/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Open connections without their sockets. To find a segment's socket and its storage
 * costs more than all else that is done to the segment. What an open connection needs
 * is therefore lent out into an array, by tuple; the socket's storage has it before and
 * after. What is not there, or not sure, goes by the socket.
 *
 * The two ways mostly run on two CPUs, and memory that both write goes from one to the
 * other with each segment, which takes longer than the programs. So a connection has a line
 * in each of two arrays. The clock is in one, which only the way out knows. What the way in
 * reads is in the other, and changes only where the clock turns; what the way in writes
 * there, the newest echo, it rounds up, so that it seldom has to. Two arrays, as processors
 * fetch neighbours along.
 *
 * A line belongs to the connection that came first, as long as that sends. A connection
 * that is evicted loses what its clock did meanwhile. Hence the lease: how far T may run
 * before the storage has to be told. A connection that finds its line taken goes on
 * behind the lease, which no segment has passed, and echoes from before count for none.
 *
 * That a claim fails says nothing of whose line it is: who claims it may be about to give it another
 * name. A clock that is lent is lost if its line has another name, and only then. Who evicts takes the
 * name away before the clock.
 *
 * A line whose connection is gone does no harm: without a socket the kernel answers
 * with a reset whatever the echo is, and what opens a connection empties the line.
 */
#ifndef CAUSEWAY_SERVER_TIMESTAMP_CACHE_H
#define CAUSEWAY_SERVER_TIMESTAMP_CACHE_H

#include <bpf/bpf_core_read.h>

#include "../packet/write.h"
#include "cookie.h"

#define TIMESTAMP_CACHE_LINES 65536 /* 4 MiB an array; a power of two */
/* Times that others ask for a line before a connection that sends nothing is evicted. */
#define EVICT_AFTER 64
/* A line is written within some ten nanoseconds, unless the CPU is taken away. */
#define CLAIM_TRIES 16

/* For the way in, and read by both: written where a clock begins or turns. */
struct timestamp_cache_line {
	u64 name;   /* of the connection, see segment_name; 0: free */
	u32 change; /* odd while the rest is written */
	u32 cookie;
	struct cookie_anchor now;
	struct cookie_anchor past;
	u32 lease_t;  /* T may run to here */
	u32 echoed_t; /* no T beyond it has come back this way */
	u16 unit;
	u8 bits;
	u8 adopted;
	u32 pad[5];
};
_Static_assert(sizeof(struct timestamp_cache_line) == 64, "one cache line");

/* The way out's own: the clock of the line with the same index. */
struct timestamp_clock {
	struct cookie_clock clock;
	u32 is_claimed; /* a CPU writes this, or the line */
	u32 asked;      /* others that would have had the line since the last segment out */
	u32 pad[5];
};
_Static_assert(sizeof(struct timestamp_clock) == 64, "one cache line");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* so that values begin on cache lines */
	__uint(max_entries, TIMESTAMP_CACHE_LINES);
	__type(key, u32);
	__type(value, struct timestamp_cache_line);
} timestamp_cache SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TIMESTAMP_CACHE_LINES);
	__type(key, u32);
	__type(value, struct timestamp_clock);
} timestamp_clocks SEC(".maps");

static __always_inline struct timestamp_cache_line *cache_line(u64 name)
{
	u32 index = (u32)name & (TIMESTAMP_CACHE_LINES - 1);

	return bpf_map_lookup_elem(&timestamp_cache, &index);
}

/* The clock of the connection's line, which may be another's by now. */
static __always_inline struct timestamp_clock *clock_at(u64 name)
{
	u32 index = (u32)name & (TIMESTAMP_CACHE_LINES - 1);

	return bpf_map_lookup_elem(&timestamp_clocks, &index);
}

/* The line of the connection with this name; NULL if it has none. */
static __always_inline struct timestamp_cache_line *cache_line_of(u64 name)
{
	struct timestamp_cache_line *line = cache_line(name);

	return line && *(volatile u64 *)&line->name == name ? line : NULL;
}

static __always_inline MUST_USE bool try_to_claim(struct timestamp_clock *own)
{
	return __sync_val_compare_and_swap(&own->is_claimed, 0, 1) == 0;
}

/* Line and clock are this CPU's alone until they are released; false: another has them for long. */
static __noinline int claim(struct timestamp_clock *own)
{
	for (u32 i = 0; own && i < CLAIM_TRIES; i++)
		if (try_to_claim(own))
			return true;
	return false;
}

/* An exchange orders what was written before it; an addition without a result does not. */
static __always_inline void release(struct timestamp_clock *own)
{
	__sync_lock_test_and_set(&own->is_claimed, 0);
}

/* Claims the line if it is this connection's: it may have become another's since it was found. */
static __always_inline MUST_USE bool
claim_of(struct timestamp_cache_line *line, struct timestamp_clock *own, u64 name)
{
	if (!claim(own))
		return false;
	if (*(volatile u64 *)&line->name == name)
		return true;
	release(own);
	return false;
}

/* The newest T that the client has echoed, for the clock: at most a gap less than told. */
static __always_inline void take_echo(const struct timestamp_cache_line *line, struct cookie_clock *clock)
{
	u32 t = *(const volatile u32 *)&line->echoed_t;

	if (cookie_t_diff(t, clock->t, clock->bits) > 0)
		t = clock->t;
	if (cookie_t_diff(t, clock->echoed_t, clock->bits) > 0)
		clock->echoed_t = t;
}

/* The way in reads again what it read meanwhile; the line is claimed. */
static __always_inline void begin_change(struct timestamp_cache_line *line)
{
	__sync_lock_test_and_set(&line->change, line->change + 1);
}

static __always_inline void end_change(struct timestamp_cache_line *line)
{
	__sync_lock_test_and_set(&line->change, line->change + 1);
}

/* Tells the way in how T and the kernel's timestamps belong together. */
static __always_inline void copy_anchors(struct timestamp_cache_line *line, const struct cookie_clock *clock)
{
	line->now = clock->now;
	line->past = clock->past;
	line->unit = clock->unit;
	line->bits = clock->bits;
	line->adopted = clock->adopted;
}

/* Whether the way in knows of the clock's last turn. */
static __always_inline bool
is_published(const struct timestamp_cache_line *line, const struct cookie_clock *clock)
{
	return !((clock->now.o ^ line->now.o) | (clock->now.t ^ line->now.t) | (clock->past.o ^ line->past.o) |
		 (clock->past.t ^ line->past.t));
}

/* Lends an open connection's clock to its line, unless another is at work there. */
static __noinline int lend_clock(struct cookie_socket *state, u64 name)
{
	struct timestamp_cache_line *line = cache_line(name);
	struct timestamp_clock *own = clock_at(name);
	struct cookie_clock clock;
	u32 cookie, lease_t;
	u64 there;

	if (!line || !own)
		return 0;
	there = *(volatile u64 *)&line->name;
	if (there && there != name) {
		own->asked += 1;
		if (own->asked < EVICT_AFTER)
			return 0;
	}
	if (!claim(own))
		return 0;
	bpf_spin_lock(&state->lock);
	clock = state->clock;
	cookie = state->cookie;
	lease_t = cookie_clock_lease(&clock);
	if (state->is_lent || lease_t == clock.t) {
		bpf_spin_unlock(&state->lock);
		release(own);
		return 0;
	}
	state->name = name; /* an agent before this one may have named it otherwise */
	state->lease_t = lease_t;
	state->is_lent = CLOCK_IS_LEAVING;
	bpf_spin_unlock(&state->lock);
	*(volatile u64 *)&line->name = 0;
	begin_change(line);
	own->clock = clock;
	own->asked = 0;
	line->cookie = cookie;
	line->echoed_t = clock.echoed_t;
	line->lease_t = lease_t;
	copy_anchors(line, &clock);
	asm volatile("" ::: "memory");
	*(volatile u64 *)&line->name = name;
	end_change(line);
	/* A connection that began anew meanwhile has another clock. */
	if (__sync_val_compare_and_swap(&state->is_lent, CLOCK_IS_LEAVING, CLOCK_IS_LENT) != CLOCK_IS_LEAVING)
		*(volatile u64 *)&line->name = 0;
	release(own);
	return 0;
}

/*
 * Brings a clock that was lent back into its socket's storage; false: another CPU has it for
 * longer than one can wait. `now_o`: the kernel's TSval now.
 */
static __noinline int take_clock_back(struct cookie_socket *state, u32 now_o)
{
	struct timestamp_cache_line *line = cache_line(state->name);
	struct timestamp_clock *own = clock_at(state->name);
	struct cookie_clock clock;
	bool is_here;

	if (!line || !own)
		return 0;
	if (claim_of(line, own, state->name)) {
		take_echo(line, &own->clock);
		clock = own->clock;
		bpf_spin_lock(&state->lock);
		state->clock = clock;
		state->is_lent = CLOCK_IS_HERE;
		bpf_spin_unlock(&state->lock);
		*(volatile u64 *)&line->name = 0;
		release(own);
		return 1;
	}
	bpf_spin_lock(&state->lock);
	if (*(volatile u32 *)&state->is_lent == CLOCK_IS_LENT && *(volatile u64 *)&line->name != state->name) {
		cookie_clock_resume(&state->clock, now_o, state->lease_t);
		state->is_lent = CLOCK_IS_HERE;
	}
	is_here = state->is_lent == CLOCK_IS_HERE;
	bpf_spin_unlock(&state->lock);
	return is_here;
}

/*
 * T of a clock that another CPU has, or that is on its way to it: what that sends is as new. False: it is with
 * neither any more, and the storage has to be asked again.
 */
static __noinline int lent_t(struct cookie_socket *state, u32 *to)
{
	struct timestamp_cache_line *line = cache_line(state->name);
	struct timestamp_clock *own = clock_at(state->name);
	u64 name = state->name;

	for (u32 i = 0; line && own && i < CLAIM_TRIES; i++) {
		u32 change = *(volatile u32 *)&line->change, t;

		if (change & 1 || *(volatile u64 *)&line->name != name)
			continue;
		t = *(volatile u32 *)&own->clock.t;
		if (*(volatile u64 *)&line->name == name && *(volatile u32 *)&line->change == change) {
			*to = t;
			return 1;
		}
	}
	bpf_spin_lock(&state->lock);
	*to = state->clock.t;
	name = state->is_lent == CLOCK_IS_LEAVING;
	bpf_spin_unlock(&state->lock);
	return (int)name;
}

/* A connection begins, or there is none: what the line holds is of an earlier one. */
static __always_inline void empty_line(u64 name)
{
	struct timestamp_cache_line *line = cache_line_of(name);
	struct timestamp_clock *own = clock_at(name);

	if (!line || !own || !claim_of(line, own, name))
		return;
	*(volatile u64 *)&line->name = 0;
	release(own);
}

/*
 * The kernel's TSval that the segment echoes; 0 if the line does not tell for sure. That T
 * was sent is known by the lease alone: a client that makes one up measures itself wrong.
 */
static __always_inline u32 cached_echo(struct timestamp_cache_line *line, u64 name, u32 tsecr)
{
	u32 change = *(volatile u32 *)&line->change, bits = line->bits & 31, t = tsecr >> bits, o;
	struct cookie_clock clock = {
		.unit = line->unit,
		.bits = bits,
		.adopted = line->adopted,
		.now = line->now,
		.past = line->past,
	};

	if (!bits || change & 1 || (tsecr & cookie_mask(bits)) != line->cookie)
		return 0;
	if (cookie_t_diff(t, line->lease_t, bits) > 0)
		return 0; /* never sent */
	o = cookie_clock_o(&clock, t);
	asm volatile("" ::: "memory");
	if (*(volatile u32 *)&line->change != change || *(volatile u64 *)&line->name != name)
		return 0;
	if (cookie_t_diff(t, line->echoed_t, bits) > 0)
		line->echoed_t = (t + cookie_ack_gap(bits)) & cookie_t_mask(bits);
	return o;
}

/*
 * Writes one half of the timestamp and mends the checksum, both in the headers that
 * have been parsed: half the cost of the helpers. A checksum that is still to be filled
 * in does not cover the options.
 */
static __always_inline MUST_USE bool
write_in_place(struct __sk_buff *skb, const struct segment *seg, u32 offset, u32 old, u32 new, bool is_summed)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	u8 *at = data + CW_MASKED(offset, 0xff);
	u16 *check = data + CW_MASKED(seg->tcp_offset + TCP_CHECK_OFFSET, 0xff);
	u32 old_be = bpf_htonl(old), new_be = bpf_htonl(new);

	if ((void *)(at + 4) > end || (void *)(check + 1) > end)
		return false;
	__builtin_memcpy(at, &new_be, sizeof(new_be));
	if (!is_summed)
		return true;
	if ((offset ^ seg->tcp_offset) & 1) { /* see write_timestamp */
		old_be = old_be << 8 | old_be >> 24;
		new_be = new_be << 8 | new_be >> 24;
	}
	*check = csum_fold((u64)(u16)~*check + (u16)~old_be + (u16)~(old_be >> 16) + (u16)new_be + (new_be >> 16));
	return true;
}

/* The segment of an open connection that is known here. */
static __always_inline MUST_USE bool restore_by_cache(struct __sk_buff *skb, const struct segment *seg, u64 name)
{
	struct timestamp_cache_line *line = cache_line_of(name);
	u32 echo;

	if (!line)
		return false;
	if (seg->tcp_flags & EST_TCP_SYN)
		empty_line(name);
	if (seg->tcp_flags & (EST_TCP_SYN | EST_TCP_FIN | EST_TCP_RST) || !seg->ts_offset || !seg->tsecr)
		return false;
	echo = cached_echo(line, name, seg->tsecr);
	/* A checksum that the NIC has yet to fill in is not checked on this machine. */
	if (!echo || !write_in_place(skb, seg, seg->ts_offset + 4, seg->tsecr, echo, true))
		return false;
	count_event(SC_RESTORED_QUICKLY);
	return true;
}

#define CHECKSUM_PARTIAL 3

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sk_buff {
	__u8 ip_summed : 2;
};
#pragma clang attribute pop

void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

/*
 * Puts TSval into a segment that a full socket sends. Its checksum is nearly always
 * still to be filled in; kernels before 6.2 do not tell, and their helpers have to.
 */
static __always_inline void write_tsval(struct __sk_buff *skb, const struct segment *seg, u32 tsval)
{
	if (bpf_cast_to_kern_ctx) {
		struct sk_buff *kernels = bpf_cast_to_kern_ctx(skb);
		bool is_summed = BPF_CORE_READ_BITFIELD(kernels, ip_summed) != CHECKSUM_PARTIAL;

		if (write_in_place(skb, seg, seg->ts_offset, seg->tsval, tsval, is_summed))
			return;
	}
	write_timestamp(skb, seg, seg->ts_offset, seg->tsval, tsval);
}

/*
 * What the segment may do to T. The socket says more, which costs: data ask it only while
 * it matters. The kernel counts data as sent when they are.
 */
__noinline int segment_kind(struct __sk_buff *skb, const struct segment *seg, const struct cookie_clock *clock)
{
	struct bpf_sock *sk = skb->sk;
	struct tcp_sock *tp;

	if (!seg || !clock)
		return COOKIE_MOVES;
	if (!seg->is_bare && !cookie_clock_is_busy(clock, seg->tsval))
		return COOKIE_MOVES;
	tp = sk ? bpf_skc_to_tcp_sock(sk) : NULL;
	if (seg->is_bare)
		return tp && is_receiving_cpu(tp) ? COOKIE_RECEIVING_ACK : COOKIE_ACK;
	return tp && seg->seq == tp->snd_nxt ? COOKIE_DATA : COOKIE_MOVES;
}

/* The same way out: T by the clock in the line, as far as the lease goes. */
static __always_inline MUST_USE bool stamp_by_cache(struct __sk_buff *skb, const struct segment *seg, u64 name)
{
	struct timestamp_cache_line *line = cache_line_of(name);
	struct timestamp_clock *own = clock_at(name);
	u32 t, bits, cookie;
	enum cookie_segment kind;

	if (!line || !own || !seg->ts_offset || seg->tcp_flags & (EST_TCP_SYN | EST_TCP_FIN | EST_TCP_RST))
		return false;
	kind = segment_kind(skb, seg, &own->clock);
	if (!try_to_claim(own))
		return false;
	bits = own->clock.bits & 31;
	if (*(volatile u64 *)&line->name != name ||
	    cookie_t_diff(line->lease_t, own->clock.t, bits) < (s32)cookie_period(bits)) {
		release(own);
		return false;
	}
	take_echo(line, &own->clock);
	t = cookie_clock_stamp_kind(&own->clock, seg->tsval, kind);
	if (!is_published(line, &own->clock)) {
		begin_change(line);
		copy_anchors(line, &own->clock);
		end_change(line);
	}
	cookie = line->cookie;
	if (own->asked)
		own->asked = 0;
	release(own);
	write_tsval(skb, seg, t << bits | cookie);
	count_event(SC_STAMPED);
	return true;
}

#endif
