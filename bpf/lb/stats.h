/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Counters. Per CPU, so plain additions. */
#ifndef CAUSEWAY_LB_STATS_H
#define CAUSEWAY_LB_STATS_H

#include "flow_table.h"

static __always_inline void add_packet(struct packets_bytes *counter, u32 frame_len)
{
	counter->packets += 1;
	counter->bytes += frame_len;
}

#define ABI_LB_ACTION(name, word, action, meaning) [V_##name] = action,
static const u8 lb_actions[V_COUNT] = { LB_VERDICTS(ABI_LB_ACTION) };
#undef ABI_LB_ACTION

/* The only way out of the balancer: counts the verdict, gives its XDP action. */
static __always_inline int leave(enum verdict verdict, u32 frame_len)
{
	u32 index = verdict;
	struct packets_bytes *counter = bpf_map_lookup_elem(&verdicts, &index);

	if (cfg_dry)
		return (int)verdict;
	if (!counter)
		return XDP_ABORTED;
	add_packet(counter, frame_len);
	return index < V_COUNT ? lb_actions[index] : XDP_ABORTED;
}

/* A packet that went to a real: counted there and at the VIP. Gives the real's counters. */
static __always_inline struct real_stats *count_route(const struct route *route, u32 frame_len)
{
	u32 real_id = route->real_id, vip_id = route->vip_id;
	struct real_stats *stats = bpf_map_lookup_elem(&real_stats, &real_id);
	struct packets_bytes *vip = bpf_map_lookup_elem(&vip_stats, &vip_id);

	if (cfg_dry)
		return NULL;
	if (stats) {
		stats->packets += 1;
		stats->bytes += frame_len;
	}
	if (vip)
		add_packet(vip, frame_len);
	return stats;
}

#endif
