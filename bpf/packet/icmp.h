/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * ICMP and ICMPv6: echo requests to a VIP are answered, errors are steered by the
 * flow they quote, and packets too long for the tunnel are answered with the MTU.
 */
#ifndef CAUSEWAY_PACKET_ICMP_H
#define CAUSEWAY_PACKET_ICMP_H

#include "write.h"

/* The UAPI header linux/icmp.h draws in libc; this is all that is needed of it. */
struct icmp_header {
	u8 type;
	u8 code;
	u16 checksum;
	u32 rest_be; /* id and sequence of an echo, the MTU of a packet too big */
};

enum {
	ICMP4_ECHO_REPLY = 0,
	ICMP4_UNREACHABLE = 3,
	ICMP4_ECHO_REQUEST = 8,
	ICMP4_TIME_EXCEEDED = 11,
	ICMP4_PARAMETER_PROBLEM = 12,
	ICMP4_CODE_FRAGMENTATION_NEEDED = 4,

	ICMP6_UNREACHABLE = 1,
	ICMP6_TOO_BIG = 2,
	ICMP6_PARAMETER_PROBLEM = 4,
	ICMP6_ECHO_REQUEST = 128,
	ICMP6_ECHO_REPLY = 129,
	ICMP6_ROUTER_SOLICITATION = 133,
	ICMP6_REDIRECT = 137,
};

#define ANSWER_TTL 64
/* Bytes of the packet that an answer quotes: IP and TCP header with all options. */
#define QUOTE_LEN 128
#define QUOTED_PORTS_LEN 8 /* the least that an error quotes behind the IP header */

static __always_inline bool is_icmp(const struct packet *pkt, const int family)
{
	return pkt->est.proto == (family == IPV4 ? IPPROTO_ICMP : IPPROTO_ICMPV6);
}

static __always_inline bool is_icmp4_error(u8 type)
{
	return type == ICMP4_UNREACHABLE || type == ICMP4_TIME_EXCEEDED || type == ICMP4_PARAMETER_PROBLEM;
}

static __always_inline bool is_icmp6_error(u8 type)
{
	return type >= ICMP6_UNREACHABLE && type <= ICMP6_PARAMETER_PROBLEM;
}

/* Of a host that holds the VIP on its link; it is never forwarded (RFC 4861). */
static __always_inline bool is_neighbour_discovery(u8 type, const int family)
{
	return family == IPV6 && type >= ICMP6_ROUTER_SOLICITATION && type <= ICMP6_REDIRECT;
}

/* Frame and IP header turned round, echo request into reply. */
static __always_inline void turn_echo4(struct iphdr *ip, struct icmp_header *icmp)
{
	u16 *ttl_proto = (u16 *)&ip->ttl, *type_code = (u16 *)&icmp->type, old;
	u32 client_be = ip->saddr;

	ip->saddr = ip->daddr;
	ip->daddr = client_be;
	old = *ttl_proto;
	ip->ttl = ANSWER_TTL;
	ip->check = csum_replace(ip->check, old, *ttl_proto);
	old = *type_code;
	icmp->type = ICMP4_ECHO_REPLY;
	icmp->checksum = csum_replace(icmp->checksum, old, *type_code);
}

static __always_inline void turn_echo6(struct ipv6hdr *ip, struct icmp_header *icmp)
{
	u16 *type_code = (u16 *)&icmp->type, old = *type_code;
	struct in6_addr client = ip->saddr;

	/* The pseudo header has the same sum both ways. */
	ip->saddr = ip->daddr;
	ip->daddr = client;
	ip->hop_limit = ANSWER_TTL;
	icmp->type = ICMP6_ECHO_REPLY;
	icmp->checksum = csum_replace(icmp->checksum, old, *type_code);
}

static __always_inline MUST_USE enum verdict
answer_echo(struct xdp_md *ctx, struct icmp_header *icmp, const struct packet *pkt, const int family, const u8 *own_mac)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	void *ip = data + (pkt->l2_len & 31);
	struct macs macs;

	if (!read_macs(ctx, &macs))
		return V_MALFORMED;
	if (family == IPV4) {
		if (ip + sizeof(struct iphdr) > end)
			return V_MALFORMED;
		turn_echo4(ip, icmp);
	} else {
		if (ip + sizeof(struct ipv6hdr) > end)
			return V_MALFORMED;
		turn_echo6(ip, icmp);
	}
	copy_mac(data, macs.source);
	copy_mac(data + ETH_ALEN, own_mac);
	return V_ECHO_ANSWERED;
}

/*
 * Whether the ports of the quoted packet lie within the error: what follows in the
 * frame is padding.
 */
static __always_inline bool has_quoted_ports(const struct packet *pkt, u32 quoted_header_len)
{
	u32 needed = pkt->l3_len + sizeof(struct icmp_header) + quoted_header_len + QUOTED_PORTS_LEN;

	return needed <= pkt->est.ip_len;
}

/*
 * The key becomes that of the flow which the error quotes: the quoted packet went
 * from VIP to client, so addresses and ports change sides. It must come from the
 * address that the error is sent to. A later fragment has no ports.
 */
static __always_inline MUST_USE enum parsed parse_quote4(struct cursor *cur, struct packet *pkt)
{
	struct iphdr *ip = take(cur, sizeof(*ip));
	struct { u16 source_be, dest_be; u32 rest; } *ports;

	if (!ip || ip->version != 4 || ip->ihl < 5 || ip->saddr != pkt->key4.daddr_be)
		return PARSED_OTHER;
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		return PARSED_OTHER;
	if (ip->frag_off & bpf_htons(IP_OFFSET) || !has_quoted_ports(pkt, ip->ihl * 4u))
		return PARSED_OTHER;
	if (ip->ihl > 5 && !take_variable(cur, ip->ihl * 4u - sizeof(*ip)))
		return PARSED_OTHER;
	ports = take(cur, QUOTED_PORTS_LEN);
	if (!ports)
		return PARSED_OTHER;
	pkt->key4.daddr_be = ip->saddr;
	pkt->key4.saddr_be = ip->daddr;
	pkt->key4.proto = ip->protocol;
	set_ports(pkt, IPV4, (u32)ports->source_be << 16 | ports->dest_be);
	return PARSED;
}

static __always_inline MUST_USE enum parsed parse_quote6(struct cursor *cur, struct packet *pkt)
{
	struct ipv6hdr *ip = take(cur, sizeof(*ip));
	struct { u16 source_be, dest_be; u32 rest; } *ports;

	if (!ip || ip->version != 6)
		return PARSED_OTHER;
	if (ip->nexthdr != IPPROTO_TCP && ip->nexthdr != IPPROTO_UDP)
		return PARSED_OTHER;
	if (!has_quoted_ports(pkt, sizeof(*ip)))
		return PARSED_OTHER;
#pragma unroll
	for (u32 i = 0; i < 4; i++)
		if (ip->saddr.in6_u.u6_addr32[i] != pkt->key6.daddr_be[i])
			return PARSED_OTHER;
	ports = take(cur, QUOTED_PORTS_LEN);
	if (!ports)
		return PARSED_OTHER;
	__builtin_memcpy(pkt->key6.saddr_be, &ip->daddr, sizeof(ip->daddr));
	pkt->key6.proto = ip->nexthdr;
	set_ports(pkt, IPV6, (u32)ports->source_be << 16 | ports->dest_be);
	return PARSED;
}

/* In front of what is left of the packet: IPv4, ICMP fragmentation needed (RFC 1191). */
static __always_inline void write_too_big4(void *at, const struct packet *pkt, u32 mtu)
{
	u32 *ip = at, *icmp = at + sizeof(struct iphdr);
	u32 ip_len = sizeof(struct iphdr) + sizeof(struct icmp_header) + QUOTE_LEN;

	ip[0] = bpf_htonl(0x45000000u | ip_len);
	ip[1] = bpf_htonl(IP_DONT_FRAGMENT);
	ip[2] = bpf_htonl((u32)ANSWER_TTL << 24 | IPPROTO_ICMP << 16);
	ip[3] = pkt->key4.daddr_be;
	ip[4] = pkt->key4.saddr_be;
	((struct iphdr *)ip)->check = csum_fold(csum_words(ip, 5));
	icmp[0] = bpf_htonl((u32)ICMP4_UNREACHABLE << 24 | ICMP4_CODE_FRAGMENTATION_NEEDED << 16);
	icmp[1] = bpf_htonl(mtu);
	((struct icmp_header *)icmp)->checksum = csum_fold(csum_words(icmp, (8 + QUOTE_LEN) / 4));
}

/* The same for IPv6: packet too big (RFC 4443), with a pseudo header in its sum. */
static __always_inline void write_too_big6(void *at, const struct packet *pkt, u32 mtu)
{
	u32 *ip = at, *icmp = at + sizeof(struct ipv6hdr);
	u32 icmp_len = sizeof(struct icmp_header) + QUOTE_LEN;
	u64 sum;

	ip[0] = bpf_htonl(6u << 28);
	ip[1] = bpf_htonl(icmp_len << 16 | IPPROTO_ICMPV6 << 8 | ANSWER_TTL);
	__builtin_memcpy(&ip[2], pkt->key6.daddr_be, 16);
	__builtin_memcpy(&ip[6], pkt->key6.saddr_be, 16);
	icmp[0] = bpf_htonl((u32)ICMP6_TOO_BIG << 24);
	icmp[1] = bpf_htonl(mtu);
	sum = csum_words(&ip[2], 8) + bpf_htonl(icmp_len) + bpf_htonl(IPPROTO_ICMPV6);
	sum += csum_words(icmp, (8 + QUOTE_LEN) / 4);
	((struct icmp_header *)icmp)->checksum = csum_fold(sum);
}

/* No IPv6 sender goes below this (RFC 8200, section 5). */
#define IPV6_MTU_MIN 1280u

/*
 * Tell the sender to send at most `mtu` bytes. The answer goes out whether or not
 * DF is set: the only other choice is to lose the packet silently, since XDP
 * cannot fragment. An ICMP error is never answered with another (RFC 1122, 3.2.2),
 * and an MTU that IPv6 does not allow is not announced: the sender would add a
 * fragment header and go on with 1280 bytes.
 */
static __always_inline MUST_USE enum verdict
build_too_big(struct xdp_md *ctx, const struct packet *pkt, const int family, u32 mtu, const u8 *own_mac)
{
	u32 ip_len = family == IPV4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	u32 kept = pkt->l2_len + QUOTE_LEN;
	void *data, *end, *at;
	struct macs macs;

	if (family == IPV6 && mtu < IPV6_MTU_MIN)
		return V_TOO_BIG_SILENT;
	if (is_icmp(pkt, family) || pkt->frame_len < kept || !read_macs(ctx, &macs))
		return V_TOO_BIG_SILENT;
	if (bpf_xdp_adjust_tail(ctx, (int)kept - (int)pkt->frame_len))
		return V_TOO_BIG_SILENT;
	if (bpf_xdp_adjust_head(ctx, -(int)(ip_len + sizeof(struct icmp_header))))
		return V_NO_HEADROOM;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (!write_link(data, end, pkt, macs.source, own_mac, pkt->ethertype_be))
		return V_MALFORMED;
	at = data + (pkt->l2_len & 31);
	if (at + ip_len + sizeof(struct icmp_header) + QUOTE_LEN > end)
		return V_MALFORMED;
	if (family == IPV4)
		write_too_big4(at, pkt, mtu);
	else
		write_too_big6(at, pkt, mtu);
	return V_TOO_BIG_ANSWERED;
}

#endif
