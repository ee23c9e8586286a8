/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A bad line, for the lab: loses a share of the IP packets that pass a traffic
 * control hook, and all of them while the line is down. The same program stands in
 * front of everything that is compared. Which packets are lost depends on the seed and
 * on the packet's number alone, so a run meets the same losses again.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../../../bpf/shared/types.h"

/* Written by the lab while the program runs. */
u64 loss_threshold; /* of 2^32: packets whose number hashes below are lost */
u64 down_period_ns; /* 0: never down */
u64 down_ns;        /* of each period, at its beginning */
u64 down_start_ns;  /* when the first period begins, CLOCK_MONOTONIC */
u64 seed;
u64 run_len;   /* the length of the packet that a run of lost ones begins with; 0: no run */
u64 run_after; /* so many of that length pass before */
u64 run_left;  /* packets of the run */

/* Read by the lab. */
u64 packets;
u64 lost;
u64 lost_down;

/* Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014. */
static __always_inline u64 mix(u64 x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
	return x ^ (x >> 31);
}

static __always_inline bool is_down(void)
{
	u64 now = bpf_ktime_get_ns();

	if (down_period_ns == 0 || now < down_start_ns)
		return false;
	return (now - down_start_ns) % down_period_ns < down_ns;
}

/* Once: a run that has ended does not begin again. */
static __always_inline bool is_in_run(const struct __sk_buff *skb)
{
	if (run_len && skb->len != run_len)
		return false;
	if (run_len && run_after) {
		run_after--;
		return false;
	}
	run_len = 0;
	if (!run_left)
		return false;
	run_left--;
	return true;
}

SEC("tc")
int causeway_loss(struct __sk_buff *skb)
{
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return TC_ACT_UNSPEC;
	u64 number = __sync_fetch_and_add(&packets, 1);

	if (is_down()) {
		__sync_fetch_and_add(&lost_down, 1);
		return TC_ACT_SHOT;
	}
	if (is_in_run(skb)) {
		__sync_fetch_and_add(&lost, 1);
		return TC_ACT_SHOT;
	}
	if ((mix(seed ^ mix(number)) >> 32) < loss_threshold) {
		__sync_fetch_and_add(&lost, 1);
		return TC_ACT_SHOT;
	}
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "GPL";
