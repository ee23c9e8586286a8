/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A server's id inside QUIC connection ids: draft-ietf-quic-load-balancers-21.
 * This half takes it out; servers put it in (crates/quic-lb).
 *
 *   first octet             block of 5 to 19 octets        (more octets are the server's)
 *   | config 3 | length 5 | server id ... | nonce ... |
 *
 * The block is plain, or encrypted under the key of its configuration:
 *
 * - QUIC_LB_AES, as in the draft: one AES-128 block where server id and nonce have 16
 *   octets together, else a Feistel network of four passes with AES as its function.
 * - QUIC_LB_SIPHASH, ours: the same network with SipHash-1-3 as its function, for
 *   blocks of 6 to 12 octets of even number. A pass has 5 rounds of a few
 *   instructions where AES without hardware has 160 table look-ups. What that means
 *   for security stands in docs/explanation/quic.md.
 *
 * The server id is a number below 2^32 in network byte order, and short enough to lie
 * within the left half of the network, which spares the fourth pass.
 */
#ifndef CAUSEWAY_QUIC_LB_H
#define CAUSEWAY_QUIC_LB_H

#include "aes128.h"
#include "quic_lb_config.h"
#include "siphash.h"

/* The block as two words and the rest: octet i of `lo` is its bits 8i to 8i + 7. */
struct quic_lb_block {
	u64 lo; /* octets 0 to 7 */
	u64 hi; /* octets 8 to 15 */
	u32 top; /* octets 16 to 18 */
};

CW_INLINE u32 quic_lb_block_len(const struct quic_lb_config *config)
{
	return (u32)config->server_id_len + config->nonce_len;
}

/* Which configuration a first octet names; QUIC_LB_CONFIGS: none. */
CW_INLINE u32 quic_lb_codepoint(u8 first_octet)
{
	return first_octet >> 5;
}

/* The low `octets` octets; octets below 8. */
CW_INLINE u64 quic_lb_low(u64 word, u32 octets)
{
	return word & ((1ull << (octets * 8 & 63)) - 1);
}

/* One pass: the function of a half of `half` octets. */
CW_INLINE u64 quic_lb_sip_pass(const struct quic_lb_config *config, u32 half, u64 pass, u64 input)
{
	u64 word = input | (u64)(2 * half) << 48 | pass << 56;

	return quic_lb_low(siphash13(&word, 1, config->siphash_key), half);
}

/* The left half of the plain block, by the last three passes backwards. */
CW_INLINE u64 quic_lb_sip_left(const struct quic_lb_config *config, const struct quic_lb_block *block)
{
	u32 half = quic_lb_block_len(config) / 2;
	u32 shift = half * 8 & 63; /* 24 to 48 */
	u64 left = quic_lb_low(block->lo, half);
	u64 right = quic_lb_low(block->lo >> shift | block->hi << (64 - shift), half);

	left ^= quic_lb_sip_pass(config, half, 4, right);
	right ^= quic_lb_sip_pass(config, half, 3, left);
	left ^= quic_lb_sip_pass(config, half, 2, right);
	return left;
}

/* A half of the AES network: up to ten octets, the first in the lowest bits of `lo`. */
struct quic_lb_half {
	u64 lo;
	u64 hi;
};

/*
 * out ^= AES(expand(input, pass)), cut to a half (draft, section 5.4.2.2) by the mask
 * `keep`, which also clears the four bits that a half of an odd block does not have.
 */
CW_INLINE void
quic_lb_aes_pass(const struct quic_lb_config *config, u32 pass, const struct quic_lb_half *input,
		 struct quic_lb_half *out, const struct quic_lb_half *keep)
{
	struct aes128_block block = {
		.lo = input->lo,
		.hi = input->hi | (u64)quic_lb_block_len(config) << 48 | (u64)pass << 56,
	};

	aes128_encrypt(config->aes_rounds, &block);
	out->lo = (out->lo ^ block.lo) & keep->lo;
	out->hi = (out->hi ^ block.hi) & keep->hi;
}

/* `count` octets of the block from octet `from` on; from + count at most 19, count at most 10. */
CW_INLINE struct quic_lb_half quic_lb_part(const struct quic_lb_block *block, u32 from, u32 count)
{
	u32 shift = from * 8 & 63;
	u64 w0 = from < 8 ? block->lo : block->hi;
	u64 w1 = from < 8 ? block->hi : block->top;
	u64 w2 = from < 8 ? block->top : 0;
	struct quic_lb_half half = { w0, w1 };

	if (shift) {
		half.lo = w0 >> shift | w1 << (64 - shift);
		half.hi = w1 >> shift | w2 << (64 - shift);
	}
	if (count < 8) {
		half.lo = quic_lb_low(half.lo, count);
		half.hi = 0;
	} else {
		half.hi = quic_lb_low(half.hi, count - 8);
	}
	return half;
}

/* The mask of a half of `octets` octets, as words. */
CW_INLINE struct quic_lb_half quic_lb_ones(u32 octets)
{
	struct quic_lb_block ones = { ~0ull, ~0ull, ~0u };

	return quic_lb_part(&ones, 0, octets);
}

/* Or each kind of block would be verified through all rounds. */
CW_INLINE void quic_lb_forget(struct quic_lb_half *half, const struct quic_lb_config *config)
{
	u64 key = (u64)config->aes_rounds[1] << 32 | config->aes_rounds[0];

	half->lo = CW_FORGET(half->lo, key);
	half->hi = CW_FORGET(half->hi, key);
}

/* The left half of the plain block, by the last three passes backwards. */
CW_INLINE u64 quic_lb_aes_left(const struct quic_lb_config *config, const struct quic_lb_block *block)
{
	u32 len = quic_lb_block_len(config), half = (len + 1) / 2;
	struct quic_lb_half left = quic_lb_part(block, 0, half);
	struct quic_lb_half right = quic_lb_part(block, len - half, half);
	struct quic_lb_half keep_left = quic_lb_ones(half), keep_right = keep_left;

	if (len & 1) {
		/* The middle octet is cut in two: the left half has its first four bits. */
		keep_right.lo &= ~0xf0ull;
		if (half <= 8)
			keep_left.lo &= ~(0x0full << ((half - 1) * 8 & 63));
		else
			keep_left.hi &= ~(0x0full << ((half - 9) * 8 & 63));
		left.lo &= keep_left.lo;
		left.hi &= keep_left.hi;
		right.lo &= keep_right.lo;
	}
	quic_lb_forget(&left, config);
	quic_lb_forget(&right, config);
	quic_lb_forget(&keep_left, config);
	quic_lb_forget(&keep_right, config);
	quic_lb_aes_pass(config, 4, &right, &left, &keep_left);
	quic_lb_aes_pass(config, 3, &left, &right, &keep_right);
	quic_lb_aes_pass(config, 2, &right, &left, &keep_left);
	return left.lo;
}

CW_INLINE u64 quic_lb_aes_block(const struct quic_lb_config *config, const struct quic_lb_block *block)
{
	struct aes128_block plain = { block->lo, block->hi };

	aes128_decrypt(config->aes_rounds, &plain);
	return plain.lo;
}

/* The number in the first `octets` octets, network byte order; octets 1 to 4. */
CW_INLINE u32 quic_lb_number(u64 word, u32 octets)
{
	return __builtin_bswap32((u32)word) >> ((4 - octets) * 8 & 31);
}

/*
 * The server id in a block of a configuration. Any block has one: that a client made it
 * up shows only in that no server has the id.
 */
CW_INLINE u32 quic_lb_server(const struct quic_lb_config *config, const struct quic_lb_block *block)
{
	u64 plain = block->lo;

	if (config->algorithm == QUIC_LB_SIPHASH)
		plain = quic_lb_sip_left(config, block);
	else if (config->algorithm == QUIC_LB_AES)
		plain = quic_lb_block_len(config) == QUIC_LB_AES_ONE_BLOCK ?
			quic_lb_aes_block(config, block) : quic_lb_aes_left(config, block);
	return quic_lb_number(plain, config->server_id_len);
}

#endif
