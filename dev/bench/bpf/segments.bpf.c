/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Segments for what a server runs in traffic control. As bench_shot does for the balancer
 * (reference.bpf.c), bench_segment writes the next connection's segment into the buffer and
 * calls the program under test; what it costs itself is in bench_pass, too, and drops out.
 * bench_lend gives each connection a clock in the server's cache of them, without a socket.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Of what a server does with a line only a part is needed. */
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wunused-function"
#include "../../../bpf/server/timestamp_cache.h"
#include "../../../bpf/shared/syn_abi.h"
#pragma clang diagnostic pop

#define BENCH_VIP_BE bpf_htonl(0xc000020a) /* 192.0.2.10 */
#define BENCH_PORT_BE bpf_htons(443)
#define BENCH_MAX_CONNECTIONS 32768
#define BENCH_COOKIE 0x1234
#define BENCH_BITS 16
#define BENCH_FIRST_O 5000000 /* the kernel's timestamp when clocks begin */
#define BENCH_ISN 7000        /* the server's */

/* As the accounting has them by default. */
#define FLOOR_HALF_OPEN 65536
#define FLOOR_CONNECTIONS 131072

enum segment_kind {
	SEGMENT_OUT = 0,     /* the server's data, a millisecond later in each pass */
	SEGMENT_IN = 1,      /* the client's request, which echoes what a pass sent */
	SEGMENT_SYN = 2,     /* each of a new tuple */
	SEGMENT_SYN_ACK = 3, /* the answer to each */
	SEGMENT_ACK = 4,     /* and what establishes it */
};

/* Written by user space before a run. */
struct segments {
	u32 kind;
	u32 connections; /* how many are wanted */
	u32 position;    /* the next one */
	u32 pass;        /* how often all of them have been used */
	u32 first_t;     /* of the clocks, by bench_lend */
	u32 listed;      /* connections in `numbers` */
	u32 candidate;   /* the next one that may be listed */
	u32 opened;      /* new tuples so far */
};
struct segments segments;

/* Connections that have a line of the cache alone. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BENCH_MAX_CONNECTIONS);
	__type(key, u32);
	__type(value, u32);
} numbers SEC(".maps");

/* Slot 0: the program under test. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} under_test SEC(".maps");

#define SEGMENT_PAYLOAD 64

struct segment_frame {
	struct ethhdr eth;
	struct iphdr ip;
	struct tcphdr tcp;
	u32 nop_nop_ts_be, tsval_be, tsecr_be;
	u8 payload[SEGMENT_PAYLOAD];
} __attribute__((packed));

/* The client to the VIP. */
static __always_inline struct flow_key4 connection(u32 number)
{
	return (struct flow_key4){
		.saddr_be = bpf_htonl(0x0a000000 + (number >> 14)),
		.daddr_be = BENCH_VIP_BE,
		.sport_be = bpf_htons(0x4000 | (number & 0x3fff)),
		.dport_be = BENCH_PORT_BE,
		.proto = IPPROTO_TCP,
	};
}

static __always_inline void write_segment(struct segment_frame *to, u32 number)
{
	u32 kind = segments.kind, pass = segments.pass, isn = number * 3;
	bool leaves = kind == SEGMENT_OUT || kind == SEGMENT_SYN_ACK, has_data = kind <= SEGMENT_IN;
	u32 len = sizeof(*to) - sizeof(struct ethhdr) - (has_data ? 0 : SEGMENT_PAYLOAD);
	struct flow_key4 key = connection(number);

	to->ip = (struct iphdr){
		.version = 4,
		.ihl = 5,
		.tot_len = bpf_htons(len),
		.frag_off = bpf_htons(IP_DONT_FRAGMENT),
		.ttl = 60,
		.protocol = IPPROTO_TCP,
		.saddr = leaves ? key.daddr_be : key.saddr_be,
		.daddr = leaves ? key.saddr_be : key.daddr_be,
	};
	to->tcp = (struct tcphdr){
		.source = leaves ? key.dport_be : key.sport_be,
		.dest = leaves ? key.sport_be : key.dport_be,
		.seq = bpf_htonl(has_data ? pass * SEGMENT_PAYLOAD
				 : leaves ? BENCH_ISN
					  : isn + (kind == SEGMENT_ACK)),
		.ack_seq = bpf_htonl(leaves ? isn + 1 : BENCH_ISN + 1),
		.doff = 8,
		.syn = kind == SEGMENT_SYN || kind == SEGMENT_SYN_ACK,
		.ack = kind != SEGMENT_SYN,
	};
	to->nop_nop_ts_be = TCP_NOP_NOP_TS;
	to->tsval_be = bpf_htonl(leaves ? BENCH_FIRST_O + pass : pass);
	to->tsecr_be = bpf_htonl(leaves ? pass : (segments.first_t + pass) << BENCH_BITS | BENCH_COOKIE);
}

SEC("tc")
int bench_segment(struct __sk_buff *skb)
{
	struct segment_frame *to = (void *)(long)skb->data;
	u32 position = segments.position, *number;

	if ((void *)(to + 1) > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	if (segments.kind >= SEGMENT_SYN) {
		write_segment(to, segments.opened++);
	} else {
		number = bpf_map_lookup_elem(&numbers, &position);
		if (!number)
			return TC_ACT_SHOT;
		write_segment(to, *number);
		if (++segments.position >= segments.connections) {
			segments.position = 0;
			segments.pass++;
		}
	}
	bpf_tail_call(skb, &under_test, 0);
	return TC_ACT_SHOT;
}

/*
 * Lends the next listed connection its clock again; behind the last one it lists the next
 * candidate that no other shares a line with.
 */
SEC("tc")
int bench_lend(struct __sk_buff *skb)
{
	u32 position = segments.position, *number = bpf_map_lookup_elem(&numbers, &position), wanted;
	struct segment seg = { .family = IPV4 };
	struct timestamp_cache_line *line;
	struct timestamp_clock *own;
	u64 name;

	(void)skb;
	if (!number || position >= segments.connections)
		return TC_ACT_UNSPEC;
	wanted = position < segments.listed ? *number : segments.candidate++;
	seg.key4 = connection(wanted);
	name = segment_name(&seg);
	line = cache_line(name);
	own = clock_at(name);
	if (!line || !own || (line->name && line->name != name))
		return TC_ACT_UNSPEC;
	if (position == segments.listed)
		*number = wanted, segments.listed++;
	cookie_clock_start(&own->clock, BENCH_FIRST_O, 0, 1, BENCH_BITS);
	segments.first_t = own->clock.t;
	line->name = name;
	line->cookie = BENCH_COOKIE;
	line->echoed_t = own->clock.echoed_t;
	line->lease_t = cookie_clock_lease(&own->clock);
	copy_anchors(line, &own->clock);
	segments.position++;
	return TC_ACT_UNSPEC;
}

/*
 * The least that the accounting of SYNs does with a handshake, if attempts and connections have
 * tables of their own, in which who was silent longest is evicted: one lookup for each segment, and
 * the insertions and the deletion. No service, slot of time or counter.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FLOOR_HALF_OPEN);
	__type(key, struct flow_key6);
	__type(value, struct syn_entry);
} floor_half_open SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FLOOR_CONNECTIONS);
	__type(key, struct flow_key6);
	__type(value, struct syn_entry);
} floor_connections SEC(".maps");

SEC("tc")
int floor_clients(struct __sk_buff *skb)
{
	struct segment_frame *from = (void *)(long)skb->data;
	struct syn_entry fresh = {}, *entry;
	struct flow_key6 key = {};
	bool leaves;

	if ((void *)(from + 1) > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	leaves = from->tcp.syn && from->tcp.ack;
	key.saddr_be[3] = leaves ? from->ip.daddr : from->ip.saddr;
	key.daddr_be[3] = leaves ? from->ip.saddr : from->ip.daddr;
	key.sport_be = leaves ? from->tcp.dest : from->tcp.source;
	key.dport_be = leaves ? from->tcp.source : from->tcp.dest;
	entry = bpf_map_lookup_elem(&floor_half_open, &key);
	if (!entry) {
		fresh.seq = from->tcp.seq;
		bpf_map_update_elem(&floor_half_open, &key, &fresh, BPF_ANY);
		return TC_ACT_UNSPEC;
	}
	entry->seq = from->tcp.seq;
	if (leaves)
		return TC_ACT_UNSPEC;
	fresh = *entry;
	bpf_map_update_elem(&floor_connections, &key, &fresh, BPF_ANY);
	bpf_map_delete_elem(&floor_half_open, &key);
	return TC_ACT_UNSPEC;
}

/* As all that a server runs. */
SEC("tc")
int bench_pass(struct __sk_buff *skb)
{
	(void)skb;
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "GPL";
