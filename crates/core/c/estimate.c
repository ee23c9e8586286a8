// SPDX-License-Identifier: Apache-2.0
// What src/estimate calls of the estimators in bpf/shared.

#include <stdbool.h>

#include "fixed_gap.h"
#include "modes.h"
#include "window_chain.h"

// Rust's references are never null, so that the headers' tests for it fall away.
#define NONNULL __attribute__((nonnull))

static bool any(const struct est_samples *out)
{
	const struct est_sample *a = &out->group[0], *b = &out->group[1];

	return (a->weight_halves | b->weight_halves | a->bound_halves | b->bound_halves) != 0;
}

NONNULL __attribute__((flatten)) bool
causeway_window_chain_packet(struct wc_state *s, const struct est_packet *p,
			     struct est_samples *out)
{
	wc_packet(s, p, out);
	return any(out);
}

// The three estimators of a flow: their states, and what they were given.
struct three_states {
	struct wc_state chain;
	struct fixed_gap_state gap;
	struct modes_state modes;
};

struct three_configs {
	struct fixed_gap_config gap;
	struct modes_config modes;
};

static __attribute__((noinline, flatten)) u32
three_request(struct three_states *restrict s, const struct three_configs *restrict config,
	      const struct est_packet *restrict p, struct est_samples *restrict out)
{
	struct wc_request request = {};
	struct wc_opening opening = {};
	u32 found = 0;
	u64 batch;

	modes_request(&s->modes, &config->modes, p);
	batch = fixed_gap_request(&s->gap, &config->gap, p->t_ns);
	if (batch) {
		est_clear_all(&out[1]);
		fixed_gap_sample(&s->gap, batch, &out[1]);
		found = 2;
	}
	est_clear_all(&out[0]);
	if (wc_is_end(&s->chain, p))
		wc_end(&s->chain, p, &out[0]);
	else if (wc_arrive(&s->chain, p, &request) && wc_data(&s->chain, p, &request, &opening))
		wc_turn(&s->chain, &opening, &out[0]);
	return found | any(&out[0]);
}

// A connection's end matters to the first of them alone.
static __attribute__((noinline, flatten)) u32
three_end(struct three_states *restrict s, const struct est_packet *restrict p,
	  struct est_samples *restrict out)
{
	est_clear_all(&out[0]);
	wc_end(&s->chain, p, &out[0]);
	return any(&out[0]);
}

// What they ask of a packet is asked once. Answers which of the first two have samples,
// bits 0 and 1: only then `out` is written. Most packets without a request need few
// registers, and no call that saves more.
NONNULL u32 causeway_three_packet(struct three_states *restrict s,
				  const struct three_configs *restrict config,
				  const struct est_packet *restrict p,
				  struct est_samples *restrict out)
{
	struct wc_request request;

	if (est_has_request(p))
		return three_request(s, config, p, out);
	if (est_ends(p))
		return three_end(s, p, out);
	if (wc_arrive(&s->chain, p, &request))
		wc_pure_ack(&s->chain, p, request.now_ns);
	return 0;
}

NONNULL void causeway_window_chain_finish(struct wc_state *s, struct est_samples *out)
{
	wc_finish(s, out);
}

NONNULL bool causeway_fixed_gap_packet(struct fixed_gap_state *s, const struct fixed_gap_config *config,
			 const struct est_packet *p, struct est_samples *out)
{
	fixed_gap_packet(s, config, p, out);
	return any(out);
}

NONNULL void causeway_modes_packet(struct modes_state *s, const struct modes_config *config,
			   const struct est_packet *p)
{
	modes_packet(s, config, p);
}

NONNULL void causeway_modes_end_epoch(struct modes_state *s, const struct modes_config *config,
			      struct est_samples *out)
{
	modes_end_epoch(s, config, out);
}

NONNULL u32 causeway_modes_discarded(const struct modes_state *s)
{
	return s->discarded;
}
