/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Whether a single request, held until the next burst came, began a new page:
 * nothing was outstanding any more when it was sent (a root). Or it followed one
 * response among others that were still awaited.
 *
 * Times alone leave this open: the second of two responses may block those behind
 * it, so that after a single request a whole window follows at once, just as
 * after a root. Over TCP three things tell more.
 *
 * The clock of the ACKs: a client sends within microseconds of a response, if it
 * has anything to send. Responses before a root set nothing off, so their ACKs
 * lie further back.
 *
 * The bytes acknowledged: a root acknowledges the responses of a whole window,
 * what follows it only its own.
 *
 * The flow's habit: where service times are independent, most such bursts are no
 * roots; where a window is answered at once, all are. The share of bursts that
 * acknowledge too little for a root tells which.
 */
#ifndef CAUSEWAY_WINDOW_CHAIN_ROOTS_H
#define CAUSEWAY_WINDOW_CHAIN_ROOTS_H

#include "window_chain_ring.h"

/* A client sends within this after a response, if it has anything to send. */
#define WC_PROMPT_NS (48ull * CW_US_NS)

/*
 * Weights of the evidence where the clock of the ACKs says nothing, in 1/128 of
 * the logarithm of the odds: a logistic regression on 80,000 held bursts with
 * known truth (docs/design/accuracy.md), constant and habit then chosen for the smallest
 * errors of the estimates. The first three are for each eighth of an octave.
 */
#define WC_ODDS_BYTES 8
#define WC_ODDS_BEFORE 21
#define WC_ODDS_AFTER 5
#define WC_ODDS_START 560
#define WC_ODDS_HABIT 1400
/*
 * With two requests the bytes of two responses are held against those of one, so the
 * habits of the two kinds of flows lie closer together.
 */
#define WC_ODDS_HABIT_OF_TWO 2000
/*
 * Where the habit starts, and up to where it means nothing, of 256: also of roots
 * one in eight acknowledges few bytes.
 */
#define WC_HABIT_START 110u
#define WC_HABIT_ROOTS 50u
/* Bytes that are too few for a root: less than half of what follows. */
#define WC_FEW_BYTES 8
/*
 * Four times what follows: with a lagging ACK enough against the times, which a
 * server that is stopped for a while (a CPU quota) makes worthless.
 */
#define WC_MANY_BYTES 16

/* Silent ACKs from which on a request before a whole window was a root. */
#define WC_SILENT_ROOT 2u

/* The share of held bursts before whole windows that acknowledged few bytes, of 256. */
CW_INLINE u32 wc_habit(const struct wc_state *s)
{
	return (s->lone_bias + WC_HABIT_START) & 0xff;
}

CW_INLINE void wc_habit_learn(struct wc_state *s, int few)
{
	u32 habit = wc_habit(s);

	habit = habit - (habit >> 4) + (few ? 15 : 0);
	s->lone_bias = (u8)(habit - WC_HABIT_START);
}

/* The logarithm of the odds that h was a root, times 128. */
CW_INLINE s32 wc_root_odds(const struct wc_state *s, s32 bytes, u64 before, u64 after)
{
	u64 typical = s->latency ? wc_typical_ns(s) : after;
	s32 usual = (s32)cw_log64(cw_sat32(typical >> 6));
	s32 a = (s32)cw_log64(cw_sat32(before >> 6)) - usual;
	s32 l = (s32)cw_log64(cw_sat32(after >> 6)) - usual;
	u32 habit = wc_habit(s) > WC_HABIT_ROOTS ? wc_habit(s) - WC_HABIT_ROOTS : 0;
	u32 weight = s->window == 2 ? WC_ODDS_HABIT_OF_TWO : WC_ODDS_HABIT;

	return WC_ODDS_BYTES * bytes + ((WC_ODDS_BEFORE * a + WC_ODDS_AFTER * l) >> 3) +
	       WC_ODDS_START - (s32)(habit * weight >> 8);
}

/* Whether there was at least a path's time before the held request and after it. */
CW_INLINE int wc_path_allows(const struct wc_state *s, u64 before, u64 after)
{
	u64 handshake = wc_handshake_ns(s);

	return 20 * before >= 19 * handshake && 20 * after >= 19 * handshake;
}

/*
 * Whether times speak for the held request, followed by a burst of n, being a
 * root: after it the client waited a whole latency, and before it nothing was left
 * open.
 */
CW_INLINE int wc_times_allow(const struct wc_state *s, u32 n, u64 before, u64 after)
{
	u64 typical = s->latency ? wc_typical_ns(s) : after;

	if (n >= s->window)
		return 2 * before >= CW_MIN(after, typical);
	if (n < (wc_is_wide(s) ? 2u : 3u))
		return 0;
	if (s->flags & WC_TCP)
		return 10 * before >= 7 * typical && 10 * after >= 7 * typical;
	return 2 * before >= typical && 2 * after >= typical;
}

/* Whether the held request h, followed by the burst b, was a root. */
CW_GLOBAL int wc_is_root(struct wc_state *s, const struct wc_burst *h,
			 const struct wc_burst *b)
{
	int times, lagging, whole;
	u64 before, after;
	s32 bytes, odds;

	if (!s || !h || !b || !s->ring_len || b->n < 2)
		return 0;
	whole = b->n >= s->window;
	before = wc_ring_age(s, h->at_ns, s->ring_len - 1u);
	after = b->at_ns - h->at_ns;
	bytes = (s32)h->acked - (s32)b->acked;
	if (!wc_path_allows(s, before, after))
		return 0;
	times = wc_times_allow(s, b->n, before, after);
	/* On wide paths ACKs are late and few, and times tell enough. */
	if (!(s->flags & WC_TCP))
		return times || (whole && s->window > 2 &&
				 h->acked >= WC_SILENT_ROOT);
	if (wc_is_wide(s))
		return times;
	lagging = wc_lead_ns(h) > CW_MAX(WC_PROMPT_NS, before / 32);
	if (lagging)
		return times || (whole && bytes > WC_MANY_BYTES);
	if (!times)
		return 0;
	odds = wc_root_odds(s, bytes, before, after);
	if (whole)
		wc_habit_learn(s, bytes < -WC_FEW_BYTES);
	return odds >= 0;
}

#endif
