// SPDX-License-Identifier: Apache-2.0
// What src/flow_spot.rs calls of bpf/shared.

#include "flow_spot.h"

// conn_partition of bpf/lb/conn_table.h.
u32 causeway_conn_partition(const u64 *words, u32 count, u64 seed, u32 partitions)
{
	return scale(mix_words(words, count, seed) >> 32, partitions);
}

struct spot causeway_flow_spot(const u64 *words, u32 count, u64 seed, u32 buckets)
{
	return spot_of(mix_words(words, count, seed), buckets);
}
