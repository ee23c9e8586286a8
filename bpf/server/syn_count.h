/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Where SYNs and connections are counted: one ring of slots of time for each
 * category of clients. A slot is time / length; the first packet of a newer
 * time empties it, under the slot's lock, so that nothing is counted in between.
 *
 * Memory: slots are 256 bytes; a category has cfg_ring of them. Attempts that are not
 * connected and connections each have a table of fixed size, in which the one that
 * was silent longest is evicted: a flood fills the first and leaves the second alone.
 */
#ifndef CAUSEWAY_SERVER_SYN_COUNT_H
#define CAUSEWAY_SERVER_SYN_COUNT_H

#include <stdbool.h>
#include <linux/in.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "../shared/syn_abi.h"

/* Sizes are defaults; the loader sets others before it loads. */
#define DEFAULT_HALF_OPEN 65536
#define DEFAULT_CONNECTIONS 131072

const volatile u64 cfg_slot_ns = 250000000;
const volatile u32 cfg_ring = 512;     /* slots for each category */
const volatile u32 cfg_services = 1;   /* how many; the last one is every other */
const volatile u32 cfg_prefixes = 1;   /* likewise */
const volatile bool cfg_all_services;  /* whether every other service is counted */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, DEFAULT_HALF_OPEN);
	__type(key, struct flow_key6);
	__type(value, struct syn_entry);
} syn_half_open SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, DEFAULT_CONNECTIONS);
	__type(key, struct flow_key6);
	__type(value, struct syn_entry);
} syn_connections SEC(".maps");

/* Attempts whose client came again by the same tuple before the agent had judged them. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SYN_FORMER);
	__type(key, struct syn_attempt);
	__type(value, struct syn_entry);
} syn_former SEC(".maps");

struct syn_slot_locked {
	struct bpf_spin_lock lock;
	u32 pad;
	struct syn_slot slot;
};
_Static_assert(sizeof(struct syn_slot_locked) == SYN_SLOT_LOCKED, "struct syn_slot_locked");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct syn_slot_locked);
} syn_slots SEC(".maps");

/* ACCEPTED[p, i] of Certes, eq. 7: completed connections by the slot of their SYN. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SYN_ORIGINS);
	__type(key, struct syn_origin);
	__type(value, u64);
} syn_origins SEC(".maps");

/* When the retries came that were answered: what the clients' schedules are told by. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SYN_RETRY_TIMES);
	__type(key, struct syn_retry_time);
	__type(value, u64);
} syn_retry_times SEC(".maps");

/* How long the transactions of a category took, since counting began. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct syn_responses);
} syn_responses SEC(".maps");

/* Addresses and ports that have answered a SYN, of services that are not told apart. Where a
 * firewall drops SYNs there is no service to wait for. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SYN_OPEN);
	__type(key, struct vip_key);
	__type(value, u32);
} syn_open SEC(".maps");

/* Services by address and port; an address or port of zeroes is any. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SYN_SERVICES);
	__type(key, struct vip_key);
	__type(value, u32);
} syn_services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SYN_PREFIXES);
	__type(key, struct syn_prefix);
	__type(value, u32);
} syn_prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SYN_DEVICES);
	__type(key, u32);
	__type(value, u32);
} syn_devices SEC(".maps");

/* Number of the service, from 0; cfg_services: it is none of ours. */
static __always_inline u32 find_service(const struct flow_key6 *conn)
{
	struct vip_key key = { .proto = IPPROTO_TCP, .port_be = conn->dport_be };
	u32 *found;

	if (cfg_services == cfg_all_services)
		return cfg_all_services ? 0 : cfg_services;
	__builtin_memcpy(key.addr, conn->daddr_be, sizeof(key.addr));
	found = bpf_map_lookup_elem(&syn_services, &key);
	if (found)
		return *found;
	key.port_be = 0;
	found = bpf_map_lookup_elem(&syn_services, &key);
	if (found)
		return *found;
	__builtin_memset(key.addr, 0, sizeof(key.addr));
	key.port_be = conn->dport_be;
	found = bpf_map_lookup_elem(&syn_services, &key);
	if (found)
		return *found;
	return cfg_all_services ? cfg_services - 1 : cfg_services;
}

static __always_inline bool is_other(u32 service)
{
	return cfg_all_services && service == cfg_services - 1;
}

static __always_inline bool is_open(const struct flow_key6 *conn)
{
	struct vip_key key = { .proto = IPPROTO_TCP, .port_be = conn->dport_be };

	__builtin_memcpy(key.addr, conn->daddr_be, sizeof(key.addr));
	return bpf_map_lookup_elem(&syn_open, &key);
}

/* A SYN-ACK leaves: from the next SYN on the port counts. */
static __always_inline void note_open(const struct flow_key6 *conn)
{
	struct vip_key key = { .proto = IPPROTO_TCP, .port_be = conn->dport_be };
	u32 one = 1;

	if (!is_other(find_service(conn)) || is_open(conn))
		return;
	__builtin_memcpy(key.addr, conn->daddr_be, sizeof(key.addr));
	bpf_map_update_elem(&syn_open, &key, &one, BPF_ANY);
}

/* The category of a client's connection; false: it is not to be counted. */
static __always_inline bool find_category(const struct flow_key6 *conn, u32 ifindex, u32 *category)
{
	struct syn_prefix client = { .length = 128 };
	u32 *device = bpf_map_lookup_elem(&syn_devices, &ifindex);
	u32 service = find_service(conn), prefix = cfg_prefixes - 1;

	if (!device || service >= cfg_services)
		return false;
	if (is_other(service) && !is_open(conn))
		return false;
	if (cfg_prefixes > 1) {
		u32 *found;

		__builtin_memcpy(client.addr, conn->saddr_be, sizeof(client.addr));
		found = bpf_map_lookup_elem(&syn_prefixes, &client);
		prefix = found ? *found : prefix;
	}
	*category = (*device * cfg_services + service) * cfg_prefixes + prefix;
	return true;
}

/* The slot of a time; NULL where the category has none. */
static __always_inline struct syn_slot_locked *find_slot(u32 category, u64 number)
{
	u32 index = category * cfg_ring + (u32)(number % cfg_ring);

	return bpf_map_lookup_elem(&syn_slots, &index);
}

/* With the lock held: false if the ring has moved on past that slot. */
static __always_inline bool enter_slot(struct syn_slot *slot, u64 number)
{
	if (slot->number > number)
		return false;
	if (slot->number < number) {
		__builtin_memset(slot, 0, sizeof(*slot));
		slot->number = number;
	}
	return true;
}

static __always_inline void add_outcome(struct syn_slot *slot, const struct syn_outcome *out, u32 retry)
{
	if (out->timed == SYN_TIMED_KNOWN) {
		slot->timed += 1;
		slot->server_ns += out->server_ns;
	}
	slot->overlapping += out->timed == SYN_TIMED_OVERLAPS;
	switch (out->count) {
	case SYN_COUNT_OFFERED:
		slot->offered[retry] += 1;
		break;
	case SYN_COUNT_ACCEPTED:
		slot->accepted[retry] += 1;
		break;
	case SYN_COUNT_REFUSED:
		slot->offered[retry] -= slot->offered[retry] > 0;
		slot->refused += 1;
		break;
	case SYN_COUNT_DUPLICATE:
		slot->duplicates += 1;
		break;
	case SYN_COUNT_ESTABLISHED:
		slot->established += 1;
		slot->established_first += !retry;
		slot->established_late += out->answers > 1;
		break;
	case SYN_COUNT_COMPLETED:
		slot->completed += 1;
		slot->conn_fail_ns += out->conn_fail_ns;
		slot->syn_to_end_ns += out->syn_to_end_ns;
		slot->rtt_ns += out->rtt_ns;
		break;
	case SYN_COUNT_LATER:
		slot->later += 1;
		slot->later_ns += out->syn_to_end_ns;
		slot->rtt_ns += out->rtt_ns;
		break;
	case SYN_COUNT_UNUSED:
		slot->unused += 1;
		break;
	case SYN_COUNT_SERVED:
		slot->served += 1;
		slot->served_first += !retry;
		break;
	case SYN_COUNT_RESENT:
		slot->syn_to_end_ns += out->syn_to_end_ns;
		break;
	case SYN_COUNT_STALLED:
		slot->stalled += 1;
		slot->stalled_ns += out->conn_fail_ns;
		break;
	case SYN_COUNT_ABANDONED:
		slot->abandoned += 1;
		break;
	}
}

static __always_inline void count_in_slot(u32 category, const struct syn_outcome *out)
{
	u64 number = out->at_ns / cfg_slot_ns;
	struct syn_slot_locked *locked = find_slot(category, number);
	u32 retry = CW_MASKED(out->retry, SYN_RETRY_MAX);

	if (!locked)
		return;
	bpf_spin_lock(&locked->lock);
	if (enter_slot(&locked->slot, number))
		add_outcome(&locked->slot, out, retry);
	bpf_spin_unlock(&locked->lock);
}

/* A first SYN turned out to be of a real client, in its own slot. */
static __always_inline void count_heard(u32 category, const struct syn_outcome *out)
{
	u64 number = out->first_syn_ns / cfg_slot_ns;
	struct syn_slot_locked *locked = find_slot(category, number);

	if (!locked)
		return;
	bpf_spin_lock(&locked->lock);
	if (locked->slot.number == number) {
		locked->slot.heard += 1;
		locked->slot.heard_answered += out->count != SYN_COUNT_OFFERED && !out->retry;
	}
	bpf_spin_unlock(&locked->lock);
}

static __always_inline void add_one(void *map, const void *key)
{
	u64 one = 1, *count = bpf_map_lookup_elem(map, key);

	/* Two that come first at once: the second finds the first one's. */
	if (!count && bpf_map_update_elem(map, key, &one, BPF_NOEXIST) == 0)
		return;
	if (!count)
		count = bpf_map_lookup_elem(map, key);
	if (count)
		__sync_fetch_and_add(count, 1);
}

static __always_inline void count_origin(u32 category, const struct syn_outcome *out)
{
	u64 number = out->at_ns / cfg_slot_ns;
	struct syn_origin key = {
		.number = number,
		.category = category,
		.slots_ago = (u32)(number - out->accepted_ns / cfg_slot_ns),
	};

	add_one(&syn_origins, &key);
}

static __always_inline void count_retry_time(const struct syn_outcome *out)
{
	struct syn_retry_time key = {
		.retry = out->retry,
		.at_cs = cw_sat32(out->conn_fail_ns / (10 * CW_MS_NS)),
	};

	add_one(&syn_retry_times, &key);
}

/* Where a response that took so long is counted. */
static __always_inline u32 response_bucket(u64 took_ns)
{
#define IS_OVER(bound_us) + (took_ns > (u64)(bound_us) * CW_US_NS)
	u32 bucket = 0 SYN_BUCKET_BOUNDS_US(IS_OVER);
#undef IS_OVER

	return CW_MASKED(bucket, SYN_BUCKETS - 1);
}

/*
 * A transaction took so long, or is_more: one that is counted took so much longer. The search
 * for silent ones may be interrupted by a packet. Apart, so that the verifier sees it once.
 */
CW_GLOBAL int count_response(u32 category, u64 took_ns, u32 is_more)
{
	struct syn_responses *of = bpf_map_lookup_elem(&syn_responses, &category);

	if (!of)
		return 0;
	if (!is_more)
		__sync_fetch_and_add(&of->count[response_bucket(took_ns)], 1);
	__sync_fetch_and_add(&of->sum_ns, took_ns);
	return 0;
}

/* Counts what came of an event, wherever it belongs. */
static __always_inline void count_outcome(u32 category, const struct syn_outcome *out)
{
	if (out->count != SYN_COUNT_NOTHING)
		count_in_slot(category, out);
	if (out->heard)
		count_heard(category, out);
	if (out->count == SYN_COUNT_COMPLETED)
		count_origin(category, out);
	if (out->count == SYN_COUNT_ACCEPTED && out->retry)
		count_retry_time(out);
	if (out->count == SYN_COUNT_COMPLETED || out->count == SYN_COUNT_LATER ||
	    out->count == SYN_COUNT_STALLED)
		count_response(category, out->conn_fail_ns + out->syn_to_end_ns + out->rtt_ns, 0);
	if (out->count == SYN_COUNT_RESENT)
		count_response(category, out->syn_to_end_ns, 1);
}

#endif
