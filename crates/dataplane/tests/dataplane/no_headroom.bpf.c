/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Hands a frame to the program under test as a driver without headroom would. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

typedef __u8 u8;
typedef __u32 u32;

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} under_test SEC(".maps");

#define SMALL_FRAME 54 /* Ethernet, IPv4 and TCP without options or payload */

SEC("xdp")
int no_headroom(struct xdp_md *ctx)
{
	u8 frame[SMALL_FRAME];
	int moved = 0;

	if (bpf_xdp_load_bytes(ctx, 0, frame, sizeof(frame)))
		return XDP_ABORTED;
	for (u32 i = 0; i < 64 && !bpf_xdp_adjust_head(ctx, -8); i++)
		moved += 8;
	if (bpf_xdp_store_bytes(ctx, 0, frame, sizeof(frame)) || bpf_xdp_adjust_tail(ctx, -moved))
		return XDP_ABORTED;
	bpf_tail_call(ctx, &under_test, 0);
	return XDP_ABORTED;
}

char LICENSE[] SEC("license") = "GPL";
