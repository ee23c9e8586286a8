/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What the accounting of SYNs reads of a TCP segment at a server's traffic control:
 * plain headers, behind the tunnel if there was one. Nothing is written, so that the
 * packet may be shared, merged or not yet split.
 */
#ifndef CAUSEWAY_SERVER_SYN_SEGMENT_H
#define CAUSEWAY_SERVER_SYN_SEGMENT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../packet/parse.h"
#include "../shared/syn_abi.h"

#define TLS_CHANGE_CIPHER_SPEC 20
#define TLS_HANDSHAKE 22
#define TLS_MAJOR 3
/* A record of ChangeCipherSpec, and one with Finished by the longest hash: RFC 8446, 5.2, 4.4.4. */
#define TLS_FINISHED_MAX (6 + 5 + 4 + 48 + 1 + 16)
/* `HTTP/1.1 100 Continue` and two ends of lines. */
#define HTTP_CONTINUE_BYTES 25

/* The option of a jumbogram, with its header: RFC 2675, section 2. */
#define JUMBO_OPTION_BYTES 8

#define SYN_HEADERS_MAX (ETH_HLEN + 60 + sizeof(struct tcphdr))

struct syn_segment {
	struct flow_key6 key; /* client to service; IPv4 as IPv4-mapped */
	u32 seq;
	u32 ack;
	u32 payload_len;
	u32 payload_at; /* behind the Ethernet header's begin */
	u8 flags;
	u8 pad[3];
};

static __always_inline MUST_USE bool
read_syn_tcp(struct cursor *cur, struct syn_segment *seg, u32 skb_len, const void *start, const bool in)
{
	struct tcphdr *tcp = take(cur, sizeof(*tcp));
	u32 headers_len;

	if (!tcp || tcp->doff < 5)
		return false;
	seg->key.sport_be = in ? tcp->source : tcp->dest;
	seg->key.dport_be = in ? tcp->dest : tcp->source;
	seg->key.proto = IPPROTO_TCP;
	seg->seq = bpf_ntohl(tcp->seq);
	seg->ack = bpf_ntohl(tcp->ack_seq);
	seg->flags = ((u8 *)tcp)[13];
	headers_len = (u32)((void *)tcp - start) + tcp->doff * 4u;
	seg->payload_at = headers_len;
	seg->payload_len = skb_len > headers_len ? skb_len - headers_len : 0;
	return true;
}

static __always_inline MUST_USE bool
read_syn4(struct cursor *cur, struct syn_segment *seg, u32 skb_len, const void *start, const bool in)
{
	struct iphdr *ip = take(cur, sizeof(*ip));

	if (!ip || ip->version != 4 || ip->ihl < 5 || ip->protocol != IPPROTO_TCP)
		return false;
	if (ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET))
		return false;
	if (ip->ihl > 5 && !take_variable(cur, ip->ihl * 4u - sizeof(*ip)))
		return false;
	if (!skb_len)
		skb_len = ETH_HLEN + bpf_ntohs(ip->tot_len);
	seg->key.saddr_be[2] = seg->key.daddr_be[2] = bpf_htonl(0xffff);
	seg->key.saddr_be[3] = in ? ip->saddr : ip->daddr;
	seg->key.daddr_be[3] = in ? ip->daddr : ip->saddr;
	return read_syn_tcp(cur, seg, skb_len, start, in);
}

static __always_inline MUST_USE bool
read_syn6(struct cursor *cur, struct syn_segment *seg, u32 skb_len, const void *start, const bool in)
{
	struct ipv6hdr *ip = take(cur, sizeof(*ip));
	u8 next;

	if (!ip || ip->version != 6)
		return false;
	next = ip->nexthdr;
	if (next == IPPROTO_HOPOPTS && !ip->payload_len) {
		u8 *jumbo = take(cur, JUMBO_OPTION_BYTES);

		if (!jumbo)
			return false;
		next = jumbo[0];
	}
	if (next != IPPROTO_TCP)
		return false;
	if (!skb_len)
		skb_len = ETH_HLEN + sizeof(*ip) + bpf_ntohs(ip->payload_len);
	__builtin_memcpy(seg->key.saddr_be, in ? &ip->saddr : &ip->daddr, sizeof(ip->saddr));
	__builtin_memcpy(seg->key.daddr_be, in ? &ip->daddr : &ip->saddr, sizeof(ip->daddr));
	return read_syn_tcp(cur, seg, skb_len, start, in);
}

static __always_inline MUST_USE bool
read_syn_headers(struct __sk_buff *skb, struct syn_segment *seg, const bool in)
{
	void *start = (void *)(long)skb->data;
	struct cursor cur = { .pos = start, .end = (void *)(long)skb->data_end };
	/*
	 * What comes in may be padded: 0, its header knows. What the stack has merged, or will split,
	 * may be longer than a header can tell (BIG TCP), and has no padding.
	 */
	u32 len = in && !skb->gso_size ? 0 : skb->len;

	if (!take(&cur, ETH_HLEN))
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return read_syn4(&cur, seg, len, start, in);
	return read_syn6(&cur, seg, len, start, in);
}

/* Whether it is a TCP segment. A driver may leave headers in pages: they are moved once. */
static __always_inline MUST_USE bool
read_syn_segment(struct __sk_buff *skb, struct syn_segment *seg, const bool in)
{
	u32 linear;

	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return false;
	if (read_syn_headers(skb, seg, in))
		return true;
	linear = skb->data_end - skb->data;
	if (!in || linear >= SYN_HEADERS_MAX || linear >= skb->len)
		return false;
	if (bpf_skb_pull_data(skb, skb->len < SYN_HEADERS_MAX ? skb->len : SYN_HEADERS_MAX))
		return false;
	return read_syn_headers(skb, seg, in);
}

/*
 * Whether the payload is of a TLS handshake: it begins with a record of one, or with the change
 * of ciphers and the client's Finished, and no request follows in the same segment.
 */
static __always_inline bool is_tls_handshake(const u8 head[4], u32 payload_len)
{
	if (head[1] != TLS_MAJOR)
		return false;
	return head[0] == TLS_HANDSHAKE ||
	       (head[0] == TLS_CHANGE_CIPHER_SPEC && payload_len <= TLS_FINISHED_MAX);
}

/* Whether it begins with a method of HTTP/1.1: RFC 9110, 9.3, and RFC 5789. */
static __always_inline bool is_http(const u8 head[4])
{
	static const char methods[][4] = {
		{ 'G', 'E', 'T', ' ' }, { 'P', 'O', 'S', 'T' }, { 'H', 'E', 'A', 'D' },
		{ 'P', 'U', 'T', ' ' }, { 'D', 'E', 'L', 'E' }, { 'O', 'P', 'T', 'I' },
		{ 'P', 'A', 'T', 'C' },
	};

	for (u32 i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
		if (!__builtin_memcmp(head, methods[i], 4))
			return true;
	return false;
}

/* What the client says with a payload. */
static __always_inline u32 request_event(struct __sk_buff *skb, const struct syn_segment *seg)
{
	u8 head[4];

	if (seg->payload_len > sizeof(head) &&
	    !bpf_skb_load_bytes(skb, seg->payload_at, head, sizeof(head))) {
		if (is_tls_handshake(head, seg->payload_len))
			return SYN_EVENT_HANDSHAKE;
		if (is_http(head))
			return SYN_EVENT_HTTP;
	}
	if (seg->payload_len <= SYN_SHORT_BYTES)
		return SYN_EVENT_SHORT;
	return seg->payload_len >= SYN_STREAMS_BYTES ? SYN_EVENT_LONG : SYN_EVENT_REQUEST;
}

/* Whether it is an interim response of HTTP/1.1, which ends nothing: RFC 9110, 15.2.1. */
static __always_inline bool is_interim(struct __sk_buff *skb, const struct syn_segment *seg)
{
	static const char status[12] = "HTTP/1.1 100";
	char head[12];

	if (seg->payload_len != HTTP_CONTINUE_BYTES ||
	    bpf_skb_load_bytes(skb, seg->payload_at, head, sizeof(head)))
		return false;
	return !__builtin_memcmp(head, status, sizeof(status));
}

#endif
