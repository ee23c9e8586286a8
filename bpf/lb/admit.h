/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Admission: the one place where a flow gets a real. Packets come here if neither a
 * token nor the flow table gives them one: those that open a flow, those of an unknown
 * flow, and those of a flow whose real is gone.
 */
#ifndef CAUSEWAY_LB_ADMIT_H
#define CAUSEWAY_LB_ADMIT_H

#include "conn_table.h"
#include "cookie.h"
#include "limit.h"
#include "syn_cache.h"
#include "vip.h"

/* Number of the first ring that is no VIP's; set by the loader. */
const volatile u32 cfg_source_rings = DEFAULT_VIPS;
/* Where the rings of configured weights begin. */
const volatile u32 cfg_plain_rings = DEFAULT_VIPS + SOURCE_GROUPS;
/* Where the rings of former owners begin. */
const volatile u32 cfg_former_rings = 2 * (DEFAULT_VIPS + SOURCE_GROUPS);

/*
 * The same of addresses and protocol alone: of a packet and of its fragments. Seldom asked
 * for, and so verified once each; the copies of the keys lie on no other function's stack.
 */
CW_GLOBAL u64 address_hash4(const struct packet *pkt)
{
	struct ctl *control = get_ctl();
	struct flow_key4 key;

	if (!pkt || !control)
		return 0;
	key = pkt->key4;
	key.sport_be = key.dport_be = 0;
	return siphash24((const u64 *)&key, sizeof(key) / 8, control->hash_key);
}

CW_GLOBAL u64 address_hash6(const struct packet *pkt)
{
	struct ctl *control = get_ctl();
	struct flow_key6 key;

	if (!pkt || !control)
		return 0;
	key = pkt->key6;
	key.sport_be = key.dport_be = 0;
	return siphash24((const u64 *)&key, sizeof(key) / 8, control->hash_key);
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
 * its size. 0: the VIP's own. `is_plain`: that of configured weights, if there is one.
 */
static __always_inline u64
source_ring(const struct packet *pkt, const int family, const struct vip *vip, bool is_plain)
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
	if (is_plain && found->plain_size)
		return (u64)(cfg_plain_rings + cfg_source_rings + number) << 32 | found->plain_size;
	return (u64)(cfg_source_rings + number) << 32 | found->ring_size;
}

/* Seldom asked for, and so verified once each. */
CW_GLOBAL u64 source_ring4(const struct packet *pkt, const struct vip *vip, u32 is_plain)
{
	return pkt && vip ? source_ring(pkt, IPV4, vip, is_plain) : 0;
}

CW_GLOBAL u64 source_ring6(const struct packet *pkt, const struct vip *vip, u32 is_plain)
{
	return pkt && vip ? source_ring(pkt, IPV6, vip, is_plain) : 0;
}

/*
 * The id of the real for this flow; false if there is none. Only the first packet
 * of a flow goes by the VIP's scheduler. What comes without a memory of one goes by
 * its hash, in a ring that all balancers have alike: then all its packets meet the same
 * real, whichever balancer forwards them. `hash` is the flow's, or 0
 * if it is not known yet.
 */
static __always_inline MUST_USE bool
pick_real(const struct packet *pkt, const int family, const struct vip *vip, bool is_first, u64 hash, u32 *real_id)
{
	u32 key, size, pick;
	struct ctl *control;
	u64 turn = 0, own = 0;
	void *ring;

	/* First of all: little is to be kept on the stack for this call. */
	if (vip->flags & VIP_SOURCES)
		own = family == IPV4 ? source_ring4(pkt, vip, !is_first) : source_ring6(pkt, vip, !is_first);
	key = vip->id;
	size = vip->ring_size;
	if (own) {
		key = own >> 32;
		size = (u32)own;
	} else if (!is_first && vip->plain_size) {
		key += cfg_plain_rings;
		size = vip->plain_size;
	}
	pick = is_first ? vip->pick : PICK_HASH;
	control = get_ctl();
	if (!control || !size)
		return false;
	ring = bpf_map_lookup_elem(&rings, &key);
	if (!ring)
		return false;
	if (pick == PICK_TURN) {
		struct turns *of_vip;

		key = vip->id;
		of_vip = bpf_map_lookup_elem(&turns, &key);
		/* Each turn is given out once, so that shares are exact. */
		if (of_vip)
			turn = cfg_dry ? of_vip->taken : __sync_fetch_and_add(&of_vip->taken, 1);
		return read_slot(ring, (u32)(turn % size), real_id);
	}
	if (vip->flags & VIP_PICK_BY_ADDRESS)
		hash = family == IPV4 ? address_hash4(pkt) : address_hash6(pkt);
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

/*
 * Who had the slot of the packet's hash before the real that has it now, as a route's
 * token; 0: no other real. Balancers and pool may have changed together, and then the
 * former owner has the connection. A SYN opens one where it goes, and of a datagram a
 * server cannot tell whether it knows the flow.
 */
static __always_inline u32 former_owner(const struct packet *pkt, const int family, u32 real_id)
{
	struct ctl *control = get_ctl();
	u32 key, former, version, size, flags;
	volatile struct vip *vip;
	void *ring;
	u64 hash;

	if (!control || !is_tcp(pkt) || !is_own(pkt, family) || is_syn(pkt) || pkt->marks & PKT_FRAGMENT)
		return 0;
	/* As long as the version is the same the entry is no other VIP's. */
	version = *(volatile u32 *)&control->vips_version;
	vip = find_vip(pkt, family);
	if (!vip)
		return 0;
	key = cfg_former_rings + vip->id;
	size = vip->former_size;
	flags = vip->flags;
	if (!size || version != *(volatile u32 *)&control->vips_version)
		return 0;
	ring = bpf_map_lookup_elem(&rings, &key);
	if (!ring)
		return 0;
	if (flags & VIP_PICK_BY_ADDRESS)
		hash = family == IPV4 ? address_hash4(pkt) : address_hash6(pkt);
	else
		hash = flow_hash(pkt, family, control);
	if (!read_slot(ring, (u32)(hash % size), &former) || former == real_id)
		return 0;
	return ROUTE_HAS_FORMER | former;
}

/* Seldom asked for, and so verified once each. */
CW_GLOBAL u32 former_owner4(const struct packet *pkt, u32 real_id)
{
	return pkt ? former_owner(pkt, IPV4, real_id) : 0;
}

CW_GLOBAL u32 former_owner6(const struct packet *pkt, u32 real_id)
{
	return pkt ? former_owner(pkt, IPV6, real_id) : 0;
}

/*
 * Whether the VIP's scheduler picks for what opens a flow; else its hash does. A client
 * without timestamps gets no cookie, so on a VIP with cookies it goes by what every
 * balancer with this pool agrees on.
 */
static __always_inline bool is_scheduled(const struct packet *pkt, const struct vip *vip)
{
	return vip->cookie.mode == COOKIE_NONE || !is_tcp(pkt) || pkt->est.has_ts;
}

/*
 * Whether a new connection on a known tuple stays on the flow's real. A SYN is
 * easily forged: as long as the client has not ended the connection before, one
 * with another sequence number must not take that to another server. The new
 * connection is served there as well as elsewhere. A drained real may so get one
 * more connection; that takes a client that reuses a port without FIN or RST, and
 * is the smaller evil: connections on a drained real want protection too. A real that
 * is down has none to protect.
 */
static __always_inline bool keeps_real(const struct packet *pkt, const struct flow *flow, const struct vip *vip)
{
	struct real *real;

	if (!is_syn(pkt) || flow->bits & FLOW_CLOSED || flow->vip != vip->id)
		return false;
	real = flow_real(flow);
	return real && !(real->flags & REAL_DOWN);
}

/*
 * Whether the tuple of a flow that has ended was opened again by a SYN that the cache alone knows:
 * then that has the real. Of a connection that is open the flow holds, as a SYN is easily forged;
 * and where the cache knows an earlier SYN than the flow does: the packet's sequence number
 * tells behind which of the two it comes.
 */
static __always_inline bool
was_opened_anew(const struct packet *pkt, const int family, const struct vip *vip, const struct flow *flow,
		struct route *route)
{
	struct syn_cache_bucket *bucket;
	struct ctl *control = get_ctl();
	u32 real_id, isn;
	u64 hash;

	if (!control || !is_own(pkt, family) || is_syn(pkt) || !uses_syn_cache(pkt, vip))
		return false;
	hash = flow_hash(pkt, family, control);
	bucket = syn_cache_bucket(hash);
	if (!bucket || !find_entry(bucket, hash, &real_id, &isn) || real_id == flow->real)
		return false;
	if (pkt->est.seq - isn >= pkt->est.seq - flow->isn)
		return false;
	route->real_id = real_id;
	route->vip_id = vip->id;
	route->verdict = sent_as(pkt, family, V_ESTABLISHED);
	route->keep = !is_closing(pkt) && !(vip->flags & VIP_FORGET);
	count_cookie(vip, CR_SYN_CACHE);
	return true;
}

/* Seldom asked for, and so verified once each. */
CW_GLOBAL int was_opened_anew4(const struct packet *pkt, const struct vip *vip, const struct flow *flow,
			       struct route *route)
{
	return pkt && vip && flow && route && was_opened_anew(pkt, IPV4, vip, flow, route);
}

CW_GLOBAL int was_opened_anew6(const struct packet *pkt, const struct vip *vip, const struct flow *flow,
			       struct route *route)
{
	return pkt && vip && flow && route && was_opened_anew(pkt, IPV6, vip, flow, route);
}

/* Whether the packet may open a flow: such a one is limited, scheduled, and adds to the load. */
static __always_inline bool
may_open(const struct packet *pkt, const int family, const struct vip *vip, enum cookie_result found)
{
	return vip->cookie.mode == COOKIE_QUIC ? found == CR_CID_NEW : is_first(pkt, family);
}

/* What is counted of an admitted packet to a VIP with cookies. */
static __always_inline enum cookie_result admitted_as(const struct packet *pkt, bool lasting, enum cookie_result found)
{
	if (found == CR_CID_NEW || found == CR_CID_OTHER || found == CR_TIER_OTHER)
		return found;
	if (is_syn(pkt))
		return pkt->est.has_ts ? CR_SYN : CR_PLAIN;
	return lasting ? CR_PLAIN : CR_GUESSED;
}

/* Whether the table is to know a SYN that gets a cookie: if its connection is measured. */
static __always_inline bool
is_kept_syn(const struct packet *pkt, const struct vip *vip, const struct route *route)
{
	struct real *real = find_real(route->real_id);

	return is_kept(vip) && real && is_sampled(pkt, real->sampling.opening);
}

/* The packet goes nowhere, for a reason that its token has given. */
static __always_inline bool
refuse(const struct vip *vip, struct route *route, enum verdict verdict, enum cookie_result result)
{
	route->verdict = verdict;
	count_cookie(vip, result);
	return false;
}

/*
 * Sets the route of a packet that nothing leads to a real; false if it is to go to none,
 * and the verdict says why. `found` is what its token said, `flow` what the table has of
 * its tuple: a flow whose real is gone, or an earlier connection. Each rule for new flows
 * stands here, and nowhere else.
 *
 * What ends a connection or only quotes one is not remembered: it would evict live
 * flows. A VIP that forgets has no flows at all.
 */
static __always_inline bool
admit(const struct packet *pkt, const int family, const struct vip *vip, enum cookie_result found,
      const struct flow *flow, struct route *route)
{
	bool own = is_own(pkt, family), lasting = own && !is_closing(pkt);
	bool opens = may_open(pkt, family, vip, found), cached = uses_syn_cache(pkt, vip);
	bool scheduled = opens && is_scheduled(pkt, vip);
	struct ctl *control = get_ctl();
	u64 hash;

	route->vip_id = vip->id;
	route->verdict = V_NO_REAL;
	if (!control)
		return false;
	hash = cached ? flow_hash(pkt, family, control) : 0;
	if (cached && find_cached_syn(pkt, family, vip, hash, route)) {
		route->keep = lasting && !is_syn(pkt) && !(vip->flags & VIP_FORGET);
		return true;
	}
	/* Not before: one timestamp in 32 of a server that writes no cookies looks like one. */
	if (found == CR_UNKNOWN)
		return refuse(vip, route, V_COOKIE_UNKNOWN, CR_UNKNOWN);
	if (found == CR_FORGED && own && !(vip->flags & VIP_STATEFUL))
		return refuse(vip, route, V_COOKIE_FORGED, CR_FORGED);
	route->verdict = V_RATE_LIMITED;
	if (opens && is_refused(pkt, family, vip))
		return false;
	route->verdict = V_NO_REAL;
	if (flow && keeps_real(pkt, flow, vip))
		route->real_id = flow->real;
	else if (!(family == IPV4 ? pick4(pkt, vip, scheduled, hash, &route->real_id)
				  : pick6(pkt, vip, scheduled, hash, &route->real_id)))
		return false;
	if (vip->former_size && !is_syn(pkt))
		route->token = family == IPV4 ? former_owner4(pkt, route->real_id) : former_owner6(pkt, route->real_id);
	if (is_syn(pkt))
		route->verdict = V_OPENED;
	else
		route->verdict = sent_as(pkt, family, flow ? V_MOVED : is_tcp(pkt) ? V_ADOPTED : V_FIRST_DATAGRAM);
	if (opens && vip->flags & VIP_COUNT_LOAD)
		raise_load(route->real_id);
	if (cfg_conn_partitions && vip->flags & VIP_STATEFUL && is_syn(pkt))
		open_conn(pkt, family, route);
	route->keep = lasting && !(vip->flags & VIP_FORGET);
	/* What the table has of the tuple is renewed, or it would count for the new connection. */
	if (cached && is_syn(pkt) && !flow && !is_kept_syn(pkt, vip, route)) {
		route->keep = false;
		cache_syn(hash, pkt->est.seq, route->real_id);
	}
	if (vip->cookie.mode != COOKIE_NONE)
		count_cookie(vip, admitted_as(pkt, lasting, found));
	return true;
}

/* Seldom needed, and so verified once for each family. */
CW_GLOBAL int admit4(const struct packet *pkt, const struct vip *vip, u32 found, const struct flow *flow,
		     struct route *route)
{
	return pkt && vip && route && admit(pkt, IPV4, vip, found, flow, route);
}

CW_GLOBAL int admit6(const struct packet *pkt, const struct vip *vip, u32 found, const struct flow *flow,
		     struct route *route)
{
	return pkt && vip && route && admit(pkt, IPV6, vip, found, flow, route);
}

#endif
