/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which VIP a packet belongs to. */
#ifndef CAUSEWAY_VIP_H
#define CAUSEWAY_VIP_H

#include "maps.h"
#include "parse.h"

/* The key of the packet's destination with no port and no protocol: its address. */
static __always_inline struct vip_key vip_address(const struct packet *pkt, const int family)
{
	struct vip_key key = {};

	if (family == IPV4) {
		key.addr[10] = key.addr[11] = 0xff;
		__builtin_memcpy(&key.addr[12], &pkt->key4.daddr_be, 4);
	} else {
		__builtin_memcpy(key.addr, pkt->key6.daddr_be, 16);
	}
	return key;
}

/* Whether any VIP has the packet's destination address. */
static __always_inline bool is_vip_address(const struct packet *pkt, const int family)
{
	struct vip_key key = vip_address(pkt, family);

	return bpf_map_lookup_elem(&vips, &key) != NULL;
}

/*
 * The packet's VIP: the one with its port, else the one with all ports; of a
 * fragment, the one that takes those to its address.
 */
static __always_inline struct vip *find_vip(const struct packet *pkt, const int family)
{
	struct vip_key key = vip_address(pkt, family);
	struct vip *vip;

	key.proto = family == IPV4 ? pkt->key4.proto : pkt->key6.proto;
	if (pkt->marks & PKT_FRAGMENT) {
		key.kind = VIP_OF_FRAGMENTS;
		return bpf_map_lookup_elem(&vips, &key);
	}
	key.port_be = family == IPV4 ? pkt->key4.dport_be : pkt->key6.dport_be;
	vip = bpf_map_lookup_elem(&vips, &key);
	if (vip)
		return vip;
	key.port_be = 0;
	return bpf_map_lookup_elem(&vips, &key);
}

#endif
