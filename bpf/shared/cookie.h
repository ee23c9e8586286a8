/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Cookies: a server's id that travels inside the connection's own packets, so that
 * a balancer without a table sends each packet to the server that its connection
 * is on (Barbette et al., "A High-Speed Load-Balancer Design with Guaranteed
 * Per-Connection-Consistency", section 3.1).
 *
 *      bits-1                                0
 *   C = | epoch 1 | (id || check) XOR hash   |      hash = SipHash-2-4(key[epoch], tuple)
 *
 * The tuple is the packet's own flow key, client to VIP, so both ends hash the same
 * words. XOR with the low bits of the hash hides the id: a client that knows its
 * cookie cannot make one for another server. `check` is a second slice of the hash,
 * mixed with the id; a guess passes once in 2^check_bits, times the part of all ids
 * that is in use. The epoch is clear, so that two keys are valid while one replaces
 * the other.
 *
 * Where C lies in a TCP timestamp is the mode's business: see cookie_clock.h.
 */
#ifndef CAUSEWAY_COOKIE_H
#define CAUSEWAY_COOKIE_H

#include "siphash.h"
#include "types.h"

/* Ids of one VIP: 0 to 1023. Data planes index arrays of this size. */
#define COOKIE_IDS 1024
#define COOKIE_ID_BITS_MAX 10
#define COOKIE_BITS_MIN 4
#define COOKIE_BITS_MAX 20
#define COOKIE_EPOCHS 2

/* What cookie_decode gives for a cookie whose check does not fit. */
#define COOKIE_FORGED 0xffffffffu

enum cookie_mode {
	COOKIE_NONE = 0,
	COOKIE_TIMESTAMP = 1,       /* low bits of TSval, an event-driven clock above */
	COOKIE_TIMESTAMP_LIGHT = 2, /* low bits of TSval, the natural clock above, no echo */
	COOKIE_QUIC = 4,            /* QUIC connection ids: quic_lb.h has their format */
	COOKIE_TIER = 5,            /* a stateful balancer's number, at the head of its tokens */
};

/* How a VIP's cookies are made: the same at both ends. */
struct cookie_format {
	u8 mode;    /* enum cookie_mode */
	u8 bits;    /* of C, the epoch included */
	u8 id_bits; /* of them the id's; the rest is the check's */
	u8 pad;
};

/*
 * The two keys, as balancers and servers hold them. A VIP's cookies of both epochs
 * are valid; servers give new connections that of `current`.
 */
struct cookie_keys {
	u64 key[COOKIE_EPOCHS][2];
	u32 present; /* bit e: key[e] is set */
	u32 current;
};

CW_INLINE u32 cookie_check_bits(const struct cookie_format *format)
{
	return format->bits - 1u - format->id_bits;
}

/* The `bits` low bits set; bits below 32. */
CW_INLINE u32 cookie_mask(u32 bits)
{
	return (1u << (bits & 31)) - 1;
}

CW_INLINE u32 cookie_epoch(u32 cookie, const struct cookie_format *format)
{
	return cookie >> ((format->bits - 1) & 31) & 1;
}

/* An odd multiple of the hash's high half: each id has another slice of it. */
CW_INLINE u32 cookie_check(u64 hash, u32 id, u32 check_bits)
{
	u32 mixed = (u32)(hash >> 32) * (2 * id + 1);

	return (u32)((u64)mixed >> ((32 - check_bits) & 63));
}

/* The cookie of server `id`; hash is the tuple's under the key of `epoch`. */
CW_INLINE u32 cookie_encode(u64 hash, u32 epoch, u32 id, const struct cookie_format *format)
{
	u32 check_bits = cookie_check_bits(format);
	u32 plain = id << (check_bits & 31) | cookie_check(hash, id, check_bits);
	u32 hidden = (plain ^ (u32)hash) & cookie_mask(format->bits - 1);

	return epoch << ((format->bits - 1) & 31) | hidden;
}

/* The id in a cookie, below 2^id_bits, or COOKIE_FORGED. The hash's key is the epoch's. */
CW_INLINE u32 cookie_decode(u64 hash, u32 cookie, const struct cookie_format *format)
{
	u32 check_bits = cookie_check_bits(format);
	u32 plain = (cookie ^ (u32)hash) & cookie_mask(format->bits - 1);
	u32 id = plain >> (check_bits & 31);

	if ((plain & cookie_mask(check_bits)) != cookie_check(hash, id, check_bits))
		return COOKIE_FORGED;
	return id;
}

/* The number of the second-tier balancer that gave out a token, whose mask is taken off. */
CW_INLINE u32 cookie_tier(u32 token, const struct cookie_format *format)
{
	return token >> ((format->bits - format->id_bits) & 31);
}

/*
 * What connection tokens of two tiers are XORed with: 15 bits of the tuple's hash by a key
 * of balancers alone, so that no client knows which second-tier balancer a token names, or
 * how to name one. The constants make another key of the one that reals are picked by.
 */
CW_INLINE u32 conn_token_mask(const u64 *words, u32 count, const u64 hash_key[2])
{
	const u64 key[2] = { hash_key[0] ^ 0x6e2d6e6e6f632d62ull, hash_key[1] ^ 0x6b73616d2d6e6f74ull };

	return (u32)siphash24(words, count, key) & 0x7fff;
}

/* C out of a timestamp. */
CW_INLINE u32 cookie_in(u32 timestamp, const struct cookie_format *format)
{
	return timestamp & cookie_mask(format->bits);
}

#endif
