/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * How many new flows a client prefix may open at a VIP. The generic cell rate algorithm
 * (ITU-T I.371): a prefix has a time when its next flow is due; each flow moves it on by
 * an interval, and one that comes too early for the tolerance is not let in. One entry
 * a prefix, in an array of 65,536: a full bucket evicts the one with the least debt.
 */
#ifndef CAUSEWAY_LB_LIMIT_H
#define CAUSEWAY_LB_LIMIT_H

#include "flow_table.h"

#define LIMIT_TIME_BITS 40
#define LIMIT_TIME_MASK ((1ull << LIMIT_TIME_BITS) - 1)
/* Units of time are 1024 ns. */
#define LIMIT_UNIT_SHIFT 10

/*
 * No prefix owes more: interval and tolerance are 32 bits each. A time that is further
 * ahead was written when the clock's 40 bits had not gone round yet.
 */
#define LIMIT_AHEAD_MAX (2ll << 32)

/* `a` - `b` of two times, as a signed number. */
static __always_inline s64 limit_ahead(u64 a, u64 b)
{
	return (s64)((a - b) << (64 - LIMIT_TIME_BITS)) >> (64 - LIMIT_TIME_BITS);
}

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
prefix_hash(const struct packet *pkt, const int family, u32 vip_id, const struct vip_limit *limit, u64 seed)
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
	words[2] = (u64)vip_id << 8 | (u32)family;
	return mix_words(words, 3, seed);
}

/* The way of a prefix, else of the entry with the least debt. */
static __always_inline u32 limit_way(const struct limit_bucket *bucket, u64 tag, u64 now)
{
	s64 least = 0x7fffffffffffffffll;
	u32 way = 0;

#pragma unroll
	for (u32 i = 0; i < LIMIT_WAYS; i++) {
		u64 entry = bucket->entry[i];
		s64 ahead = entry ? limit_ahead(entry & LIMIT_TIME_MASK, now) : -0x7fffffffffffffffll;

		if (ahead > LIMIT_AHEAD_MAX)
			ahead = -LIMIT_AHEAD_MAX;
		if (entry >> LIMIT_TIME_BITS == tag)
			ahead = -0x7fffffffffffffffll - 1;
		if (ahead < least) {
			least = ahead;
			way = i;
		}
	}
	return way;
}

/* Whether a new flow is beyond its prefix's limit; counts it if not. */
static __always_inline int is_beyond_limit(const struct packet *pkt, const int family, u32 vip_id)
{
	struct vip_limit *limit = bpf_map_lookup_elem(&vip_limits, &vip_id);
	u64 hash, tag, now, entry, due;
	struct limit_bucket *bucket;
	struct ctl *control = get_ctl();
	u32 index, way;
	s64 ahead;

	if (!limit || !limit->interval || !control)
		return 0;
	hash = prefix_hash(pkt, family, vip_id, limit, control->table_seed);
	index = (u32)hash & (LIMIT_BUCKETS - 1);
	bucket = bpf_map_lookup_elem(&limits, &index);
	if (!bucket)
		return 0;
	tag = hash >> LIMIT_TIME_BITS ?: 1;
	now = bpf_ktime_get_coarse_ns() >> LIMIT_UNIT_SHIFT & LIMIT_TIME_MASK;
	way = CW_MASKED(limit_way(bucket, tag, now), LIMIT_WAYS - 1);
	entry = *(volatile u64 *)&bucket->entry[way];
	due = now;
	if (entry >> LIMIT_TIME_BITS == tag) {
		ahead = limit_ahead(entry & LIMIT_TIME_MASK, now);
		/* More than that it cannot owe: the limit was another, or the time went round. */
		if (ahead > 0 && ahead <= (s64)limit->tolerance + limit->interval)
			due = entry & LIMIT_TIME_MASK;
	}
	if (limit_ahead(due, now) > (s64)limit->tolerance)
		return 1;
	/* Two CPUs at once may count one flow for two. */
	if (!cfg_dry)
		__sync_val_compare_and_swap(&bucket->entry[way], entry,
					    tag << LIMIT_TIME_BITS | ((due + limit->interval) & LIMIT_TIME_MASK));
	return 0;
}

CW_GLOBAL int is_beyond_limit4(const struct packet *pkt, u32 vip_id)
{
	return pkt ? is_beyond_limit(pkt, IPV4, vip_id) : 0;
}

CW_GLOBAL int is_beyond_limit6(const struct packet *pkt, u32 vip_id)
{
	return pkt ? is_beyond_limit(pkt, IPV6, vip_id) : 0;
}

/* Whether the packet opens a flow that its VIP does not let in. */
static __always_inline bool is_refused(const struct packet *pkt, const int family, const struct vip *vip)
{
	if (!(vip->flags & VIP_LIMITED))
		return false;
	return family == IPV4 ? is_beyond_limit4(pkt, vip->id) : is_beyond_limit6(pkt, vip->id);
}

#endif
