/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What single packets tell beyond their arrival: a client's ACKs, its holes in
 * the sequence space, the timestamps it echoes, and the size of its datagrams.
 */
#ifndef CAUSEWAY_WINDOW_CHAIN_SIGNALS_H
#define CAUSEWAY_WINDOW_CHAIN_SIGNALS_H

#include "window_chain_state.h"

/* Ticks of both clocks, and what a queue on the way adds. */
#define WC_LAG_SLACK_NS (5ull * CW_MS_NS)

/*
 * Since the last ACK without a request, which there is, gap_ns after the last data packet. A
 * packet that another CPU was faster with may be older than that ACK.
 */
CW_INLINE u64 wc_silent_ns(const struct wc_state *s, u64 gap_ns)
{
	u64 last = (u64)(s->silence - 1) << WC_IDLE_SHIFT;

	return gap_ns > last ? gap_ns - last : 0;
}

/* Whether the client cannot have had for so long, in 1.024 us, what this acknowledges first. */
CW_INLINE int wc_is_too_long(const struct wc_state *s, u64 now_ns, u32 ack, u32 lag)
{
	int both = (s->flags & (WC_DATA_SEEN | WC_ACK_SEEN)) == (WC_DATA_SEEN | WC_ACK_SEEN);

	return both && est_after(ack, s->tcp.ack_max) &&
	       (u64)lag << 10 > now_ns - s->last_ns + WC_LAG_SLACK_NS;
}

/* Whether it has had for longer what the last ACK, and this one, acknowledge. */
CW_INLINE int wc_is_too_short(const struct wc_state *s, u64 now_ns, u32 ack, u32 lag)
{
	return s->silence && s->flags & WC_ACK_SEEN && !est_after(ack, s->tcp.ack_max) &&
	       ((u64)lag << 10) + WC_LAG_SLACK_NS < wc_silent_ns(s, now_ns - s->last_ns);
}

/* clock_min where WC_TS_SEEN is not set: this clock tells nothing. */
#define WC_CLOCK_WRONG 1u
#define WC_SHORT_PAUSE_SHIFT 38 /* 275 s */
/*
 * What a clock that ticks faster gains in one response, at least. One of milliseconds never
 * does after a burst: then a client has acknowledged something within half a second. Behind
 * cookies echoes are up to 1.024 s too new (cookie_echo.h).
 */
#define WC_CLOCK_FAST_NS (1100ull * CW_MS_NS)

/* From here on the connection is one without timestamps. */
CW_INLINE void wc_distrust_clock(struct wc_state *s)
{
	s->flags &= (u8)~WC_TS_SEEN;
	s->tcp.clock_min = WC_CLOCK_WRONG;
}

/*
 * TSecr is the server's clock, in milliseconds, when it sent what is
 * acknowledged here. Arrival minus TSecr is therefore a constant, plus the way
 * back and forth, plus the time that the client sat on the data. Its running
 * minimum is taken for the first two; it rises by about 10 ns per packet so
 * that clocks may drift. In units of 1.024 us, modulo 2^32 (73 minutes).
 *
 * After a pause of 55 to 73 minutes the minimum may be of another round, and too low. It
 * shows where the client acknowledges something new: it has not had that for longer than
 * since its last request. With one request at a time, after a shorter pause, that shows a
 * clock which ticks slower (some systems' every 4 or 10 ms), and so does a value that is newer
 * than it can be; one that runs ahead shows a clock which ticks faster (microseconds: Linux's
 * tcp_usec_ts). Then the connection is one without timestamps.
 *
 * Returns the time that the client sat on the data in ns, or -1 for unknown.
 */
CW_GLOBAL s64 wc_echo_lag(struct wc_state *s, u64 now_ns, const struct est_packet *p)
{
	u32 arrival, echoed, offset, lag, ahead;
	int rise, stale, slow = 1;

	if (!s || !p)
		return -1;
	arrival = (u32)(now_ns >> 10);
	echoed = (u32)(((u64)p->tsecr * 15625) >> 4); /* 1 ms = 15625/16 units */
	offset = arrival - echoed;
	/* One packet in 128, spread whatever the clock's resolution. */
	rise = ((u32)now_ns * 2654435761u) >> 25 == 0;
	stale = (s->flags & WC_DATA_SEEN) && (now_ns - s->last_ns) >> 40;
	if (!(s->flags & WC_TS_SEEN) && s->tcp.clock_min == WC_CLOCK_WRONG)
		return -1;
	if (stale) {
		/* After 18 minutes the modulus says nothing: the next packet is the first again. */
		s->flags &= (u8)~WC_TS_SEEN;
		s->tcp.clock_min = 0;
		return 0;
	}
	if (!(s->flags & WC_TS_SEEN)) {
		s->flags |= WC_TS_SEEN;
		s->tcp.clock_min = offset;
		return 0;
	}
	s->tcp.clock_min += (u32)rise;
	ahead = s->tcp.clock_min - offset;
	if (s->bursts && ahead > WC_CLOCK_FAST_NS >> 10 && !(ahead >> 30)) {
		wc_distrust_clock(s);
		return -1;
	}
	if (est_after(s->tcp.clock_min, offset))
		s->tcp.clock_min = offset;
	lag = offset - s->tcp.clock_min;
	/* Or the server's clock has wrapped. */
	if (lag >> 30 || wc_is_too_long(s, now_ns, p->ack, lag)) {
		s->tcp.clock_min = offset;
		slow = !(lag >> 30);
	} else if (!wc_is_too_short(s, now_ns, p->ack, lag)) {
		return (s64)((u64)lag << 10);
	}
	if (slow && s->window == 1 && !((now_ns - s->last_ns) >> WC_SHORT_PAUSE_SHIFT))
		wc_distrust_clock(s);
	return -1;
}

/* From the start of the open burst to gap_ns after the last data packet. */
CW_INLINE u64 wc_since_burst(const struct wc_state *s, u64 gap_ns)
{
	return ((u64)s->cur_age << WC_BURST_SHIFT) + gap_ns;
}

/* An ACK of some weight arrived gap_ns after the last data packet. */
CW_INLINE void wc_ack_arrived(struct wc_state *s, u32 weight, u64 gap_ns)
{
	u32 gap = cw_sat32(wc_since_burst(s, gap_ns) >> WC_IDLE_SHIFT);
	u32 mean = s->ack_mean;
	u32 sum;

	weight = CW_MIN(weight, 0xffffu);
	sum = CW_MIN(s->ack_weight + weight, 0xffffu);
	if (!s->ack_weight)
		mean = gap;
	else if (gap >= mean)
		mean += (u32)((u64)(gap - mean) * weight / sum);
	else
		mean -= (u32)((u64)(mean - gap) * weight / sum);
	s->ack_mean = mean;
	s->ack_weight = (u16)sum;
}

CW_INLINE u32 wc_ack_weight(u32 bytes)
{
	return (u32)(((u64)bytes + (1 << WC_ACK_BYTES_SHIFT) - 1) >> WC_ACK_BYTES_SHIFT);
}

CW_INLINE void wc_lone_ack(struct wc_datagram *d, u32 payload_len)
{
	if (!d->ack_min || payload_len < d->ack_min)
		d->ack_min = payload_len;
}

/*
 * Whether a lone ACK of so many bytes, gap_ns after the last request, was delayed as far as can
 * be told without timestamps: what it acknowledges may have come with what the one before did.
 */
CW_INLINE int wc_ends_delayed(const struct wc_state *s, u32 bytes, u64 gap_ns)
{
	u64 since;

	if (s->flags & WC_TS_SEEN || !s->silence || bytes > WC_SEGMENT)
		return 0;
	since = wc_silent_ns(s, gap_ns);
	return since >= WC_DELAYED_MIN_NS && since <= WC_DELAYED_MAX_NS;
}

/* A packet without a request: it moves nothing but the ACK times. */
CW_INLINE void wc_pure_ack(struct wc_state *s, const struct est_packet *p, u64 now_ns)
{
	u64 gap = now_ns - s->last_ns;
	u32 weight = 1;

	if (est_is_tcp(p)) {
		u32 before = s->tcp.ack_max;

		if (!(s->flags & WC_ACK_SEEN)) {
			s->flags |= WC_ACK_SEEN;
			s->tcp.ack_max = p->ack;
			return;
		}
		if (!est_after(p->ack, before))
			return;
		/* The server's FIN, behind the last response. */
		if (p->ack - before == 1 && s->silence)
			return;
		weight = wc_ack_weight(p->ack - before);
		s->tcp.ack_max = p->ack;
		if (wc_ends_delayed(s, p->ack - before, gap)) {
			s->late_ack = 1;
			return;
		}
	} else {
		wc_lone_ack(&s->datagram, est_payload(p));
	}
	s->flags |= WC_ACK_SEEN;
	if (s->flags & WC_DATA_SEEN) {
		if (!wc_trusts_silence(s))
			wc_ack_arrived(s, weight, gap);
		s->silence = CW_MIN((gap >> WC_IDLE_SHIFT) + 1, WC_29_BITS) & WC_29_BITS;
	}
}

/* seq_max moves on by bytes; holes fall behind it and are forgotten at 64 KiB. */
CW_INLINE void wc_seq_advance(struct wc_tcp *tcp, u32 bytes)
{
	tcp->seq_max += bytes;
	for (u32 i = 0; i < 2; i++) {
		u64 back = (u64)tcp->hole[i].back + bytes;

		if (back > 0xffff)
			tcp->hole[i].len = 0;
		tcp->hole[i].back = (u16)back;
	}
}

/* Whether the segment, all older than seq_max, fills a hole; shrinks the hole. */
CW_INLINE int wc_fill_hole(struct wc_tcp *tcp, u32 seq, u32 end)
{
	u32 back = tcp->seq_max - seq; /* from the segment to seq_max */

	for (u32 i = 0; i < 2; i++) {
		struct wc_hole *h = &tcp->hole[i];
		u32 skip = h->back - back; /* from the hole's start to the segment */

		if (skip >= h->len)
			continue;
		if (skip) {
			h->len = (u16)skip;
		} else if (end - seq >= h->len) {
			h->len = 0;
		} else {
			h->back = (u16)(h->back - (end - seq));
			h->len = (u16)(h->len - (end - seq));
		}
		return 1;
	}
	return 0;
}

enum wc_order { WC_IN_ORDER, WC_LATE, WC_DUPLICATE };

/*
 * Where a data segment stands in the sequence space: new, late (it fills one of
 * the last two holes: a reordered request), or seen before.
 */
CW_INLINE enum wc_order wc_sequence(struct wc_state *s, const struct est_packet *p)
{
	struct wc_tcp *tcp = &s->tcp;
	u32 end = p->seq + p->payload_len, gap;

	if (!(s->flags & WC_DATA_SEEN)) {
		tcp->seq_max = end;
		return WC_IN_ORDER;
	}
	if (est_after(tcp->seq_max, p->seq)) {
		int fills = wc_fill_hole(tcp, p->seq, end);

		if (fills && est_after(end, tcp->seq_max))
			wc_seq_advance(tcp, end - tcp->seq_max);
		return fills ? WC_LATE : WC_DUPLICATE;
	}
	gap = p->seq - tcp->seq_max;
	if (gap) {
		if (tcp->hole[1].len)
			tcp->hole[0] = tcp->hole[1];
		tcp->hole[1].back = 0;
		tcp->hole[1].len = gap > 0xffff ? 0 : (u16)gap;
	}
	wc_seq_advance(tcp, end - tcp->seq_max);
	return WC_IN_ORDER;
}

/*
 * Bytes of a datagram that are no frames of its requests: QUIC's short header (1),
 * the server's connection id (0 to 20), a packet number (2), the tag (16) and the
 * frame's head (2). How long the id is shows in the smallest ACK, roughly.
 */
#define WC_OVERHEAD 21u
#define WC_OVERHEAD_MAX 41u
#define WC_ACK_FRAME 7u

CW_INLINE u32 wc_overhead(const struct wc_datagram *d)
{
	u32 seen = d->ack_min > WC_ACK_FRAME ? d->ack_min - WC_ACK_FRAME : 0;

	return CW_MIN(CW_MAX(seen, WC_OVERHEAD), WC_OVERHEAD_MAX);
}

/* A connection's first datagrams carry its handshake; their sizes mean nothing. */
#define WC_SEEN_HANDSHAKE 6u
#define WC_SEEN_FIRST 12u
/* From then on the size of a datagram with one request moves in small steps. */
#define WC_SEEN_FEW 32u
#define WC_SEEN_MANY 160u

/*
 * The size of a datagram with one request: the smallest of the first ones, then the
 * 5th percentile, followed in steps that are larger at first.
 */
CW_INLINE void wc_learn_unit(struct wc_datagram *d, u32 size)
{
	u64 unit = d->unit, fast = d->seen < WC_SEEN_MANY ? 8 : 1;

	if (d->seen < WC_SEEN_FEW) {
		if (d->seen < WC_SEEN_HANDSHAKE || size < unit) {
			d->unit = size;
			d->step = 0;
		}
	} else if ((u64)size * 100 < unit * 97) {
		d->unit -= (u32)(unit * 19 * fast / 2000);
	} else if ((u64)size * 100 > unit * 103) {
		d->unit += (u32)(unit * fast / 2000);
	}
	if (d->seen < 255)
		d->seen++;
}

/*
 * What one more request adds to a datagram of one: as long as nothing else is known,
 * that one less its overhead.
 */
CW_INLINE u32 wc_step(const struct wc_datagram *d)
{
	u32 overhead = wc_overhead(d) << 8;

	if (d->step)
		return d->step;
	return d->unit > overhead ? d->unit - overhead : 0;
}

/*
 * Then it is the median of what the others of a few did add. A wrong first guess
 * counts few of them right, and sixteen of them wrong.
 */
CW_INLINE void wc_learn_step(struct wc_datagram *d, u32 size, u32 k)
{
	u32 least = d->unit - CW_MIN(d->unit, WC_OVERHEAD_MAX << 8);
	u32 most = d->unit - CW_MIN(d->unit, WC_OVERHEAD << 8);
	u32 step = wc_step(d), move = step >> 7;

	if (k < 2 || k > 6)
		return;
	step = size - d->unit > (k - 1) * step ? step + move : step - move;
	d->step = CW_MIN(CW_MAX(step, least), most);
}

/* Requests in a datagram of some size, in 1/256 byte, as far as is known. */
CW_INLINE u32 wc_requests_in(const struct wc_datagram *d, u32 size)
{
	u32 step = wc_step(d), more = size > d->unit ? size - d->unit : 0, k;

	if (!step)
		return 1;
	k = 1 + (more + step * 3 / 8) / step;
	return CW_MIN(k, WC_RING);
}

/*
 * How many requests an encrypted datagram carries, by its size. What comes along,
 * ACKs mostly, only adds to it: less than five eighths of a request are none.
 */
CW_GLOBAL u32 wc_requests(struct wc_state *s, u32 payload_len, int full)
{
	u32 size = payload_len << 8, k;
	struct wc_datagram *d;

	/* A full one is a part of a request, or probes the path's MTU (RFC 8899). */
	if (!s || full || payload_len > 0xffff)
		return 1;
	d = &s->datagram;
	wc_learn_unit(d, size);
	if (d->seen <= WC_SEEN_HANDSHAKE)
		d->largest = 0;
	if (d->seen == WC_SEEN_HANDSHAKE) { /* bursts so far were none of requests */
		__builtin_memset(s->hist, 0, sizeof(s->hist));
		s->bursts = 0;
		d->seen++;
	}
	if (d->seen <= WC_SEEN_FIRST) {
		d->largest = CW_MAX(d->largest, payload_len);
		/* It was counted before the size of one request was known. */
		if (d->seen == WC_SEEN_FIRST) {
			k = wc_requests_in(d, (u32)d->largest << 8);
			if (k > 1)
				s->hist[CW_MASKED(k - 1, WC_RING - 1)] += 2;
		}
	}
	k = wc_requests_in(d, size);
	wc_learn_step(d, size, k);
	return k;
}

#endif
