/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The window W: how many requests the client keeps outstanding at most.
 *
 * The first burst of a page, and each one after silence, shows it whole. W is
 * the largest burst size that at least two bursts, and one in 64, have reached:
 * rare enough to survive hundreds of single requests, common enough that one
 * misjudged burst does not count. Counts decay by halving.
 *
 * Where one size stands out, eight times as many as all larger ones together and
 * more than the next smaller one, these are two bursts taken for one, or a request
 * miscounted.
 *
 * Over TCP one burst of three is enough: acknowledgements tell bursts apart, so
 * none is larger than the window, and a connection that carries one page shows its
 * window once. Not one of two: a request may come in two packets, its head and its
 * body, and a connection's first one behind the last of its TLS handshake. Where two
 * packets or more acknowledge as much as one request alone does, again and again, they are
 * one request. A connection that has shown one burst of several, and little else, may have a
 * window of one as well: a client that keeps several requests out and one that has sent one
 * request in several packets send the same from then on.
 */
#ifndef CAUSEWAY_WINDOW_CHAIN_WINDOW_H
#define CAUSEWAY_WINDOW_CHAIN_WINDOW_H

#include "window_chain_state.h"

#define WC_HIST_FULL 250u /* bursts in the histogram when it is halved */
#define WC_HIST_SHARE 64u
#define WC_HIST_PEAK 8u
/* Within so many bursts a window of three or more has mostly shown itself. */
#define WC_HIST_FEW 4u

/* Bytes that are as many: within an eighth of an octave. */
#define WC_PART_BYTES 1
/* From so many in a row on they are taken for one request. */
#define WC_PARTS_MANY 3u

/* Count a burst of n requests. */
CW_INLINE void wc_window_count(struct wc_state *s, u32 n)
{
	u32 i = CW_MASKED(CW_MIN(n, WC_RING) - 1, WC_RING - 1);

	if (s->hist[i] < 255)
		s->hist[i]++;
}

/* What seemed to be several requests was one. */
CW_INLINE void wc_window_is_one(struct wc_state *s)
{
	__builtin_memset(s->hist + 1, 0, sizeof(s->hist) - 1);
	s->window = 1;
}

/* Whether no burst in the histogram has more than one request: words are little endian. */
CW_INLINE int wc_all_single(const struct wc_state *s)
{
	u64 low, high;

	__builtin_memcpy(&low, s->hist, sizeof(low));
	__builtin_memcpy(&high, s->hist + sizeof(low), sizeof(high));
	return !(low >> 8 | high);
}

/* How many bursts the histogram holds: the sum of its bytes, in pairs. */
CW_INLINE u32 wc_bursts_counted(const struct wc_state *s)
{
	const u64 evens = 0x00ff00ff00ff00ffull, ones = 0x0001000100010001ull;
	u64 low, high, sum;

	__builtin_memcpy(&low, s->hist, sizeof(low));
	__builtin_memcpy(&high, s->hist + sizeof(low), sizeof(high));
	sum = (low & evens) + (low >> 8 & evens) + (high & evens) + (high >> 8 & evens);
	return (u32)(sum * ones >> 48);
}

/*
 * Whether W may be another than it seems. Two as well as one: but in TLS the first request often
 * comes in two packets, behind the handshake or HTTP/2's preface, and clients of HTTP/1.1 keep one
 * outstanding. One as well as three or more, if of the bursts that say so all but one look like
 * one request in several packets. And more than the ring holds, unless each burst just fills it.
 */
CW_INLINE int wc_window_is_ambiguous(const struct wc_state *s)
{
	u32 bursts;

	if (!(s->flags & WC_TCP) || wc_all_single(s))
		return 0;
	bursts = wc_bursts_counted(s);
	if (s->window == 1)
		return !wc_in_tls(s) && bursts >= WC_HIST_FEW && bursts < WC_HIST_SHARE;
	if (s->window >= WC_RING && s->cur_n != WC_RING)
		return 1;
	return s->window > 2 && s->hist[0] >= WC_HIST_FEW && bursts - s->hist[0] <= 1u + s->parts;
}

CW_GLOBAL int wc_window_infer(struct wc_state *s)
{
	u32 total = 0, reached = 0, window, need, two;

	if (!s)
		return 0;
	if (wc_all_single(s)) {
		s->window = 1;
		if (s->hist[0] > WC_HIST_FULL)
			s->hist[0] >>= 1;
		return 0;
	}
	CW_NO_UNROLL
	for (u32 i = 0; i < WC_RING; i++)
		total += s->hist[i];
	need = CW_MAX(s->flags & WC_TCP ? 1u : CW_MIN(2u, total >> 1), 1u);
	need = CW_MAX(need, total / WC_HIST_SHARE);
	two = s->flags & WC_TCP ? CW_MAX(need, 2u) : need;
	CW_NO_UNROLL
	for (window = WC_RING; window > 1; window--) {
		reached += s->hist[window - 1];
		if (reached >= (window == 2 ? two : need))
			break;
	}
	window = (u32)CW_FORGET(window, s->last_ns);
	reached = (u32)CW_FORGET(reached, s->last_ns);
	CW_NO_UNROLL
	for (u32 below = 1; below < WC_RING; below++) {
		u32 i = window - below, n;

		if (i <= 1 || i >= WC_RING)
			break;
		n = s->hist[CW_MASKED(i - 1, WC_RING - 1)];
		if (n > WC_HIST_PEAK * reached && n > s->hist[CW_MASKED(i - 2, WC_RING - 1)]) {
			window = i;
			break;
		}
		reached += n;
	}
	s->window = (u8)window;
	if (total > WC_HIST_FULL)
		for (u32 i = 0; i < WC_RING; i++)
			s->hist[i] >>= 1;
	return 0;
}

/*
 * Whether the burst b of several packets seems to be one request: it acknowledges what the
 * last one alone did, one response. A larger window has more to acknowledge where its
 * requests leave at once.
 */
CW_GLOBAL int wc_seems_one(struct wc_state *s, const struct wc_burst *b)
{
	s32 more;

	if (!s || !b || !(s->flags & WC_TCP) || !b->acked || !s->hold_acked)
		return 0;
	more = (s32)b->acked - (s32)s->hold_acked;
	if (more < -WC_PART_BYTES || more > WC_PART_BYTES) {
		s->parts = s->parts ? s->parts - 1 : 0;
		return 0;
	}
	s->parts = (u8)CW_MIN(s->parts + 1u, WC_PARTS_MANY);
	return 1;
}

/* Count a closed burst; now and then, and where it is larger than W, see what W is. */
CW_INLINE void wc_window_update(struct wc_state *s, u32 n)
{
	wc_window_count(s, n);
	s->bursts = s->bursts == 23 ? 16 : s->bursts + 1;
	if (s->bursts % 8 == 0 && s->resends)
		s->resends--;
	if (s->bursts < 16 || s->bursts % 8 == 0 || n > s->window)
		wc_window_infer(s);
}

#endif
