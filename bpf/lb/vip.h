/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which VIP a packet belongs to. */
#ifndef CAUSEWAY_LB_VIP_H
#define CAUSEWAY_LB_VIP_H

#include "../packet/parse.h"
#include "maps.h"

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
 * What becomes of a packet that is for no VIP. The kernel gets it, but not if it is for a
 * VIP's address: a host that forwards would send it to the router, which would send it
 * back, until its TTL is used up.
 */
static __always_inline enum verdict unserved(const struct packet *pkt, const int family)
{
	struct ctl *control = get_ctl();
	bool passes = control && control->pass_unserved;

	return !passes && is_vip_address(pkt, family) ? V_NOT_SERVED : V_NOT_VIP;
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

struct vip_tuple {
	u64 part[3];
};

/* All that find_vip goes by. */
static __always_inline struct vip_tuple vip_tuple(const struct packet *pkt, const int family)
{
	u64 kind = family | (pkt->marks & PKT_FRAGMENT ? 0x80 : 0);

	if (family == IPV4)
		return (struct vip_tuple){ {
			kind << 56 | (u64)pkt->key4.proto << 48 | (u64)pkt->key4.dport_be << 32 | pkt->key4.daddr_be,
		} };
	return (struct vip_tuple){ {
		kind << 56 | (u64)pkt->key6.proto << 48 | (u64)pkt->key6.dport_be << 32,
		(u64)pkt->key6.daddr_be[0] << 32 | pkt->key6.daddr_be[1],
		(u64)pkt->key6.daddr_be[2] << 32 | pkt->key6.daddr_be[3],
	} };
}

/* Looks the packet's VIP up and has this CPU remember it; 0 if there is none. */
static __always_inline int learn_vip(const struct packet *pkt, const int family, u32 index)
{
	struct vip_seen *seen = bpf_map_lookup_elem(&vips_seen, &index);
	struct vip_tuple tuple = vip_tuple(pkt, family);
	struct ctl *control = get_ctl();
	struct vip *vip;
	u32 stamp, fills;

	if (!seen || !control)
		return 0;
	stamp = *(volatile u32 *)&control->vips_version + 1;
	/* The version is read before the VIP: a barrier, if what it gives is asked for. */
	fills = __sync_fetch_and_add(&seen->fills, 1);
	asm volatile("" : : "r"(fills) : "memory");
	vip = find_vip(pkt, family);
	if (!vip)
		return 0;
	seen->vip = *vip;
	__builtin_memcpy(seen->tuple, tuple.part, sizeof(seen->tuple));
	seen->stamp = stamp;
	return 1;
}

CW_GLOBAL int learn_vip4(const struct packet *pkt, u32 index)
{
	return pkt ? learn_vip(pkt, IPV4, index) : 0;
}

CW_GLOBAL int learn_vip6(const struct packet *pkt, u32 index)
{
	return pkt ? learn_vip(pkt, IPV6, index) : 0;
}

/* As find_vip; the copy of a VIP that this CPU has met is good until the VIPs change. */
static __always_inline struct vip *known_vip(const struct packet *pkt, const int family, const struct ctl *control)
{
	struct vip_tuple tuple = vip_tuple(pkt, family);
	u64 mixed = (tuple.part[0] ^ tuple.part[1] ^ tuple.part[2]) * 0x9e3779b97f4a7c15ull;
	u32 index = mixed >> 56;
	struct vip_seen *seen;
	u64 differ;

	_Static_assert(VIPS_SEEN == 256, "eight bits of the hash");
	if (cfg_dry)
		return find_vip(pkt, family);
	seen = bpf_map_lookup_elem(&vips_seen, &index);
	if (!seen)
		return NULL;
	differ = (tuple.part[0] ^ seen->tuple[0]) | (tuple.part[1] ^ seen->tuple[1]) |
		 (tuple.part[2] ^ seen->tuple[2]) | (seen->stamp ^ (control->vips_version + 1));
	if (differ && !(family == IPV4 ? learn_vip4(pkt, index) : learn_vip6(pkt, index)))
		return NULL;
	return &seen->vip;
}

#endif
