/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Flows: which real a connection is on, and the state that it is measured in. A known
 * flow costs an established packet one lookup.
 *
 * The flow table is two arrays instead of a hash map. A bucket is one cache line of 16
 * tags, each a fingerprint and an age class; the flows that they stand for lie in the
 * same slots of a second array. To find a flow costs the bucket's line and its own.
 *
 * A flow has two buckets. It goes into the second only if the first has few empty slots
 * left and the second has more; slots are never emptied, so that the second need not be
 * searched while the first has more than those few. When both are full a flow of the
 * lowest age class is evicted: one that the client has reset, then one that has sent
 * a single packet, then one that has been silent for long; of two alike
 * the one in the bucket with fewer live ones. A flood of SYNs therefore evicts its own.
 *
 * No locks. A slot is claimed by an atomic exchange of its tag, written, and published
 * by another; a reader compares the whole key and then reads the tag again. What two
 * CPUs may do to each other is to lose an entry; and where one claims a slot of a full
 * bucket just behind that second look, the reader's packet goes to another flow's real.
 */
#ifndef CAUSEWAY_LB_FLOW_TABLE_H
#define CAUSEWAY_LB_FLOW_TABLE_H

#include "../packet/parse.h"
#include "maps.h"
#include "../shared/flow_spot.h"
#include "../shared/siphash.h"

/* Where a packet goes. */
struct route {
	u32 real_id;
	u16 vip_id;
	u16 verdict; /* enum verdict: whether it goes, and why */
	u32 token;   /* what the server is to be told, with one of the marks below; 0: nothing */
	u32 keep;    /* whether the flow is to be remembered in the table */
};

#define ROUTE_HAS_TOKEN (1u << 16)  /* with a SYN: its connection's token */
#define ROUTE_HAS_FORMER (1u << 31) /* with what came without a memory: the slot's former owner */

static __always_inline bool has_former(const struct route *route)
{
	return route->token & ROUTE_HAS_FORMER;
}

/* The flow's real; NULL if it was removed, or its slot given to another real. */
static __always_inline struct real *flow_real(const struct flow *flow)
{
	struct real *real = find_real(flow->real);

	return real && real->gen == flow->real_gen ? real : NULL;
}

/*
 * Whether the packet went to the flow's own real. What ends a connection whose
 * real is gone goes to another one, which knows nothing of it.
 */
static __always_inline bool
is_on_real(const struct flow *flow, const struct route *route, const struct real *real)
{
	return flow->real == route->real_id && flow->real_gen == real->gen;
}

/* Whether the estimator is to see the flow's packets: so it is for the connection's life. */
static __always_inline bool is_measured(const struct flow *flow)
{
	return cfg_measure && flow && !(flow->bits & FLOW_UNSAMPLED);
}

/* Whether the flow is on the route's real, and that is there. */
static __always_inline bool is_on(const struct flow *flow, const struct route *route)
{
	return flow->real == route->real_id && flow_real(flow);
}

/* The verdict on what goes to a real: `whole` on a whole packet of the flow's own. */
static __always_inline enum verdict sent_as(const struct packet *pkt, const int family, enum verdict whole)
{
	if (!is_own(pkt, family))
		return V_ICMP_ERROR;
	return pkt->marks & PKT_FRAGMENT ? V_FRAGMENT_SENT : whole;
}

/* Buckets of the two tables, as many as their maps have; set by the loader. */
const volatile u32 cfg_buckets4 = DEFAULT_BUCKETS4;
const volatile u32 cfg_buckets6 = DEFAULT_BUCKETS6;

/* A claimed slot: no flow's fingerprint, and never evicted. */
#define TAG_CLAIMED ((u32)AGE_LIVE)
#define COST_FULL (1 + AGE_LIVE)

/*
 * The first bucket's slots that are only taken if the second bucket is no emptier.
 * With none kept, 16 slots for 12.8 flows lose one of 200 of them; with four, fewer
 * than one in a million (docs/explanation/data-plane.md), and one of nine is in its second bucket.
 */
#define WAYS_SHARED 4

#define NO_SLOT CW_U32_MAX

/* The hash of a flow's key that indexes rings; the same on every balancer with this key. */
static __always_inline u64 flow_hash(const struct packet *pkt, const int family, const struct ctl *control)
{
	if (family == IPV4)
		return siphash24((const u64 *)&pkt->key4, sizeof(pkt->key4) / 8, control->hash_key);
	return siphash24((const u64 *)&pkt->key6, sizeof(pkt->key6) / 8, control->hash_key);
}

/* The hash of a packet's key, by a secret seed. */
static __always_inline u64 key_hash(const struct packet *pkt, const int family, u64 seed)
{
	if (family == IPV4)
		return mix_words((const u64 *)&pkt->key4, sizeof(pkt->key4) / 8, seed);
	return mix_words((const u64 *)&pkt->key6, sizeof(pkt->key6) / 8, seed);
}

/* Hashes the packet's key for all that goes by it: the flow table, and who is measured. */
static __always_inline void hash_key(struct packet *pkt, const int family, const struct ctl *control)
{
	_Static_assert(offsetof(struct est_packet, t_ns) == 0, "table_hash is in its place");
	pkt->table_hash = key_hash(pkt, family, control->table_seed);
}

/*
 * Whether the packet's connection is one of those that are measured, 1 in 2^k: by bits of
 * the hash that the places in the table hardly depend on, so that the measured are all over it.
 */
static __always_inline bool is_sampled(const struct packet *pkt, u32 k)
{
	return !((u32)(pkt->table_hash >> 32) & ((1u << (k & 31)) - 1));
}

static __always_inline struct spot find_spot(const struct packet *pkt, const int family)
{
	return spot_of(pkt->table_hash, family == IPV4 ? cfg_buckets4 : cfg_buckets6);
}

static __always_inline struct flow_bucket *find_bucket(u32 index, const int family)
{
	if (family == IPV4)
		return bpf_map_lookup_elem(&buckets4, &index);
	return bpf_map_lookup_elem(&buckets6, &index);
}

static __always_inline struct flow *flow_at(u32 index, const int family)
{
	if (family == IPV4)
		return bpf_map_lookup_elem(&flows4, &index);
	return bpf_map_lookup_elem(&flows6, &index);
}

#define BOTH_TAGS(tag) ((u64)(tag) << 32 | (tag))

/*
 * The ways whose tag equals `tag` in the bits of `mask`: bit p of the result is
 * the way (p & 7) * 2 + (p >> 3). Two tags at a time and without a branch: the
 * processor would guess it wrong, and the verifier follow all sixteen.
 */
static __always_inline u32 ways_with(const struct flow_bucket *bucket, u32 tag, u32 mask)
{
	const u64 *pairs = (const u64 *)bucket->tag;
	u64 found = 0;

#pragma unroll
	for (u32 i = 0; i < FLOW_WAYS / 2; i++) {
		u64 differ = (pairs[i] ^ BOTH_TAGS(tag)) & BOTH_TAGS(mask);
		u64 some = ((differ & BOTH_TAGS(0x7fffffffu)) + BOTH_TAGS(0x7fffffffu)) | differ;

		found |= (~some & BOTH_TAGS(0x80000000u)) >> (31 - i);
	}
	return (u32)(found | found >> 24) & 0xffff;
}

/* 1 if none of the low `bits` bits is set, else 0; hidden from a compiler that knows branches. */
static __always_inline u64 none_of(u64 value, u32 bits)
{
	value &= (1u << bits) - 1;
	asm volatile("" : "+r"(value));
	return (value - 1) >> 63;
}

/* The lowest bit that is set of 16, of which at least one is. */
static __always_inline u32 lowest_bit(u64 rest)
{
	u64 skip, at = 0;

	skip = none_of(rest, 8) << 3, at += skip, rest >>= skip;
	skip = none_of(rest, 4) << 2, at += skip, rest >>= skip;
	skip = none_of(rest, 2) << 1, at += skip, rest >>= skip;
	return at + none_of(rest, 1);
}

/* The way that a bit of ways_with() stands for. */
static __always_inline u32 way_of(u32 bit)
{
	return CW_MASKED(((bit & 7) << 1) + (bit >> 3 & 1), FLOW_WAYS - 1);
}

/* The bit from which on a flow looks for a way: its own, as long as that is free. */
static __always_inline u32 first_bit(u32 fingerprint)
{
	return fingerprint >> 8 & (FLOW_WAYS - 1);
}

/* The first of some ways, by their bits from `from` on, around; at least one is set. */
static __always_inline u32 first_way(u32 ways, u32 from)
{
	u32 turned = (ways | ways << FLOW_WAYS) >> (from & (FLOW_WAYS - 1));

	return way_of(lowest_bit(turned & 0xffff) + from);
}

/* Whether flows whose first bucket this is may be in their second one. */
static __always_inline bool has_spilt(const struct flow_bucket *bucket)
{
	u32 empty = ways_with(bucket, 0, ~0u);

#pragma unroll
	for (u32 i = 0; i < WAYS_SHARED; i++)
		empty &= empty - 1; /* without its lowest one; 0 stays 0 */
	return !empty;
}

/* How many ways of a bucket, of 16 (Warren, Hacker's Delight, figure 5-2). */
static __always_inline u32 count_ways(u32 ways)
{
	ways -= ways >> 1 & 0x5555;
	ways = (ways & 0x3333) + (ways >> 2 & 0x3333);
	ways = (ways + (ways >> 4)) & 0x0f0f;
	return (ways + (ways >> 8)) & 0x1f;
}

static __always_inline bool is_flow_of(const struct flow *flow, const struct packet *pkt, const int family)
{
	const u64 *theirs = (const u64 *)&flow->key;
	const u64 *ours = family == IPV4 ? (const u64 *)&pkt->key4 : (const u64 *)&pkt->key6;
	const u32 count = family == IPV4 ? sizeof(pkt->key4) / 8 : sizeof(pkt->key6) / 8;
	u64 differ = 0;

#pragma unroll
	for (u32 i = 0; i < count; i++)
		differ |= theirs[i] ^ ours[i];
	return !differ;
}

/* The slot in a bucket that holds the packet's flow; NO_SLOT without one. */
static __always_inline u32
search(const struct flow_bucket *bucket, u32 number, u32 fingerprint, const struct packet *pkt, const int family)
{
	u32 ways = ways_with(bucket, fingerprint, ~AGE_MASK), index;
	struct flow *flow;

	if (!ways)
		return NO_SLOT;
	index = number * FLOW_WAYS + first_way(ways, 0);
	flow = flow_at(index, family);
	return flow && is_flow_of(flow, pkt, family) ? index : NO_SLOT;
}

/* The same for a flow's second bucket: seldom needed, and so verified once for all. */
#define SEARCH_SECOND(family, FAMILY)                                                          \
	CW_GLOBAL u32 search_second##family(const struct packet *pkt, u32 number, u32 fingerprint) \
	{                                                                                      \
		struct flow_bucket *bucket = find_bucket(number, FAMILY);                      \
                                                                                               \
		return pkt && bucket ? search(bucket, number, fingerprint, pkt, FAMILY) : NO_SLOT; \
	}

SEARCH_SECOND(4, IPV4)
SEARCH_SECOND(6, IPV6)

/*
 * What the packet says about how long its flow is to be kept; `seen` is what the flow's
 * tag was. A flow that has ended in one direction may live on in the other.
 */
static __always_inline void
update_age_class(const struct flow *flow, u32 *tag, u32 seen, const struct packet *pkt, const int family)
{
	u32 age = AGE_LIVE, wanted;

	if (cfg_dry || !is_own(pkt, family) || is_syn(pkt))
		return;
	if (is_tcp(pkt) && pkt->est.tcp_flags & EST_TCP_RST)
		age = AGE_GONE;
	else if (flow->bits & FLOW_CLOSED || is_closing(pkt))
		age = AGE_OLD;
	wanted = (seen & ~AGE_MASK) | age;
	if (wanted != seen)
		__sync_val_compare_and_swap(tag, seen, wanted);
}

/*
 * Whether the packet opens its flow anew, which the client has reset, or which has ended by
 * silence: user space says so (crates/dataplane/src/balancer/sweep.rs). A datagram and a SYN do. To other
 * segments a TCP connection whose slot is offered to others in the same way lives on.
 */
static __always_inline u32 has_expired(u32 seen, const struct packet *pkt, const int family)
{
	u8 proto = family == IPV4 ? pkt->key4.proto : pkt->key6.proto, flags = pkt->est.tcp_flags;
	/* Arithmetic alone: the verifier would try all that follows once more for each branch. */
	u32 opens = proto == IPPROTO_UDP ? 1 : flags / EST_TCP_SYN & ~(flags / EST_TCP_ACK) & 1;

	_Static_assert(AGE_GONE == 0, "it alone falls below 0");
	return ((seen & AGE_MASK) - 1) & (0 - opens) & 1u << 31;
}

/* Has a cache line fetched that is needed later, while others are waited for. */
static __always_inline void touch(const void *line)
{
	if (line)
		(void)*(const volatile u64 *)line;
}

static __always_inline void touch_chain(const struct flow *flow)
{
	_Static_assert(offsetof(struct flow, chain) == 64 && sizeof(flow->chain) == 128, "two cache lines");
	touch(&flow->chain);
	touch((const void *)&flow->chain + 64);
}

/*
 * The flow's own way, before its bucket tells whether it is there, as it mostly is. A SYN
 * mostly opens a flow: it looks into both buckets, and then writes all of the flow.
 */
static __always_inline void touch_ahead(const struct packet *pkt, const struct spot *spot, const int family)
{
	u32 way = way_of(first_bit(spot->fingerprint));
	struct flow *flow = flow_at(spot->bucket[0] * FLOW_WAYS + way, family);

	touch(flow);
	if (!is_syn(pkt))
		return;
	touch(find_bucket(spot->bucket[1], family));
	if (cfg_measure && flow)
		touch_chain(flow);
}

/*
 * The packet's flow, or NULL. Its slot cannot become another flow's while this packet
 * is handled, unless another CPU had claimed it before: then its tag is not the flow's any
 * more, and must be left as it is. A CPU that claims it later finds another tag than it has
 * read. All orders are tried in dev/sim/src/races/flow_table.rs.
 */
static __always_inline struct flow *find_flow(const struct packet *pkt, const int family)
{
	struct spot spot = find_spot(pkt, family);
	struct flow_bucket *bucket;
	u32 index, seen, *tag;
	struct flow *flow;

	touch_ahead(pkt, &spot, family);
	bucket = find_bucket(spot.bucket[0], family);
	if (!bucket)
		return NULL;
	index = search(bucket, spot.bucket[0], spot.fingerprint, pkt, family);
	if (index == NO_SLOT && has_spilt(bucket)) {
		index = family == IPV4 ? search_second4(pkt, spot.bucket[1], spot.fingerprint)
				       : search_second6(pkt, spot.bucket[1], spot.fingerprint);
		bucket = find_bucket(spot.bucket[1], family);
	}
	flow = index == NO_SLOT ? NULL : flow_at(index, family);
	if (!flow || !bucket)
		return NULL;
	if (is_measured(flow))
		touch_chain(flow);
	tag = &bucket->tag[CW_MASKED(index, FLOW_WAYS - 1)];
	seen = *(volatile u32 *)tag;
	if (((seen ^ spot.fingerprint) & ~AGE_MASK) | has_expired(seen, pkt, family))
		return NULL;
	update_age_class(flow, tag, seen, pkt, family);
	return ((*(volatile u32 *)tag ^ seen) & ~AGE_MASK) ? NULL : flow;
}

#define COST_SHIFT 16
#define OCCUPANCY_SHIFT 8

static __always_inline u32 offer(u32 cost, u32 occupancy, u32 ways, u32 start)
{
	return cost << COST_SHIFT | occupancy << OCCUPANCY_SHIFT | first_way(ways, start);
}

/*
 * The way of a bucket that costs least to take, and what it costs: 0 an empty slot
 * or the same fingerprint's, then one more than the age. Ways are tried from
 * `start` on, so that not always the same one goes. Between them the occupancy: how many
 * slots are taken, if one is empty, else how many are live; 0 for the same fingerprint's, which
 * goes before all others: a flow that is opened again must not be there twice.
 * Cost << 16 | occupancy << 8 | way.
 */
CW_GLOBAL u32 cheapest_way(const struct flow_bucket *bucket, u32 fingerprint, u32 start)
{
	u32 empty, same, live, occupancy;

	if (!bucket)
		return CW_U32_MAX;
	same = ways_with(bucket, fingerprint, ~AGE_MASK);
	if (same)
		return offer(0, 0, same, start);
	empty = ways_with(bucket, 0, ~0u);
	if (empty)
		return offer(0, FLOW_WAYS - count_ways(empty), empty, start);
	live = ways_with(bucket, AGE_LIVE, AGE_MASK);
	occupancy = count_ways(live);
#pragma unroll
	for (u32 age = AGE_GONE; age < AGE_LIVE; age++) {
		u32 ways = ways_with(bucket, age, AGE_MASK);

		if (ways)
			return offer(1 + age, occupancy, ways, start);
	}
	live &= ~ways_with(bucket, TAG_CLAIMED, ~0u);
	return live ? offer(COST_FULL, occupancy, live, start) : CW_U32_MAX;
}

/* All have sent lately: from now on each must send again to stay live. */
CW_GLOBAL int age_bucket(struct flow_bucket *bucket)
{
	if (!bucket)
		return 0;
#pragma unroll
	for (u32 i = 0; i < FLOW_WAYS; i++) {
		u32 tag = bucket->tag[i];

		if ((tag & AGE_MASK) == AGE_LIVE && tag != TAG_CLAIMED)
			__sync_val_compare_and_swap(&bucket->tag[i], tag, tag - 1);
	}
	return 0;
}

/*
 * The estimator's state lies in cache lines of its own. They are left as they are where no estimator
 * reads them, and where `pkt` is the SYN with which the estimator begins anew.
 */
static __always_inline void
write_flow(struct flow *flow, const struct packet *pkt, const int family, const struct route *route, bool begins)
{
	struct real *real = find_real(route->real_id);

	__builtin_memset(flow, 0, offsetof(struct flow, chain));
	if (family == IPV4)
		__builtin_memcpy(&flow->key, &pkt->key4, sizeof(pkt->key4));
	else
		flow->key = pkt->key6;
	flow->real = route->real_id;
	flow->real_gen = real ? real->gen : 0;
	flow->vip = route->vip_id;
	flow->isn = pkt->est.seq;
	flow->sampling = real ? real->sampling.opening : 0;
	if (!cfg_measure || !is_sampled(pkt, flow->sampling))
		flow->bits = FLOW_UNSAMPLED;
	else if (!begins)
		__builtin_memset(&flow->chain, 0, sizeof(flow->chain));
	if (has_former(route)) {
		flow->bits |= FLOW_ADOPTED;
	} else if (route->token) {
		flow->bits |= FLOW_HAS_TOKEN;
		flow->token = (u16)route->token;
	}
}

/*
 * Writes a flow down in a slot that this claims: its own if it has one, as cheapest_way()
 * prefers that. NULL: the table has none for it, and it goes on by the ring.
 */
static __always_inline struct flow *remember(const struct packet *pkt, const int family, const struct route *route)
{
	u32 found, way, seen, was, age, index, *tag;
	struct flow_bucket *bucket;
	struct flow *flow;
	struct spot spot;

	if (cfg_dry)
		return NULL;
	spot = find_spot(pkt, family);
	index = spot.bucket[0];
	bucket = find_bucket(index, family);
	found = cheapest_way(bucket, spot.fingerprint, first_bit(spot.fingerprint));
	if (found >> OCCUPANCY_SHIFT >= FLOW_WAYS - WAYS_SHARED) {
		struct flow_bucket *other = find_bucket(spot.bucket[1], family);
		u32 in_other = cheapest_way(other, spot.fingerprint, first_bit(spot.fingerprint));

		if (in_other >> OCCUPANCY_SHIFT < found >> OCCUPANCY_SHIFT) {
			found = in_other;
			bucket = other;
			index = spot.bucket[1];
		}
	}
	if (!bucket || found >> COST_SHIFT > COST_FULL)
		return NULL;
	if (found >> COST_SHIFT == COST_FULL)
		age_bucket(bucket);
	way = CW_MASKED(found, FLOW_WAYS - 1);
	flow = flow_at(index * FLOW_WAYS + way, family);
	tag = &bucket->tag[way];
	seen = *(volatile u32 *)tag;
	if (!flow || seen == TAG_CLAIMED)
		return NULL;
	was = __sync_val_compare_and_swap(tag, seen, TAG_CLAIMED);
	if (was != seen) {
		/* Another CPU was faster; or the flow's own slot has only aged meanwhile. */
		seen = was;
		if ((seen ^ spot.fingerprint) & ~AGE_MASK)
			return NULL;
		if (__sync_val_compare_and_swap(tag, seen, TAG_CLAIMED) != seen)
			return NULL;
	}
	write_flow(flow, pkt, family, route, is_syn(pkt));
	/* A forged SYN on its tuple does not have a live flow evicted sooner. */
	age = (seen ^ spot.fingerprint) & ~AGE_MASK ? AGE_GONE : seen & AGE_MASK;
	__sync_lock_test_and_set(tag, spot.fingerprint | (age ?: AGE_NEW)); /* from now on it can be found */
	return flow;
}

#endif
