/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A flood, for the lab: both ends of it. flood_begin runs on live frames (BPF_PROG_TEST_RUN):
 * it fills each with the next that user space has made, behind the last again with the first, and
 * sends it out of an interface, as cheaply as a driver hands frames to XDP. flood_end drops them where they come back from the
 * balancer, at the price of a look: they are known by their hop limit, which no other packet
 * has. What lies behind is not under test, and would take the same CPUs.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../../../bpf/shared/abi.h"

#define FLOOD_FRAMES 256 /* of one run */
#define FLOOD_FRAME_MAX 1514
#define FLOOD_HOP_LIMIT 77

struct flood_frame {
	u32 length;
	u8 octets[FLOOD_FRAME_MAX + 2];
};

/* Written by user space before a run. */
u32 interface;
u32 position; /* the next frame */
struct flood_frame frames[FLOOD_FRAMES];

/* Read by user space. */
u64 ended;

SEC("xdp")
int flood_begin(struct xdp_md *ctx)
{
	/* A run may be longer than there are frames. */
	struct flood_frame *frame = &frames[position++ % FLOOD_FRAMES];
	u32 length = frame->length;

	if (length < ETH_HLEN || length > FLOOD_FRAME_MAX)
		return XDP_ABORTED;
	/* It comes with the longest frame's length. */
	if (bpf_xdp_adjust_tail(ctx, (int)length - FLOOD_FRAME_MAX))
		return XDP_ABORTED;
	if (bpf_xdp_store_bytes(ctx, 0, frame->octets, length))
		return XDP_ABORTED;
	return bpf_redirect(interface, 0);
}

/* Where the packet inside of an IP packet begins, `at` itself without one; NULL: no IP. */
static __always_inline void *inner(void *at, const void *end)
{
	struct iphdr *ip = at;
	struct ipv6hdr *ip6 = at;
	void *behind;
	u8 proto;

	if ((void *)(ip + 1) > end)
		return NULL;
	if (ip->version == 4) {
		proto = ip->protocol;
		behind = ip + 1;
	} else {
		if ((void *)(ip6 + 1) > end)
			return NULL;
		proto = ip6->nexthdr;
		behind = ip6 + 1;
	}
	if (proto == IPPROTO_IPIP || proto == IPPROTO_IPV6)
		return behind;
	struct udphdr *udp = behind;
	u8 *gue = (u8 *)(udp + 1);

	if (proto != IPPROTO_UDP || (void *)(gue + 1) > end || udp->dest != bpf_htons(GUE_PORT))
		return at;
	/* Variant 1 is the packet itself; variant 0 has words before it. */
	return gue + (*gue >> 6 ? 0 : 4 + 4 * (*gue & 0x1f));
}

SEC("xdp")
int flood_end(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return XDP_PASS;
	if (eth->h_proto != bpf_htons(ETH_P_IP) && eth->h_proto != bpf_htons(ETH_P_IPV6))
		return XDP_PASS;
	struct iphdr *ip = inner(eth + 1, end);

	/* Both families have the hop limit in the first 20 bytes. */
	if (!ip || (void *)(ip + 1) > end)
		return XDP_PASS;
	u8 hop_limit = ip->version == 4 ? ip->ttl : ((struct ipv6hdr *)ip)->hop_limit;

	if (hop_limit != FLOOD_HOP_LIMIT)
		return XDP_PASS;
	__sync_fetch_and_add(&ended, 1);
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
