/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * For comparison in the benchmark only: other ways to find a packet's real, between
 * the balancer's own parsers and its own encapsulation and counters. The costs then
 * differ by the way alone, as in figure 5 of Barbette et al. (NSDI 2020). Never
 * attached. TCP over IPv4, as the benchmark has it.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../../../bpf/lb/admit.h"
#include "../../../bpf/lb/encap.h"
#include "../../../bpf/lb/flow_table.h"
#include "../../../bpf/lb/maps.h"
#include "../../../bpf/lb/measure.h"
#include "../../../bpf/lb/vip.h"
#include "../../../bpf/packet/parse.h"

#define BASELINE_FLOWS 1048576
#define BASELINE_BUCKETS 65537

/* Connections in the kernel's hash map: tuple to real plus one. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BASELINE_FLOWS);
	__type(key, struct flow_key4);
	__type(value, u32);
} baseline_flows SEC(".maps");

/* The same where the one that was silent longest is evicted: how balancers with a table keep new flows. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, BASELINE_FLOWS);
	__type(key, struct flow_key4);
	__type(value, u32);
} baseline_lru SEC(".maps");

/* Beamer (Olteanu et al., NSDI 2018): who has a bucket now, and who had it before. */
struct baseline_bucket {
	u32 now;
	u32 before;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BASELINE_BUCKETS);
	__type(key, u32);
	__type(value, struct baseline_bucket);
} baseline_buckets SEC(".maps");

/* The tuple of a TCP packet over IPv4; false for all else. */
static __always_inline MUST_USE bool read_tuple(struct xdp_md *ctx, struct packet *pkt)
{
	struct cursor cur = { .pos = (void *)(long)ctx->data,
			      .end = (void *)(long)ctx->data_end };

	pkt->frame_len = (u32)(cur.end - cur.pos);
	if (parse_link(&cur, pkt) != PARSED || pkt->ethertype_be != bpf_htons(ETH_P_IP))
		return false;
	if (parse_ipv4(&cur, pkt) != PARSED || pkt->est.proto != IPPROTO_TCP)
		return false;
	return parse_tcp(&cur, pkt, IPV4) == PARSED;
}

/* To the route's real, and into the same counters as the balancer's. */
static __always_inline int
finish(struct xdp_md *ctx, const struct packet *pkt, struct route *route, const enum verdict counted)
{
	struct real *real = find_real(route->real_id);
	struct ctl *control = get_ctl();
	enum verdict verdict = V_NO_REAL;

	route->verdict = counted;
	if (real && control)
		verdict = forward(ctx, pkt, IPV4, control, real, route, route->token, 0);
	if (verdict == counted)
		count_route(route, pkt->frame_len);
	return leave(verdict, pkt->frame_len);
}

/* A hash of the tuple, modulo a ring: nothing is remembered. */
SEC("xdp")
int baseline_hash(struct xdp_md *ctx)
{
	struct packet pkt = {};
	struct route route = {};
	struct vip *vip;

	if (!read_tuple(ctx, &pkt))
		return XDP_ABORTED;
	vip = find_vip(&pkt, IPV4);
	if (!vip || !pick_real(&pkt, IPV4, vip, false, 0, &route.real_id))
		return leave(V_NO_REAL, pkt.frame_len);
	route.vip_id = vip->id;
	return finish(ctx, &pkt, &route, V_ESTABLISHED);
}

SEC("xdp")
int baseline_table(struct xdp_md *ctx)
{
	struct packet pkt = {};
	struct route route = {};
	u32 *real;

	if (!read_tuple(ctx, &pkt))
		return XDP_ABORTED;
	real = bpf_map_lookup_elem(&baseline_flows, &pkt.key4);
	if (!real || !*real)
		return leave(V_NO_REAL, pkt.frame_len);
	route.real_id = *real - 1;
	return finish(ctx, &pkt, &route, V_ESTABLISHED);
}

/* Puts the packet's connection into the tables. */
SEC("xdp")
int baseline_table_fill(struct xdp_md *ctx)
{
	struct packet pkt = {};
	u32 real;

	if (!read_tuple(ctx, &pkt))
		return XDP_ABORTED;
	real = 1 + bpf_ntohs(pkt.key4.sport_be) % 100;
	if (bpf_map_update_elem(&baseline_flows, &pkt.key4, &real, BPF_ANY) ||
	    bpf_map_update_elem(&baseline_lru, &pkt.key4, &real, BPF_ANY))
		return XDP_ABORTED;
	return XDP_TX;
}

/* A connection that the table does not know gets a real of the ring, and is put into it. */
SEC("xdp")
int baseline_table_syn(struct xdp_md *ctx)
{
	struct packet pkt = {};
	struct route route = {};
	struct vip *vip;
	u32 real;

	if (!read_tuple(ctx, &pkt) || bpf_map_lookup_elem(&baseline_lru, &pkt.key4))
		return XDP_ABORTED;
	vip = find_vip(&pkt, IPV4);
	if (!vip || !pick_real(&pkt, IPV4, vip, false, 0, &route.real_id))
		return leave(V_NO_REAL, pkt.frame_len);
	route.vip_id = vip->id;
	real = 1 + route.real_id;
	if (bpf_map_update_elem(&baseline_lru, &pkt.key4, &real, BPF_ANY))
		return XDP_ABORTED;
	return finish(ctx, &pkt, &route, V_OPENED);
}

/* The packet names the server that its bucket had before: 16 bits of the outer source. */
SEC("xdp")
int baseline_daisy_chain(struct xdp_md *ctx)
{
	struct ctl *control = get_ctl();
	struct baseline_bucket *bucket;
	struct packet pkt = {};
	struct route route = {};
	struct vip *vip;
	u32 index;

	if (!control || !read_tuple(ctx, &pkt))
		return XDP_ABORTED;
	vip = find_vip(&pkt, IPV4);
	index = (u32)(flow_hash(&pkt, IPV4, control) % BASELINE_BUCKETS);
	bucket = bpf_map_lookup_elem(&baseline_buckets, &index);
	if (!vip || !bucket || !find_real(bucket->before))
		return leave(V_NO_REAL, pkt.frame_len);
	route.vip_id = vip->id;
	route.real_id = bucket->now;
	route.token = ROUTE_HAS_TOKEN | bucket->before;
	return finish(ctx, &pkt, &route, V_ESTABLISHED);
}

char LICENSE[] SEC("license") = "GPL";
