/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * How many new flows a client prefix may open at a VIP (shared/limit.h), in an array of 65,536
 * prefixes.
 */
#ifndef CAUSEWAY_LB_LIMIT_H
#define CAUSEWAY_LB_LIMIT_H

#include "../shared/limit.h"
#include "flow_table.h"

/* The `bits` first bits of four integers in network byte order. */
static __always_inline void keep_prefix(u32 addr_be[4], u32 bits)
{
#pragma unroll
	for (u32 i = 0; i < 4; i++) {
		u32 kept = bits > 32 * i ? bits - 32 * i : 0;

		if (kept < 32)
			addr_be[i] &= bpf_htonl((u32)~(0xffffffffull >> kept));
	}
}

/* The hash of VIP and client prefix. */
static __always_inline u64
prefix_hash(const struct packet *pkt, u32 family, u32 vip_id, const struct vip_limit *limit, u64 seed)
{
	u32 addr_be[4] = {};
	u64 words[3];

	if (family == IPV4) {
		addr_be[0] = pkt->key4.saddr_be;
		keep_prefix(addr_be, limit->prefix4 < 32 ? limit->prefix4 : 32);
	} else {
		__builtin_memcpy(addr_be, pkt->key6.saddr_be, sizeof(addr_be));
		keep_prefix(addr_be, limit->prefix6);
	}
	__builtin_memcpy(words, addr_be, sizeof(addr_be));
	words[2] = (u64)vip_id << 8 | family;
	return mix_words(words, 3, seed);
}

/* Whether a new flow is beyond its prefix's limit; counts it if not. */
CW_GLOBAL int is_beyond_limit(const struct packet *pkt, u32 family, u32 vip_id)
{
	struct vip_limit *limit = bpf_map_lookup_elem(&vip_limits, &vip_id);
	u64 hash, tag, now, entry, next;
	struct limit_bucket *bucket;
	struct ctl *control = get_ctl();
	u32 index, way;

	if (!pkt || !limit || !limit->interval || !control)
		return 0;
	hash = prefix_hash(pkt, family, vip_id, limit, control->table_seed);
	index = (u32)hash & (LIMIT_BUCKETS - 1);
	bucket = bpf_map_lookup_elem(&limits, &index);
	if (!bucket)
		return 0;
	tag = hash >> LIMIT_TIME_BITS ?: 1;
	now = limit_time(bpf_ktime_get_coarse_ns());
	way = CW_MASKED(limit_way(bucket, tag, now), LIMIT_WAYS - 1);
	entry = *(volatile u64 *)&bucket->entry[way];
	next = limit_next(entry, tag, now, limit);
	if (!next)
		return 1;
	/* Two CPUs at once may count one flow for two. */
	if (!cfg_dry)
		__sync_val_compare_and_swap(&bucket->entry[way], entry, next);
	return 0;
}

/* Whether the packet opens a flow that its VIP does not let in. */
static __always_inline bool is_refused(const struct packet *pkt, const int family, const struct vip *vip)
{
	return vip->flags & VIP_LIMITED && is_beyond_limit(pkt, family, vip->id);
}

#endif
