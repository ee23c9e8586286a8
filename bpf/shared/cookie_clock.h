/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The clock of timestamp cookies: what a server's TSval reads on the wire, and what
 * the kernel's own TSval was when an echo comes back.
 *
 *   wire = | T : 32 - bits | C : bits |      T counts milliseconds modulo 2^(32-bits)
 *
 * C takes most of the timestamp's bits, so that T would wrap within a minute or so
 * (65.5 s at 16 bits) and PAWS (RFC 7323, section 5) would take an idle connection's
 * next segment for an old one. Hence T is driven by events: it follows the kernel's
 * clock O while segments are sent, by at most `gap` per segment, and stands still
 * while none is. How long a connection has been idle then does not show.
 *
 * It also never runs further than a quarter of the ring ahead of what the client has
 * last echoed: keepalive probes and retransmissions do not renew the client's
 * TS.Recent, however many there are.
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
 * The way back: T is piecewise affine in O, with slope one and a jump in O after each
 * pause. Two segments are kept, the newest (`now`) and the one before (`past`). Their
 * anchors slide forward by a quarter of the ring, else the signed distance to them
 * would be ambiguous. An echo older than both segments is placed before `past`: its
 * round trip then reads shorter than it was.
 *
 * O has the unit of the socket's timestamps: 1 ms, or 1 us (tcp_usec_ts).
 */
#ifndef CAUSEWAY_COOKIE_CLOCK_H
#define CAUSEWAY_COOKIE_CLOCK_H

#include "cookie.h"

/* Most that T moves from one segment to the next, ms; less where the ring is short. */
#define COOKIE_GAP_MS 256
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

CW_INLINE u32 cookie_gap(u32 bits)
{
	u32 part = cookie_t_mask(bits) >> 6;

	return part < COOKIE_GAP_MS ? part + 1 : COOKIE_GAP_MS;
}

/* The T that a SYN-ACK with the kernel's TSval `o` carries: no state is kept for it. */
CW_INLINE u32 cookie_t_stateless(u32 o, u32 unit, u32 bits)
{
	return o / unit & cookie_t_mask(bits);
}

/*
 * Begins a clock at `t`, which the client has echoed, when the kernel's TSval is
 * `o`. What is sent next reads later than `t`.
 */
CW_INLINE void
cookie_clock_start(struct cookie_clock *clock, u32 o, u32 t, u32 unit, u32 bits)
{
	u32 mask = cookie_t_mask(bits);

	clock->unit = (u16)unit;
	clock->bits = (u8)bits;
	clock->last_o = o;
	clock->echoed_t = t & mask;
	clock->t = (t + 1) & mask;
	clock->now.o = o;
	clock->now.t = clock->t;
	clock->past = clock->now;
	clock->acked_o = o;
}

/*
 * Goes on behind `t`, the most that was sent, when the kernel's TSval is `o`: how the
 * clock got there is not known.
 */
CW_INLINE void cookie_clock_resume(struct cookie_clock *clock, u32 o, u32 t)
{
	u32 echoed_t = clock->echoed_t;

	cookie_clock_start(clock, o, t, clock->unit, clock->bits);
	clock->t = t & cookie_t_mask(clock->bits);
	clock->now.t = clock->t;
	clock->past = clock->now;
	clock->echoed_t = echoed_t;
	clock->adopted = 1;
}

/* Keeps both anchors within half the ring behind T. */
CW_INLINE void cookie_clock_slide(struct cookie_clock *clock)
{
	u32 mask = cookie_t_mask(clock->bits), quarter = (mask >> 2) + 1;
	u32 limit = 2 * quarter - 1 - cookie_gap(clock->bits);

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

/* T for a segment that the kernel stamped with `o`. */
CW_INLINE u32 cookie_clock_stamp(struct cookie_clock *clock, u32 o)
{
	u32 mask = cookie_t_mask(clock->bits), unit = clock->unit ? clock->unit : 1;
	u32 step = cookie_gap(clock->bits), room, ticks;
	s32 since = (s32)(o - clock->last_o);

	if (since < 0) {
		/* Stamped earlier than one that went before: back on the same segment. */
		u32 back = (u32)-since / unit, most = (clock->t - clock->now.t) & mask;

		return (clock->t - (back < most ? back : most)) & mask;
	}
	ticks = (u32)since / unit;
	room = cookie_clock_room(clock);
	if (step > room)
		step = room;
	if (ticks <= step) {
		clock->t = (clock->t + ticks) & mask;
		clock->last_o += ticks * unit;
	} else {
		clock->t = (clock->t + step) & mask;
		clock->last_o = o;
		if (clock->t != clock->now.t)
			clock->past = clock->now;
		clock->now.o = o;
		clock->now.t = clock->t;
	}
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
	u32 gap = cookie_gap(clock->bits) * (clock->unit ? clock->unit : 1);
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
 * How far a copy of the clock may run: an eighth of what the room can be. The
 * same as `t` where there is not room enough to be worth it.
 */
CW_INLINE u32 cookie_clock_lease(const struct cookie_clock *clock)
{
	u32 mask = cookie_t_mask(clock->bits), part = ((mask >> 2) + 1) >> 3;
	u32 room = cookie_clock_room(clock);

	return room < 2 * cookie_gap(clock->bits) ? clock->t : (clock->t + (part < room ? part : room)) & mask;
}

/*
 * The kernel's TSval that went out as `t`; `now_o` is what it would read now, which
 * no echo exceeds. 0 if that is not known. Remembers the newest echo.
 */
CW_INLINE u32 cookie_clock_echo(struct cookie_clock *clock, u32 t, u32 now_o)
{
	u32 bits = clock->bits, unit = clock->unit ? clock->unit : 1, o;
	s32 from = cookie_t_diff(t, clock->now.t, bits);

	if (cookie_t_diff(t, clock->echoed_t, bits) > 0 && cookie_t_diff(clock->t, t, bits) >= 0)
		clock->echoed_t = t;
	if (from >= 0) {
		o = clock->now.o + (u32)from * unit;
	} else if (clock->adopted && cookie_t_diff(t, clock->past.t, bits) < 0) {
		return 0;
	} else {
		o = clock->past.o + (u32)(cookie_t_diff(t, clock->past.t, bits) * (s32)unit);
		/* The jump between the segments: no segment was sent within it. */
		if ((s32)(o - clock->now.o) >= 0)
			o = clock->now.o - 1;
	}
	return (s32)(o - now_o) > 0 ? now_o : o;
}

/* The kernel's TSval of a SYN-ACK that carried `t`: at most `last_o`, the newest one's. */
CW_INLINE u32 cookie_o_of_synack(u32 t, u32 first_o, u32 last_o, u32 unit, u32 bits)
{
	u32 ago = (last_o / unit - t) & cookie_t_mask(bits), o = last_o - ago * unit;

	return (s32)(o - first_o) < 0 ? first_o : o;
}

#endif
