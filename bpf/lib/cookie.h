/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Cookies at the balancer. The echo of a server's timestamp names the server, so a
 * packet of an established connection needs no table that grows with the number of
 * connections: VIP, hash, id, real. What has no cookie is the slow half's.
 */
#ifndef CAUSEWAY_LB_COOKIE_H
#define CAUSEWAY_LB_COOKIE_H

#include "flow.h"
#include "limit.h"
#include "tcp_options.h"
#include "../shared/cookie.h"

/* Whether any VIP of the packet's protocol has cookies. */
static __always_inline bool may_have_cookies(const struct packet *pkt, const int family, const struct ctl *control)
{
	u8 proto = family == IPV4 ? pkt->key4.proto : pkt->key6.proto;

	return control->cookies & (proto == IPPROTO_TCP ? COOKIES_TCP : COOKIES_UDP);
}

/* The packet's VIP if its connections have cookies, else NULL. */
static __always_inline struct vip *cookie_vip(const struct packet *pkt, const int family)
{
	struct ctl *control = get_ctl();
	struct vip *vip;

	if (!control || !may_have_cookies(pkt, family, control))
		return NULL;
	vip = known_vip(pkt, family, control);
	return vip && vip->cookie.mode != COOKIE_NONE ? vip : NULL;
}

static __always_inline void count_cookie(const struct vip *vip, enum cookie_result result)
{
	u32 vip_id = vip->id;
	struct cookie_counts *counts = bpf_map_lookup_elem(&cookie_counts, &vip_id);

	if (!cfg_dry && counts && result < CR_COUNT)
		counts->packets[result] += 1;
}

static __always_inline u64
cookie_hash(const struct packet *pkt, const int family, const struct cookie_keys *keys, u32 epoch)
{
	const u64 *key = keys->key[epoch & 1];

	if (family == IPV4)
		return siphash24((const u64 *)&pkt->key4, sizeof(pkt->key4) / 8, key);
	return siphash24((const u64 *)&pkt->key6, sizeof(pkt->key6) / 8, key);
}

/*
 * A first tier: the second-tier balancer whose number heads the word in the timestamp.
 * What is no word, a cookie for one, leads to any of them, and each knows what to do.
 */
static __always_inline MUST_USE enum cookie_result
read_tier(const struct packet *pkt, const struct vip *vip, u32 *real_id)
{
	u32 index = vip->cookie_base + (cookie_tier(pkt->est.tsecr, &vip->cookie) & (COOKIE_IDS - 1));
	struct cookie_slot *slot = bpf_map_lookup_elem(&cookie_slots, &index);

	if (!slot || !slot->real || !find_real(slot->real - 1))
		return CR_TIER_OTHER;
	*real_id = slot->real - 1;
	return CR_TIER;
}

/*
 * The real that the packet's timestamp names: CR_EPOCH0 or CR_EPOCH1, else CR_FORGED
 * or CR_UNKNOWN.
 */
static __always_inline MUST_USE enum cookie_result
read_cookie(const struct packet *pkt, const int family, const struct vip *vip, u32 *real_id)
{
	u32 zero = 0, cookie = cookie_in(pkt->est.tsecr, &vip->cookie);
	u32 epoch = cookie_epoch(cookie, &vip->cookie), id, index;
	struct cookie_keys *keys = bpf_map_lookup_elem(&cookie_keys, &zero);
	struct cookie_slot *slot;

	if (!keys || !(keys->present >> epoch & 1))
		return CR_FORGED;
	id = cookie_decode(cookie_hash(pkt, family, keys, epoch), cookie, &vip->cookie);
	if (id == COOKIE_FORGED)
		return CR_FORGED;
	index = vip->cookie_base + (id & (COOKIE_IDS - 1));
	slot = bpf_map_lookup_elem(&cookie_slots, &index);
	if (!slot || !slot->real || !find_real(slot->real - 1))
		return CR_UNKNOWN;
	*real_id = slot->real - 1;
	return epoch ? CR_EPOCH1 : CR_EPOCH0;
}

static __always_inline struct soft_bucket *soft_bucket(u64 hash)
{
	u32 index = (u32)hash & (SOFT_BUCKETS - 1);

	return bpf_map_lookup_elem(&soft_flows, &index);
}

static __always_inline bool is_soft_of(const struct soft_entry *entry, u64 hash)
{
	return entry->syn >> 32 == hash >> 32 && entry->where >> 32 == (u32)hash;
}

/* The entry of the tuple with this hash; false without one, or if its real is gone. */
static __always_inline MUST_USE bool
find_soft(struct soft_bucket *bucket, u64 hash, u32 *real_id, u32 *isn)
{
#pragma unroll
	for (u32 i = 0; i < SOFT_WAYS; i++) {
		struct soft_entry *entry = &bucket->entry[i];
		u32 real = (u32)entry->where;

		if (!real || !is_soft_of(entry, hash) || !find_real(real - 1))
			continue;
		*real_id = real - 1;
		*isn = (u32)entry->syn;
		return true;
	}
	return false;
}

/* In the tuple's own entry, else in a free one, else in any. */
static __always_inline void
store_soft(struct soft_bucket *bucket, u64 hash, u32 real_id, u32 isn)
{
	struct soft_entry *entry = &bucket->entry[CW_MASKED(isn ^ (u32)(hash >> 32), SOFT_WAYS - 1)];

	if (cfg_dry)
		return;
#pragma unroll
	for (u32 i = 0; i < SOFT_WAYS; i++) {
		if (!bucket->entry[i].where)
			entry = &bucket->entry[i];
	}
#pragma unroll
	for (u32 i = 0; i < SOFT_WAYS; i++) {
		if (is_soft_of(&bucket->entry[i], hash))
			entry = &bucket->entry[i];
	}
	entry->where = 0;
	entry->syn = hash >> 32 << 32 | isn;
	entry->where = hash << 32 | (real_id + 1);
}

/*
 * A SYN of a client with timestamps: by the VIP's scheduler, whatever that is. The
 * server's answer carries the cookie, so nothing need be remembered. The soft entry
 * spares a second server from a SYN that is sent again.
 */
static __always_inline struct route
open_with_cookie(const struct packet *pkt, const int family, const struct vip *vip)
{
	struct route route = { .vip_id = vip->id, .verdict = V_NO_REAL };
	struct ctl *control = get_ctl();
	struct soft_bucket *bucket;
	u32 isn;
	u64 hash;

	if (!control)
		return route;
	hash = flow_hash(pkt, family, control);
	bucket = soft_bucket(hash);
	if (bucket && find_soft(bucket, hash, &route.real_id, &isn) && isn == pkt->est.seq) {
		route.verdict = V_SYN_AGAIN;
		count_cookie(vip, CR_SYN_AGAIN);
		return route;
	}
	if (is_refused(pkt, family, vip)) {
		route.verdict = V_RATE_LIMITED;
		return route;
	}
	if (!pick_real(pkt, family, vip, true, &route.real_id))
		return route;
	if (bucket)
		store_soft(bucket, hash, route.real_id, pkt->est.seq);
	if (vip->flags & VIP_COUNT_LOAD)
		raise_load(route.real_id);
	route.verdict = V_OPENED;
	count_cookie(vip, CR_SYN);
	return route;
}

/* Where the SYN of the packet's connection went, if that is known still. */
static __always_inline MUST_USE bool soft_real(const struct packet *pkt, const int family, u32 *real_id)
{
	struct ctl *control = get_ctl();
	struct soft_bucket *bucket;
	u32 isn;
	u64 hash;

	if (!control)
		return false;
	hash = flow_hash(pkt, family, control);
	bucket = soft_bucket(hash);
	return bucket && find_soft(bucket, hash, real_id, &isn);
}

/* The packet's flow, and its place for the caller of the slow part. */
static __always_inline struct flow *
find_placed_flow(const struct packet *pkt, const int family, struct route *route)
{
	struct ctl *control = get_ctl();
	struct entry entry;

	if (!control)
		return NULL;
	entry = find_entry(pkt, family, control->table_seed);
	if (!entry.flow || has_expired(&entry, pkt, family))
		return NULL;
	judge(&entry, pkt, family);
	if (!is_still(&entry))
		return NULL;
	route->place = entry.index + 1;
	return entry.flow;
}

/*
 * A packet that is no SYN and has no valid cookie. The flow table knows clients
 * without timestamps, and connections that are older than the VIP's cookies. A soft
 * entry knows those whose server writes no cookies; from here on the table does.
 * `found` is CR_FORGED for a packet with timestamps, CR_PLAIN for one without. Stateful
 * VIPs have words in the place of cookies, and one may outlive its place. A first tier
 * says CR_TIER_OTHER.
 */
static __always_inline struct route
admit_without_cookie(const struct packet *pkt, const int family, const struct vip *vip,
		     enum cookie_result found)
{
	struct route route = { .vip_id = vip->id, .verdict = V_ESTABLISHED };
	bool own = is_own(pkt, family), lasting = own && !is_closing(pkt);
	struct flow *flow = find_placed_flow(pkt, family, &route);

	if (!own)
		route.verdict = V_ICMP_ERROR;
	if (flow && flow_real(flow)) {
		route.real_id = flow->real;
		count_cookie(vip, found == CR_PLAIN ? CR_PLAIN : CR_TABLE);
		return route;
	}
	if (soft_real(pkt, family, &route.real_id)) {
		count_cookie(vip, CR_SOFT);
	} else if (own && found == CR_FORGED && !(vip->flags & VIP_STATEFUL)) {
		route.verdict = V_COOKIE_FORGED;
		count_cookie(vip, CR_FORGED);
		return route;
	} else {
		if (!pick_real(pkt, family, vip, false, &route.real_id)) {
			route.verdict = V_NO_REAL;
			return route;
		}
		route.verdict = admission(pkt, family, flow);
		count_cookie(vip, found == CR_TIER_OTHER ? CR_TIER_OTHER : lasting ? CR_PLAIN : CR_GUESSED);
	}
	if (lasting && !(vip->flags & VIP_FORGET))
		store_flow(pkt, family, &route, flow);
	return route;
}

/* Everything but a valid cookie; `found` is what read_cookie said, or CR_PLAIN. */
static __always_inline struct route
admit_by_cookie(const struct packet *pkt, const int family, const struct vip *vip,
		enum cookie_result found)
{
	struct route unknown = { .vip_id = vip->id, .verdict = V_COOKIE_UNKNOWN };

	if (is_syn(pkt))
		return open_with_cookie(pkt, family, vip);
	if (found != CR_UNKNOWN)
		return admit_without_cookie(pkt, family, vip, found);
	count_cookie(vip, CR_UNKNOWN);
	return unknown;
}

/* Whether the flow is the one whose measurement the packet belongs to. */
static __always_inline bool is_measured(const struct flow *flow, const struct route *route)
{
	return flow && flow->real == route->real_id && flow_real(flow);
}

/* The timestamp of the TCP segment that an ICMP error quotes, whose ports were read. */
static __always_inline void parse_quoted_timestamp(struct cursor *cur, struct packet *pkt)
{
	struct { u32 rest[3], kind_be, tsval_be; } *quoted = cur->pos;

	if ((void *)(quoted + 1) > cur->end || quoted->kind_be != TCP_NOP_NOP_TS)
		return;
	pkt->est.has_ts = 1;
	pkt->est.tsecr = bpf_ntohl(quoted->tsval_be); /* the server sent it, with its cookie */
}

#endif
