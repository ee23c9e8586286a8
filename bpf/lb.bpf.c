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

#include "lib/admit.h"
#include "lib/cookie.h"
#include "lib/count.h"
#include "lib/encap.h"
#include "lib/flow.h"
#include "lib/icmp.h"
#include "lib/maps.h"
#include "lib/measure.h"
#include "lib/parse.h"
#include "lib/quic.h"
#include "lib/tap.h"
#include "lib/tcp_options.h"
#include "lib/tier.h"
#include "lib/vip.h"

/* Set by the loader before loading; the verifier removes what they switch off. */
const volatile bool cfg_measure = true;
const volatile u32 cfg_clock = CLOCK_KTIME;

/* What the table path did with a SYN to a VIP with cookies, if it sent it on. */
static __always_inline void
count_opening(const struct packet *pkt, const int family, const struct route *route)
{
	struct ctl *control = get_ctl();
	struct vip *vip;

	if (!control || leads_nowhere(route) || !is_syn(pkt) || !may_have_cookies(pkt, family, control))
		return;
	vip = find_vip(pkt, family);
	if (!vip || vip->cookie.mode == COOKIE_NONE)
		return;
	if (!pkt->est.has_ts)
		count_cookie(vip, CR_PLAIN);
	else
		count_cookie(vip, route->verdict == V_SYN_AGAIN ? CR_SYN_AGAIN : CR_SYN);
}

/*
 * Two instances of each slow part, out of the way of the fast one. Global, so that
 * they are verified once; the verifier then wants their pointers tested.
 */
CW_GLOBAL int admit4(const struct packet *pkt, struct flow *flow, struct route *route)
{
	if (!pkt || !route)
		return 0;
	*route = admit(pkt, IPV4, flow);
	count_opening(pkt, IPV4, route);
	return 0;
}

CW_GLOBAL int admit_by_cookie4(const struct packet *pkt, const struct vip *vip, u32 found, struct route *route)
{
	if (pkt && vip && route)
		*route = admit_by_cookie(pkt, IPV4, vip, found);
	return 0;
}

CW_GLOBAL int admit_by_cid4(const struct packet *pkt, const struct vip *vip, u32 found, struct route *route)
{
	if (pkt && vip && route)
		*route = admit_by_cid(pkt, IPV4, vip, found);
	return 0;
}

CW_GLOBAL int remember4(const struct packet *pkt, struct flow *flow, struct route *route)
{
	if (pkt && route)
		store_flow(pkt, IPV4, route, flow);
	return 0;
}

CW_GLOBAL int admit6(const struct packet *pkt, struct flow *flow, struct route *route)
{
	if (!pkt || !route)
		return 0;
	*route = admit(pkt, IPV6, flow);
	count_opening(pkt, IPV6, route);
	return 0;
}

CW_GLOBAL int admit_by_cookie6(const struct packet *pkt, const struct vip *vip, u32 found, struct route *route)
{
	if (pkt && vip && route)
		*route = admit_by_cookie(pkt, IPV6, vip, found);
	return 0;
}

CW_GLOBAL int admit_by_cid6(const struct packet *pkt, const struct vip *vip, u32 found, struct route *route)
{
	if (pkt && vip && route)
		*route = admit_by_cid(pkt, IPV6, vip, found);
	return 0;
}

CW_GLOBAL int remember6(const struct packet *pkt, struct flow *flow, struct route *route)
{
	if (pkt && route)
		store_flow(pkt, IPV6, route, flow);
	return 0;
}

/* The packet's transport header, or the one that an ICMP error quotes. */
static __always_inline MUST_USE enum parsed
parse_transport(struct cursor *cur, struct packet *pkt, const int family)
{
	switch (pkt->est.proto) {
	case IPPROTO_TCP:
		return parse_tcp(cur, pkt, family);
	case IPPROTO_UDP:
		return parse_udp(cur, pkt, family);
	default:
		return PARSED_OTHER;
	}
}

/* Echo requests end here; errors get the key of the flow that they quote, and go on. */
static __always_inline MUST_USE enum verdict
handle_icmp(struct xdp_md *ctx, struct cursor *cur, struct packet *pkt, const int family)
{
	struct icmp_header *icmp = take(cur, sizeof(*icmp));
	enum parsed quote = PARSED_OTHER;

	if (!is_vip_address(pkt, family))
		return V_NOT_VIP;
	if (!icmp)
		return V_MALFORMED;
	if (icmp->type == (family == IPV4 ? ICMP4_ECHO_REQUEST : ICMP6_ECHO_REQUEST))
		return answer_echo(ctx, icmp, pkt, family);
	if (family == IPV4 && is_icmp4_error(icmp->type))
		quote = parse_quote4(cur, pkt);
	if (family == IPV6 && is_icmp6_error(icmp->type))
		quote = parse_quote6(cur, pkt);
	if (quote != PARSED)
		return V_ICMP_OTHER;
	parse_quoted_timestamp(cur, pkt);
	return V_COUNT;
}

/* The real that was found for a packet; NULL, with the reason, if it has been removed since. */
static __always_inline struct real *routed_real(struct route *route)
{
	struct real *real = find_real(route->real_id);

	if (!real)
		route->verdict = V_NO_REAL;
	return real;
}

/* Whether the flows of a VIP with cookies are in the table all the same. */
static __always_inline bool is_kept(const struct vip *vip)
{
	return cfg_measure && !(vip->flags & VIP_FORGET);
}

/* A packet of a VIP with cookies that has none, or no valid one. */
static __always_inline struct real *
route_without_cookie(const struct packet *pkt, const int family, const struct vip *vip,
		     enum cookie_result found, struct flow **flow, struct route *route)
{
	if (vip->cookie.mode == COOKIE_QUIC && family == IPV4)
		admit_by_cid4(pkt, vip, found, route);
	else if (vip->cookie.mode == COOKIE_QUIC)
		admit_by_cid6(pkt, vip, found, route);
	else if (family == IPV4)
		admit_by_cookie4(pkt, vip, found, route);
	else
		admit_by_cookie6(pkt, vip, found, route);
	if (leads_nowhere(route))
		return NULL;
	if (route->place)
		*flow = flow_at(route->place - 1, family);
	return routed_real(route);
}

/*
 * Whether nothing is remembered of a SYN. A stateful VIP gives places to those with
 * timestamps, and remembers which.
 */
static __always_inline bool goes_without_table(const struct packet *pkt, const struct vip *vip)
{
	return pkt->est.has_ts && !is_kept(vip) && !(vip->flags & VIP_STATEFUL);
}

/*
 * The flow that a connection with a cookie is measured in: made by its first valid
 * cookie, or anew by that of another connection.
 */
static __always_inline void
keep_measured(const struct packet *pkt, const int family, struct flow **flow, struct route *route)
{
	if (is_measured(*flow, route) || is_closing(pkt))
		return;
	if (family == IPV4)
		remember4(pkt, *flow, route);
	else
		remember6(pkt, *flow, route);
	if (route->place)
		*flow = flow_at(route->place - 1, family);
}

/*
 * The packet's connection and its real, if a stateful VIP gave it a place. NULL:
 * nothing is known by its timestamp.
 */
static __always_inline struct real *
find_place_of(struct xdp_md *ctx, struct packet *pkt, const int family, struct flow **flow, struct route *route)
{
	struct ctl *control = get_ctl();
	struct real *real;
	struct flow *conn;

	if (!control || !is_tcp(pkt))
		return NULL;
	if (!pkt->est.has_ts && pkt->options_len)
		find_timestamp(ctx, pkt);
	if (!pkt->est.has_ts || is_syn(pkt))
		return NULL;
	conn = find_conn(pkt, family, conn_seed(control));
	if (!conn)
		return NULL;
	real = flow_real(conn);
	if (!real)
		return NULL;
	count_conn_packet(conn);
	pkt->marks |= PKT_COOKIE;
	*flow = conn;
	route->real_id = conn->real;
	route->vip_id = conn->vip;
	route->verdict = V_ESTABLISHED;
	return real;
}

/*
 * What the packet's cookie says, and where that leads: one that is valid is marked.
 * CR_PLAIN stands for none.
 */
static __always_inline enum cookie_result
ask_cookie(struct xdp_md *ctx, struct packet *pkt, const int family, const struct vip *vip, struct route *route)
{
	enum cookie_result found;
	bool own = is_own(pkt, family);

	if (vip->cookie.mode == COOKIE_QUIC) {
		found = read_cid(ctx, pkt, family, vip, &route->real_id);
	} else {
		if (is_tcp(pkt) && !pkt->est.has_ts && pkt->options_len)
			find_timestamp(ctx, pkt);
		if (!pkt->est.has_ts || is_syn(pkt))
			return CR_PLAIN;
		found = vip->cookie.mode == COOKIE_TIER ? read_tier(pkt, vip, &route->real_id)
							: read_cookie(pkt, family, vip, &route->real_id);
	}
	if (found != CR_EPOCH0 && found != CR_EPOCH1 && found != CR_CID && found != CR_TIER)
		return found;
	pkt->marks |= PKT_COOKIE;
	route->vip_id = vip->id;
	route->verdict = own ? V_ESTABLISHED : V_ICMP_ERROR;
	count_cookie(vip, own ? found : CR_QUOTED);
	return found;
}

/*
 * Where the packet goes. A valid cookie says it without a table, unless the flow is
 * measured. Else, for a flow that is known and whose real is there, that is one
 * lookup; everything more is the slow parts'. NULL: nowhere, and the route's verdict
 * says why.
 */
static __always_inline struct real *
find_route(struct xdp_md *ctx, struct packet *pkt, const int family, struct flow **flow, struct route *route)
{
	struct real *real;
	struct vip *vip;

	if (cfg_conn_partitions) {
		real = find_place_of(ctx, pkt, family, flow, route);
		if (real)
			return real;
	}
	vip = cookie_vip(pkt, family);
	if (vip) {
		enum cookie_result found = ask_cookie(ctx, pkt, family, vip, route);

		if (pkt->marks & PKT_COOKIE && !(is_kept(vip) && is_own(pkt, family)))
			return routed_real(route);
		/* A SYN with timestamps is in the table for its measurement alone. */
		if (!(pkt->marks & PKT_COOKIE) && (!is_syn(pkt) || goes_without_table(pkt, vip)))
			return route_without_cookie(pkt, family, vip, found, flow, route);
	}
	*flow = find_flow(pkt, family);
	if (pkt->marks & PKT_COOKIE) {
		keep_measured(pkt, family, flow, route);
		return routed_real(route);
	}
	if (*flow && !is_syn(pkt)) {
		real = flow_real(*flow);
		if (real) {
			route->real_id = (*flow)->real;
			route->vip_id = (*flow)->vip;
			route->verdict = continuation(pkt, family);
			return real;
		}
	}
	if (family == IPV4)
		admit4(pkt, *flow, route);
	else
		admit6(pkt, *flow, route);
	if (leads_nowhere(route))
		return NULL;
	if (route->place)
		*flow = flow_at(route->place - 1, family);
	return routed_real(route);
}

/* What the estimator needs, as long as the packet is as it came. */
static __always_inline void prepare_measurement(struct xdp_md *ctx, struct packet *pkt)
{
	pkt->est.t_ns = packet_time(ctx, cfg_clock);
	if (pkt->marks & PKT_COOKIE)
		pkt->est.has_ts = 0; /* the echo's clock stands still while nothing is sent */
	else if (is_tcp(pkt) && !pkt->est.has_ts && !is_syn(pkt))
		find_timestamp(ctx, pkt);
}

/* A sound packet with a transport header: to its real, and into the books. */
static __always_inline MUST_USE enum verdict
balance(struct xdp_md *ctx, struct packet *pkt, const int family)
{
	struct real_stats *stats;
	struct route route = {};
	enum verdict verdict;
	struct real *real;
	struct flow *flow = NULL;

	real = find_route(ctx, pkt, family, &flow, &route);
	if (!real)
		return route.verdict;
	if (cfg_measure && flow)
		prepare_measurement(ctx, pkt);
	verdict = forward(ctx, pkt, family, real, &route);
	if (verdict != route.verdict)
		return verdict;
	stats = count_route(&route, pkt->frame_len);
	if (stats && flow && is_measurable(pkt, family) && is_on_real(flow, &route, real)) {
		count_connection(stats, flow, pkt);
		if (cfg_measure)
			measure(stats, flow, pkt);
	}
	if (stats && !flow && is_own(pkt, family))
		count_unremembered(stats, &route, pkt);
	return verdict;
}

/*
 * An IP fragment: dropped, or to the real of its addresses and protocol if a VIP
 * of its address takes fragments.
 */
static __always_inline MUST_USE enum verdict
handle_fragment(struct cursor *cur, struct packet *pkt, const int family)
{
	if (!is_vip_address(pkt, family))
		return V_NOT_VIP;
	if (parse_fragment(cur, pkt, family) != PARSED)
		return V_MALFORMED;
	return find_vip(pkt, family) ? V_COUNT : V_FRAGMENT;
}

/*
 * One IP packet, behind the link header: parsed, and given the key of its flow.
 * V_COUNT says that it goes on to a real; all else is the end of it.
 */
static __always_inline MUST_USE enum verdict
classify(struct xdp_md *ctx, struct cursor *cur, struct packet *pkt, const int family)
{
	enum parsed parsed = family == IPV4 ? parse_ipv4(cur, pkt) : parse_ipv6(cur, pkt);

	if (parsed == PARSED_FRAGMENT)
		return handle_fragment(cur, pkt, family);
	if (parsed == PARSED && is_icmp(pkt, family))
		return handle_icmp(ctx, cur, pkt, family);
	if (parsed == PARSED)
		parsed = parse_transport(cur, pkt, family);
	if (parsed == PARSED)
		return V_COUNT;
	return parsed == PARSED_MALFORMED ? V_MALFORMED : V_NOT_VIP;
}

static __always_inline MUST_USE enum verdict
handle_ip(struct xdp_md *ctx, struct cursor *cur, struct packet *pkt, const int family)
{
	enum verdict verdict = classify(ctx, cur, pkt, family);

	return verdict == V_COUNT ? balance(ctx, pkt, family) : verdict;
}

static __always_inline MUST_USE enum verdict handle(struct xdp_md *ctx, struct packet *pkt)
{
	struct cursor cur = { .pos = (void *)(long)ctx->data,
			      .end = (void *)(long)ctx->data_end };

	pkt->frame_len = (u32)(cur.end - cur.pos);
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
	return vip_id == TAP_NO_VIP ? NULL : bpf_map_lookup_elem(&cookie_counts, &vip_id);
}

/* Somebody looks at packets: this one, and what its VIP has counted before it. */
CW_GLOBAL int look(struct xdp_md *ctx)
{
	struct tap_ends ends = {};
	struct tap_pending *p = tap_begin(ctx, &ends);
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
CW_GLOBAL int tell(struct xdp_md *ctx, u32 verdict)
{
	struct tap_pending *p = get_pending();
	struct cookie_counts *results;
	u32 result = TAP_NO_RESULT;

	if (!p || !p->wanted || verdict >= V_COUNT)
		return 0;
	results = results_of(p->head.vip);
	for (u32 i = 0; results && i < COOKIE_RESULTS_MAX; i++)
		if (results->packets[i] != p->results[i])
			result = i;
	tap_end(ctx, p, verdict, result, lb_actions[verdict] == XDP_TX);
	return 0;
}

SEC("xdp")
int causeway_lb(struct xdp_md *ctx)
{
	struct packet pkt = {};
	enum verdict verdict;

	if (cfg_tunnel_end) {
		int ended = open_first_tier(ctx);

		if (ended >= 0)
			return leave(ended, (u32)((void *)(long)ctx->data_end - (void *)(long)ctx->data));
	}
	if (!cfg_dry && is_tapped())
		look(ctx);
	verdict = handle(ctx, &pkt);
	/* Asked again: to remember it would have every path verified twice. */
	if (!cfg_dry && is_tapped())
		tell(ctx, verdict);
	return leave(verdict, pkt.frame_len);
}

char LICENSE[] SEC("license") = "GPL";
