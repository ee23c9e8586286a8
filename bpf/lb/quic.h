/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * QUIC at the balancer: a server's id in the destination connection id of the client's
 * packets says where they go, whatever the client's address has become. What carries
 * none yet goes by its tuple.
 *
 * The order is that of draft-ietf-quic-load-balancers-21, section 4.2: an id that names
 * a server, of any packet; then the flow table; then the pick. It differs in one point:
 * what has a configuration of ours and names a server that is not there is dropped, if
 * it is none of a client's own ids. No server could know the connection.
 */
#ifndef CAUSEWAY_LB_QUIC_H
#define CAUSEWAY_LB_QUIC_H

#include "flow_table.h"
#include "../shared/quic_lb.h"

/*
 * Octets that are read. No valid datagram is shorter: a long header with an id has
 * more, and behind the id of a short one there are 20 octets or more (RFC 9001,
 * section 5.4.2), an id of ours having six or more.
 */
#define QUIC_READ 27
#define QUIC_LONG_HEADER 0x80
#define QUIC_V2 0x6b3343cf /* RFC 9369 */

/* What quic_server gives where no id names a server. */
enum quic_found {
	QUIC_UNROUTABLE = -1, /* no configuration of ours made the id */
	QUIC_OPENING = -2,    /* the client may have made it: Initial or 0-RTT */
};

/*
 * Whether a long header is of a packet whose id the client may have chosen: Initial and
 * 0-RTT, and whatever comes in a version that is not known (RFC 8999).
 */
static __always_inline bool is_quic_opening(const u8 *head)
{
	u32 version, type = head[0] >> 4 & 3;

	__builtin_memcpy(&version, head + 1, sizeof(version));
	version = bpf_ntohl(version);
	if (version == 1)
		return type <= 1;
	if (version == QUIC_V2)
		return type == 1 || type == 2;
	return true;
}

/* Added to a server's number where the client may have made the id. */
#define QUIC_OPENING_ID (1ll << 32)

/*
 * The number that the datagram's connection id has for a server, or enum quic_found.
 * `at` is where the UDP payload begins, `configs` the VIP's first configuration.
 * Global: verified once, for both families.
 */
CW_GLOBAL s64 quic_server(struct xdp_md *ctx, u32 at, u32 configs)
{
	u8 *head = (void *)(long)ctx->data + CW_MASKED(at, 0x3fff), *id;
	s64 opening = 0, none = QUIC_UNROUTABLE;
	struct quic_lb_config *config;
	struct quic_lb_block block;
	u32 index, len = QUIC_LB_BLOCK_MAX + 1;

	if ((void *)(head + QUIC_READ) > (void *)(long)ctx->data_end)
		return QUIC_UNROUTABLE;
	id = head + 1;
	if (head[0] & QUIC_LONG_HEADER) {
		if (is_quic_opening(head)) {
			opening = QUIC_OPENING_ID;
			none = QUIC_OPENING;
		}
		len = head[5];
		id = head + 6;
	}
	index = configs + quic_lb_codepoint(id[0]);
	config = bpf_map_lookup_elem(&quic_configs, &index);
	if (!config || config->algorithm == QUIC_LB_NONE || len < 1 + quic_lb_block_len(config))
		return none;
	__builtin_memcpy(&block.lo, id + 1, 8);
	__builtin_memcpy(&block.hi, id + 9, 8);
	block.top = id[17] | (u32)id[18] << 8 | (u32)id[19] << 16;
	return (s64)quic_lb_server(config, &block) | opening;
}

/*
 * The real that the packet's connection id names: CR_CID. Else CR_CID_NEW for what may
 * open a connection, CR_CID_OTHER for an id that no configuration made, CR_UNKNOWN for
 * one that names no real.
 */
static __always_inline MUST_USE enum cookie_result
read_cid(struct xdp_md *ctx, const struct packet *pkt, const int family, const struct vip *vip, u32 *real_id,
	 struct real **real)
{
	u32 payload = pkt->l2_len + pkt->l3_len + sizeof(struct udphdr), index;
	struct cookie_slot *slot;
	s64 server;

	if (!is_measurable(pkt, family)) /* a fragment or an ICMP error */
		return CR_CID_OTHER;
	server = quic_server(ctx, payload, vip->cookie_base / COOKIE_IDS * QUIC_CODEPOINTS);
	if (server == QUIC_OPENING)
		return CR_CID_NEW;
	if (server < 0)
		return CR_CID_OTHER;
	index = vip->cookie_base + (u32)server;
	slot = (u32)server < COOKIE_IDS ? bpf_map_lookup_elem(&cookie_slots, &index) : NULL;
	*real = slot ? real_in(slot, real_id) : NULL;
	if (!*real)
		return server & QUIC_OPENING_ID ? CR_CID_NEW : CR_UNKNOWN;
	return CR_CID;
}

#endif
