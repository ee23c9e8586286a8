/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A connection is established: its clock begins behind what the SYN-ACK carried. If a
 * stateful balancer gave it a token, its end is noticed, too.
 */
#ifndef CAUSEWAY_SERVER_COOKIE_OPEN_H
#define CAUSEWAY_SERVER_COOKIE_OPEN_H

#include "timestamp_cache.h"

#define FAMILY_IPV4 2
#define FAMILY_IPV6 10

/* Integer by integer: the context cannot be read otherwise, whatever the compiler prefers. */
static __always_inline void read_address(u32 to[4], const volatile __u32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

/* The connection as its segments show it: a socket for both families has mapped addresses. */
static __always_inline MUST_USE bool socket_key(struct bpf_sock_ops *ops, struct segment *seg)
{
	u16 client_be = (u16)(ops->remote_port >> 16), vip_be = bpf_htons((u16)ops->local_port);
	u32 local[4], remote[4];

	if (ops->family == FAMILY_IPV4) {
		seg->family = IPV4;
		seg->key4.saddr_be = ops->remote_ip4;
		seg->key4.daddr_be = ops->local_ip4;
	} else if (ops->family == FAMILY_IPV6) {
		read_address(local, ops->local_ip6);
		read_address(remote, ops->remote_ip6);
		if (!local[0] && !local[1] && local[2] == bpf_htonl(0xffff)) {
			seg->family = IPV4;
			seg->key4.saddr_be = remote[3];
			seg->key4.daddr_be = local[3];
		} else {
			seg->family = IPV6;
			__builtin_memcpy(seg->key6.saddr_be, remote, sizeof(remote));
			__builtin_memcpy(seg->key6.daddr_be, local, sizeof(local));
		}
	} else {
		return false;
	}
	if (seg->family == IPV4) {
		seg->key4.sport_be = client_be;
		seg->key4.dport_be = vip_be;
		seg->key4.proto = IPPROTO_TCP;
	} else {
		seg->key6.sport_be = client_be;
		seg->key6.dport_be = vip_be;
		seg->key6.proto = IPPROTO_TCP;
	}
	return true;
}

/*
 * A connection opens, at `o`: its clock begins behind the SYN-ACK's T, which the client has
 * echoed. By now that may be long ago: a listener that waits for data first gives the
 * handshake minutes. Without an echo the SYN-ACK was not sent by these programs
 * (echo_of_request); or data came with a SYN, and it is yet to be sent.
 */
static __always_inline void
start_opening(struct cookie_clock *clock, struct tcp_sock *tp, u32 o, u32 bits, bool is_fast_open)
{
	u32 echoed = tp->rx_opt.rcv_tsecr, unit = socket_unit(tp);
	u32 opening_o = echoed ? echoed + tp->tsoffset : o;

	if (echoed || is_fast_open)
		cookie_clock_start(clock, o, cookie_t_stateless(opening_o, unit, bits), unit, bits);
	else
		cookie_clock_start_unsure(clock, o, opening_o, unit, bits);
}

static __always_inline void report_token(const struct flow_key6 *key, u32 token, u32 opened)
{
	struct token_event *event = bpf_ringbuf_reserve(&token_events, sizeof(*event), 0);

	if (!event)
		return;
	event->key = *key;
	event->token = token;
	event->opened = opened;
	bpf_ringbuf_submit(event, 0);
}

/* A connection with a token: user space can tell balancers of it, and will of its end. */
static __always_inline void keep_token(struct bpf_sock_ops *ops, const struct segment *seg)
{
	struct flow_key6 key = echo_key(seg);
	u32 *told = bpf_map_lookup_elem(&conn_tokens, &key), token;

	if (!told)
		return;
	token = *told;
	if (bpf_map_update_elem(&held_tokens, &key, &token, BPF_ANY))
		return;
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	report_token(&key, token, true);
}

/*
 * A connection with a token enters another state. It ends when it is closed in both
 * directions, or reset; what the client may still repeat to a socket in TIME_WAIT needs
 * no place. The tuple may come again: nothing of it is kept.
 */
static __always_inline void token_state(struct bpf_sock_ops *ops)
{
	struct segment seg = {};
	struct flow_key6 key;
	u32 *token;

	if (ops->args[1] != BPF_TCP_CLOSE || !socket_key(ops, &seg))
		return;
	key = echo_key(&seg);
	token = bpf_map_lookup_elem(&held_tokens, &key);
	if (!token)
		return;
	report_token(&key, *token, false);
	bpf_map_delete_elem(&held_tokens, &key);
	bpf_map_delete_elem(&conn_tokens, &key);
}

static __always_inline void cookie_open(struct bpf_sock_ops *ops)
{
	struct cookie_socket *state;
	struct segment seg = {};
	struct server_vip *vip;
	struct tcp_sock *tp;
	struct bpf_sock *sk;
	struct cookie_clock clock = {};
	bool is_fast_open = ops->skb_tcp_flags & EST_TCP_SYN;
	u32 o, cookie;

	if (!socket_key(ops, &seg))
		return;
	vip = segment_vip(&seg);
	if (!vip || vip->cookie.mode != COOKIE_TIMESTAMP)
		return;
	sk = ops->sk;
	if (!sk)
		return;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || !BPF_CORE_READ_BITFIELD(tp, rx_opt.tstamp_ok) || !make_cookie(&seg, vip, &cookie))
		return;
	o = timestamp_now(socket_unit(tp)) + tp->tsoffset;
	start_opening(&clock, tp, o, vip->cookie.bits, is_fast_open);
	state = bpf_sk_storage_get(&cookie_sockets, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!state)
		return;
	empty_line(segment_name(&seg));
	bpf_spin_lock(&state->lock);
	state->cookie = cookie;
	state->is_lent = CLOCK_IS_HERE;
	state->clock = clock;
	bpf_spin_unlock(&state->lock);
	count_event(SC_OPENED);
	keep_token(ops, &seg);
}

#endif
