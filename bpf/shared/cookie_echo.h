/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * When a server sent what its client echoes, under timestamp cookies. The clock above
 * the cookie (cookie_clock.h) equals the server's modulo a period: silences are left out
 * by whole periods, and a segment that must not move it repeats its last value. The
 * estimator needs a clock that runs through. Both gaps can be closed here:
 *
 *   - A client acknowledges what it gets within half a second (RFC 9293, 3.8.6.3), so that
 *     a value that is new says to which period it belongs: arrivals less the server's clock
 *     are within a part of a period of the least such distance so far.
 *   - An answer that is acknowledged with the value that came before its request was sent
 *     while the clock stood still. The echo does not date it.
 */
#ifndef CAUSEWAY_COOKIE_ECHO_H
#define CAUSEWAY_COOKIE_ECHO_H

#include "abi.h"
#include "cookie_clock.h"
#include "window_chain.h"

/* Shorter periods than this do not tell an acknowledgement's delay from a silence, ms. */
#define ECHO_PERIOD_MIN_MS 1024
/* Data of one value of the clock arrive within this, mostly, ms. */
#define ECHO_SAME_MS 2

/*
 * What wraps of this machine's clock of milliseconds, every 49.7 days, have moved the
 * estimator's distance by: 2^32 ms are no whole number of rounds of it. `ms` is not later than
 * now.
 */
CW_INLINE u32 moved_by_wraps(u64 uptime_ms, u32 ms)
{
	u32 wraps = (u32)(uptime_ms >> 32) - (ms > (u32)uptime_ms);

	return wraps * 15625u << 28;
}

/* The least distance so far between arrivals and the server's clock, ms modulo 73 minutes. */
CW_INLINE u32 least_distance_ms(const struct wc_state *chain, u32 moved)
{
	return (u32)((u64)(chain->tcp.clock_min - moved) * 16 / 15625);
}

/* Whether the packet acknowledges something that none before has. */
CW_INLINE int acknowledges(const struct wc_state *chain, const struct est_packet *est)
{
	return chain->flags & WC_ACK_SEEN && est_after(est->ack, chain->tcp.ack_max);
}

/*
 * Turns the packet's echo of a cookie with `bits` bits, and of the clock above it, into the
 * server's time in ms; takes it away where it tells nothing.
 */
CW_INLINE void date_echo(struct flow *flow, struct est_packet *est, u32 bits)
{
	u64 uptime_ms = est->t_ns / CW_MS_NS;
	u32 period = cookie_period(bits), now_ms = (u32)uptime_ms;
	u32 t = est->tsecr >> (bits & 31), least, ms = flow->echo_ms;
	u32 moved = moved_by_wraps(uptime_ms, ms);
	struct wc_state *chain = &flow->chain;

	est->has_ts = 0;
	if (period < ECHO_PERIOD_MIN_MS || uptime_ms < 2 * period)
		return; /* the server's time is not to be before this machine's start */
	if (!(chain->flags & WC_TS_SEEN) || !ms) {
		/* Far enough from the wrap of the estimator's distance. */
		chain->flags &= (u8)~WC_TS_SEEN;
		flow->bits &= (u8)~(FLOW_ASKED | FLOW_ECHO_HELD);
		ms = now_ms - period - ((now_ms - t) & (period - 1));
	} else if ((est->t_ns - chain->last_ns) >> 40) {
		return; /* the estimator would begin anew, at an echo that is 18 minutes old */
	} else if ((ms ^ t) & (period - 1)) {
		least = least_distance_ms(chain, moved) - period / 4;
		flow->bits &= (u8)~(FLOW_ASKED | FLOW_ECHO_HELD);
		ms = now_ms - least - ((now_ms - least - t) & (period - 1));
		chain->tcp.clock_min += moved_by_wraps(uptime_ms, ms) - moved;
	} else if (flow->bits & FLOW_ASKED && acknowledges(chain, est) &&
		   (s32)(now_ms - ms - least_distance_ms(chain, moved)) > ECHO_SAME_MS) {
		flow->bits |= FLOW_ECHO_HELD;
	}
	if (est->payload_len)
		flow->bits |= FLOW_ASKED;
	if (flow->bits & FLOW_ECHO_HELD)
		return;
	flow->echo_ms = ms;
	est->tsecr = ms;
	est->has_ts = 1;
}

#endif
