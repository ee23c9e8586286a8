/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The hash that spreads flow keys over tables: quick, and no cipher. */
#ifndef CAUSEWAY_MIX_H
#define CAUSEWAY_MIX_H

#include "types.h"

/* One step of a multiplicative hash; the seed keeps clients from choosing places. */
CW_INLINE u64 mix(u64 hash, u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 32;
}

CW_INLINE u64 mix_words(const u64 *words, const u32 count, u64 seed)
{
	u64 hash = seed;

#ifdef __bpf__
#pragma unroll
#endif
	for (u32 i = 0; i < count; i++)
		hash = mix(hash, words[i]);
	return mix(hash, seed); /* the last word's bits, too, spread over all */
}

CW_INLINE u32 scale(u32 hash, u32 count)
{
	return (u32)((u64)hash * count >> 32);
}

#endif
