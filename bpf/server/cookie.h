/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Cookies at a server: what its maps hold, and which VIP a segment is of.
 *
 * The kernel's TCP must not notice. Whatever leaves has the cookie in its timestamp;
 * whatever comes back has the value restored that the kernel had put there, because
 * the kernel checks it (TSEcrRejected) and measures round trips by it.
 */
#ifndef CAUSEWAY_SERVER_COOKIE_H
#define CAUSEWAY_SERVER_COOKIE_H

#include "conn_token.h"
#include "segment.h"
#include "tcp_sock.h"
#include "../shared/cookie_clock.h"

#define SERVER_VIPS 1024
#define ECHOES 16384

/* Set by the loader: the network namespace that the agent lives in. */
const volatile u64 cfg_netns_cookie = 0;
/* The same: keeps clients from choosing each other's names. */
const volatile u64 cfg_name_seed = 1;

/* Where an open connection's clock is. */
enum cookie_lent {
	CLOCK_IS_HERE = 0,
	CLOCK_IS_LENT = 1,    /* in its line, which had the connection's name before this was written */
	CLOCK_IS_LEAVING = 2, /* on its way there: here it is as new as there */
};

/* A connection with an event-driven clock. */
struct cookie_socket {
	struct bpf_spin_lock lock; /* out and in may run on two CPUs */
	u32 cookie;
	u64 name; /* under which the clock is lent, see timestamp_cache.h */
	struct cookie_clock clock; /* bits 0: opened by this server, not its VIP's client */
	u32 lease_t; /* as far as the clock runs while it is lent */
	u32 is_lent; /* enum cookie_lent */
	u32 pad;
};
_Static_assert(sizeof(struct cookie_socket) == 64, "no hidden padding");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVER_VIPS);
	__type(key, struct vip_key);
	__type(value, struct server_vip);
} cookie_vips SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cookie_keys);
} cookie_keys SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct cookie_socket);
} cookie_sockets SEC(".maps");

/* The last echo of connections in TIME_WAIT, by tuple; IPv4 as IPv4-mapped. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, ECHOES);
	__type(key, struct flow_key6);
	__type(value, u32);
} cookie_echoes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERVER_COOKIES_MAX);
	__type(key, u32);
	__type(value, u64);
} cookie_events SEC(".maps");

static __always_inline void count_event(enum server_cookie event)
{
	u32 index = event;
	u64 *counter = bpf_map_lookup_elem(&cookie_events, &index);

	if (counter)
		*counter += 1;
}

/* The VIP with the segment's port, else the one with all ports. */
static __always_inline struct server_vip *find_server_vip(struct vip_key *key)
{
	struct server_vip *vip = bpf_map_lookup_elem(&cookie_vips, key);

	if (vip)
		return vip;
	key->port_be = 0;
	return bpf_map_lookup_elem(&cookie_vips, key);
}

static __always_inline struct server_vip *segment_vip(const struct segment *seg)
{
	struct vip_key key = { .proto = IPPROTO_TCP };

	if (seg->family == IPV4) {
		key.addr[10] = key.addr[11] = 0xff;
		__builtin_memcpy(&key.addr[12], &seg->key4.daddr_be, 4);
		key.port_be = seg->key4.dport_be;
	} else {
		__builtin_memcpy(key.addr, seg->key6.daddr_be, 16);
		key.port_be = seg->key6.dport_be;
	}
	return find_server_vip(&key);
}

static __always_inline u64 segment_hash(const struct segment *seg, const u64 key[2])
{
	if (seg->family == IPV4)
		return siphash24((const u64 *)&seg->key4, sizeof(seg->key4) / 8, key);
	return siphash24((const u64 *)&seg->key6, sizeof(seg->key6) / 8, key);
}

/*
 * A connection's name on this server: 64 bits of its tuple. Two tuples with one name
 * would have to be looked for with the seed known, and then spoil their own round trips.
 */
static __always_inline u64 segment_name(const struct segment *seg)
{
	u64 words[5] = {}, name = cfg_name_seed;

	if (seg->family == IPV4)
		__builtin_memcpy(words, &seg->key4, sizeof(seg->key4));
	else
		__builtin_memcpy(words, &seg->key6, sizeof(seg->key6));
	name = (name ^ words[0]) * 0x9e3779b97f4a7c15ull;
	name = (name ^ name >> 32 ^ words[1]) * 0x9e3779b97f4a7c15ull;
	if (seg->family == IPV6) {
#pragma unroll
		for (u32 i = 2; i < 5; i++)
			name = (name ^ name >> 32 ^ words[i]) * 0x9e3779b97f4a7c15ull;
	}
	name = (name ^ name >> 32) * 0xbf58476d1ce4e5b9ull;
	return name ^ name >> 29 ?: 1;
}

static __always_inline struct flow_key6 echo_key(const struct segment *seg)
{
	struct flow_key6 key = { .proto = IPPROTO_TCP };

	if (seg->family == IPV6)
		return seg->key6;
	key.saddr_be[2] = key.daddr_be[2] = bpf_htonl(0xffff);
	key.saddr_be[3] = seg->key4.saddr_be;
	key.daddr_be[3] = seg->key4.daddr_be;
	key.sport_be = seg->key4.sport_be;
	key.dport_be = seg->key4.dport_be;
	return key;
}

/* What a stateful balancer told this server to write for the connection; NULL: nothing. */
static __always_inline u32 *told_token(const struct segment *seg)
{
	struct flow_key6 key = echo_key(seg);

	return bpf_map_lookup_elem(&conn_tokens, &key);
}

/*
 * The cookie that this server gives the segment's connection now; false without keys.
 * Not inline: one SipHash each for IPv4 and IPv6 is enough code.
 */
static __noinline int make_cookie(const struct segment *seg, const struct server_vip *vip, u32 *cookie)
{
	u32 zero = 0, epoch, *token = told_token(seg);
	struct cookie_keys *keys;

	if (token) {
		*cookie = *token;
		return true;
	}
	keys = bpf_map_lookup_elem(&cookie_keys, &zero);
	if (!keys)
		return false;
	epoch = keys->current & 1;
	if (!(keys->present >> epoch & 1))
		return false;
	*cookie = cookie_encode(segment_hash(seg, keys->key[epoch]), epoch, vip->id, &vip->cookie);
	return true;
}

/* Whether a cookie is one that this server gives the segment's connection, in either epoch. */
static __noinline int is_own_cookie(const struct segment *seg, const struct server_vip *vip, u32 cookie)
{
	u32 zero = 0, epoch = cookie_epoch(cookie, &vip->cookie);
	struct cookie_keys *keys = bpf_map_lookup_elem(&cookie_keys, &zero);
	u32 *token = told_token(seg);

	if (token && *token == cookie)
		return true;
	if (!keys || !(keys->present >> epoch & 1))
		return false;
	return cookie_encode(segment_hash(seg, keys->key[epoch & 1]), epoch, vip->id, &vip->cookie) == cookie;
}

#endif
