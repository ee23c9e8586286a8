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

/*
 * The low half of an entry's `where`: the real's index plus one, the low bits of its
 * generation, and whether the connection has ended.
 */
#define CACHED_REAL_BITS 21 /* reals are 2^20 at most */
#define CACHED_GEN_MASK 0x3ffu
#define CACHED_ENDED (1u << 31)

static __always_inline u32 cached_real(u32 real_id, const struct real *real)
{
	return (real->gen & CACHED_GEN_MASK) << CACHED_REAL_BITS | (real_id + 1);
}

static __always_inline bool is_entry_of(const struct syn_cache_entry *entry, u64 hash)
{
	return entry->syn >> 32 == hash >> 32 && entry->where >> 32 == (u32)hash;
}

/* The real in the entry of the tuple with this hash; NULL without one, or if the real is gone. */
static __always_inline struct real *
find_entry(struct syn_cache_bucket *bucket, u64 hash, u32 *real_id, u32 *isn)
{
#pragma unroll
	for (u32 i = 0; i < SYN_CACHE_WAYS; i++) {
		struct syn_cache_entry *entry = &bucket->entry[i];
		u32 where = (u32)entry->where & ~CACHED_ENDED;
		u32 id = (where & ((1u << CACHED_REAL_BITS) - 1)) - 1;
		struct real *real;

		if (!where || !is_entry_of(entry, hash))
			continue;
		real = find_real(id);
		if (!real || cached_real(id, real) != where)
			continue;
		*real_id = id;
		*isn = (u32)entry->syn;
		return real;
	}
	return NULL;
}

/*
 * Where the SYN of the packet's connection went; of a SYN, where it went before, unless that
 * real is down now.
 */
static __always_inline MUST_USE bool
find_cached_syn(const struct packet *pkt, const int family, const struct vip *vip, u64 hash, struct route *route)
{
	struct syn_cache_bucket *bucket = syn_cache_bucket(hash);
	struct real *real;
	u32 isn;

	real = bucket ? find_entry(bucket, hash, &route->real_id, &isn) : NULL;
	if (!real || (is_syn(pkt) && ((isn ^ pkt->est.seq) | (real->flags & REAL_DOWN))))
		return false;
	route->verdict = is_syn(pkt) ? V_SYN_AGAIN : sent_as(pkt, family, V_ESTABLISHED);
	count_cookie(vip, is_syn(pkt) ? CR_SYN_AGAIN : CR_SYN_CACHE);
	return true;
}

/* The tuple's own entry, else a free one, else any. */
static __always_inline struct syn_cache_entry *
choose_entry(struct syn_cache_bucket *bucket, u64 hash, u32 isn)
{
	struct syn_cache_entry *entry = &bucket->entry[CW_MASKED(isn ^ (u32)(hash >> 32), SYN_CACHE_WAYS - 1)];

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
	return entry;
}

static __always_inline void
write_entry(struct syn_cache_entry *entry, u64 hash, u32 isn, u32 real_id, u32 ended)
{
	struct real *real = find_real(real_id);

	if (!real)
		return;
	entry->where = 0;
	entry->syn = hash >> 32 << 32 | isn;
	entry->where = hash << 32 | ended | cached_real(real_id, real);
}

static __always_inline void cache_syn(u64 hash, u32 isn, u32 real_id)
{
	struct syn_cache_bucket *bucket = syn_cache_bucket(hash);

	if (!cfg_dry && bucket)
		write_entry(choose_entry(bucket, hash, isn), hash, isn, real_id, 0);
}

/*
 * Whether a connection that no flow is remembered of ends for the first time, as far as
 * the cache knows: a FIN may come again, and a client that repeats it for ever would make
 * its server look idle.
 */
static __always_inline int ends_first(const struct packet *pkt, const int family, u32 real_id)
{
	struct ctl *control = get_ctl();
	struct syn_cache_bucket *bucket;
	struct syn_cache_entry *entry;
	u64 hash;

	if (cfg_dry || !control)
		return 0;
	hash = flow_hash(pkt, family, control);
	bucket = syn_cache_bucket(hash);
	if (!bucket)
		return 0;
	entry = choose_entry(bucket, hash, pkt->est.seq);
	if (!is_entry_of(entry, hash)) {
		write_entry(entry, hash, pkt->est.seq, real_id, CACHED_ENDED);
		return 1;
	}
	if ((u32)entry->where & CACHED_ENDED)
		return 0;
	entry->where |= CACHED_ENDED;
	return 1;
}

CW_GLOBAL int ends_first4(const struct packet *pkt, u32 real_id)
{
	return pkt ? ends_first(pkt, IPV4, real_id) : 0;
}

CW_GLOBAL int ends_first6(const struct packet *pkt, u32 real_id)
{
	return pkt ? ends_first(pkt, IPV6, real_id) : 0;
}

#endif
