/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The second of two tiers: what a first-tier balancer has sent here in a tunnel becomes
 * the client's packet again, and is then balanced as if it had come by itself.
 */
#ifndef CAUSEWAY_LB_SECOND_TIER_H
#define CAUSEWAY_LB_SECOND_TIER_H

#include "../packet/decap.h"
#include "maps.h"

/* Set by the loader: whether any tunnel ends here. */
const volatile bool cfg_tunnel_end = false;

static __always_inline bool is_tunnel_end(const struct packet *pkt, const int family, const struct ctl *control)
{
	u32 differ;

	if (family == IPV4)
		return control->tunnel4_be && pkt->key4.daddr_be == control->tunnel4_be;
	differ = (pkt->key6.daddr_be[0] ^ control->tunnel6_be[0]) | (pkt->key6.daddr_be[1] ^ control->tunnel6_be[1]) |
		 (pkt->key6.daddr_be[2] ^ control->tunnel6_be[2]) | (pkt->key6.daddr_be[3] ^ control->tunnel6_be[3]);
	return control->tunnel6_be[0] && !differ;
}

static __always_inline bool is_vip(const struct address *address)
{
	struct vip_key key = {};

	__builtin_memcpy(key.addr, address->bytes, sizeof(key.addr));
	return bpf_map_lookup_elem(&vips, &key) != NULL;
}

/*
 * Whether what a tunnel holds is a client's packet to a VIP. All else would go on to this
 * machine's own kernel, whose packet filter has not seen where it came from.
 */
static __always_inline MUST_USE enum server_verdict
check_ends(const struct tunnel *tunnel, const struct packet *outer, const int family)
{
	struct address end;

	if (!is_vip(&tunnel->to))
		return SV_INNER_NOT_VIP;
	if (family == IPV4)
		map_ipv4(&end, outer->key4.daddr_be);
	else
		__builtin_memcpy(end.bytes, outer->key6.daddr_be, 16);
	if (!__builtin_memcmp(&end, &tunnel->from, sizeof(end)) || is_vip(&tunnel->from))
		return SV_INNER_SPOOFED;
	return SV_DECAPSULATED;
}

static __always_inline MUST_USE enum server_verdict
open_outer(struct xdp_md *ctx, struct cursor *cur, struct packet *pkt, const int family)
{
	enum parsed parsed = family == IPV4 ? parse_ipv4(cur, pkt) : parse_ipv6(cur, pkt);
	struct ctl *control = get_ctl();
	struct tunnel tunnel = {};
	enum server_verdict verdict;

	if (!control || parsed != PARSED || !is_tunnel_end(pkt, family, control))
		return SV_NOT_TUNNEL;
	verdict = open_tunnel(cur, pkt, &tunnel, control->gue_port_be ? control->gue_port_be : bpf_htons(GUE_PORT));
	if (verdict == SV_NOT_TUNNEL)
		return verdict;
	if (!is_tunnel_source(pkt, family))
		return SV_TUNNEL_REFUSED;
	if (verdict != SV_DECAPSULATED)
		return verdict;
	verdict = check_inner(cur, pkt, &tunnel);
	if (verdict == SV_DECAPSULATED)
		verdict = check_ends(&tunnel, pkt, family);
	return verdict == SV_DECAPSULATED ? strip(ctx, pkt, &tunnel, SV_DECAPSULATED) : verdict;
}

/* The packet goes on to be balanced. */
#define GOES_ON -1

/*
 * Takes a first tier's outer header off. The verdict if that is the packet's end; GOES_ON
 * if it goes on, as it came or as its client sent it. A fragmented tunnel packet and what
 * is no tunnel go on, and no VIP has this address. Global: verified once.
 */
CW_GLOBAL int open_first_tier(struct xdp_md *ctx)
{
	struct cursor cur = { .pos = (void *)(long)ctx->data,
			      .end = (void *)(long)ctx->data_end,
			      .xdp = ctx };
	enum server_verdict verdict = SV_NOT_TUNNEL;
	struct packet pkt = {};

	if (parse_link(&cur, &pkt) != PARSED)
		return GOES_ON;
	if (pkt.ethertype_be == bpf_htons(ETH_P_IP))
		verdict = open_outer(ctx, &cur, &pkt, IPV4);
	else if (pkt.ethertype_be == bpf_htons(ETH_P_IPV6))
		verdict = open_outer(ctx, &cur, &pkt, IPV6);
	switch (verdict) {
	case SV_INNER_MALFORMED:
		return V_MALFORMED;
	case SV_CONGESTED:
		return V_CONGESTED;
	case SV_TUNNEL_REFUSED:
		return V_TUNNEL_REFUSED;
	case SV_INNER_NOT_VIP:
		return V_INNER_NOT_VIP;
	case SV_INNER_SPOOFED:
		return V_INNER_SPOOFED;
	default:
		return GOES_ON;
	}
}

#endif
