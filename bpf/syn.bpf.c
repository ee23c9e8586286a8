/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * SYN accounting on a server: which attempts to connect came, which were answered,
 * when connections were done. Two traffic control programs, one for each direction,
 * that look on and change nothing; they run behind the decapsulation and beside the
 * cookie programs, if there are any, before or behind them.
 *
 * A packet costs one look into one table: what comes in without payload can only matter to an
 * attempt that is not connected, unless it ends a connection; what goes out and what asks can
 * only matter to a connection, unless it is a SYN-ACK or the first request.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "server/syn_count.h"
#include "server/syn_segment.h"

#define TC_GO_ON -1 /* TC_ACT_UNSPEC: the next filter, if there is one */

#define SYN EST_TCP_SYN
#define ACK EST_TCP_ACK
#define FIN EST_TCP_FIN
#define RST EST_TCP_RST

/* CLOCK_METADATA: the time stands in the buffer's timestamp (tests). */
const volatile u32 cfg_clock = CLOCK_KTIME;

static __always_inline u64 segment_time(const struct __sk_buff *skb)
{
	return cfg_clock == CLOCK_KTIME ? bpf_ktime_get_ns() : skb->tstamp;
}

static __always_inline void step(struct syn_entry *entry, u32 event, u32 seq, u64 now_ns)
{
	struct syn_outcome out;

	syn_track(&entry->conn, event, seq, now_ns, &out);
	count_outcome(entry->category, &out);
}

/*
 * The client says something; true if the connection is known. What is retransmitted, lost or
 * not, is no other request.
 */
static __always_inline bool
asking(struct __sk_buff *skb, const struct syn_segment *seg, u64 now_ns)
{
	struct syn_entry *entry = bpf_map_lookup_elem(&syn_connections, &seg->key);
	u32 next = seg->seq + seg->payload_len;

	if (!entry)
		return false;
	if ((s32)(next - entry->seq) <= 0)
		return true;
	entry->seq = next;
	step(entry, request_event(skb, seg), seg->ack, now_ns);
	return true;
}

/*
 * An event that may end the entry. Both sides' FINs may be here at once, on two CPUs:
 * the one that marks the entry first counts.
 */
static __always_inline void
step_end(void *map, struct syn_entry *entry, const struct syn_segment *seg, u32 event, u64 now_ns)
{
	u32 seq = seg->seq + seg->payload_len;
	u32 category = entry->category;
	struct syn_outcome out;

	syn_track(&entry->conn, event, seq, now_ns, &out);
	if (out.count != SYN_COUNT_NOTHING &&
	    !(__sync_fetch_and_or(&entry->conn.marks, SYN_MARK_ENDED) & SYN_MARK_ENDED))
		count_outcome(category, &out);
	if (entry->conn.state == SYN_STATE_DONE)
		bpf_map_delete_elem(map, &seg->key);
}

/*
 * A client that comes again by the same tuple has given up its former attempt. Whether that
 * was one that waited the agent decides.
 */
static __always_inline void
keep_former(const struct syn_entry *former, const struct flow_key6 *key, u64 now_ns)
{
	struct syn_attempt attempt = { .key = *key, .first_syn_ns = former->conn.first_syn_ns };
	struct syn_entry left = *former;

	if (now_ns - attempt.first_syn_ns < SYN_FORMER_NS || !syn_track_comes_again(&left.conn, now_ns))
		return;
	bpf_map_update_elem(&syn_former, &attempt, &left, BPF_ANY);
}

static __always_inline void opening(struct __sk_buff *skb, const struct syn_segment *seg, u64 now_ns)
{
	struct syn_entry *former = bpf_map_lookup_elem(&syn_half_open, &seg->key);
	struct syn_entry *entry = former;
	struct syn_entry fresh = {};

	if (entry && entry->conn.isn == seg->seq) {
		step(entry, SYN_EVENT_SYN, seg->seq, now_ns);
		return;
	}
	entry = bpf_map_lookup_elem(&syn_connections, &seg->key);
	if (entry && entry->conn.isn == seg->seq) {
		step(entry, SYN_EVENT_SYN, seg->seq, now_ns);
		return;
	}
	if (!find_category(&seg->key, skb->ifindex, &fresh.category))
		return;
	if (former)
		keep_former(former, &seg->key, now_ns);
	step(&fresh, SYN_EVENT_SYN, seg->seq, now_ns);
	bpf_map_update_elem(&syn_half_open, &seg->key, &fresh, BPF_ANY);
}

/* The client's ACK of our SYN-ACK: from a guess the connection is not established. */
static __always_inline void establish(const struct syn_segment *seg, u64 now_ns)
{
	struct syn_entry *entry = bpf_map_lookup_elem(&syn_half_open, &seg->key);
	struct syn_entry moved;

	if (!entry || entry->conn.state != SYN_STATE_ANSWERED)
		return;
	if (seg->ack - entry->seq - 1 > 0x7fffffff)
		return;
	step(entry, SYN_EVENT_ACK, 0, now_ns);
	moved = *entry;
	moved.seq = entry->conn.isn + 1;
	bpf_map_update_elem(&syn_connections, &seg->key, &moved, BPF_ANY);
	bpf_map_delete_elem(&syn_half_open, &seg->key);
}

static __always_inline void
ending(const struct syn_segment *seg, u32 event, bool attempts_too, u64 now_ns)
{
	struct syn_entry *entry = bpf_map_lookup_elem(&syn_connections, &seg->key);

	if (entry) {
		step_end(&syn_connections, entry, seg, event, now_ns);
		return;
	}
	if (!attempts_too)
		return;
	entry = bpf_map_lookup_elem(&syn_half_open, &seg->key);
	if (entry)
		step_end(&syn_half_open, entry, seg, event, now_ns);
}

SEC("tc")
int causeway_syn_in(struct __sk_buff *skb)
{
	struct syn_segment seg = {};
	u64 now_ns;

	if (!read_syn_segment(skb, &seg, true))
		return TC_GO_ON;
	if ((seg.flags & (SYN | ACK)) == (SYN | ACK) || !(seg.flags & (SYN | ACK | RST)))
		return TC_GO_ON;
	now_ns = segment_time(skb);
	if (seg.flags & SYN) {
		if (!is_absurd(seg.flags))
			opening(skb, &seg, now_ns);
		return TC_GO_ON;
	}
	if (seg.flags & RST) {
		ending(&seg, SYN_EVENT_CLIENT_RESET, true, now_ns);
		return TC_GO_ON;
	}
	if (!seg.payload_len || !asking(skb, &seg, now_ns)) {
		establish(&seg, now_ns);
		if (seg.payload_len)
			asking(skb, &seg, now_ns);
	}
	if (seg.flags & FIN)
		ending(&seg, SYN_EVENT_CLIENT_FIN, false, now_ns);
	return TC_GO_ON;
}

static __always_inline void answering(const struct syn_segment *seg, u64 now_ns)
{
	struct syn_entry *entry = bpf_map_lookup_elem(&syn_half_open, &seg->key);

	if (!entry)
		note_open(&seg->key);
	/* Of an answer to an earlier attempt with the same tuple nothing is known. */
	if (!entry || seg->ack != entry->conn.isn + 1)
		return;
	entry->seq = seg->seq;
	step(entry, SYN_EVENT_SYNACK, seg->seq, now_ns);
}

SEC("tc")
int causeway_syn_out(struct __sk_buff *skb)
{
	struct syn_segment seg = {};
	u32 event = SYN_EVENT_SERVED;
	struct syn_outcome out;
	struct syn_entry *entry;
	u64 now_ns;

	if (!read_syn_segment(skb, &seg, false))
		return TC_GO_ON;
	if (seg.flags & SYN) {
		if (seg.flags & ACK)
			answering(&seg, segment_time(skb));
		return TC_GO_ON;
	}
	if (seg.flags & RST) {
		ending(&seg, SYN_EVENT_SERVER_RESET, true, segment_time(skb));
		return TC_GO_ON;
	}
	entry = bpf_map_lookup_elem(&syn_connections, &seg.key);
	if (!entry)
		return TC_GO_ON;
	now_ns = segment_time(skb);
	if (seg.payload_len && !is_interim(skb, &seg))
		event = SYN_EVENT_DATA;
	syn_track(&entry->conn, event, seg.seq + seg.payload_len, now_ns, &out);
	if (out.count != SYN_COUNT_NOTHING)
		count_outcome(entry->category, &out);
	if (seg.flags & FIN)
		step_end(&syn_connections, entry, &seg, SYN_EVENT_SERVER_FIN, now_ns);
	return TC_GO_ON;
}

struct silence {
	u64 now_ns;
};

static long
look_for_silence(const void *map, const void *key, struct syn_entry *entry, const struct silence *at)
{
	(void)map;
	(void)key;
	if (entry->conn.state == SYN_STATE_ESTABLISHED)
		step(entry, SYN_EVENT_SILENCE, 0, at->now_ns);
	return 0;
}

/*
 * Run by the agent, on an empty packet: counts answers that are over while their connections stay open.
 * A program of the kind that may hold the slots' lock on Linux 6.1.
 */
SEC("tc")
int causeway_syn_silence(struct __sk_buff *skb)
{
	struct silence at = { .now_ns = segment_time(skb) };

	bpf_for_each_map_elem(&syn_connections, look_for_silence, &at, 0);
	return TC_GO_ON;
}

char LICENSE[] SEC("license") = "GPL";
