/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Sending a packet on: in an outer IP header through the gateway (RFC 2003, RFC
 * 2473), in UDP behind one (gue.h), or to the real's MAC address. Either way it
 * leaves where it came in.
 *
 * The inner packet stays as it is, TTL included: the balancer stands for the
 * VIP's host and adds no hop. The outer header has a TTL of its own, never
 * fragments, and carries the inner packet's DSCP and ECN (RFC 6040).
 */
#ifndef CAUSEWAY_LB_ENCAP_H
#define CAUSEWAY_LB_ENCAP_H

#include "../packet/icmp.h"
#include "../packet/write.h"
#include "flow_table.h"
#include "gue.h"

#define OUTER_TTL 64
#define DEFAULT_MTU 1500

static __always_inline u32 link_mtu(const struct ctl *control)
{
	return control->mtu ? control->mtu : DEFAULT_MTU;
}

/* The real's tunnel, read once: user space may change the real meanwhile. */
struct outer {
	u32 len;  /* bytes that it puts in front of a packet */
	u32 token; /* what the server is told, see struct route */
	bool ipv4;
	bool gue;
	u8 former; /* of len, bytes of a second IP header: to the former owner of the slot */
};

static __always_inline bool has_source(const struct ctl *control, bool ipv4)
{
	if (ipv4)
		return control->outer4_be != 0;
	return control->outer6_be[0] | control->outer6_be[1] | control->outer6_be[2] | control->outer6_be[3];
}

/* Bytes of the IP header to the slot's former owner; 0 if no tunnel leads there. */
static __always_inline u32 former_len(const struct ctl *control, u32 token)
{
	struct real *former = find_real(token & ~ROUTE_HAS_FORMER);

	if (!former || former->flags & REAL_L2 || !has_source(control, former->family == IPV4))
		return 0;
	return former->family == IPV4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

static __always_inline struct outer tunnel_of(const struct real *real, u32 token, u32 former)
{
	struct outer outer = {
		.token = token,
		.ipv4 = real->family == IPV4,
		.gue = real->flags & REAL_GUE,
		.former = former,
	};

	outer.len = outer.ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	if (outer.gue)
		outer.len += gue_len(token);
	outer.len += former;
	return outer;
}

/* The protocol of what follows the outer IP header. */
static __always_inline u32 outer_protocol(const int family, const struct outer *outer)
{
	if (outer->gue)
		return IPPROTO_UDP;
	if (outer->former)
		return outer->former == sizeof(struct iphdr) ? IPPROTO_IPIP : IPPROTO_IPV6;
	return family == IPV4 ? IPPROTO_IPIP : IPPROTO_IPV6;
}

/* The outer IPv4 header, for which there is room. */
static __always_inline MUST_USE bool
write_outer4(struct iphdr *ip, const void *end, const struct packet *pkt, const int family, const struct real *real,
	     const struct outer *outer, const struct ctl *control)
{
	u32 mask = control->outer4_entropy_be;
	u32 *words = (u32 *)ip;

	if ((void *)(ip + 1) > end)
		return false;
	words[0] = bpf_htonl(0x45000000u | (u32)pkt->tos << 16 | (pkt->est.ip_len + outer->len));
	words[1] = bpf_htonl(IP_DONT_FRAGMENT); /* id 0: the packet is atomic (RFC 6864) */
	words[2] = bpf_htonl((u32)OUTER_TTL << 24 | outer_protocol(family, outer) << 16);
	words[3] = (control->outer4_be & ~mask) | (tunnel_entropy(pkt, family) & mask);
	if (outer->token && !outer->gue && control->token4_be)
		words[3] = control->token4_be | bpf_htonl(outer->token & 0xffff);
	words[4] = *(const u32 *)&real->addr[12];
	ip->check = csum_fold(csum_words(words, sizeof(*ip) / 4));
	return true;
}

/* The outer IPv6 header, for which there is room. */
static __always_inline MUST_USE bool
write_outer6(struct ipv6hdr *ip, const void *end, const struct packet *pkt, const int family, const struct real *real,
	     const struct outer *outer, const struct ctl *control)
{
	u32 mask = control->outer6_entropy_be, entropy = tunnel_entropy(pkt, family);
	u32 len = pkt->est.ip_len + outer->len - sizeof(*ip);
	u32 *words = (u32 *)ip;

	if ((void *)(ip + 1) > end)
		return false;
	words[0] = bpf_htonl(6u << 28 | (u32)pkt->tos << 20 | (entropy & 0xfffff));
	words[1] = bpf_htonl(len << 16 | outer_protocol(family, outer) << 8 | OUTER_TTL);
	__builtin_memcpy(&words[2], control->outer6_be, 16);
	words[5] = (words[5] & ~mask) | (entropy & mask);
	if (outer->token && !outer->gue && control->token6_be[0]) {
		__builtin_memcpy(&words[2], control->token6_be, 16);
		words[5] |= bpf_htonl(outer->token & 0xffff);
	}
	__builtin_memcpy(&words[6], real->addr, 16);
	return true;
}

static __always_inline bool is_mac(const u8 *mac)
{
	const u16 *words = (const u16 *)mac;

	return words[0] | words[1] | words[2];
}

/* Where frames with this outer header go: each family may have a router of its own. */
static __always_inline const u8 *gateway_of(const struct ctl *control, const struct outer *outer)
{
	if (outer->ipv4 || !is_mac(control->gateway6_mac))
		return control->gateway_mac;
	return control->gateway6_mac;
}

static __always_inline u32 gue_families(const int family, const struct outer *outer)
{
	return (family == IPV6 ? GUE_INNER_IPV6 : 0) | (outer->ipv4 ? 0 : GUE_OUTER_IPV6) |
	       (outer->former ? GUE_INNER_TUNNEL : 0);
}

/*
 * The header between the outer one and the packet, `at` bytes into the frame: a tunnel to
 * the former owner, which its new one sends on as it is. Always IP in IP, which agents open
 * beside GUE. `len` is the header's length, of IPv4 or IPv6.
 */
static __always_inline MUST_USE bool
write_former(struct xdp_md *ctx, const struct packet *pkt, const int family, u32 len, u32 token, u32 at)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct outer tunnel = { .len = len, .ipv4 = len == sizeof(struct iphdr) };
	struct real *former = find_real(token & ~ROUTE_HAS_FORMER);
	struct ctl *control = get_ctl();
	void *ip = data + (at & 127);

	/* Its slot may have been given to another real meanwhile. */
	if (!control || !former || (former->family == IPV4) != tunnel.ipv4)
		return false;
	return tunnel.ipv4 ? write_outer4(ip, end, pkt, family, former, &tunnel, control)
			   : write_outer6(ip, end, pkt, family, former, &tunnel, control);
}

/*
 * The packet as it came, to the real's MAC address. All frames leave with the interface's own
 * address, whomever they came to: a switch floods what it has forgotten the port of, and would
 * learn here where another host is.
 */
static __always_inline MUST_USE enum verdict
forward_l2(struct xdp_md *ctx, const struct real *real, const struct ctl *control, enum verdict verdict)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return V_MALFORMED;
	copy_mac(eth->h_source, control->own_mac);
	copy_mac(eth->h_dest, real->mac);
	return verdict;
}

/* Rare and long, and so verified once each. */
CW_GLOBAL int too_big4(struct xdp_md *ctx, const struct packet *pkt, u32 mtu)
{
	struct ctl *control = get_ctl();

	return pkt && control ? build_too_big(ctx, pkt, IPV4, mtu, control->own_mac) : V_MALFORMED;
}

CW_GLOBAL int too_big6(struct xdp_md *ctx, const struct packet *pkt, u32 mtu)
{
	struct ctl *control = get_ctl();

	return pkt && control ? build_too_big(ctx, pkt, IPV6, mtu, control->own_mac) : V_MALFORMED;
}

/*
 * Send the packet to the real, behind an outer header of the real's family or by its MAC
 * address: the route's verdict, or why that was not possible. The server is told the token; behind
 * the outer header stay `former` bytes for one to the slot's former owner.
 */
static __always_inline MUST_USE enum verdict
forward(struct xdp_md *ctx, const struct packet *pkt, const int family, const struct ctl *control,
	const struct real *real, const struct route *route, u32 token, u32 former)
{
	void *data, *end, *ip;
	struct outer outer;
	u32 mtu;

	if (real->flags & REAL_L2)
		return forward_l2(ctx, real, control, route->verdict);
	outer = tunnel_of(real, token, former);
	if (!is_mac(gateway_of(control, &outer)) || !has_source(control, outer.ipv4))
		return V_NO_NEXT_HOP;
	mtu = link_mtu(control);
	if (pkt->est.ip_len + outer.len > mtu)
		return family == IPV4 ? too_big4(ctx, pkt, mtu - outer.len) : too_big6(ctx, pkt, mtu - outer.len);
	if (bpf_xdp_adjust_head(ctx, -(int)outer.len))
		return V_NO_HEADROOM;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (!write_link(data, end, pkt, gateway_of(control, &outer), control->own_mac,
			outer.ipv4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6)))
		return V_MALFORMED;
	ip = data + (pkt->l2_len & 31);
	if (!(outer.ipv4 ? write_outer4(ip, end, pkt, family, real, &outer, control)
			 : write_outer6(ip, end, pkt, family, real, &outer, control)))
		return V_MALFORMED;
	if (outer.gue && !finish_gue(ctx, pkt, gue_families(family, &outer), outer.token, outer.len))
		return V_MALFORMED;
	return route->verdict;
}

/*
 * The same, to the slot's former owner behind the real if a tunnel leads there. User space may
 * have changed the real meanwhile: the frame tells which headers it got.
 */
static __always_inline MUST_USE enum verdict
forward_former(struct xdp_md *ctx, const struct packet *pkt, const int family, const struct real *real,
	       const struct route *route)
{
	struct ctl *control = get_ctl();
	u64 before = bpf_xdp_get_buff_len(ctx);
	enum verdict verdict;
	u32 former, added;

	if (!control)
		return V_NO_NEXT_HOP;
	former = former_len(control, route->token);
	verdict = forward(ctx, pkt, family, control, real, route, 0, former);
	added = (u32)(bpf_xdp_get_buff_len(ctx) - before);
	if (verdict != route->verdict || !former || !added)
		return verdict;
	return write_former(ctx, pkt, family, former, route->token, pkt->l2_len + added - former) ? verdict : V_NO_REAL;
}

/* Seldom needed, and so verified once each. */
CW_GLOBAL int
forward_former4(struct xdp_md *ctx, const struct packet *pkt, const struct real *real, const struct route *route)
{
	return pkt && real && route ? forward_former(ctx, pkt, IPV4, real, route) : V_MALFORMED;
}

CW_GLOBAL int
forward_former6(struct xdp_md *ctx, const struct packet *pkt, const struct real *real, const struct route *route)
{
	return pkt && real && route ? forward_former(ctx, pkt, IPV6, real, route) : V_MALFORMED;
}

#endif
