/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The ring of send times of outstanding requests, oldest first.
 *
 * A time is 16 bits in a unit of 4.1 us, 131 us or 4.2 ms (level 0 to 2), so
 * the ring tells ages up to 251 ms, 8 s or 4 min apart. An age beyond the range
 * would come out short, and a slow server would look fast. Hence the invariant:
 * whoever adds a time names the moment of the ring's next use, and the level is
 * raised, and the ring re-encoded, until the oldest entry fits at that moment.
 * The level falls back when the ring is empty.
 */
#ifndef CAUSEWAY_WINDOW_CHAIN_RING_H
#define CAUSEWAY_WINDOW_CHAIN_RING_H

#include "window_chain_state.h"

#define WC_RING_SPAN 0xf000u /* units; a sixteenth below the wrap */

CW_INLINE u32 wc_level_shift(u32 level)
{
#ifdef __bpf__ /* a sum would take eight bytes of the meter's stack */
	return level == 0 ? 12 : level == 1 ? 17 : 22;
#else
	return 12 + 5 * level;
#endif
}

CW_INLINE u32 wc_level_for(u64 span_ns)
{
	if (span_ns < (u64)WC_RING_SPAN << 12)
		return 0;
	return span_ns < (u64)WC_RING_SPAN << 17 ? 1 : 2;
}

/* t in ring units, rounded to the nearest; only the low 16 bits count. */
CW_INLINE u32 wc_ring_time(u64 t_ns, u32 shift)
{
	return (u32)((t_ns + (1ull << (shift - 1))) >> shift);
}

CW_INLINE u16 *wc_ring_slot(struct wc_state *s, u32 i)
{
	return &s->ring[CW_MASKED(s->ring_head + i, WC_RING - 1)];
}

/* Age at t of the i-th oldest entry, which must exist. */
CW_INLINE u64 wc_ring_age(struct wc_state *s, u64 t_ns, u32 i)
{
	u32 shift = wc_level_shift(s->ring_level);

	return (u64)(u16)(wc_ring_time(t_ns, shift) - *wc_ring_slot(s, i)) << shift;
}

CW_INLINE void wc_ring_clear(struct wc_state *s)
{
	s->ring_len = 0;
}

/* Forget the c oldest entries. */
CW_INLINE void wc_ring_drop(struct wc_state *s, u32 c)
{
	u32 len = s->ring_len;

	c = CW_MIN(c, len);
	s->ring_head = (u8)((s->ring_head + c) & (WC_RING - 1));
	s->ring_len = (u8)(len - c);
}

/* Sum of the ages at t of the c oldest entries; c is at most ring_len. */
CW_GLOBAL u64 wc_ring_sum(struct wc_state *s, u64 t_ns, u32 c)
{
	u64 total = 0;

	if (!s)
		return 0;
	for (u32 i = 0; i < WC_RING; i++) {
		if (i >= c)
			break;
		total += wc_ring_age(s, t_ns, i);
	}
	return total;
}

/*
 * The same with off_ns added to each, and in `out` which they are, but for the youngest's:
 * all sent at a time have one latency.
 */
CW_GLOBAL u64 wc_ring_tell(struct wc_state *s, u64 t_ns, u32 c, u64 off_ns, struct est_sample *out)
{
	u64 total = 0, age;
	int alike;

	if (!s || !out || !c)
		return 0;
	alike = *wc_ring_slot(s, 0) == *wc_ring_slot(s, c - 1);
	for (u32 i = 0; i < WC_RING; i++) {
		if (i >= c)
			break;
		age = wc_ring_age(s, t_ns, i) + off_ns;
		total += age;
		if (!alike && i + 1 < c)
			est_add_single(out, age);
	}
	return total;
}

CW_INLINE void wc_ring_reencode(struct wc_state *s, u64 at_ns, u32 level)
{
	u32 from = wc_level_shift(s->ring_level), to = wc_level_shift(level);
	u32 then = wc_ring_time(at_ns, from), now = wc_ring_time(at_ns, to);
	u32 coarser = to - from;

	for (u32 i = 0; i < WC_RING; i++) {
		u32 age = (u16)(then - s->ring[i]);

		s->ring[i] = (u16)(now - ((age + (1u << (coarser - 1))) >> coarser));
	}
	s->ring_level = (u8)level;
}

/* As wc_ring_push, for one request that is outstanding alone: mostly. 0: it takes more. */
CW_INLINE int wc_ring_push_alone(struct wc_state *s, u64 at_ns, u32 n, u64 used_ns)
{
	at_ns = CW_MIN(at_ns, used_ns);
	if (n != 1 || s->ring_len || wc_level_for(used_ns - at_ns))
		return 0;
	s->ring_level = 0;
	s->ring_len = 1;
	*wc_ring_slot(s, 0) = (u16)wc_ring_time(at_ns, wc_level_shift(0));
	return 1;
}

/* Add n requests sent at at_ns. The ring is next used at used_ns, which is not before. */
CW_GLOBAL int wc_ring_push(struct wc_state *s, u64 at_ns, u32 n, u64 used_ns)
{
	u32 len, over;
	u64 span;
	u16 time;

	if (!s)
		return 0;
	at_ns = CW_MIN(at_ns, used_ns);
	span = used_ns - at_ns;
	len = s->ring_len;
	if (len) {
		u64 oldest = wc_ring_age(s, at_ns, 0);

		if (oldest + span >= (u64)WC_RING_SPAN << 22)
			len = 0;
		else
			span += oldest;
	}
	if (!len)
		s->ring_level = (u8)wc_level_for(span);
	else if (wc_level_for(span) > s->ring_level)
		wc_ring_reencode(s, at_ns, wc_level_for(span));

	n = CW_MIN(n, WC_RING);
	time = (u16)wc_ring_time(at_ns, wc_level_shift(s->ring_level));
	for (u32 i = 0; i < WC_RING; i++) {
		if (i >= n)
			break;
		*wc_ring_slot(s, len + i) = time;
	}
	over = len + n > WC_RING ? len + n - WC_RING : 0;
	s->ring_head = (u8)((s->ring_head + over) & (WC_RING - 1));
	s->ring_len = (u8)(len + n - over);
	return 0;
}

#endif
