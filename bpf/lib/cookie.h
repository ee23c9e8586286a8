/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Cookies at the balancer. The echo of a server's timestamp names the server, so a
 * packet of an established connection needs no table that grows with the number of
 * connections: VIP, hash, id, real. What has no cookie is the slow half's.
 */
#ifndef CAUSEWAY_LB_COOKIE_H
#define CAUSEWAY_LB_COOKIE_H

#include "flow.h"
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

#endif
