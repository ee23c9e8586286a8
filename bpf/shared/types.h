/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The integer types of shared code, in the kernel and in user space. */
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

#endif
