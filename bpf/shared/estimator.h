/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What goes into a latency estimator and what comes out.
 *
 * An estimator sees the packets of one flow in one direction, from client to
 * server, and gives response latencies (the time from a request to the last
 * byte of its response, at the client). It is a state that starts as all zero
 * bytes and a step function that is called for each packet.
 */
#ifndef CAUSEWAY_ESTIMATOR_H
#define CAUSEWAY_ESTIMATOR_H

#include <stddef.h>

#include "types.h"

#define EST_TCP_FIN 0x01
#define EST_TCP_SYN 0x02
#define EST_TCP_RST 0x04
#define EST_TCP_PSH 0x08
#define EST_TCP_ACK 0x10

#define EST_PROTO_TCP 6

/* One packet of the request direction; all fields in host byte order. */
struct est_packet {
	u64 t_ns;	 /* arrival; any clock that is monotonic within a flow */
	u32 ip_len;	 /* bytes, from the start of the IP header */
	u32 payload_len; /* bytes after the TCP or UDP header */
	u32 seq;	 /* TCP */
	u32 ack;	 /* TCP */
	u32 tsecr;	 /* TCP timestamp echo; valid where has_ts */
	u8 tcp_flags;	 /* EST_TCP_*; 0 for other protocols */
	u8 has_ts;	 /* 1: the segment has a timestamp option */
	u8 proto;	 /* IP protocol number */
	u8 opaque;	 /* 1: transport header unreadable or to be ignored */
};
_Static_assert(sizeof(struct est_packet) == 32, "est_packet");

/* All samples of a flow are off alike. */
#define EST_SYSTEMATIC 1u
/* The same, and the true latency is three quarters of that at least. */
#define EST_NARROW 2u

/*
 * Latencies that became known in one step. Weights count in halves: a sample has a
 * weight of two of them, a less certain one may have one. sum_halves_ns adds up latency
 * times weight, so that the mean is sum_halves_ns / weight_halves. A weight of 0 means
 * that there is none.
 *
 * Some samples are bounds only: the client may have been idle for a part of the time, or
 * have had more requests out than can be told apart, and nothing it sent tells. bound_halves
 * is what they weigh. Where other samples of the flow tell better they are in neither sum.
 *
 * Responses that come together are one group, and not of one latency: `single` has those that
 * are known one by one, each with a weight of two. What they leave of sum and weight is one
 * more, or those of which only the mean is known (est_rest). Where all are alike it is all.
 */
#define EST_SINGLES 15u
#define EST_SINGLE_SHIFT 4 /* 16 ns, up to 68 s */

struct est_sample {
	u64 when_ns; /* the time that they belong to; it picks the epoch */
	u64 sum_halves_ns;
	u32 weight_halves;
	u16 bound_halves;
	u8 window; /* requests outstanding at most, as inferred so far; 0: unknown */
	u8 systematic; /* the bounds are the flow's kind, and all its samples are off alike:
			* EST_SYSTEMATIC, or EST_NARROW */
	u32 singles;   /* how many `single` has; the others hold anything */
	u32 single[EST_SINGLES];
};
_Static_assert(sizeof(struct est_sample) == 88, "est_sample");

/*
 * All that one step can give: at most two groups with different times. The
 * caller adds each one to the sums of its epoch. A step writes both.
 */
struct est_samples {
	struct est_sample group[2];
};
_Static_assert(sizeof(struct est_samples) == 176, "est_samples");

/*
 * Two CPUs may take packets of one flow out of their order, by less than this. Where a packet is
 * older than that, the clock has been put back: by a step of NTP, a leap second, or as a machine
 * goes on that was halted. What is known of times before it says nothing of those behind it.
 */
#define EST_REORDERED_NS (10ull * CW_MS_NS)

CW_INLINE int est_put_back(u64 last_ns, u64 t_ns)
{
	return t_ns < last_ns && last_ns - t_ns >= EST_REORDERED_NS;
}

/* No samples. */
CW_INLINE void est_clear(struct est_sample *sample)
{
	__builtin_memset(sample, 0, offsetof(struct est_sample, single));
}

CW_INLINE void est_clear_all(struct est_samples *out)
{
	est_clear(&out->group[0]);
	est_clear(&out->group[1]);
}

/* One of the group's latencies, where there is room for it. */
CW_INLINE void est_add_single(struct est_sample *sample, u64 ns)
{
	u64 v = ns >> EST_SINGLE_SHIFT;
	u32 i = sample->singles;

	if (i >= EST_SINGLES || v > CW_U32_MAX)
		return;
	sample->single[CW_CLAMPED(i, EST_SINGLES - 1)] = (u32)v;
	sample->singles = i + 1;
}

/*
 * Payload below which an encrypted datagram carries no request: QUIC packets
 * with nothing but ACK frames have 25 to 45 bytes, and a GET whose header fields
 * the table of QPACK holds (RFC 9204) has less than 60.
 */
#define EST_OPAQUE_ACK_MAX 50u
/* IPv4 and UDP header, taken for the header of an opaque packet. */
#define EST_OPAQUE_HEADER 28u

/* Whether the packet's TCP header is there to be used. */
CW_INLINE int est_is_tcp(const struct est_packet *p)
{
	return p->proto == EST_PROTO_TCP && !p->opaque;
}

/* Bytes of payload, as far as the packet shows. */
CW_INLINE u32 est_payload(const struct est_packet *p)
{
	if (!p->opaque)
		return p->payload_len;
	return p->ip_len > EST_OPAQUE_HEADER ? p->ip_len - EST_OPAQUE_HEADER : 0;
}

/*
 * Whether the packet may carry a request: not a pure ACK, not a packet of TCP's
 * opening or closing. PIRATE, section 3.4: ACKs mark parts of responses only.
 */
CW_INLINE int est_has_request(const struct est_packet *p)
{
	if (!est_is_tcp(p))
		return est_payload(p) >= EST_OPAQUE_ACK_MAX;
	return p->payload_len &&
	       !(p->tcp_flags & (EST_TCP_FIN | EST_TCP_SYN | EST_TCP_RST));
}

/* Whether the client closes the connection. */
CW_INLINE int est_ends(const struct est_packet *p)
{
	return est_is_tcp(p) && p->tcp_flags & (EST_TCP_FIN | EST_TCP_RST) &&
	       !(p->tcp_flags & EST_TCP_SYN);
}

/* Serial number arithmetic (RFC 1982): a comes after b. */
CW_INLINE int est_after(u32 a, u32 b)
{
	return (s32)(a - b) > 0;
}

#endif
