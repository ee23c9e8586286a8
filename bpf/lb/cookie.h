/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Cookies at the balancer. The echo of a server's timestamp names the server, so a
 * packet of an established connection needs no table that grows with the number of
 * connections: VIP, hash, id, real. What has no cookie goes by the flow table.
 */
#ifndef CAUSEWAY_LB_COOKIE_H
#define CAUSEWAY_LB_COOKIE_H

#include "../packet/tcp_options.h"
#include "conn_table.h"
#include "flow_table.h"
#include "quic.h"
#include "vip.h"
#include "../shared/cookie.h"

/* Whether the packet's VIP is looked up before its flow: it may have cookies, or forget flows. */
static __always_inline bool asks_vip_first(const struct packet *pkt, const int family, const struct ctl *control)
{
	u8 proto = family == IPV4 ? pkt->key4.proto : pkt->key6.proto;

	return control->vip_first & (proto == IPPROTO_TCP ? VIP_FIRST_TCP : VIP_FIRST_UDP);
}

static __always_inline bool has_cookies(const struct vip *vip)
{
	return vip && vip->cookie.mode != COOKIE_NONE;
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
 * A first tier: the second-tier balancer whose number heads the connection token in the timestamp.
 * What is no token, a cookie for one, leads to any of them, and each knows what to do.
 */
static __always_inline MUST_USE enum cookie_result
read_tier(const struct packet *pkt, const int family, const struct vip *vip, u32 *real_id, struct real **real)
{
	u32 token = (pkt->est.tsecr & CONN_TOKEN_MASK) ^ token_mask(pkt, family);
	u32 index = vip->cookie_base + (cookie_tier(token, &vip->cookie) & (COOKIE_IDS - 1));
	struct cookie_slot *slot = bpf_map_lookup_elem(&cookie_slots, &index);

	*real = slot ? real_in(slot, real_id) : NULL;
	if (!*real)
		return CR_TIER_OTHER;
	return CR_TIER;
}

/*
 * The real that the packet's timestamp names: CR_EPOCH0 or CR_EPOCH1, else CR_FORGED
 * or CR_UNKNOWN.
 */
static __always_inline MUST_USE enum cookie_result
read_timestamp_cookie(const struct packet *pkt, const int family, const struct vip *vip, u32 *real_id,
		      struct real **real)
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
	*real = slot ? real_in(slot, real_id) : NULL;
	if (!*real)
		return CR_UNKNOWN;
	return epoch ? CR_EPOCH1 : CR_EPOCH0;
}

/* Whether a cookie leads to a real. */
static __always_inline bool is_valid(enum cookie_result found)
{
	return found == CR_EPOCH0 || found == CR_EPOCH1 || found == CR_CID || found == CR_TIER;
}

/* Above a valid cookie may be a clock that dates what the packet echoes. */
static __always_inline void mark_clock(struct packet *pkt, const struct vip *vip)
{
	pkt->cookie_bits = vip->cookie.mode == COOKIE_TIMESTAMP ? vip->cookie.bits : 0;
}

/*
 * What the packet's cookie says, in its timestamp or as a connection id. One that is valid
 * sets the route and the real, and marks the packet. CR_PLAIN stands for none.
 */
static __always_inline enum cookie_result
read_cookie(struct xdp_md *ctx, struct packet *pkt, const int family, const struct vip *vip, struct route *route,
	    struct real **real)
{
	enum cookie_result found;
	bool own = is_own(pkt, family);

	if (vip->cookie.mode == COOKIE_QUIC) {
		found = read_cid(ctx, pkt, family, vip, &route->real_id, real);
	} else {
		if (is_tcp(pkt) && !pkt->est.has_ts && pkt->options_len)
			find_timestamp(ctx, pkt);
		if (!pkt->est.has_ts || is_syn(pkt))
			return CR_PLAIN;
		found = vip->cookie.mode == COOKIE_TIER
				? read_tier(pkt, family, vip, &route->real_id, real)
				: read_timestamp_cookie(pkt, family, vip, &route->real_id, real);
	}
	if (!is_valid(found))
		return found;
	pkt->marks |= PKT_COOKIE;
	mark_clock(pkt, vip);
	route->vip_id = vip->id;
	route->verdict = own ? V_ESTABLISHED : V_ICMP_ERROR;
	count_cookie(vip, own ? found : CR_QUOTED);
	return found;
}

/* What is counted of a packet to a VIP with cookies that the flow table leads to its real. */
static __always_inline enum cookie_result followed_as(const struct packet *pkt, enum cookie_result found)
{
	if (found == CR_FORGED || found == CR_UNKNOWN || found == CR_TIER_OTHER)
		return CR_TABLE;
	return is_syn(pkt) && pkt->est.has_ts ? CR_SYN_AGAIN : found;
}

/* Whether the flows of a VIP with cookies are in the table all the same. */
static __always_inline bool is_kept(const struct vip *vip)
{
	return cfg_measure && !(vip->flags & VIP_FORGET);
}

/*
 * Whether the server's answer to the packet, a SYN to a VIP with cookies, will name it. A
 * stateful VIP gives slots to those with timestamps, and remembers which.
 */
static __always_inline bool gets_cookie(const struct packet *pkt, const struct vip *vip)
{
	return is_syn(pkt) && pkt->est.has_ts && !(vip->flags & VIP_STATEFUL);
}

/* Whether the table knows nothing of a SYN to a VIP with cookies: of none that is not measured. */
static __always_inline bool goes_without_table(const struct packet *pkt, const struct vip *vip)
{
	return gets_cookie(pkt, vip) && (!is_kept(vip) || !is_sampled(pkt, vip->sampling.least));
}

/* Whether the SYN cache is to know the packet's connection; else the flow table alone does. */
static __always_inline bool uses_syn_cache(const struct packet *pkt, const struct vip *vip)
{
	if (!has_cookies(vip) || vip->cookie.mode == COOKIE_QUIC)
		return false;
	if (!is_syn(pkt))
		return true;
	return gets_cookie(pkt, vip) && (!is_kept(vip) || !is_sampled(pkt, vip->sampling.most));
}

#endif
