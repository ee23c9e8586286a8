/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Segments from a server to a client: the cookie goes into TSval. */
#ifndef CAUSEWAY_SERVER_COOKIE_OUT_H
#define CAUSEWAY_SERVER_COOKIE_OUT_H

#include "mss.h"
#include "timestamp_cache.h"

/* The unit of the timestamps of the socket that a segment without a full one is of. */
static __always_inline u32 sender_unit(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct tcp_request_sock *request;

	if (!sk)
		return UNIT_MS;
	request = bpf_skc_to_tcp_request_sock(sk);
	return request ? request_unit(request) : UNIT_MS;
}

/*
 * A segment without a connection's clock: a SYN-ACK, which reads the low bits of the
 * kernel's clock, or an answer from TIME_WAIT, which reads later than the last echo.
 */
static __always_inline u32
stateless_tsval(struct __sk_buff *skb, const struct segment *seg, const struct server_vip *vip, u32 cookie)
{
	u32 bits = vip->cookie.bits;

	if (!is_syn_ack(seg)) {
		struct flow_key6 key = echo_key(seg);
		u32 *echo = bpf_map_lookup_elem(&cookie_echoes, &key);

		count_event(SC_ANSWERED);
		if (echo)
			return *echo + (1u << (bits & 31));
		return cookie_t_stateless(seg->tsval, UNIT_MS, bits) << (bits & 31) | cookie;
	}
	count_event(SC_SYN_ACK);
	return cookie_t_stateless(seg->tsval, sender_unit(skb), bits) << (bits & 31) | cookie;
}

/*
 * A connection whose clock is not known: it is older than the agent, and the client
 * has echoed nothing since. Any timestamp could be one too old for its PAWS check. A
 * segment without one passes it, and the answer tells (RFC 7323 lets receivers drop
 * such a segment; then a later segment of the client tells).
 */
static __always_inline void blank(struct __sk_buff *skb, const struct segment *seg)
{
	u32 from[3] = { bpf_htonl(0x0101080a), bpf_htonl(seg->tsval), bpf_htonl(seg->tsecr) };
	u32 to[3] = { 0x01010101, 0x01010101, 0x01010101 };
	s64 change = bpf_csum_diff(from, sizeof(from), to, sizeof(to), 0);

	if (seg->ts_offset != seg->tcp_offset + sizeof(struct tcphdr) + 4)
		return; /* no kernel lays an established connection's options out otherwise */
	count_event(SC_BLANKED);
	if (bpf_skb_store_bytes(skb, seg->ts_offset - 4, to, sizeof(to), 0))
		return;
	bpf_l4_csum_replace(skb, seg->tcp_offset + TCP_CHECK_OFFSET, 0, change, 0);
}

/* Whether this is the first segment that the socket sends. */
static __always_inline bool is_fresh(struct __sk_buff *skb, struct tcp_sock *tp)
{
	u32 segments = skb->gso_segs ? skb->gso_segs : 1;

	return tp->segs_out <= segments;
}

/*
 * A full socket without a clock: sockops has not seen it open. Its first segment can
 * begin one, whoever stamped the SYN-ACK; else only an echo can.
 */
static __noinline int
begin_clock(struct __sk_buff *skb, const struct segment *seg, const struct server_vip *vip,
	    struct bpf_sock *sk)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	struct cookie_socket *state;
	struct cookie_clock clock = {};
	u32 opening_o, cookie;

	if (!tp)
		return 0;
	if (!is_opening(seg) && !is_fresh(skb, tp)) {
		blank(skb, seg);
		return 0;
	}
	if (!make_cookie(seg, vip, &cookie))
		return 0;
	state = bpf_sk_storage_get(&cookie_sockets, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!state)
		return 0;
	if (is_opening(seg)) {
		count_event(SC_OUTGOING); /* the zeros say so from now on */
		return 0;
	}
	opening_o = tp->rx_opt.rcv_tsecr ? tp->rx_opt.rcv_tsecr + tp->tsoffset : seg->tsval;
	cookie_clock_start_unsure(&clock, seg->tsval, opening_o, socket_unit(tp), vip->cookie.bits);
	empty_line(segment_name(seg));
	bpf_spin_lock(&state->lock);
	state->cookie = cookie;
	state->is_lent = CLOCK_IS_HERE;
	state->clock = clock;
	bpf_spin_unlock(&state->lock);
	count_event(SC_OPENED);
	return 1;
}

/* Whether the socket is the segment's own connection's, by its ports. */
static __always_inline bool is_of_socket(const struct segment *seg, const struct bpf_sock *sk)
{
	u16 vip_be = seg->family == IPV4 ? seg->key4.dport_be : seg->key6.dport_be;
	u16 client_be = seg->family == IPV4 ? seg->key4.sport_be : seg->key6.sport_be;

	return sk->src_port == bpf_ntohs(vip_be) && sk->dst_port == client_be;
}

/* The segment's own connection, not a socket that the kernel answers others by. */
static __always_inline struct bpf_sock *own_socket(struct __sk_buff *skb, const struct segment *seg)
{
	struct bpf_sock *sk = skb->sk;

	if (!sk)
		return NULL;
	sk = bpf_sk_fullsock(sk);
	if (!sk || sk->state == STATE_LISTEN || !is_of_socket(seg, sk))
		return NULL;
	return sk;
}

/* How often it is asked where a clock is, that comes and goes meanwhile. */
#define CLOCK_LOOKS 3

/*
 * TSval by the connection's clock. A clock that is lent comes back, as its end or the
 * lease's is near, or it was evicted.
 */
static __noinline int
clock_tsval(struct __sk_buff *skb, const struct segment *seg, struct cookie_socket *state, u32 *tsval)
{
	bool was_lent = state->is_lent, is_here = false;
	enum cookie_segment kind;
	u32 t = 0, bits, cookie;

	CW_NO_UNROLL
	for (u32 i = 0; i < CLOCK_LOOKS; i++) {
		if (was_lent || i)
			take_clock_back(state, seg->tsval);
		kind = segment_kind(skb, seg, &state->clock);
		bpf_spin_lock(&state->lock);
		/* Another CPU may have it, or have lent it meanwhile. */
		is_here = state->is_lent == CLOCK_IS_HERE;
		if (is_here)
			t = cookie_clock_stamp_kind(&state->clock, seg->tsval, kind);
		bits = state->clock.bits;
		cookie = state->cookie;
		bpf_spin_unlock(&state->lock);
		if (is_here || lent_t(state, &t))
			break;
	}
	*tsval = t << (bits & 31) | cookie;
	if (was_lent && is_here && !(seg->tcp_flags & (EST_TCP_FIN | EST_TCP_RST)))
		lend_clock(state, segment_name(seg));
	return 1;
}

/* A segment without a clock of its own connection, or of a mode without clocks. */
static __noinline int
stamp_without_clock(struct __sk_buff *skb, const struct segment *seg, const struct server_vip *vip)
{
	u32 cookie;

	if (!make_cookie(seg, vip, &cookie))
		return 0;
	if (vip->cookie.mode == COOKIE_TIMESTAMP) {
		write_timestamp(skb, seg, seg->ts_offset, seg->tsval, stateless_tsval(skb, seg, vip, cookie));
		return 0;
	}
	count_event(is_syn_ack(seg) ? SC_SYN_ACK : SC_STAMPED);
	write_timestamp(skb, seg, seg->ts_offset, seg->tsval,
			(seg->tsval & ~cookie_mask(vip->cookie.bits)) | cookie);
	return 0;
}

/*
 * The clock of the segment's connection; NULL without one. Requests and TIME_WAIT have
 * no storage, so that they need not be told from connections first.
 */
static __always_inline struct cookie_socket *own_clock(struct __sk_buff *skb, const struct segment *seg)
{
	struct bpf_sock *sk = skb->sk;

	if (!sk || !is_of_socket(seg, sk))
		return NULL;
	return bpf_sk_storage_get(&cookie_sockets, sk, NULL, 0);
}

/* The clock of a segment whose connection had none so far; NULL: it is dealt with. */
static __always_inline struct cookie_socket *
first_clock(struct __sk_buff *skb, const struct segment *seg)
{
	struct bpf_sock *sk = own_socket(skb, seg);
	struct server_vip *vip = segment_vip(seg);

	if (!vip)
		return NULL;
	if (cfg_inner_mtu && is_syn_ack(seg))
		lower_mss(skb, seg);
	if (!seg->ts_offset) {
		count_event(SC_PLAIN);
		return NULL;
	}
	if (skb->ingress_ifindex) { /* it came in: its connection ends elsewhere */
		count_event(SC_FORWARDED);
		return NULL;
	}
	if (!sk || is_syn_ack(seg) || vip->cookie.mode != COOKIE_TIMESTAMP) {
		stamp_without_clock(skb, seg, vip);
		return NULL;
	}
	if (!begin_clock(skb, seg, vip, sk))
		return NULL;
	return bpf_sk_storage_get(&cookie_sockets, sk, NULL, 0);
}

static __always_inline void cookie_out(struct __sk_buff *skb)
{
	struct cookie_socket *state;
	struct segment seg = {};
	u32 tsval;

	if (!parse_segment(skb, &seg, TO_CLIENT))
		return;
	if (stamp_by_cache(skb, &seg, segment_name(&seg)))
		return;
	state = own_clock(skb, &seg);
	if (!state)
		state = first_clock(skb, &seg);
	else if (cfg_inner_mtu && is_syn_ack(&seg) && segment_vip(&seg))
		lower_mss(skb, &seg); /* with data in the SYN the socket is there before (RFC 7413) */
	if (!state || !seg.ts_offset || !state->clock.bits || !clock_tsval(skb, &seg, state, &tsval))
		return;
	count_event(SC_STAMPED);
	write_tsval(skb, &seg, tsval);
}

#endif
