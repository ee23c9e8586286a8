/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Measuring instruments, never attached: programs that the balancer's cost is
 * compared with, and those that prepare packets for it.
 *
 * bench_shot stands before the program under test. BPF_PROG_TEST_RUN with a repeat
 * count hands the same buffer back, encapsulated by the run before; bench_shot cuts
 * it to length and writes the next flow's packet, so that every shot is a fresh
 * packet of another flow. What it costs is in the `empty` case too, and drops out.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../../../bpf/packet/parse.h"
#include "../../../bpf/packet/write.h"

#define BENCH_MAX_FLOWS 1048576
#define BENCH_VIP 0xc000020a /* 192.0.2.10, the first */
#define BENCH_PORT_BE bpf_htons(443)

enum shot_kind {
	SHOT_TCP = 0, /* requests and pure ACKs by turns, with a timestamp */
	SHOT_SYN = 1, /* each of a new tuple */
	SHOT_UDP = 2,
	SHOT_TOKEN = 3, /* as SHOT_TCP; the echoed timestamps end in the client's token */
	SHOT_OPEN = 4, /* each client's SYN, with a timestamp */
	SHOT_COOKIE = 5, /* as SHOT_TOKEN, with the client's cookie */
	SHOT_COOKIE_SYN = 6, /* as SHOT_SYN, with the options that Linux sends */
	SHOT_CID = 7, /* QUIC's short header with the client's connection id */
	SHOT_END = 8, /* as SHOT_TCP, with a FIN */
};

/* Written by user space before a run; position and pass move on with it. */
struct shots {
	u32 kind;
	u32 flows;    /* how many of `clients` are used */
	u32 position; /* the next one */
	u32 pass;     /* how often all of them have been used */
	u32 syns;     /* SYNs so far */
};
struct shots shots;

#define CID_LEN 11

struct client {
	u32 addr_be;
	u16 port_be;
	u16 token;  /* what its server writes into timestamps in stateful mode */
	u16 cookie; /* what it writes with cookies */
	u8 cid[CID_LEN]; /* what it issues with QUIC */
	u8 pad;
	u16 vip; /* which one it connects to: address after address */
};

/* The flows in the order of their packets, which is not that of their insertion. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BENCH_MAX_FLOWS);
	__type(key, u32);
	__type(value, struct client);
} clients SEC(".maps");

/* Slot 0: the program under test. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} under_test SEC(".maps");

/* The table of `min`: the least that any stateful balancer looks up. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BENCH_MAX_FLOWS);
	__type(key, struct flow_key4);
	__type(value, u32);
} min_flows SEC(".maps");

struct shot_ip {
	struct ethhdr eth;
	struct iphdr ip;
} __attribute__((packed));

#define SHOT_PAYLOAD 64

/* One length for all kinds, so that restoring is one call. */
struct shot_tcp {
	struct shot_ip head;
	struct tcphdr tcp;
	u32 nop_nop_ts_be, tsval_be, tsecr_be;
	u8 payload[SHOT_PAYLOAD];
} __attribute__((packed));

struct shot_udp {
	struct shot_ip head;
	struct udphdr udp;
} __attribute__((packed));

#define SHOT_LEN sizeof(struct shot_tcp)

static __always_inline void
write_head(struct shot_ip *head, u8 proto, u32 ip_len, const struct client *client)
{
	__builtin_memset(head->eth.h_dest, 2, ETH_ALEN);
	__builtin_memset(head->eth.h_source, 4, ETH_ALEN);
	head->eth.h_proto = bpf_htons(ETH_P_IP);
	head->ip = (struct iphdr){
		.version = 4,
		.ihl = 5,
		.tot_len = bpf_htons(ip_len),
		.frag_off = bpf_htons(IP_DONT_FRAGMENT),
		.ttl = 60,
		.protocol = proto,
		.saddr = client->addr_be,
		.daddr = bpf_htonl(BENCH_VIP + client->vip),
	};
}

/* The echo of what the client's server wrote. */
static __always_inline u32 echo_of(const struct client *client, u32 pass)
{
	switch (shots.kind) {
	case SHOT_TOKEN:
		return pass << 16 | client->token;
	case SHOT_COOKIE:
		return pass << 16 | client->cookie;
	default:
		return pass;
	}
}

/*
 * A request, then an ACK of its response, then the next request: odd and even flows
 * a step apart. Sequence and ACK numbers go on from pass to pass as a server that
 * answers each 64 bytes with 1,000 would have it.
 */
static __always_inline void
write_tcp(struct shot_tcp *shot, const struct client *client, u32 position, u32 pass)
{
	bool request = !((position + pass) & 1);
	u32 requests = (pass + 1 - (position & 1)) / 2; /* of this flow so far */
	u32 ip_len = SHOT_LEN - sizeof(struct ethhdr) - (request ? 0 : SHOT_PAYLOAD);

	write_head(&shot->head, IPPROTO_TCP, ip_len, client);
	shot->tcp = (struct tcphdr){
		.source = client->port_be,
		.dest = BENCH_PORT_BE,
		.seq = bpf_htonl(1 + requests * SHOT_PAYLOAD),
		.ack_seq = bpf_htonl(1 + requests * 1000),
		.doff = 8,
		.ack = 1,
	};
	shot->nop_nop_ts_be = TCP_NOP_NOP_TS;
	shot->tsval_be = bpf_htonl(pass);
	shot->tsecr_be = bpf_htonl(echo_of(client, pass));
}

/* The client's SYN with its timestamp in the usual place. */
static __always_inline void write_open(struct shot_tcp *shot, const struct client *client)
{
	write_tcp(shot, client, 1, 0); /* no payload */
	shot->tcp.seq = 0;
	shot->tcp.ack_seq = 0;
	shot->tcp.ack = 0;
	shot->tcp.syn = 1;
}

/* The options that Linux puts into a SYN: MSS, SACK permitted, TS, NOP, window scale. */
static __always_inline void write_syn_options(struct shot_tcp *shot)
{
	const u32 options[5] = {
		bpf_htonl(0x020405b4),
		bpf_htonl(0x0402080a),
		bpf_htonl(shots.syns),
		0,
		bpf_htonl(0x01030307),
	};

	shot->tcp.doff = 10;
	shot->head.ip.tot_len = bpf_htons(60);
	__builtin_memcpy((void *)shot + offsetof(struct shot_tcp, nop_nop_ts_be), options, sizeof(options));
}

static __always_inline void write_syn(struct shot_tcp *shot)
{
	struct client client = {
		.addr_be = bpf_htonl(0x64400000 + (shots.syns >> 15)), /* 100.64.0.0/10 */
		.port_be = bpf_htons(0x8000 | (shots.syns & 0x7fff)),
	};

	write_head(&shot->head, IPPROTO_TCP, 40, &client);
	shot->tcp = (struct tcphdr){
		.source = client.port_be,
		.dest = BENCH_PORT_BE,
		.seq = bpf_htonl(shots.syns),
		.doff = 5,
		.syn = 1,
	};
	shots.syns++;
}

static __always_inline void write_udp(struct shot_udp *shot, const struct client *client)
{
	u32 udp_len = SHOT_LEN - sizeof(struct shot_ip);

	write_head(&shot->head, IPPROTO_UDP, udp_len + sizeof(struct iphdr), client);
	shot->udp = (struct udphdr){
		.source = client->port_be,
		.dest = BENCH_PORT_BE,
		.len = bpf_htons(udp_len),
	};
}

/* RFC 9000, section 17.3.1. What follows the connection id is encrypted. */
static __always_inline void write_cid(struct shot_udp *shot, const struct client *client)
{
	u8 *quic = (u8 *)(shot + 1);

	write_udp(shot, client);
	quic[0] = 0x41;
	__builtin_memcpy(quic + 1, client->cid, CID_LEN);
}

static __always_inline void advance(void)
{
	if (shots.position + 1 < shots.flows) {
		shots.position++;
	} else {
		shots.position = 0;
		shots.pass++;
	}
}

SEC("xdp")
int bench_shot(struct xdp_md *ctx)
{
	int grown = (int)(ctx->data_end - ctx->data) - (int)SHOT_LEN;
	u32 position = shots.position, pass = shots.pass;
	const struct client *client = bpf_map_lookup_elem(&clients, &position);
	struct shot_tcp *shot;

	advance();
	/* Also by nothing, or only what encapsulates would pay for the call. */
	if (!client || bpf_xdp_adjust_head(ctx, grown))
		return XDP_ABORTED;
	shot = (void *)(long)ctx->data;
	if ((void *)(shot + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	switch (shots.kind) {
	case SHOT_OPEN:
		write_open(shot, client);
		break;
	case SHOT_SYN:
	case SHOT_COOKIE_SYN:
		write_syn(shot);
		if (shots.kind == SHOT_COOKIE_SYN)
			write_syn_options(shot);
		break;
	case SHOT_UDP:
		write_udp((struct shot_udp *)shot, client);
		break;
	case SHOT_CID:
		write_cid((struct shot_udp *)shot, client);
		break;
	default:
		write_tcp(shot, client, position, pass);
		shot->tcp.fin = shots.kind == SHOT_END;
	}
	bpf_tail_call(ctx, &under_test, 0);
	return XDP_ABORTED;
}

SEC("xdp")
int bench_empty(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_TX;
}

SEC("xdp")
int bench_macswap(struct xdp_md *ctx)
{
	struct macs macs;
	void *data;

	if (!read_macs(ctx, &macs))
		return XDP_ABORTED;
	data = (void *)(long)ctx->data;
	copy_mac(data, macs.source);
	copy_mac(data + ETH_ALEN, macs.dest);
	return XDP_TX;
}

/* Parses as far as the TCP ports; false for all that is no TCP over IPv4. */
static __always_inline MUST_USE bool min_key(struct xdp_md *ctx, struct flow_key4 *key)
{
	struct cursor cur = { .pos = (void *)(long)ctx->data,
			      .end = (void *)(long)ctx->data_end };
	struct ethhdr *eth = take(&cur, sizeof(*eth));
	struct iphdr *ip = take(&cur, sizeof(*ip));
	struct tcphdr *tcp = take(&cur, sizeof(*tcp));

	if (!eth || !ip || !tcp || eth->h_proto != bpf_htons(ETH_P_IP))
		return false;
	if (ip->version != 4 || ip->ihl != 5 || ip->protocol != IPPROTO_TCP)
		return false;
	*key = (struct flow_key4){
		.saddr_be = ip->saddr,
		.daddr_be = ip->daddr,
		.sport_be = tcp->source,
		.dport_be = tcp->dest,
		.proto = IPPROTO_TCP,
	};
	return true;
}

SEC("xdp")
int bench_min(struct xdp_md *ctx)
{
	struct flow_key4 key;
	u32 *real;

	if (!min_key(ctx, &key))
		return XDP_ABORTED;
	real = bpf_map_lookup_elem(&min_flows, &key);
	return real && *real ? XDP_TX : XDP_DROP;
}

/* Puts the shot's flow into the table of bench_min. */
SEC("xdp")
int bench_min_fill(struct xdp_md *ctx)
{
	struct flow_key4 key;
	u32 real = 1;

	if (!min_key(ctx, &key))
		return XDP_ABORTED;
	return bpf_map_update_elem(&min_flows, &key, &real, BPF_ANY) ? XDP_ABORTED : XDP_TX;
}

char LICENSE[] SEC("license") = "GPL";
