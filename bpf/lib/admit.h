/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What happens to a packet that no valid entry covers. */
#ifndef CAUSEWAY_ADMIT_H
#define CAUSEWAY_ADMIT_H

#include "conn.h"
#include "limit.h"

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

/*
 * The slow half of routing: the packet opens a connection, or has no entry, or its
 * real is gone. Picks by the VIP's ring and remembers the pick, except for what
 * ends a connection or only quotes one: those would push out live flows. A VIP that
 * forgets has no flows at all.
 */
static __always_inline struct route
admit(const struct packet *pkt, const int family, struct flow *flow)
{
	struct route route = { .verdict = V_NOT_VIP };
	struct vip *vip;

	if (flow && is_syn(pkt) && flow->isn == pkt->est.seq && flow_real(flow)) {
		route.real_id = flow->real;
		route.vip_id = flow->vip;
		route.verdict = V_SYN_AGAIN;
		if (flow->bits & FLOW_HAS_WORD)
			route.word = ROUTE_HAS_WORD | flow->word;
		return route;
	}
	vip = find_vip(pkt, family);
	if (!vip)
		return route;
	route.vip_id = vip->id;
	if (is_first(pkt, family) && is_refused(pkt, family, vip)) {
		route.verdict = V_RATE_LIMITED;
		return route;
	}
	route.verdict = V_NO_REAL;
	if (flow && keeps_real(pkt, flow, vip))
		route.real_id = flow->real;
	else if (!pick_real(pkt, family, vip, is_scheduled(pkt, family, vip), &route.real_id))
		return route;
	route.verdict = admission(pkt, family, flow);
	if (vip->flags & VIP_COUNT_LOAD && is_first(pkt, family))
		raise_load(route.real_id);
	if (cfg_conn_partitions && vip->flags & VIP_STATEFUL && is_syn(pkt))
		open_conn(pkt, family, &route);
	if (is_own(pkt, family) && !is_closing(pkt) && !(vip->flags & VIP_FORGET))
		store_flow(pkt, family, &route, flow);
	return route;
}

#endif
