/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * SipHash (Aumasson, Bernstein 2012) of whole 64-bit words. Keyed, so that a
 * client who does not know the key cannot aim its connections at one server.
 */
#ifndef CAUSEWAY_SIPHASH_H
#define CAUSEWAY_SIPHASH_H

#include "types.h"

struct sip_state {
	u64 v0, v1, v2, v3;
};

#define SIP_ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))

static inline __attribute__((always_inline)) void sip_round(struct sip_state *s)
{
	s->v0 += s->v1;
	s->v1 = SIP_ROTL(s->v1, 13) ^ s->v0;
	s->v0 = SIP_ROTL(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = SIP_ROTL(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = SIP_ROTL(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = SIP_ROTL(s->v1, 17) ^ s->v2;
	s->v2 = SIP_ROTL(s->v2, 32);
}

/*
 * SipHash of `count` words as they lie in memory (little endian); count below 32. `c` rounds
 * for each word, `d` at the end.
 */
static inline __attribute__((always_inline)) u64
siphash(const u64 *words, u32 count, const u64 key[2], const u32 c, const u32 d)
{
	struct sip_state s = {
		.v0 = key[0] ^ 0x736f6d6570736575ull,
		.v1 = key[1] ^ 0x646f72616e646f6dull,
		.v2 = key[0] ^ 0x6c7967656e657261ull,
		.v3 = key[1] ^ 0x7465646279746573ull,
	};

#ifdef __bpf__
#pragma unroll
#endif
	for (u32 i = 0; i <= count; i++) {
		/* At the end the length in bytes, in the top byte. */
		u64 word = i < count ? words[i] : (u64)count << 59;

		s.v3 ^= word;
		for (u32 round = 0; round < c; round++)
			sip_round(&s);
		s.v0 ^= word;
	}
	s.v2 ^= 0xff;
	for (u32 round = 0; round < d; round++)
		sip_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

static inline __attribute__((always_inline)) u64
siphash24(const u64 *words, u32 count, const u64 key[2])
{
	return siphash(words, count, key, 2, 4);
}

static inline __attribute__((always_inline)) u64
siphash13(const u64 *words, u32 count, const u64 key[2])
{
	return siphash(words, count, key, 1, 3);
}

#endif
