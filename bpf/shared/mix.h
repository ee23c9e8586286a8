/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The hash that spreads flow keys over tables: quick, and no cipher. Clients choose what
 * is hashed, so no two keys may collide whatever the seed is.
 */
#ifndef CAUSEWAY_MIX_H
#define CAUSEWAY_MIX_H

#include "types.h"

/* A bijection whose every output bit depends on each input bit (Stafford's variant 13). */
CW_INLINE u64 mix(u64 value)
{
	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
	value = (value ^ value >> 27) * 0x94d049bb133111ebull;
	return value ^ value >> 31;
}

/*
 * The NH hash of UMAC (Black and others 1999): each word's halves, with a key added to
 * each, are multiplied. What a difference does to the sum depends on the keys of both
 * halves, so that no other word makes up for it under every seed. The keys follow from the
 * seed, where NH's are independent: its proof does not hold, and no cipher is claimed.
 */
CW_INLINE u64 mix_words(const u64 *words, const u32 count, u64 seed)
{
	u64 sum = seed, key = seed;

#ifdef __bpf__
#pragma unroll
#endif
	for (u32 i = 0; i < count; i++) {
		key = key * 0x9e3779b97f4a7c15ull + 0xd1342543de82ef95ull;
		sum += (u64)((u32)words[i] + (u32)(key >> 32)) * (u32)((u32)(words[i] >> 32) + (u32)(key ^ key >> 17));
	}
	return mix(sum);
}

CW_INLINE u32 scale(u32 hash, u32 count)
{
	return (u32)((u64)hash * count >> 32);
}

#endif
