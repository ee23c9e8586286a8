/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The times by which new flows are limited: the generic cell rate algorithm (ITU-T I.371). A
 * prefix has a time when its next flow is due; each flow moves it on by an interval, and one
 * that comes too early for the tolerance is not let in. One entry a prefix; a full bucket
 * evicts the one with the least debt.
 */
#ifndef CAUSEWAY_LIMIT_H
#define CAUSEWAY_LIMIT_H

#include "abi.h"

#define LIMIT_TIME_BITS 40
#define LIMIT_TIME_MASK ((1ull << LIMIT_TIME_BITS) - 1)
/* Units of time are 1024 ns, so that a time goes round after 13 days. */
#define LIMIT_UNIT_SHIFT 10

/*
 * No prefix owes more: interval and tolerance are 32 bits each. A time that is further
 * ahead was written when the clock's 40 bits had not gone round yet.
 */
#define LIMIT_AHEAD_MAX (2ll << 32)

/* The time that an entry can hold. */
CW_INLINE u64 limit_time(u64 now_ns)
{
	return now_ns >> LIMIT_UNIT_SHIFT & LIMIT_TIME_MASK;
}

/* `a` - `b` of two times, as a signed number. */
CW_INLINE s64 limit_ahead(u64 a, u64 b)
{
	return (s64)((a - b) << (64 - LIMIT_TIME_BITS)) >> (64 - LIMIT_TIME_BITS);
}

/*
 * The way of a prefix, else of the entry with the least debt. Global, or the verifier would
 * follow each way through all that is done with it.
 */
CW_GLOBAL u32 limit_way(const struct limit_bucket *bucket, u64 tag, u64 now)
{
	s64 least = 0x7fffffffffffffffll;
	u32 way = 0;

	if (!bucket)
		return 0;
	CW_UNROLL
	for (u32 i = 0; i < LIMIT_WAYS; i++) {
		u64 entry = bucket->entry[i];
		s64 ahead = entry ? limit_ahead(entry & LIMIT_TIME_MASK, now) : -0x7fffffffffffffffll;

		if (ahead > LIMIT_AHEAD_MAX)
			ahead = -LIMIT_AHEAD_MAX;
		if (entry >> LIMIT_TIME_BITS == tag)
			ahead = -0x7fffffffffffffffll - 1;
		if (ahead < least) {
			least = ahead;
			way = i;
		}
	}
	return way;
}

/* What the entry becomes with another flow of this prefix now; 0: the flow is beyond its limit. */
CW_INLINE u64 limit_next(u64 entry, u64 tag, u64 now, const struct vip_limit *limit)
{
	u64 due = now;
	s64 ahead;

	if (entry >> LIMIT_TIME_BITS == tag) {
		ahead = limit_ahead(entry & LIMIT_TIME_MASK, now);
		/* More than that it cannot owe: the limit was another, or the time went round. */
		if (ahead > 0 && ahead <= (s64)limit->tolerance + limit->interval)
			due = entry & LIMIT_TIME_MASK;
	}
	if (limit_ahead(due, now) > (s64)limit->tolerance)
		return 0;
	return tag << LIMIT_TIME_BITS | ((due + limit->interval) & LIMIT_TIME_MASK);
}

#endif
