/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The state of the window-chain estimator: 128 bytes, two cache lines.
 *
 * The estimator follows a client that keeps up to W requests outstanding. Each
 * response lets it send the next request, so packets come in bursts, and a
 * burst of n requests says that n responses have arrived. The state therefore
 * holds the send times of the outstanding requests (a ring, oldest first), a
 * histogram of burst sizes (which tells W), the burst that is being collected
 * and, at times, one burst before it whose meaning the next one decides.
 *
 * How 128 bytes suffice: one absolute time (last_ns); the other times are
 * distances from it in the unit that their use needs.
 *
 *   bytes  field        unit      holds until   why this width is enough
 *   8      last_ns      ns        -             the anchor of all other times
 *   32     ring         4.1 us *  251 ms *      latencies are means of many
 *   16     hist         bursts    255           halved when the sum passes 250
 *   4      cur_age      16 ns     68 s          start of a burst, exact enough
 *   4      cur_idle     1 us      36 min        subtracted from a latency; 31 bits
 *   4      cur_off      256 ns    18 min        a sum over the burst
 *   4      hold_gap     16 ns     68 s          as cur_age
 *   4      silence      1 us      9 min         compared with 2 ms; 29 bits
 *   4      latency      16 ns     68 s          thresholds only
 *   4      ack_mean     1 us      73 min        half-weight samples; a time modulo
 *                                               2^32 where silent ACKs are trusted
 *   2      ack_weight   64 bytes  4 MB          weight of ack_mean
 *   2      cur_lead     4.1 us    268 ms        half-weight samples
 *   2      hold_lead    4.1 us    268 ms        half-weight samples
 *   2      handshake    4.1 us    268 ms        thresholds only
 *   2      packet_max   bytes     2 KiB         IP length; no larger packet is kept
 *          to answers   flags
 *   1      cur_n                                255 requests in a burst
 *   2      cur_acked, hold_acked                eighths of an octave
 *   1      lone_bias    1/256     -             a prior, see window_chain_roots.h
 *   5      bursts to http2, flags
 *   24     transport    -         -             TCP or datagram, never both
 *
 * What passes its range stays at the largest value (or, for leads, becomes
 * "none"). *: 131 us and 8 s, or 4.2 ms and 4 min, for slow flows; see
 * window_chain_ring.h.
 */
#ifndef CAUSEWAY_WINDOW_CHAIN_STATE_H
#define CAUSEWAY_WINDOW_CHAIN_STATE_H

#include "estimator.h"

#define WC_RING 16u /* requests outstanding that are told apart */

/* log2 of the units in the table above, in ns */
#define WC_BURST_SHIFT 4
#define WC_OFF_SHIFT 8
#define WC_IDLE_SHIFT 10
#define WC_LEAD_SHIFT 12
#define WC_ACK_BYTES_SHIFT 6

enum wc_flags {
	WC_SYN_SEEN = 1 << 0,  /* last_ns is that of a SYN without an ACK yet */
	WC_DATA_SEEN = 1 << 1, /* a burst is open; seq, request_ack valid */
	WC_ACK_SEEN = 1 << 2,  /* ack_max valid; of datagrams: one was a lone ACK */
	WC_TS_SEEN = 1 << 3,   /* clock_min valid */
	WC_LAST_FULL = 1 << 4, /* the last data packet was as large as they get */
	WC_HOLD = 1 << 5,      /* hold_gap and hold_lead valid */
	WC_TCP = 1 << 6,       /* the transport is TCP, and readable */
	WC_BOUND = 1 << 7,     /* what is outstanding may be younger than it seems */
};

/*
 * A client delays the ACK of a segment that comes alone (RFC 1122, 4.2.3.2; Linux: 40 ms), also
 * of the last one of a response, behind the ACK of those before it.
 */
#define WC_DELAYED_MIN_NS (36ull * CW_MS_NS)
#define WC_DELAYED_MAX_NS (64ull * CW_MS_NS)
/* The most bytes of one segment. */
#define WC_SEGMENT 1460u

/* What the answers that a client acknowledges have shown. */
enum wc_answers {
	WC_ANSWERS_PLAIN,
	WC_ANSWERS_INTERIM, /* the last one was as short as 100 Continue */
	WC_ANSWERS_SHORT,   /* two in a row were: it is no HTTP/1.1 */
	WC_ANSWERS_HTTP2,   /* HTTP/2 without TLS */
};

/*
 * When the client sends a request after what it answers: the latest that its first ones show,
 * but that one was prompt shows most.
 */
enum wc_pace {
	WC_PACE_UNKNOWN, /* nothing dated them */
	WC_PACE_TIMELY,	 /* all within a tick, as those do that leave at once */
	WC_PACE_TARDY,	 /* more than a tick later */
	WC_PACE_PROMPT,	 /* as soon as it had come */
};

/* A range of sequence numbers that was skipped; len = 0: none. */
struct wc_hole {
	u16 back; /* from its start to seq_max, bytes */
	u16 len;  /* bytes */
};

struct wc_tcp {
	u32 ack_max;	 /* highest ACK number in any packet */
	u32 request_ack; /* highest ACK number in a data packet */
	u32 seq_max;	 /* highest sequence number after a data packet */
	u32 clock_min;	 /* 1 us: smallest arrival minus TSecr, modulo 2^32 */
	struct wc_hole hole[2];
};

struct wc_datagram {
	u32 unit;    /* payload with one request, bytes * 256 */
	u32 step;    /* payload that one more request adds, bytes * 256; 0: unknown */
	u32 ack_min; /* smallest payload with nothing but an ACK; 0: none yet */
	u8 seen;     /* datagrams that unit has learnt from, at most 255 */
	u8 silent;   /* silent ACKs since the last root */
	u8 bursts;   /* bursts since then */
	u8 trust;    /* how often of late they were as few as they can be, of 256,
		      * less WC_TRUST_START */
	u16 largest; /* payload of the first datagrams with requests */
};

#define WC_31_BITS 0x7fffffffu /* the most that cur_idle holds, */
#define WC_29_BITS 0x1fffffffu /* and silence */

struct wc_state {
	u64 last_ns; /* last data packet */
	u16 ring[WC_RING];
	u8 hist[WC_RING]; /* hist[n - 1]: bursts of n requests */

	u32 cur_age;  /* from the first packet of the open burst to last_ns */
	u32 cur_idle : 31;   /* client's idle time before the open burst */
	u32 cur_undated : 1; /* and the response before it may have come at another time */
	u32 cur_off;  /* sum over its requests of the time since its start */
	u32 hold_gap; /* from the start of the held burst to cur's start */
	u32 silence : 29;  /* 1 + from last_ns to the last pure ACK; 0: none */
	u32 pushes : 1;	   /* a segment had PSH set: one without has more of its request behind it */
	u32 pings : 1;	   /* HTTP/2 without TLS has sent PINGs */
	u32 late_ack : 1;  /* a pure ACK after that seems to have been delayed */
	u32 latency;  /* tracked median */
	u32 ack_mean; /* from cur's start to the ACKs since, mean by bytes; or the
		       * mean time of silent ACKs, see window_chain_silent.h */
	u16 ack_weight;
	u16 cur_lead;  /* 1 + from the mean ACK to the open burst; 0: none; 1: and nothing
			* tells how long the client had sat on what it acknowledges */
	u16 hold_lead; /* the same, of the held burst; of HTTP/2 with one request out, in which none
			* is held: see wc_learn_record */
	u16 handshake; /* SYN to first ACK; 0: not seen */
	u16 packet_max : 11;
	u16 last_long : 1;   /* the last data packet is of a request with several full ones */
	u16 pace : 2;	     /* how late its first requests left, enum wc_pace */
	u16 answers : 2;     /* what they have shown, enum wc_answers */
	u8 cur_n;	 /* requests in the open burst */
	u8 bursts : 5;	/* closed so far; runs from 16 to 23 in the end */
	u8 resends : 3; /* how often of late the client paused as if to resend */
	u8 ring_head : 4;
	u8 ring_level : 2;
	u8 pauses : 2; /* how often of late it paused otherwise */
	u8 window : 5; /* inferred W */
	u8 parts : 2;  /* how often of late several packets were parts of one request */
	u8 tls : 1;    /* the connection began with a handshake of TLS 1.3 */
	u8 ring_len : 5;
	u8 cur_late : 2; /* requests in the open burst of earlier ones; 3 or more */
	u8 http2 : 1;	 /* inside TLS, as its SETTINGS show; without tls: as short requests do */
	u8 flags;
	u8 cur_acked;  /* 8 log2 of the bytes newly acknowledged by the open burst;
			* of datagrams: silent ACKs before it */
	u8 hold_acked; /* the same, of the last burst of one request, held or not */
	u8 lone_bias;  /* how often of late a held burst acknowledged too little */

	union {
		struct wc_tcp tcp;
		struct wc_datagram datagram;
	};
};
_Static_assert(sizeof(struct wc_state) == 128, "wc_state");

/* Where trust starts: two pages that speak for it suffice. */
#define WC_TRUST_START 96u

CW_INLINE u32 wc_trust(const struct wc_datagram *d)
{
	return (d->trust + WC_TRUST_START) & 0xff;
}

/* Whether a silent ACK stands for a response, as far as this flow has shown. */
CW_INLINE int wc_trusts_silence(const struct wc_state *s)
{
	return !(s->flags & WC_TCP) && wc_trust(&s->datagram) >= 128;
}

/* A closed burst, spelled out for the time of one step. */
struct wc_burst {
	u64 at_ns;   /* its first packet */
	u64 used_ns; /* when the ring is used next, after it */
	u64 idle_ns; /* how long the client sat on the response before it */
	u32 off;     /* mean time of its requests after at_ns, 256 ns */
	u16 lead;    /* 1 + from the mean ACK before it to at_ns - idle_ns, 4.1 us; 0: none */
	u8 acked;    /* 8 log2 of the bytes that it acknowledged first */
	u8 n;	     /* requests in it, at least 1 */
};

CW_INLINE u64 wc_off_ns(const struct wc_burst *b)
{
	return (u64)b->off << WC_OFF_SHIFT;
}

CW_INLINE u64 wc_lead_ns(const struct wc_burst *b)
{
	return b->lead ? (u64)(b->lead - 1u) << WC_LEAD_SHIFT : 0;
}

CW_INLINE u64 wc_handshake_ns(const struct wc_state *s)
{
	return (u64)s->handshake << 12;
}

/*
 * The path's round trip, which every response takes besides what its server does: the
 * handshake's, or that of a first response which was sooner; 0: not known.
 */
CW_INLINE u64 wc_path_ns(const struct wc_state *s)
{
	return s->handshake == 0xffff ? 0 : wc_handshake_ns(s);
}

/*
 * Whether the path, not the server, is most of a round trip. Requests are then
 * often coalesced, and no response can be faster than the handshake was.
 */
CW_INLINE int wc_is_wide(const struct wc_state *s)
{
	return wc_handshake_ns(s) > CW_MS_NS;
}

/*
 * A request that leaves within this after what it answers is prompt, by the server's clock: of
 * a dozen answers, sent anywhere in their ticks, one is nearly always that early in its own. One
 * that leaves a tick later than these is not, wherever in its tick the answer was sent.
 */
#define WC_PROMPT_NS_BY_ECHO (256ll * CW_US_NS)
#define WC_TARDY_NS (1280ll * CW_US_NS)
/* With one request at a time an echo older than this is one that the client sat on. */
#define WC_ECHO_IDLE_MIN_OF_ONE_NS (3ll * CW_MS_NS)
/*
 * Bursts in which a client that does not always pause has been prompt. Not the first ones:
 * many clients greet a server before they work.
 */
#define WC_PROMPT_FIRST 4u
#define WC_PROMPT_BURSTS 16u
/*
 * With ticks of 1 ms the one instant that dates all pauses of a client that is never prompt is
 * known to half a tick. That much of a latency below this is too much.
 */
#define WC_NEVER_PROMPT_MIN_NS (3ull * CW_MS_NS)

/* Whether the client pauses before each request, if only for a tick. */
CW_INLINE int wc_is_never_prompt(const struct wc_state *s)
{
	return s->pace == WC_PACE_TARDY && s->window == 1 && s->bursts >= WC_PROMPT_BURSTS;
}

/* Whether the connection began with a handshake of TLS 1.3. */
CW_INLINE int wc_in_tls(const struct wc_state *s)
{
	return s->tls || s->http2;
}

/* The median of the latencies so far; 0: none yet. */
CW_INLINE u64 wc_typical_ns(const struct wc_state *s)
{
	return (u64)s->latency << WC_BURST_SHIFT;
}

/* Move the tracked latency 1/16 up or down: it settles at the median. */
CW_INLINE void wc_track_up(struct wc_state *s)
{
	s->latency = cw_sat32((u64)s->latency + (s->latency >> 4));
}

CW_INLINE void wc_track(struct wc_state *s, u64 v_ns)
{
	u64 v = v_ns >> WC_BURST_SHIFT;

	if (!s->latency)
		s->latency = cw_sat32(v);
	else if (v > s->latency)
		wc_track_up(s);
	else
		s->latency -= s->latency >> 4;
}

/*
 * The idle time of a client that sent a lost request again: none, but everything
 * before it was answered. Real ones are longer.
 */
#define WC_RESENT_IDLE_NS (1ull << WC_IDLE_SHIFT)

/* count latencies that sum to total_ns, completed at when_ns. */
CW_INLINE void wc_commit(struct wc_state *s, struct est_sample *out, u64 when_ns,
			 u64 total_ns, u32 count)
{
	int bound = s->flags & WC_BOUND;

	/* Where nothing else is known, a bound is not what is typical. */
	if (!bound || s->latency)
		wc_track(s, count == 1 ? total_ns : total_ns / count);
	out->when_ns = when_ns;
	out->window = s->window;
	out->sum_halves_ns += 2 * total_ns;
	out->weight_halves += 2 * count;
	if (bound) {
		s->flags &= (u8)~WC_BOUND;
		out->bound_halves = (u16)(out->bound_halves + 2);
	}
}

#endif
