/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Generic UDP encapsulation (draft-ietf-intarea-gue-09). Variant 1: the IP packet
 * follows the UDP header at once, and its own first byte says so; Linux's `fou`
 * module (`ip fou add port 6080 gue`) and Katran's reals take it. Variant 0, with a
 * header between the two, where the server has to be told something.
 */
#ifndef CAUSEWAY_LB_GUE_H
#define CAUSEWAY_LB_GUE_H

#include "../packet/write.h"
#include "maps.h"

/* Source ports of tunnels: the dynamic range of RFC 6335, chosen by the flow. */
#define GUE_SOURCE_PORTS 0xc000u
#define GUE_SOURCE_PORTS_MASK 0x3fffu

/* A cheap hash of the flow for the outer header: spreads tunnels, protects nothing. */
static __always_inline u32 tunnel_entropy(const struct packet *pkt, const int family)
{
	u32 mixed;

	if (family == IPV4) {
		mixed = pkt->key4.saddr_be ^ ((u32)pkt->key4.sport_be << 16 | pkt->key4.dport_be);
	} else {
		const struct flow_key6 *key = &pkt->key6;

		mixed = key->saddr_be[0] ^ key->saddr_be[1] ^ key->saddr_be[2] ^ key->saddr_be[3] ^
			((u32)key->sport_be << 16 | key->dport_be);
	}
	mixed = (mixed ^ mixed >> 16) * 0x9e3779b1; /* 2^32 / golden ratio */
	mixed = (mixed ^ mixed >> 15) * 0x85ebca6b; /* of MurmurHash3's finaliser */
	return mixed ^ mixed >> 13;
}

/*
 * What the inner packet adds to a checksum, without reading its payload: a header
 * with a right checksum of its own adds nothing, and a segment with one adds the
 * complement of its pseudo header (Linux calls this local checksum offload). A
 * packet whose checksum is wrong so gets a wrong outer one, too. Not for packets
 * with PKT_UNSUMMED.
 */
static __always_inline u64 inner_sum(const void *inner, const struct packet *pkt, const int family)
{
	u32 transport_len = pkt->est.ip_len - pkt->l3_len;
	const u32 *words = inner;

	if (family == IPV6) /* addresses are in both, and cancel out */
		return csum_words(words, 2) +
		       csum_fold((u64)bpf_htonl(transport_len) + bpf_htonl(pkt->est.proto));
	if (pkt->est.proto == IPPROTO_ICMP) /* no pseudo header */
		return 0;
	return csum_fold(csum_words(&words[3], 2) + bpf_htons(transport_len) + bpf_htons(pkt->est.proto));
}

/* Whether the outer checksum is wanted, and can be told from the headers alone. */
static __always_inline bool
sums_gue(const struct packet *pkt, const int family, const struct ctl *control, const int outer_family)
{
	u32 wanted = outer_family == IPV4 ? GUE_CHECKSUM_4 : GUE_CHECKSUM_6;

	if (!(control->gue_checksum & wanted) || pkt->marks & PKT_UNSUMMED)
		return false;
	return family == IPV4 || pkt->l3_len == sizeof(struct ipv6hdr);
}

/* Bytes between the outer IP header and the inner one. */
static __always_inline u32 gue_len(u32 token)
{
	return sizeof(struct udphdr) + (token ? sizeof(struct gue_private) : 0);
}

/* The private data: the connection token. */
static __always_inline void write_private(struct gue_private *head, const int family, u32 token)
{
	head->variant_hlen = 1;
	head->proto = family == IPV4 ? IPPROTO_IPIP : IPPROTO_IPV6;
	head->flags_be = 0;
	head->kind_be = bpf_htons(GUE_CONN_TOKEN);
	head->token_be = bpf_htons((u16)token);
}

/* The UDP header behind the outer IP header, which is there already. */
static __always_inline MUST_USE bool
write_gue(const void *outer, void *end, const struct packet *pkt, const int family,
	  const struct ctl *control, const int outer_family, u32 token, u32 len, bool is_summed)
{
	const u32 ip_len = outer_family == IPV4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	const u32 *addresses = outer + (outer_family == IPV4 ? 12 : 8);
	u16 len_be = bpf_htons(pkt->est.ip_len + len - ip_len);
	struct udphdr *udp = (void *)(long)outer + ip_len;
	void *inner = udp + 1;
	u64 sum = 0;

	if (token) {
		struct gue_private *head = inner;

		if ((void *)(head + 1) > end)
			return false;
		write_private(head, family, token);
		sum = csum_words(head, 2);
		inner = head + 1;
	}
	/* The first 20 bytes of what follows are always there. */
	if (inner + sizeof(struct iphdr) > end)
		return false;
	udp->source = bpf_htons(GUE_SOURCE_PORTS | (tunnel_entropy(pkt, family) & GUE_SOURCE_PORTS_MASK));
	udp->dest = control->gue_port_be ? control->gue_port_be : bpf_htons(GUE_PORT);
	udp->len = len_be;
	udp->check = 0;
	if (!is_summed || !sums_gue(pkt, family, control, outer_family))
		return true;
	sum += csum_words(addresses, outer_family == IPV4 ? 2 : 8);
	sum += bpf_htons(IPPROTO_UDP) + (u64)len_be; /* pseudo header */
	sum += (u64)udp->source + udp->dest + len_be;
	sum += inner_sum(inner, pkt, family);
	udp->check = csum_fold(sum);
	if (!udp->check)
		udp->check = 0xffff;
	return true;
}

enum gue_families {
	GUE_INNER_IPV6 = 1 << 0,
	GUE_OUTER_IPV6 = 1 << 1,
	GUE_INNER_TUNNEL = 1 << 2, /* another IP header comes between: no outer checksum is told */
};

/*
 * The same from the packet's own pointers, for all pairs of families: global, so that
 * it is verified once and not behind each way to a real. `len` bytes are in front of the
 * packet. 0 if the frame is too short, which the caller has excluded.
 */
CW_GLOBAL int finish_gue(struct xdp_md *ctx, const struct packet *pkt, u32 families, u32 token, u32 len)
{
	bool is_summed = !(families & GUE_INNER_TUNNEL);
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *outer;
	struct ctl *control = get_ctl();

	if (!pkt || !control)
		return 0;
	outer = data + (pkt->l2_len & 31);
	if (outer + sizeof(struct ipv6hdr) + sizeof(struct udphdr) > end)
		return 0;
	switch (families & (GUE_INNER_IPV6 | GUE_OUTER_IPV6)) {
	case 0:
		return write_gue(outer, end, pkt, IPV4, control, IPV4, token, len, is_summed);
	case GUE_INNER_IPV6:
		return write_gue(outer, end, pkt, IPV6, control, IPV4, token, len, is_summed);
	case GUE_OUTER_IPV6:
		return write_gue(outer, end, pkt, IPV4, control, IPV6, token, len, is_summed);
	default:
		return write_gue(outer, end, pkt, IPV6, control, IPV6, token, len, is_summed);
	}
}

#endif
