/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Internet checksums (RFC 1071) by plain arithmetic: a helper call costs more than
 * the twenty bytes do. Words are summed in network byte order.
 */
#ifndef CAUSEWAY_CSUM_H
#define CAUSEWAY_CSUM_H

#include "../packet/parse.h"

/* The checksum field for a sum of 16-bit or 32-bit words, fewer than 2^16 of them. */
static __always_inline u16 csum_fold(u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (u16)~sum;
}

/* The sum of `words` 32-bit words; a constant, so that the loop unrolls. */
static __always_inline u64 csum_words(const void *data, const u32 words)
{
	const u32 *word = data;
	u64 sum = 0;

	for (u32 i = 0; i < words; i++)
		sum += word[i];
	return sum;
}

/* The checksum after one 16-bit word changed (RFC 1624, equation 3). */
static __always_inline u16 csum_replace(u16 check_be, u16 old_be, u16 new_be)
{
	return csum_fold((u64)(u16)~check_be + (u16)~old_be + new_be);
}

#endif
