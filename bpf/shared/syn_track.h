/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * One connection attempt as its server's interface sees it: when its first and its
 * last SYN came, when it was answered, when the server was done. The first to the
 * last SYN is the time that the client lost before it was connected (CONN-FAIL),
 * the last SYN to the end is what a server can see by itself (SYN-to-END); Certes,
 * eq. 1 and section 4.
 *
 * Each call takes one event and says which one counter it moves. A SYN is OFFERED
 * unless it was answered already; the first answer makes the last SYN ACCEPTED, in
 * the slot in which that SYN came; OFFERED - ACCEPTED were dropped. A SYN with the
 * same sequence number repeats the attempt, another number begins a new one.
 */
#ifndef CAUSEWAY_SYN_TRACK_H
#define CAUSEWAY_SYN_TRACK_H

#include "types.h"

/* Later retries count as this one. No stack sends more SYNs than this. */
#define SYN_RETRY_MAX 15

enum syn_event {
	SYN_EVENT_SYN = 0,    /* from the client */
	SYN_EVENT_SYNACK = 1, /* from the server */
	SYN_EVENT_ACK = 2,    /* from the client, with ACK, without SYN and RST */
	SYN_EVENT_DATA = 3,   /* from the server, with payload */
	SYN_EVENT_END = 4,    /* FIN or RST, either way; a client's FIN+ACK is an ACK first */
};

enum syn_state {
	SYN_STATE_NONE = 0,
	SYN_STATE_OFFERED = 1,     /* not answered so far */
	SYN_STATE_ANSWERED = 2,    /* SYN-ACK sent, nothing heard since */
	SYN_STATE_ESTABLISHED = 3, /* the client's ACK came */
	SYN_STATE_DONE = 4,
};

/* What an event counts as. */
enum syn_count {
	SYN_COUNT_NOTHING = 0,
	SYN_COUNT_OFFERED = 1,     /* at now, retry told */
	SYN_COUNT_ACCEPTED = 2,    /* at the last SYN, retry told */
	SYN_COUNT_DUPLICATE = 3,   /* a SYN that had been answered */
	SYN_COUNT_ESTABLISHED = 4, /* at now, RTT and answers told */
	SYN_COUNT_COMPLETED = 5,   /* at now, every time told */
	SYN_COUNT_ABANDONED = 6,   /* ended before it was accepted or established */
};

struct syn_conn {
	u64 first_syn_ns;
	u64 last_syn_ns;
	u64 synack_ns;    /* the first SYN-ACK */
	u64 last_data_ns; /* the server's last data; 0: none */
	u32 isn;
	u32 rtt_us;       /* first SYN-ACK to first ACK */
	u8 state;         /* enum syn_state */
	u8 retry;         /* SYNs after the first, as far as they came here */
	u8 answers;       /* SYN-ACKs sent before the client's ACK; stops at 255 */
	u8 pad[5];
};
_Static_assert(sizeof(struct syn_conn) == 48, "struct syn_conn");

struct syn_outcome {
	u64 at_ns;         /* belongs to the slot of this time */
	u64 accepted_ns;   /* COMPLETED: when its last SYN came */
	u64 conn_fail_ns;  /* COMPLETED: first SYN to last SYN */
	u64 syn_to_end_ns; /* COMPLETED: last SYN to the server's last data */
	u64 rtt_ns;        /* ESTABLISHED, COMPLETED */
	u8 count;          /* enum syn_count */
	u8 retry;
	u8 answers;        /* ESTABLISHED: more than 1 if a round trip was lost */
	u8 pad[5];
};
_Static_assert(sizeof(struct syn_outcome) == 48, "struct syn_outcome");

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
	if (c->state != SYN_STATE_OFFERED) {
		out->count = SYN_COUNT_DUPLICATE;
		return;
	}
	c->last_syn_ns = now_ns;
	if (c->retry < SYN_RETRY_MAX)
		c->retry++;
	out->count = SYN_COUNT_OFFERED;
}

CW_INLINE void syn_track_synack(struct syn_conn *c, u64 now_ns, struct syn_outcome *out)
{
	if (c->state == SYN_STATE_OFFERED) {
		c->state = SYN_STATE_ANSWERED;
		c->synack_ns = now_ns;
		c->answers = 1;
		out->at_ns = c->last_syn_ns;
		out->count = SYN_COUNT_ACCEPTED;
	} else if (c->state == SYN_STATE_ANSWERED && c->answers < 255) {
		c->answers++;
	}
}

CW_INLINE void syn_track_ack(struct syn_conn *c, u64 now_ns, struct syn_outcome *out)
{
	if (c->state != SYN_STATE_ANSWERED)
		return;
	c->state = SYN_STATE_ESTABLISHED;
	c->rtt_us = cw_sat32((now_ns - c->synack_ns) / CW_US_NS);
	out->count = SYN_COUNT_ESTABLISHED;
}

/* The transaction ends with the server's last data, or here if it sent none. */
CW_INLINE void syn_track_end(struct syn_conn *c, u64 now_ns, struct syn_outcome *out)
{
	u64 end_ns = c->last_data_ns ? c->last_data_ns : now_ns;
	u8 state = c->state;

	if (state == SYN_STATE_NONE || state == SYN_STATE_DONE)
		return;
	c->state = SYN_STATE_DONE;
	if (state != SYN_STATE_ESTABLISHED) {
		out->count = SYN_COUNT_ABANDONED;
		return;
	}
	out->count = SYN_COUNT_COMPLETED;
	out->accepted_ns = c->last_syn_ns;
	out->conn_fail_ns = c->last_syn_ns - c->first_syn_ns;
	out->syn_to_end_ns = end_ns - c->last_syn_ns;
}

/* One event of the connection c; isn is read with a SYN alone. Times never go back. */
CW_INLINE void syn_track(struct syn_conn *c, u32 event, u32 isn, u64 now_ns, struct syn_outcome *out)
{
	*out = (struct syn_outcome){ .at_ns = now_ns };
	switch (event) {
	case SYN_EVENT_SYN:
		syn_track_syn(c, isn, now_ns, out);
		break;
	case SYN_EVENT_SYNACK:
		syn_track_synack(c, now_ns, out);
		break;
	case SYN_EVENT_ACK:
		syn_track_ack(c, now_ns, out);
		break;
	case SYN_EVENT_DATA:
		if (c->state == SYN_STATE_ESTABLISHED)
			c->last_data_ns = now_ns;
		break;
	case SYN_EVENT_END:
		syn_track_end(c, now_ns, out);
		break;
	}
	out->retry = c->retry;
	out->answers = c->answers;
	out->rtt_ns = (u64)c->rtt_us * CW_US_NS;
}

#endif
