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

CW_INLINE int wc_is_tls13(u32 bytes)
{
	return bytes == 58 || bytes == 74 || bytes == 64 || bytes == 80 || bytes == 90;
}

/*
 * Whether so many bytes end a handshake. TLS 1.3 (RFC 8446): Finished with a hash of
 * 32 or 48 bytes, behind a ChangeCipherSpec (appendix D.4) or not, or padded, as Java's is.
 * TLS 1.2 (RFC 5246, AES-GCM or ChaCha20): ChangeCipherSpec and Finished, behind a key of X25519 or P-256,
 * or, where a session is resumed, alone; the last two sizes are of a Finished alone.
 */
CW_INLINE int wc_ends_handshake(u32 bytes)
{
	if (wc_is_tls13(bytes))
		return 1;
	switch (bytes) {
	case 93:
	case 126:
	case 85:
	case 118:
	case 51:
	case 43:
	case 45:
	case 37:
		return 1;
	default:
		return 0;
	}
}

/*
 * Whether the last packet may be a ClientHello. It is a connection's first one; the next one
 * where the server's answer is a HelloRetryRequest (RFC 8446, 4.1.4), whose length is always
 * the same; and either of them one later where PostgreSQL's clients ask for TLS first, which
 * is answered by one byte.
 */
#define WC_RETRY_ACKED 53u /* 99 bytes, behind it a ChangeCipherSpec, as cur_acked has them */

CW_INLINE int wc_may_be_hello(const struct wc_state *s)
{
	if (s->bursts == 1)
		return !s->cur_acked || s->cur_acked == WC_RETRY_ACKED;
	return !s->bursts || (s->bursts == 2 && !s->hold_acked);
}

/* Whether a packet that answers something now may be of the second flight of a handshake. */
CW_INLINE int wc_is_behind_hello(const struct wc_state *s)
{
	return (s->flags & WC_DATA_SEEN) && !wc_in_tls(s) && wc_may_be_hello(s) && s->cur_n == 1 &&
	       s->packet_max >= WC_TLS_HELLO_MIN;
}

/* Whether it is that flight, or its end. */
CW_INLINE int wc_is_handshake(const struct wc_state *s, const struct est_packet *p)
{
	return wc_is_behind_hello(s) && wc_ends_handshake(p->payload_len);
}

/*
 * Where the second flight comes in several packets, as of GnuTLS and Java: its key of X25519 or
 * P-256, or its ChangeCipherSpec, which Finished follows. They are counted in cur_late, which is
 * else 0 where the open burst has one request.
 */
CW_INLINE int wc_goes_on_handshake(const struct wc_state *s, const struct est_packet *p)
{
	u32 bytes = p->payload_len;

	return (bytes == 6 || bytes == 42 || bytes == 75) && s->cur_late < 2 && wc_is_behind_hello(s);
}

/* What a record of TLS 1.3 adds to what is in it. */
#define WC_RECORD 22u
/* An alert, by which TLS closes. */
#define WC_ALERT (WC_RECORD + 2)
/*
 * Frames of HTTP/2 (RFC 9113) that ask for nothing: the acknowledgement of the server's
 * SETTINGS, and, once so much of a response has come, WINDOW_UPDATE, for a stream or for the
 * connection too. A request of as many bytes must not be taken for one.
 */
#define WC_SETTINGS_ACK (WC_RECORD + 9)
#define WC_WINDOW_UPDATE (WC_RECORD + 13)
#define WC_TWO_UPDATES (WC_RECORD + 26)
#define WC_UPDATE_BYTES 4096u
/* A client acknowledges SETTINGS within so many bursts. */
#define WC_SETTINGS_BURSTS 4u
/*
 * Often in a packet with something else. Then HTTP/2 is suspected by requests that are
 * too short for HTTP/1.1 (`GET / HTTP/1.1` with a Host field, RFC 9112) behind a first
 * packet that has room for the preface.
 */
#define WC_HTTP1_MIN (WC_RECORD + 27)
#define WC_PREFACE_MIN 100u /* bytes, as IP has it */
/*
 * Without TLS: the acknowledgement of SETTINGS, in a packet of its own among the first two bursts,
 * behind a packet with room for the preface, and behind nothing or the server's SETTINGS, of
 * 9 bytes and 6 for each, with its own acknowledgement or a WINDOW_UPDATE or without. Or a PING,
 * known by one that acknowledges as much, beside packets far larger, and in
 * the first bursts also behind the acknowledgement of SETTINGS and WINDOW_UPDATEs. Where PINGs are
 * known, WINDOW_UPDATE is, for a stream or for the connection too; else where nothing or much is
 * acknowledged, as requests may be as short.
 */
#define WC_PLAIN_SETTINGS_ACK 9u
#define WC_PLAIN_PREFACE_MIN 73u /* 24 and 9 bytes, as IP has them */
#define WC_SETTINGS_MAX 70u
#define WC_PING 17u
#define WC_PLAIN_UPDATE 13u
#define WC_PING_BEHIND_MAX (9 + 2 * WC_PLAIN_UPDATE)

/* Whether so many bytes may be the server's SETTINGS and what comes with them, or none. */
CW_INLINE int wc_may_be_settings(u32 bytes)
{
	return bytes <= WC_SETTINGS_MAX && (!bytes || (bytes % 6 != 2 && bytes % 6 != 5));
}

/*
 * Whether so many bytes, of a packet that acknowledges what answers the last request, are
 * no request, but a frame by which a client of HTTP/2 keeps its connection going. That it is
 * one shows in its first of them.
 */
CW_INLINE int wc_is_control(struct wc_state *s, u32 bytes, u32 answers)
{
	if (!wc_in_tls(s)) {
		if (bytes == WC_PLAIN_SETTINGS_ACK && s->bursts < 2 && s->packet_max >= WC_PLAIN_PREFACE_MIN &&
		    wc_may_be_settings(answers)) {
			s->answers = WC_ANSWERS_HTTP2;
			return 1;
		}
		if (s->answers != WC_ANSWERS_HTTP2 && s->packet_max < WC_TLS_HELLO_MIN)
			return 0;
		if (bytes == WC_PING && s->packet_max >= WC_TLS_HELLO_MIN &&
		    answers - WC_PING <= (s->bursts < WC_SETTINGS_BURSTS ? WC_PING_BEHIND_MAX : 0))
			s->pings = 1;
		if (s->pings)
			s->answers = WC_ANSWERS_HTTP2;
		if (s->answers != WC_ANSWERS_HTTP2)
			return 0;
		if (s->pings && bytes == WC_PING)
			return 1;
		return (bytes == WC_PLAIN_UPDATE || bytes == 2 * WC_PLAIN_UPDATE) &&
		       (s->pings || !answers || answers >= WC_UPDATE_BYTES);
	}
	if (bytes == WC_SETTINGS_ACK && s->bursts < WC_SETTINGS_BURSTS) {
		s->http2 = 1;
		s->tls = 1;
	} else if (!s->http2 && bytes < WC_HTTP1_MIN && s->packet_max >= WC_PREFACE_MIN) {
		s->http2 = 1;
		s->tls = 0;
	}
	if (!s->http2)
		return 0;
	return bytes == WC_SETTINGS_ACK ||
	       ((s->tls || answers >= WC_UPDATE_BYTES) &&
		(bytes == WC_WINDOW_UPDATE || bytes == WC_TWO_UPDATES));
}

/* Whether the client closes the connection: TLS says so before TCP does, or instead. */
CW_INLINE int wc_is_end(const struct wc_state *s, const struct est_packet *p)
{
	return est_ends(p) || (est_is_tcp(p) && wc_in_tls(s) && p->payload_len == WC_ALERT);
}

/*
 * Requests that leave together share a record of TLS, which two, three of a few streams do without
 * being that large. Where all are of one size, as calls of one method are, it has twice or three times
 * as much in it as the shortest. hold_lead has that of the shortest, and above it how often of late
 * another had a multiple of it; one with anything else in it speaks against it.
 */
#define WC_SHARED_ONCE 4u
#define WC_SHARED_MOST 15u

CW_INLINE u32 wc_shared(const struct wc_state *s)
{
	return CW_MIN(s->hold_lead >> 8, WC_SHARED_MOST);
}

CW_INLINE int wc_shares_records(const struct wc_state *s)
{
	return wc_shared(s) >= WC_SHARED_ONCE;
}

/* A request of HTTP/2 in so many bytes, with no other out, as far as is known. */
CW_INLINE void wc_learn_record(struct wc_state *s, u32 bytes)
{
	u32 frames = bytes - WC_RECORD, least = s->hold_lead & 0xff, shared = wc_shared(s);

	if (!s->http2 || s->window > 1 || frames - 1 >= 0xff)
		return;
	if (!least || frames < least)
		least = frames;
	else if (frames % least && shared)
		shared--;
	else if (frames % least)
		least = frames;
	else if (frames > least)
		shared = CW_MIN(shared + WC_SHARED_ONCE, WC_SHARED_MOST);
	s->hold_lead = (u16)(shared << 8 | least);
}

/*
 * Whether a connection of HTTP/2 has several streams at a time: its requests leave in
 * several packets, or so many in one that it is larger than one request is. Without TLS a
 * request is often as large, with all that a call of gRPC says of itself, and two packets may be one.
 */
#define WC_STREAMS_MIN 300u /* bytes, as IP has it */

CW_INLINE int wc_is_multiplexed(const struct wc_state *s)
{
	if (s->answers == WC_ANSWERS_HTTP2 && s->window > 2)
		return 1;
	return s->http2 && (s->window > 1 || s->packet_max > WC_STREAMS_MIN || wc_shares_records(s));
}

#endif
