/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Taking the outer headers off a tunnel packet: IP in IP (RFC 2003, RFC 2473) and
 * GUE (draft-ietf-intarea-gue-09) of variant 1, and of variant 0 without flags. An
 * outer UDP checksum is not looked at: what it protects has checksums of its own,
 * and the kernel checks those (RFC 6936, section 3).
 */
#ifndef CAUSEWAY_PACKET_DECAP_H
#define CAUSEWAY_PACKET_DECAP_H

#include "parse.h"
#include "write.h"

#define ECN_MASK 3
#define ECN_NOT_ECT 0
#define ECN_CE 3

/*
 * Networks that tunnels are opened from. An inner packet may have any source address, and has
 * passed no filter by addresses. Empty: no tunnel is opened.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct tunnel_source);
	__type(value, u32);
} tunnel_sources SEC(".maps");

/* A tunnel packet's way in. */
struct tunnel {
	u16 outer_len; /* bytes from the outer IP header to the inner one */
	u8 inner;      /* IPV4 or IPV6 */
	u8 has_token;
	u16 token; /* what the balancer says with a SYN, see struct gue_private */
	u8 carries; /* the inner packet's protocol */
	struct address from, to; /* of the inner packet, IPv4 as IPv4-mapped */
};

static __always_inline void map_ipv4(struct address *address, u32 addr_be)
{
	*address = (struct address){ .bytes = { [10] = 0xff, [11] = 0xff } };
	__builtin_memcpy(&address->bytes[12], &addr_be, 4);
}

/* Whether tunnels are opened that come from the outer header's source. */
static __always_inline bool is_tunnel_source(const struct packet *outer, const int family)
{
	struct tunnel_source source = { .length = 128 };

	if (family == IPV4)
		map_ipv4((struct address *)source.addr, outer->key4.saddr_be);
	else
		__builtin_memcpy(source.addr, outer->key6.saddr_be, 16);
	return bpf_map_lookup_elem(&tunnel_sources, &source) != NULL;
}

#define GUE_CONTROL 0x20
#define GUE_HLEN 0x1f

/*
 * Congestion that the tunnel met must reach the inner packet (RFC 6040, 4.2). One
 * that cannot carry the mark is dropped, as the router that marked would have.
 */
static __always_inline MUST_USE enum server_verdict mark_inner4(struct iphdr *ip, u8 outer_tos)
{
	u16 *version_tos = (u16 *)ip, old = *version_tos;

	if ((outer_tos & ECN_MASK) != ECN_CE)
		return SV_DECAPSULATED;
	if ((ip->tos & ECN_MASK) == ECN_NOT_ECT)
		return SV_CONGESTED;
	ip->tos |= ECN_CE;
	ip->check = csum_replace(ip->check, old, *version_tos);
	return SV_DECAPSULATED;
}

static __always_inline MUST_USE enum server_verdict mark_inner6(struct ipv6hdr *ip, u8 outer_tos)
{
	/* The traffic class lies across the first two bytes; ECN is bits 4 and 5 of the second. */
	if ((outer_tos & ECN_MASK) != ECN_CE)
		return SV_DECAPSULATED;
	if ((ip->flow_lbl[0] >> 4 & ECN_MASK) == ECN_NOT_ECT)
		return SV_CONGESTED;
	ip->flow_lbl[0] |= ECN_CE << 4;
	return SV_DECAPSULATED;
}

static __always_inline MUST_USE enum server_verdict
check_inner(struct cursor *cur, const struct packet *outer, struct tunnel *tunnel)
{
	if (tunnel->inner == IPV4) {
		struct iphdr *ip = take(cur, sizeof(*ip));

		if (!ip || ip->version != 4 || ip->ihl < 5)
			return SV_INNER_MALFORMED;
		map_ipv4(&tunnel->from, ip->saddr);
		map_ipv4(&tunnel->to, ip->daddr);
		tunnel->carries = ip->protocol;
		return mark_inner4(ip, outer->tos);
	} else {
		struct ipv6hdr *ip = take(cur, sizeof(*ip));

		if (!ip || ip->version != 6)
			return SV_INNER_MALFORMED;
		__builtin_memcpy(tunnel->from.bytes, &ip->saddr, 16);
		__builtin_memcpy(tunnel->to.bytes, &ip->daddr, 16);
		tunnel->carries = ip->nexthdr;
		return mark_inner6(ip, outer->tos);
	}
}

/*
 * Behind the UDP header: either the inner packet itself, or a header that says what
 * follows it.
 */
static __always_inline MUST_USE enum server_verdict open_gue(struct cursor *cur, struct tunnel *tunnel)
{
	struct gue_private *gue = cur->pos;
	u32 hlen;

	/* An inner packet is longer than both words. */
	if ((void *)(gue + 1) > cur->end)
		return SV_INNER_MALFORMED;
	if (gue->variant_hlen >> 6 == 1) {
		tunnel->inner = gue->variant_hlen >> 4;
		return tunnel->inner == IPV4 || tunnel->inner == IPV6 ? SV_DECAPSULATED : SV_GUE_UNKNOWN;
	}
	if (gue->variant_hlen & ~GUE_HLEN || gue->flags_be)
		return SV_GUE_UNKNOWN;
	if (gue->proto != IPPROTO_IPIP && gue->proto != IPPROTO_IPV6)
		return SV_GUE_UNKNOWN;
	hlen = 4 + (gue->variant_hlen & GUE_HLEN) * 4u;
	if (hlen == sizeof(*gue) && gue->kind_be == bpf_htons(GUE_CONN_TOKEN)) {
		tunnel->has_token = 1;
		tunnel->token = bpf_ntohs(gue->token_be);
	}
	tunnel->inner = gue->proto == IPPROTO_IPIP ? IPV4 : IPV6;
	tunnel->outer_len += hlen;
	return take_variable(cur, hlen) ? SV_DECAPSULATED : SV_INNER_MALFORMED;
}

/* What kind of tunnel packet the outer header begins, with the cursor at the inner one. */
static __always_inline MUST_USE enum server_verdict
open_tunnel(struct cursor *cur, const struct packet *outer, struct tunnel *tunnel, u16 gue_port_be)
{
	struct udphdr *udp;

	tunnel->outer_len = outer->l3_len;
	switch (outer->est.proto) {
	case IPPROTO_IPIP:
		tunnel->inner = IPV4;
		return SV_DECAPSULATED;
	case IPPROTO_IPV6:
		tunnel->inner = IPV6;
		return SV_DECAPSULATED;
	case IPPROTO_UDP:
		udp = take(cur, sizeof(*udp));
		if (!udp || udp->dest != gue_port_be)
			return SV_NOT_TUNNEL;
		tunnel->outer_len += sizeof(*udp);
		return open_gue(cur, tunnel);
	default:
		return SV_NOT_TUNNEL;
	}
}

/*
 * The link header moves up to the inner packet; the outer headers are gone. The packet stays
 * here, or goes back to where it came from as a packet of its own. None of the checks can fail
 * behind check_inner, but the verifier asks for them.
 */
static __always_inline MUST_USE enum server_verdict
strip(struct xdp_md *ctx, const struct packet *outer, const struct tunnel *tunnel, enum server_verdict verdict)
{
	u16 ethertype_be = tunnel->inner == IPV4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	bool stays = verdict == SV_DECAPSULATED;
	struct macs macs;

	if (!read_macs(ctx, &macs) || bpf_xdp_adjust_head(ctx, tunnel->outer_len))
		return SV_INNER_MALFORMED;
	if (!write_link((void *)(long)ctx->data, (void *)(long)ctx->data_end, outer,
			stays ? macs.dest : macs.source, stays ? macs.source : macs.dest, ethertype_be))
		return SV_INNER_MALFORMED;
	return verdict;
}

#endif
