/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Fixed gap: PIRATE's Algorithm 1 (section 3.2). A packet after a pause longer
 * than delta begins a batch; the time between the beginnings of two batches is
 * one response latency. Exact when one request is outstanding and delta is right.
 */
#ifndef CAUSEWAY_FIXED_GAP_H
#define CAUSEWAY_FIXED_GAP_H

#include "estimator.h"

struct fixed_gap_config {
	u64 delta_ns; /* pauses up to this are within a batch */
	u64 idle_ns;  /* pauses from this on are idleness or loss: no sample */
};

struct fixed_gap_state {
	u64 last_ns;  /* last packet; 0: none yet */
	u64 batch_ns; /* first packet of the current batch */
};
_Static_assert(sizeof(struct fixed_gap_state) == 16, "fixed_gap_state");

/* One packet that may carry a request. The length of a batch that it ended; 0: none. */
CW_INLINE u64 fixed_gap_request(struct fixed_gap_state *s,
				const struct fixed_gap_config *config, u64 t_ns)
{
	u64 now = CW_MAX(t_ns, s->last_ns), gap, batch = 0;

	if (est_put_back(s->last_ns, t_ns)) {
		now = t_ns;
		s->last_ns = 0;
	}
	if (!s->last_ns) {
		s->last_ns = now;
		s->batch_ns = now;
		return 0;
	}
	gap = now - s->last_ns;
	if (gap > config->delta_ns) {
		if (gap < config->idle_ns)
			batch = now - s->batch_ns;
		s->batch_ns = now;
	}
	s->last_ns = now;
	return batch;
}

CW_INLINE void fixed_gap_sample(const struct fixed_gap_state *s, u64 batch_ns,
				struct est_samples *out)
{
	out->group[0].when_ns = s->last_ns;
	out->group[0].sum_halves_ns = 2 * batch_ns;
	out->group[0].weight_halves = 2;
}

CW_GLOBAL int fixed_gap_packet(struct fixed_gap_state *s,
			       const struct fixed_gap_config *config,
			       const struct est_packet *p, struct est_samples *out)
{
	u64 batch;

	if (!s || !config || !p || !out)
		return 0;
	est_clear_all(out);
	if (!est_has_request(p))
		return 0;
	batch = fixed_gap_request(s, config, p->t_ns);
	if (batch)
		fixed_gap_sample(s, batch, out);
	return 0;
}

#endif
