/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Silent ACKs: a client of datagrams that acknowledges something and sends nothing
 * then. A response came that set no request off.
 *
 * At the end of a page as many responses as the window holds set nothing off but
 * the next page, so without them a large part of all latencies is not seen.
 *
 * Clients differ in when they acknowledge. One that does so at once, and sends its
 * next request at once, falls silent only where there is nothing to ask for: no more
 * times a page than its window holds, and fewer times than it sends bursts. One that
 * is slow, or gets its responses in pieces, seems silent all the time. Each page
 * tells which.
 */
#ifndef CAUSEWAY_WINDOW_CHAIN_SILENT_H
#define CAUSEWAY_WINDOW_CHAIN_SILENT_H

#include "window_chain_ring.h"

/* A client that has something to send does so within this after an ACK. */
#define WC_SILENT_NS (200ull * CW_US_NS)

/*
 * Something came at at_ns that set too little off: into the mean of the last ones,
 * one less than the window holds at most. Those before the oldest request that is
 * outstanding now say nothing about it.
 */
CW_INLINE void wc_silence_add(struct wc_state *s, u64 at_ns)
{
	u32 at = (u32)(at_ns >> WC_IDLE_SHIFT), most = CW_MAX(s->window, 2u) - 1;

	if (s->ring_len &&
	    (u64)(at - s->ack_mean) << WC_IDLE_SHIFT > wc_ring_age(s, at_ns, 0))
		s->ack_weight = 0;
	if (s->ack_weight < most)
		s->ack_weight++;
	if (s->ack_weight == 1)
		s->ack_mean = at;
	else
		s->ack_mean += (at - s->ack_mean) / s->ack_weight;
}

/* A datagram arrived at now_ns: whether the last ACK before it was silent. */
CW_GLOBAL int wc_silence(struct wc_state *s, u64 now_ns)
{
	u64 at;

	if (!s || !s->silence || !(s->flags & WC_DATA_SEEN))
		return 0;
	at = s->last_ns + ((u64)(s->silence - 1) << WC_IDLE_SHIFT);
	if (at > now_ns || now_ns - at < WC_SILENT_NS)
		return 0;
	if (s->datagram.silent < 255)
		s->datagram.silent++;
	if (wc_trusts_silence(s))
		wc_silence_add(s, at);
	return 0;
}

/* From the mean of the silent ACKs to now_ns, as in struct wc_burst. */
CW_INLINE u16 wc_silence_lead(const struct wc_state *s, u64 now_ns)
{
	s32 lead = (s32)((u32)(now_ns >> WC_IDLE_SHIFT) - s->ack_mean);

	lead = CW_MAX(lead, 0) >> (WC_LEAD_SHIFT - WC_IDLE_SHIFT);
	return lead >= 0xffff ? 0 : (u16)(lead + 1);
}

/* A page ended: were its silent ACKs as few as they can be? */
CW_INLINE void wc_silence_judge(struct wc_state *s)
{
	struct wc_datagram *d = &s->datagram;
	u32 trust = wc_trust(d);

	if (s->window > 2 && d->silent <= s->window && d->silent < d->bursts)
		trust += (255 - trust) >> 3;
	else
		trust -= trust >> 3;
	d->trust = (u8)(trust - WC_TRUST_START);
	d->silent = 0;
	d->bursts = 0;
	s->ack_weight = 0;
}

#endif
