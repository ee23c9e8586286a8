/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Admission: the one place where a flow gets a real. Here come the packets that
 * neither a token nor the flow table leads to one: what opens a flow, what is of a flow
 * that nothing is known of, and what is of one whose real is gone.
 */
#ifndef CAUSEWAY_ADMIT_H
#define CAUSEWAY_ADMIT_H

#include "conn.h"
#include "cookie.h"
#include "limit.h"
#include "syn_cache.h"

/*
 * Whether a new connection on a known tuple stays on the flow's real. A SYN is
 * easily forged: as long as the client has not ended the connection before, one
 * with another sequence number must not take that to another server. The new
 * connection is served there as well as elsewhere. A drained real may so get one
 * more connection; that takes a client that reuses a port without FIN or RST, and
 * is the smaller evil: connections on a drained real want protection too.
 */
static __always_inline bool keeps_real(const struct packet *pkt, const struct flow *flow, const struct vip *vip)
{
	return is_syn(pkt) && !(flow->bits & FLOW_CLOSED) && flow->vip == vip->id && flow_real(flow);
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
 * What ends a connection or only quotes one is not remembered: it would push out live
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
	if (found == CR_UNKNOWN)
		return refuse(vip, route, V_COOKIE_UNKNOWN, CR_UNKNOWN);
	if (cached && find_cached_syn(pkt, family, vip, hash, route)) {
		route->keep = lasting && !is_syn(pkt) && !(vip->flags & VIP_FORGET);
		return true;
	}
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
	route->verdict = admission(pkt, family, flow);
	if (opens && vip->flags & VIP_COUNT_LOAD)
		raise_load(route->real_id);
	if (cfg_conn_partitions && vip->flags & VIP_STATEFUL && is_syn(pkt))
		open_conn(pkt, family, route);
	if (cached && is_syn(pkt))
		cache_syn(hash, pkt->est.seq, route->real_id);
	else
		route->keep = lasting && !(vip->flags & VIP_FORGET);
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
