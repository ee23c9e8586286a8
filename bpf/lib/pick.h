/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Reals, their load, and the pick of one from a VIP's ring. */
#ifndef CAUSEWAY_PICK_H
#define CAUSEWAY_PICK_H

#include "maps.h"
#include "parse.h"
#include "../shared/siphash.h"

/* Number of the first ring that is no VIP's; set by the loader. */
const volatile u32 cfg_source_rings = DEFAULT_VIPS;

/* The hash of a flow's key that indexes rings; the same on every balancer with this key. */
static __always_inline u64 flow_hash(const struct packet *pkt, const int family, const struct ctl *control)
{
	if (family == IPV4)
		return siphash24((const u64 *)&pkt->key4, sizeof(pkt->key4) / 8, control->hash_key);
	return siphash24((const u64 *)&pkt->key6, sizeof(pkt->key6) / 8, control->hash_key);
}

/* The same of addresses and protocol alone: of a packet and of its fragments. */
static __always_inline u64 address_hash(const struct packet *pkt, const int family, const struct ctl *control)
{
	if (family == IPV4) {
		struct flow_key4 key = pkt->key4;

		key.sport_be = key.dport_be = 0;
		return siphash24((const u64 *)&key, sizeof(key) / 8, control->hash_key);
	} else {
		struct flow_key6 key = pkt->key6;

		key.sport_be = key.dport_be = 0;
		return siphash24((const u64 *)&key, sizeof(key) / 8, control->hash_key);
	}
}

/* The real's id in a slot of a ring; false if the slot or the real is not there. */
static __always_inline MUST_USE bool read_slot(void *ring, u32 index, u32 *real_id)
{
	u32 *slot = bpf_map_lookup_elem(ring, &index);

	if (!slot || !find_real(*slot))
		return false;
	*real_id = *slot;
	return true;
}

/* The number of this turn: each is given out once, so that shares are exact. */
static __always_inline u64 take_turn(const struct vip *vip)
{
	u32 vip_id = vip->id;
	struct turns *of_vip = bpf_map_lookup_elem(&turns, &vip_id);

	if (cfg_dry)
		return of_vip ? of_vip->taken : 0;
	return of_vip ? __sync_fetch_and_add(&of_vip->taken, 1) : 0;
}

/* A new flow has gone to the real, or one has ended. */
static __always_inline void raise_load(u32 real_id)
{
	struct real_load *load = bpf_map_lookup_elem(&real_loads, &real_id);

	if (load && !cfg_dry)
		__sync_fetch_and_add(&load->load, (s64)load->rise);
}

static __always_inline void lower_load(u32 real_id)
{
	struct real_load *load = bpf_map_lookup_elem(&real_loads, &real_id);

	if (load && load->fall && !cfg_dry)
		__sync_fetch_and_add(&load->load, -(s64)load->fall);
}

/*
 * Whether `a`, with one more flow, would carry no more for its weight than `b`:
 * load / weight, multiplied out.
 */
static __always_inline bool is_no_busier(u32 a, u32 b)
{
	struct real_load *of_a = bpf_map_lookup_elem(&real_loads, &a);
	struct real_load *of_b = bpf_map_lookup_elem(&real_loads, &b);

	if (!of_a || !of_b)
		return true;
	return (of_a->load + of_a->rise) * (s64)(of_b->weight ?: 1) <=
	       (of_b->load + of_b->rise) * (s64)(of_a->weight ?: 1);
}

/*
 * Power of two choices (Mitzenmacher 2001). Both slots come from the flow's hash,
 * which is keyed: no call for random numbers, and no client can foresee them.
 */
static __always_inline MUST_USE bool pick_of_two(void *ring, u32 size, u64 hash, u32 *real_id)
{
	u32 first = (u32)hash % size, second = size > 1 ? (u32)(hash >> 32) % (size - 1) : 0, other;

	if (size > 1 && second >= first)
		second += 1; /* another slot, all of them alike */
	if (!read_slot(ring, first, real_id))
		return read_slot(ring, second, real_id);
	if (read_slot(ring, second, &other) && !is_no_busier(*real_id, other))
		*real_id = other;
	return true;
}

/*
 * The ring of the packet's client, if the VIP has one for its prefix: its number << 32 |
 * its size. 0: the VIP's own.
 */
static __always_inline u64 source_ring(const struct packet *pkt, const int family, const struct vip *vip)
{
	struct source_key key = { .length = 32 + 128, .vip = vip->id };
	struct source_group *found;
	u32 *group, number;
	u64 *picks;

	if (family == IPV4) {
		key.addr[10] = key.addr[11] = 0xff;
		__builtin_memcpy(&key.addr[12], &pkt->key4.saddr_be, 4);
	} else {
		__builtin_memcpy(key.addr, pkt->key6.saddr_be, 16);
	}
	group = bpf_map_lookup_elem(&sources, &key);
	if (!group)
		return 0;
	number = *group;
	found = bpf_map_lookup_elem(&source_groups, &number);
	if (!found || (!found->ring_size && !found->strict))
		return 0;
	picks = bpf_map_lookup_elem(&source_picks, &number);
	if (picks && !cfg_dry)
		*picks += 1;
	return (u64)(cfg_source_rings + number) << 32 | found->ring_size;
}

/* Seldom asked for, and so verified once each. */
CW_GLOBAL u64 source_ring4(const struct packet *pkt, const struct vip *vip)
{
	return pkt && vip ? source_ring(pkt, IPV4, vip) : 0;
}

CW_GLOBAL u64 source_ring6(const struct packet *pkt, const struct vip *vip)
{
	return pkt && vip ? source_ring(pkt, IPV6, vip) : 0;
}

/*
 * The id of the real for this flow; false if there is none. Only the first packet
 * of a flow goes by the VIP's scheduler. What comes without a memory of one goes by
 * its hash: then at least all its packets meet the same real. `hash` is the flow's, or 0
 * if it is not known yet.
 */
static __always_inline MUST_USE bool
pick_real(const struct packet *pkt, const int family, const struct vip *vip, bool is_first, u64 hash, u32 *real_id)
{
	u32 ring_id = vip->id, size = vip->ring_size, pick = is_first ? vip->pick : PICK_HASH;
	struct ctl *control = get_ctl();
	void *ring;

	if (vip->flags & VIP_SOURCES) {
		u64 own = family == IPV4 ? source_ring4(pkt, vip) : source_ring6(pkt, vip);

		if (own) {
			ring_id = own >> 32;
			size = (u32)own;
		}
	}
	if (!control || !size)
		return false;
	ring = bpf_map_lookup_elem(&rings, &ring_id);
	if (!ring)
		return false;
	if (pick == PICK_TURN)
		return read_slot(ring, (u32)(take_turn(vip) % size), real_id);
	if (vip->flags & VIP_PICK_BY_ADDRESS)
		hash = address_hash(pkt, family, control);
	else if (!hash)
		hash = flow_hash(pkt, family, control);
	if (pick == PICK_TWO)
		return pick_of_two(ring, size, hash, real_id);
	return read_slot(ring, (u32)(hash % size), real_id);
}

/* Needed behind each of several ways, and so verified once each. */
CW_GLOBAL int pick4(const struct packet *pkt, const struct vip *vip, u32 is_first, u64 hash, u32 *real_id)
{
	return pkt && vip && real_id && pick_real(pkt, IPV4, vip, is_first, hash, real_id);
}

CW_GLOBAL int pick6(const struct packet *pkt, const struct vip *vip, u32 is_first, u64 hash, u32 *real_id)
{
	return pkt && vip && real_id && pick_real(pkt, IPV6, vip, is_first, hash, real_id);
}

#endif
