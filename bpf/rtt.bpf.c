/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The sampler of `causeway rtt`: 1 in N TCP packets from or to one port, each
 * direction by itself, on the traffic control hooks of the sender's interface. What
 * it takes goes to user space as a record; pairs are made there. Every packet passes.
 *
 * A packet that is not sampled costs one random number: nothing of it is read.
 * `cfg_follow` takes every packet of the port instead, for the methods that need all
 * of them, and marks those that sampling would have taken.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "shared/abi.h"

/* Read every few milliseconds by user space: 50,000 packets find room. */
#define RECORDS_BYTES (1 << 22)
#define MAX_TAGS 2
#define TCP_NOP_NOP_TS bpf_htonl(0x0101080a)
/* TCX_NEXT and TC_ACT_UNSPEC: the next program decides. */
#define NEXT (-1)

/* Set by the loader before loading. */
const volatile u32 cfg_threshold = 0; /* a random number up to this samples; 0: none */
const volatile bool cfg_follow = false;
const volatile bool cfg_link_header = true; /* packets begin with an Ethernet header */
const volatile u16 cfg_port_be = 0;	    /* the server's port */

/* Records that found no room in the ring buffer. */
u64 lost_records = 0;

/* Keeps the struct in the object's BTF, which a test compares with Rust's. */
const struct rtt_record *rtt_record_type __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RECORDS_BYTES);
} records SEC(".maps");

/* Where a TCP segment stands in its packet, and what is around it. */
struct tcp_position {
	u32 tcp;     /* offset of the TCP header */
	u32 end;     /* offset of the end of the IP packet */
	u32 ip;      /* offset of the IP header */
	bool ipv6;
};

/*
 * Headers are read by bpf_skb_load_bytes: the data of a packet under way to an
 * interface need not be in one piece, and making it so would change it.
 */
static __always_inline bool
load(const struct __sk_buff *skb, u32 offset, void *to, u32 size)
{
	return bpf_skb_load_bytes(skb, offset, to, size) == 0;
}

/* The EtherType behind the link header, and where the IP header is. 0: too short. */
static __always_inline u16 find_ip(const struct __sk_buff *skb, u32 *offset)
{
	struct { u8 macs[2 * ETH_ALEN]; u16 type_be; } eth;
	struct { u16 tci_be, next_be; } tag;
	u16 type_be;

	if (!cfg_link_header)
		return (u16)skb->protocol;
	if (!load(skb, 0, &eth, sizeof(eth)))
		return 0;
	type_be = eth.type_be;
	*offset = sizeof(eth);
#pragma unroll
	for (u32 i = 0; i < MAX_TAGS; i++) {
		if (type_be != bpf_htons(ETH_P_8021Q) && type_be != bpf_htons(ETH_P_8021AD))
			break;
		if (!load(skb, *offset, &tag, sizeof(tag)))
			return 0;
		type_be = tag.next_be;
		*offset += sizeof(tag);
	}
	return type_be;
}

/* A length of 0 stands for a packet beyond 64 KiB (BIG TCP). */
static __always_inline u32 end_of(const struct __sk_buff *skb, u32 offset, u32 length)
{
	return length ? offset + length : skb->len;
}

static __always_inline bool find_tcp4(const struct __sk_buff *skb, struct tcp_position *at)
{
	struct iphdr ip;

	if (!load(skb, at->ip, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return false;
	if (ip.protocol != IPPROTO_TCP || ip.frag_off & bpf_htons(0x3fff))
		return false;
	at->tcp = at->ip + ip.ihl * 4u;
	at->end = end_of(skb, at->ip, bpf_ntohs(ip.tot_len));
	at->ipv6 = false;
	return true;
}

/* IPv6 without extension headers: TCP's packets have none. */
static __always_inline bool find_tcp6(const struct __sk_buff *skb, struct tcp_position *at)
{
	struct ipv6hdr ip;

	if (!load(skb, at->ip, &ip, sizeof(ip)) || ip.version != 6 || ip.nexthdr != IPPROTO_TCP)
		return false;
	at->tcp = at->ip + sizeof(ip);
	at->end = end_of(skb, at->tcp, bpf_ntohs(ip.payload_len));
	at->ipv6 = true;
	return true;
}

/* Addresses in the order of the packet: source to `from`, destination to `to`. */
static __always_inline bool
copy_addresses(const struct __sk_buff *skb, const struct tcp_position *at, u8 *from, u8 *to)
{
	u32 source = at->ip + (at->ipv6 ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr));

	if (at->ipv6)
		return load(skb, source, from, 16) && load(skb, source + 16, to, 16);
	*(u32 *)(from + 8) = bpf_htonl(0xffff);
	*(u32 *)(to + 8) = bpf_htonl(0xffff);
	return load(skb, source, from + 12, 4) && load(skb, source + 4, to + 12, 4);
}

/* The timestamp option where it nearly always is, behind two NOPs. */
static __always_inline void
copy_timestamp(const struct __sk_buff *skb, const struct tcp_position *at, struct rtt_record *record)
{
	struct { u32 kind_be, tsval_be, tsecr_be; } option;

	if (!load(skb, at->tcp + sizeof(struct tcphdr), &option, sizeof(option)))
		return;
	if (option.kind_be != TCP_NOP_NOP_TS)
		return;
	record->bits |= RTT_TIMESTAMP;
	record->tsval = bpf_ntohl(option.tsval_be);
	record->tsecr = bpf_ntohl(option.tsecr_be);
}

/* Fills a record; false where the packet is not of the port or unsound. */
static __always_inline bool
describe(const struct __sk_buff *skb, struct rtt_record *record, const bool outgoing)
{
	struct tcp_position at = {};
	struct tcphdr tcp;
	u16 type_be = find_ip(skb, &at.ip);
	u32 header;

	if (type_be == bpf_htons(ETH_P_IP)) {
		if (!find_tcp4(skb, &at))
			return false;
	} else if (type_be != bpf_htons(ETH_P_IPV6) || !find_tcp6(skb, &at)) {
		return false;
	}
	if (!load(skb, at.tcp, &tcp, sizeof(tcp)))
		return false;
	if (tcp.source != cfg_port_be && tcp.dest != cfg_port_be)
		return false;
	header = tcp.doff * 4u;
	if (header < sizeof(tcp) || at.tcp + header > at.end)
		return false;
	record->seq = bpf_ntohl(tcp.seq);
	record->ack = bpf_ntohl(tcp.ack_seq);
	record->ip_len = at.end - at.ip;
	record->payload_len = at.end - at.tcp - header;
	record->tcp_flags = ((u8 *)&tcp)[13];
	record->local_port_be = outgoing ? tcp.source : tcp.dest;
	record->remote_port_be = outgoing ? tcp.dest : tcp.source;
	copy_timestamp(skb, &at, record);
	return outgoing ? copy_addresses(skb, &at, record->local, record->remote) :
			  copy_addresses(skb, &at, record->remote, record->local);
}

static __always_inline int observe(struct __sk_buff *skb, const bool outgoing)
{
	bool sampled = cfg_threshold && bpf_get_prandom_u32() <= cfg_threshold;
	struct rtt_record found = {}, *record;

	if (!sampled && !cfg_follow)
		return NEXT;
	found.t_ns = bpf_ktime_get_ns();
	found.bits = (outgoing ? RTT_OUTGOING : 0) | (sampled ? RTT_SAMPLED : 0);
	if (!describe(skb, &found, outgoing))
		return NEXT;
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record) {
		__sync_fetch_and_add(&lost_records, 1);
		return NEXT;
	}
	*record = found;
	/* The reader is not woken: a wake-up here would be part of what is measured. */
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return NEXT;
}

SEC("tc")
int causeway_rtt_out(struct __sk_buff *skb)
{
	return observe(skb, true);
}

SEC("tc")
int causeway_rtt_in(struct __sk_buff *skb)
{
	return observe(skb, false);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
