/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Reals, and the pick of one by a VIP's ring. */
#ifndef CAUSEWAY_PICK_H
#define CAUSEWAY_PICK_H

#include "maps.h"
#include "parse.h"
#include "../shared/siphash.h"

static __always_inline struct ctl *get_ctl(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&ctl, &zero);
}

/* The real with this id, if its slot is in use. */
static __always_inline struct real *find_real(u32 id)
{
	struct real *real = bpf_map_lookup_elem(&reals, &id);

	return real && real->flags & REAL_PRESENT ? real : NULL;
}

/* The hash of a flow's key that indexes rings; the same on every balancer with this key. */
static __always_inline u64 flow_hash(const struct packet *pkt, const int family, const struct ctl *control)
{
	if (family == IPV4)
		return siphash24((const u64 *)&pkt->key4, sizeof(pkt->key4) / 8, control->hash_key);
	return siphash24((const u64 *)&pkt->key6, sizeof(pkt->key6) / 8, control->hash_key);
}

/* The id of the real that the VIP's ring has for this flow; false if there is none. */
static __always_inline MUST_USE bool
pick_real(const struct packet *pkt, const int family, const struct vip *vip, u32 *real_id)
{
	struct ctl *control = get_ctl();
	u32 vip_id = vip->id, size = vip->ring_size, index, *slot;
	void *ring;

	if (!control || !size)
		return false;
	ring = bpf_map_lookup_elem(&rings, &vip_id);
	if (!ring)
		return false;
	index = flow_hash(pkt, family, control) % size;
	slot = bpf_map_lookup_elem(ring, &index);
	if (!slot || !find_real(*slot))
		return false;
	*real_id = *slot;
	return true;
}

#endif
