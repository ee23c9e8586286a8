/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Measurement alone, on any interface that clients' packets cross: every packet
 * passes, or goes on to another XDP program that the caller put into `next`.
 *
 * A flow's packets should stay on one CPU, as receive-side scaling has it. On two
 * CPUs at once its state may tear: wrong estimates, nothing worse.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/clock.h"
#include "lib/parse.h"
#include "lib/tcp_options.h"
#include "shared/fixed_gap.h"
#include "shared/modes.h"
#include "shared/window_chain.h"

#define DEFAULT_FLOWS 65536
#define RECORDS_BYTES (1 << 20)

/* Set by the loader before loading; the verifier removes what they switch off. */
const volatile u32 cfg_method = METER_WINDOW_CHAIN;
const volatile u32 cfg_clock = CLOCK_KTIME;
const volatile u64 cfg_clock_offset_ns = 0; /* added to the kernel's clock */
const volatile u64 cfg_epoch_ns = 0;	    /* 0: no records, sums of all time */
const volatile bool cfg_opaque = false;	    /* look at sizes and times alone */
const volatile struct fixed_gap_config cfg_fixed_gap = {};
const volatile struct modes_config cfg_modes = {};

/* Records that found no room in the ring buffer. */
u64 lost_records = 0;

/* Keeps the struct in the object's BTF, which a test compares with Rust's. */
const struct meter_record *meter_record_type __attribute__((unused));

/* One flow, from client to server. */
struct meter_flow {
	struct meter_sums sums;
	union {
		struct wc_state chain;
		struct fixed_gap_state gap;
		struct modes_state modes;
	};
};
_Static_assert(sizeof(struct meter_flow) == 208, "meter_flow");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, DEFAULT_FLOWS);
	__type(key, struct flow_key6);
	__type(value, struct meter_flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RECORDS_BYTES);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MV_COUNT);
	__type(key, u32);
	__type(value, struct packets_bytes);
} verdicts SEC(".maps");

/* Slot 0: the program that gets the packets after us. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} next SEC(".maps");

/* The sums of the flow's open epoch go to user space. */
static __always_inline void report(const struct flow_key6 *key, const struct meter_sums *sums)
{
	struct meter_record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		__sync_fetch_and_add(&lost_records, 1);
		return;
	}
	record->key = *key;
	record->epoch = sums->epoch;
	record->sum2_ns = sums->sum2_ns;
	record->count2 = sums->count2;
	bpf_ringbuf_submit(record, 0);
}

static __always_inline void
add_sample(const struct flow_key6 *key, struct meter_sums *sums, const struct est_sample *sample)
{
	u64 epoch = cfg_epoch_ns ? sample->when_ns / cfg_epoch_ns : 0;

	if (!sample->count2)
		return;
	if (sums->count2 && sums->epoch != epoch) {
		report(key, sums);
		sums->sum2_ns = 0;
		sums->count2 = 0;
	}
	sums->epoch = epoch;
	sums->sum2_ns += sample->sum2_ns;
	sums->count2 += sample->count2;
}

static __always_inline void run_modes(struct modes_state *s, struct packet *pkt)
{
	struct modes_config config = cfg_modes;
	u64 epoch_ns = cfg_epoch_ns;

	if (epoch_ns && s->last_ns && s->last_ns / epoch_ns != pkt->est.t_ns / epoch_ns)
		modes_end_epoch(s, &config, &pkt->samples);
	modes_packet(s, &config, &pkt->est);
}

/* One step of the estimator. The key has moved out of the packet by now. */
static __always_inline void
estimate(const struct flow_key6 *key, struct meter_flow *flow, struct packet *pkt)
{
	__builtin_memset(&pkt->samples, 0, sizeof(pkt->samples));
	if (cfg_method == METER_FIXED_GAP) {
		struct fixed_gap_config config = cfg_fixed_gap;

		fixed_gap_packet(&flow->gap, &config, &pkt->est, &pkt->samples);
	} else if (cfg_method == METER_MODES) {
		run_modes(&flow->modes, pkt);
	} else {
		wc_packet(&flow->chain, &pkt->est, &pkt->samples);
	}
#pragma unroll
	for (u32 i = 0; i < 2; i++)
		add_sample(key, &flow->sums, &pkt->samples.group[i]);
}

/* The same flow seen from the server. */
static __always_inline void reverse(struct flow_key6 *key)
{
	u16 port_be = key->sport_be;

	key->sport_be = key->dport_be;
	key->dport_be = port_be;
#pragma unroll
	for (u32 i = 0; i < 4; i++) {
		u32 addr_be = key->saddr_be[i];

		key->saddr_be[i] = key->daddr_be[i];
		key->daddr_be[i] = addr_be;
	}
}

/*
 * Whether a packet of no known flow is from a client: a SYN is; other packets are
 * if their port is the higher one and nobody has opened the flow the other way.
 */
static __always_inline bool from_client(struct flow_key6 *key, const struct packet *pkt)
{
	u8 handshake = pkt->est.tcp_flags & (EST_TCP_SYN | EST_TCP_ACK);
	bool answered;

	if (key->proto == IPPROTO_TCP && handshake & EST_TCP_SYN)
		return handshake == EST_TCP_SYN;
	if (bpf_ntohs(key->sport_be) <= bpf_ntohs(key->dport_be))
		return false;
	reverse(key);
	answered = bpf_map_lookup_elem(&flows, key);
	reverse(key);
	return !answered;
}

/* The flow of a packet with ports; a client's first packet makes a new one. */
static __always_inline enum meter_verdict
find_flow(struct flow_key6 *key, const struct packet *pkt, struct meter_flow **flow)
{
	static const struct meter_flow empty;

	*flow = bpf_map_lookup_elem(&flows, key);
	if (*flow)
		return MV_MEASURED;
	if (!from_client(key, pkt))
		return MV_SERVER_SIDE;
	bpf_map_update_elem(&flows, key, &empty, BPF_NOEXIST);
	*flow = bpf_map_lookup_elem(&flows, key);
	return *flow ? MV_MEASURED : MV_NO_ROOM;
}

/* The packet's key, IPv4 as IPv4-mapped. */
static __always_inline void copy_key(const struct packet *pkt, const int family,
				     struct flow_key6 *key)
{
	if (family == IPV6) {
		*key = pkt->key6;
		return;
	}
	key->saddr_be[2] = bpf_htonl(0xffff);
	key->saddr_be[3] = pkt->key4.saddr_be;
	key->daddr_be[2] = bpf_htonl(0xffff);
	key->daddr_be[3] = pkt->key4.daddr_be;
	key->sport_be = pkt->key4.sport_be;
	key->dport_be = pkt->key4.dport_be;
	key->proto = pkt->key4.proto;
}

static __always_inline enum meter_verdict
measure(struct xdp_md *ctx, struct packet *pkt, const int family)
{
	struct flow_key6 key = {};
	struct meter_flow *flow;
	enum meter_verdict verdict;

	copy_key(pkt, family, &key);
	verdict = find_flow(&key, pkt, &flow);
	if (verdict != MV_MEASURED)
		return verdict;
	pkt->est.t_ns = packet_time(ctx, cfg_clock) + cfg_clock_offset_ns;
	pkt->est.opaque = cfg_opaque;
	if (!cfg_opaque && key.proto == IPPROTO_TCP && !pkt->est.has_ts)
		find_timestamp(ctx, pkt);
	flow->sums.packets++;
	estimate(&key, flow, pkt);
	return MV_MEASURED;
}

static __always_inline enum meter_verdict skipped(enum parsed parsed)
{
	switch (parsed) {
	case PARSED_FRAGMENT:
		return MV_FRAGMENT;
	case PARSED_OTHER:
		return MV_OTHER_PROTOCOL;
	default:
		return MV_MALFORMED;
	}
}

/* One IP packet, behind the link header. */
static __always_inline enum meter_verdict
handle_ip(struct xdp_md *ctx, struct cursor *cur, struct packet *pkt, const int family)
{
	enum parsed parsed = family == IPV4 ? parse_ipv4(cur, pkt) : parse_ipv6(cur, pkt);

	if (parsed != PARSED)
		return skipped(parsed);
	if (pkt->est.proto == IPPROTO_TCP)
		parsed = parse_tcp(cur, pkt, family);
	else if (pkt->est.proto == IPPROTO_UDP)
		parsed = parse_udp(cur, pkt, family);
	else
		parsed = PARSED_OTHER;
	return parsed == PARSED ? measure(ctx, pkt, family) : skipped(parsed);
}

static __always_inline enum meter_verdict handle(struct xdp_md *ctx, struct packet *pkt)
{
	struct cursor cur = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };

	pkt->frame_len = (u32)(cur.end - cur.pos);
	if (parse_link(&cur, pkt) != PARSED)
		return MV_MALFORMED;
	if (pkt->ethertype_be == bpf_htons(ETH_P_IP))
		return handle_ip(ctx, &cur, pkt, IPV4);
	if (pkt->ethertype_be == bpf_htons(ETH_P_IPV6))
		return handle_ip(ctx, &cur, pkt, IPV6);
	return MV_OTHER_ETHERTYPE;
}

SEC("xdp")
int causeway_meter(struct xdp_md *ctx)
{
	struct packet pkt = {};
	u32 verdict = handle(ctx, &pkt);
	struct packets_bytes *counter = bpf_map_lookup_elem(&verdicts, &verdict);

	if (counter) {
		counter->packets += 1;
		counter->bytes += pkt.frame_len;
	}
	bpf_tail_call(ctx, &next, 0);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
