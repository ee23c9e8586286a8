/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The flow table: arrays in place of a hash map. A bucket is one cache line of 16
 * words, each a fingerprint and a standing; its flows lie at the same places of a
 * second array. A known flow costs the bucket's line and its own.
 *
 * A flow has two buckets. It goes into the second only if the first has few empty
 * places left and the second has more; places are never emptied, so that the second
 * need not be searched while the first has more than those few. When both are full
 * the flow with the lowest standing goes: what the client reset, then what was never
 * heard of again after its first packet, then what has been silent for long; of two
 * alike the one among fewer live ones. A flood of SYNs therefore pushes out its own.
 *
 * No locks. A place is claimed by an atomic exchange of its word, written, and
 * published by another; a reader compares the whole key and then looks at the word
 * again. What two CPUs may do to each other is to lose an entry, never to give a flow
 * another one's.
 */
#ifndef CAUSEWAY_TABLE_H
#define CAUSEWAY_TABLE_H

#include "pick.h"
#include "../shared/mix.h"

/* Buckets of the two tables, as many as their maps have; set by the loader. */
const volatile u32 cfg_buckets4 = DEFAULT_BUCKETS4;
const volatile u32 cfg_buckets6 = DEFAULT_BUCKETS6;

/* A claimed place: no flow's fingerprint, and no one's victim. */
#define WORD_CLAIMED ((u32)STANDING_LIVE)
#define COST_FULL (1 + STANDING_LIVE)

/*
 * The first bucket's places that are only taken if the second bucket is no emptier.
 * With none kept, 16 places for 12.8 flows lose one of 200 of them; with four, fewer
 * than one in a million (docs/design/data-plane.md), and one of nine is in its second bucket.
 */
#define WAYS_SHARED 4

#define NO_PLACE CW_U32_MAX

/* Where a flow may be. */
struct spot {
	u32 bucket[2];
	u32 fingerprint; /* in the place of a word's, never 0 */
};

/* The hash of a packet's key, by a secret seed. */
static __always_inline u64 key_hash(const struct packet *pkt, const int family, u64 seed)
{
	if (family == IPV4)
		return mix_words((const u64 *)&pkt->key4, sizeof(pkt->key4) / 8, seed);
	return mix_words((const u64 *)&pkt->key6, sizeof(pkt->key6) / 8, seed);
}

static __always_inline struct spot find_spot(const struct packet *pkt, const int family, u64 seed)
{
	u32 buckets = family == IPV4 ? cfg_buckets4 : cfg_buckets6;
	u64 hash = key_hash(pkt, family, seed);

	return (struct spot){
		.bucket = { scale(hash >> 32, buckets), scale((u32)(hash * 0xbf58476d1ce4e5b9ull >> 32), buckets) },
		.fingerprint = ((u32)hash & ~STANDING_MASK) | (STANDING_MASK + 1),
	};
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

#define BOTH_WORDS(word) ((u64)(word) << 32 | (word))

/*
 * The places whose word equals `word` in the bits of `mask`: bit p of the result is
 * the word (p & 7) * 2 + (p >> 3). Two words at a time and without a branch: the
 * processor would guess it wrong, and the verifier follow all sixteen.
 */
static __always_inline u32 places_with(const struct flow_bucket *bucket, u32 word, u32 mask)
{
	const u64 *pairs = (const u64 *)bucket->word;
	u64 found = 0;

#pragma unroll
	for (u32 i = 0; i < FLOW_WAYS / 2; i++) {
		u64 differ = (pairs[i] ^ BOTH_WORDS(word)) & BOTH_WORDS(mask);
		u64 some = ((differ & BOTH_WORDS(0x7fffffffu)) + BOTH_WORDS(0x7fffffffu)) | differ;

		found |= (~some & BOTH_WORDS(0x80000000u)) >> (31 - i);
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

/* The word of the first of some places from bit `from` on, around; at least one is set. */
static __always_inline u32 first_place(u32 places, u32 from)
{
	u32 turned = (places | places << FLOW_WAYS) >> (from & (FLOW_WAYS - 1)), bit;

	bit = lowest_bit(turned & 0xffff) + from;
	return CW_MASKED(((bit & 7) << 1) + (bit >> 3 & 1), FLOW_WAYS - 1);
}

/* Whether flows whose first bucket this is may be in their second one. */
static __always_inline bool has_spilt(const struct flow_bucket *bucket)
{
	u32 empty = places_with(bucket, 0, ~0u);

#pragma unroll
	for (u32 i = 0; i < WAYS_SHARED; i++)
		empty &= empty - 1; /* without its lowest one; 0 stays 0 */
	return !empty;
}

/* How many places of a bucket, of 16 (Warren, Hacker's Delight, figure 5-2). */
static __always_inline u32 count_places(u32 places)
{
	places -= places >> 1 & 0x5555;
	places = (places & 0x3333) + (places >> 2 & 0x3333);
	places = (places + (places >> 4)) & 0x0f0f;
	return (places + (places >> 8)) & 0x1f;
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

/* A flow in the table, and the word that stands for it. */
struct entry {
	struct flow *flow;
	u32 *word;
	u32 seen;  /* what the word was */
	u32 index; /* of the flow in its array */
};

/* The place in a bucket that holds the packet's flow; NO_PLACE without one. */
static __always_inline u32
search(const struct flow_bucket *bucket, u32 number, u32 fingerprint, const struct packet *pkt, const int family)
{
	u32 places = places_with(bucket, fingerprint, ~STANDING_MASK), index;
	struct flow *flow;

	if (!places)
		return NO_PLACE;
	index = number * FLOW_WAYS + first_place(places, 0);
	flow = flow_at(index, family);
	return flow && is_flow_of(flow, pkt, family) ? index : NO_PLACE;
}

/* The same for a flow's second bucket: seldom needed, and so verified once for all. */
#define SEARCH_SECOND(family, FAMILY)                                                          \
	CW_GLOBAL u32 search_second##family(const struct packet *pkt, u32 number, u32 fingerprint) \
	{                                                                                      \
		struct flow_bucket *bucket = find_bucket(number, FAMILY);                      \
                                                                                               \
		return pkt && bucket ? search(bucket, number, fingerprint, pkt, FAMILY) : NO_PLACE; \
	}

SEARCH_SECOND(4, IPV4)
SEARCH_SECOND(6, IPV6)

/* The entry at a place, if the flow there is really in use. */
static __always_inline struct entry entry_at(u32 index, const int family)
{
	struct flow_bucket *bucket = find_bucket(index / FLOW_WAYS, family);
	struct entry entry = { .flow = flow_at(index, family), .index = index };

	if (!bucket)
		return (struct entry){};
	entry.word = &bucket->word[CW_MASKED(index, FLOW_WAYS - 1)];
	entry.seen = *(volatile u32 *)entry.word;
	return entry;
}

/* The packet's flow; entry.flow is NULL where there is none. */
static __always_inline struct entry find_entry(const struct packet *pkt, const int family, u64 seed)
{
	struct spot spot = find_spot(pkt, family, seed);
	struct flow_bucket *bucket = find_bucket(spot.bucket[0], family);
	u32 index;

	if (!bucket)
		return (struct entry){};
	index = search(bucket, spot.bucket[0], spot.fingerprint, pkt, family);
	if (index == NO_PLACE && has_spilt(bucket))
		index = family == IPV4 ? search_second4(pkt, spot.bucket[1], spot.fingerprint)
				       : search_second6(pkt, spot.bucket[1], spot.fingerprint);
	return index == NO_PLACE ? (struct entry){} : entry_at(index, family);
}

/* Whether the entry is still this flow's: to be asked after reading from it. */
static __always_inline bool is_still(const struct entry *entry)
{
	u32 now = *(volatile u32 *)entry->word;

	return (now & ~STANDING_MASK) == (entry->seen & ~STANDING_MASK);
}

static __always_inline void set_standing(const struct entry *entry, u32 standing)
{
	u32 wanted = (entry->seen & ~STANDING_MASK) | standing;

	if (wanted != entry->seen)
		__sync_val_compare_and_swap(entry->word, entry->seen, wanted);
}

#define COST_SHIFT 16
#define CROWD_SHIFT 8

static __always_inline u32 offer(u32 cost, u32 crowd, u32 places, u32 start)
{
	return cost << COST_SHIFT | crowd << CROWD_SHIFT | first_place(places, start);
}

/*
 * The way of a bucket that costs least to take, and what it costs: 0 an empty place
 * or the same fingerprint's, then one more than the standing. Ways are tried from
 * `start` on, so that not always the same one goes. Between them the crowd: how many
 * places are taken, if one costs nothing, else how many are live.
 * Cost << 16 | crowd << 8 | way.
 */
CW_GLOBAL u32 cheapest_way(const struct flow_bucket *bucket, u32 fingerprint, u32 start)
{
	u32 empty, same, live, crowd;

	if (!bucket)
		return CW_U32_MAX;
	empty = places_with(bucket, 0, ~0u);
	same = places_with(bucket, fingerprint, ~STANDING_MASK);
	if (empty | same)
		return offer(0, FLOW_WAYS - count_places(empty), empty | same, start);
	live = places_with(bucket, STANDING_LIVE, STANDING_MASK);
	crowd = count_places(live);
#pragma unroll
	for (u32 standing = STANDING_GONE; standing < STANDING_LIVE; standing++) {
		u32 places = places_with(bucket, standing, STANDING_MASK);

		if (places)
			return offer(1 + standing, crowd, places, start);
	}
	live &= ~places_with(bucket, WORD_CLAIMED, ~0u);
	return live ? offer(COST_FULL, crowd, live, start) : CW_U32_MAX;
}

/* All have been heard of lately: from now on they have to be heard of again. */
CW_GLOBAL int age_bucket(struct flow_bucket *bucket)
{
	if (!bucket)
		return 0;
#pragma unroll
	for (u32 i = 0; i < FLOW_WAYS; i++) {
		u32 word = bucket->word[i];

		if ((word & STANDING_MASK) == STANDING_LIVE && word != WORD_CLAIMED)
			__sync_val_compare_and_swap(&bucket->word[i], word, word - 1);
	}
	return 0;
}

/* A place for a flow that is in none: claimed, and to be published. */
static __always_inline struct entry
claim_place(const struct packet *pkt, const int family, u64 seed)
{
	struct spot spot = find_spot(pkt, family, seed);
	struct flow_bucket *bucket = find_bucket(spot.bucket[0], family), *other;
	u32 index = spot.bucket[0], start = spot.fingerprint >> 8, way, found;
	struct entry entry = {};

	if (!bucket)
		return entry;
	found = cheapest_way(bucket, spot.fingerprint, start);
	if (found >> CROWD_SHIFT >= FLOW_WAYS - WAYS_SHARED) {
		other = find_bucket(spot.bucket[1], family);
		if (!other)
			return entry;
		way = cheapest_way(other, spot.fingerprint, start);
		if (way >> CROWD_SHIFT < found >> CROWD_SHIFT) {
			found = way;
			bucket = other;
			index = spot.bucket[1];
		}
	}
	if (found >> COST_SHIFT > COST_FULL)
		return entry;
	if (found >> COST_SHIFT == COST_FULL)
		age_bucket(bucket);
	way = CW_MASKED(found, FLOW_WAYS - 1);
	entry.word = &bucket->word[way];
	entry.seen = *(volatile u32 *)entry.word;
	if (entry.seen == WORD_CLAIMED ||
	    __sync_val_compare_and_swap(entry.word, entry.seen, WORD_CLAIMED) != entry.seen)
		return entry; /* another CPU was faster */
	entry.seen = spot.fingerprint;
	entry.index = index * FLOW_WAYS + way;
	entry.flow = flow_at(entry.index, family);
	if (!entry.flow) /* only if the maps contradict each other */
		*(volatile u32 *)entry.word = 0;
	return entry;
}

/* The flow that was written into a claimed place can be found from now on. */
static __always_inline void publish(const struct entry *entry, u32 standing)
{
	__sync_lock_test_and_set(entry->word, entry->seen | standing);
}

#endif
