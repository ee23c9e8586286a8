/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The clock of timestamp cookies: what a server's TSval reads on the wire, and what
 * the kernel's own TSval was when an echo comes back.
 *
 *   wire = | T : 32 - bits | C : bits |      T counts milliseconds modulo 2^(32-bits)
 *
 * C takes most of the timestamp's bits, so that T would wrap within a minute or so
 * (65.5 s at 16 bits) and PAWS (RFC 7323, section 5) would take an idle connection's
 * next segment for an old one. Hence T is driven by events: a segment moves it to the next
 * value that equals the kernel's clock O modulo `period`, a sixteenth of the ring. While
 * segments are sent T is the time, and dates what the client echoes; of a silence it leaves
 * out whole periods, so that how long a connection has been idle does not show.
 *
 * It also never runs further than a quarter of the ring ahead of what the client has
 * last echoed: keepalive probes and retransmissions do not renew the client's
 * TS.Recent, however many there are. A segment that would carry it there leaves it where
 * it is. So T is exact when it moves, or it has not moved.
 *
 * A segment that moves T must not overtake another. The CPU that takes a connection's
 * segments in acknowledges some of them, and these acknowledgements may wait there until
 * what came with them is dealt with; what the application's CPU sends meanwhile overtakes
 * them. Linux lets one pass whose timestamp is older by 1 (TCP_PAWS_WINDOW). It reckons in
 * milliseconds, of which any step of T is 2^bits. So T moves only some milliseconds after
 * the receiving CPU's last bare acknowledgement. Where these do not cease, one of them
 * moves T once in a gap, because receivers measure round trips by T: it comes behind the
 * others of its CPU. A retransmission always moves T, else its echo would read like one of
 * the original (RFC 3522), and a bare acknowledgement an eighth of a gap after its last
 * step at the earliest. What a receiver measures stays right: it takes the first echo of
 * each T, which is of the segment that moved it.
 *
 * The way back: T is piecewise affine in O, with slope one and a jump in O where periods
 * were left out. Two segments are kept, the newest (`now`) and the one before (`past`). Their
 * anchors slide forward by a quarter of the ring, else the signed distance to them
 * would be ambiguous. An echo older than both segments is placed before `past`: its
 * round trip then reads shorter than it was.
 *
 * O has the unit of the socket's timestamps: 1 ms, or 1 us (tcp_usec_ts).
 */
#ifndef CAUSEWAY_COOKIE_CLOCK_H
#define CAUSEWAY_COOKIE_CLOCK_H

#include "cookie.h"

/* T and O agree modulo this, ms; less where the ring is short. A power of two. */
#define COOKIE_PERIOD_MS 4096
/* How often a stream of bare acknowledgements moves T, ms; less where the ring is short. */
#define COOKIE_ACK_GAP_MS 256
/* A segment may have been stamped so much before one that overtook it, ms. */
#define COOKIE_LATE_MS 1024
/* How long an acknowledgement may wait on the CPU that takes segments in, ms. */
#define COOKIE_QUIET_MS 4

/* What a segment may do to T. */
enum cookie_segment {
	COOKIE_MOVES,         /* a retransmission, or where it does not matter */
	COOKIE_DATA,          /* new data */
	COOKIE_ACK,           /* a bare acknowledgement */
	COOKIE_RECEIVING_ACK, /* the same, from the CPU that takes the connection's segments in */
};

/* T and the kernel's TSval at one instant. */
struct cookie_anchor {
	u32 o;
	u32 t;
};

/* One connection's clock; zeros are none. */
struct cookie_clock {
	u32 last_o;   /* the kernel's TSval that T has followed so far */
	u32 t;        /* T of the newest segment */
	u32 echoed_t; /* newest T that the client has echoed */
	u16 unit;     /* of O per T: 1 or 1000 */
	u8 bits;      /* of C: T has 32 - bits */
	u8 adopted;   /* what was sent before `past` is not known */
	struct cookie_anchor now;
	struct cookie_anchor past;
	u32 acked_o;  /* the kernel's TSval at the receiving CPU's last bare acknowledgement */
};

CW_INLINE u32 cookie_t_mask(u32 bits)
{
	return CW_U32_MAX >> (bits & 31);
}

/* a - b on the ring of T, signed. */
CW_INLINE s32 cookie_t_diff(u32 a, u32 b, u32 bits)
{
	return (s32)((a - b) << (bits & 31)) >> (bits & 31);
}

/* What T moves from one segment to the next is less. */
CW_INLINE u32 cookie_period(u32 bits)
{
	u32 part = (cookie_t_mask(bits) >> 4) + 1;

	return part < COOKIE_PERIOD_MS ? part : COOKIE_PERIOD_MS;
}

CW_INLINE u32 cookie_ack_gap(u32 bits)
{
	u32 part = (cookie_t_mask(bits) >> 6) + 1;

	return part < COOKIE_ACK_GAP_MS ? part : COOKIE_ACK_GAP_MS;
}

/* The first T from `t` on that equals `natural` modulo the period. */
CW_INLINE u32 cookie_t_from(u32 t, u32 natural, u32 bits)
{
	return (t + ((natural - t) & (cookie_period(bits) - 1))) & cookie_t_mask(bits);
}

/* The T that a SYN-ACK with the kernel's TSval `o` carries: no state is kept for it. */
CW_INLINE u32 cookie_t_stateless(u32 o, u32 unit, u32 bits)
{
	return o / unit & cookie_t_mask(bits);
}

/*
 * Begins a clock when the kernel's TSval is `o`, behind `t`, which the client has
 * echoed. It agrees with the SYN-ACK's T, and with any clock of this connection before.
 */
CW_INLINE void
cookie_clock_start(struct cookie_clock *clock, u32 o, u32 t, u32 unit, u32 bits)
{
	clock->unit = (u16)unit;
	clock->bits = (u8)bits;
	clock->last_o = o;
	clock->echoed_t = t & cookie_t_mask(bits);
	clock->t = cookie_t_from(t, o / unit, bits);
	clock->now.o = o;
	clock->now.t = clock->t;
	clock->past = clock->now;
	clock->acked_o = o;
}

/* The first T whose wire value is later than the kernel's own TSval `o`. */
CW_INLINE u32 cookie_t_behind(u32 o, u32 bits)
{
	return ((o >> (bits & 31)) + 1) & cookie_t_mask(bits);
}

/*
 * Whether who has taken the kernel's own TSval `o` takes none of the clock's for new. An echo
 * of it may be followed by others: the clock is ahead of them once it has begun anew.
 */
CW_INLINE u32 cookie_clock_is_behind(const struct cookie_clock *clock, u32 o)
{
	return cookie_t_diff(clock->t, cookie_t_behind(o, clock->bits), clock->bits) < 0;
}

/*
 * Begins a clock at `o` for a connection whose SYN-ACK the kernel stamped with `opening_o`,
 * where it is not known whether that was sent with the cookie or as it was: at the later of
 * the two, as if T had come there by itself. From half a ring ahead nothing would be taken,
 * and so T moves only as far as it may go before an echo.
 */
CW_INLINE void
cookie_clock_start_unsure(struct cookie_clock *clock, u32 o, u32 opening_o, u32 unit, u32 bits)
{
	u32 with = cookie_t_stateless(opening_o, unit, bits), without = cookie_t_behind(opening_o, bits);
	u32 is_ahead = cookie_t_diff(without, with, bits) > 0, t = is_ahead ? without : with;

	cookie_clock_start(clock, o, t, unit, bits);
	clock->t = clock->now.t = t;
	clock->last_o = clock->now.o = o - ((o / unit - t) & (cookie_period(bits) - 1)) * unit;
	clock->past = clock->now;
	clock->echoed_t = is_ahead ? with : without;
	clock->adopted = 1;
}

/*
 * Goes on from `t`, the most that was sent, when the kernel's TSval is `o`: how the
 * clock got there is not known.
 */
CW_INLINE void cookie_clock_resume(struct cookie_clock *clock, u32 o, u32 t)
{
	u32 unit = clock->unit ? clock->unit : 1, ticks = (o - clock->last_o) / unit;

	clock->t = cookie_t_from(t, clock->t + ticks, clock->bits);
	clock->last_o += ticks * unit;
	clock->now.o = clock->last_o;
	clock->now.t = clock->t;
	clock->past = clock->now;
	clock->acked_o = o;
	clock->adopted = 1;
}

/* Keeps both anchors within half the ring behind T. */
CW_INLINE void cookie_clock_slide(struct cookie_clock *clock)
{
	u32 mask = cookie_t_mask(clock->bits), quarter = (mask >> 2) + 1;
	u32 limit = 2 * quarter - 1 - cookie_period(clock->bits);

	if (((clock->t - clock->now.t) & mask) > limit) {
		clock->now.t = (clock->now.t + quarter) & mask;
		clock->now.o += quarter * clock->unit;
		clock->past = clock->now;
	} else if (((clock->t - clock->past.t) & mask) > limit) {
		clock->past = clock->now;
	}
}

/* How far T may move now: not beyond a quarter of the ring past the last echo. */
CW_INLINE u32 cookie_clock_room(const struct cookie_clock *clock)
{
	u32 mask = cookie_t_mask(clock->bits), quarter = (mask >> 2) + 1;
	u32 ahead = (clock->t - clock->echoed_t) & mask;

	return ahead < quarter ? quarter - ahead : 0;
}

/* T is no more the time since `now`: another segment begins, at `o`. */
CW_INLINE void cookie_clock_turn(struct cookie_clock *clock, u32 o)
{
	if (clock->t != clock->now.t)
		clock->past = clock->now;
	clock->now.o = o;
	clock->now.t = clock->t;
}

/* T for a segment that the kernel stamped with `o`. */
CW_INLINE u32 cookie_clock_stamp(struct cookie_clock *clock, u32 o)
{
	u32 mask = cookie_t_mask(clock->bits), unit = clock->unit ? clock->unit : 1;
	u32 since = o - clock->last_o, late = clock->last_o - o, ticks, step;

	if (late - 1 < COOKIE_LATE_MS * unit) {
		/*
		 * Stamped earlier than one that went before: back on the same segment. Or O has gone
		 * round meanwhile, in microseconds after 71.6 minutes: then the client has echoed
		 * the newest T, mostly, and takes no older one.
		 */
		u32 back = late / unit, most = (clock->t - clock->now.t) & mask;
		u32 ahead = (clock->t - clock->echoed_t) & mask;

		most = CW_MIN(most, ahead);
		return (clock->t - CW_MIN(back, most)) & mask;
	}
	ticks = unit == 1 ? since : since / unit; /* a division takes longer than all else here */
	step = ticks & (cookie_period(clock->bits) - 1);
	if (step > cookie_clock_room(clock)) {
		/* What is echoed from now on is most likely of the newest. */
		cookie_clock_turn(clock, o);
		clock->last_o += (ticks - step) * unit;
		return clock->t;
	}
	clock->t = (clock->t + step) & mask;
	clock->last_o += ticks * unit;
	if (clock->last_o - clock->now.o != ((clock->t - clock->now.t) & mask) * unit)
		cookie_clock_turn(clock, clock->last_o);
	cookie_clock_slide(clock);
	return clock->t;
}

/* Whether the receiving CPU may still have a bare acknowledgement. */
CW_INLINE u32 cookie_clock_is_busy(const struct cookie_clock *clock, u32 o)
{
	u32 quiet = COOKIE_QUIET_MS * (clock->unit ? clock->unit : 1);

	/* Either way: another CPU's may be stamped a little earlier. */
	return o - clock->acked_o + quiet < 2 * quiet;
}

/* Whether a segment of this kind leaves T where it is. */
CW_INLINE u32 cookie_clock_stays(const struct cookie_clock *clock, u32 o, enum cookie_segment kind)
{
	u32 gap = cookie_ack_gap(clock->bits) * (clock->unit ? clock->unit : 1);
	s32 since = (s32)(o - clock->last_o);

	if (kind == COOKIE_MOVES)
		return 0;
	if (kind >= COOKIE_ACK && since < (s32)(gap / 8))
		return 1;
	if (kind == COOKIE_RECEIVING_ACK && since >= (s32)gap)
		return 0;
	return cookie_clock_is_busy(clock, o);
}

/* T for a segment of this kind. */
CW_INLINE u32 cookie_clock_stamp_kind(struct cookie_clock *clock, u32 o, enum cookie_segment kind)
{
	u32 stays = cookie_clock_stays(clock, o, kind);

	if (kind == COOKIE_RECEIVING_ACK)
		clock->acked_o = o;
	return stays ? clock->t : cookie_clock_stamp(clock, o);
}

/*
 * How far a copy of the clock may run: two periods, and a third for the way back to O
 * after a loss. The same as `t` where there is not room enough.
 */
CW_INLINE u32 cookie_clock_lease(const struct cookie_clock *clock)
{
	u32 period = cookie_period(clock->bits);

	if (cookie_clock_room(clock) < 3 * period)
		return clock->t;
	return (clock->t + 2 * period) & cookie_t_mask(clock->bits);
}

/* The kernel's TSval that went out as `t`; 0 if that is not known. */
CW_INLINE u32 cookie_clock_o(const struct cookie_clock *clock, u32 t)
{
	u32 bits = clock->bits, unit = clock->unit ? clock->unit : 1, o;
	s32 from = cookie_t_diff(t, clock->now.t, bits);

	if (from >= 0)
		return clock->now.o + (u32)from * unit;
	if (clock->adopted && cookie_t_diff(t, clock->past.t, bits) < 0)
		return 0;
	o = clock->past.o + (u32)(cookie_t_diff(t, clock->past.t, bits) * (s32)unit);
	/* The jump between the segments: no segment was sent within it. */
	return (s32)(o - clock->now.o) >= 0 ? clock->now.o - 1 : o;
}

/* The same; `now_o` is what it would read now, which no echo exceeds. Remembers the newest echo. */
CW_INLINE u32 cookie_clock_echo(struct cookie_clock *clock, u32 t, u32 now_o)
{
	u32 o = cookie_clock_o(clock, t);

	if (cookie_t_diff(t, clock->echoed_t, clock->bits) > 0 && cookie_t_diff(clock->t, t, clock->bits) >= 0)
		clock->echoed_t = t;
	return o && (s32)(o - now_o) > 0 ? now_o : o;
}

/* The kernel's TSval of a SYN-ACK that carried `t`: at most `last_o`, the newest one's. */
CW_INLINE u32 cookie_o_of_synack(u32 t, u32 first_o, u32 last_o, u32 unit, u32 bits)
{
	u32 ago = (last_o / unit - t) & cookie_t_mask(bits), o = last_o - ago * unit;

	return (s32)(o - first_o) < 0 ? first_o : o;
}

#endif
