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
	return out->group[0].count2 | out->group[1].count2;
}

NONNULL __attribute__((flatten)) bool
causeway_window_chain_packet(struct wc_state *s, const struct est_packet *p,
			     struct est_samples *out)
{
	wc_packet(s, p, out);
	return any(out);
}

// The three estimators at once: what they ask of a packet is asked once, and one call
// saves its registers once. Answers which of the first two have samples: bits 0 and 1.
NONNULL __attribute__((flatten)) u32 causeway_three_packet(struct wc_state *restrict chain,
			  struct fixed_gap_state *restrict gap,
			  struct modes_state *restrict modes,
			  const struct fixed_gap_config *restrict gap_config,
			  const struct modes_config *restrict modes_config,
			  const struct est_packet *restrict p,
			  struct est_samples *restrict out)
{
	u32 found;

	fixed_gap_packet(gap, gap_config, p, &out[1]);
	found = out[1].group[0].count2 ? 2 : 0;
	modes_packet(modes, modes_config, p);
	wc_packet(chain, p, &out[0]);
	return found | any(&out[0]);
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
