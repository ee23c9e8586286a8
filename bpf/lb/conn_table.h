/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Stateful mode (Cheetah, section 3.2): a connection has a slot in an array, and every
 * packet of it names the slot. The balancer gives out a free index with the
 * SYN and tells the server, which writes it into the timestamps that the client
 * echoes. Routing, measurement and counters are then one lookup away, and no hash
 * table is searched.
 *
 * The index has at most 15 bits; the tuple's hash says in which of several partitions
 * it counts. A client may echo what it likes, so that the whole tuple is compared.
 *
 * Free indices lie in rings, one for each CPU and partition, so that taking one needs
 * no lock: the CPU takes, user space alone puts back. An empty ring is no failure:
 * the connection goes without, by the flow table.
 */
#ifndef CAUSEWAY_LB_CONN_TABLE_H
#define CAUSEWAY_LB_CONN_TABLE_H

#include "../packet/tcp_options.h"
#include "../shared/cookie.h"
#include "flow_table.h"

/* Set by the loader. 0 partitions: no VIP is stateful, and nothing is looked up. */
const volatile u32 cfg_conn_partitions = 0;
/* Which of several second-tier balancers this is, and the bits that tell them apart. */
const volatile u32 cfg_tier_bits = 0;
const volatile u32 cfg_tier = 0;

static __always_inline u32 conn_index_bits(void)
{
	return CONN_TOKEN_BITS - (cfg_tier_bits & 7);
}

/* Balancers that share VIPs share it: a token means the same slot to all of them. */
static __always_inline u64 conn_seed(const struct ctl *control)
{
	return control->hash_key[1];
}

static __always_inline u32 conn_partition(const struct packet *pkt, const int family, u64 seed)
{
	return scale(key_hash(pkt, family, seed) >> 32, cfg_conn_partitions);
}

/* Verified once for each family. */
CW_GLOBAL u32 token_mask4(const struct packet *pkt)
{
	struct ctl *control = get_ctl();

	return pkt && control ? conn_token_mask((const u64 *)&pkt->key4, sizeof(pkt->key4) / 8, control->hash_key) : 0;
}

CW_GLOBAL u32 token_mask6(const struct packet *pkt)
{
	struct ctl *control = get_ctl();

	return pkt && control ? conn_token_mask((const u64 *)&pkt->key6, sizeof(pkt->key6) / 8, control->hash_key) : 0;
}

/* What hides the token of the packet's connection, where there are two tiers. */
static __always_inline u32 token_mask(const struct packet *pkt, const int family)
{
	return family == IPV4 ? token_mask4(pkt) : token_mask6(pkt);
}

/* The same at the second tier; a balancer that is alone hides nothing. */
static __always_inline u32 own_token_mask(const struct packet *pkt, const int family)
{
	return cfg_tier_bits ? token_mask(pkt, family) : 0;
}

/*
 * The connection whose slot the packet's timestamp names, also the one that an ICMP error
 * quotes; NULL if that is not its own.
 */
static __always_inline struct flow *
find_conn(struct xdp_md *ctx, struct packet *pkt, const int family, const struct ctl *control)
{
	u8 proto = family == IPV4 ? pkt->key4.proto : pkt->key6.proto;
	u32 bits = conn_index_bits(), token, index;
	struct flow *conn;

	if (proto != IPPROTO_TCP)
		return NULL;
	if (is_tcp(pkt) && !pkt->est.has_ts && pkt->options_len)
		find_timestamp(ctx, pkt);
	if (!pkt->est.has_ts || is_syn(pkt))
		return NULL;
	token = (pkt->est.tsecr & CONN_TOKEN_MASK) ^ own_token_mask(pkt, family);
	if (token >> bits != cfg_tier)
		return NULL;
	index = conn_partition(pkt, family, conn_seed(control)) << bits | (token & ((1u << bits) - 1));
	conn = bpf_map_lookup_elem(&conn_slots, &index);
	return conn && is_flow_of(conn, pkt, family) ? conn : NULL;
}

/* A packet after the SYN has come: what user space tells silent connections by. */
static __always_inline void count_conn_packet(struct flow *conn)
{
	if (!cfg_dry)
		conn->packets += 1;
}

/*
 * The connection ends: its entry in the flow table ends, too, or what comes without a
 * timestamp would end it once more.
 */
static __always_inline void end_entry(struct packet *pkt, const int family)
{
	struct ctl *control = get_ctl();
	struct flow *flow;

	if (!control)
		return;
	hash_key(pkt, family, control);
	flow = find_flow(pkt, family);
	if (flow)
		flow->bits |= FLOW_CLOSED;
}

/* Once in a connection's life, and so verified once each. */
CW_GLOBAL int end_entry4(struct packet *pkt)
{
	if (pkt)
		end_entry(pkt, IPV4);
	return 0;
}

CW_GLOBAL int end_entry6(struct packet *pkt)
{
	if (pkt)
		end_entry(pkt, IPV6);
	return 0;
}

/* A free index of the partition; false if this CPU has none left. */
static __always_inline MUST_USE bool take_index(u32 partition, u32 *index)
{
	u32 ring_id = bpf_get_smp_processor_id() * cfg_conn_partitions + partition;
	struct conn_free_ring *ring = bpf_map_lookup_elem(&conn_free_slots, &ring_id);
	u32 head, tail;

	if (!ring)
		return false;
	head = ring->head;
	tail = *(volatile u32 *)&ring->tail;
	if (head == tail) {
		ring->empty += 1;
		return false;
	}
	/* Where it is read depends on the tail: a CPU such as arm64's reads it no sooner. */
	*index = ring->index[CW_MASKED(CW_FORGET(head, tail), CONN_RING - 1)];
	*(volatile u32 *)&ring->head = head + 1;
	return true;
}

/*
 * Give a new connection a slot, if there is one, and its route the token that says
 * where. The flow table has the connection, too, for what carries no timestamp.
 */
static __always_inline void
open_conn(const struct packet *pkt, const int family, struct route *route)
{
	u32 bits = conn_index_bits(), partition, index, slot;
	struct ctl *control = get_ctl();
	struct flow *conn;

	if (cfg_dry || !control || !pkt->est.has_ts)
		return;
	partition = conn_partition(pkt, family, conn_seed(control));
	if (!take_index(partition, &index))
		return;
	index &= (1u << bits) - 1;
	slot = partition << bits | index;
	conn = bpf_map_lookup_elem(&conn_slots, &slot);
	if (!conn)
		return;
	write_flow(conn, pkt, family, route, false); /* the table's entry is measured by the SYN */
	conn->bits |= FLOW_OPENED; /* the table's entry counts the opening */
	route->token = ROUTE_HAS_TOKEN | ((cfg_tier << bits | index) ^ own_token_mask(pkt, family));
}

#endif
