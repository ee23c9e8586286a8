/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Cursor parsers. Each takes one header, checks its bounds and its own fields,
 * and moves the cursor past it. What the rest of the program needs goes into
 * struct packet as values: pointers do not survive bpf_xdp_adjust_head.
 */
#ifndef CAUSEWAY_PACKET_PARSE_H
#define CAUSEWAY_PACKET_PARSE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../shared/abi.h"
#include "../shared/estimator.h"

#define MUST_USE __attribute__((warn_unused_result))

#define IPV4 4
#define IPV6 6

#define IP_MORE_FRAGMENTS 0x2000
#define IP_OFFSET 0x1fff
#define IP_DONT_FRAGMENT 0x4000
#define MAX_VLAN_TAGS 2
#define MAX_IPV6_EXTENSIONS 4

struct cursor {
	void *pos;
	void *end;
	u32 beyond; /* bytes of the packet behind `end`, in fragments of a socket buffer */
	struct xdp_md *xdp; /* asked for the whole length, where `end` is too early; NULL: no frame */
};

enum packet_marks {
	PKT_FRAGMENT = 1 << 0, /* no ports, no transport header */
	PKT_COOKIE = 1 << 2,   /* its timestamp carries a cookie: no clock to measure by */
	PKT_UNSUMMED = 1 << 1, /* its transport checksum does not cover all behind the IP header */
};

/*
 * A packet as parsed; host byte order but for the fields named _be. Lengths come
 * from subtracting pointers: to the verifier they are plain numbers then, and the
 * ways through the parsers join again.
 */
struct packet {
	u32 frame_len;
	u32 tag_be[MAX_VLAN_TAGS]; /* TPID and TCI of each tag, as on the wire */
	u16 ethertype_be; /* after the tags */
	u16 l3_len; /* IP header with options or extension headers */
	u8 l2_len;  /* Ethernet header and VLAN tags: 14, 18 or 22 */
	u8 tos;
	u8 options_len; /* TCP options, bytes */
	u8 marks; /* enum packet_marks */
	u8 cookie_bits; /* of a valid cookie with a clock above it; 0: none */
	union {
		struct est_packet est; /* what the estimator reads; also proto and ip_len */
		u64 table_hash; /* of the key, by hash_key(): in the arrival's place until it is read */
	};
	union {
		struct flow_key4 key4;
		struct flow_key6 key6;
	};
};

enum parsed {
	PARSED,
	PARSED_OTHER,     /* sound, but nothing for us: another protocol */
	PARSED_FRAGMENT,  /* an IP fragment; the ports may be elsewhere */
	PARSED_MALFORMED, /* truncated or inconsistent */
};

/* The next `size` bytes, or NULL where the packet ends before. */
static __always_inline void *take(struct cursor *cur, u32 size)
{
	void *here = cur->pos;

	if (here + size > cur->end)
		return NULL;
	cur->pos = here + size;
	return here;
}

/* The same for a length out of the packet; below 4096, which the verifier must see. */
static __always_inline void *take_variable(struct cursor *cur, u32 size)
{
	return take(cur, CW_MASKED(size, 0xfff));
}

/* Bytes from `from` to the end of the packet. */
static __always_inline u32 rest_of(const struct cursor *cur, const void *from)
{
	u32 rest = (u32)((const void *)cur->end - from);

	if (cur->beyond) {
		/* Or the compiler adds first, in 32 bits, to a pointer. */
		asm volatile("" : "+r"(rest));
		rest += cur->beyond;
	}
	return rest;
}

/*
 * Whether the IP packet that begins at `ip`, behind the link header, is as long as it says.
 * A jumbo frame may lie in several buffers, of which XDP shows the first: headers are there,
 * and the kernel is asked for the length of the rest, which the common case does not need.
 */
static __always_inline MUST_USE bool is_whole(const struct cursor *cur, struct packet *pkt, const void *ip)
{
	if (pkt->est.ip_len <= rest_of(cur, ip))
		return true;
	if (!cur->xdp)
		return false;
	pkt->frame_len = (u32)bpf_xdp_get_buff_len(cur->xdp);
	return pkt->l2_len + pkt->est.ip_len <= pkt->frame_len;
}

static __always_inline bool is_vlan(u16 ethertype_be)
{
	return ethertype_be == bpf_htons(ETH_P_8021Q) || ethertype_be == bpf_htons(ETH_P_8021AD);
}

/* Ethernet and up to two VLAN tags. */
static __always_inline MUST_USE enum parsed parse_link(struct cursor *cur, struct packet *pkt)
{
	void *start = cur->pos;
	struct ethhdr *eth = take(cur, sizeof(*eth));
	u16 ethertype_be;

	if (!eth)
		return PARSED_MALFORMED;
	ethertype_be = *(const u16 *)(start + 2 * ETH_ALEN);
#pragma unroll
	for (u32 i = 0; i < MAX_VLAN_TAGS; i++) {
		struct { u16 tci_be, next_be; } *tag;

		if (!is_vlan(ethertype_be))
			break;
		tag = take(cur, sizeof(*tag));
		if (!tag)
			return PARSED_MALFORMED;
		/* Kept as on the wire: the TPID comes first in memory. */
		pkt->tag_be[i] = (u32)ethertype_be | (u32)tag->tci_be << 16;
		ethertype_be = tag->next_be;
	}
	pkt->ethertype_be = ethertype_be;
	pkt->l2_len = (u8)(cur->pos - start);
	return PARSED;
}

/* IPv4 with options. Sets addresses, protocol and lengths; ends at the payload. */
static __always_inline MUST_USE enum parsed parse_ipv4(struct cursor *cur, struct packet *pkt)
{
	struct iphdr *ip = take(cur, sizeof(*ip));
	u32 header_len;

	if (!ip || ip->version != 4 || ip->ihl < 5)
		return PARSED_MALFORMED;
	header_len = ip->ihl * 4u;
	pkt->est.ip_len = bpf_ntohs(ip->tot_len);
	if (pkt->est.ip_len < header_len || !is_whole(cur, pkt, ip))
		return PARSED_MALFORMED;
	if (ip->ihl > 5 && !take_variable(cur, header_len - sizeof(*ip)))
		return PARSED_MALFORMED;
	pkt->l3_len = (u16)(cur->pos - (void *)ip);
	pkt->est.proto = ip->protocol;
	pkt->tos = ip->tos;
	*(u64 *)&pkt->key4 = *(const u64 *)&ip->saddr;
	pkt->key4.proto = ip->protocol;
	if (ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET))
		return PARSED_FRAGMENT;
	return PARSED;
}

static __always_inline bool is_ipv6_extension(u8 proto)
{
	return proto == IPPROTO_HOPOPTS || proto == IPPROTO_ROUTING || proto == IPPROTO_DSTOPTS;
}

/* The extension headers that end points may add; a fragment header ends the walk. */
static __always_inline MUST_USE enum parsed
parse_ipv6_extensions(struct cursor *cur, struct packet *pkt)
{
#pragma unroll
	for (u32 i = 0; i < MAX_IPV6_EXTENSIONS; i++) {
		struct { u8 next, len8; } *ext = cur->pos;
		u32 len;

		if (!is_ipv6_extension(pkt->est.proto))
			break;
		if ((void *)(ext + 1) > cur->end)
			return PARSED_MALFORMED;
		len = (ext->len8 + 1u) * 8;
		pkt->est.proto = ext->next;
		if (!take_variable(cur, len))
			return PARSED_MALFORMED;
	}
	if (pkt->est.proto == IPPROTO_FRAGMENT)
		return PARSED_FRAGMENT;
	return is_ipv6_extension(pkt->est.proto) ? PARSED_OTHER : PARSED;
}

/* Source and destination, by the words that hashes read. */
static __always_inline void set_addresses6(struct flow_key6 *key, const void *addresses)
{
	const u64 *from = addresses;
	u64 *to = (u64 *)key;

#pragma unroll
	for (u32 i = 0; i < 4; i++)
		to[i] = from[i];
}

/* IPv6 with extension headers. As parse_ipv4. */
static __always_inline MUST_USE enum parsed parse_ipv6(struct cursor *cur, struct packet *pkt)
{
	struct ipv6hdr *ip = take(cur, sizeof(*ip));
	enum parsed parsed = PARSED;

	if (!ip || ip->version != 6)
		return PARSED_MALFORMED;
	pkt->est.ip_len = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	if (pkt->est.ip_len < sizeof(*ip) || !is_whole(cur, pkt, ip))
		return PARSED_MALFORMED;
	pkt->est.proto = ip->nexthdr;
	pkt->tos = (u8)(ip->priority << 4 | ip->flow_lbl[0] >> 4);
	set_addresses6(&pkt->key6, &ip->saddr);
	if (is_ipv6_extension(pkt->est.proto) || pkt->est.proto == IPPROTO_FRAGMENT)
		parsed = parse_ipv6_extensions(cur, pkt);
	pkt->l3_len = (u16)(cur->pos - (void *)ip);
	pkt->key6.proto = pkt->est.proto;
	return parsed;
}

/*
 * The ports, as a header has them side by side, and the protocol in one word: hashes read the key
 * by words, and a processor waits where it reads at once what was written in parts.
 */
static __always_inline void set_ports(struct packet *pkt, const int family, u32 ports_be)
{
	if (family == IPV4)
		*(u64 *)&pkt->key4.sport_be = (u64)pkt->key4.proto << 32 | ports_be;
	else
		*(u64 *)&pkt->key6.sport_be = (u64)pkt->key6.proto << 32 | ports_be;
}

/*
 * A fragment's protocol, which IPv6 has behind the fragment header. It gets the key
 * of its addresses and protocol: later fragments have no ports.
 */
static __always_inline MUST_USE enum parsed
parse_fragment(struct cursor *cur, struct packet *pkt, const int family)
{
	struct { u8 next, reserved; u16 offset_be; u32 id; } *fragment;

	pkt->marks |= PKT_FRAGMENT | PKT_UNSUMMED;
	set_ports(pkt, family, 0);
	if (family == IPV4)
		return PARSED;
	fragment = take(cur, sizeof(*fragment));
	if (!fragment)
		return PARSED_MALFORMED;
	pkt->est.proto = fragment->next;
	pkt->key6.proto = fragment->next;
	return PARSED;
}

#define TCP_NOP_NOP_TS bpf_htonl(0x0101080a)

/* The timestamp's echo, where options begin NOP NOP TS: nearly always. */
static __always_inline void parse_common_timestamp(struct cursor *cur, struct packet *pkt)
{
	struct { u32 kind_be, tsval_be, tsecr_be; } *option = cur->pos;

	if ((void *)(option + 1) > cur->end || option->kind_be != TCP_NOP_NOP_TS)
		return;
	pkt->est.has_ts = 1;
	pkt->est.tsecr = bpf_ntohl(option->tsecr_be);
}

/*
 * The timestamp of a SYN in the three layouts that 99 % of clients use (Barbette et
 * al., table 1), by comparing 64 bits and 32 more: MSS, SACK permitted, TS; MSS, NOP,
 * window scale, NOP, NOP, TS; MSS, NOP, window scale, SACK permitted, TS.
 */
static __always_inline void parse_syn_timestamp(struct cursor *cur, struct packet *pkt)
{
	const u64 mss_sack_ts = bpf_cpu_to_be64(0x020400000402080aull);
	const u64 mss_sack_ts_mask = bpf_cpu_to_be64(0xffff0000ffffffffull);
	const u64 mss_ws = bpf_cpu_to_be64(0x0204000001030300ull);
	const u64 mss_ws_mask = bpf_cpu_to_be64(0xffff0000ffffff00ull);
	struct { u64 first; u32 then_be, rest[2]; } __attribute__((packed)) *options = cur->pos;

	if ((void *)(options + 1) > cur->end || pkt->options_len < 16)
		return;
	if ((options->first & mss_sack_ts_mask) == mss_sack_ts)
		pkt->est.has_ts = 1;
	else if ((options->first & mss_ws_mask) == mss_ws && pkt->options_len >= sizeof(*options) &&
		 (options->then_be == TCP_NOP_NOP_TS || options->then_be == bpf_htonl(0x0402080a)))
		pkt->est.has_ts = 1;
}

/* A SYN that also ends the connection: no stack sends it, scanners do. */
static __always_inline bool is_absurd(u8 tcp_flags)
{
	return tcp_flags & EST_TCP_SYN && tcp_flags & (EST_TCP_FIN | EST_TCP_RST);
}

/* TCP. Only the usual place of a timestamp is read; tcp_options.h finds others. */
static __always_inline MUST_USE enum parsed
parse_tcp(struct cursor *cur, struct packet *pkt, const int family)
{
	struct tcphdr *tcp = take(cur, sizeof(*tcp));
	u32 header_len;

	if (!tcp || tcp->doff < 5)
		return PARSED_MALFORMED;
	header_len = tcp->doff * 4u;
	if (pkt->l3_len + header_len > pkt->est.ip_len)
		return PARSED_MALFORMED;
	set_ports(pkt, family, *(const u32 *)tcp);
	pkt->est.tcp_flags = ((u8 *)tcp)[13];
	if (is_absurd(pkt->est.tcp_flags))
		return PARSED_MALFORMED;
	pkt->est.seq = bpf_ntohl(tcp->seq);
	pkt->est.ack = bpf_ntohl(tcp->ack_seq);
	pkt->options_len = header_len - sizeof(*tcp);
	pkt->est.payload_len = pkt->est.ip_len - pkt->l3_len - header_len;
	if (pkt->options_len)
		parse_common_timestamp(cur, pkt);
	if (pkt->est.tcp_flags & EST_TCP_SYN && pkt->options_len)
		parse_syn_timestamp(cur, pkt);
	return PARSED;
}

static __always_inline MUST_USE enum parsed
parse_udp(struct cursor *cur, struct packet *pkt, const int family)
{
	struct udphdr *udp = take(cur, sizeof(*udp));

	if (!udp || pkt->l3_len + sizeof(*udp) > pkt->est.ip_len)
		return PARSED_MALFORMED;
	set_ports(pkt, family, *(const u32 *)udp);
	pkt->est.payload_len = pkt->est.ip_len - pkt->l3_len - sizeof(*udp);
	if (!udp->check)
		pkt->marks |= PKT_UNSUMMED;
	return PARSED;
}

static __always_inline bool is_tcp(const struct packet *pkt)
{
	return pkt->est.proto == IPPROTO_TCP;
}

/* A SYN of a client; SYN-ACKs are none. */
static __always_inline bool is_syn(const struct packet *pkt)
{
	return is_tcp(pkt) && (pkt->est.tcp_flags & (EST_TCP_SYN | EST_TCP_ACK)) == EST_TCP_SYN;
}

static __always_inline bool is_closing(const struct packet *pkt)
{
	return is_tcp(pkt) && pkt->est.tcp_flags & (EST_TCP_FIN | EST_TCP_RST);
}

/* Whether the packet is of the flow itself, not an ICMP error that quotes it. */
static __always_inline bool is_own(const struct packet *pkt, const int family)
{
	return pkt->est.proto == (family == IPV4 ? pkt->key4.proto : pkt->key6.proto);
}

/* Whether a packet that no valid entry covers begins a flow, as far as one can tell. */
static __always_inline bool is_first(const struct packet *pkt, const int family)
{
	return is_own(pkt, family) && (is_syn(pkt) || !is_tcp(pkt));
}

/* Whether the packet tells something of its flow: not a fragment, no quote. */
static __always_inline bool is_measurable(const struct packet *pkt, const int family)
{
	return is_own(pkt, family) && !(pkt->marks & PKT_FRAGMENT);
}

#endif
