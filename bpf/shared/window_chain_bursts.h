/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What a closed burst says about the requests outstanding before it.
 *
 * A burst is normal (n responses arrived, so the n oldest requests are done,
 * or as many as the window demands) or a root (everything was done before it:
 * a new page after the client's idle time). A burst of one request between
 * others may be either; it is held until the next burst decides.
 */
#ifndef CAUSEWAY_WINDOW_CHAIN_BURSTS_H
#define CAUSEWAY_WINDOW_CHAIN_BURSTS_H

#include "window_chain_ring.h"
#include "window_chain_roots.h"
#include "window_chain_silent.h"
#include "window_chain_tls.h"
#include "window_chain_window.h"

CW_INLINE void wc_push(struct wc_state *s, const struct wc_burst *b)
{
	if (!wc_ring_push_alone(s, b->at_ns + wc_off_ns(b), b->n, b->used_ns))
		wc_ring_push(s, b->at_ns + wc_off_ns(b), b->n, b->used_ns);
}

/*
 * Nothing is outstanding any more at b. The newest request was the last to
 * complete, just before b's idle time, and there its latency belongs. When the
 * others did is known on the mean only: with silent ACKs that can be trusted from
 * their times, else from those of all ACKs since the last burst, and then they count
 * half. On wide paths ACKs say too little.
 *
 * With many streams, which end in any order, ACKs come long after what they tell
 * of, and would make most of those streams slower than the newest: they are not.
 */
#define WC_MANY 8u /* streams besides the newest */

/* The latencies at b of the m requests besides the newest; 0: unknown. */
CW_INLINE u64 wc_others(struct wc_state *s, const struct wc_burst *b, u32 m, u64 newest)
{
	u64 done = b->at_ns - b->idle_ns, sum, lead;
	int trusts = wc_trusts_silence(s);

	if (!m || !b->lead || wc_is_wide(s))
		return 0;
	sum = wc_ring_sum(s, done, m);
	/* The mean of all ACKs is one of the newest's too. */
	lead = (trusts ? m : m + 1) * wc_lead_ns(b);
	sum = sum > lead ? sum - lead : 0;
	if (trusts)
		return sum;
	if (!(s->flags & WC_TCP) && m >= WC_MANY)
		sum = CW_MIN(sum, m * newest * 15 / 16);
	return 5 * sum <= 6 * m * newest ? sum : 0;
}

/*
 * Without timestamps nothing tells when the client received what it acknowledges, and
 * it delays the ACK of a segment that comes alone. Not that of a connection's first response.
 */
#define WC_ALONE 84u /* one segment, in eighths of an octave */

CW_INLINE int wc_is_undated(const struct wc_state *s, const struct wc_burst *b)
{
	return (s->flags & (WC_TCP | WC_TS_SEEN)) == WC_TCP && b->acked <= WC_ALONE;
}

/* Whether the ACK that told of the newest request, that old then, was a delayed one. */
CW_INLINE int wc_seems_delayed(const struct wc_state *s, const struct wc_burst *b, u64 age_ns)
{
	u64 typical = wc_typical_ns(s);

	return s->bursts > 1 && b->idle_ns && wc_is_undated(s, b) &&
	       age_ns >= typical + WC_DELAYED_MIN_NS && age_ns <= typical + WC_DELAYED_MAX_NS;
}

/* A sample that says no more than that there was one. */
CW_INLINE void wc_leave_out(const struct wc_state *s, struct est_sample *out, u64 when_ns,
			    u32 halves)
{
	out->when_ns = when_ns;
	out->window = s->window;
	out->bound_halves = (u16)(out->bound_halves + halves);
}

CW_GLOBAL int wc_root(struct wc_state *s, const struct wc_burst *b,
		      struct est_sample *out)
{
	u64 done, newest, others;
	u32 m, weight;

	if (!s || !b || !out || !s->ring_len)
		return 0;
	done = b->at_ns - b->idle_ns;
	m = s->ring_len - 1u;
	newest = wc_ring_age(s, done, m);
	others = 0;
	if (wc_seems_delayed(s, b, newest)) {
		/* Where nothing else is known, a bound is not what is typical. */
		if (s->latency)
			wc_track(s, newest);
		wc_leave_out(s, out, done, 2);
	} else {
		others = wc_others(s, b, m, newest);
		wc_commit(s, out, done, newest, 1);
	}
	if (others) {
		est_add_single(out, newest);
		weight = wc_trusts_silence(s) ? 2 : 1;
		out->sum_halves_ns += weight * others;
		out->weight_halves += weight * m;
		wc_track(s, others / m);
	}
	wc_ring_clear(s);
	if (!(s->flags & WC_TCP))
		wc_silence_judge(s);
	return 0;
}

/*
 * Requests whose completion was missed: their age is that of two round trips.
 * The tracked latency follows, or a lasting slowdown would be cut away.
 */
CW_GLOBAL int wc_drop_stale(struct wc_state *s, u64 at_ns)
{
	u64 handshake, typical;

	if (!s)
		return 0;
	handshake = wc_handshake_ns(s);
	if (!s->latency || 2 * handshake <= wc_typical_ns(s))
		return 0;
	for (u32 i = 0; i < WC_RING; i++) {
		if (!s->ring_len)
			break;
		typical = wc_typical_ns(s);
		if (10 * wc_ring_age(s, at_ns, 0) <= 10 * typical + 8 * handshake)
			break;
		wc_ring_drop(s, 1);
		wc_track_up(s);
	}
	return 0;
}

/*
 * A response arrived after this time, so the path is no longer than that. A
 * handshake is at times: a SYN is lost, or its ACK waits for a processor. Where TLS has been
 * opened in as long a time, it is not.
 */
CW_INLINE void wc_path_at_most(struct wc_state *s, u64 age_ns)
{
	u64 age = age_ns >> 12;

	if (age < s->handshake && !wc_in_tls(s))
		s->handshake = (u16)age;
}

/*
 * A response came, and the oldest of the requests, n with those that follow it, is
 * younger than the handshake. Either more are out than were thought, or the handshake
 * was longer than the path: that it was where no burst has shown so large a window. Not if
 * that of TLS was no shorter.
 */
CW_INLINE int wc_handshake_was_late(struct wc_state *s, u64 at_ns, u32 n)
{
	u32 shown = 0;

	if (wc_in_tls(s) || 2 * wc_ring_age(s, at_ns, 0) < wc_handshake_ns(s))
		return 0;
	CW_NO_UNROLL
	for (u32 i = 0; i < WC_RING; i++)
		shown |= i + 1 >= CW_MIN(n, WC_RING) ? s->hist[i] : 0;
	return !shown;
}

/* Set where the handshake had to come down for one request to be old enough. */
#define WC_ONE_AFTER_ALL 0x80000001u

/*
 * How many of the c oldest requests are at least as old as a handshake; n are out at
 * least. With all of it in one function wc_normal needs no stack for it.
 */
CW_GLOBAL u32 wc_old_enough(struct wc_state *s, u64 at_ns, u32 c, u32 n)
{
	u64 handshake;
	u32 k = 0;

	if (!s)
		return 0;
	handshake = wc_handshake_ns(s);
	for (u32 i = 0; i < WC_RING; i++) {
		if (i >= c || i >= s->ring_len)
			break;
		if (20 * wc_ring_age(s, at_ns, i) < 19 * handshake)
			break;
		k++;
	}
	if (k || !wc_handshake_was_late(s, at_ns, n))
		return k;
	wc_path_at_most(s, wc_ring_age(s, at_ns, 0));
	return WC_ONE_AFTER_ALL;
}

/* Some of the outstanding requests are done: the oldest ones. */
CW_GLOBAL int wc_normal(struct wc_state *s, const struct wc_burst *b,
			struct est_sample *out)
{
	u32 n, open, done, k;
	int wide;

	if (!s || !b || !out)
		return 0;
	n = b->n;
	/* The second burst of a connection: a response to the first one came. */
	if (s->bursts == 2 && s->ring_len)
		wc_path_at_most(s, wc_ring_age(s, b->at_ns, 0));
	wide = wc_is_wide(s);
	if (wide)
		wc_drop_stale(s, b->at_ns);
	open = s->ring_len;
	done = open + n > s->window ? open + n - s->window : 0;
	done = CW_MAX(done, 1u);
	if (wide && open) {
		/* What is too young is still open, so the window is wider. */
		k = wc_old_enough(s, b->at_ns, done, open + n);
		if (k == WC_ONE_AFTER_ALL) {
			done = 1;
		} else if (k < done) {
			done = k;
			if (open + n - k > s->window)
				wc_window_count(s, open + n - k);
			/* Again and again: the handshake was longer than the path. */
			if (s->bursts >= 16 && 2 * wc_handshake_ns(s) < wc_typical_ns(s))
				s->handshake -= s->handshake >> 5;
		}
	}
	k = CW_MIN(done, open);
	if (k) {
		/* Each of b's requests was triggered by one of them. */
		u64 off = done >= n ? wc_off_ns(b) : 0;
		u64 total = k == 1 ? wc_ring_age(s, b->at_ns, 0) + off
				   : wc_ring_tell(s, b->at_ns, k, off, out);

		wc_commit(s, out, b->at_ns, total, k);
		wc_ring_drop(s, k);
	}
	wc_push(s, b);
	if (!wide && s->ring_len > s->window)
		wc_ring_drop(s, (u32)s->ring_len - s->window);
	return 0;
}

/*
 * wc_normal() of most bursts: one request, after the response to the only one before. It
 * takes a fifth off the time of the whole step. 0: it is not so simple.
 */
CW_INLINE int wc_normal_alone(struct wc_state *s, const struct wc_burst *b,
			      struct est_sample *out)
{
	if (b->n != 1 || s->ring_len != 1 || s->window != 1 || s->bursts == 2 || wc_is_wide(s))
		return 0;
	wc_commit(s, out, b->at_ns, wc_ring_age(s, b->at_ns, 0) + wc_off_ns(b), 1);
	wc_ring_clear(s);
	wc_push(s, b);
	return 1;
}

/* The open burst in full; the ring is used next at used_ns. */
CW_INLINE void wc_current(const struct wc_state *s, u64 used_ns, struct wc_burst *b)
{
	b->n = (u8)CW_MAX(s->cur_n, 1u);
	b->at_ns = ((s->last_ns >> WC_BURST_SHIFT) - s->cur_age) << WC_BURST_SHIFT;
	b->used_ns = used_ns;
	b->idle_ns = (u64)s->cur_idle << WC_IDLE_SHIFT;
	b->off = s->cur_off / b->n;
	b->acked = s->cur_acked;
	b->lead = s->cur_lead;
}

/* The held burst, before b, in full. */
CW_INLINE void wc_held(const struct wc_state *s, const struct wc_burst *b,
		       struct wc_burst *h)
{
	h->n = 1;
	h->at_ns = b->at_ns - ((u64)s->hold_gap << WC_BURST_SHIFT);
	h->used_ns = b->at_ns - b->idle_ns;
	h->idle_ns = 0;
	h->off = 0;
	h->acked = s->hold_acked;
	h->lead = s->hold_lead;
}

/* What wc_doubt says of a sample besides EST_SYSTEMATIC and EST_NARROW: others tell better. */
#define WC_LEFT_OUT 3u

/* A group of which all is off, as `doubt` says; 0: it is not. */
CW_INLINE void wc_grade(struct est_sample *of, u32 doubt)
{
	if (!doubt)
		return;
	of->bound_halves = (u16)of->weight_halves;
	of->systematic = (u8)doubt;
	if (doubt == WC_LEFT_OUT) {
		of->systematic = 0;
		of->sum_halves_ns = 0;
		of->weight_halves = 0;
		of->singles = 0;
	}
}

/*
 * Whether the path's round trip is three quarters of what this flow's responses take: a pause
 * that nothing dates is the rest at most. The tracked median swings by a sixteenth. A handshake
 * on a busy host is late by milliseconds, so that short paths prove nothing.
 */
#define WC_NARROW_PATH_NS (10ull * CW_MS_NS)

CW_INLINE int wc_is_narrow(const struct wc_state *s)
{
	u64 path = wc_path_ns(s), typical = wc_typical_ns(s) * 15 / 16;

	return s->window == 1 && path >= WC_NARROW_PATH_NS && 4 * path >= 3 * typical;
}

/*
 * What speaks against several requests out over QUIC: streams share packets, and which response a
 * request follows is encrypted. With few streams that was mostly a quarter at most, with many more.
 */
#define WC_STREAMS_FEW 3u
#define WC_STREAMS_MANY 8u

CW_INLINE u32 wc_streams_doubt(const struct wc_state *s)
{
	if (s->flags & WC_TCP || s->window < WC_STREAMS_FEW)
		return 0;
	return s->window < WC_STREAMS_MANY ? EST_NARROW : EST_SYSTEMATIC;
}

/*
 * What speaks against the samples of the burst just closed, for wc_grade. What it said is a
 * bound where its request alone acknowledged the response and no echo dates that: the client
 * may have paused for as long as it delays ACKs. One that was prompt before, or never late, is taken to be so again. It is one, too,
 * where the ACK of the response's last segment was late. Bounds are all that a client
 * tells that pauses before each request, beside responses too fast for the clock that dates
 * them; a connection of HTTP/2 with several streams: a packet carries many requests, and
 * the order of responses is not theirs; and one whose window may be one or two. All samples of
 * such flows are off alike, and so are those of clients without timestamps: of these the path
 * may bound how far. Of two requests that are out a response comes in about half the time that each
 * takes; that this is just the path's again and again is no matter of chance.
 */
CW_GLOBAL u32 wc_doubt(struct wc_state *s)
{
	int pauses, undated;

	if (!s)
		return 0;
	if (wc_is_multiplexed(s) || (wc_is_never_prompt(s) && wc_typical_ns(s) < WC_NEVER_PROMPT_MIN_NS))
		return EST_SYSTEMATIC;
	if (wc_window_is_ambiguous(s))
		return wc_is_narrow(s) ? EST_NARROW : EST_SYSTEMATIC;
	pauses = s->pace == WC_PACE_UNKNOWN || s->pace == WC_PACE_TARDY;
	undated = s->flags & WC_TCP && s->cur_lead == 1 && pauses && !s->cur_idle &&
		  s->cur_acked <= WC_ALONE;
	if (!undated && !s->cur_undated)
		return wc_streams_doubt(s);
	if (s->flags & WC_TS_SEEN)
		return WC_LEFT_OUT;
	return !s->cur_undated && wc_is_narrow(s) ? EST_NARROW : EST_SYSTEMATIC;
}

/*
 * Whether the client sat on one response of several: its program waited for a processor
 * while the kernel acknowledged, and the other responses are still to come. Had all of them
 * come, it would have been idle for about as long as they take, or have sent a whole window.
 */
CW_INLINE int wc_was_held_up(struct wc_state *s, const struct wc_burst *b)
{
	u64 longest;
	u32 level;

	if (!(s->flags & WC_TCP) || b->n != 1 || s->window <= 1 || s->ring_len <= 1 ||
	    b->idle_ns <= WC_RESENT_IDLE_NS)
		return 0;
	longest = wc_ring_age(s, b->at_ns - b->idle_ns, 0);
	if (2 * b->idle_ns >= CW_MAX(longest, wc_typical_ns(s)))
		return 0;
	/* The ring is used behind the idle time, too. */
	level = wc_level_for(longest + b->idle_ns);
	if (level > s->ring_level)
		wc_ring_reencode(s, b->at_ns - b->idle_ns, level);
	return 1;
}

/*
 * Close the open burst, because a packet of the next one arrived at next_ns,
 * after the client had been idle for idle_ns: nobody will ask for ages after
 * its idle time began. With last = 1 nothing more is to come and no burst may
 * be held.
 */
CW_INLINE void wc_close_burst(struct wc_state *s, u64 next_ns, u64 idle_ns, int last,
			      struct est_samples *out)
{
	struct wc_burst b, h;
	u32 n;

	wc_current(s, next_ns - idle_ns, &b);
	if (!(s->flags & WC_TCP) && s->datagram.bursts < 255)
		s->datagram.bursts++;
	n = b.n > s->cur_late ? b.n - s->cur_late : 1;
	if (b.n > 1 && wc_seems_one(s, &b)) {
		/* Two packets are mostly one request, and more mostly as many: until it is sure. */
		if (b.n == 2 && s->window <= 2)
			n = 1;
		if (s->parts == WC_PARTS_MANY) {
			n = 1;
			b.n = 1;
			b.off = 0;
			wc_window_is_one(s);
			/* One is out, the newest; the others were its parts. */
			if (s->ring_len > 1)
				wc_ring_drop(s, s->ring_len - 1u);
		}
	}
	wc_window_update(s, n);
	if (s->flags & WC_HOLD) {
		s->flags &= (u8)~WC_HOLD;
		wc_held(s, &b, &h);
		if (wc_is_root(s, &h, &b)) {
			wc_root(s, &h, &out->group[0]);
			wc_commit(s, &out->group[1], b.at_ns, b.at_ns - h.at_ns, 1);
			wc_push(s, &b);
			return;
		}
		wc_normal(s, &h, &out->group[0]);
	}
	if (b.idle_ns && (last || !wc_was_held_up(s, &b))) {
		wc_root(s, &b, &out->group[1]);
		wc_push(s, &b);
		/* It may have been idle time after all, of just that length. */
		if (b.idle_ns == WC_RESENT_IDLE_NS)
			s->flags |= WC_BOUND;
	} else if (b.n == 1 && s->window > 1 && s->ring_len > 1 && !last) {
		s->flags |= WC_HOLD;
		s->hold_gap = cw_sat32((next_ns >> WC_BURST_SHIFT) -
				       (b.at_ns >> WC_BURST_SHIFT));
		s->hold_lead = s->cur_lead;
	} else if (!wc_normal_alone(s, &b, &out->group[1])) {
		wc_normal(s, &b, &out->group[1]);
	}
	if (b.n == 1)
		s->hold_acked = s->cur_acked;
}

/* The same, with what speaks against its samples. */
CW_INLINE void wc_close(struct wc_state *s, u64 next_ns, u64 idle_ns, int last,
			struct est_samples *out)
{
	u32 doubt;

	wc_close_burst(s, next_ns, idle_ns, last, out);
	doubt = wc_doubt(s);
	wc_grade(&out->group[0], doubt);
	wc_grade(&out->group[1], doubt);
}

/* Nothing more is to come. */
CW_GLOBAL int wc_close_last(struct wc_state *s, u64 next_ns, u64 idle_ns, struct est_samples *out)
{
	if (s && out)
		wc_close(s, next_ns, idle_ns, 1, out);
	return 0;
}

/* Two groups are two of three: the first two count for one time. */
CW_INLINE void wc_join_groups(struct est_samples *out)
{
	struct est_sample *to = &out->group[0], *from = &out->group[1];

	if (!from->weight_halves && !from->bound_halves)
		return;
	to->when_ns = from->when_ns;
	to->sum_halves_ns += from->sum_halves_ns;
	to->weight_halves += from->weight_halves;
	to->bound_halves = (u16)(to->bound_halves + from->bound_halves);
	to->window = from->window;
	CW_NO_UNROLL
	for (u32 i = 0; i < EST_SINGLES; i++) {
		if (i >= from->singles)
			break;
		est_add_single(to, (u64)from->single[i] << EST_SINGLE_SHIFT);
	}
	est_clear(from);
}

#endif
