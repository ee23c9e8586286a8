/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Window-chain: response latency from client-to-server packets alone.
 *
 * The idea of causal pairs (a request, and the request that its response set
 * off) is that of PIRATE, "Measuring Round-Trip Response Latencies Under
 * Asymmetric Routing", section 3.1. PIRATE looks for the gaps between bursts.
 * This estimator goes on to follow each request: it infers the client's window,
 * keeps the send times of what is outstanding, and lets every burst complete as
 * many of them as the window demands. So it also sees responses that come
 * staggered, which no gap threshold can.
 *
 * With readable TCP headers the ACK number tells which packets a response
 * triggered, and TSecr how long the client sat on it. Without them (QUIC, IPsec,
 * opaque = 1) gaps and packet sizes must do.
 */
#ifndef CAUSEWAY_WINDOW_CHAIN_H
#define CAUSEWAY_WINDOW_CHAIN_H

#include "window_chain_bursts.h"
#include "window_chain_signals.h"

/* After such a gap a datagram flow without ACKs has been idle. */
#define WC_DATAGRAM_IDLE_NS (200ull * CW_MS_NS)
/* QUIC acknowledges within 25 ms (max_ack_delay, RFC 9000, 18.2); some slack. */
#define WC_ACK_DELAY_NS (30ull * CW_MS_NS)
/* After such a gap no response is awaited any more. */
#define WC_FORGET_NS (120ull * 1000 * CW_MS_NS)
/* Idle time of the client is not looked for below these. */
#define WC_IDLE_MIN_NS (2ull * CW_MS_NS)
#define WC_ECHO_IDLE_MIN_NS (6ll * CW_MS_NS)
/* Half the resolution of TSecr: what an echo's lag may be too long by. */
#define WC_ECHO_SLACK_NS 500000ll
/* Resolution of TSecr: where an ACK tells the same more exactly, it counts. */
#define WC_ECHO_TICK_NS 1000000ll
/*
 * A packet soon after one of full size is the rest of the same request. Over TCP
 * also a later one, if no response arrived in between: a slow uplink sends the
 * segments of one upload more than that apart.
 */
#define WC_CONTINUE_NS (1ull * CW_MS_NS)
#define WC_FULL_MIN 1280u
#define WC_ETHERNET_MTU 1500u

/*
 * A request of several full packets is alone in its burst, in however many writes its program
 * sends it, where no more than so many have been out. Where more have, others follow it.
 */
#define WC_LONG_ALONE 2u

/* What one data packet says, as far as the burst logic cares. */
struct wc_request {
	u64 now_ns;  /* when it arrived */
	u64 gap_ns;  /* since the last data packet */
	s64 lag_ns;  /* that the client sat on the data it echoes; -1: unknown */
	u32 n;	     /* requests in the packet */
	u32 acked;   /* bytes that no packet before has acknowledged */
	u32 acked_since; /* bytes that no request before has acknowledged */
	u8 advances; /* triggered by a response, not sent with the one before */
	u8 new_ack;  /* no packet before had this ACK number */
	u8 late;     /* reordered */
	u8 stray;    /* reordered, and of an earlier burst */
	u8 missing;  /* what comes before it in the stream was not seen */
	u8 ends;     /* none at all: the client closes the connection */
};

/*
 * The burst that a packet opens. It lies on the stack beside all else that the balancer
 * knows of a packet, where each byte counts.
 */
struct wc_opening {
	u64 at_ns;   /* when the packet arrived */
	u64 idle_ns; /* that the client was idle before it, or waited to send it again */
	u16 lead;    /* as cur_lead */
	u8 acked;    /* as cur_acked */
	u8 n;	     /* requests in the packet */
	u8 fresh;    /* all before it is to be forgotten */
	u8 lost;     /* it was sent before, and lost */
	u8 tcp;
};
_Static_assert(sizeof(struct wc_opening) == 24, "wc_opening");

/* A new connection: forget the old one, remember when it began. */
CW_INLINE void wc_begin(struct wc_state *s, u64 t_ns)
{
	__builtin_memset(s, 0, sizeof(*s));
	s->last_ns = t_ns;
	s->flags = WC_SYN_SEEN;
}

CW_INLINE void wc_first_ack(struct wc_state *s, u64 t_ns)
{
	u64 handshake = (t_ns - s->last_ns) >> 12;

	s->handshake = (u16)CW_MIN(handshake, 0xffffu);
	s->flags &= (u8)~WC_SYN_SEEN;
}

/*
 * The handshake of TLS is over: what was outstanding was no request. What answered it bounds
 * the path, as a first response does where there is no TLS.
 */
CW_INLINE void wc_begin_requests(struct wc_state *s, u64 t_ns)
{
	wc_path_at_most(s, s->silence ? (u64)(s->silence - 1) << WC_IDLE_SHIFT : t_ns - s->last_ns);
	s->flags &= (u8)~(WC_DATA_SEEN | WC_LAST_FULL);
	s->tcp.hole[0].len = 0;
	s->tcp.hole[1].len = 0;
	s->cur_n = 0;
	s->cur_late = 0;
	s->packet_max = 0;
	s->silence = 0;
	s->late_ack = 0;
	s->last_ns = t_ns;
}

/* Read the TCP header of a data packet. 0: it is to be ignored, as no request, or seen. */
CW_INLINE int wc_read_tcp(struct wc_state *s, const struct est_packet *p, u64 now_ns,
			  struct wc_request *r)
{
	struct wc_tcp *tcp = &s->tcp;
	int first = !(s->flags & WC_DATA_SEEN);
	u32 next_seq = tcp->seq_max;
	enum wc_order order = wc_sequence(s, p);

	if (order == WC_DUPLICATE)
		return 0;
	r->missing = !first && order == WC_IN_ORDER && p->seq != next_seq;
	if (wc_is_control(s, p->payload_len, p->ack - tcp->request_ack)) {
		wc_pure_ack(s, p, now_ns);
		return 0;
	}
	r->late = order == WC_LATE;
	r->advances = first || est_after(p->ack, tcp->request_ack);
	r->new_ack = !(s->flags & WC_ACK_SEEN) || est_after(p->ack, tcp->ack_max);
	if (r->new_ack) {
		if ((s->flags & WC_ACK_SEEN) && !first) {
			r->acked = p->ack - tcp->ack_max;
			wc_ack_arrived(s, wc_ack_weight(r->acked), r->gap_ns);
		}
		s->flags |= WC_ACK_SEEN;
		tcp->ack_max = p->ack;
	}
	if (r->advances && wc_goes_on_handshake(s, p)) {
		s->cur_late++;
		return 0;
	}
	if (r->advances && wc_is_handshake(s, p)) {
		wc_begin_requests(s, now_ns);
		/* Rules for HTTP are not for a protocol that asked for TLS. */
		s->tls = wc_is_tls13(p->payload_len) &&
			 (!s->bursts || (s->bursts == 1 && s->cur_acked));
		return 0;
	}
	if (r->advances) {
		r->acked_since = first ? 0 : p->ack - tcp->request_ack;
		tcp->request_ack = p->ack;
	}
	r->stray = r->late && p->ack != tcp->request_ack;
	wc_learn_record(s, p->payload_len);
	return 1;
}

/* Without ACK numbers a pause is all there is: a tenth of the latency. */
CW_INLINE int wc_paused(const struct wc_state *s, u64 gap_ns)
{
	u64 pause = wc_typical_ns(s) / 10;

	pause = CW_MAX(CW_MIN(pause, 200ull * CW_US_NS), 20ull * CW_US_NS);
	return gap_ns > pause;
}

/*
 * Whether a client of datagrams had been idle. It acknowledges what it receives
 * within 25 ms, in a packet of its own if it has nothing to send: a request long
 * after such an ACK begins something new, one without it answers what has just
 * come in, however late. Flows that never sent an ACK alone, as other protocols
 * than QUIC, do not tell; there a long gap counts as idle time.
 */
CW_INLINE int wc_was_idle(const struct wc_state *s, u64 gap_ns)
{
	if (!(s->flags & WC_ACK_SEEN))
		return gap_ns >= WC_DATAGRAM_IDLE_NS;
	return s->silence && wc_silent_ns(s, gap_ns) >= WC_ACK_DELAY_NS;
}

/*
 * Whether everything before the packet is to be forgotten. With datagrams that is
 * so after idle time: an ACK comes up to 25 ms after the last response and would
 * make it slower than it was. So it is where one request is out at a time and one was not
 * seen, that another response has answered since: two responses and a pause are no response.
 */
CW_INLINE int wc_is_fresh(const struct wc_state *s, const struct wc_request *r, int tcp)
{
	if (!(s->flags & WC_DATA_SEEN) || r->gap_ns >= WC_FORGET_NS)
		return 1;
	if (r->missing && r->advances && s->window == 1)
		return 1;
	/* What was taken for parts of a handshake was none. */
	if (tcp && r->advances && s->cur_n == 1 && s->cur_late)
		return 1;
	return !tcp && wc_was_idle(s, r->gap_ns);
}

/* A last response later than that was acknowledged later than it came. */
#define WC_IDLE_LATENCIES 4u

/*
 * How long a client of datagrams had been idle, by its last ACK; 0: that tells
 * nothing. It tells where silent ACKs are trusted, and come about when responses do.
 */
CW_INLINE u64 wc_idle_by_silence(const struct wc_state *s, const struct wc_request *r)
{
	u64 last = (u64)(s->silence - 1) << WC_IDLE_SHIFT;

	if (!s->silence || last > r->gap_ns || r->gap_ns >= WC_FORGET_NS ||
	    !wc_trusts_silence(s) || last >= WC_IDLE_LATENCIES * wc_typical_ns(s))
		return 0;
	return r->gap_ns - last;
}

/* Nothing is known to be outstanding. */
CW_INLINE void wc_forget(struct wc_state *s, int page_ended)
{
	wc_ring_clear(s);
	s->flags &= (u8)~WC_BOUND;
	if (page_ended)
		wc_silence_judge(s);
}

/* As it is configured mostly, in Amazon's and in Google's networks. */
CW_INLINE int wc_is_jumbo(u32 ip_len)
{
	return ip_len == 9000 || ip_len == 9001 || ip_len == 8896;
}

/*
 * Whether more of the same request may follow: the packet fills the path's MTU, as far as
 * this flow has shown it. TCP sets PSH at the end of what a program has written (RFC 9293,
 * 3.9.1.2): without it more follows, whatever the MTU is. A packet beyond Ethernet's MTU is
 * either one of a jumbo path or several segments in one buffer (TSO, GRO): then
 * its last segment is full where the payload is a multiple of what one holds, by
 * that MTU or by the largest packet so far.
 */
CW_INLINE int wc_is_full(struct wc_state *s, const struct est_packet *p)
{
	u32 payload = est_payload(p), header = p->ip_len - payload;
	int more = est_is_tcp(p) && s->pushes && !(p->tcp_flags & EST_TCP_PSH);

	if (p->ip_len > WC_ETHERNET_MTU) {
		if (more || wc_is_jumbo(p->ip_len))
			return 1;
		return header < WC_FULL_MIN &&
		       (payload % (WC_ETHERNET_MTU - header) == 0 ||
			(s->packet_max >= WC_FULL_MIN && payload % (s->packet_max - header) == 0));
	}
	if (p->ip_len > s->packet_max)
		s->packet_max = (u16)p->ip_len;
	return more || (p->ip_len >= WC_FULL_MIN && p->ip_len == s->packet_max);
}

/*
 * One ACK for the tickets of TLS and the first response echoes the tickets, which are
 * as old as the request. A later echo is the response's. It dates that also where the
 * client acknowledges when its program reads, which a busy one does late.
 */
CW_INLINE int wc_dates_first(s64 lag_ns, u64 gap_ns)
{
	s64 lag = lag_ns - WC_ECHO_SLACK_NS;

	return lag_ns >= 0 && lag + WC_ECHO_TICK_NS < (s64)gap_ns && lag < (s64)WC_LAG_SLACK_NS;
}

/*
 * A first response that no echo dates ends when the client's program reads it, which is up to
 * this late where it is busy with the handshakes of other connections. Where that is a tenth of
 * the response or more, the response is a bound, and of the kind that is returned; 0: it is none.
 */
#define WC_READ_LATE_NS (1500ull * CW_US_NS)

CW_GLOBAL u32 wc_reads_late(struct wc_state *s, s64 lag_ns, u64 gap_ns)
{
	if (!s || !wc_in_tls(s) || s->bursts || gap_ns >= 10 * WC_READ_LATE_NS ||
	    wc_dates_first(lag_ns, gap_ns))
		return 0;
	return lag_ns < 0 || gap_ns < 4 * WC_READ_LATE_NS ? EST_SYSTEMATIC : EST_NARROW;
}

/*
 * How long the client had been idle when it sent this request: it had
 * acknowledged all data some time before, or it echoes an old timestamp.
 */
CW_INLINE u64 wc_idle_before(const struct wc_state *s, struct wc_request *r)
{
	s64 least = s->window > 1 ? WC_ECHO_IDLE_MIN_NS : WC_ECHO_IDLE_MIN_OF_ONE_NS;
	s64 lag = r->lag_ns - WC_ECHO_SLACK_NS;
	u64 idle = 0;
	int behind = 0;

	if (r->late)
		return 0;
	if (wc_is_never_prompt(s)) {
		/* The few echoes that were prompt are as likely late in their tick as early. */
		least = WC_ECHO_SLACK_NS / 2;
		lag = r->lag_ns - least;
	}
	if (wc_in_tls(s) && !s->bursts) {
		behind = wc_dates_first(r->lag_ns, r->gap_ns);
		lag = behind ? lag : 0;
	} else if (r->ends && !s->bursts) {
		/* The first response is acknowledged at once: an old echo is of a slow clock. */
		lag = 0;
	}
	if (r->new_ack) {
		if (r->lag_ns > least && r->acked <= WC_SEGMENT)
			idle = (u64)lag;
	} else if (s->silence) {
		u64 silent = wc_silent_ns(s, r->gap_ns);

		/* A delayed ACK is late itself, and a request may follow it at once. */
		if (silent > WC_IDLE_MIN_NS || r->ends || r->lag_ns > (s64)WC_DELAYED_MIN_NS)
			idle = silent;
		if (idle && lag <= (s64)r->gap_ns &&
		    lag > (s64)silent + (r->ends && behind ? 0 : WC_ECHO_TICK_NS))
			idle = (u64)lag;
	}
	if (idle <= r->gap_ns)
		return idle;
	/* An echo from before the request, as of a clock that stood still, dates no answer. */
	r->lag_ns = -1;
	return 0;
}

/* Whether the client sends its requests at once shows in a connection's first ones. */
CW_INLINE void wc_learn_prompt(struct wc_state *s, const struct wc_request *r)
{
	u32 pace = WC_PACE_TIMELY;

	if (r->lag_ns < 0 || s->bursts < WC_PROMPT_FIRST || s->bursts >= WC_PROMPT_BURSTS)
		return;
	/* An ACK of its own dates what comes after it. */
	if (r->lag_ns < WC_PROMPT_NS_BY_ECHO || s->silence)
		pace = WC_PACE_PROMPT;
	else if (r->lag_ns > WC_TARDY_NS)
		pace = WC_PACE_TARDY;
	if (pace > s->pace)
		s->pace = pace & 3;
}

/*
 * A request that nobody saw, because it was lost before it came here, is sent again
 * when the client's timer ends: no less than 200 ms (Linux, TCP_RTO_MIN; RFC 6298
 * has 1 s) and a round trip after it was sent, rounded up to ticks of at most 10 ms.
 */
#define WC_RESEND_NS (200ull * CW_MS_NS)
#define WC_RESEND_SLACK_NS (12ull * CW_MS_NS)
/* Shorter pauses of a client tell nothing about what its long ones are. */
#define WC_PAUSE_NS (50ull * CW_MS_NS)

/* Servers acknowledge within 40 ms (Linux, TCP_DELACK_MIN): a round trip has no more. */
#define WC_DELACK_NS (40ull * CW_MS_NS)

CW_INLINE int wc_may_resend(const struct wc_state *s, u64 pause_ns)
{
	u64 trip = CW_MIN(wc_typical_ns(s), wc_handshake_ns(s) + WC_DELACK_NS);

	return pause_ns >= WC_RESEND_NS &&
	       pause_ns <= WC_RESEND_NS + WC_RESEND_SLACK_NS + 2 * trip;
}

/*
 * Whether a pause of the client was the wait for that timer, and the request is as
 * old as the pause. A client that thinks pauses for other times too, mostly: a flow
 * that did so of late has its pauses taken for idle time. So has one that pauses for
 * just that long again and again, as a client that polls: losses are rarer. Every
 * eight bursts one such pause is forgotten (wc_window_update).
 */
#define WC_PAUSES_FEW 2u
#define WC_PAUSES_MOST 3u
#define WC_RESENDS_FEW 4u
#define WC_RESENDS_MOST 7u
/* Bursts from which on a flow tells how rare its pauses are. */
#define WC_PAUSE_BURSTS 8u

CW_GLOBAL int wc_was_lost(struct wc_state *s, u64 idle_ns)
{
	u32 pauses, resends;

	if (!s)
		return 0;
	pauses = s->pauses;
	resends = s->resends;
	if (!wc_may_resend(s, idle_ns)) {
		s->pauses = (u8)CW_MIN(pauses + 2, WC_PAUSES_MOST);
		return 0;
	}
	s->pauses = pauses ? pauses - 1 : 0;
	s->resends = (u8)CW_MIN(resends + 2, WC_RESENDS_MOST);
	return pauses < WC_PAUSES_FEW && resends < WC_RESENDS_FEW &&
	       s->bursts >= WC_PAUSE_BURSTS;
}

/*
 * From the mean ACK since the open burst began, or from the mean of the silent ones
 * where these can be trusted, to idle_ns before this packet.
 */
CW_INLINE u16 wc_lead(const struct wc_state *s, u64 gap_ns, u64 idle_ns)
{
	u64 mean = (u64)s->ack_mean << WC_IDLE_SHIFT, lead;
	u64 done = wc_since_burst(s, gap_ns - idle_ns);

	if (!s->ack_weight)
		return 0;
	if (wc_trusts_silence(s))
		return wc_silence_lead(s, s->last_ns + gap_ns - idle_ns);
	lead = done > mean ? done - mean : 0;
	lead = (lead + (1 << (WC_LEAD_SHIFT - 1))) >> WC_LEAD_SHIFT;
	return lead >= 0xffff ? 0 : (u16)(lead + 1);
}

/* Whether the packet is the rest of the request that the last one began. */
CW_INLINE int wc_continues(const struct wc_state *s, const struct wc_request *r, int tcp)
{
	u64 within = tcp && !r->advances ? WC_FORGET_NS : WC_CONTINUE_NS;

	if (tcp && s->last_long && !r->advances)
		return 1;
	return (s->flags & WC_LAST_FULL) && r->gap_ns < within;
}

/*
 * Whether a client that has sent the head of a request goes on with its body: what it
 * acknowledges is as long as `HTTP/1.1 100 Continue` and an empty line (RFC 9110, 15.2.1), in
 * a record of TLS 1.3 or not. Where the next answer is as short, it is another protocol, with
 * answers that happen to be.
 */
#define WC_CONTINUE_BYTES 25u
#define WC_HEAD_MIN 100u /* bytes of a packet with fields enough for that, as IP has it */

CW_INLINE int wc_is_interim(struct wc_state *s, const struct wc_request *r)
{
	u32 bytes = WC_CONTINUE_BYTES + (wc_in_tls(s) ? WC_RECORD : 0);

	if (!r->advances || s->answers > WC_ANSWERS_INTERIM)
		return 0;
	if (r->acked_since != bytes || s->packet_max < WC_HEAD_MIN) {
		s->answers = WC_ANSWERS_PLAIN;
		return 0;
	}
	s->answers++;
	return s->answers == WC_ANSWERS_INTERIM && s->window <= 1 && s->cur_n == 1;
}

/* last_ns moves to t_ns; distances from it move along. */
CW_INLINE void wc_move_last(struct wc_state *s, u64 t_ns)
{
	u64 moved = (t_ns >> WC_BURST_SHIFT) - (s->last_ns >> WC_BURST_SHIFT);

	s->cur_age = cw_sat32(s->cur_age + moved);
	s->last_ns = t_ns;
	s->silence = 0;
	s->late_ack = 0;
}

/* The packet belongs to the open burst. */
CW_INLINE void wc_join(struct wc_state *s, u64 t_ns, const struct wc_request *r)
{
	u32 n = CW_MIN(r->n, 255u - s->cur_n); /* cur_off is the sum of cur_n */
	u64 off;

	wc_move_last(s, t_ns);
	off = (u64)s->cur_age >> (WC_OFF_SHIFT - WC_BURST_SHIFT);
	s->cur_off = cw_sat32(s->cur_off + off * n);
	s->cur_n = (u8)(s->cur_n + n);
	if (r->stray)
		s->cur_late = (u8)CW_MIN(s->cur_late + r->n, 3u);
}

/* Bytes acknowledged, as cur_acked has them. */
CW_INLINE u8 wc_acked(u32 bytes)
{
	return (u8)CW_MIN((cw_log64(bytes) + 4) / 8, 255u);
}

/* How long before its packet a lost request was sent. */
CW_INLINE u64 wc_back_ns(const struct wc_opening *o)
{
	return o->lost ? o->idle_ns - WC_RESENT_IDLE_NS : 0;
}

/* Nothing else was outstanding before a lost request, or it had been answered since. */
CW_INLINE u64 wc_idle_ns(const struct wc_opening *o)
{
	return o->lost ? WC_RESENT_IDLE_NS : o->idle_ns;
}

/* What the state has of the burst that begins. */
CW_INLINE void wc_open(struct wc_state *s, const struct wc_opening *o)
{
	s->cur_age = cw_sat32(wc_back_ns(o) >> WC_BURST_SHIFT);
	s->cur_idle = CW_MIN(wc_idle_ns(o) >> WC_IDLE_SHIFT, WC_31_BITS) & WC_31_BITS;
	s->cur_undated = s->late_ack;
	s->cur_off = 0;
	s->cur_lead = o->lead;
	s->cur_acked = o->acked;
	s->cur_n = o->n;
	s->cur_late = 0;
	s->silence = 0;
	s->late_ack = 0;
	s->last_ns = o->at_ns;
	s->last_long = 0;
	if (!wc_trusts_silence(s)) {
		s->ack_mean = 0;
		s->ack_weight = 0;
	} else if (s->ack_weight) {
		/* A page is ending: some of what came may have set nothing off. */
		s->cur_acked = (u8)s->ack_weight;
		wc_silence_add(s, o->at_ns);
	}
	s->flags |= WC_DATA_SEEN | (o->tcp ? WC_TCP : 0);
}

/* A new burst begins, and the one before it ends. */
CW_GLOBAL int wc_turn(struct wc_state *s, const struct wc_opening *o, struct est_samples *out)
{
	int seen;

	if (!s || !o || !out)
		return 0;
	seen = s->flags & WC_DATA_SEEN;
	if (seen && s->cur_n)
		wc_close(s, o->at_ns - wc_back_ns(o), wc_idle_ns(o), o->fresh, out);
	if (o->fresh)
		wc_forget(s, seen && !o->tcp);
	wc_open(s, o);
	return 0;
}

/* A data packet: whether it opens a burst. */
CW_INLINE int wc_data(struct wc_state *s, const struct est_packet *p, struct wc_request *r,
		      struct wc_opening *o)
{
	int seen = s->flags & WC_DATA_SEEN, tcp = est_is_tcp(p), full, rest, fresh;
	u64 idle = 0;
	u16 lead = 0;

	r->n = 1;
	if (seen)
		r->gap_ns = r->now_ns - s->last_ns;
	if (tcp) {
		if (!wc_read_tcp(s, p, r->now_ns, r))
			return 0;
	} else {
		r->advances = (u8)wc_paused(s, r->gap_ns);
	}
	if (!s->pushes && p->tcp_flags & EST_TCP_PSH) {
		s->pushes = 1;
		/* What has come before it is of the same request. */
		s->last_long = seen && !r->advances;
	}
	full = wc_is_full(s, p);
	rest = wc_continues(s, r, tcp);
	if (tcp) {
		s->last_long = !r->advances && s->window <= WC_LONG_ALONE &&
			       (s->last_long || (full && s->flags & WC_LAST_FULL));
		if (s->last_long && s->cur_n > 1) {
			/* All of it is one request, cut where its program wrote it. */
			s->cur_n = 1;
			s->cur_off = 0;
			s->cur_late = 0;
		}
		if (seen && wc_is_interim(s, r)) {
			rest = 1;
			s->ack_weight = 0;
		}
	}
	s->flags = (u8)((s->flags & ~WC_LAST_FULL) | (full ? WC_LAST_FULL : 0));
	/* TCP, readable or not, sends one request per packet here; QUIC packs several. */
	if (p->proto != EST_PROTO_TCP)
		r->n = wc_requests(s, est_payload(p), full);
	if (rest) {
		wc_move_last(s, r->now_ns);
		return 0;
	}
	fresh = wc_is_fresh(s, r, tcp);
	if (fresh && seen && !tcp)
		idle = wc_idle_by_silence(s, r);
	if (idle)
		fresh = 0;
	if (!fresh && !r->advances) {
		wc_join(s, r->now_ns, r);
		return 0;
	}
	o->at_ns = r->now_ns;
	o->n = (u8)r->n;
	o->tcp = (u8)tcp;
	o->fresh = (u8)fresh;
	if (!fresh) {
		if (tcp) {
			idle = wc_idle_before(s, r);
			wc_learn_prompt(s, r);
		}
		lead = wc_lead(s, r->gap_ns, idle);
		if (tcp && idle >= WC_PAUSE_NS)
			o->lost = (u8)wc_was_lost(s, idle);
	}
	o->idle_ns = idle;
	/* 4 us more say that an echo dates it. */
	o->lead = lead == 1 && tcp && r->lag_ns >= 0 ? 2 : lead;
	o->acked = wc_acked(r->acked_since);
	return 1;
}

/*
 * The packet's time, or the last one where it is a little older (packets of one flow on
 * two CPUs). Where the clock has been put back everything starts anew.
 */
CW_INLINE u64 wc_now(struct wc_state *s, u64 t_ns)
{
	if (!est_put_back(s->last_ns, t_ns))
		return CW_MAX(t_ns, s->last_ns);
	__builtin_memset(s, 0, sizeof(*s));
	return t_ns;
}

/*
 * What a packet tells whether it carries a request or not: when it arrived, and how long
 * the client sat on the data that it echoes. 0: it tells no more.
 */
CW_INLINE int wc_arrive(struct wc_state *s, const struct est_packet *p, struct wc_request *r)
{
	u64 now = wc_now(s, p->t_ns);

	r->now_ns = now;
	r->lag_ns = -1;
	if (est_is_tcp(p)) {
		if (p->tcp_flags & EST_TCP_SYN) {
			wc_begin(s, now);
			return 0;
		}
		if ((s->flags & WC_SYN_SEEN) && (p->tcp_flags & EST_TCP_ACK))
			wc_first_ack(s, now);
		if (p->has_ts)
			r->lag_ns = wc_echo_lag(s, now, p);
	} else {
		wc_silence(s, now);
	}
	return 1;
}

/*
 * The client closes the connection: a request that is never made. Its FIN, or the last
 * ACK before it, tells when the last response came, as a burst of requests would. A FIN that
 * acknowledges one byte more answers the server's. A connection's only response is acknowledged
 * at once.
 */
CW_GLOBAL int wc_end(struct wc_state *s, const struct est_packet *p, struct est_samples *out)
{
	struct wc_request r = { .ends = 1 };
	struct wc_burst b = {};
	u32 doubt, alone;

	if (!s || !p || !out)
		return 0;
	if (!wc_arrive(s, p, &r) || !(s->flags & WC_DATA_SEEN) || !s->cur_n)
		return 0;
	r.gap_ns = r.now_ns - s->last_ns;
	r.acked = p->ack - s->tcp.ack_max;
	r.new_ack = p->tcp_flags & EST_TCP_ACK && s->flags & WC_ACK_SEEN &&
		    est_after(p->ack, s->tcp.ack_max) && r.acked > 1;
	b.at_ns = r.now_ns;
	b.idle_ns = wc_idle_before(s, &r);
	b.lead = wc_lead(s, r.gap_ns, b.idle_ns);
	doubt = wc_reads_late(s, r.lag_ns, r.gap_ns);
	alone = r.new_ack && r.lag_ns < 0 && s->bursts;
	wc_close_last(s, r.now_ns, b.idle_ns, out);
	if (r.gap_ns < WC_FORGET_NS && (r.new_ack || s->silence)) {
		wc_join_groups(out);
		b.acked = wc_acked(p->ack - s->tcp.request_ack);
		wc_root(s, &b, &out->group[1]);
		s->cur_lead = alone ? 1 : 2;
		s->cur_idle = b.idle_ns != 0;
		s->cur_acked = b.acked;
		s->cur_undated = s->late_ack;
		wc_grade(&out->group[1], doubt ? doubt : wc_doubt(s));
	}
	wc_ring_clear(s);
	s->flags &= (u8)~(WC_DATA_SEEN | WC_BOUND);
	s->cur_n = 0;
	return 0;
}

/* Any other packet: whether it opens a burst. */
CW_GLOBAL int wc_other(struct wc_state *s, const struct est_packet *p, struct wc_opening *o)
{
	struct wc_request r = {};

	if (!s || !p || !o || !wc_arrive(s, p, &r))
		return 0;
	if (est_has_request(p))
		return wc_data(s, p, &r, o);
	wc_pure_ack(s, p, r.now_ns);
	return 0;
}

/*
 * One packet of a flow. Functions that need much of the stack follow each other here and do
 * not call each other; and from the one to the next the verifier forgets on which way it came.
 */
CW_INLINE int wc_packet(struct wc_state *s, const struct est_packet *p,
			struct est_samples *out)
{
	struct wc_opening o = {};

	est_clear_all(out);
	if (wc_is_end(s, p))
		return wc_end(s, p, out);
	return wc_other(s, p, &o) ? wc_turn(s, &o, out) : 0;
}

/* No more packets: give what the open and the held burst still say. */
CW_INLINE void wc_finish(struct wc_state *s, struct est_samples *out)
{
	est_clear_all(out);
	if (s->flags & WC_DATA_SEEN)
		wc_close_last(s, s->last_ns, 0, out);
	__builtin_memset(s, 0, sizeof(*s));
}

#endif
