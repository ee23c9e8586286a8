/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A server whose timestamps tick slower than Linux's, which tick each millisecond: its
 * TSval is divided where segments leave it, and TSecr multiplied where they arrive, so that
 * the server meets its own clock (RFC 7323, 4).
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../../../bpf/shared/types.h"

/* Written by the lab while the program runs: milliseconds a tick. */
u32 tick_ms = 1;

#define TCP_AT (ETH_HLEN + sizeof(struct iphdr))
/* Where Linux puts the option: behind two NOPs, or in a SYN behind MSS and SACK permitted. */
#define BEHIND_NOPS (TCP_AT + sizeof(struct tcphdr) + 2)
#define IN_SYN (TCP_AT + sizeof(struct tcphdr) + 6)
#define OPTION_TS 8
#define OPTION_TS_LEN 10

/*
 * What was the TSval of the last SYN+ACK to a client: Linux accepts no other as the echo that
 * ends a handshake, and the division has lost a part of it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, u32);
} handshakes SEC(".maps");

/* A client by its address, at `addr_at`, and port; 0: it cannot be read. */
static __always_inline u64 client(struct __sk_buff *skb, u32 addr_at, u32 port_at)
{
	u32 addr_be = 0;
	u16 port_be = 0;

	if (bpf_skb_load_bytes(skb, addr_at, &addr_be, sizeof(addr_be)) ||
	    bpf_skb_load_bytes(skb, port_at, &port_be, sizeof(port_be)))
		return 0;
	return (u64)addr_be << 16 | port_be;
}

/* Where the timestamp option begins; 0: there is none. */
static __always_inline u32 option_at(struct __sk_buff *skb)
{
	u8 kind[2], first[2];
	u16 ethertype_be;
	u32 at;

	if (bpf_skb_load_bytes(skb, ETH_HLEN - 2, &ethertype_be, sizeof(ethertype_be)) ||
	    ethertype_be != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, first, sizeof(first)) || first[0] != 0x45 ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct iphdr, protocol), first, 1) ||
	    first[0] != IPPROTO_TCP ||
	    bpf_skb_load_bytes(skb, TCP_AT + 12, first, sizeof(first)) || first[0] >> 4 < 8)
		return 0;
	at = first[1] & 2 ? IN_SYN : BEHIND_NOPS;
	if (bpf_skb_load_bytes(skb, at, kind, sizeof(kind)) || kind[0] != OPTION_TS ||
	    kind[1] != OPTION_TS_LEN)
		return 0;
	return at;
}

static __always_inline void replace(struct __sk_buff *skb, u32 at, u32 from_be, u32 to_be)
{
	if (from_be == to_be)
		return;
	bpf_l4_csum_replace(skb, TCP_AT + offsetof(struct tcphdr, check), from_be, to_be, sizeof(u32));
	bpf_skb_store_bytes(skb, at, &to_be, sizeof(to_be), 0);
}

SEC("tc")
int causeway_ticks_out(struct __sk_buff *skb)
{
	u32 at = option_at(skb), value_be, value;
	u64 to;

	if (!at || !tick_ms || bpf_skb_load_bytes(skb, at + 2, &value_be, sizeof(value_be)))
		return TC_ACT_UNSPEC;
	value = bpf_ntohl(value_be);
	if (at == IN_SYN) {
		to = client(skb, ETH_HLEN + offsetof(struct iphdr, daddr), TCP_AT + 2);
		bpf_map_update_elem(&handshakes, &to, &value, BPF_ANY);
	}
	replace(skb, at + 2, value_be, bpf_htonl(value / tick_ms));
	return TC_ACT_UNSPEC;
}

SEC("tc")
int causeway_ticks_in(struct __sk_buff *skb)
{
	u32 at = option_at(skb), value_be, value, *first;
	u64 from;

	if (!at || !tick_ms || bpf_skb_load_bytes(skb, at + 6, &value_be, sizeof(value_be)))
		return TC_ACT_UNSPEC;
	value = bpf_ntohl(value_be);
	from = client(skb, ETH_HLEN + offsetof(struct iphdr, saddr), TCP_AT);
	first = bpf_map_lookup_elem(&handshakes, &from);
	value = first && *first / tick_ms == value ? *first : value * tick_ms;
	replace(skb, at + 6, value_be, bpf_htonl(value));
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "GPL";
