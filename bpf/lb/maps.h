/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The balancer's maps. Sizes are defaults; the loader may set others before it loads. */
#ifndef CAUSEWAY_LB_MAPS_H
#define CAUSEWAY_LB_MAPS_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "../shared/abi.h"
#include "../shared/hist.h"

#define DEFAULT_BUCKETS4 81920
#define DEFAULT_BUCKETS6 20480
#define DEFAULT_VIPS 1024
#define DEFAULT_REALS 4096
#define DEFAULT_RING 65537
#define DEFAULT_COOKIE_VIPS 64
#define SYN_CACHE_BUCKETS 16384 /* 1 MiB; a power of two */

/*
 * Whether the program is to say what it would do with a packet, on the maps of one
 * that does it: nothing is written then, and the verdict is returned.
 */
const volatile bool cfg_dry = false;

/* Whether latencies are measured. */
const volatile bool cfg_measure = true;

/* The flow table, see flow_table.h. BPF_F_MMAPABLE, so that values begin on cache lines. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DEFAULT_BUCKETS4 * FLOW_WAYS);
	__type(key, u32);
	__type(value, struct flow);
} flows4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DEFAULT_BUCKETS6 * FLOW_WAYS);
	__type(key, u32);
	__type(value, struct flow);
} flows6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DEFAULT_BUCKETS4);
	__type(key, u32);
	__type(value, struct flow_bucket);
} buckets4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DEFAULT_BUCKETS6);
	__type(key, u32);
	__type(value, struct flow_bucket);
} buckets6 SEC(".maps");

/* Connections of stateful VIPs, see conn_table.h; the loader sets the sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct flow);
} conn_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct conn_free_ring);
} conn_free_slots SEC(".maps");

/* Up to three entries a VIP: the VIP itself, its address, and its address's fragments. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 3 * DEFAULT_VIPS);
	__type(key, struct vip_key);
	__type(value, struct vip);
} vips SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VIPS_SEEN);
	__type(key, u32);
	__type(value, struct vip_seen);
} vips_seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DEFAULT_REALS);
	__type(key, u32);
	__type(value, struct real);
} reals SEC(".maps");

/*
 * One ring of real ids a VIP, indexed by hash % vip.ring_size. A ring is never
 * changed in place: user space fills a new array and swaps it in. BPF_F_INNER_MAP
 * lets rings differ in size. When a ring grows, swap it before vip.ring_size is
 * raised; when it shrinks, after.
 *
 * Where weights move or rings are of turns, balancers' rings differ. What comes without a
 * memory of its real goes by another ring then, of configured weights, which balancers with
 * one configuration have alike: number cfg_plain_rings + that of the ring beside it. Who had
 * each slot of it before is in a third one, number cfg_former_rings + the VIP's.
 */
struct ring {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP | BPF_F_MMAPABLE);
	__uint(max_entries, DEFAULT_RING);
	__type(key, u32);
	__type(value, u32);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 3 * DEFAULT_VIPS + 2 * SOURCE_GROUPS);
	__type(key, u32);
	__array(values, struct ring);
} rings SEC(".maps");

/* Groups of client prefixes have rings behind those of the VIPs. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct source_key);
	__type(value, u32); /* the group */
} sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SOURCE_GROUPS);
	__type(key, u32);
	__type(value, struct source_group);
} source_groups SEC(".maps");

/* New flows that went by a group's ring. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SOURCE_GROUPS);
	__type(key, u32);
	__type(value, u64);
} source_picks SEC(".maps");

/* By VIP. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DEFAULT_VIPS);
	__type(key, u32);
	__type(value, struct vip_limit);
} vip_limits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LIMIT_BUCKETS);
	__type(key, u32);
	__type(value, struct limit_bucket);
} limits SEC(".maps");

/* By VIP. One counter for all CPUs: turns are taken in one order, whatever CPU takes them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DEFAULT_VIPS);
	__type(key, u32);
	__type(value, struct turns);
} turns SEC(".maps");

/* By real. User space adds to it in place, beside the data plane. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DEFAULT_REALS);
	__type(key, u32);
	__type(value, struct real_load);
} real_loads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct ctl);
} ctl SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VERDICTS_MAX);
	__type(key, u32);
	__type(value, struct packets_bytes);
} verdicts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DEFAULT_VIPS);
	__type(key, u32);
	__type(value, struct packets_bytes);
} vip_stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DEFAULT_REALS);
	__type(key, u32);
	__type(value, struct real_stats);
} real_stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cookie_keys);
} cookie_keys SEC(".maps");

/* COOKIE_IDS slots for each VIP with cookies. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DEFAULT_COOKIE_VIPS * COOKIE_IDS);
	__type(key, u32);
	__type(value, struct cookie_slot);
} cookie_slots SEC(".maps");

/* QUIC_CODEPOINTS for each VIP with cookies: how its connection ids are made. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DEFAULT_COOKIE_VIPS * QUIC_CODEPOINTS);
	__type(key, u32);
	__type(value, struct quic_lb_config);
} quic_configs SEC(".maps");

/* By VIP. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DEFAULT_VIPS);
	__type(key, u32);
	__type(value, struct cookie_counts);
} cookie_counts SEC(".maps");

/* By hash of the tuple. An array: an LRU hash that must evict costs 600 ns a SYN. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SYN_CACHE_BUCKETS);
	__type(key, u32);
	__type(value, struct syn_cache_bucket);
} syn_cache SEC(".maps");

/*
 * Latency histograms, one per real. Shared by the CPUs and added to atomically: a
 * sample comes once a burst, not once a packet, and 4,096 histograms for each of
 * 64 CPUs would take 900 MB.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DEFAULT_REALS);
	__type(key, u32);
	__type(value, struct histogram);
} real_hist SEC(".maps");

/* What a step of the estimator says: more than there is stack for. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct est_samples);
} step_samples SEC(".maps");

static __always_inline struct ctl *get_ctl(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&ctl, &zero);
}

/* The real with this id, if its slot is in use. */
static __always_inline struct real *find_real(u32 id)
{
	struct real *real = bpf_map_lookup_elem(&reals, &id);

	return real && real->flags & REAL_PRESENT ? real : NULL;
}

/* The real that a cookie's id stands for; NULL if it stands for none that is there. */
static __always_inline struct real *real_in(const struct cookie_slot *slot, u32 *real_id)
{
	*real_id = slot->real - 1;
	return slot->real ? find_real(*real_id) : NULL;
}

#endif
