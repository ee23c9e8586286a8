// SPDX-License-Identifier: Apache-2.0
// What src/hist.rs calls of bpf/shared/hist.h.

#include "hist.h"

u32 causeway_hist_buckets(void)
{
	return HIST_BUCKETS;
}

u32 causeway_hist_bucket(u64 ns)
{
	return hist_bucket(ns);
}

u64 causeway_hist_floor_ns(u32 bucket)
{
	return hist_floor_ns(bucket);
}
