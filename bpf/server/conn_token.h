/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What a stateful balancer tells a server with a SYN: the token that the connection's
 * timestamps shall end in. Kept by the connection's tuple until its socket is there.
 */
#ifndef CAUSEWAY_SERVER_CONN_TOKEN_H
#define CAUSEWAY_SERVER_CONN_TOKEN_H

#include "../packet/decap.h"

#define DEFAULT_TOKENS 16384 /* SYNs whose connection is not there yet */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, DEFAULT_TOKENS);
	__type(key, struct flow_key6); /* client to VIP; IPv4 as IPv4-mapped */
	__type(value, u32);
} conn_tokens SEC(".maps");

#define DEFAULT_HELD 262144 /* open connections with tokens */

/* Connections with tokens, from their handshakes to their ends: user space tells of them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, DEFAULT_HELD);
	__type(key, struct flow_key6);
	__type(value, u32);
} held_tokens SEC(".maps");

/* struct token_event each. Full, ends are lost, and slots come back by ageing. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} token_events SEC(".maps");

/* Keeps the struct in the object's BTF, which a test compares with Rust's. */
const struct token_event *token_event_type __attribute__((unused));

/* Addresses that IP-in-IP balancers send tokens from, without their last 16 bits. */
const volatile u32 cfg_token4_be = 0;
const volatile u32 cfg_token6_be[4] = {};

/* The token in an outer source address, if it is one of those. */
static __always_inline void read_source_token(const struct packet *outer, const int family, struct tunnel *tunnel)
{
	u32 last;

	if (family == IPV4) {
		last = bpf_ntohl(outer->key4.saddr_be);
		if (!cfg_token4_be || (last ^ bpf_ntohl(cfg_token4_be)) >> 16)
			return;
	} else {
		last = bpf_ntohl(outer->key6.saddr_be[3]);
		if (!cfg_token6_be[0] || outer->key6.saddr_be[0] != cfg_token6_be[0] ||
		    outer->key6.saddr_be[1] != cfg_token6_be[1] ||
		    outer->key6.saddr_be[2] != cfg_token6_be[2] || (last ^ bpf_ntohl(cfg_token6_be[3])) >> 16)
			return;
	}
	tunnel->has_token = 1;
	tunnel->token = (u16)last;
}

/* The inner packet's tuple; false if it is not plain TCP. */
static __always_inline MUST_USE bool inner_key(struct cursor *cur, const struct tunnel *tunnel, struct flow_key6 *key)
{
	struct { u16 source_be, dest_be; } *ports;

	key->proto = IPPROTO_TCP;
	if (tunnel->inner == IPV4) {
		struct iphdr *ip = take(cur, sizeof(*ip));

		if (!ip || ip->protocol != IPPROTO_TCP || ip->ihl != 5)
			return false;
		key->saddr_be[2] = key->daddr_be[2] = bpf_htonl(0xffff);
		key->saddr_be[3] = ip->saddr;
		key->daddr_be[3] = ip->daddr;
	} else {
		struct ipv6hdr *ip = take(cur, sizeof(*ip));

		if (!ip || ip->nexthdr != IPPROTO_TCP)
			return false;
		__builtin_memcpy(key->saddr_be, &ip->saddr, sizeof(ip->saddr));
		__builtin_memcpy(key->daddr_be, &ip->daddr, sizeof(ip->daddr));
	}
	ports = take(cur, sizeof(*ports));
	if (!ports)
		return false;
	key->sport_be = ports->source_be;
	key->dport_be = ports->dest_be;
	return true;
}

/* At the inner packet of a tunnel, as long as the outer headers are there. */
static __always_inline struct cursor
inner_packet(struct xdp_md *ctx, const struct packet *outer, const struct tunnel *tunnel)
{
	return (struct cursor){
		.pos = (void *)(long)ctx->data + CW_MASKED(outer->l2_len + tunnel->outer_len, 0x3fff),
		.end = (void *)(long)ctx->data_end,
		.xdp = ctx,
	};
}

/* The token that came with the inner packet. Global: verified once, for all tunnels. */
CW_GLOBAL int remember_token(struct xdp_md *ctx, const struct packet *outer, const struct tunnel *tunnel)
{
	struct flow_key6 key = {};
	struct cursor cur;
	u32 token;

	if (!outer || !tunnel)
		return 0;
	token = tunnel->token;
	cur = inner_packet(ctx, outer, tunnel);
	if (inner_key(&cur, tunnel, &key))
		bpf_map_update_elem(&conn_tokens, &key, &token, BPF_ANY);
	return 0;
}

#endif
