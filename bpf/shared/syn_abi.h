/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What the accounting of SYNs and the agent share (bpf/syn.bpf.c), beside abi.h.
 */
#ifndef CAUSEWAY_SYN_ABI_H
#define CAUSEWAY_SYN_ABI_H

#include "abi.h"
#include "syn_track.h"

/* Counts of SYNs and of what became of them, by retry: first SYNs are retry 0. */
#define SYN_RETRIES 16

/* What one category of clients did in one slot of time; see syn_track.h. */
struct syn_slot {
	u64 number; /* time / length of a slot */
	u64 syn_to_end_ns; /* sums over the completed connections */
	u64 rtt_ns;
	u64 conn_fail_ns;
	u64 stalled_ns; /* sum over the stalled: first SYN to end */
	u64 later_ns;   /* sum over the later ones: request to end */
	u64 server_ns;  /* sum over the timed: what the server took */
	u32 offered[SYN_RETRIES];
	u32 accepted[SYN_RETRIES];
	u32 refused;        /* answered with a RST; not in offered */
	u32 duplicates;     /* SYNs that had been answered */
	u32 established;
	u32 established_late; /* of those the ones that took more than one SYN-ACK */
	u32 completed;
	u32 stalled;
	u32 abandoned;
	u32 heard;          /* of the first SYNs those whose client was heard of again */
	u32 heard_answered; /* of those the ones that had been answered */
	u32 served;         /* connections of which the server was first seen to know */
	u32 served_first;   /* of those the ones whose first SYN was answered */
	u32 established_first;
	u32 later;  /* transactions that did not begin with a SYN */
	u32 unused; /* connections that asked nothing */
	u32 timed;  /* transactions of which it is known what the server took */
	u32 overlapping; /* of which it is not, as their client asked before it had its answers */
};
ABI_SIZE(struct syn_slot, 248);

/* In the kernel behind a lock. */
#define SYN_SLOT_LOCKED 256

/* Entries of the accounting's tables. */
#define SYN_SERVICES 256
#define SYN_PREFIXES 1024
#define SYN_DEVICES 16
#define SYN_ORIGINS 16384
#define SYN_RETRY_TIMES 4096
#define SYN_OPEN 4096
#define SYN_FORMER 4096

/* Response times, client's point of view: each bucket up to its bound, the last without. */
#define SYN_BUCKETS 16
#define SYN_BUCKET_BOUNDS_US(X)                                                  \
	X(500) X(1000) X(2500) X(5000) X(10000) X(25000) X(50000) X(100000)      \
	X(250000) X(500000) X(1000000) X(2500000) X(5000000) X(10000000) X(30000000)

struct syn_responses {
	u64 count[SYN_BUCKETS];
	u64 sum_ns;
};
ABI_SIZE(struct syn_responses, 136);

/* Connections completed in a slot by how many slots before their SYN was accepted. */
struct syn_origin {
	u64 number;
	u32 category;
	u32 slots_ago;
};
ABI_SIZE(struct syn_origin, 16);

/* An attempt was answered at this retry, which came so long after its first SYN. */
struct syn_retry_time {
	u32 retry;
	u32 at_cs; /* hundredths of a second */
};
ABI_SIZE(struct syn_retry_time, 8);

/* An attempt or a connection in the kernel's tables. */
struct syn_entry {
	struct syn_conn conn;
	u32 seq; /* of the latest SYN-ACK; once connected, behind the client's data */
	u32 category;
};
ABI_SIZE(struct syn_entry, 72);

/* An attempt by its tuple and when its first SYN came: tuples come again. */
struct syn_attempt {
	struct flow_key6 key;
	u64 first_syn_ns;
};
ABI_SIZE(struct syn_attempt, 48);

/* Key of client prefixes; IPv4 as IPv4-mapped. */
struct syn_prefix {
	u32 length; /* bits */
	u8 addr[16];
};
ABI_SIZE(struct syn_prefix, 20);

#endif
