/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * AES-128 (FIPS 197) of single blocks by tables, on integers alone, for the
 * connection ids of quic_lb.h. The kernel has AES for BPF programs from 6.10 on
 * (bpf_crypto_decrypt); without AES instructions that costs about 575 ns a block and
 * needs memory that only maps can give. This costs less, and runs on 6.1 too.
 *
 * Look-ups depend on the key: who shares the machine's caches could learn it by
 * timing. Only the balancer's owner should run code there.
 *
 * A block is two words as they lie in little-endian memory: octet i of the block is
 * bits 8i to 8i + 7. Columns are the words' halves.
 */
#ifndef CAUSEWAY_AES128_H
#define CAUSEWAY_AES128_H

#include "aes128_tables.h"
#include "types.h"

#define AES128_ROUNDS 10
#define AES128_WORDS (4 * (AES128_ROUNDS + 1)) /* 44 */

struct aes128_block {
	u64 lo;
	u64 hi;
};

#define AES128_ROTL(x, bits) ((u32)(x) << (bits) | (u32)(x) >> (32 - (bits)))

/* One column of a round: its four octets come from four columns. */
CW_INLINE u32 aes128_column(const u32 *table, u32 a, u32 b, u32 c, u32 d, u32 key)
{
	u32 t = table[a & 0xff];

	t ^= AES128_ROTL(table[b >> 8 & 0xff], 8);
	t ^= AES128_ROTL(table[c >> 16 & 0xff], 16);
	t ^= AES128_ROTL(table[d >> 24], 24);
	return t ^ key;
}

/* The same in the last round, which does not mix columns. */
CW_INLINE u32 aes128_last(const u8 *box, u32 a, u32 b, u32 c, u32 d, u32 key)
{
	u32 t = box[a & 0xff] | (u32)box[b >> 8 & 0xff] << 8 | (u32)box[c >> 16 & 0xff] << 16 |
		(u32)box[d >> 24] << 24;

	return t ^ key;
}

/* `keys`: the expanded key, from user space; AES128_WORDS words. */

CW_INLINE void aes128_encrypt(const u32 *keys, struct aes128_block *block)
{
	u32 a = (u32)block->lo ^ keys[0], b = (u32)(block->lo >> 32) ^ keys[1];
	u32 c = (u32)block->hi ^ keys[2], d = (u32)(block->hi >> 32) ^ keys[3];

	CW_NO_UNROLL
	for (u32 round = 1; round < AES128_ROUNDS; round++) {
		const u32 *k = keys + 4 * round;
		u32 e = aes128_column(aes128_te, a, b, c, d, k[0]);
		u32 f = aes128_column(aes128_te, b, c, d, a, k[1]);
		u32 g = aes128_column(aes128_te, c, d, a, b, k[2]);
		u32 h = aes128_column(aes128_te, d, a, b, c, k[3]);

		a = e;
		b = f;
		c = g;
		d = h;
	}
	keys += 4 * AES128_ROUNDS;
	block->lo = aes128_last(aes128_sbox, a, b, c, d, keys[0]) |
		    (u64)aes128_last(aes128_sbox, b, c, d, a, keys[1]) << 32;
	block->hi = aes128_last(aes128_sbox, c, d, a, b, keys[2]) |
		    (u64)aes128_last(aes128_sbox, d, a, b, c, keys[3]) << 32;
}

/* With the key schedule of the equivalent inverse cipher (FIPS 197, section 5.3.5). */
CW_INLINE void aes128_decrypt(const u32 *keys, struct aes128_block *block)
{
	u32 a = (u32)block->lo ^ keys[0], b = (u32)(block->lo >> 32) ^ keys[1];
	u32 c = (u32)block->hi ^ keys[2], d = (u32)(block->hi >> 32) ^ keys[3];

	CW_NO_UNROLL
	for (u32 round = 1; round < AES128_ROUNDS; round++) {
		const u32 *k = keys + 4 * round;
		u32 e = aes128_column(aes128_td, a, d, c, b, k[0]);
		u32 f = aes128_column(aes128_td, b, a, d, c, k[1]);
		u32 g = aes128_column(aes128_td, c, b, a, d, k[2]);
		u32 h = aes128_column(aes128_td, d, c, b, a, k[3]);

		a = e;
		b = f;
		c = g;
		d = h;
	}
	keys += 4 * AES128_ROUNDS;
	block->lo = aes128_last(aes128_inverse_sbox, a, d, c, b, keys[0]) |
		    (u64)aes128_last(aes128_inverse_sbox, b, a, d, c, keys[1]) << 32;
	block->hi = aes128_last(aes128_inverse_sbox, c, b, a, d, keys[2]) |
		    (u64)aes128_last(aes128_inverse_sbox, d, c, b, a, keys[3]) << 32;
}

/* The key schedule of encryption (FIPS 197, section 5.2). */
CW_INLINE void aes128_expand(const u8 key[16], u32 keys[AES128_WORDS])
{
	u32 constant = 1;

	for (u32 i = 0; i < 4; i++)
		keys[i] = key[4 * i] | (u32)key[4 * i + 1] << 8 | (u32)key[4 * i + 2] << 16 |
			  (u32)key[4 * i + 3] << 24;
	for (u32 i = 4; i < AES128_WORDS; i++) {
		u32 t = keys[i - 1];

		if (i % 4 == 0) {
			t = AES128_ROTL(t, 24);
			t = aes128_last(aes128_sbox, t, t, t, t, constant);
			constant = constant << 1 ^ (constant >> 7) * 0x11b;
		}
		keys[i] = keys[i - 4] ^ t;
	}
}

/* That of aes128_decrypt: in reverse order, all but the first and the last mixed. */
CW_INLINE void aes128_expand_inverse(const u8 key[16], u32 keys[AES128_WORDS])
{
	u32 forward[AES128_WORDS];

	aes128_expand(key, forward);
	for (u32 i = 0; i < AES128_WORDS; i++) {
		u32 word = forward[AES128_WORDS - 4 - i / 4 * 4 + i % 4];

		if (i >= 4 && i < AES128_WORDS - 4)
			word = aes128_column(aes128_td, aes128_sbox[word & 0xff],
					     (u32)aes128_sbox[word >> 8 & 0xff] << 8,
					     (u32)aes128_sbox[word >> 16 & 0xff] << 16,
					     (u32)aes128_sbox[word >> 24] << 24, 0);
		keys[i] = word;
	}
}

#endif
