/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Where in the flow table a flow may be: what finds it, and what puts it into a new table. */
#ifndef CAUSEWAY_FLOW_SPOT_H
#define CAUSEWAY_FLOW_SPOT_H

#include "abi.h"
#include "mix.h"

struct spot {
	u32 bucket[2];
	u32 fingerprint; /* in the bits of a tag's, never 0 */
};

/* Of the hash of its key by ctl.table_seed: mix_words(). Another function wants another seed's name. */
CW_INLINE struct spot spot_of(u64 hash, u32 buckets)
{
	return (struct spot){
		.bucket = { scale(hash >> 32, buckets), scale((u32)(hash * 0xbf58476d1ce4e5b9ull >> 32), buckets) },
		.fingerprint = ((u32)hash & ~AGE_MASK) | (AGE_MASK + 1),
	};
}

#endif
