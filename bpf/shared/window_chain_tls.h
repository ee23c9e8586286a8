/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The client's side of a TLS handshake over TCP, by the sizes of its packets.
 *
 * A ClientHello is the first thing that a connection carries, and what answers the
 * server's part of the handshake has one of a few sizes. Neither is a request, and
 * what comes between them is no response: the first request follows, in TLS 1.3 at
 * once and with the same ACK.
 */
#ifndef CAUSEWAY_WINDOW_CHAIN_TLS_H
#define CAUSEWAY_WINDOW_CHAIN_TLS_H

#include "window_chain_state.h"

/* The smallest packet with a ClientHello, as IP has it. */
#define WC_TLS_HELLO_MIN 200u

/*
 * Whether so many bytes end a handshake. TLS 1.3 (RFC 8446): Finished with a hash of
 * 32 or 48 bytes, behind a ChangeCipherSpec (appendix D.4) or not. TLS 1.2 (RFC 5246,
 * AES-GCM or ChaCha20): ChangeCipherSpec and Finished, behind a key of X25519 or P-256,
 * or, where a session is resumed, alone.
 */
CW_INLINE int wc_ends_handshake(u32 bytes)
{
	switch (bytes) {
	case 58:
	case 74:
	case 64:
	case 80:
	case 93:
	case 126:
	case 85:
	case 118:
	case 51:
	case 43:
		return 1;
	default:
		return 0;
	}
}

/* Whether the packet, which answers something, is the second flight of a handshake. */
CW_INLINE int wc_is_handshake(const struct wc_state *s, const struct est_packet *p)
{
	return (s->flags & WC_DATA_SEEN) && !s->bursts && s->cur_n == 1 &&
	       s->packet_max >= WC_TLS_HELLO_MIN && wc_ends_handshake(p->payload_len);
}

#endif
