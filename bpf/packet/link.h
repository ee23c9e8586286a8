/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Ethernet headers with the packet's VLAN tags, written anew in front of a packet. */
#ifndef CAUSEWAY_LINK_H
#define CAUSEWAY_LINK_H

#include "parse.h"

#define MAX_L2_LEN (ETH_HLEN + 4 * MAX_VLAN_TAGS)

static __always_inline void copy_mac(void *to, const void *from)
{
	__builtin_memcpy(to, from, ETH_ALEN);
}

struct macs {
	u8 dest[ETH_ALEN];
	u8 source[ETH_ALEN];
};

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

#endif
