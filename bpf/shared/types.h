/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Integer types and the few words that differ between the two compilers.
 *
 * Everything else under bpf/shared is plain C on integers, with no helper and
 * no map, so that the kernel, the pcap reader and the tests run the same code.
 */
#ifndef CAUSEWAY_TYPES_H
#define CAUSEWAY_TYPES_H

#ifdef __bpf__
#include <linux/types.h>
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s8 s8;
typedef __s16 s16;
typedef __s32 s32;
typedef __s64 s64;
#else
#include <stdint.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
#endif

#define CW_INLINE static inline __attribute__((always_inline, unused))

/*
 * A function that the BPF verifier checks once, on its own, instead of at
 * every call with every state that can reach it. Such a function must be
 * global, takes at most five arguments, and has to test its pointers for null
 * because the verifier assumes nothing of them. In user space it is an
 * ordinary inline function.
 */
#ifdef __bpf__
#define CW_GLOBAL __attribute__((noinline))
#else
#define CW_GLOBAL static inline __attribute__((unused))
#endif

/*
 * i & mask, computed right here. Without the barrier the compiler proves that
 * an index is small, drops the mask, and leaves a bound that the verifier
 * cannot see.
 */
#ifdef __bpf__
#define CW_MASKED(i, mask)                       \
	({                                       \
		u32 _cw_i = (u32)(i);            \
		asm volatile("" : "+r"(_cw_i));  \
		_cw_i & (u32)(mask);             \
	})

/* The same for a bound that is not a power of two: i, or max where i is larger. */
#define CW_CLAMPED(i, max)                                     \
	({                                                     \
		u32 _cw_i = (u32)(i);                          \
		asm volatile("" : "+r"(_cw_i));                \
		_cw_i = _cw_i > (u32)(max) ? (u32)(max) : _cw_i; \
		asm volatile("" : "+r"(_cw_i));                \
		_cw_i;                                         \
	})
#else
#define CW_MASKED(i, mask) ((u32)(i) & (u32)(mask))
#define CW_CLAMPED(i, max) CW_MIN((u32)(i), (u32)(max))
#endif

/*
 * The value, of which the verifier forgets what it knew, by a number that it knows nothing of:
 * ways that differ in it alone come together here, and what follows is followed once. Two
 * instructions, where a global function costs a call.
 */
#ifdef __bpf__
#define CW_FORGET(value, unknown)                                                                \
	({                                                                                       \
		u64 _cw_v = (value);                                                             \
		asm volatile("%0 ^= %1\n%0 ^= %1" : "+r"(_cw_v) : "r"((u64)(unknown)));          \
		_cw_v;                                                                           \
	})
#else
#define CW_FORGET(value, unknown) ((void)(unknown), (value))
#endif

/* Before a loop that the verifier is to see unrolled. */
#ifdef __clang__
#define CW_UNROLL _Pragma("unroll")
#else
#define CW_UNROLL
#endif

/* Before a loop whose unrolled form would need more stack than the kernel has. */
#ifdef __clang__
#define CW_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define CW_NO_UNROLL
#endif

#define CW_MIN(a, b) ((a) < (b) ? (a) : (b))
#define CW_MAX(a, b) ((a) > (b) ? (a) : (b))

#define CW_US_NS 1000u
#define CW_MS_NS 1000000u
#define CW_U32_MAX 0xffffffffu

/* v, or the largest value that 32 bits hold. */
CW_INLINE u32 cw_sat32(u64 v)
{
	return v > CW_U32_MAX ? CW_U32_MAX : (u32)v;
}

/* The position of the highest set bit of v; 0 for 0. BPF has no such instruction. */
CW_INLINE u32 cw_log2(u32 v)
{
#ifdef __bpf__
	u32 octave = 0;

	for (u32 step = 16; step; step >>= 1) {
		u32 more = v >> (octave + step) != 0;

		octave += more * step;
	}
	return octave;
#else
	return 31u - (u32)__builtin_clz(v | 1);
#endif
}

/* 64 log2(v), within 3; 0 for 0. */
CW_INLINE u32 cw_log64(u32 v)
{
	u32 octave = cw_log2(v), part;

	part = (u32)(((u64)v << 6) >> octave) & 63;
	/* log2(1 + x) = x + 0.34 x (1 - x), within 0.008. */
	return v ? octave * 64 + part + (part * (64 - part) * 22 >> 12) : 0;
}

#endif
