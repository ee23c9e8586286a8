/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Modes: PIRATE's Algorithm 2 (section 3.4) and its proportional mode sum
 * (section 3.3). The gaps between packets fall into at most MODES_MAX modes that
 * grow and merge as gaps come in. At the end of an epoch one mode is taken for
 * the inter-batch gap (IBG); the response latency is the sum of all gaps of it
 * and of smaller modes, per gap of the IBG:
 *
 *     sum over modes m <= IBG of Pr(m) / Pr(IBG) * m
 */
#ifndef CAUSEWAY_MODES_H
#define CAUSEWAY_MODES_H

#include "estimator.h"

#define MODES_MAX 10u /* section 3.4: as few as 10 proved enough */
#define MODES_SHIFT 4 /* gaps are kept in 16 ns: 32 bits hold 68 s */

enum modes_ibg {
	MODES_IBG_LARGEST,   /* the largest mode: the paper */
	MODES_IBG_MOST_TIME, /* the mode with the largest sum of gaps */
};

struct modes_config {
	u64 epsilon_ns;	      /* a gap this close to a mode belongs to it, ... */
	u32 epsilon_permille; /* ... or this close, as a share of the mode's edge */
	u32 modes;	      /* N: 1 to MODES_MAX */
	u64 tcp_timeout_ns;   /* modes from here on are RTOs or idleness */
	u64 other_timeout_ns; /* the same where there is no TCP: PTOs */
	u32 ibg;	      /* enum modes_ibg */
	u32 mtu;	      /* the IBG must hold a gap after a packet shorter than
				 this IP length; 0: no such rule */
};
_Static_assert(sizeof(struct modes_config) == 40, "modes_config");

/* All gaps from min to max, in units of 16 ns. */
struct modes_mode {
	u32 min;
	u32 max;
	u32 sum; /* this and count do not wrap: gaps beyond are discarded */
	u16 count;
	u16 candidates; /* of them, gaps after a packet below the MTU */
};

struct modes_state {
	u64 last_ns;   /* last packet; 0: none yet */
	u32 discarded; /* gaps without a place since the flow began */
	u16 last_len;  /* IP length of the last packet */
	u8 len;	       /* modes in use, in ascending order */
	u8 tcp;	       /* the last packet was TCP */
	struct modes_mode mode[MODES_MAX];
};
_Static_assert(sizeof(struct modes_state) == 176, "modes_state");

/* Whether something so far beyond the edge of a mode is still within epsilon of it. */
CW_INLINE int modes_reaches(const struct modes_config *config, u32 edge, u32 beyond)
{
	if (beyond <= config->epsilon_ns >> MODES_SHIFT)
		return 1;
	return (u64)beyond * 1000 <= (u64)edge * config->epsilon_permille;
}

/* Whether the mode takes the gap in; asks for an epsilon only where that decides. */
CW_INLINE int modes_accepts(const struct modes_config *config,
			    const struct modes_mode *m, u32 gap)
{
	if (gap > m->max)
		return modes_reaches(config, m->max, gap - m->max);
	return gap >= m->min || modes_reaches(config, m->min, m->min - gap);
}

CW_INLINE struct modes_mode *modes_at(struct modes_state *s, u32 k)
{
	return &s->mode[CW_CLAMPED(k, MODES_MAX - 1)];
}

/* Mode k and the one after it become one where they have come too close. */
CW_GLOBAL int modes_merge(struct modes_state *s, const struct modes_config *config, u32 k)
{
	struct modes_mode *a, *b;
	u32 count;

	if (!s || !config || k + 1 >= s->len)
		return 0;
	a = modes_at(s, k);
	b = modes_at(s, k + 1);
	count = (u32)a->count + b->count;
	if (count > 0xffff || b->sum > CW_U32_MAX - a->sum ||
	    (b->min > a->max && !modes_reaches(config, a->max, b->min - a->max)))
		return 0;
	a->max = CW_MAX(a->max, b->max);
	a->sum += b->sum;
	a->count = (u16)count;
	a->candidates = (u16)(a->candidates + b->candidates);
	for (u32 i = 1; i < MODES_MAX - 1; i++)
		if (i > k)
			s->mode[i] = s->mode[i + 1];
	s->len--;
	return 0;
}

/* A new mode of one gap, in its place in the order. */
CW_GLOBAL int modes_insert(struct modes_state *s, u32 gap, u32 candidate)
{
	struct modes_mode one = { .min = gap, .max = gap, .sum = gap, .count = 1,
				  .candidates = (u16)candidate };

	if (!s)
		return 0;
	for (u32 i = MODES_MAX - 1; i > 0; i--) {
		if (i > s->len)
			continue;
		if (s->mode[i - 1].min < gap) {
			s->mode[i] = one;
			s->len++;
			return 0;
		}
		s->mode[i] = s->mode[i - 1];
	}
	s->mode[0] = one;
	s->len++;
	return 0;
}

/* The first mode, in ascending order, that accepts the gap; len: none. */
CW_GLOBAL u32 modes_find(struct modes_state *s, const struct modes_config *config, u32 gap)
{
	if (!s || !config)
		return 0;
	for (u32 i = 0; i < MODES_MAX; i++) {
		if (i >= s->len)
			break;
		if (modes_accepts(config, &s->mode[i], gap))
			return i;
	}
	return s->len;
}

/* UpdateModes of Algorithm 2. */
CW_INLINE void modes_add(struct modes_state *s, const struct modes_config *config, u32 gap,
			 u32 candidate)
{
	u32 k = modes_find(s, config, gap);
	struct modes_mode *m;

	if (k >= s->len) {
		if (s->len < CW_MIN(config->modes, MODES_MAX))
			modes_insert(s, gap, candidate);
		else
			s->discarded++;
		return;
	}
	m = modes_at(s, k);
	if (m->count == 0xffff || gap > CW_U32_MAX - m->sum) {
		s->discarded++;
		return;
	}
	m->sum += gap;
	m->count++;
	m->candidates = (u16)(m->candidates + candidate);
	if (gap < m->min) {
		m->min = gap;
		if (k)
			modes_merge(s, config, k - 1);
	} else if (gap > m->max) {
		m->max = gap;
		modes_merge(s, config, k);
	}
}

/* One packet that may carry a request. */
CW_INLINE void modes_request(struct modes_state *s, const struct modes_config *config,
			     const struct est_packet *p)
{
	u64 now = CW_MAX(p->t_ns, s->last_ns);

	if (est_put_back(s->last_ns, p->t_ns)) {
		now = p->t_ns;
		s->last_ns = 0;
	}
	if (s->last_ns) {
		/* Second heuristic: a client that waits sends less than an MTU. */
		u32 candidate = s->last_len < config->mtu;

		modes_add(s, config, cw_sat32((now - s->last_ns) >> MODES_SHIFT), candidate);
	}
	s->last_ns = now;
	s->last_len = (u16)CW_MIN(p->ip_len, 0xffffu);
	s->tcp = (u8)est_is_tcp(p);
}

/* One packet. The estimate comes from modes_end_epoch, none from here. */
CW_GLOBAL int modes_packet(struct modes_state *s, const struct modes_config *config,
			   const struct est_packet *p)
{
	/* Section 3.4, first heuristic: gaps between pure ACKs are one gap. */
	if (!s || !config || !p || !est_has_request(p))
		return 0;
	modes_request(s, config, p);
	return 0;
}

/* Whether the mode is a gap between requests, not a timeout or idleness. */
CW_INLINE int modes_is_signal(const struct modes_mode *m, u64 timeout_ns)
{
	return m->count && (u64)m->sum < (timeout_ns >> MODES_SHIFT) * m->count;
}

/*
 * Ends an epoch: gives its latency, once for each gap of the IBG, and forgets
 * its modes. The time of the epoch's last packet is its time.
 */
CW_GLOBAL int modes_end_epoch(struct modes_state *s, const struct modes_config *config,
			      struct est_samples *out)
{
	u64 timeout, sum = 0, below = 0, most = 0;
	u32 count = 0;

	if (!s || !config || !out)
		return 0;
	est_clear_all(out);
	timeout = s->tcp ? config->tcp_timeout_ns : config->other_timeout_ns;
	for (u32 i = 0; i < MODES_MAX; i++) {
		const struct modes_mode *m = &s->mode[i];

		if (i >= s->len)
			break;
		if (!modes_is_signal(m, timeout))
			continue;
		below += m->sum;
		if (config->mtu && !m->candidates)
			continue;
		if (config->ibg == MODES_IBG_MOST_TIME && m->sum <= most)
			continue;
		most = m->sum;
		sum = below;
		count = m->count;
	}
	if (count) {
		out->group[0].when_ns = s->last_ns;
		out->group[0].sum_halves_ns = 2 * (sum << MODES_SHIFT);
		out->group[0].weight_halves = 2 * count;
	}
	s->len = 0;
	return 0;
}

#endif
