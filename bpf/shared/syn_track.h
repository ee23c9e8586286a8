/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * One connection as its server's interface sees it: when its first and its last SYN
 * came, when it was answered, what was asked and when the server was done. The first to
 * the last SYN is the time that the client lost before it was connected (CONN-FAIL),
 * the last SYN to the end is what a server can see by itself (SYN-to-END); Certes,
 * eq. 1 and section 4.
 *
 * A connection is not a transaction, as it is in the paper. A transaction ends with the
 * server's last data before the client asks again, before both are silent for
 * SYN_SILENCE_NS, or before the connection ends. The first one of a connection begins with its
 * SYN (COMPLETED). A later one begins with its request (LATER): no SYN was waited for. So
 * does the first one of a connection that its client had opened in advance, and what a server
 * says unasked to a client that has all it asked for belongs to none. TLS is opened within
 * the first transaction: the handshake is waited for, and asks for nothing by itself. A
 * connection that asked nothing is UNUSED, however it ended.
 *
 * A client of TLS 1.3 asks before the server has had its Finished, and the server's tickets leave
 * behind the request. A silence behind no more bytes than tickets have ends nothing: the server may be
 * at work still. What comes then is the response, unless it is as short as an alert.
 *
 * What the server took for a transaction runs from its first request to its last new data:
 * neither the path to the client nor what the network lost is in it. It is known where the
 * client asks for one thing at a time. A request that acknowledges less than was sent left
 * before the client had its answer; whose answer the next data are cannot be told from then on
 * (OVERLAPS). So did one of HTTP/1.1 that follows another before there was an answer: a
 * pipeline. Streams of HTTP/2 on a short path may never show that way; within TLS they show by
 * requests shorter than any of HTTP/1.1 beside packets that hold many.
 *
 * What is short may ask for nothing: a window update, an alert, QUIT. On an open connection a
 * transaction of such packets alone counts if the server answers them. A goodbye is no answer: it
 * is as short, and the server's end follows.
 *
 * Each call takes one event and says which one counter it moves. A SYN is OFFERED
 * unless it was answered already; the first answer makes the last SYN ACCEPTED, in
 * the slot in which that SYN came; OFFERED - ACCEPTED were dropped. A SYN with the
 * same sequence number repeats the attempt, another number begins a new one.
 *
 * It ends with the first FIN or RST of either side. Two cases are not in
 * the paper. A client may say at once that it will send no more (FIN) and wait for
 * the answer: while the server has sent nothing, its FIN decides. And a client may
 * believe that it is connected while its final ACK was dropped, because the accept
 * queue was full: of such a server nothing comes but SYN-ACKs. If the client has asked
 * for something, the attempt ends as STALLED, not as COMPLETED.
 *
 * Where the network loses segments, two more. What a server sends again after its FIN
 * makes the answer last longer (RESENT). And a client whose SYN-ACKs were lost may have
 * lost its patience as well: the attempt is LEFT once its kernel answers one of them with
 * a RST, or begins another by the same tuple.
 */
#ifndef CAUSEWAY_SYN_TRACK_H
#define CAUSEWAY_SYN_TRACK_H

#include <stdbool.h>

#include "types.h"

/* Longer ways to a client are lost segments, not a way: at most so far from now an end
 * is counted. */
#define SYN_WAY_MAX_NS (500 * CW_MS_NS)

/* Timeouts double. Who has not acknowledged after one of so long is not there any more. */
#define SYN_RESENT_MAX_NS (2000 * CW_MS_NS)

/* After this silence an answer is over; a lost segment is retransmitted sooner. */
#define SYN_SILENCE_NS SYN_RESENT_MAX_NS

/* A client that asks later than this after it could have opened its connection in advance. */
#define SYN_ASK_MAX_NS (1000 * CW_MS_NS)

/*
 * A packet so short may ask for nothing, as WINDOW_UPDATE of HTTP/2 in a record of TLS: one that
 * nothing answers before the next, or before the connection's end, is no request.
 */
#define SYN_SHORT_BYTES 48
/* A packet of HTTP/2 so long holds more than one request. */
#define SYN_STREAMS_BYTES 248

/* What a server says first within TLS may be tickets, if it is no more: OpenSSL's two take 510. */
#define SYN_TICKETS_BYTES 640
/* No packet of more is a goodbye: an alert of TLS 1.2 with the longest of its hashes, or GOAWAY. */
#define SYN_GOODBYE_BYTES 85

/* No client gives up sooner; a flood repeats its tuples sooner. */
#define SYN_FORMER_NS (250 * CW_MS_NS)

/* Later retries count as this one. No stack sends more SYNs than this. */
#define SYN_RETRY_MAX 15

enum syn_event {
	SYN_EVENT_SYN = 0,          /* from the client */
	SYN_EVENT_SYNACK = 1,       /* from the server */
	SYN_EVENT_ACK = 2,          /* from the client, with ACK, without SYN and RST */
	SYN_EVENT_SERVED = 3,       /* from the server, without payload, SYN and RST */
	SYN_EVENT_DATA = 4,         /* from the server, with payload */
	SYN_EVENT_CLIENT_FIN = 5,   /* a FIN with ACK is an ACK first */
	SYN_EVENT_SERVER_FIN = 6,   /* one with payload is DATA first */
	SYN_EVENT_CLIENT_RESET = 7,
	SYN_EVENT_SERVER_RESET = 8,
	SYN_EVENT_REQUEST = 9,      /* from the client, with payload that comes for the first time */
	SYN_EVENT_HANDSHAKE = 10,   /* the same; it belongs to a handshake of TLS */
	SYN_EVENT_SILENCE = 11,     /* no packet: the agent's search */
	SYN_EVENT_SHORT = 12,       /* a request of at most SYN_SHORT_BYTES */
	SYN_EVENT_LONG = 13,        /* a request of at least SYN_STREAMS_BYTES */
	SYN_EVENT_HTTP = 14,        /* a request of HTTP/1.1 in clear text, no part of one */
};

enum syn_state {
	SYN_STATE_NONE = 0,
	SYN_STATE_OFFERED = 1,     /* not answered so far */
	SYN_STATE_ANSWERED = 2,    /* SYN-ACK sent, nothing heard since */
	SYN_STATE_ESTABLISHED = 3, /* the client's ACK came */
	SYN_STATE_DONE = 4,
	SYN_STATE_CLOSED = 5,      /* counted; the server may have to send its data again */
	SYN_STATE_LEFT = 6,        /* counted; the client has gone */
};

/* What an event counts as. */
enum syn_count {
	SYN_COUNT_NOTHING = 0,
	SYN_COUNT_OFFERED = 1,     /* at now, retry told */
	SYN_COUNT_ACCEPTED = 2,    /* at the last SYN, retry told */
	SYN_COUNT_DUPLICATE = 3,   /* a SYN that had been answered */
	SYN_COUNT_ESTABLISHED = 4, /* at now, RTT and answers told */
	SYN_COUNT_COMPLETED = 5,   /* when the client had the last data, every time told */
	SYN_COUNT_ABANDONED = 6,   /* it ended before the client was connected */
	SYN_COUNT_STALLED = 7,     /* at now, the time from first SYN to end in conn_fail_ns */
	SYN_COUNT_REFUSED = 8,     /* at the last SYN, retry told: it was no offer, a RST answered it */
	SYN_COUNT_RESENT = 9,      /* at now: the completed one took syn_to_end_ns longer */
	SYN_COUNT_SERVED = 10,     /* at now: the server knows the connection; retry told */
	SYN_COUNT_LATER = 11,      /* as COMPLETED, from the request on: syn_to_end_ns and RTT */
	SYN_COUNT_UNUSED = 12,     /* it ended, and nothing had been asked */
};

#define SYN_MARK_HEARD 1u /* the client has sent more than its first SYN */
#define SYN_MARK_ENDED 2u /* its end is counted; for the caller, with two events at once */
#define SYN_MARK_ASKED 4u     /* the client has asked in this transaction */
#define SYN_MARK_HANDSHAKE 8u /* it has sent nothing but a handshake of TLS */
#define SYN_MARK_LATER 16u    /* the transaction did not begin with the SYN */
#define SYN_MARK_SHORT 32u    /* this transaction began with a SHORT request */
#define SYN_MARK_OVERLAPS 64u /* the client has asked before it had its answer */
#define SYN_MARK_TLS 128u     /* the connection began with a handshake of TLS */
#define SYN_MARK_WAS_SHORT 256u /* some request was a SHORT one */
#define SYN_MARK_WAS_LONG 512u  /* some request was a LONG one */
#define SYN_MARK_ANSWERED 1024u /* what began with a SHORT request has more than a goodbye for answer */
#define SYN_MARK_SAID 65536u    /* a byte of what the server has said behind requests, in the upper
				 * half; counted until it is more than SYN_TICKETS_BYTES */
#define SYN_MARK_STREAMS (SYN_MARK_TLS | SYN_MARK_WAS_SHORT | SYN_MARK_WAS_LONG)

struct syn_conn {
	u64 first_syn_ns;
	u64 last_syn_ns;  /* LATER: when the client asked */
	u64 turn_ns;      /* ANSWERED: the first SYN-ACK; ESTABLISHED: the client's FIN, 0: none;
			   * LEFT: the RST, or the next attempt's SYN */
	u64 last_data_ns; /* the server's last data in this transaction; ANSWERED: the last SYN
			   * since; 0: none */
	u32 isn;
	u32 rtt_us;       /* first SYN-ACK to first ACK */
	u8 state;         /* enum syn_state */
	u8 retry;         /* SYNs after the first, as far as they came here */
	u8 answers;       /* SYN-ACKs sent before the client's ACK; stops at 255 */
	u8 served;        /* the server has sent more than SYN-ACKs */
	u32 marks;        /* SYN_MARK_* */
	u64 asked_ns;     /* the first request of this transaction; 0: none */
	u32 sent;         /* sequence number behind the server's data */
	u32 took_us;      /* from asked_ns to the last new data; 0: none */
};
_Static_assert(sizeof(struct syn_conn) == 64, "struct syn_conn");

/* Whether the time that the server took is known. */
enum syn_timed {
	SYN_TIMED_NOTHING = 0, /* there was no answer */
	SYN_TIMED_KNOWN = 1,
	SYN_TIMED_OVERLAPS = 2,
};

struct syn_outcome {
	u64 at_ns;         /* belongs to the slot of this time */
	u64 accepted_ns;   /* COMPLETED: when its last SYN came */
	u64 conn_fail_ns;  /* ACCEPTED, COMPLETED: first SYN to last SYN */
	u64 syn_to_end_ns; /* COMPLETED, LATER: last SYN or request to the server's last data */
	u64 rtt_ns;        /* ESTABLISHED, COMPLETED, LATER */
	u64 first_syn_ns;
	u64 server_ns;     /* COMPLETED, LATER, if KNOWN: request to the server's last data */
	u8 count;          /* enum syn_count */
	u8 retry;
	u8 answers;        /* ESTABLISHED: more than 1 if a round trip was lost */
	u8 heard;          /* the client is heard of for the first time after its first SYN */
	u8 timed;          /* enum syn_timed */
	u8 pad[3];
};
_Static_assert(sizeof(struct syn_outcome) == 64, "struct syn_outcome");

CW_INLINE void syn_track_heard(struct syn_conn *c, struct syn_outcome *out)
{
	out->heard = !(c->marks & SYN_MARK_HEARD);
	c->marks |= SYN_MARK_HEARD;
}

CW_INLINE void syn_track_syn(struct syn_conn *c, u32 isn, u64 now_ns, struct syn_outcome *out)
{
	if (c->state == SYN_STATE_NONE || c->isn != isn) {
		*c = (struct syn_conn){
			.first_syn_ns = now_ns,
			.last_syn_ns = now_ns,
			.isn = isn,
			.state = SYN_STATE_OFFERED,
		};
		out->count = SYN_COUNT_OFFERED;
		return;
	}
	syn_track_heard(c, out);
	if (c->state != SYN_STATE_OFFERED) {
		out->count = SYN_COUNT_DUPLICATE;
		if (c->state == SYN_STATE_ANSWERED)
			c->last_data_ns = now_ns;
		return;
	}
	c->last_syn_ns = now_ns;
	if (c->retry < SYN_RETRY_MAX)
		c->retry++;
	out->count = SYN_COUNT_OFFERED;
}

/* The client begins another attempt by the same tuple: whether it had waited until now for this one. */
CW_INLINE bool syn_track_comes_again(struct syn_conn *c, u64 now_ns)
{
	if (c->state == SYN_STATE_LEFT)
		return true;
	if (c->state != SYN_STATE_OFFERED &&
	    !(c->state == SYN_STATE_ANSWERED && c->marks & SYN_MARK_HEARD))
		return false;
	c->state = SYN_STATE_LEFT;
	c->turn_ns = now_ns;
	return true;
}

CW_INLINE void syn_track_synack(struct syn_conn *c, u64 now_ns, struct syn_outcome *out)
{
	if (c->state == SYN_STATE_OFFERED) {
		c->state = SYN_STATE_ANSWERED;
		c->turn_ns = now_ns;
		c->answers = 1;
		out->at_ns = c->last_syn_ns;
		out->conn_fail_ns = c->last_syn_ns - c->first_syn_ns;
		out->count = SYN_COUNT_ACCEPTED;
	} else if (c->state == SYN_STATE_ANSWERED && c->answers < 255) {
		c->answers++;
	}
}

CW_INLINE void syn_track_ack(struct syn_conn *c, u64 now_ns, struct syn_outcome *out)
{
	if (c->state != SYN_STATE_ANSWERED)
		return;
	syn_track_heard(c, out);
	c->state = SYN_STATE_ESTABLISHED;
	c->rtt_us = cw_sat32((now_ns - c->turn_ns) / CW_US_NS);
	c->turn_ns = 0;
	c->last_data_ns = 0;
	out->count = SYN_COUNT_ESTABLISHED;
}

CW_INLINE void syn_track_sent(struct syn_conn *c, u32 seq)
{
	if ((s32)(seq - c->sent) > 0)
		c->sent = seq;
}

CW_INLINE void syn_track_served(struct syn_conn *c, struct syn_outcome *out)
{
	if (c->state != SYN_STATE_ESTABLISHED || c->served)
		return;
	c->served = 1;
	out->count = SYN_COUNT_SERVED;
}

/* Half the round trip, as far as it is taken for the way to the client. */
CW_INLINE u64 syn_track_way_ns(const struct syn_conn *c)
{
	u64 way_ns = (u64)c->rtt_us * CW_US_NS / 2;

	return way_ns < SYN_WAY_MAX_NS ? way_ns : SYN_WAY_MAX_NS;
}

/*
 * When the client had the last data, which was sent at end_ns: one way later. Its end may
 * be seen long after; then it is counted as late as that allows, one way before.
 */
CW_INLINE u64 syn_track_client_end_ns(const struct syn_conn *c, u64 end_ns, u64 now_ns)
{
	u64 way_ns = syn_track_way_ns(c);

	return end_ns + 2 * way_ns > now_ns ? end_ns + way_ns : now_ns - way_ns;
}

/*
 * The transaction ended at end_ns. Packets of both directions come on different CPUs, and
 * the search for silent connections runs beside them: the one that takes last_data_ns counts.
 */
CW_INLINE void syn_track_over(struct syn_conn *c, u64 end_ns, u64 now_ns, struct syn_outcome *out)
{
	bool later = c->marks & SYN_MARK_LATER;

	if (c->took_us) {
		out->timed = c->marks & SYN_MARK_OVERLAPS ? SYN_TIMED_OVERLAPS : SYN_TIMED_KNOWN;
		out->server_ns = (u64)c->took_us * CW_US_NS;
	}
	c->asked_ns = 0;
	c->took_us = 0;

	out->count = later ? SYN_COUNT_LATER : SYN_COUNT_COMPLETED;
	out->at_ns = syn_track_client_end_ns(c, end_ns, now_ns);
	out->accepted_ns = c->last_syn_ns;
	out->conn_fail_ns = later ? 0 : c->last_syn_ns - c->first_syn_ns;
	out->syn_to_end_ns = end_ns - c->last_syn_ns;
}

/* The transaction is over and the connection is not. */
CW_INLINE void syn_track_idle(struct syn_conn *c, u64 now_ns, struct syn_outcome *out)
{
	u64 end_ns = c->last_data_ns;

	if (__sync_val_compare_and_swap(&c->last_data_ns, end_ns, 0) != end_ns)
		return;
	syn_track_over(c, end_ns, now_ns, out);
	__sync_fetch_and_and(&c->marks, ~(SYN_MARK_ASKED | SYN_MARK_HANDSHAKE | SYN_MARK_ANSWERED));
	__sync_fetch_and_or(&c->marks, SYN_MARK_LATER);
}

CW_INLINE bool syn_track_is_idle(const struct syn_conn *c)
{
	u32 marks = c->marks & (SYN_MARK_LATER | SYN_MARK_ASKED | SYN_MARK_HANDSHAKE);

	return marks == SYN_MARK_LATER;
}

/* Whether all that the server has said behind the request may be tickets. */
CW_INLINE bool syn_track_may_be_tickets(const struct syn_conn *c)
{
	return (c->marks & (SYN_MARK_TLS | SYN_MARK_LATER)) == SYN_MARK_TLS &&
	       c->marks / SYN_MARK_SAID <= SYN_TICKETS_BYTES;
}

/* The server has said so much more behind the request. */
CW_INLINE void syn_track_said(struct syn_conn *c, u32 bytes)
{
	if (c->marks / SYN_MARK_SAID <= SYN_TICKETS_BYTES)
		__sync_fetch_and_add(&c->marks, CW_MIN(bytes, SYN_TICKETS_BYTES + 1u) * SYN_MARK_SAID);
}

CW_INLINE bool syn_track_was_silent(const struct syn_conn *c, u64 now_ns)
{
	return (c->marks & SYN_MARK_ASKED) && c->last_data_ns &&
	       (s64)(now_ns - c->last_data_ns) > (s64)SYN_SILENCE_NS;
}

/*
 * Whether the server takes leave, long behind a SHORT packet: by GOAWAY, say, and its end may follow
 * only later. Without TLS it may as well have been at work: `COMMIT` and `OK` are as short.
 */
CW_INLINE bool syn_track_is_goodbye(const struct syn_conn *c, s32 bytes, u64 now_ns)
{
	const u32 marks = SYN_MARK_TLS | SYN_MARK_SHORT | SYN_MARK_LATER;

	return (c->marks & marks) == marks && c->asked_ns && !c->last_data_ns && bytes <= SYN_GOODBYE_BYTES &&
	       (s64)(now_ns - c->asked_ns) > (s64)SYN_SILENCE_NS;
}

CW_INLINE void syn_track_data(struct syn_conn *c, u32 seq, u64 now_ns, struct syn_outcome *out)
{
	bool was_silent = syn_track_was_silent(c, now_ns);
	s32 bytes = (s32)(seq - c->sent);
	u64 took_ns;

	syn_track_sent(c, seq);
	if (c->state == SYN_STATE_ESTABLISHED) {
		syn_track_served(c, out);
		if (was_silent && (!syn_track_may_be_tickets(c) || (bytes > 0 && bytes <= SYN_GOODBYE_BYTES)))
			syn_track_idle(c, now_ns, out);
		if (syn_track_is_idle(c) || syn_track_is_goodbye(c, bytes, now_ns))
			return;
		if (bytes > SYN_GOODBYE_BYTES && (c->marks & (SYN_MARK_SHORT | SYN_MARK_ANSWERED)) == SYN_MARK_SHORT)
			__sync_fetch_and_or(&c->marks, SYN_MARK_ANSWERED);
		took_ns = now_ns - c->asked_ns;
		if (bytes > 0 && c->asked_ns && (s64)took_ns > 0) {
			c->took_us = CW_MAX(cw_sat32(took_ns / CW_US_NS), 1u);
			/* Behind a silence it is no ticket. */
			syn_track_said(c, was_silent ? SYN_TICKETS_BYTES + 1 : (u32)bytes);
		}
	} else if (c->state != SYN_STATE_CLOSED || !c->last_data_ns) {
		return;
	} else if (now_ns - c->last_data_ns > SYN_RESENT_MAX_NS) {
		c->state = SYN_STATE_DONE;
		return;
	} else {
		out->syn_to_end_ns = now_ns - c->last_data_ns;
		out->count = SYN_COUNT_RESENT;
	}
	c->last_data_ns = now_ns;
}

/* Whether so much time has gone by since then that the client did not wait for anything. */
CW_INLINE bool syn_track_was_in_no_hurry(const struct syn_conn *c, u64 since_ns, u64 now_ns)
{
	return (s64)(now_ns - since_ns) > (s64)(SYN_ASK_MAX_NS + (u64)c->rtt_us * CW_US_NS);
}

/* What the client says first, or first since it had its last answer. */
CW_INLINE void syn_track_begin(struct syn_conn *c, u64 now_ns, struct syn_outcome *out)
{
	/* A server that spoke first: what it said was waited for. */
	if (c->last_data_ns)
		syn_track_idle(c, now_ns, out);
	if (!(c->marks & SYN_MARK_LATER) && !syn_track_was_in_no_hurry(c, c->last_syn_ns, now_ns))
		return;
	c->last_syn_ns = now_ns;
	__sync_fetch_and_or(&c->marks, SYN_MARK_LATER);
}

/* The first packet of a request counts, or the first one behind what nothing answers. */
CW_INLINE void syn_track_asked(struct syn_conn *c, u32 event, u64 now_ns)
{
	if (!c->asked_ns || (c->marks & SYN_MARK_SHORT && !c->last_data_ns)) {
		if (c->asked_ns && c->marks & SYN_MARK_LATER)
			c->last_syn_ns = now_ns;
		c->asked_ns = now_ns;
		if (event == SYN_EVENT_SHORT)
			__sync_fetch_and_or(&c->marks, SYN_MARK_SHORT | SYN_MARK_WAS_SHORT);
		else if (c->marks & SYN_MARK_SHORT)
			__sync_fetch_and_and(&c->marks, ~SYN_MARK_SHORT);
	}
	if (event == SYN_EVENT_LONG)
		__sync_fetch_and_or(&c->marks, SYN_MARK_WAS_LONG);
	if ((c->marks & SYN_MARK_STREAMS) == SYN_MARK_STREAMS)
		__sync_fetch_and_or(&c->marks, SYN_MARK_OVERLAPS);
}

CW_INLINE void
syn_track_request(struct syn_conn *c, u32 event, u32 ack, u64 now_ns, struct syn_outcome *out)
{
	u32 mark = event == SYN_EVENT_HANDSHAKE ? SYN_MARK_HANDSHAKE | SYN_MARK_TLS : SYN_MARK_ASKED;
	u32 said = c->marks & (SYN_MARK_ASKED | SYN_MARK_HANDSHAKE);

	if (c->state != SYN_STATE_ESTABLISHED)
		return;
	if (event == SYN_EVENT_HTTP && (said & SYN_MARK_ASKED) && !c->last_data_ns)
		__sync_fetch_and_or(&c->marks, SYN_MARK_OVERLAPS);
	/* With the first one a server may also say what was not asked for: tickets, SETTINGS. */
	if ((said & SYN_MARK_ASKED) && (c->marks & SYN_MARK_LATER) && c->last_data_ns &&
	    (s32)(c->sent - ack) > 0)
		__sync_fetch_and_or(&c->marks, SYN_MARK_OVERLAPS);
	if (!said) {
		syn_track_begin(c, now_ns, out);
	} else if (!(said & SYN_MARK_ASKED) && mark == SYN_MARK_ASKED) {
		/* What it opened TLS for. Tickets may have come meanwhile. */
		if (c->last_data_ns && syn_track_was_in_no_hurry(c, c->last_data_ns, now_ns)) {
			c->last_syn_ns = now_ns;
			__sync_fetch_and_or(&c->marks, SYN_MARK_LATER);
		}
		c->last_data_ns = 0;
	} else if ((said & SYN_MARK_ASKED) && c->last_data_ns) {
		syn_track_idle(c, now_ns, out);
		c->last_syn_ns = now_ns;
		mark = SYN_MARK_ASKED;
	}
	if (mark == SYN_MARK_ASKED)
		syn_track_asked(c, event, now_ns);
	__sync_fetch_and_or(&c->marks, mark);
}

/* The connection ends; so does its transaction, with the server's last data, or here if it
 * sent none. */
CW_INLINE void syn_track_complete(struct syn_conn *c, u64 now_ns, struct syn_outcome *out)
{
	u64 end_ns = c->last_data_ns;

	c->state = SYN_STATE_DONE;
	if (!end_ns)
		syn_track_over(c, now_ns, now_ns, out);
	else if (__sync_val_compare_and_swap(&c->last_data_ns, end_ns, 0) == end_ns)
		syn_track_over(c, end_ns, now_ns, out);
}

/* The server never served it: the client waited in vain, from its first SYN, or from a late request. */
CW_INLINE void syn_track_stall(struct syn_conn *c, u64 now_ns, struct syn_outcome *out)
{
	u64 begin_ns = c->marks & SYN_MARK_LATER ? c->last_syn_ns : c->first_syn_ns;
	u64 end_ns = c->turn_ns ? c->turn_ns : now_ns;

	c->state = SYN_STATE_DONE;
	out->count = SYN_COUNT_STALLED;
	out->accepted_ns = c->last_syn_ns;
	out->conn_fail_ns = end_ns - begin_ns;
}

CW_INLINE void syn_track_unused(struct syn_conn *c, struct syn_outcome *out)
{
	c->state = SYN_STATE_DONE;
	/* After its last transaction there is nothing to count. */
	if (!syn_track_is_idle(c))
		out->count = SYN_COUNT_UNUSED;
}

/* Whether the connection's end leaves nothing to count: a SHORT packet, and a goodbye at most. */
CW_INLINE bool syn_track_asks_nothing(const struct syn_conn *c)
{
	u32 marks = c->marks & (SYN_MARK_SHORT | SYN_MARK_LATER | SYN_MARK_ANSWERED);

	return c->asked_ns && marks == (SYN_MARK_SHORT | SYN_MARK_LATER);
}

/* The client ends it. By its number may be told that it had asked, and the network lost that. */
CW_INLINE void syn_track_client_end(struct syn_conn *c, u32 event, u32 seq, u64 now_ns, struct syn_outcome *out)
{
	u32 said = SYN_MARK_ASKED | SYN_MARK_HANDSHAKE | SYN_MARK_LATER;

	if (!c->turn_ns && !(c->marks & said) && seq != c->isn + 1)
		__sync_fetch_and_or(&c->marks, SYN_MARK_ASKED);
	/* A FIN that is repeated was not acknowledged: the server does not know it. */
	if (event == SYN_EVENT_CLIENT_FIN && !c->last_data_ns && !syn_track_is_idle(c)) {
		if (!c->turn_ns) {
			c->turn_ns = now_ns;
			return;
		}
		if (c->served)
			return;
	}
	if (syn_track_asks_nothing(c) && (!c->last_data_ns || c->turn_ns))
		c->state = SYN_STATE_DONE;
	else if (!(c->marks & SYN_MARK_ASKED) && (c->served || !(c->marks & SYN_MARK_HANDSHAKE)))
		syn_track_unused(c, out);
	else if (c->served)
		syn_track_complete(c, now_ns, out);
	else
		syn_track_stall(c, now_ns, out);
}

CW_INLINE void syn_track_server_end(struct syn_conn *c, u32 event, u64 now_ns, struct syn_outcome *out)
{
	u64 end_ns = c->last_data_ns ? c->last_data_ns : now_ns;

	if (event == SYN_EVENT_SERVER_RESET && !c->served) {
		/* It does not know the connection. A client that was about to ask was in time. */
		if ((c->marks & (SYN_MARK_ASKED | SYN_MARK_HANDSHAKE)) ||
		    !syn_track_was_in_no_hurry(c, c->last_syn_ns, now_ns))
			syn_track_stall(c, now_ns, out);
		else
			syn_track_unused(c, out);
	} else if (!(c->marks & SYN_MARK_ASKED)) {
		syn_track_unused(c, out);
	} else if (syn_track_asks_nothing(c) && !syn_track_was_silent(c, now_ns)) {
		c->state = SYN_STATE_DONE;
	} else {
		syn_track_complete(c, now_ns, out);
		/* Behind the client's FIN nothing would say when that is over. */
		if (event == SYN_EVENT_SERVER_FIN && !c->turn_ns) {
			c->last_data_ns = end_ns;
			c->state = SYN_STATE_CLOSED;
		}
	}
}

CW_INLINE void syn_track_end(struct syn_conn *c, u32 event, u32 seq, u64 now_ns, struct syn_outcome *out)
{
	u8 state = c->state;

	if (state == SYN_STATE_NONE || state == SYN_STATE_DONE || state == SYN_STATE_LEFT)
		return;
	if (state == SYN_STATE_CLOSED) {
		c->state = event == SYN_EVENT_SERVER_FIN ? SYN_STATE_CLOSED : SYN_STATE_DONE;
	} else if (state == SYN_STATE_ANSWERED && event == SYN_EVENT_CLIENT_RESET) {
		c->state = SYN_STATE_LEFT;
		c->turn_ns = now_ns;
		out->count = SYN_COUNT_ABANDONED;
	} else if (state != SYN_STATE_ESTABLISHED) {
		c->state = SYN_STATE_DONE;
		out->count = SYN_COUNT_ABANDONED;
		if (state == SYN_STATE_OFFERED && event == SYN_EVENT_SERVER_RESET) {
			out->at_ns = c->last_syn_ns;
			out->count = SYN_COUNT_REFUSED;
		}
	} else if (event == SYN_EVENT_CLIENT_FIN || event == SYN_EVENT_CLIENT_RESET) {
		syn_track_client_end(c, event, seq, now_ns, out);
	} else {
		syn_track_server_end(c, event, now_ns, out);
	}
}

/*
 * One event of the connection c. Times never go back. `seq` is the sequence number of a SYN or
 * SYN-ACK, of what follows the data, with a client's FIN or RST and with what the server sends,
 * and what is acknowledged, with a request.
 */
CW_INLINE void syn_track(struct syn_conn *c, u32 event, u32 seq, u64 now_ns, struct syn_outcome *out)
{
	*out = (struct syn_outcome){ .at_ns = now_ns };
	switch (event) {
	case SYN_EVENT_SYN:
		syn_track_syn(c, seq, now_ns, out);
		break;
	case SYN_EVENT_SYNACK:
		c->sent = seq + 1;
		syn_track_synack(c, now_ns, out);
		break;
	case SYN_EVENT_ACK:
		syn_track_ack(c, now_ns, out);
		break;
	case SYN_EVENT_DATA:
		syn_track_data(c, seq, now_ns, out);
		break;
	case SYN_EVENT_SERVED:
		syn_track_sent(c, seq);
		syn_track_served(c, out);
		break;
	case SYN_EVENT_REQUEST:
	case SYN_EVENT_HANDSHAKE:
	case SYN_EVENT_SHORT:
	case SYN_EVENT_LONG:
	case SYN_EVENT_HTTP:
		syn_track_request(c, event, seq, now_ns, out);
		break;
	case SYN_EVENT_SILENCE:
		if (c->state == SYN_STATE_ESTABLISHED && syn_track_was_silent(c, now_ns) &&
		    !syn_track_may_be_tickets(c))
			syn_track_idle(c, now_ns, out);
		break;
	default:
		syn_track_end(c, event, seq, now_ns, out);
		break;
	}
	out->retry = c->retry;
	out->answers = c->answers;
	out->rtt_ns = (u64)c->rtt_us * CW_US_NS;
	out->first_syn_ns = c->first_syn_ns;
}

#endif
