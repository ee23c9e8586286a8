/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What time it is. */
#ifndef CAUSEWAY_PACKET_CLOCK_H
#define CAUSEWAY_PACKET_CLOCK_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "../shared/abi.h"

/* The packet's time: the kernel's clock, or what a replay put into the metadata. */
static __always_inline u64 packet_time(struct xdp_md *ctx, u32 source)
{
	u64 *metadata = (void *)(long)ctx->data_meta;

	if (source == CLOCK_KTIME)
		return bpf_ktime_get_ns();
	if ((void *)(metadata + 1) > (void *)(long)ctx->data)
		return 0;
	return *metadata;
}

#endif
