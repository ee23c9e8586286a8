/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The TCP timestamp option where parse_tcp did not look for it. */
#ifndef CAUSEWAY_PACKET_TCP_OPTIONS_H
#define CAUSEWAY_PACKET_TCP_OPTIONS_H

#include "parse.h"

#define TCP_OPTIONS_MAX 40
#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_TS 8
#define TCP_OPTION_TS_LEN 10

/*
 * The walk goes over byte positions, constant ones, and stops at those where an
 * option begins: that the verifier can follow.
 */
static __always_inline void scan_options(const u8 *options, u32 len, struct packet *pkt)
{
	u32 next = 0;

#pragma unroll
	for (u32 i = 0; i <= TCP_OPTIONS_MAX - TCP_OPTION_TS_LEN; i++) {
		u8 kind = options[i], size = options[i + 1];
		u32 tsecr_be;

		if (i != next)
			continue;
		if (kind == TCP_OPTION_TS && size == TCP_OPTION_TS_LEN) {
			__builtin_memcpy(&tsecr_be, &options[i + 6], sizeof(tsecr_be));
			pkt->est.tsecr = bpf_ntohl(tsecr_be);
			pkt->est.has_ts = i + TCP_OPTION_TS_LEN <= len;
			return;
		}
		if (kind == TCP_OPTION_END || (kind != TCP_OPTION_NOP && size < 2))
			return;
		next += kind == TCP_OPTION_NOP ? 1 : size;
	}
}

/*
 * The timestamp option wherever it is: one packet in two thousand has it elsewhere
 * than behind two NOPs. To be called while the packet is as it came. Global, so that
 * it is verified once.
 */
CW_GLOBAL int find_timestamp(struct xdp_md *ctx, struct packet *pkt)
{
	u8 options[TCP_OPTIONS_MAX] = {};
	u32 len;

	if (!pkt)
		return 0;
	len = pkt->options_len;
	if (len < TCP_OPTION_TS_LEN || len > TCP_OPTIONS_MAX)
		return 0;
	if (!bpf_xdp_load_bytes(ctx, pkt->l2_len + pkt->l3_len + sizeof(struct tcphdr), options, len))
		scan_options(options, len, pkt);
	return 0;
}

#endif
