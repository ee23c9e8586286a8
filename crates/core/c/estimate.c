/* SPDX-License-Identifier: Apache-2.0 */
/* The estimators of bpf/shared as functions that Rust can call. */
#include "fixed_gap.h"
#include "window_chain.h"

void cw_window_chain_packet(struct wc_state *s, const struct est_packet *p,
			    struct est_samples *out)
{
	wc_packet(s, p, out);
}

void cw_window_chain_finish(struct wc_state *s, struct est_samples *out)
{
	wc_finish(s, out);
}

void cw_fixed_gap_packet(struct fixed_gap_state *s, const struct fixed_gap_config *config,
			 const struct est_packet *p, struct est_samples *out)
{
	fixed_gap_packet(s, config, p, out);
}
