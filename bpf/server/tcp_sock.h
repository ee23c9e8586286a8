/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The few fields of the kernel's sockets that timestamps depend on, relocated to
 * where the running kernel has them. Kernels differ: 6.7 brought timestamps in
 * microseconds, 6.15 the check of the handshake's echo.
 */
#ifndef CAUSEWAY_SERVER_TCP_SOCK_H
#define CAUSEWAY_SERVER_TCP_SOCK_H

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "../shared/abi.h"

/* Values of sk_state (include/net/tcp_states.h). */
enum {
	STATE_ESTABLISHED = 1,
	STATE_SYN_SENT = 2,
	STATE_TIME_WAIT = 6,
	STATE_LISTEN = 10,
	STATE_NEW_SYN_RECV = 12,
};

#define UNIT_MS 1
#define UNIT_US 1000

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct tcp_options_received {
	u32 rcv_tsecr;
	u16 tstamp_ok : 1;
};

struct sock_common {
	int skc_incoming_cpu;
};

struct sock {
	struct sock_common __sk_common;
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 tsoffset;
	u32 segs_out;
	u32 snd_nxt;
	u32 snd_una;
	struct tcp_options_received rx_opt;
};

struct tcp_sock___usec {
	u8 tcp_usec_ts : 1;
};

struct tcp_request_sock {
	u32 ts_off;
};

struct tcp_request_sock___checked {
	u32 snt_tsval_first;
	u32 snt_tsval_last;
};

struct tcp_request_sock___usec {
	_Bool req_usec_ts;
};

struct tcp_timewait_sock {
	u32 tw_ts_offset;
};

#pragma clang attribute pop

/* Of TSval, in ms: UNIT_US where the route has asked for tcp_usec_ts. */
static __always_inline u32 socket_unit(struct tcp_sock *tp)
{
	struct tcp_sock___usec *usec = (void *)tp;

	if (!bpf_core_field_exists(usec->tcp_usec_ts))
		return UNIT_MS;
	return BPF_CORE_READ_BITFIELD(usec, tcp_usec_ts) ? UNIT_US : UNIT_MS;
}

/* Whether this CPU is the one that takes the connection's segments in. */
static __always_inline bool is_receiving_cpu(struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_inet.sk.__sk_common.skc_incoming_cpu == (int)bpf_get_smp_processor_id();
}

static __always_inline u32 request_unit(struct tcp_request_sock *request)
{
	struct tcp_request_sock___usec *usec = (void *)request;

	if (!bpf_core_field_exists(usec->req_usec_ts))
		return UNIT_MS;
	return usec->req_usec_ts ? UNIT_US : UNIT_MS;
}

/* What the kernel's timestamps read now, without a socket's own offset. */
static __always_inline u32 timestamp_now(u32 unit)
{
	u64 now_ns = bpf_ktime_get_ns();

	return (u32)(now_ns / (unit == UNIT_US ? CW_US_NS : CW_MS_NS));
}

/* TSval of the first and of the last SYN-ACK of a request. */
struct synack_times {
	u32 first;
	u32 last;
	u32 unit;
};

/*
 * Where the kernel does not keep them it does not compare them either; then the clock
 * is near enough.
 */
static __always_inline struct synack_times synack_times(struct tcp_request_sock *request)
{
	struct tcp_request_sock___checked *checked = (void *)request;
	struct synack_times times = { .unit = request_unit(request) };

	if (bpf_core_field_exists(checked->snt_tsval_last)) {
		times.first = checked->snt_tsval_first;
		times.last = checked->snt_tsval_last;
	} else {
		times.last = timestamp_now(times.unit) + request->ts_off;
		times.first = times.last - (CW_U32_MAX >> 1);
	}
	return times;
}

#endif
