/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A tap in an XDP program: packets as they come and as they go, with the verdict, for
 * `causeway capture` and `causeway trace --live`. While nobody looks it costs two reads
 * of one word.
 *
 * It must not harm the service. What the filter does not want costs a copy of the first
 * bytes; of what it wants, so many packets a second are looked at and so many are handed
 * on, and the others are counted. Whoever looks says until when; if they are killed, the
 * program stops by itself.
 *
 * Trampolines (fentry, fexit) would need nothing in the program at all. Kernels that are
 * locked down refuse them.
 */
#ifndef CAUSEWAY_TAP_H
#define CAUSEWAY_TAP_H

#include "../packet/parse.h"

/* Enough for two VLAN tags, IPv4 with all its options, and ports. */
#define TAP_HEAD_BYTES 96

/* A packet under way on this CPU, where there is one at a time. */
struct tap_pending {
	u64 wanted; /* not 0: this packet is looked at */
	u64 window;
	u64 looked; /* in that window */
	u64 results[COOKIE_RESULTS_MAX]; /* of its VIP, before it */
	struct tap_record head;
	u8 data[2 * TAP_SNAP_MAX]; /* before, then after */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tap_ctl);
} tap_ctl SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tap_pending);
} tap_pending SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tap_counts);
} tap_counts SEC(".maps");

/* What all CPUs have handed on in a window. */
struct tap_share {
	u64 window;
	u64 taken;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tap_share);
} tap_share SEC(".maps");

/* The ring of whoever looks: no memory is held for it while nobody does. */
struct tap_buffer {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, u32);
	__array(values, struct tap_buffer);
} tap_ring SEC(".maps");

/* Where a packet comes from and goes to. */
struct tap_ends {
	u32 from_be[4];
	struct vip_key to;
};

static __always_inline struct tap_ctl *get_tap(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&tap_ctl, &zero);
}

static __always_inline struct tap_pending *get_pending(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&tap_pending, &zero);
}

/* Whether somebody looks. */
static __always_inline bool is_tapped(void)
{
	struct tap_ctl *tap = get_tap();

	return tap && tap->until_ns;
}

/* The ends of an IPv4 packet that begins at `at`; without ports where there are none. */
static __always_inline bool tap_ends4(const u8 *data, u32 at, struct tap_ends *ends)
{
	u32 header = (data[at] & 0xfu) * 4;
	u16 fragment_be;

	if (data[at] >> 4 != 4 || header < 20)
		return false;
	ends->to.proto = data[at + 9];
	ends->from_be[2] = bpf_htonl(0xffff);
	ends->to.addr[10] = ends->to.addr[11] = 0xff;
	__builtin_memcpy(&ends->from_be[3], &data[at + 12], 4);
	__builtin_memcpy(&ends->to.addr[12], &data[at + 16], 4);
	__builtin_memcpy(&fragment_be, &data[at + 6], 2);
	if (!(fragment_be & bpf_htons(IP_OFFSET)))
		__builtin_memcpy(&ends->to.port_be, &data[at + header + 2], 2);
	return true;
}

/* The same of IPv6. Behind extension headers ports are not looked for. */
static __always_inline bool tap_ends6(const u8 *data, u32 at, struct tap_ends *ends)
{
	if (data[at] >> 4 != 6)
		return false;
	ends->to.proto = data[at + 6];
	__builtin_memcpy(ends->from_be, &data[at + 8], 16);
	__builtin_memcpy(ends->to.addr, &data[at + 24], 16);
	__builtin_memcpy(&ends->to.port_be, &data[at + 40 + 2], 2);
	return true;
}

/* `data` has TAP_HEAD_BYTES, zeros behind the frame's end. */
static __always_inline bool tap_read_ends(const u8 *data, struct tap_ends *ends)
{
	u32 at = 2 * ETH_ALEN;
	u16 type_be;
	bool found;

	__builtin_memcpy(&type_be, &data[at], 2);
#pragma unroll
	for (u32 i = 0; i < MAX_VLAN_TAGS; i++) {
		if (!is_vlan(type_be))
			break;
		at += 4;
		__builtin_memcpy(&type_be, &data[at], 2);
	}
	at += 2;
	if (type_be == bpf_htons(ETH_P_IP))
		found = tap_ends4(data, at, ends);
	else if (type_be == bpf_htons(ETH_P_IPV6))
		found = tap_ends6(data, at, ends);
	else
		return false;
	if (ends->to.proto != IPPROTO_TCP && ends->to.proto != IPPROTO_UDP)
		ends->to.port_be = 0;
	return found;
}

/* ICMP to a VIP's address belongs to it, whatever port is asked for. */
static __always_inline bool is_for_tapped_vip(const struct tap_ctl *tap, const struct tap_ends *ends)
{
	u8 proto = ends->to.proto;

	if (__builtin_memcmp(ends->to.addr, tap->vip_be, 16))
		return false;
	if (proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6)
		return true;
	if (tap->vip_proto && proto != tap->vip_proto)
		return false;
	return !tap->vip_port_be || ends->to.port_be == tap->vip_port_be;
}

static __always_inline bool is_from_tapped_client(const struct tap_ctl *tap, const struct tap_ends *ends)
{
	for (int i = 0; i < 4; i++)
		if ((ends->from_be[i] & tap->client_mask_be[i]) != tap->client_be[i])
			return false;
	return true;
}

static __always_inline bool
is_wanted(const struct tap_ctl *tap, const struct tap_ends *ends, bool is_ip)
{
	if (tap->flags & TAP_BY_VIP && !(is_ip && is_for_tapped_vip(tap, ends)))
		return false;
	return !(tap->flags & TAP_BY_CLIENT) || (is_ip && is_from_tapped_client(tap, ends));
}

/* Whether this CPU may look at one more packet now. */
static __always_inline bool may_look(const struct tap_ctl *tap, struct tap_pending *p, u64 now)
{
	if (p->window != now >> TAP_WINDOW_SHIFT) {
		p->window = now >> TAP_WINDOW_SHIFT;
		p->looked = 0;
	}
	return p->looked++ < tap->looked_max;
}

/*
 * Whether one more packet may be handed on now. Two CPUs that begin a window at a time
 * hand on a few too many.
 */
static __always_inline bool may_take(const struct tap_ctl *tap, u64 now)
{
	u32 zero = 0;
	struct tap_share *share = bpf_map_lookup_elem(&tap_share, &zero);

	if (!share)
		return false;
	if (share->window != now >> TAP_WINDOW_SHIFT) {
		share->window = now >> TAP_WINDOW_SHIFT;
		share->taken = 0;
	}
	if (share->taken >= tap->taken_max)
		return false;
	return __sync_fetch_and_add(&share->taken, 1) < tap->taken_max;
}

/* Copies up to `most` bytes of the frame to `at` in the data; how many, 0 for a fault. */
static __always_inline u32 tap_copy(struct xdp_md *ctx, struct tap_pending *p, u32 at, u32 len, u32 most)
{
	u64 size = CW_MIN(len, most), from = at;

	if (!size || size > TAP_SNAP_MAX)
		return 0;
	/* Linux 6.1 has to see both bounds, in 64 bits: at least one byte. */
	size -= 1;
	asm volatile("" : "+r"(size), "+r"(from));
	size = (size & (TAP_SNAP_MAX - 1)) + 1;
	if (from > TAP_SNAP_MAX)
		return 0;
	return bpf_xdp_load_bytes(ctx, 0, p->data + from, (u32)size) ? 0 : (u32)size;
}

static __always_inline u32 frame_len(const struct xdp_md *ctx)
{
	u32 len = (u32)((void *)(long)ctx->data_end - (void *)(long)ctx->data);

	/* Subtracted here: half a pointer cannot be kept on the stack. */
	asm volatile("" : "+r"(len));
	return len;
}

/*
 * A packet that comes while somebody looks: copied as it is if it is wanted, and its
 * ends told. NULL: it is not.
 */
static __always_inline struct tap_pending *tap_begin(struct xdp_md *ctx, struct tap_ends *ends)
{
	u32 zero = 0, len = frame_len(ctx);
	struct tap_counts *counts = bpf_map_lookup_elem(&tap_counts, &zero);
	struct tap_pending *p = get_pending();
	struct tap_ctl *tap = get_tap();
	u64 now = bpf_ktime_get_ns();
	bool is_ip;

	if (!p || !tap || !counts)
		return NULL;
	p->wanted = 0;
	if (now > tap->until_ns) {
		tap->until_ns = 0;
		return NULL;
	}
	counts->seen += 1;
	if (tap->threshold != CW_U32_MAX && bpf_get_prandom_u32() > tap->threshold)
		return NULL;
	__builtin_memset(p->data, 0, TAP_HEAD_BYTES);
	tap_copy(ctx, p, 0, len, TAP_HEAD_BYTES);
	is_ip = tap_read_ends(p->data, ends);
	if (!is_wanted(tap, ends, is_ip))
		return NULL;
	counts->matched += 1;
	if (!may_look(tap, p, now)) {
		counts->unlooked += 1;
		return NULL;
	}
	p->head.t_ns = now;
	p->head.before_len = len;
	p->head.before_snap = (u16)tap_copy(ctx, p, 0, len, tap->snap);
	p->head.vip = TAP_NO_VIP;
	p->wanted = 1;
	return p;
}

/*
 * What became of the packet that tap_begin took: handed on with the frame as it is now,
 * unless it was neither sent nor changed.
 */
static __always_inline void
tap_end(struct xdp_md *ctx, struct tap_pending *p, u32 verdict, u32 result, bool sent)
{
	u32 zero = 0, len = frame_len(ctx), after = 0;
	struct tap_counts *counts = bpf_map_lookup_elem(&tap_counts, &zero);
	struct tap_ctl *tap = get_tap();
	void *ring;
	u64 total;

	if (!tap || !counts || verdict >= VERDICTS_MAX)
		return;
	p->wanted = 0;
	if (!(tap->verdicts >> verdict & 1))
		return;
	if (!may_take(tap, p->head.t_ns)) {
		counts->over_rate += 1;
		return;
	}
	if (sent || len != p->head.before_len)
		after = tap_copy(ctx, p, p->head.before_snap, len, tap->snap);
	p->head.after_len = after ? len : 0;
	p->head.after_snap = (u16)after;
	p->head.verdict = (u8)verdict;
	p->head.result = (u8)result;
	total = sizeof(p->head) + p->head.before_snap + after;
	asm volatile("" : "+r"(total));
	if (total > sizeof(p->head) + sizeof(p->data))
		return;
	ring = bpf_map_lookup_elem(&tap_ring, &zero);
	if (!ring || bpf_ringbuf_output(ring, &p->head, total, BPF_RB_NO_WAKEUP))
		counts->lost += 1;
	else
		counts->taken += 1;
}

#endif
