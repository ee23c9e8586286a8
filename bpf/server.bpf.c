/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * On a server. XDP takes the outer header off tunnel packets (RFC 2003, RFC 2473), so
 * that the kernel sees the client's packet as the client sent it. Traffic control
 * writes cookies into the timestamps of VIPs' connections and restores them on the
 * way back; sockops begins a connection's clock. Everything else goes untouched.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "mirror.h"
#include "packet/decap.h"
#include "server/conn_token.h"
#include "server/cookie_in.h"
#include "server/cookie_open.h"
#include "server/cookie_out.h"
#include "server/second_chance.h"

/* UDP port where GUE arrives; set by the loader. */
const volatile u16 cfg_gue_port = GUE_PORT;

#define DEFAULT_OWN_ADDRESSES 1280

/* Tunnel ends of this server, and its VIPs: 16-byte addresses, IPv4 as IPv4-mapped. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DEFAULT_OWN_ADDRESSES);
	__type(key, struct address);
	__type(value, u32); /* enum address_uses */
} own_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VERDICTS_MAX);
	__type(key, u32);
	__type(value, struct packets_bytes);
} verdicts SEC(".maps");

#define ABI_SERVER_ACTION(name, word, action, meaning) [SV_##name] = action,
static const u8 server_actions[SV_COUNT] = { SERVER_VERDICTS(ABI_SERVER_ACTION) };
#undef ABI_SERVER_ACTION

/* The only way out: counts the verdict, gives its XDP action. */
static __always_inline int leave(enum server_verdict verdict, u32 frame_len)
{
	u32 index = verdict;
	struct packets_bytes *counter = bpf_map_lookup_elem(&verdicts, &index);

	if (!counter || index >= SV_COUNT)
		return XDP_ABORTED;
	counter->packets += 1;
	counter->bytes += frame_len;
	return server_actions[index];
}

/* What an address is to this server, as enum address_uses; 0: not its own. */
static __always_inline u32 uses_of(const struct address *address)
{
	u32 *uses = bpf_map_lookup_elem(&own_addresses, address);

	return uses ? *uses : 0;
}

static __always_inline bool is_tunnel_end(const struct packet *pkt, const int family)
{
	struct address address;

	if (family == IPV4)
		map_ipv4(&address, pkt->key4.daddr_be);
	else
		__builtin_memcpy(address.bytes, pkt->key6.daddr_be, 16);
	return uses_of(&address) & ADDRESS_TUNNEL_END;
}

/* Whether what a tunnel holds is a client's packet to a VIP: this server serves no other. */
static __always_inline MUST_USE enum server_verdict check_ends(const struct tunnel *tunnel)
{
	if (!(uses_of(&tunnel->to) & ADDRESS_VIP))
		return SV_INNER_NOT_VIP;
	return uses_of(&tunnel->from) ? SV_INNER_SPOOFED : SV_DECAPSULATED;
}

/*
 * Behind the second of two outer headers the client's packet stays, if this server may know its
 * connection, or goes on in the second one. Seldom needed, and so verified once for all tunnels.
 */
CW_GLOBAL int give_second_chance(struct xdp_md *ctx, const struct packet *pkt, const struct tunnel *second)
{
	struct tunnel client = {};
	enum server_verdict verdict;
	struct cursor cur, inner;

	if (!pkt || !second)
		return SV_INNER_MALFORMED;
	client.outer_len = second->outer_len;
	client.outer_len += second->inner == IPV4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	client.inner = second->carries == IPPROTO_IPIP ? IPV4 : IPV6;
	cur = inner = inner_packet(ctx, pkt, &client);
	verdict = check_inner(&cur, pkt, &client);
	if (verdict == SV_DECAPSULATED)
		verdict = check_ends(&client);
	if (verdict != SV_DECAPSULATED)
		return verdict;
	if (client.inner == IPV4 ? may_know(ctx, inner, &client, IPV4) : may_know(ctx, inner, &client, IPV6))
		return strip(ctx, pkt, &client, SV_DECAPSULATED);
	return strip(ctx, pkt, second, SV_PASSED_ON);
}

static __always_inline MUST_USE enum server_verdict
handle_ip(struct xdp_md *ctx, struct cursor *cur, struct packet *pkt, const int family)
{
	enum parsed parsed = family == IPV4 ? parse_ipv4(cur, pkt) : parse_ipv6(cur, pkt);
	struct tunnel tunnel = {};
	enum server_verdict verdict;

	if (parsed == PARSED_FRAGMENT)
		return SV_OUTER_FRAGMENT;
	if (parsed != PARSED)
		return SV_NOT_TUNNEL;
	verdict = open_tunnel(cur, pkt, &tunnel, bpf_htons(cfg_gue_port));
	if (verdict == SV_NOT_TUNNEL)
		return verdict;
	if (!is_tunnel_end(pkt, family))
		return SV_NOT_OURS;
	if (!is_tunnel_source(pkt, family))
		return SV_TUNNEL_REFUSED;
	if (verdict != SV_DECAPSULATED)
		return verdict;
	if (!tunnel.has_token)
		read_source_token(pkt, family, &tunnel);
	verdict = check_inner(cur, pkt, &tunnel);
	if (verdict == SV_DECAPSULATED && is_second_tunnel(&tunnel) && !(uses_of(&tunnel.to) & ADDRESS_VIP))
		return give_second_chance(ctx, pkt, &tunnel);
	if (verdict == SV_DECAPSULATED)
		verdict = check_ends(&tunnel);
	if (verdict != SV_DECAPSULATED)
		return verdict;
	if (tunnel.has_token)
		remember_token(ctx, pkt, &tunnel);
	return strip(ctx, pkt, &tunnel, SV_DECAPSULATED);
}

static __always_inline MUST_USE enum server_verdict handle(struct xdp_md *ctx, struct packet *pkt)
{
	struct cursor cur = { .pos = (void *)(long)ctx->data,
			      .end = (void *)(long)ctx->data_end,
			      .xdp = ctx };

	pkt->frame_len = (u32)(cur.end - cur.pos);
	if (parse_link(&cur, pkt) != PARSED)
		return SV_NOT_TUNNEL;
	if (pkt->ethertype_be == bpf_htons(ETH_P_IP))
		return handle_ip(ctx, &cur, pkt, IPV4);
	if (pkt->ethertype_be == bpf_htons(ETH_P_IPV6))
		return handle_ip(ctx, &cur, pkt, IPV6);
	return SV_NOT_TUNNEL;
}

CW_GLOBAL int mirror_before(struct xdp_md *ctx)
{
	struct mirror_ends ends = {};

	mirror_begin(ctx, &ends);
	return 0;
}

CW_GLOBAL int mirror_after(struct xdp_md *ctx, u32 verdict)
{
	struct mirror_pending *p = get_pending();

	if (p && p->wanted)
		mirror_end(ctx, p, verdict, MIRROR_NO_RESULT, verdict == SV_PASSED_ON);
	return 0;
}

SEC("xdp") /* takes frames of several buffers where the loader says so */
int causeway_server(struct xdp_md *ctx)
{
	struct packet pkt = {};
	enum server_verdict verdict;

	if (is_mirrored())
		mirror_before(ctx);
	verdict = handle(ctx, &pkt);
	if (is_mirrored())
		mirror_after(ctx, verdict);
	return leave(verdict, pkt.frame_len);
}

#define TC_GO_ON -1 /* TC_ACT_UNSPEC: the next filter, if there is one */

SEC("tc")
int causeway_cookie_out(struct __sk_buff *skb)
{
	cookie_out(skb);
	return TC_GO_ON;
}

SEC("tc")
int causeway_cookie_in(struct __sk_buff *skb)
{
	cookie_in_segment(skb);
	return TC_GO_ON;
}

SEC("sockops")
int causeway_cookie_open(struct bpf_sock_ops *ops)
{
	bool opens = ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB;

	if (!opens && ops->op != BPF_SOCK_OPS_STATE_CB)
		return 1;
	if (bpf_get_netns_cookie(ops) != cfg_netns_cookie)
		return 1;
	if (opens)
		cookie_open(ops);
	else
		token_state(ops);
	return 1;
}

char LICENSE[] SEC("license") = "GPL";
