/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The way back without a socket. To find a segment's socket and its storage costs more
 * than all else that is done to the segment. What restores an open connection's echoes
 * is therefore copied into an array by tuple: the socket's side puts it there and
 * renews it with each segment out, the way in only reads it. What is not there, or not
 * sure, goes by the socket.
 *
 * Only open connections are here: what begins or ends one takes it out. A copy that is
 * behind its connection, or belongs to one whose socket is gone, does no harm: an echo
 * newer than the copy goes by the socket, and without a socket the kernel answers with
 * a reset whatever the echo is.
 */
#ifndef CAUSEWAY_COOKIE_QUICK_H
#define CAUSEWAY_COOKIE_QUICK_H

#include "cookie_server.h"
#include "csum.h"

#define QUICK_CLOCKS 65536 /* 4 MiB; a power of two */

/* One cache line. */
struct quick_clock {
	u64 name;   /* of the connection, see segment_name; 0: nobody's */
	u32 change; /* odd while the copy is being renewed */
	u32 cookie;
	struct cookie_clock clock;
	u32 echoed_t; /* newest T that has come back this way */
	u32 pad[3];
};
_Static_assert(sizeof(struct quick_clock) == 64, "one cache line");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* so that values begin on cache lines */
	__uint(max_entries, QUICK_CLOCKS);
	__type(key, u32);
	__type(value, struct quick_clock);
} quick_clocks SEC(".maps");

/* The copy of the connection with this name; NULL without one. */
static __always_inline struct quick_clock *quick_of(u64 name)
{
	u32 index = (u32)name & (QUICK_CLOCKS - 1);
	struct quick_clock *quick = bpf_map_lookup_elem(&quick_clocks, &index);

	return quick && quick->name == name ? quick : NULL;
}

/* An open connection that came by its socket: its next segment comes the quick way. */
static __always_inline void put_quick(struct cookie_socket *state, u64 name)
{
	u32 index = (u32)name & (QUICK_CLOCKS - 1);
	struct quick_clock *quick = bpf_map_lookup_elem(&quick_clocks, &index);
	struct cookie_clock clock;
	u32 cookie;

	if (!quick)
		return;
	bpf_spin_lock(&state->lock);
	state->name = name; /* an agent before this one may have named it otherwise */
	clock = state->clock;
	cookie = state->cookie;
	bpf_spin_unlock(&state->lock);
	quick->name = 0;
	__sync_fetch_and_add(&quick->change, 1);
	quick->clock = clock;
	quick->cookie = cookie;
	quick->echoed_t = clock.echoed_t;
	__sync_fetch_and_add(&quick->change, 1);
	quick->name = name;
}

/* A segment goes out: what the client has echoed, for the clock. */
static __always_inline u32 echoed_by(const struct quick_clock *quick, const struct cookie_clock *clock)
{
	u32 t = quick->echoed_t;

	if (cookie_t_diff(t, clock->echoed_t, clock->bits) > 0 && cookie_t_diff(clock->t, t, clock->bits) >= 0)
		return t;
	return clock->echoed_t;
}

/* The clock has moved. Segments of one socket go out one at a time. */
static __always_inline void renew_quick(struct quick_clock *quick, const struct cookie_clock *clock)
{
	__sync_fetch_and_add(&quick->change, 1);
	quick->clock = *clock;
	__sync_fetch_and_add(&quick->change, 1);
}

/*
 * The kernel's TSval that the segment echoes; 0 if the copy does not tell for sure. The
 * place may have become another connection's since it was found, with a clock that
 * would read the echo, too: hence the name once more.
 */
static __always_inline u32 quick_echo(struct quick_clock *quick, u64 name, u32 tsecr)
{
	u32 change = *(volatile u32 *)&quick->change;
	struct cookie_clock clock = quick->clock;
	u32 bits = clock.bits & 31, t = tsecr >> bits, o;

	if (!bits || change & 1 || (tsecr & cookie_mask(bits)) != quick->cookie)
		return 0;
	if (cookie_t_diff(t, clock.t, bits) > 0)
		return 0; /* sent since the copy was made */
	o = cookie_clock_echo(&clock, t, clock.last_o);
	asm volatile("" ::: "memory");
	if (*(volatile u32 *)&quick->change != change || *(volatile u64 *)&quick->name != name)
		return 0;
	if (cookie_t_diff(t, quick->echoed_t, bits) > 0)
		quick->echoed_t = t;
	return o;
}

/*
 * Writes the echo and mends the checksum, both in the headers that have been parsed:
 * half the cost of the helpers. A checksum that the card would still fill in is not
 * looked at on this machine any more.
 */
static __always_inline MUST_USE bool write_echo(struct __sk_buff *skb, const struct segment *seg, u32 echo)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	u8 *at = data + CW_MASKED(seg->ts_offset + 4, 0xff);
	u16 *check = data + CW_MASKED(seg->tcp_offset + TCP_CHECK_OFFSET, 0xff);
	u32 old_be = bpf_htonl(seg->tsecr), new_be = bpf_htonl(echo);

	if ((void *)(at + 4) > end || (void *)(check + 1) > end)
		return false;
	__builtin_memcpy(at, &new_be, sizeof(new_be));
	if ((seg->ts_offset ^ seg->tcp_offset) & 1) { /* see write_timestamp */
		old_be = old_be << 8 | old_be >> 24;
		new_be = new_be << 8 | new_be >> 24;
	}
	*check = csum_fold((u64)(u16)~*check + (u16)~old_be + (u16)~(old_be >> 16) + (u16)new_be + (new_be >> 16));
	return true;
}

/* The segment of an open connection that is known here. */
static __always_inline MUST_USE bool restore_quickly(struct __sk_buff *skb, const struct segment *seg, u64 name)
{
	struct quick_clock *quick = quick_of(name);
	u32 echo;

	if (!quick)
		return false;
	if (seg->tcp_flags & (EST_TCP_SYN | EST_TCP_FIN | EST_TCP_RST)) {
		quick->name = 0;
		return false;
	}
	if (!seg->ts_offset || !seg->tsecr)
		return false;
	echo = quick_echo(quick, name, seg->tsecr);
	if (!echo || !write_echo(skb, seg, echo))
		return false;
	count_event(SC_RESTORED_QUICKLY);
	return true;
}

#endif
