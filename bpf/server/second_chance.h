/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A second chance for segments that no balancer remembers the server of (daisy chaining:
 * Olteanu et al., NSDI 2018). Between the outer header and the client's packet the balancer
 * has put another one, to the server that had the packet's slot before. Who knows the
 * connection keeps the packet; else the first header goes, and what is left is on its way
 * to the former owner. That finds no second header in it: there is one hop at most.
 */
#ifndef CAUSEWAY_SERVER_SECOND_CHANCE_H
#define CAUSEWAY_SERVER_SECOND_CHANCE_H

#include "conn_token.h"

/* Whether the inner packet of a tunnel is a tunnel itself, and for none of the VIPs. */
static __always_inline bool is_second_tunnel(const struct tunnel *tunnel)
{
	return tunnel->carries == IPPROTO_IPIP || tunnel->carries == IPPROTO_IPV6;
}

/*
 * Whether a segment may complete a handshake that the listening socket has answered by a
 * SYN cookie: it keeps nothing of such a one.
 */
static __always_inline bool is_syn_cookie(struct cursor cur, const int family, struct bpf_sock *listener)
{
	const u32 ip_len = family == IPV4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	void *ip = take(&cur, ip_len);
	struct tcphdr *tcp = take(&cur, sizeof(*tcp));

	return ip && tcp && bpf_tcp_check_syncookie(listener, ip, ip_len, tcp, sizeof(*tcp)) == 0;
}

/*
 * Whether this server may have the segment's connection: only a listening socket that has
 * no such connection says that it has not. Where no socket listens, as in front of containers,
 * that is not for this host's sockets to say.
 */
static __always_inline bool
may_know(struct xdp_md *ctx, struct cursor cur, const struct tunnel *client, const int family)
{
	struct bpf_sock_tuple tuple = {};
	struct flow_key6 key = {};
	struct cursor inner = cur;
	bool known = true;
	struct bpf_sock *sk;

	if (!inner_key(&cur, client, &key))
		return true;
	if (family == IPV4) {
		tuple.ipv4.saddr = key.saddr_be[3];
		tuple.ipv4.daddr = key.daddr_be[3];
		tuple.ipv4.sport = key.sport_be;
		tuple.ipv4.dport = key.dport_be;
		sk = bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, key.saddr_be, 16);
		__builtin_memcpy(tuple.ipv6.daddr, key.daddr_be, 16);
		tuple.ipv6.sport = key.sport_be;
		tuple.ipv6.dport = key.dport_be;
		sk = bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sk)
		return true;
	if (sk->state == BPF_TCP_LISTEN)
		known = is_syn_cookie(inner, family, sk);
	bpf_sk_release(sk);
	return known;
}

#endif
