/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The balancer: parse, find the flow or pick a real, measure, send on. Responses
 * do not come this way. Everything below the entry is written once and compiled
 * twice, for IPv4 and for IPv6: a constant `family` costs nothing, a table behind
 * a pointer does.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lb/admit.h"
#include "lb/cookie.h"
#include "lb/encap.h"
#include "lb/flow_table.h"
#include "lb/maps.h"
#include "lb/measure.h"
#include "lb/second_tier.h"
#include "lb/vip.h"
#include "mirror.h"
#include "packet/icmp.h"
#include "packet/parse.h"
#include "packet/tcp_options.h"
#include "shared/cookie_echo.h"

/* Set by the loader before loading; the verifier removes what they switch off. */
const volatile u32 cfg_clock = CLOCK_KTIME;

/* The timestamp of the TCP segment that an ICMP error quotes, whose ports were read. */
static __always_inline void parse_quoted_timestamp(struct cursor *cur, struct packet *pkt)
{
	struct { u32 rest[3], kind_be, tsval_be; } *quoted = cur->pos;

	if ((void *)(quoted + 1) > cur->end || quoted->kind_be != TCP_NOP_NOP_TS)
		return;
	pkt->est.has_ts = 1;
	pkt->est.tsecr = bpf_ntohl(quoted->tsval_be); /* the server sent it, with its cookie */
}

/*
 * ICMP: whether it goes on to a real, as errors do, with the key of the flow that they
 * quote. Else the verdict says what became of it.
 */
static __always_inline MUST_USE bool
handle_icmp(struct xdp_md *ctx, struct cursor *cur, struct packet *pkt, const int family, enum verdict *verdict)
{
	struct icmp_header *icmp = take(cur, sizeof(*icmp));
	enum parsed quote = PARSED_OTHER;
	struct ctl *control = get_ctl();

	*verdict = V_NOT_VIP;
	if (!is_vip_address(pkt, family))
		return false;
	*verdict = V_MALFORMED;
	if (!icmp || !control)
		return false;
	if (icmp->type == (family == IPV4 ? ICMP4_ECHO_REQUEST : ICMP6_ECHO_REQUEST)) {
		*verdict = answer_echo(ctx, icmp, pkt, family, control->own_mac);
		return false;
	}
	if (family == IPV4 && is_icmp4_error(icmp->type))
		quote = parse_quote4(cur, pkt);
	if (family == IPV6 && is_icmp6_error(icmp->type))
		quote = parse_quote6(cur, pkt);
	*verdict = unserved(pkt, family);
	if (*verdict == V_NOT_VIP || is_neighbour_discovery(icmp->type, family))
		*verdict = V_ICMP_OTHER;
	if (quote != PARSED)
		return false;
	parse_quoted_timestamp(cur, pkt);
	return true;
}

/*
 * The packet is of a known flow, whose real this sets as its route. NULL if that real is
 * gone, or if the packet opens another connection, or the same one on a real that is down.
 * A retransmitted SYN tells the server its token again, too, and what was adopted may still
 * be the former owner's.
 */
static __always_inline struct real *
follow(const struct packet *pkt, const int family, const struct flow *flow, struct route *route)
{
	struct real *real = flow_real(flow);

	if (!real || (is_syn(pkt) && ((flow->isn ^ pkt->est.seq) | (real->flags & REAL_DOWN))))
		return NULL;
	route->real_id = flow->real;
	route->vip_id = flow->vip;
	route->verdict = is_syn(pkt) ? V_SYN_AGAIN : sent_as(pkt, family, V_ESTABLISHED);
	if (is_syn(pkt) && flow->bits & FLOW_HAS_TOKEN)
		route->token = ROUTE_HAS_TOKEN | flow->token;
	if (flow->bits & FLOW_ADOPTED)
		route->token = family == IPV4 ? former_owner4(pkt, flow->real) : former_owner6(pkt, flow->real);
	return real;
}

/*
 * The flow that a packet with a valid cookie is measured in, if it is: no memory of flows is
 * touched else. Of a connection that has been measured all along the first packet makes it;
 * none is measured from the middle because the rate has changed.
 */
static __always_inline struct flow *
measured_flow(struct packet *pkt, const int family, const struct ctl *control, const struct real *real,
	      const struct route *route)
{
	struct flow *flow;

	hash_key(pkt, family, control);
	if (!is_sampled(pkt, real->sampling.least))
		return NULL;
	flow = find_flow(pkt, family);
	if ((flow && is_on(flow, route)) || is_closing(pkt))
		return flow;
	return is_sampled(pkt, real->sampling.most) ? remember(pkt, family, route) : NULL;
}

/*
 * The real of a connection in a slot, which its packet's token names; NULL without one. The
 * VIP is asked for the clock alone, if its flow is measured.
 */
static __always_inline struct real *
follow_slot(struct xdp_md *ctx, struct packet *pkt, const int family, const struct ctl *control, struct flow **conn,
	    struct route *route)
{
	struct real *real;
	struct vip *vip;

	*conn = find_conn(ctx, pkt, family, control);
	real = *conn ? follow(pkt, family, *conn, route) : NULL;
	if (!real || !is_own(pkt, family))
		return real;
	count_conn_packet(*conn);
	if (is_closing(pkt) && !((*conn)->bits & FLOW_CLOSED) && !cfg_dry)
		family == IPV4 ? end_entry4(pkt) : end_entry6(pkt);
	pkt->marks |= PKT_COOKIE;
	vip = cfg_measure && asks_vip_first(pkt, family, control) ? known_vip(pkt, family, control) : NULL;
	if (has_cookies(vip))
		mark_clock(pkt, vip);
	return real;
}

/*
 * Where the packet goes, and the flow that it is measured in, if it has one. Its
 * connection's slot says it, else its cookie, else the flow table, else admission. NULL:
 * nowhere, and the route's verdict says why.
 */
static __always_inline struct real *
find_route(struct xdp_md *ctx, struct packet *pkt, const int family, const struct ctl *control, struct flow **flow,
	   struct route *route)
{
	enum cookie_result found = CR_PLAIN;
	struct vip *vip = NULL; /* as long as it is asked for cookies: one that has them */
	bool forgets = false;
	struct real *real;

	real = cfg_conn_partitions ? follow_slot(ctx, pkt, family, control, flow, route) : NULL;
	if (real)
		return real;
	if (asks_vip_first(pkt, family, control))
		vip = known_vip(pkt, family, control);
	if (!has_cookies(vip)) {
		forgets = vip && vip->flags & VIP_FORGET;
		vip = NULL;
	}
	if (vip)
		found = read_cookie(ctx, pkt, family, vip, route, &real);
	if (is_valid(found)) {
		*flow = is_kept(vip) && is_own(pkt, family) ? measured_flow(pkt, family, control, real, route) : NULL;
	} else {
		if (!vip || !gets_cookie(pkt, vip) || is_kept(vip))
			hash_key(pkt, family, control);
		*flow = forgets || (vip && goes_without_table(pkt, vip)) ? NULL : find_flow(pkt, family);
		if (vip && *flow && (*flow)->bits & FLOW_CLOSED &&
		    (family == IPV4 ? was_opened_anew4(pkt, vip, *flow, route)
				    : was_opened_anew6(pkt, vip, *flow, route)))
			goto routed;
		real = *flow ? follow(pkt, family, *flow, route) : NULL;
		if (real && vip)
			count_cookie(vip, followed_as(pkt, found));
		if (real)
			return real;
		vip = vip ?: known_vip(pkt, family, control);
		if (!vip) {
			route->verdict = unserved(pkt, family);
			return NULL;
		}
		if (!(family == IPV4 ? admit4(pkt, vip, found, *flow, route) : admit6(pkt, vip, found, *flow, route)))
			return NULL;
	routed:
		if (route->keep)
			*flow = remember(pkt, family, route);
		real = find_real(route->real_id);
		if (!real)
			route->verdict = V_NO_REAL; /* it has been removed meanwhile */
	}
	return real;
}

/* What the estimator needs, as long as the packet is as it came. */
static __always_inline void prepare_measurement(struct xdp_md *ctx, struct packet *pkt, struct flow *flow)
{
	pkt->est.t_ns = packet_time(ctx, cfg_clock);
	if (pkt->cookie_bits)
		date_echo(flow, &pkt->est, pkt->cookie_bits);
	else if (pkt->marks & PKT_COOKIE)
		pkt->est.has_ts = 0; /* a first tier's, or the light mode's: too coarse */
	else if (is_tcp(pkt) && !pkt->est.has_ts && !is_syn(pkt))
		find_timestamp(ctx, pkt);
}

/* A valid packet with a transport header: sent to its real, and counted. */
static __always_inline MUST_USE enum verdict
balance(struct xdp_md *ctx, struct packet *pkt, const int family)
{
	struct ctl *control = get_ctl();
	struct real_stats *stats;
	struct route route = {};
	enum verdict verdict;
	struct real *real;
	struct flow *flow = NULL;

	if (!control)
		return V_NO_NEXT_HOP;
	real = find_route(ctx, pkt, family, control, &flow, &route);
	if (!real)
		return route.verdict;
	if (is_measured(flow))
		prepare_measurement(ctx, pkt, flow);
	if (has_former(&route))
		verdict = family == IPV4 ? forward_former4(ctx, pkt, real, &route)
					 : forward_former6(ctx, pkt, real, &route);
	else
		verdict = forward(ctx, pkt, family, control, real, &route, route.token, 0);
	if (verdict != route.verdict) {
		/* The estimator was to begin with this packet. */
		if (flow && route.verdict == V_OPENED && !cfg_dry)
			flow->bits |= FLOW_UNSAMPLED;
		return verdict;
	}
	stats = count_route(&route, pkt->frame_len);
	if (!stats || !is_own(pkt, family))
		return verdict;
	/* The table may have an older connection of the tuple alone. */
	if (!flow || !is_on_real(flow, &route, real)) {
		count_unremembered(stats, &route, pkt, family);
	} else if (!(pkt->marks & PKT_FRAGMENT)) {
		count_connection(stats, flow, pkt);
		if (is_measured(flow))
			measure(stats, flow, pkt);
	}
	return verdict;
}

/*
 * An IP fragment: whether it goes on, to the real of its addresses and protocol, as a VIP
 * of its address takes fragments.
 */
static __always_inline MUST_USE bool
handle_fragment(struct cursor *cur, struct packet *pkt, const int family, enum verdict *verdict)
{
	*verdict = V_NOT_VIP;
	if (!is_vip_address(pkt, family))
		return false;
	*verdict = V_MALFORMED;
	if (parse_fragment(cur, pkt, family) != PARSED)
		return false;
	*verdict = V_FRAGMENT;
	return find_vip(pkt, family) != NULL;
}

/* One IP packet, behind the link header: parsed, given the key of its flow, balanced. */
static __always_inline MUST_USE enum verdict
handle_ip(struct xdp_md *ctx, struct cursor *cur, struct packet *pkt, const int family)
{
	enum parsed parsed = family == IPV4 ? parse_ipv4(cur, pkt) : parse_ipv6(cur, pkt);
	enum verdict verdict;
	bool goes_on;

	if (parsed == PARSED_FRAGMENT) {
		goes_on = handle_fragment(cur, pkt, family, &verdict);
	} else if (parsed == PARSED && is_icmp(pkt, family)) {
		goes_on = handle_icmp(ctx, cur, pkt, family, &verdict);
	} else {
		if (parsed == PARSED && pkt->est.proto == IPPROTO_TCP)
			parsed = parse_tcp(cur, pkt, family);
		else if (parsed == PARSED && pkt->est.proto == IPPROTO_UDP)
			parsed = parse_udp(cur, pkt, family);
		else if (parsed == PARSED)
			parsed = PARSED_OTHER;
		goes_on = parsed == PARSED;
		verdict = parsed == PARSED_OTHER ? unserved(pkt, family) : V_MALFORMED;
	}
	return goes_on ? balance(ctx, pkt, family) : verdict;
}

static __always_inline MUST_USE enum verdict handle(struct xdp_md *ctx, struct packet *pkt)
{
	struct cursor cur = { .pos = (void *)(long)ctx->data,
			      .end = (void *)(long)ctx->data_end,
			      .xdp = ctx };

	if (parse_link(&cur, pkt) != PARSED)
		return V_MALFORMED;
	if (pkt->ethertype_be == bpf_htons(ETH_P_IP))
		return handle_ip(ctx, &cur, pkt, IPV4);
	if (pkt->ethertype_be == bpf_htons(ETH_P_IPV6))
		return handle_ip(ctx, &cur, pkt, IPV6);
	return V_NOT_IP;
}

static __always_inline struct cookie_counts *results_of(u32 vip_id)
{
	return vip_id == MIRROR_NO_VIP ? NULL : bpf_map_lookup_elem(&cookie_counts, &vip_id);
}

/* The mirror is on: the packet as it came, and what its VIP has counted before it. */
CW_GLOBAL int mirror_before(struct xdp_md *ctx)
{
	struct mirror_ends ends = {};
	struct mirror_pending *p = mirror_begin(ctx, &ends);
	struct cookie_counts *results;
	struct vip *vip;

	if (!p)
		return 0;
	vip = bpf_map_lookup_elem(&vips, &ends.to);
	if (!vip && ends.to.port_be) {
		ends.to.port_be = 0;
		vip = bpf_map_lookup_elem(&vips, &ends.to);
	}
	if (vip)
		p->head.vip = vip->id;
	results = results_of(p->head.vip);
	if (results)
		__builtin_memcpy(p->results, results->packets, sizeof(p->results));
	return 0;
}

/* What became of it: the verdict, and the cookie's result that has been counted since. */
CW_GLOBAL int mirror_after(struct xdp_md *ctx, u32 verdict)
{
	struct mirror_pending *p = get_pending();
	struct cookie_counts *results;
	u32 result = MIRROR_NO_RESULT;

	if (!p || !p->wanted || verdict >= V_COUNT)
		return 0;
	results = results_of(p->head.vip);
	for (u32 i = 0; results && i < COOKIE_RESULTS_MAX; i++)
		if (results->packets[i] != p->results[i])
			result = i;
	mirror_end(ctx, p, verdict, result, lb_actions[verdict] == XDP_TX);
	return 0;
}

SEC("xdp") /* takes frames of several buffers where the loader says so */
int causeway_lb(struct xdp_md *ctx)
{
	struct packet pkt = {};
	enum verdict verdict;
	bool mirrored;

	if (cfg_tunnel_end) {
		int ended = open_first_tier(ctx);

		if (ended != GOES_ON)
			return leave(ended, (u32)bpf_xdp_get_buff_len(ctx));
	}
	pkt.frame_len = (u32)((void *)(long)ctx->data_end - (void *)(long)ctx->data);
	mirrored = !cfg_dry && is_mirrored();
	if (mirrored)
		mirror_before(ctx);
	/* Or every path would be verified twice. */
	mirrored = CW_FORGET(mirrored, pkt.frame_len);
	verdict = handle(ctx, &pkt);
	if (mirrored)
		mirror_after(ctx, verdict);
	return leave(verdict, pkt.frame_len);
}

char LICENSE[] SEC("license") = "GPL";
