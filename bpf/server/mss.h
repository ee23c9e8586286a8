/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Clients' segments come in a tunnel, which the server's kernel knows nothing of: it
 * asks for segments that fit its own link. A SYN-ACK that asks for less spares each
 * client the round trip of a packet that is too big.
 */
#ifndef CAUSEWAY_SERVER_MSS_H
#define CAUSEWAY_SERVER_MSS_H

#include "cookie.h"

#define TCP_OPTION_MSS 2
#define TCP_OPTION_MSS_LEN 4

/* Longest IP packet that the tunnels carry; 0: segments are left as they are. Set by the loader. */
const volatile u16 cfg_inner_mtu = 0;

/* The largest segment that fits, behind an IP header and a TCP header without options. */
static __always_inline u32 inner_mss(const struct segment *seg)
{
	u32 headers = sizeof(struct tcphdr) + (seg->family == IPV4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));

	return cfg_inner_mtu - headers;
}

/*
 * Lowers the MSS of a SYN-ACK. Linux writes that option first; where something else is
 * first, nothing is done.
 */
static __always_inline void lower_mss(struct __sk_buff *skb, const struct segment *seg)
{
	u32 at = seg->tcp_offset + sizeof(struct tcphdr), most = inner_mss(seg);
	struct { u8 kind, len; u16 mss_be; } option;
	u16 most_be = bpf_htons((u16)most);

	if (seg->options_len < TCP_OPTION_MSS_LEN || bpf_skb_load_bytes(skb, at, &option, sizeof(option)))
		return;
	if (option.kind != TCP_OPTION_MSS || option.len != TCP_OPTION_MSS_LEN || bpf_ntohs(option.mss_be) <= most)
		return;
	if (bpf_skb_store_bytes(skb, at + 2, &most_be, sizeof(most_be), 0))
		return;
	bpf_l4_csum_replace(skb, seg->tcp_offset + TCP_CHECK_OFFSET, option.mss_be, most_be, sizeof(most_be));
	count_event(SC_MSS_LOWERED);
}

#endif
