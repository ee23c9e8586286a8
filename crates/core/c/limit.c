// SPDX-License-Identifier: Apache-2.0
// What src/limit.rs calls of bpf/shared/limit.h.

#include "limit.h"

// As is_beyond_limit of bpf/lb/limit.h, on one bucket: whether the flow is let in.
u32 causeway_limit_admit(struct limit_bucket *bucket, u32 tag, u64 now_ns, struct vip_limit limit)
{
	u64 now = limit_time(now_ns), next;
	u32 way = limit_way(bucket, tag, now);

	next = limit_next(bucket->entry[way], tag, now, &limit);
	if (next)
		bucket->entry[way] = next;
	return next != 0;
}
