/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What headers in front of a packet are written with: Ethernet with the packet's VLAN
 * tags, and Internet checksums (RFC 1071). Those are plain arithmetic: a helper call costs
 * more than the twenty bytes do. Words are summed in network byte order.
 */
#ifndef CAUSEWAY_PACKET_WRITE_H
#define CAUSEWAY_PACKET_WRITE_H

#include "parse.h"

#define MAX_L2_LEN (ETH_HLEN + 4 * MAX_VLAN_TAGS)

/* By words: the compiler would take bytes, not knowing that both are even. */
static __always_inline void copy_mac(void *to, const void *from)
{
	const u16 *source = from;
	u16 *dest = to;

	dest[0] = source[0];
	dest[1] = source[1];
	dest[2] = source[2];
}

struct macs {
	u8 dest[ETH_ALEN];
	u8 source[ETH_ALEN];
} __attribute__((aligned(4)));

/* The frame's addresses as it came; false only if it is no frame. */
static __always_inline MUST_USE bool read_macs(struct xdp_md *ctx, struct macs *macs)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + sizeof(struct ethhdr) > end)
		return false;
	__builtin_memcpy(macs, data, sizeof(*macs));
	return true;
}

/*
 * Addresses, the packet's tags, the type; false if the packet is too short, which
 * the callers have excluded and the verifier has not.
 */
static __always_inline MUST_USE bool
write_link(void *data, void *end, const struct packet *pkt, const u8 *dest, const u8 *source,
	   u16 ethertype_be)
{
	if (data + MAX_L2_LEN > end)
		return false;
	copy_mac(data, dest);
	copy_mac(data + ETH_ALEN, source);
	if (pkt->l2_len == ETH_HLEN) {
		*(u16 *)(data + 12) = ethertype_be;
		return true;
	}
	*(u32 *)(data + 12) = pkt->tag_be[0];
	if (pkt->l2_len == ETH_HLEN + 4) {
		*(u16 *)(data + 16) = ethertype_be;
		return true;
	}
	*(u32 *)(data + 16) = pkt->tag_be[1];
	*(u16 *)(data + 20) = ethertype_be;
	return true;
}

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
