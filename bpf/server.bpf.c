/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * On a server: takes the outer header off tunnel packets (RFC 2003, RFC 2473), so
 * that the kernel meets the client's packet as the client sent it. Everything else
 * goes to the kernel untouched.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/csum.h"
#include "lib/link.h"
#include "lib/parse.h"

#define ECN_MASK 3
#define ECN_NOT_ECT 0
#define ECN_CE 3
#define DEFAULT_OWN_ADDRESSES 256

/* Tunnel ends of this server: 16-byte addresses, IPv4 as IPv4-mapped. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DEFAULT_OWN_ADDRESSES);
	__type(key, struct address);
	__type(value, u32);
} own_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VERDICTS_MAX);
	__type(key, u32);
	__type(value, struct packets_bytes);
} verdicts SEC(".maps");

#define ABI_SERVER_ACTION(name, word, action, meaning) [SV_##name] = action,
static const u8 server_actions[SV_COUNT] = { SERVER_VERDICTS(ABI_SERVER_ACTION) };
#undef ABI_SERVER_ACTION

/* The only way out: counts the verdict, gives its XDP action. */
static __always_inline int leave(enum server_verdict verdict, u32 frame_len)
{
	u32 index = verdict;
	struct packets_bytes *counter = bpf_map_lookup_elem(&verdicts, &index);

	if (!counter || index >= SV_COUNT)
		return XDP_ABORTED;
	counter->packets += 1;
	counter->bytes += frame_len;
	return server_actions[index];
}

static __always_inline bool is_own_address(const struct packet *pkt, const int family)
{
	struct address address = {};

	if (family == IPV4) {
		address.bytes[10] = address.bytes[11] = 0xff;
		__builtin_memcpy(&address.bytes[12], &pkt->key4.daddr_be, 4);
	} else {
		__builtin_memcpy(address.bytes, pkt->key6.daddr_be, 16);
	}
	return bpf_map_lookup_elem(&own_addresses, &address) != NULL;
}

/*
 * Congestion that the tunnel met must reach the inner packet (RFC 6040, 4.2). One
 * that cannot carry the mark is dropped, as the router that marked would have.
 */
static __always_inline MUST_USE enum server_verdict mark_inner4(struct iphdr *ip, u8 outer_tos)
{
	u16 *version_tos = (u16 *)ip, old = *version_tos;

	if ((outer_tos & ECN_MASK) != ECN_CE)
		return SV_DECAPSULATED;
	if ((ip->tos & ECN_MASK) == ECN_NOT_ECT)
		return SV_CONGESTED;
	ip->tos |= ECN_CE;
	ip->check = csum_replace(ip->check, old, *version_tos);
	return SV_DECAPSULATED;
}

static __always_inline MUST_USE enum server_verdict mark_inner6(struct ipv6hdr *ip, u8 outer_tos)
{
	/* The traffic class lies across the first two bytes; ECN is bits 4 and 5 of the second. */
	if ((outer_tos & ECN_MASK) != ECN_CE)
		return SV_DECAPSULATED;
	if ((ip->flow_lbl[0] >> 4 & ECN_MASK) == ECN_NOT_ECT)
		return SV_CONGESTED;
	ip->flow_lbl[0] |= ECN_CE << 4;
	return SV_DECAPSULATED;
}

static __always_inline MUST_USE enum server_verdict
check_inner(struct cursor *cur, const struct packet *outer)
{
	if (outer->est.proto == IPPROTO_IPIP) {
		struct iphdr *ip = take(cur, sizeof(*ip));

		if (!ip || ip->version != 4 || ip->ihl < 5)
			return SV_INNER_MALFORMED;
		return mark_inner4(ip, outer->tos);
	} else {
		struct ipv6hdr *ip = take(cur, sizeof(*ip));

		if (!ip || ip->version != 6)
			return SV_INNER_MALFORMED;
		return mark_inner6(ip, outer->tos);
	}
}

/*
 * The link header moves up to the inner packet; the outer header is gone. None of
 * the checks can fail behind check_inner, but the verifier asks for them.
 */
static __always_inline MUST_USE enum server_verdict
strip(struct xdp_md *ctx, const struct packet *outer)
{
	u16 ethertype_be = outer->est.proto == IPPROTO_IPIP ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	struct macs macs;

	if (!read_macs(ctx, &macs) || bpf_xdp_adjust_head(ctx, outer->l3_len))
		return SV_INNER_MALFORMED;
	if (!write_link((void *)(long)ctx->data, (void *)(long)ctx->data_end, outer, macs.dest,
			macs.source, ethertype_be))
		return SV_INNER_MALFORMED;
	return SV_DECAPSULATED;
}

static __always_inline MUST_USE enum server_verdict
handle_ip(struct xdp_md *ctx, struct cursor *cur, struct packet *pkt, const int family)
{
	enum parsed parsed = family == IPV4 ? parse_ipv4(cur, pkt) : parse_ipv6(cur, pkt);
	enum server_verdict verdict;

	if (parsed == PARSED_FRAGMENT)
		return SV_OUTER_FRAGMENT;
	if (parsed != PARSED)
		return SV_NOT_TUNNEL;
	if (pkt->est.proto != IPPROTO_IPIP && pkt->est.proto != IPPROTO_IPV6)
		return SV_NOT_TUNNEL;
	if (!is_own_address(pkt, family))
		return SV_NOT_OURS;
	verdict = check_inner(cur, pkt);
	return verdict == SV_DECAPSULATED ? strip(ctx, pkt) : verdict;
}

static __always_inline MUST_USE enum server_verdict handle(struct xdp_md *ctx, struct packet *pkt)
{
	struct cursor cur = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };

	pkt->frame_len = (u32)(cur.end - cur.pos);
	if (parse_link(&cur, pkt) != PARSED)
		return SV_NOT_TUNNEL;
	if (pkt->ethertype_be == bpf_htons(ETH_P_IP))
		return handle_ip(ctx, &cur, pkt, IPV4);
	if (pkt->ethertype_be == bpf_htons(ETH_P_IPV6))
		return handle_ip(ctx, &cur, pkt, IPV6);
	return SV_NOT_TUNNEL;
}

SEC("xdp")
int causeway_server(struct xdp_md *ctx)
{
	struct packet pkt = {};
	enum server_verdict verdict = handle(ctx, &pkt);

	return leave(verdict, pkt.frame_len);
}

char LICENSE[] SEC("license") = "GPL";
