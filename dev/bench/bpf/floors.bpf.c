/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The least that each way to a server takes, for comparison in the benchmark only: on the
 * same packets, and with the same encapsulation, what no balancer of this kind can leave
 * out. No VIP, counter, limit, check of a key or second try: what is in a line that is read
 * counts as right, so that nothing has to be filled. Never attached. TCP and UDP over IPv4.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../../../bpf/packet/parse.h"
#include "../../../bpf/packet/write.h"
#include "../../../bpf/shared/mix.h"
#include "../../../bpf/shared/siphash.h"

#define FLOOR_FLOWS (1 << 20)
#define FLOOR_REALS 128
#define FLOOR_RING 65537
#define FLOOR_GUE_PORT 6080
#define CID_OCTETS 11

/* A flow's key and real share a line. */
struct floor_flow {
	u64 key[2];
	u64 claim;
	u32 real;
	u32 age;
	u64 rest[4];
};

/* As long as the state of an estimator. */
struct floor_state {
	u64 last_ns;
	u64 first[7];
	u64 sum;
	u64 second[7];
};

struct floor_real {
	u32 addr_be;
	u32 rest[15];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FLOOR_FLOWS);
	__type(key, u32);
	__type(value, struct floor_flow);
} floor_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FLOOR_FLOWS);
	__type(key, u32);
	__type(value, struct floor_state);
} floor_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FLOOR_RING);
	__type(key, u32);
	__type(value, u32);
} floor_ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FLOOR_REALS);
	__type(key, u32);
	__type(value, struct floor_real);
} floor_reals SEC(".maps");

/* Of so many connections one is measured where not all are. */
const volatile u32 cfg_one_in = 16;

/* Not constant, so that the compiler computes no hash beforehand. */
u64 floor_key[2] = { 0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull };
u32 floor_source_be;
u64 floor_free;

/* Addresses, protocol and ports, and what a timestamp in the usual place echoes. */
struct floor_packet {
	u64 key[2];
	u32 ip_len;
	u32 echo;
};

static __always_inline MUST_USE bool floor_read(struct xdp_md *ctx, struct floor_packet *packet)
{
	struct cursor cur = { .pos = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	struct ethhdr *eth = take(&cur, sizeof(*eth));
	struct iphdr *ip = take(&cur, sizeof(*ip));
	u32 *words = take(&cur, 32); /* TCP with its timestamps, or UDP and more */

	if (!eth || !ip || !words || eth->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5)
		return false;
	packet->key[0] = (u64)ip->daddr << 32 | ip->saddr;
	packet->key[1] = (u64)ip->protocol << 32 | words[0];
	packet->ip_len = bpf_ntohs(ip->tot_len);
	packet->echo = words[7];
	return true;
}

/* In an outer header to the real of this number, with `udp_len` bytes of UDP behind it or none. */
static __always_inline int
floor_send_in(struct xdp_md *ctx, const struct floor_packet *packet, u32 number, const u32 udp_len)
{
	const u32 outer_len = sizeof(struct iphdr) + udp_len;
	const struct floor_real *real;
	struct udphdr *udp;
	struct macs macs;
	struct iphdr *ip;
	u32 *words;
	void *data;

	number &= FLOOR_REALS - 1;
	real = bpf_map_lookup_elem(&floor_reals, &number);
	if (!real || !read_macs(ctx, &macs) || bpf_xdp_adjust_head(ctx, -(int)outer_len))
		return XDP_ABORTED;
	data = (void *)(long)ctx->data;
	ip = data + sizeof(struct ethhdr);
	if ((void *)ip + outer_len > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	copy_mac(data, macs.source);
	copy_mac(data + ETH_ALEN, macs.dest);
	*(u16 *)(data + 2 * ETH_ALEN) = bpf_htons(ETH_P_IP);
	words = (u32 *)ip;
	words[0] = bpf_htonl(0x45000000u | (packet->ip_len + outer_len));
	words[1] = bpf_htonl(IP_DONT_FRAGMENT);
	words[2] = bpf_htonl(64u << 24 | (udp_len ? IPPROTO_UDP : IPPROTO_IPIP) << 16);
	words[3] = floor_source_be;
	words[4] = real->addr_be;
	ip->check = csum_fold(csum_words(words, sizeof(*ip) / 4));
	if (udp_len) {
		udp = (void *)(ip + 1);
		udp->source = (u16)packet->key[0];
		udp->dest = bpf_htons(FLOOR_GUE_PORT);
		udp->len = bpf_htons((u16)(packet->ip_len + udp_len));
		udp->check = 0;
	}
	return XDP_TX;
}

static __always_inline int floor_send(struct xdp_md *ctx, const struct floor_packet *packet, u32 number)
{
	return floor_send_in(ctx, packet, number, 0);
}

/* The flow's slot by a keyed hash. */
static __always_inline u32 floor_index(const struct floor_packet *packet)
{
	return scale((u32)(mix_words(packet->key, 2, floor_key[0]) >> 32), FLOOR_FLOWS);
}

/* The time, and what an estimator has kept of the flow in this place. */
static __always_inline void floor_measure(u32 place)
{
	struct floor_state *state = bpf_map_lookup_elem(&floor_states, &place);
	u64 now_ns;

	if (!state)
		return;
	now_ns = bpf_ktime_get_ns();
	state->sum += now_ns - state->last_ns;
	state->last_ns = now_ns;
}

/* A connection's slot: its tuple's hash says which part of the table, 15 bits of its echo where in it. */
static __always_inline u32 floor_slot_index(const struct floor_packet *packet)
{
	return (floor_index(packet) & ~0x7fffu) | (bpf_ntohl(packet->echo) & 0x7fff);
}

/* The real of the flow's line in this place, which is aged. */
static __always_inline u32 floor_flow(const struct floor_packet *packet, u32 place)
{
	struct floor_flow *flow = bpf_map_lookup_elem(&floor_flows, &place);

	if (!flow)
		return 0;
	flow->age = packet->ip_len;
	return flow->real;
}

/* An id that the packet carries, under a hash. */
static __always_inline u32 floor_id(const struct floor_packet *packet)
{
	return packet->echo ^ (u32)siphash24(packet->key, 2, floor_key);
}

SEC("xdp")
int floor_cookie(struct xdp_md *ctx)
{
	struct floor_packet packet;

	return floor_read(ctx, &packet) ? floor_send(ctx, &packet, floor_id(&packet)) : XDP_ABORTED;
}

/* The same, of connections one of which in so many is measured: the question alone. */
SEC("xdp")
int floor_cookie_sampled(struct xdp_md *ctx)
{
	struct floor_packet packet;
	u32 place;

	if (!floor_read(ctx, &packet))
		return XDP_ABORTED;
	place = floor_index(&packet);
	if (place % cfg_one_in == floor_free)
		floor_measure(place);
	return floor_send(ctx, &packet, floor_id(&packet));
}

/* The same of each. */
SEC("xdp")
int floor_cookie_measured(struct xdp_md *ctx)
{
	struct floor_packet packet;

	if (!floor_read(ctx, &packet))
		return XDP_ABORTED;
	floor_measure(floor_index(&packet));
	return floor_send(ctx, &packet, floor_id(&packet));
}

SEC("xdp")
int floor_gue(struct xdp_md *ctx)
{
	struct floor_packet packet;

	return floor_read(ctx, &packet)
		       ? floor_send_in(ctx, &packet, floor_id(&packet), sizeof(struct udphdr))
		       : XDP_ABORTED;
}

/* A flow's line. */
SEC("xdp")
int floor_table(struct xdp_md *ctx)
{
	struct floor_packet packet;

	if (!floor_read(ctx, &packet))
		return XDP_ABORTED;
	return floor_send(ctx, &packet, floor_flow(&packet, floor_index(&packet)));
}

SEC("xdp")
int floor_table_measured(struct xdp_md *ctx)
{
	struct floor_packet packet;
	u32 place;

	if (!floor_read(ctx, &packet))
		return XDP_ABORTED;
	place = floor_index(&packet);
	floor_measure(place);
	return floor_send(ctx, &packet, floor_flow(&packet, place));
}

SEC("xdp")
int floor_slot(struct xdp_md *ctx)
{
	struct floor_packet packet;

	if (!floor_read(ctx, &packet))
		return XDP_ABORTED;
	return floor_send(ctx, &packet, floor_flow(&packet, floor_slot_index(&packet)));
}

SEC("xdp")
int floor_slot_measured(struct xdp_md *ctx)
{
	struct floor_packet packet;
	u32 place;

	if (!floor_read(ctx, &packet))
		return XDP_ABORTED;
	place = floor_slot_index(&packet);
	floor_measure(place);
	return floor_send(ctx, &packet, floor_flow(&packet, place));
}

/* A new flow: a real of the ring, and a line that is claimed and written. */
SEC("xdp")
int floor_syn(struct xdp_md *ctx)
{
	struct floor_packet packet;
	struct floor_flow *flow;
	u32 place, slot, *real;

	if (!floor_read(ctx, &packet))
		return XDP_ABORTED;
	slot = (u32)(siphash24(packet.key, 2, floor_key) % FLOOR_RING);
	real = bpf_map_lookup_elem(&floor_ring, &slot);
	place = floor_index(&packet);
	flow = bpf_map_lookup_elem(&floor_flows, &place);
	if (!real || !flow)
		return XDP_ABORTED;
	__sync_val_compare_and_swap(&flow->claim, floor_free, 1);
	flow->key[0] = packet.key[0];
	flow->key[1] = packet.key[1];
	flow->real = *real;
	return floor_send(ctx, &packet, *real);
}

/* A connection id of two halves under a network of three passes. */
SEC("xdp")
int floor_cid(struct xdp_md *ctx)
{
	struct floor_packet packet;
	u64 left, right;
	u8 *cid;

	if (!floor_read(ctx, &packet))
		return XDP_ABORTED;
	cid = (void *)(long)ctx->data + sizeof(struct ethhdr) + sizeof(struct iphdr) + 9;
	if ((void *)(cid + CID_OCTETS + 5) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	__builtin_memcpy(&left, cid + 1, 8);
	__builtin_memcpy(&right, cid + 6, 8);
#pragma unroll
	for (u32 pass = 0; pass < 3; pass++) {
		u64 word = right ^ (u64)pass << 56;

		right = left ^ siphash13(&word, 1, floor_key);
		left = word;
	}
	return floor_send(ctx, &packet, (u32)right);
}

char LICENSE[] SEC("license") = "GPL";
