/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Segments from a client to a server: TSecr becomes what the kernel sent. */
#ifndef CAUSEWAY_SERVER_COOKIE_IN_H
#define CAUSEWAY_SERVER_COOKIE_IN_H

#include "timestamp_cache.h"

void *bpf_rdonly_cast(const void *object, u32 btf_id) __ksym __weak;

/* Linux takes an echo of zero for none. */
#define NO_ECHO 0

#define TCP_ACK_OFFSET 8
/* How long the kernel's own timestamps are known again, ms. */
#define ECHO_AGE_MS 65536

/*
 * A connection that is older than the agent. Its echo is either a cookie of ours,
 * from an agent before this one, whose clock goes on; or the kernel's own timestamp,
 * and then the clock goes on behind the newest that can be on its way.
 */
static __noinline int
adopt(const struct segment *seg, const struct server_vip *vip, struct bpf_sock *sk, u32 now_o)
{
	u32 bits = vip->cookie.bits, echoed = cookie_in(seg->tsecr, &vip->cookie), cookie, t;
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	bool ours = is_own_cookie(seg, vip, echoed);
	struct cookie_socket *state;
	u32 unit;

	if (!tp || !make_cookie(seg, vip, &cookie))
		return false;
	unit = socket_unit(tp);
	state = bpf_sk_storage_get(&cookie_sockets, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!state)
		return false;
	t = ours ? seg->tsecr >> (bits & 31) : cookie_t_behind(now_o, bits);
	empty_line(segment_name(seg));
	bpf_spin_lock(&state->lock);
	state->cookie = ours ? echoed : cookie;
	state->is_lent = CLOCK_IS_HERE;
	cookie_clock_start(&state->clock, now_o, t, unit, bits);
	state->clock.adopted = 1;
	bpf_spin_unlock(&state->lock);
	count_event(SC_ADOPTED);
	return ours;
}

/*
 * Whether the segment echoes what the kernel itself sent within the last minute, and acknowledges
 * what was sent: while the programs were away segments went out as they were, and the
 * client may take none that the clock dates before them. That nobody can forge blindly.
 */
static __noinline int
echoes_kernel(struct __sk_buff *skb, const struct segment *seg, struct tcp_sock *tp, u32 now_o)
{
	u32 ack_be, sent;

	if (!seg || !tp || now_o - seg->tsecr >= ECHO_AGE_MS * socket_unit(tp))
		return 0;
	if (bpf_skb_load_bytes(skb, seg->tcp_offset + TCP_ACK_OFFSET, &ack_be, sizeof(ack_be)))
		return 0;
	sent = tp->snd_nxt - tp->snd_una;
	return bpf_ntohl(ack_be) - tp->snd_una <= sent;
}

/* Whether the connection's clock is, wherever it is. */
static __always_inline bool is_behind(struct cookie_socket *state, u32 now_o)
{
	if (state->is_lent && !take_clock_back(state, now_o))
		return false;
	return cookie_clock_is_behind(&state->clock, now_o);
}

/* Of an established connection; 0 tells the kernel that there is no echo. */
static __always_inline u32
echo_of_socket(struct __sk_buff *skb, const struct segment *seg, const struct server_vip *vip, struct bpf_sock *sk)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	struct cookie_socket *state;
	u32 now_o, o;

	if (!tp)
		return seg->tsecr;
	now_o = timestamp_now(socket_unit(tp)) + tp->tsoffset;
	state = bpf_sk_storage_get(&cookie_sockets, sk, NULL, 0);
	if (!state)
		return adopt(seg, vip, sk, now_o) ? NO_ECHO : seg->tsecr;
	if (!state->clock.bits)
		return seg->tsecr;
	if (cookie_in(seg->tsecr, &vip->cookie) != state->cookie) {
		count_event(SC_FOREIGN);
		if (echoes_kernel(skb, seg, tp, now_o) && is_behind(state, now_o))
			adopt(seg, vip, sk, now_o);
		return seg->tsecr;
	}
	if (state->is_lent && !take_clock_back(state, now_o)) {
		count_event(SC_ECHO_LOST);
		return NO_ECHO;
	}
	bpf_spin_lock(&state->lock);
	o = cookie_clock_echo(&state->clock, seg->tsecr >> (state->clock.bits & 31), now_o);
	bpf_spin_unlock(&state->lock);
	if (sk->state == STATE_ESTABLISHED && !(seg->tcp_flags & (EST_TCP_FIN | EST_TCP_RST)))
		lend_clock(state, segment_name(seg));
	count_event(o ? SC_RESTORED : SC_ECHO_LOST);
	return o;
}

/*
 * The request that a socket in NEW_SYN_RECV is. The helper knows a request by the
 * protocol's functions, and MPTCP puts its own in their place: then the kernel is told
 * what it is (from 6.2 on; a read through it can fail, but do no harm).
 */
static __always_inline struct tcp_request_sock *as_request(struct bpf_sock *sk)
{
	struct tcp_request_sock *request = bpf_skc_to_tcp_request_sock(sk);

	if (request || !bpf_rdonly_cast)
		return request;
	return bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_request_sock));
}

/*
 * Of the segment that completes a handshake. The SYN-ACK may have been sent before the VIP
 * had cookies, or while the programs were away: cookie_open learns it by an echo of none.
 */
static __always_inline u32
echo_of_request(const struct segment *seg, const struct server_vip *vip, struct tcp_request_sock *request)
{
	struct synack_times times = synack_times(request);
	u32 bits = vip->cookie.bits;

	if (!is_own_cookie(seg, vip, cookie_in(seg->tsecr, &vip->cookie))) {
		count_event(SC_FOREIGN);
		return NO_ECHO;
	}
	count_event(SC_RESTORED_OPENING);
	return cookie_o_of_synack(seg->tsecr >> (bits & 31), times.first, times.last, times.unit, bits) ?: 1;
}

/*
 * The same while SYN cookies are on: their options are in the low six bits. A listener is also what
 * stands for connections that are forwarded, as for a container's: their echoes are no cookies.
 */
static __always_inline u32 echo_of_listener(const struct segment *seg, const struct server_vip *vip)
{
	if (!is_own_cookie(seg, vip, cookie_in(seg->tsecr, &vip->cookie))) {
		count_event(SC_FOREIGN);
		return seg->tsecr;
	}
	count_event(SC_RESTORED_OPENING);
	return seg->tsecr >> (vip->cookie.bits & 31) ?: 1;
}

/* For no connection, or for TIME_WAIT, which reads only TSval: the answer must come behind it. */
static __always_inline u32 echo_without_connection(const struct segment *seg, const struct server_vip *vip)
{
	struct flow_key6 key = echo_key(seg);
	u32 echo = seg->tsecr;

	empty_line(segment_name(seg));
	if (vip->cookie.mode != COOKIE_TIMESTAMP)
		return echo;
	count_event(SC_REMEMBERED);
	bpf_map_update_elem(&cookie_echoes, &key, &echo, BPF_ANY);
	return echo;
}

static __always_inline struct bpf_sock *find_socket(struct __sk_buff *skb, const struct segment *seg)
{
	struct bpf_sock_tuple tuple = {};

	if (seg->family == IPV4) {
		tuple.ipv4.saddr = seg->key4.saddr_be;
		tuple.ipv4.daddr = seg->key4.daddr_be;
		tuple.ipv4.sport = seg->key4.sport_be;
		tuple.ipv4.dport = seg->key4.dport_be;
		return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	__builtin_memcpy(tuple.ipv6.saddr, seg->key6.saddr_be, 16);
	__builtin_memcpy(tuple.ipv6.daddr, seg->key6.daddr_be, 16);
	tuple.ipv6.sport = seg->key6.sport_be;
	tuple.ipv6.dport = seg->key6.dport_be;
	return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
}

/*
 * What the segment's echo is to be. A function of its own for the verifier, which else
 * follows it once for each way that a segment is laid out.
 */
CW_GLOBAL u32
restored_echo(struct __sk_buff *skb, const struct segment *seg, const struct server_vip *vip)
{
	struct tcp_request_sock *request;
	struct bpf_sock *sk, *full;
	u32 echo;

	if (!skb || !seg || !vip)
		return 0;
	sk = find_socket(skb, seg);
	if (!sk)
		return echo_without_connection(seg, vip);
	switch (sk->state) {
	case STATE_NEW_SYN_RECV:
		request = as_request(sk);
		echo = request ? echo_of_request(seg, vip, request) : seg->tsecr;
		break;
	case STATE_TIME_WAIT:
		echo = echo_without_connection(seg, vip);
		break;
	case STATE_LISTEN:
		echo = echo_of_listener(seg, vip);
		break;
	default:
		full = bpf_sk_fullsock(sk);
		echo = full ? echo_of_socket(skb, seg, vip, full) : seg->tsecr;
	}
	bpf_sk_release(sk);
	return echo;
}

static __always_inline void cookie_in_segment(struct __sk_buff *skb)
{
	struct segment seg = {};
	struct server_vip *vip;
	u32 echo;

	if (!parse_segment(skb, &seg, FROM_CLIENT))
		return;
	if (restore_by_cache(skb, &seg, segment_name(&seg)))
		return;
	if (!seg.ts_offset || !seg.tsecr || is_opening(&seg))
		return;
	vip = segment_vip(&seg);
	if (!vip)
		return;
	if (vip->cookie.mode == COOKIE_TIMESTAMP_LIGHT) {
		count_event(SC_HIDDEN);
		echo = NO_ECHO;
	} else {
		echo = restored_echo(skb, &seg, vip);
	}
	write_timestamp(skb, &seg, seg.ts_offset + 4, seg.tsecr, echo);
}

#endif
