/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A mirror in an XDP program: packets as they come and as they go, with the verdict, for
 * `causeway capture` and `causeway trace --live`. While it is off it costs two reads of
 * one integer.
 *
 * It must not harm the service. A packet that the filter does not match costs a copy of
 * its first bytes. Of those that match, a limited number a second is sampled, and a
 * limited number exported; the others are counted. The reader renews the mirror's
 * deadline, so that it ends with its reader.
 *
 * Trampolines (fentry, fexit) would need nothing in the program at all. Kernels that are
 * locked down refuse them.
 */
#ifndef CAUSEWAY_MIRROR_H
#define CAUSEWAY_MIRROR_H

#include "packet/parse.h"

/* Enough for two VLAN tags, IPv4 with all its options, and ports. */
#define MIRROR_HEAD_BYTES 96

/* A packet under way on this CPU, where there is one at a time. */
struct mirror_pending {
	u64 wanted; /* not 0: this packet is sampled */
	u64 window;
	u64 sampled; /* in that window */
	u64 results[COOKIE_RESULTS_MAX]; /* of its VIP, before it */
	struct mirror_record head;
	u8 data[2 * MIRROR_SNAP_MAX]; /* before, then after */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct mirror_ctl);
} mirror_ctl SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct mirror_pending);
} mirror_pending SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct mirror_counts);
} mirror_counts SEC(".maps");

/* What all CPUs have exported in a window. */
struct mirror_share {
	u64 window;
	u64 exported;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct mirror_share);
} mirror_share SEC(".maps");

/* The reader's ring: it takes no memory while there is no reader. */
struct mirror_buffer {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, u32);
	__array(values, struct mirror_buffer);
} mirror_ring SEC(".maps");

/* Where a packet comes from and goes to. */
struct mirror_ends {
	u32 from_be[4];
	struct vip_key to;
};

static __always_inline struct mirror_ctl *get_mirror_ctl(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&mirror_ctl, &zero);
}

static __always_inline struct mirror_pending *get_pending(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&mirror_pending, &zero);
}

/* Whether the mirror is on. */
static __always_inline bool is_mirrored(void)
{
	struct mirror_ctl *mirror = get_mirror_ctl();

	return mirror && mirror->until_ns;
}

/* The ends of an IPv4 packet that begins at `at`; without ports where there are none. */
static __always_inline bool mirror_ends4(const u8 *data, u32 at, struct mirror_ends *ends)
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
static __always_inline bool mirror_ends6(const u8 *data, u32 at, struct mirror_ends *ends)
{
	if (data[at] >> 4 != 6)
		return false;
	ends->to.proto = data[at + 6];
	__builtin_memcpy(ends->from_be, &data[at + 8], 16);
	__builtin_memcpy(ends->to.addr, &data[at + 24], 16);
	__builtin_memcpy(&ends->to.port_be, &data[at + 40 + 2], 2);
	return true;
}

/* `data` has MIRROR_HEAD_BYTES, zeros behind the frame's end. */
static __always_inline bool mirror_read_ends(const u8 *data, struct mirror_ends *ends)
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
		found = mirror_ends4(data, at, ends);
	else if (type_be == bpf_htons(ETH_P_IPV6))
		found = mirror_ends6(data, at, ends);
	else
		return false;
	if (ends->to.proto != IPPROTO_TCP && ends->to.proto != IPPROTO_UDP)
		ends->to.port_be = 0;
	return found;
}

/* ICMP to a VIP's address belongs to it, whatever port is asked for. */
static __always_inline bool is_for_mirrored_vip(const struct mirror_ctl *mirror, const struct mirror_ends *ends)
{
	u8 proto = ends->to.proto;

	if (__builtin_memcmp(ends->to.addr, mirror->vip_be, 16))
		return false;
	if (proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6)
		return true;
	if (mirror->vip_proto && proto != mirror->vip_proto)
		return false;
	return !mirror->vip_port_be || ends->to.port_be == mirror->vip_port_be;
}

static __always_inline bool is_from_mirrored_client(const struct mirror_ctl *mirror, const struct mirror_ends *ends)
{
	for (int i = 0; i < 4; i++)
		if ((ends->from_be[i] & mirror->client_mask_be[i]) != mirror->client_be[i])
			return false;
	return true;
}

static __always_inline bool
is_wanted(const struct mirror_ctl *mirror, const struct mirror_ends *ends, bool is_ip)
{
	if (mirror->flags & MIRROR_BY_VIP && !(is_ip && is_for_mirrored_vip(mirror, ends)))
		return false;
	return !(mirror->flags & MIRROR_BY_CLIENT) || (is_ip && is_from_mirrored_client(mirror, ends));
}

/* Whether this CPU may sample one more packet now. */
static __always_inline bool may_sample(const struct mirror_ctl *mirror, struct mirror_pending *p, u64 now)
{
	if (p->window != now >> MIRROR_WINDOW_SHIFT) {
		p->window = now >> MIRROR_WINDOW_SHIFT;
		p->sampled = 0;
	}
	return p->sampled++ < mirror->sampled_max;
}

/*
 * Whether one more packet may be exported now. Two CPUs that begin a window at the same
 * time export a few too many.
 */
static __always_inline bool may_export(const struct mirror_ctl *mirror, u64 now)
{
	u32 zero = 0;
	struct mirror_share *share = bpf_map_lookup_elem(&mirror_share, &zero);

	if (!share)
		return false;
	if (share->window != now >> MIRROR_WINDOW_SHIFT) {
		share->window = now >> MIRROR_WINDOW_SHIFT;
		share->exported = 0;
	}
	if (share->exported >= mirror->exported_max)
		return false;
	return __sync_fetch_and_add(&share->exported, 1) < mirror->exported_max;
}

/* Copies up to `most` bytes of the frame to `at` in the data; how many, 0 for a fault. */
static __always_inline u32 mirror_copy(struct xdp_md *ctx, struct mirror_pending *p, u32 at, u32 len, u32 most)
{
	u64 size = CW_MIN(len, most), from = at;

	if (!size || size > MIRROR_SNAP_MAX)
		return 0;
	/* Linux 6.1 has to see both bounds, in 64 bits: at least one byte. */
	size -= 1;
	asm volatile("" : "+r"(size), "+r"(from));
	size = (size & (MIRROR_SNAP_MAX - 1)) + 1;
	if (from > MIRROR_SNAP_MAX)
		return 0;
	return bpf_xdp_load_bytes(ctx, 0, p->data + from, (u32)size) ? 0 : (u32)size;
}

/*
 * A packet that comes while the mirror is on: copied as it came if it is wanted, and its
 * ends read. NULL: it is not wanted.
 */
static __always_inline struct mirror_pending *mirror_begin(struct xdp_md *ctx, struct mirror_ends *ends)
{
	u32 zero = 0, len = (u32)bpf_xdp_get_buff_len(ctx);
	struct mirror_counts *counts = bpf_map_lookup_elem(&mirror_counts, &zero);
	struct mirror_pending *p = get_pending();
	struct mirror_ctl *mirror = get_mirror_ctl();
	u64 now = bpf_ktime_get_ns();
	bool is_ip;

	if (!p || !mirror || !counts)
		return NULL;
	p->wanted = 0;
	if (now > mirror->until_ns) {
		mirror->until_ns = 0;
		return NULL;
	}
	counts->seen += 1;
	if (mirror->threshold != CW_U32_MAX && bpf_get_prandom_u32() > mirror->threshold)
		return NULL;
	__builtin_memset(p->data, 0, MIRROR_HEAD_BYTES);
	mirror_copy(ctx, p, 0, len, MIRROR_HEAD_BYTES);
	is_ip = mirror_read_ends(p->data, ends);
	if (!is_wanted(mirror, ends, is_ip))
		return NULL;
	counts->matched += 1;
	if (!may_sample(mirror, p, now)) {
		counts->skipped += 1;
		return NULL;
	}
	p->head.t_ns = now;
	p->head.before_len = len;
	p->head.before_snap = (u16)mirror_copy(ctx, p, 0, len, mirror->snap);
	p->head.vip = MIRROR_NO_VIP;
	p->wanted = 1;
	return p;
}

/*
 * What became of the packet that mirror_begin copied: exported with the frame as it is
 * now, unless it was neither sent nor changed.
 */
static __always_inline void
mirror_end(struct xdp_md *ctx, struct mirror_pending *p, u32 verdict, u32 result, bool sent)
{
	u32 zero = 0, len = (u32)bpf_xdp_get_buff_len(ctx), after = 0;
	struct mirror_counts *counts = bpf_map_lookup_elem(&mirror_counts, &zero);
	struct mirror_ctl *mirror = get_mirror_ctl();
	void *ring;
	u64 total;

	if (!mirror || !counts || verdict >= VERDICTS_MAX)
		return;
	p->wanted = 0;
	if (!(mirror->verdicts >> verdict & 1))
		return;
	if (!may_export(mirror, p->head.t_ns)) {
		counts->over_rate += 1;
		return;
	}
	if (sent || len != p->head.before_len)
		after = mirror_copy(ctx, p, p->head.before_snap, len, mirror->snap);
	p->head.after_len = after ? len : 0;
	p->head.after_snap = (u16)after;
	p->head.verdict = (u8)verdict;
	p->head.result = (u8)result;
	total = sizeof(p->head) + p->head.before_snap + after;
	asm volatile("" : "+r"(total));
	if (total > sizeof(p->head) + sizeof(p->data))
		return;
	ring = bpf_map_lookup_elem(&mirror_ring, &zero);
	if (!ring || bpf_ringbuf_output(ring, &p->head, total, BPF_RB_NO_WAKEUP))
		counts->lost += 1;
	else
		counts->exported += 1;
}

#endif
