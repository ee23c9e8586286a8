/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A TCP segment as traffic control sees it: at a server, behind the tunnel, merged or
 * not yet split. Only its headers need be in one piece.
 */
#ifndef CAUSEWAY_SERVER_SEGMENT_H
#define CAUSEWAY_SERVER_SEGMENT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../packet/parse.h"
#include "../shared/abi.h"

#define TCP_CHECK_OFFSET 16
#define TCP_OPTIONS_LEN_MAX 40
/* Extension headers of IPv6 that are looked behind: two, and together so many bytes. */
#define SEGMENT_EXTENSIONS 2
#define EXTENSIONS_LEN_MAX 64
#define HEADERS_LEN_MAX (ETH_HLEN + 40 + EXTENSIONS_LEN_MAX + 60)

enum direction {
	FROM_CLIENT,
	TO_CLIENT,
};

/* A segment with a timestamp; offsets are from the start of the frame. */
struct segment {
	union {
		struct flow_key4 key4; /* client to VIP, whichever way the segment goes */
		struct flow_key6 key6;
	};
	u32 tsval;
	u32 tsecr;
	u32 seq;
	u16 tcp_offset;
	u16 ts_offset; /* of TSval; 0: there is no timestamp */
	u8 tcp_flags;
	u8 family; /* IPV4 or IPV6 */
	u8 options_len;
	u8 is_bare; /* nothing behind the TCP header, where no frame is padded: to the client */
};

static __always_inline bool is_opening(const struct segment *seg)
{
	return (seg->tcp_flags & (EST_TCP_SYN | EST_TCP_ACK)) == EST_TCP_SYN;
}

static __always_inline bool is_syn_ack(const struct segment *seg)
{
	return (seg->tcp_flags & (EST_TCP_SYN | EST_TCP_ACK)) == (EST_TCP_SYN | EST_TCP_ACK);
}

/*
 * The timestamp wherever it is among the options. The walk goes over constant
 * positions and stops at those where an option begins, as find_timestamp does.
 */
static __noinline int find_option(struct __sk_buff *skb, struct segment *seg)
{
	u8 options[TCP_OPTIONS_LEN_MAX] = {};
	u32 len = seg->options_len, next = 0;

	if (len < 10 || len > TCP_OPTIONS_LEN_MAX)
		return 0;
	if (bpf_skb_load_bytes(skb, seg->tcp_offset + sizeof(struct tcphdr), options, len))
		return 0;
#pragma unroll
	for (u32 i = 0; i <= TCP_OPTIONS_LEN_MAX - 10; i++) {
		u8 kind = options[i], size = options[i + 1];
		u32 value_be, echo_be;

		if (i != next)
			continue;
		if (kind == 8 && size == 10) {
			if (i + 10 > len)
				return 0;
			__builtin_memcpy(&value_be, &options[i + 2], sizeof(value_be));
			__builtin_memcpy(&echo_be, &options[i + 6], sizeof(echo_be));
			seg->tsval = bpf_ntohl(value_be);
			seg->tsecr = bpf_ntohl(echo_be);
			seg->ts_offset = seg->tcp_offset + sizeof(struct tcphdr) + i + 2;
			return 0;
		}
		if (kind == 0 || (kind != 1 && size < 2))
			return 0;
		next += kind == 1 ? 1 : size;
	}
	return 0;
}

/* NOP NOP TS, or what Linux puts into a SYN-ACK: MSS, SACK permitted, TS. */
static __always_inline void find_common_option(struct cursor *cur, struct segment *seg)
{
	struct { u32 kind_be, tsval_be, tsecr_be; } *usual = cur->pos;
	struct { u32 mss_be, sack_ts_be, tsval_be, tsecr_be; } *opening = cur->pos;
	u32 at = seg->tcp_offset + sizeof(struct tcphdr);

	if ((void *)(usual + 1) > cur->end || seg->options_len < sizeof(*usual))
		return;
	if (usual->kind_be == bpf_htonl(0x0101080a)) {
		seg->tsval = bpf_ntohl(usual->tsval_be);
		seg->tsecr = bpf_ntohl(usual->tsecr_be);
		seg->ts_offset = at + 4;
		return;
	}
	if ((void *)(opening + 1) > cur->end || seg->options_len < sizeof(*opening))
		return;
	if ((opening->mss_be & bpf_htonl(0xffff0000)) == bpf_htonl(0x02040000) &&
	    opening->sack_ts_be == bpf_htonl(0x0402080a)) {
		seg->tsval = bpf_ntohl(opening->tsval_be);
		seg->tsecr = bpf_ntohl(opening->tsecr_be);
		seg->ts_offset = at + 8;
	}
}

static __always_inline MUST_USE bool
parse_tcp_header(struct cursor *cur, struct segment *seg, void *start, enum direction direction)
{
	struct tcphdr *tcp = take(cur, sizeof(*tcp));
	u16 client_be, vip_be;

	if (!tcp || tcp->doff < 5)
		return false;
	client_be = direction == FROM_CLIENT ? tcp->source : tcp->dest;
	vip_be = direction == FROM_CLIENT ? tcp->dest : tcp->source;
	if (seg->family == IPV4) {
		seg->key4.sport_be = client_be;
		seg->key4.dport_be = vip_be;
		seg->key4.proto = IPPROTO_TCP;
	} else {
		seg->key6.sport_be = client_be;
		seg->key6.dport_be = vip_be;
		seg->key6.proto = IPPROTO_TCP;
	}
	seg->tcp_offset = (u16)((void *)tcp - start);
	seg->seq = bpf_ntohl(tcp->seq);
	seg->tcp_flags = ((u8 *)tcp)[13];
	seg->options_len = tcp->doff * 4 - sizeof(*tcp);
	if (seg->options_len)
		find_common_option(cur, seg);
	return true;
}

static __always_inline MUST_USE bool
parse_ip4_segment(struct cursor *cur, struct segment *seg, void *start, enum direction direction)
{
	struct iphdr *ip = take(cur, sizeof(*ip));

	if (!ip || ip->version != 4 || ip->ihl < 5 || ip->protocol != IPPROTO_TCP)
		return false;
	if (ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET))
		return false;
	if (ip->ihl > 5 && !take_variable(cur, ip->ihl * 4u - sizeof(*ip)))
		return false;
	seg->family = IPV4;
	seg->key4.saddr_be = direction == FROM_CLIENT ? ip->saddr : ip->daddr;
	seg->key4.daddr_be = direction == FROM_CLIENT ? ip->daddr : ip->saddr;
	return parse_tcp_header(cur, seg, start, direction);
}

/* What a client may put before the TCP header; the balancer has read the cookie behind it. */
static __always_inline MUST_USE bool skip_extensions(struct cursor *cur, u8 next)
{
	void *start = cur->pos;

#pragma unroll
	for (u32 i = 0; i < SEGMENT_EXTENSIONS; i++) {
		struct { u8 next, len8; } *ext = cur->pos;

		if (!is_ipv6_extension(next))
			break;
		if ((void *)(ext + 1) > cur->end)
			return false;
		next = ext->next;
		if (!take_variable(cur, (ext->len8 + 1u) * 8))
			return false;
	}
	return next == IPPROTO_TCP && cur->pos - start <= EXTENSIONS_LEN_MAX;
}

static __always_inline MUST_USE bool
parse_ip6_segment(struct cursor *cur, struct segment *seg, void *start, enum direction direction)
{
	struct ipv6hdr *ip = take(cur, sizeof(*ip));

	if (!ip || ip->version != 6)
		return false;
	if (ip->nexthdr != IPPROTO_TCP && !skip_extensions(cur, ip->nexthdr))
		return false;
	seg->family = IPV6;
	if (direction == FROM_CLIENT) {
		__builtin_memcpy(seg->key6.saddr_be, &ip->saddr, sizeof(ip->saddr));
		__builtin_memcpy(seg->key6.daddr_be, &ip->daddr, sizeof(ip->daddr));
	} else {
		__builtin_memcpy(seg->key6.saddr_be, &ip->daddr, sizeof(ip->daddr));
		__builtin_memcpy(seg->key6.daddr_be, &ip->saddr, sizeof(ip->saddr));
	}
	return parse_tcp_header(cur, seg, start, direction);
}

static __always_inline MUST_USE bool
parse_headers(struct __sk_buff *skb, struct segment *seg, enum direction direction)
{
	void *start = (void *)(long)skb->data;
	struct cursor cur = { .pos = start, .end = (void *)(long)skb->data_end };

	if (!take(&cur, ETH_HLEN))
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return parse_ip4_segment(&cur, seg, start, direction);
	return parse_ip6_segment(&cur, seg, start, direction);
}

/*
 * Reads a TCP segment with its timestamp; false for everything else. VLAN tags are in
 * the buffer's metadata. A driver may leave headers in pages: they are moved once.
 */
static __always_inline MUST_USE bool
parse_segment(struct __sk_buff *skb, struct segment *seg, enum direction direction)
{
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return false;
	if (!parse_headers(skb, seg, direction)) {
		u32 linear = skb->data_end - skb->data;

		if (direction == TO_CLIENT || linear >= HEADERS_LEN_MAX || linear >= skb->len)
			return false;
		if (bpf_skb_pull_data(skb, skb->len < HEADERS_LEN_MAX ? skb->len : HEADERS_LEN_MAX))
			return false;
		if (!parse_headers(skb, seg, direction))
			return false;
	}
	seg->is_bare = skb->len == seg->tcp_offset + sizeof(struct tcphdr) + seg->options_len;
	if (!seg->ts_offset && seg->options_len)
		find_option(skb, seg);
	return true;
}

/*
 * Writes one half of the timestamp. An odd offset turns the bytes of each checksummed
 * word, which is the same as turning the value. The helper leaves the checksum of a
 * segment alone that the card will fill in.
 */
static __always_inline void
write_timestamp(struct __sk_buff *skb, const struct segment *seg, u32 offset, u32 old, u32 new)
{
	u32 old_be = bpf_htonl(old), new_be = bpf_htonl(new), from = old_be, to = new_be;

	if (old == new)
		return;
	if ((offset ^ seg->tcp_offset) & 1) {
		from = old_be << 8 | old_be >> 24;
		to = new_be << 8 | new_be >> 24;
	}
	if (bpf_skb_store_bytes(skb, offset, &new_be, sizeof(new_be), 0))
		return;
	bpf_l4_csum_replace(skb, seg->tcp_offset + TCP_CHECK_OFFSET, from, to, sizeof(to));
}

#endif
