/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Where the SYNs of VIPs with cookies went. The server's answer carries the cookie, so
 * nothing need be remembered; the cache keeps a retransmitted SYN from a second
 * server, and leads the packets of servers that write no cookies. Newer entries evict
 * older ones, and nothing breaks without them.
 */
#ifndef CAUSEWAY_LB_SYN_CACHE_H
#define CAUSEWAY_LB_SYN_CACHE_H

#include "cookie.h"

static __always_inline struct syn_cache_bucket *syn_cache_bucket(u64 hash)
{
	u32 index = (u32)hash & (SYN_CACHE_BUCKETS - 1);

	return bpf_map_lookup_elem(&syn_cache, &index);
}

static __always_inline bool is_entry_of(const struct syn_cache_entry *entry, u64 hash)
{
	return entry->syn >> 32 == hash >> 32 && entry->where >> 32 == (u32)hash;
}

/* The entry of the tuple with this hash; false without one, or if its real is gone. */
static __always_inline MUST_USE bool
find_entry(struct syn_cache_bucket *bucket, u64 hash, u32 *real_id, u32 *isn)
{
#pragma unroll
	for (u32 i = 0; i < SYN_CACHE_WAYS; i++) {
		struct syn_cache_entry *entry = &bucket->entry[i];
		u32 real = (u32)entry->where;

		if (!real || !is_entry_of(entry, hash) || !find_real(real - 1))
			continue;
		*real_id = real - 1;
		*isn = (u32)entry->syn;
		return true;
	}
	return false;
}

/* Where the SYN of the packet's connection went; of a SYN, where it went before. */
static __always_inline MUST_USE bool
find_cached_syn(const struct packet *pkt, const int family, const struct vip *vip, u64 hash, struct route *route)
{
	struct syn_cache_bucket *bucket = syn_cache_bucket(hash);
	u32 isn;

	if (!bucket || !find_entry(bucket, hash, &route->real_id, &isn))
		return false;
	if (is_syn(pkt) && isn != pkt->est.seq)
		return false;
	route->verdict = is_syn(pkt) ? V_SYN_AGAIN : continuation(pkt, family);
	count_cookie(vip, is_syn(pkt) ? CR_SYN_AGAIN : CR_SYN_CACHE);
	return true;
}

/* In the tuple's own entry, else in a free one, else in any. */
static __always_inline void cache_syn(u64 hash, u32 isn, u32 real_id)
{
	struct syn_cache_bucket *bucket = syn_cache_bucket(hash);
	struct syn_cache_entry *entry;

	if (cfg_dry || !bucket)
		return;
	entry = &bucket->entry[CW_MASKED(isn ^ (u32)(hash >> 32), SYN_CACHE_WAYS - 1)];
#pragma unroll
	for (u32 i = 0; i < SYN_CACHE_WAYS; i++) {
		if (!bucket->entry[i].where)
			entry = &bucket->entry[i];
	}
#pragma unroll
	for (u32 i = 0; i < SYN_CACHE_WAYS; i++) {
		if (is_entry_of(&bucket->entry[i], hash))
			entry = &bucket->entry[i];
	}
	entry->where = 0;
	entry->syn = hash >> 32 << 32 | isn;
	entry->where = hash << 32 | (real_id + 1);
}

#endif
