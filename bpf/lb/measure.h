/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * All that is counted of a packet, its verdict first; and what one of a flow says about
 * its real: connections, requests, latency. Counters are per CPU, so plain additions.
 */
#ifndef CAUSEWAY_LB_MEASURE_H
#define CAUSEWAY_LB_MEASURE_H

#include "../packet/clock.h"
#include "admit.h"
#include "../shared/window_chain.h"

static __always_inline void add_packet(struct packets_bytes *counter, u32 frame_len)
{
	counter->packets += 1;
	counter->bytes += frame_len;
}

#define ABI_LB_ACTION(name, word, action, meaning) [V_##name] = action,
static const u8 lb_actions[V_COUNT] = { LB_VERDICTS(ABI_LB_ACTION) };
#undef ABI_LB_ACTION

/* The only way out of the balancer: counts the verdict, gives its XDP action. */
static __always_inline int leave(enum verdict verdict, u32 frame_len)
{
	u32 index = verdict;
	struct packets_bytes *counter = bpf_map_lookup_elem(&verdicts, &index);

	if (cfg_dry)
		return (int)verdict;
	if (!counter)
		return XDP_ABORTED;
	add_packet(counter, frame_len);
	return index < V_COUNT ? lb_actions[index] : XDP_ABORTED;
}

/* A packet that went to a real: counted there and at the VIP. Gives the real's counters. */
static __always_inline struct real_stats *count_route(const struct route *route, u32 frame_len)
{
	u32 real_id = route->real_id, vip_id = route->vip_id;
	struct real_stats *stats = bpf_map_lookup_elem(&real_stats, &real_id);
	struct packets_bytes *vip = bpf_map_lookup_elem(&vip_stats, &vip_id);

	if (cfg_dry)
		return NULL;
	if (stats) {
		stats->packets += 1;
		stats->bytes += frame_len;
	}
	if (vip)
		add_packet(vip, frame_len);
	return stats;
}

/*
 * Connections as the client opens and closes them; a flow counts once each way. A
 * SYN that could not be sent on has opened nothing: a repeated one does.
 */
static __always_inline void
count_connection(struct real_stats *stats, struct flow *flow, const struct packet *pkt)
{
	u8 bits = flow->bits;

	if (is_syn(pkt) && !(bits & FLOW_OPENED)) {
		flow->bits = bits | FLOW_OPENED;
		stats->conns_opened += 1;
		stats->conns_measured += is_measured(flow);
	}
	if (is_closing(pkt) && !(bits & FLOW_CLOSED)) {
		flow->bits = bits | FLOW_CLOSED;
		if (bits & FLOW_OPENED) {
			stats->conns_closed += 1;
			lower_load(flow->real);
		}
	}
}

/* The same where no flow is remembered: the SYN cache tells an end that was counted. */
static __always_inline void
count_unremembered(struct real_stats *stats, const struct route *route, const struct packet *pkt, const int family)
{
	if (route->verdict == V_OPENED)
		stats->conns_opened += 1;
	if (!is_closing(pkt) || route->verdict != V_ESTABLISHED)
		return;
	if (!(family == IPV4 ? ends_first4(pkt, route->real_id) : ends_first6(pkt, route->real_id)))
		return;
	stats->conns_closed += 1;
	lower_load(route->real_id);
}

/*
 * Whether what came with `sample` was over so long ago that it is no sign of a real that answers
 * now: an idle client's next request closes what it did before. Where responses take long, so
 * does the next one, by which this one is known.
 */
#define LATE_NS (2000ull * CW_MS_NS)

static __always_inline bool
was_over_long_ago(const struct est_sample *sample, u32 halves, u64 now_ns)
{
	u64 since_ns = sample->when_ns + LATE_NS;

	return now_ns > since_ns && (now_ns - since_ns) * halves > sample->sum_halves_ns;
}

/*
 * What the estimator has learnt goes into its real's sums and histogram. The path's
 * round trip, path_ns, is not the server's doing; 0: not known. A bound is no sample:
 * the client may have been idle for nearly all of it. But where all that a flow tells is
 * off alike, it is graded low and summed apart: servers are compared by it where nothing
 * better is known.
 */
static __always_inline void
fold(struct real_stats *stats, u32 real_id, const struct est_sample *sample, u64 path_ns, u64 now_ns)
{
	u32 halves = CW_MAX(sample->weight_halves, sample->bound_halves);
	struct latency_sums *sums = &stats->good;
	struct histogram *hist;

	if (!halves)
		return;
	if (was_over_long_ago(sample, halves, now_ns))
		stats->late_weight_halves += halves;
	if (sample->bound_halves && !sample->systematic) {
		stats->bound_weight_halves += halves;
		return;
	}
	if (sample->bound_halves)
		sums = &stats->low;
	if (path_ns) {
		u64 path = CW_MIN(path_ns * sample->weight_halves, sample->sum_halves_ns);

		sums->server_sum_halves_ns += sample->sum_halves_ns - path;
		sums->path_sum_halves_ns += path;
		sums->path_weight_halves += sample->weight_halves;
	}
	sums->sum_halves_ns += sample->sum_halves_ns;
	sums->weight_halves += sample->weight_halves;
	hist = bpf_map_lookup_elem(&real_hist, &real_id);
	if (!hist)
		return;
	/* Mostly one latency: a division takes longer than all else here. */
	if (sample->weight_halves == 2)
		hist_add(hist, sample->sum_halves_ns / 2, 1);
	else
		hist_add_group(hist, sample, 1);
}

/*
 * One estimator step. A request is a data packet that starts a burst, or follows a packet shorter
 * than the longest: that one ended the request before it. One that the estimator does not take is
 * none: a probe of a byte that was sent before, a retransmission. It stands for the requests of as
 * many connections as one is measured of. An idle client's latencies are known late; that it
 * acknowledges an answer shows a real that answers now. With QUIC not all packets without a request
 * are acknowledgements.
 */
static __always_inline void
measure(struct real_stats *stats, struct flow *flow, struct packet *pkt)
{
	struct wc_state *chain = &flow->chain;
	bool after_short = !(chain->flags & WC_LAST_FULL), unanswered = !chain->silence;
	struct est_samples *samples;
	u32 zero = 0;
	u64 path_ns, now_ns = 0;

	samples = bpf_map_lookup_elem(&step_samples, &zero);
	if (!samples)
		return;
	wc_packet(chain, &pkt->est, samples);
	if (est_has_request(&pkt->est) && chain->last_ns == pkt->est.t_ns &&
	    (after_short || chain->cur_age == 0)) {
		stats->requests += 1u << (flow->sampling & 31);
		stats->requests_seen += 1;
	}
	if (est_is_tcp(&pkt->est)) {
		now_ns = pkt->est.t_ns;
		stats->answers_acked += unanswered && chain->silence;
	}
	path_ns = wc_path_ns(chain);
#pragma unroll
	for (u32 i = 0; i < 2; i++)
		fold(stats, flow->real, &samples->group[i], path_ns, now_ns);
}

#endif
