/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Flows: which real a connection is on. An established packet costs one lookup here,
 * and that is also its measurement state.
 */
#ifndef CAUSEWAY_FLOW_H
#define CAUSEWAY_FLOW_H

#include "table.h"
#include "vip.h"

/* Where a packet goes. */
struct route {
	u32 real_id;
	u16 vip_id;
	u16 verdict; /* enum verdict: whether it goes, and why */
	u32 word;    /* ROUTE_HAS_WORD and what the server is to be told; 0: nothing */
	u32 keep;    /* whether the flow is to be remembered in the table */
};

#define ROUTE_HAS_WORD (1u << 16)

/* The flow's real; NULL if it was removed, or its slot given to another real. */
static __always_inline struct real *flow_real(const struct flow *flow)
{
	struct real *real = find_real(flow->real);

	return real && real->gen == flow->real_gen ? real : NULL;
}

static __always_inline bool is_tcp(const struct packet *pkt)
{
	return pkt->est.proto == IPPROTO_TCP;
}

/*
 * Whether the packet went to the flow's own real. What ends a connection whose
 * real is gone goes to another one, which knows nothing of it.
 */
static __always_inline bool
is_on_real(const struct flow *flow, const struct route *route, const struct real *real)
{
	return flow->real == route->real_id && flow->real_gen == real->gen;
}

/* Whether the flow is on the route's real, and that is there. */
static __always_inline bool is_on(const struct flow *flow, const struct route *route)
{
	return flow->real == route->real_id && flow_real(flow);
}

/* A SYN of a client; SYN-ACKs are none. */
static __always_inline bool is_syn(const struct packet *pkt)
{
	return is_tcp(pkt) && (pkt->est.tcp_flags & (EST_TCP_SYN | EST_TCP_ACK)) == EST_TCP_SYN;
}

static __always_inline bool is_closing(const struct packet *pkt)
{
	return is_tcp(pkt) && pkt->est.tcp_flags & (EST_TCP_FIN | EST_TCP_RST);
}

/* Whether the packet is of the flow itself, not an ICMP error that quotes it. */
static __always_inline bool is_own(const struct packet *pkt, const int family)
{
	return pkt->est.proto == (family == IPV4 ? pkt->key4.proto : pkt->key6.proto);
}

/* Whether a packet that no valid entry covers begins a flow, as far as one can tell. */
static __always_inline bool is_first(const struct packet *pkt, const int family)
{
	return is_own(pkt, family) && (is_syn(pkt) || !is_tcp(pkt));
}

/* Whether the packet tells something of its flow: not a fragment, no quote. */
static __always_inline bool is_measurable(const struct packet *pkt, const int family)
{
	return is_own(pkt, family) && !(pkt->marks & PKT_FRAGMENT);
}

/* What happened to a packet whose flow has an entry. */
static __always_inline enum verdict continuation(const struct packet *pkt, const int family)
{
	if (!is_own(pkt, family))
		return V_ICMP_ERROR;
	return pkt->marks & PKT_FRAGMENT ? V_FRAGMENT_SENT : V_ESTABLISHED;
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

/* Whether the flows of a VIP with cookies are in the table all the same. */
static __always_inline bool is_kept(const struct vip *vip)
{
	return cfg_measure && !(vip->flags & VIP_FORGET);
}

/*
 * Whether the table is to know nothing of a SYN to a VIP with cookies. A stateful VIP
 * gives places to those with timestamps, and remembers which.
 */
static __always_inline bool goes_without_table(const struct packet *pkt, const struct vip *vip)
{
	return is_syn(pkt) && pkt->est.has_ts && !is_kept(vip) && !(vip->flags & VIP_STATEFUL);
}

/* Why a packet that no valid entry covers gets a real. */
static __always_inline enum verdict
admission(const struct packet *pkt, const int family, const struct flow *flow)
{
	if (!is_own(pkt, family))
		return V_ICMP_ERROR;
	if (pkt->marks & PKT_FRAGMENT)
		return V_FRAGMENT_SENT;
	if (is_syn(pkt))
		return V_OPENED;
	if (flow)
		return V_MOVED;
	return is_tcp(pkt) ? V_ADOPTED : V_FIRST_DATAGRAM;
}

/*
 * What the packet says about how long its flow is to be kept. One that has ended in
 * one direction may live on in the other.
 */
static __always_inline void
judge(const struct entry *entry, const struct packet *pkt, const int family)
{
	bool closed = entry->flow->bits & FLOW_CLOSED;

	if (cfg_dry || !is_own(pkt, family) || is_syn(pkt))
		return;
	if (is_tcp(pkt) && pkt->est.tcp_flags & EST_TCP_RST)
		set_standing(entry, STANDING_GONE);
	else
		set_standing(entry, closed || is_closing(pkt) ? STANDING_OLD : STANDING_LIVE);
}

/*
 * Whether the flow is a datagrams' one that has ended by silence: user space says so
 * (balancer/sweep.rs), and its next datagram is a first one. A TCP connection whose
 * place is offered to others in the same way lives on.
 */
static __always_inline bool has_expired(const struct entry *entry, const struct packet *pkt, const int family)
{
	u8 proto = family == IPV4 ? pkt->key4.proto : pkt->key6.proto;

	return proto == IPPROTO_UDP && (entry->seen & STANDING_MASK) == STANDING_GONE;
}

/*
 * The packet's flow, or NULL. Its place cannot become another flow's while this
 * packet is handled, unless that other one had claimed it before: is_still would
 * tell. Who comes later finds another word than it has read.
 */
static __always_inline struct flow *find_flow(const struct packet *pkt, const int family)
{
	struct ctl *control = get_ctl();
	struct entry entry;

	if (!control)
		return NULL;
	entry = find_entry(pkt, family, control->table_seed);
	if (!entry.flow || has_expired(&entry, pkt, family))
		return NULL;
	judge(&entry, pkt, family);
	return is_still(&entry) ? entry.flow : NULL;
}

static __always_inline void
write_flow(struct flow *flow, const struct packet *pkt, const int family, const struct route *route)
{
	struct real *real = find_real(route->real_id);

	__builtin_memset(flow, 0, sizeof(*flow));
	if (family == IPV4)
		__builtin_memcpy(&flow->key, &pkt->key4, sizeof(pkt->key4));
	else
		flow->key = pkt->key6;
	flow->real = route->real_id;
	flow->real_gen = real ? real->gen : 0;
	flow->vip = route->vip_id;
	flow->isn = pkt->est.seq;
	if (route->word) {
		flow->bits = FLOW_HAS_WORD;
		flow->word = (u16)route->word;
	}
}

/*
 * Writes a flow down, in its old place if it has one. NULL: the table has no place for
 * it, and it goes on by the ring.
 */
static __always_inline struct flow *
remember(const struct packet *pkt, const int family, const struct route *route, struct flow *old)
{
	struct ctl *control = get_ctl();
	struct entry entry;

	if (cfg_dry || !control)
		return old;
	if (old) {
		write_flow(old, pkt, family, route);
		return old;
	}
	entry = claim_place(pkt, family, control->table_seed);
	if (!entry.flow)
		return NULL;
	write_flow(entry.flow, pkt, family, route);
	publish(&entry, STANDING_NEW);
	return entry.flow;
}

#endif
