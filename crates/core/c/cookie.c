// SPDX-License-Identifier: Apache-2.0
// What src/cookie calls of bpf/shared/cookie.h, cookie_clock.h and cookie_echo.h.

#include "cookie.h"
#include "cookie_clock.h"
#include "cookie_echo.h"

u64 causeway_cookie_hash(const u64 *words, u32 count, const u64 *key)
{
	return siphash24(words, count, key);
}

u32 causeway_conn_token_mask(const u64 *words, u32 count, const u64 *hash_key)
{
	return conn_token_mask(words, count, hash_key);
}

u32 causeway_cookie_encode(u64 hash, u32 epoch, u32 id, struct cookie_format format)
{
	return cookie_encode(hash, epoch, id, &format);
}

u32 causeway_cookie_decode(u64 hash, u32 cookie, struct cookie_format format)
{
	return cookie_decode(hash, cookie, &format);
}

u32 causeway_cookie_epoch(u32 cookie, struct cookie_format format)
{
	return cookie_epoch(cookie, &format);
}

u32 causeway_cookie_clock_size(void)
{
	return sizeof(struct cookie_clock);
}

void causeway_cookie_clock_start(struct cookie_clock *clock, u32 o, u32 t, u32 unit, u32 bits)
{
	cookie_clock_start(clock, o, t, unit, bits);
}

void causeway_cookie_clock_start_unsure(struct cookie_clock *clock, u32 o, u32 opening_o, u32 unit, u32 bits)
{
	cookie_clock_start_unsure(clock, o, opening_o, unit, bits);
}

u32 causeway_cookie_clock_is_behind(const struct cookie_clock *clock, u32 o)
{
	return cookie_clock_is_behind(clock, o);
}

u32 causeway_cookie_clock_stamp(struct cookie_clock *clock, u32 o)
{
	return cookie_clock_stamp(clock, o);
}

u32 causeway_cookie_clock_stamp_kind(struct cookie_clock *clock, u32 o, u32 kind)
{
	return cookie_clock_stamp_kind(clock, o, kind);
}

u32 causeway_cookie_clock_lease(const struct cookie_clock *clock)
{
	return cookie_clock_lease(clock);
}

void causeway_cookie_clock_resume(struct cookie_clock *clock, u32 o, u32 t)
{
	cookie_clock_resume(clock, o, t);
}

u32 causeway_cookie_clock_echo(struct cookie_clock *clock, u32 t, u32 now_o)
{
	return cookie_clock_echo(clock, t, now_o);
}

u32 causeway_flow_size(void)
{
	return sizeof(struct flow);
}

// What lb.bpf.c does of a measured packet with a cookie.
void causeway_cookie_echo_packet(struct flow *flow, const struct est_packet *packet, u32 bits,
				 struct est_samples *out)
{
	struct est_packet dated = *packet;

	date_echo(flow, &dated, bits);
	wc_packet(&flow->chain, &dated, out);
}
