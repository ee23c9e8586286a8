/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Measurement alone, on any interface that clients' packets cross: every packet
 * passes, or goes on to another XDP program that the caller put into `next`. The
 * same for TC, where XDP is taken: there the packet goes on to what else is there.
 *
 * A flow's packets should stay on one CPU, as receive-side scaling has it. On two
 * CPUs at once its state may tear: wrong estimates, nothing worse.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "packet/clock.h"
#include "packet/parse.h"
#include "packet/tcp_options.h"
#include "shared/fixed_gap.h"
#include "shared/hist.h"
#include "shared/modes.h"
#include "shared/window_chain.h"

#define DEFAULT_FLOWS 65536
#define DEFAULT_SERVERS 1024
#define MAX_CLIENT_NETS 1024
#define RECORDS_BYTES (1 << 20)
/* Linear bytes of a socket buffer that hold every header we read. */
#define HEADERS_BYTES 192

/* Set by the loader before loading; the verifier removes what they switch off. */
const volatile u32 cfg_method = METER_WINDOW_CHAIN;
const volatile bool cfg_also_gap = false;   /* beside cfg_method, in maps of their own */
const volatile bool cfg_also_modes = false;
const volatile u8 cfg_slot = 0;		    /* what records call cfg_method's latencies */
const volatile u8 cfg_gap_slot = 0;
const volatile u8 cfg_modes_slot = 0;
const volatile bool cfg_histograms = false; /* keep `servers` */
const volatile bool cfg_client_nets = false; /* ask `client_nets` who the client is */
const volatile u32 cfg_clock = CLOCK_KTIME;
const volatile u64 cfg_clock_offset_ns = 0; /* added to the kernel's clock */
const volatile u64 cfg_epoch_ns = 0;	    /* 0: no records, sums of all time */
const volatile bool cfg_opaque = false;	    /* look at sizes and times alone */
const volatile struct fixed_gap_config cfg_fixed_gap = {};
const volatile struct modes_config cfg_modes = {};

/* Records that found no room in the ring buffer. */
u64 lost_records = 0;
/* Epochs of flows that have latencies and no record yet. Those that no flow has were evicted with it. */
u64 open_epochs = 0;

/* Keep the structs in the object's BTF, which a test compares with Rust's. */
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
_Static_assert(sizeof(struct meter_flow) == 216, "meter_flow");

struct meter_gap_flow {
	struct meter_sums sums;
	struct fixed_gap_state gap;
};

struct meter_modes_flow {
	struct meter_sums sums;
	struct modes_state modes;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, DEFAULT_FLOWS);
	__type(key, struct flow_key6);
	__type(value, struct meter_flow);
} flows SEC(".maps");

/* The same flows for a second and a third estimator. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key6);
	__type(value, struct meter_gap_flow);
} gap_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key6);
	__type(value, struct meter_modes_flow);
} modes_flows SEC(".maps");

/* Distributions by server and estimator, in half counts; those long silent are evicted. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, DEFAULT_SERVERS);
	__type(key, struct meter_server);
	__type(value, struct histogram);
} servers SEC(".maps");

/* What a step of an estimator says: more than there is stack for. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct est_samples);
} step_samples SEC(".maps");

struct net_key {
	u32 prefix_len; /* of the 128 bits of addr_be */
	u32 addr_be[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_CLIENT_NETS);
	__type(key, struct net_key);
	__type(value, u8);
} client_nets SEC(".maps");

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
static __always_inline void
report(const struct flow_key6 *key, const struct meter_sums *sums, u8 slot)
{
	struct meter_record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		__sync_fetch_and_add(&lost_records, 1);
		return;
	}
	record->key = *key;
	record->epoch = sums->epoch;
	record->sum_halves_ns = sums->sum_halves_ns;
	record->weight_halves = sums->weight_halves;
	record->bound_halves = sums->bound_halves;
	record->window = sums->window;
	record->slot = slot;
	record->narrow = sums->narrow;
	record->pad = 0;
	bpf_ringbuf_submit(record, 0);
}

static __always_inline void
end_epoch(const struct flow_key6 *key, struct meter_sums *sums, u8 slot)
{
	if (sums->weight_halves) {
		report(key, sums, slot);
		__sync_fetch_and_add(&open_epochs, -1);
	}
	sums->sum_halves_ns = 0;
	sums->weight_halves = 0;
	sums->bound_halves = 0;
	sums->window = 0;
	sums->narrow = 0;
}

/* A sample goes into its server's distribution. Global, so that it is verified once. */
CW_GLOBAL int count_latencies(const struct flow_key6 *key, const struct est_sample *sample, u32 slot)
{
	static const struct histogram empty;
	struct meter_server server = {};
	struct histogram *hist;

	if (!key || !sample)
		return 0;
	__builtin_memcpy(server.addr_be, key->daddr_be, sizeof(server.addr_be));
	server.port_be = key->dport_be;
	server.proto = key->proto;
	server.slot = (u8)slot;
	hist = bpf_map_lookup_elem(&servers, &server);
	if (!hist) {
		bpf_map_update_elem(&servers, &server, &empty, BPF_NOEXIST);
		hist = bpf_map_lookup_elem(&servers, &server);
	}
	if (hist)
		hist_add_group(hist, sample, 2);
	return 0;
}

static __always_inline void
add_sample(const struct flow_key6 *key, struct meter_sums *sums, const struct est_sample *sample, u8 slot)
{
	u64 epoch = cfg_epoch_ns ? sample->when_ns / cfg_epoch_ns : 0;

	if (!sample->weight_halves && !sample->bound_halves)
		return;
	if (cfg_histograms && sample->weight_halves)
		count_latencies(key, sample, slot);
	if (sums->epoch != epoch)
		end_epoch(key, sums, slot);
	sums->epoch = epoch;
	if (!sums->weight_halves && sample->weight_halves)
		__sync_fetch_and_add(&open_epochs, 1);
	sums->sum_halves_ns += sample->sum_halves_ns;
	sums->weight_halves += sample->weight_halves;
	if (sample->systematic == EST_NARROW)
		sums->narrow = 1;
	else
		sums->bound_halves += sample->bound_halves;
	if (sums->window < sample->window)
		sums->window = sample->window;
}

/*
 * What a packet says. The last packet of a connection ends its epoch, too: a flow that is
 * evicted takes its sums along.
 */
static __always_inline void
add_samples(const struct flow_key6 *key, struct meter_sums *sums, const struct est_samples *samples, u8 slot,
	    const struct packet *pkt)
{
#pragma unroll
	for (u32 i = 0; i < 2; i++)
		add_sample(key, sums, &samples->group[i], slot);
	if (cfg_epoch_ns && est_ends(&pkt->est))
		end_epoch(key, sums, slot);
}

static __always_inline void run_gap(struct fixed_gap_state *s, const struct packet *pkt, struct est_samples *samples)
{
	struct fixed_gap_config config = cfg_fixed_gap;

	fixed_gap_packet(s, &config, &pkt->est, samples);
}

static __always_inline void run_modes(struct modes_state *s, const struct packet *pkt, struct est_samples *samples)
{
	struct modes_config config = cfg_modes;
	u64 epoch_ns = cfg_epoch_ns;

	if (epoch_ns && s->last_ns && s->last_ns / epoch_ns != pkt->est.t_ns / epoch_ns)
		modes_end_epoch(s, &config, samples);
	modes_packet(s, &config, &pkt->est);
}

/* One step of the estimator. */
static __always_inline void
estimate(const struct flow_key6 *key, struct meter_flow *flow, const struct packet *pkt, struct est_samples *samples)
{
	est_clear_all(samples);
	if (cfg_method == METER_FIXED_GAP)
		run_gap(&flow->gap, pkt, samples);
	else if (cfg_method == METER_MODES)
		run_modes(&flow->modes, pkt, samples);
	else
		wc_packet(&flow->chain, &pkt->est, samples);
	add_samples(key, &flow->sums, samples, cfg_slot, pkt);
}

/* The estimators beside it: each keeps the flow on its own, and evicts on its own. */
static __always_inline void
estimate_also(const struct flow_key6 *key, const struct packet *pkt, struct est_samples *samples)
{
	static const struct meter_gap_flow no_gaps;
	static const struct meter_modes_flow no_modes;

	if (cfg_also_gap) {
		struct meter_gap_flow *flow = bpf_map_lookup_elem(&gap_flows, key);

		if (!flow) {
			bpf_map_update_elem(&gap_flows, key, &no_gaps, BPF_NOEXIST);
			flow = bpf_map_lookup_elem(&gap_flows, key);
		}
		est_clear_all(samples);
		if (flow) {
			run_gap(&flow->gap, pkt, samples);
			add_samples(key, &flow->sums, samples, cfg_gap_slot, pkt);
		}
	}
	if (cfg_also_modes) {
		struct meter_modes_flow *flow = bpf_map_lookup_elem(&modes_flows, key);

		if (!flow) {
			bpf_map_update_elem(&modes_flows, key, &no_modes, BPF_NOEXIST);
			flow = bpf_map_lookup_elem(&modes_flows, key);
		}
		est_clear_all(samples);
		if (flow) {
			run_modes(&flow->modes, pkt, samples);
			add_samples(key, &flow->sums, samples, cfg_modes_slot, pkt);
		}
	}
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

static __always_inline bool is_client(const u32 *addr_be)
{
	struct net_key key = { .prefix_len = 128 };

	__builtin_memcpy(key.addr_be, addr_be, sizeof(key.addr_be));
	return bpf_map_lookup_elem(&client_nets, &key);
}

/*
 * Whether a packet of no known flow is from a client: a SYN is; other packets are
 * if they come from one of the client networks and do not go to one; else if their
 * port is the higher one and the flow was not opened the other way.
 */
static __always_inline bool from_client(struct flow_key6 *key, const struct packet *pkt)
{
	u8 handshake = pkt->est.tcp_flags & (EST_TCP_SYN | EST_TCP_ACK);
	bool answered, higher = bpf_ntohs(key->sport_be) >= bpf_ntohs(key->dport_be);

	if (key->proto == IPPROTO_TCP && handshake & EST_TCP_SYN)
		return handshake == EST_TCP_SYN;
	if (cfg_client_nets) {
		bool from = is_client(key->saddr_be);

		if (from != is_client(key->daddr_be))
			higher = from;
	}
	if (!higher)
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

/* Where the program runs, for what differs there. */
enum hook {
	HOOK_XDP,
	HOOK_TC,
};

/* As find_timestamp, in a socket buffer. */
CW_GLOBAL int find_timestamp_tc(struct __sk_buff *skb, struct packet *pkt)
{
	u8 options[TCP_OPTIONS_MAX] = {};
	u32 len;

	if (!pkt)
		return 0;
	len = pkt->options_len;
	if (len < TCP_OPTION_TS_LEN || len > TCP_OPTIONS_MAX)
		return 0;
	if (!bpf_skb_load_bytes(skb, pkt->l2_len + pkt->l3_len + sizeof(struct tcphdr), options, len))
		scan_options(options, len, pkt);
	return 0;
}

static __always_inline void read_timestamp(void *ctx, struct packet *pkt, const enum hook hook)
{
	if (hook == HOOK_XDP)
		find_timestamp(ctx, pkt);
	else
		find_timestamp_tc(ctx, pkt);
}

static __always_inline enum meter_verdict
measure(void *ctx, struct packet *pkt, const int family, const enum hook hook)
{
	struct flow_key6 key = {};
	struct est_samples *samples;
	struct meter_flow *flow;
	enum meter_verdict verdict;
	u32 zero = 0;
	u64 t_ns;

	copy_key(pkt, family, &key);
	verdict = find_flow(&key, pkt, &flow);
	if (verdict != MV_MEASURED)
		return verdict;
	t_ns = hook == HOOK_XDP ? packet_time(ctx, cfg_clock) : bpf_ktime_get_ns();
	pkt->est.t_ns = t_ns + cfg_clock_offset_ns;
	pkt->est.opaque = cfg_opaque;
	if (!cfg_opaque && key.proto == IPPROTO_TCP && !pkt->est.has_ts)
		read_timestamp(ctx, pkt, hook);
	flow->sums.packets++;
	samples = bpf_map_lookup_elem(&step_samples, &zero);
	if (!samples)
		return MV_NO_ROOM;
	estimate(&key, flow, pkt, samples);
	estimate_also(&key, pkt, samples);
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
handle_ip(void *ctx, struct cursor *cur, struct packet *pkt, const int family, const enum hook hook)
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
	return parsed == PARSED ? measure(ctx, pkt, family, hook) : skipped(parsed);
}

static __always_inline enum meter_verdict
handle(void *ctx, struct cursor *cur, struct packet *pkt, const enum hook hook)
{
	pkt->frame_len = rest_of(cur, cur->pos);
	if (parse_link(cur, pkt) != PARSED)
		return MV_MALFORMED;
	if (pkt->ethertype_be == bpf_htons(ETH_P_IP))
		return handle_ip(ctx, cur, pkt, IPV4, hook);
	if (pkt->ethertype_be == bpf_htons(ETH_P_IPV6))
		return handle_ip(ctx, cur, pkt, IPV6, hook);
	return MV_OTHER_ETHERTYPE;
}

static __always_inline void count(u32 verdict, const struct packet *pkt)
{
	struct packets_bytes *counter = bpf_map_lookup_elem(&verdicts, &verdict);

	if (counter) {
		counter->packets += 1;
		counter->bytes += pkt->frame_len;
	}
}

SEC("xdp")
int causeway_meter(struct xdp_md *ctx)
{
	struct cursor cur = { .pos = (void *)(long)ctx->data,
			      .end = (void *)(long)ctx->data_end };
	struct packet pkt = {};

	count(handle(ctx, &cur, &pkt, HOOK_XDP), &pkt);
	bpf_tail_call(ctx, &next, 0);
	return XDP_PASS;
}

/*
 * Headers may lie in fragments; those we read are made linear. A VLAN tag that the
 * NIC took off is no longer in the packet, which does not matter here. Loaded only
 * where it is asked for.
 */
SEC("?tc")
int causeway_meter_tc(struct __sk_buff *skb)
{
	struct cursor cur = {};
	struct packet pkt = {};
	u32 linear = (void *)(long)skb->data_end - (void *)(long)skb->data;
	u32 wanted = skb->len;

	if (wanted > HEADERS_BYTES)
		wanted = HEADERS_BYTES;
	if (linear < wanted && bpf_skb_pull_data(skb, wanted)) {
		count(MV_MALFORMED, &pkt);
		return TC_ACT_UNSPEC;
	}
	cur.pos = (void *)(long)skb->data;
	cur.end = (void *)(long)skb->data_end;
	linear = (u32)(cur.end - cur.pos);
	cur.beyond = skb->len > linear ? skb->len - linear : 0;
	count(handle(skb, &cur, &pkt, HOOK_TC), &pkt);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
