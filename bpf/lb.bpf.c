/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The balancer: parse, find the flow or pick a real, measure, encapsulate, transmit. */
#include <linux/bpf.h>
#include <stdbool.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/count.h"
#include "lib/maps.h"

/* Set by the loader before loading; the verifier removes what they switch off. */
const volatile bool cfg_measure = true;
const volatile u32 cfg_clock = CLOCK_KTIME;

SEC("xdp")
int causeway_lb(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	u32 frame_len = (u32)(end - data);

	if ((void *)(eth + 1) > end)
		return leave(V_MALFORMED, frame_len);
	if (eth->h_proto != bpf_htons(ETH_P_IP) && eth->h_proto != bpf_htons(ETH_P_IPV6))
		return leave(V_NOT_IP, frame_len);
	return leave(V_NOT_VIP, frame_len);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
