/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Health probes on their way out of the balancer, in TC egress. A probe is an
 * ordinary packet of a local socket to the VIP, marked with the real that it is to
 * test; it goes to that real as a client's packet would: in the same outer header, or
 * to its MAC address. So it tests what clients depend on: the way there, the
 * decapsulation, the VIP on the server, the service. Nothing else is touched. Where there are
 * several ways of equal cost it takes one of them: nothing in its outer header varies.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "packet/write.h"
#include "shared/abi.h"

#define OUTER_TTL 64
#define OUTER_DONT_FRAGMENT 0x4000
#define MAC_LEN 6

/* The balancer's own maps: the loader connects them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct real);
} reals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct ctl);
} ctl SEC(".maps");

/* The longest outer header: IPv6 and UDP, in words. */
struct outer {
	u32 words[12];
};

static __always_inline bool is_ipv4(const struct real *real)
{
	return real->family == 4;
}

static __always_inline u32 ip_header_len(const struct real *real)
{
	return is_ipv4(real) ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

static __always_inline u32 outer_len(const struct real *real)
{
	return ip_header_len(real) + (real->flags & REAL_GUE ? sizeof(struct udphdr) : 0);
}

static __always_inline u32 outer_protocol(const struct real *real, bool inner_is_ipv4)
{
	if (real->flags & REAL_GUE)
		return IPPROTO_UDP;
	return inner_is_ipv4 ? IPPROTO_IPIP : IPPROTO_IPV6;
}

static __always_inline void
write_outer4(struct outer *outer, const struct real *real, const struct ctl *control, u32 len, u32 protocol)
{
	u32 *words = outer->words;

	words[0] = bpf_htonl(0x45000000u | len);
	words[1] = bpf_htonl(OUTER_DONT_FRAGMENT);
	words[2] = bpf_htonl((u32)OUTER_TTL << 24 | protocol << 16);
	words[3] = control->outer4_be;
	__builtin_memcpy(&words[4], &real->addr[12], 4);
	((struct iphdr *)words)->check = csum_fold(csum_words(words, sizeof(struct iphdr) / 4));
}

static __always_inline void
write_outer6(struct outer *outer, const struct real *real, const struct ctl *control, u32 len, u32 protocol)
{
	u32 *words = outer->words;

	words[0] = bpf_htonl(6u << 28);
	words[1] = bpf_htonl((len - sizeof(struct ipv6hdr)) << 16 | protocol << 8 | OUTER_TTL);
	__builtin_memcpy(&words[2], control->outer6_be, 16);
	__builtin_memcpy(&words[6], real->addr, 16);
}

/* The inner headers, as far as the outer checksum goes by them. */
struct inner {
	u32 words[sizeof(struct ipv6hdr) / 4];
};

/*
 * What the inner packet of `len` bytes adds to a checksum, in the lowest 32 bits, as inner_sum() of
 * lb/gue.h has it of packets of clients. 0: its headers do not tell it.
 */
#define INNER_SUMMED (1ull << 63)

static __always_inline u64 inner_sum(const struct inner *inner, u32 len, bool is_ipv4)
{
	const u32 *words = inner->words;
	const struct iphdr *v4 = (const void *)words;
	const struct ipv6hdr *v6 = (const void *)words;
	u32 proto = is_ipv4 ? v4->protocol : v6->nexthdr;
	u32 header_len = is_ipv4 ? v4->ihl * 4 : sizeof(struct ipv6hdr);
	u64 pseudo = bpf_htonl(len - header_len) + (u64)bpf_htonl(proto);

	if (is_ipv4 && proto == IPPROTO_ICMP) /* no pseudo header */
		return INNER_SUMMED;
	if (proto != IPPROTO_TCP && proto != IPPROTO_UDP && (is_ipv4 || proto != IPPROTO_ICMPV6))
		return 0;
	if (is_ipv4)
		return INNER_SUMMED | csum_fold(csum_words(&words[3], 2) + pseudo);
	return INNER_SUMMED | (csum_words(words, 2) + csum_fold(pseudo));
}

static __always_inline bool read_inner(struct __sk_buff *skb, bool is_ipv4, struct inner *inner)
{
	u32 len = is_ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);

	return !bpf_skb_load_bytes(skb, ETH_HLEN, inner, len);
}

/* Datagrams over IPv4 may go without a checksum. */
static __always_inline bool is_unsummed(struct __sk_buff *skb, const struct inner *inner)
{
	const struct iphdr *v4 = (const void *)inner->words;
	struct udphdr udp;

	if (v4->protocol != IPPROTO_UDP)
		return false;
	return bpf_skb_load_bytes(skb, ETH_HLEN + v4->ihl * 4, &udp, sizeof(udp)) || !udp.check;
}

/*
 * What the inner packet adds to the outer checksum, if that is wanted; 0: there is none. Where the
 * device is to cut segments each one has a length of its own.
 */
static __always_inline u64 wanted_sum(struct __sk_buff *skb, const struct real *real, const struct ctl *control)
{
	u32 wanted = is_ipv4(real) ? GUE_CHECKSUM_4 : GUE_CHECKSUM_6;
	bool inner_is_ipv4 = skb->protocol == bpf_htons(ETH_P_IP);
	struct inner inner = {};

	if (!(control->gue_checksum & wanted) || skb->gso_size || !read_inner(skb, inner_is_ipv4, &inner))
		return 0;
	if (inner_is_ipv4 && is_unsummed(skb, &inner))
		return 0;
	return inner_sum(&inner, skb->len - ETH_HLEN, inner_is_ipv4);
}

/* Behind an outer IP header that ends in the addresses, which are `count` words. */
static __always_inline void
write_gue(u32 *words, const struct ctl *control, u32 len, u64 inner, const u32 count)
{
	u32 port = bpf_ntohs(control->gue_port_be);
	u64 sum = csum_words(words - count, count);
	u16 check;

	words[0] = bpf_htonl((u32)GUE_PORT << 16 | (port ? port : GUE_PORT));
	words[1] = bpf_htonl(len << 16);
	if (!inner)
		return;
	sum += bpf_htonl(IPPROTO_UDP) + (u64)bpf_htonl(len); /* pseudo header */
	sum += (u64)words[0] + words[1] + (inner & ~INNER_SUMMED);
	check = csum_fold(sum);
	((struct udphdr *)words)->check = check ? check : 0xffff;
}

static __always_inline bool is_mac(const u8 *mac)
{
	return mac[0] | mac[1] | mac[2] | mac[3] | mac[4] | mac[5];
}

static __always_inline const u8 *gateway_of(const struct ctl *control, const struct real *real)
{
	if (is_ipv4(real) || !is_mac(control->gateway6_mac))
		return control->gateway_mac;
	return control->gateway6_mac;
}

static __always_inline bool knows_way(const struct ctl *control, const struct real *real)
{
	const u32 *v6 = control->outer6_be;

	if (!is_mac(gateway_of(control, real)))
		return false;
	return is_ipv4(real) ? control->outer4_be != 0 : (v6[0] | v6[1] | v6[2] | v6[3]) != 0;
}

/* Room between the link header and the packet, filled with the outer header. */
static __always_inline bool encapsulate(struct __sk_buff *skb, const struct real *real, const struct ctl *control)
{
	bool inner_is_ipv4 = skb->protocol == bpf_htons(ETH_P_IP), gue = real->flags & REAL_GUE;
	u32 more = outer_len(real), total = skb->len - ETH_HLEN + more;
	u32 protocol = outer_protocol(real, inner_is_ipv4);
	u16 ethertype_be = is_ipv4(real) ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	u64 flags = is_ipv4(real) ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;
	u64 inner = gue ? wanted_sum(skb, real, control) : 0;
	struct outer outer = {};

	if (gue)
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	if (is_ipv4(real)) {
		write_outer4(&outer, real, control, total, protocol);
		if (gue)
			write_gue(&outer.words[5], control, total - sizeof(struct iphdr), inner, 2);
	} else {
		write_outer6(&outer, real, control, total, protocol);
		if (gue)
			write_gue(&outer.words[10], control, total - sizeof(struct ipv6hdr), inner, 8);
	}
	if (bpf_skb_adjust_room(skb, (s32)more, BPF_ADJ_ROOM_MAC, flags))
		return false;
	if (bpf_skb_store_bytes(skb, ETH_HLEN, &outer, more, 0))
		return false;
	if (bpf_skb_store_bytes(skb, 0, gateway_of(control, real), MAC_LEN, 0))
		return false;
	return !bpf_skb_store_bytes(skb, 2 * MAC_LEN, &ethertype_be, sizeof(ethertype_be), 0);
}

SEC("tc")
int causeway_probe(struct __sk_buff *skb)
{
	u32 id = skb->mark & PROBE_REAL_MASK, zero = 0;
	struct real *real;
	struct ctl *control;

	if ((skb->mark & ~PROBE_REAL_MASK) != PROBE_MARK)
		return TC_ACT_UNSPEC;
	/* From here on: to that real or nowhere, else the probe would test another one. */
	real = bpf_map_lookup_elem(&reals, &id);
	control = bpf_map_lookup_elem(&ctl, &zero);
	if (!real || !control || !(real->flags & REAL_PRESENT))
		return TC_ACT_SHOT;
	if (real->flags & REAL_L2)
		return bpf_skb_store_bytes(skb, 0, real->mac, MAC_LEN, 0) ? TC_ACT_SHOT : TC_ACT_OK;
	if (!knows_way(control, real) || !encapsulate(skb, real, control))
		return TC_ACT_SHOT;
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "GPL";
