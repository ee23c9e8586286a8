/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * For comparison in the lab only: daisy chaining as in Beamer (Olteanu et al., NSDI
 * 2018) and Faild. A server that gets a packet of a connection it does not know
 * passes it on to the server that had the packet's bucket before. One step back at
 * most: a bucket that was remapped twice loses its oldest connections.
 *
 * Beamer's balancer names the previous server in each packet. Here the servers know
 * it from a table that the lab changes together with the balancer's ring; what a
 * server does is the same, and the product stays as it is. Runs in TC ingress, behind
 * the agent's decapsulation.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../../../bpf/shared/abi.h"
#include "../../../bpf/shared/siphash.h"

#define DEFAULT_BUCKETS 65537
#define DEFAULT_HOPS 256

const volatile u64 cfg_hash_key[2] = {};
const volatile u32 cfg_buckets = DEFAULT_BUCKETS;
const volatile u16 cfg_port_be = 0;

/* By bucket, IPv4's before IPv6's: the server that had it before, an index of hops. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * DEFAULT_BUCKETS);
	__type(key, u32);
	__type(value, u32);
} previous SEC(".maps");

struct hop {
	u8 mac[6];
	u8 pad[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DEFAULT_HOPS);
	__type(key, u32);
	__type(value, struct hop);
} hops SEC(".maps");

/* Packets that were passed on. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} chained SEC(".maps");

/* Whether this server has the connection, half open or waiting included. */
static __always_inline bool is_ours(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, u32 size)
{
	struct bpf_sock *sk = bpf_skc_lookup_tcp(skb, tuple, size, BPF_F_CURRENT_NETNS, 0);
	bool ours;

	if (!sk)
		return false;
	ours = sk->state != BPF_TCP_LISTEN;
	bpf_sk_release(sk);
	return ours;
}

static __always_inline int pass_on(struct __sk_buff *skb, struct ethhdr *eth, u64 hash, u32 base)
{
	u32 bucket = base + (u32)(hash % cfg_buckets), zero = 0, *index;
	u8 macs[2 * ETH_ALEN];
	struct hop *hop;
	u64 *count;

	index = bpf_map_lookup_elem(&previous, &bucket);
	hop = index ? bpf_map_lookup_elem(&hops, index) : NULL;
	if (!hop || !__builtin_memcmp(hop->mac, eth->h_dest, ETH_ALEN))
		return TC_ACT_OK; /* it was ours before too: the kernel answers as it sees fit */
	count = bpf_map_lookup_elem(&chained, &zero);
	if (count)
		__sync_fetch_and_add(count, 1);
	__builtin_memcpy(macs, hop->mac, ETH_ALEN);
	__builtin_memcpy(macs + ETH_ALEN, eth->h_dest, ETH_ALEN);
	if (bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0))
		return TC_ACT_OK;
	return bpf_redirect(skb->ifindex, 0);
}

/* Whether a segment may belong to a connection of another server. */
static __always_inline bool is_old(const struct tcphdr *tcp)
{
	return tcp->dest == cfg_port_be && !(tcp->syn && !tcp->ack);
}

static __always_inline int handle4(struct __sk_buff *skb, struct ethhdr *eth, void *end)
{
	struct flow_key4 key = { .proto = IPPROTO_TCP };
	u64 hash_key[2] = { cfg_hash_key[0], cfg_hash_key[1] };
	struct bpf_sock_tuple tuple = {};
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);

	if ((void *)(tcp + 1) > end || ip->ihl != 5 || ip->protocol != IPPROTO_TCP || !is_old(tcp))
		return TC_ACT_OK;
	tuple.ipv4.saddr = key.saddr_be = ip->saddr;
	tuple.ipv4.daddr = key.daddr_be = ip->daddr;
	tuple.ipv4.sport = key.sport_be = tcp->source;
	tuple.ipv4.dport = key.dport_be = tcp->dest;
	if (is_ours(skb, &tuple, sizeof(tuple.ipv4)))
		return TC_ACT_OK;
	return pass_on(skb, eth, siphash24((const u64 *)&key, sizeof(key) / 8, hash_key), 0);
}

static __always_inline int handle6(struct __sk_buff *skb, struct ethhdr *eth, void *end)
{
	struct flow_key6 key = { .proto = IPPROTO_TCP };
	u64 hash_key[2] = { cfg_hash_key[0], cfg_hash_key[1] };
	struct bpf_sock_tuple tuple = {};
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);

	if ((void *)(tcp + 1) > end || ip->nexthdr != IPPROTO_TCP || !is_old(tcp))
		return TC_ACT_OK;
	__builtin_memcpy(key.saddr_be, &ip->saddr, 16);
	__builtin_memcpy(key.daddr_be, &ip->daddr, 16);
	__builtin_memcpy(tuple.ipv6.saddr, &ip->saddr, 16);
	__builtin_memcpy(tuple.ipv6.daddr, &ip->daddr, 16);
	tuple.ipv6.sport = key.sport_be = tcp->source;
	tuple.ipv6.dport = key.dport_be = tcp->dest;
	if (is_ours(skb, &tuple, sizeof(tuple.ipv6)))
		return TC_ACT_OK;
	return pass_on(skb, eth, siphash24((const u64 *)&key, sizeof(key) / 8, hash_key), cfg_buckets);
}

SEC("tc")
int causeway_daisy(struct __sk_buff *skb)
{
	void *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = (void *)(long)skb->data;

	if ((void *)(eth + 1) > end)
		return TC_ACT_OK;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		return handle4(skb, eth, end);
	if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		return handle6(skb, eth, end);
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "GPL";
