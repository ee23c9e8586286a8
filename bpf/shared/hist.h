/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A log-linear latency histogram: sixteen linear buckets in each power of two.
 * A bucket is 1/16 of its octave wide, so its middle is within 1/32 (3.2 %) of
 * every value in it. Values from 512 ns to 137 s; what lies outside counts in
 * the first or the last bucket.
 */
#ifndef CAUSEWAY_HIST_H
#define CAUSEWAY_HIST_H

#include "estimator.h"

#define HIST_SUB_BITS 4
#define HIST_MIN_BITS 9  /* 2^9 ns: 512 ns */
#define HIST_MAX_BITS 37 /* 2^37 ns: 137 s */
#define HIST_BUCKETS ((HIST_MAX_BITS - HIST_MIN_BITS) << HIST_SUB_BITS)

/* The position of the highest set bit; v must not be 0. BPF has no clz. */
static inline __attribute__((always_inline)) u32 hist_log2(u64 v)
{
	u32 bits = 0;

	if (v >> 32) { v >>= 32; bits += 32; }
	if (v >> 16) { v >>= 16; bits += 16; }
	if (v >> 8) { v >>= 8; bits += 8; }
	if (v >> 4) { v >>= 4; bits += 4; }
	if (v >> 2) { v >>= 2; bits += 2; }
	return bits + (u32)(v >> 1);
}

/* The bucket of a latency in ns; always below HIST_BUCKETS. */
static inline __attribute__((always_inline)) u32 hist_bucket(u64 ns)
{
	u32 octave;

	if (ns < (1ull << HIST_MIN_BITS))
		return 0;
	if (ns >= (1ull << HIST_MAX_BITS))
		return HIST_BUCKETS - 1;
	octave = hist_log2(ns);
	return ((octave - HIST_MIN_BITS) << HIST_SUB_BITS) +
	       (u32)((ns >> (octave - HIST_SUB_BITS)) & ((1u << HIST_SUB_BITS) - 1));
}

/*
 * The least latency of a bucket in ns, apart from the first, which begins at 0.
 * Bucket HIST_BUCKETS gives the end of the last.
 */
static inline __attribute__((always_inline, unused)) u64 hist_floor_ns(u32 bucket)
{
	u32 octave = HIST_MIN_BITS + (bucket >> HIST_SUB_BITS);
	u64 mantissa = (1u << HIST_SUB_BITS) | (bucket & ((1u << HIST_SUB_BITS) - 1));

	return mantissa << (octave - HIST_SUB_BITS);
}

struct histogram {
	u64 count[HIST_BUCKETS];
};

CW_INLINE void hist_add(struct histogram *hist, u64 ns, u64 count)
{
	u64 *bucket = &hist->count[CW_CLAMPED(hist_bucket(ns), HIST_BUCKETS - 1)];

	__sync_fetch_and_add(bucket, count);
}

/* The same, verified once. */
CW_GLOBAL int hist_add_one(struct histogram *hist, u64 ns, u64 count)
{
	if (hist)
		hist_add(hist, ns, count);
	return 0;
}

/*
 * Add a group of latencies: each that is known as itself, the others as their mean. A whole
 * one counts per times; two halves are a whole, and a lone one is rounded up.
 */
CW_GLOBAL int hist_add_group(struct histogram *hist, const struct est_sample *sample, u32 per)
{
	u64 sum, left;
	u32 weight;

	if (!hist || !sample)
		return 0;
	sum = sample->sum_halves_ns;
	weight = sample->weight_halves;
	CW_NO_UNROLL
	for (u32 i = 0; i < EST_SINGLES; i++) {
		u64 ns;

		if (i >= sample->singles)
			break;
		ns = (u64)sample->single[i] << EST_SINGLE_SHIFT;
		hist_add_one(hist, ns, per);
		sum -= CW_MIN(sum, 2 * ns);
		weight -= CW_MIN(weight, 2);
	}
	left = (weight * per + 1) / 2;
	if (left)
		hist_add_one(hist, sum / weight, left);
	return 0;
}

#endif
