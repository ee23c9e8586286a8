/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Every struct and enum that crosses the kernel boundary, but those of SYN accounting
 * (syn_abi.h). Fixed widths, explicit
 * padding, sizes asserted; crates/dataplane checks its mirrors against the object's BTF.
 * Fields named *_be are in network byte order. IPv4 addresses in 16-byte fields
 * are IPv4-mapped (::ffff:a.b.c.d).
 *
 * Pinned maps outlive the build that made them, and other builds read them by the names of
 * fields: one whose meaning changes gets another name. Raise LAYOUT in crates/dataplane/src/pins.rs
 * with every change, the estimators' states included.
 */
#ifndef CAUSEWAY_ABI_H
#define CAUSEWAY_ABI_H

#include "cookie.h"
#include "quic_lb_config.h"
#include "types.h"
#include "window_chain_state.h"

#define ABI_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)

/*
 * What the balancer did with a packet: VERDICT(NAME, word, XDP action, meaning).
 * The enum, the XDP return value, the counter's index, the metric's label and the
 * CLI's word all come from this list. Append only: indices are pinned in maps.
 */
#define LB_VERDICTS(VERDICT) \
	VERDICT(ESTABLISHED, established, XDP_TX, "sent to the real its flow is on") \
	VERDICT(OPENED, opened, XDP_TX, "a new connection (SYN): a real was picked") \
	VERDICT(SYN_AGAIN, syn_again, XDP_TX, "a retransmitted SYN: sent to the real picked before") \
	VERDICT(FIRST_DATAGRAM, first_datagram, XDP_TX, "the first packet of a UDP flow: a real was picked") \
	VERDICT(ADOPTED, adopted, XDP_TX, "TCP without a SYN and without an entry: picked by hash") \
	VERDICT(MOVED, moved, XDP_TX, "the flow's real is gone: another one was picked") \
	VERDICT(ICMP_ERROR, icmp_error, XDP_TX, "an ICMP error, sent to the real of the flow it quotes") \
	VERDICT(ECHO_ANSWERED, echo_answered, XDP_TX, "an echo request to a VIP, answered here") \
	VERDICT(TOO_BIG_ANSWERED, too_big_answered, XDP_TX, "too long to encapsulate: the sender is told the MTU") \
	VERDICT(NOT_IP, not_ip, XDP_PASS, "neither IPv4 nor IPv6") \
	VERDICT(NOT_VIP, not_vip, XDP_PASS, "no VIP has this address, protocol and port") \
	VERDICT(ICMP_OTHER, icmp_other, XDP_PASS, "ICMP to a VIP that is neither echo nor an error") \
	VERDICT(MALFORMED, malformed, XDP_DROP, "headers truncated or inconsistent") \
	VERDICT(FRAGMENT, fragment, XDP_DROP, "an IP fragment to a VIP") \
	VERDICT(TOO_BIG_SILENT, too_big_silent, XDP_DROP, "too long, and no answer is allowed: an ICMP error, or IPv6 that is down to 1280 bytes") \
	VERDICT(NO_REAL, no_real, XDP_DROP, "the VIP has no usable real") \
	VERDICT(NO_NEXT_HOP, no_next_hop, XDP_DROP, "the gateway or the outer source address is not known yet") \
	VERDICT(NO_HEADROOM, no_headroom, XDP_DROP, "the driver left no room for the outer header") \
	VERDICT(FRAGMENT_SENT, fragment_sent, XDP_TX, "an IP fragment, sent to the real of its addresses and protocol") \
	VERDICT(COOKIE_FORGED, cookie_forged, XDP_DROP, "a cookie whose check does not fit") \
	VERDICT(COOKIE_UNKNOWN, cookie_unknown, XDP_DROP, "a cookie whose id no real has") \
	VERDICT(CONGESTED, congested, XDP_DROP, "from a first tier: marked CE on the way, and the inner packet cannot say so (RFC 6040)") \
	VERDICT(RATE_LIMITED, rate_limited, XDP_DROP, "a new flow beyond what its client's prefix may open") \
	VERDICT(TUNNEL_REFUSED, tunnel_refused, XDP_DROP, "a tunnel packet to a tunnel end, from none of `tunnel_sources`") \
	VERDICT(INNER_NOT_VIP, inner_not_vip, XDP_DROP, "from a first tier: the inner packet is for no VIP's address") \
	VERDICT(INNER_SPOOFED, inner_spoofed, XDP_DROP, "from a first tier: the inner packet claims to come from a VIP or a tunnel end") \
	VERDICT(NOT_SERVED, not_served, XDP_DROP, "to a VIP's address, where no VIP has this protocol and port")

/*
 * What the balancer found out about packets of VIPs with cookies, counted per VIP;
 * the verdict says what became of them. Append only.
 */
#define COOKIE_RESULTS(RESULT) \
	RESULT(EPOCH0, epoch0, XDP_TX, "a valid cookie of key epoch 0") \
	RESULT(EPOCH1, epoch1, XDP_TX, "a valid cookie of key epoch 1") \
	RESULT(SYN, syn, XDP_TX, "a SYN with timestamps: a real was picked") \
	RESULT(SYN_AGAIN, syn_again, XDP_TX, "a retransmitted SYN with timestamps: sent where the first one went") \
	RESULT(PLAIN, plain, XDP_TX, "of a client without timestamps: by the flow table, else by hash") \
	RESULT(TABLE, table, XDP_TX, "no valid cookie, but the flow table knows the connection") \
	RESULT(SYN_CACHE, syn_cache, XDP_TX, "no valid cookie: sent where the connection's SYN went") \
	RESULT(QUOTED, quoted, XDP_TX, "an ICMP error whose quote has the cookie") \
	RESULT(GUESSED, guessed, XDP_TX, "a RST, FIN or ICMP error without a cookie, of a connection that nothing is known of: by hash") \
	RESULT(FORGED, forged, XDP_DROP, "the check does not fit, and no table knows the connection") \
	RESULT(UNKNOWN, unknown, XDP_DROP, "a valid cookie with an id that no real has") \
	RESULT(CID, cid, XDP_TX, "a QUIC connection id that names a real") \
	RESULT(CID_NEW, cid_new, XDP_TX, "a QUIC packet that may open a connection: by the flow table, else a real was picked") \
	RESULT(CID_OTHER, cid_other, XDP_TX, "a QUIC connection id that no configuration made, or a datagram without one: by the flow table, else by hash") \
	RESULT(TIER, tier, XDP_TX, "a timestamp that names a second-tier balancer") \
	RESULT(TIER_OTHER, tier_other, XDP_TX, "a timestamp that names a second-tier balancer which is not there: where the SYN went, else by hash")

#define COOKIE_RESULTS_MAX 32

/* The same for the decapsulation program of a server. */
#define SERVER_VERDICTS(VERDICT) \
	VERDICT(DECAPSULATED, decapsulated, XDP_PASS, "the outer header was removed") \
	VERDICT(NOT_TUNNEL, not_tunnel, XDP_PASS, "neither IP in IP nor GUE") \
	VERDICT(NOT_OURS, not_ours, XDP_PASS, "a tunnel packet for another address") \
	VERDICT(OUTER_FRAGMENT, outer_fragment, XDP_PASS, "a fragmented tunnel packet, left to the kernel") \
	VERDICT(INNER_MALFORMED, inner_malformed, XDP_DROP, "the inner packet is truncated or of another version") \
	VERDICT(CONGESTED, congested, XDP_DROP, "marked CE on the way, and the inner packet cannot say so (RFC 6040)") \
	VERDICT(GUE_UNKNOWN, gue_unknown, XDP_PASS, "GUE that is control, carries no IP, or has flags: left to the kernel") \
	VERDICT(TUNNEL_REFUSED, tunnel_refused, XDP_DROP, "a tunnel packet to this server, from none of its balancers") \
	VERDICT(INNER_NOT_VIP, inner_not_vip, XDP_DROP, "the inner packet is for no VIP of this server") \
	VERDICT(INNER_SPOOFED, inner_spoofed, XDP_DROP, "the inner packet claims to come from this server") \
	VERDICT(PASSED_ON, passed_on, XDP_TX, "of a connection that this server does not know: to the former owner of its slot")

/*
 * What a server did with the timestamps of its VIPs' connections, by segment: the
 * cookie is written on the way out, the kernel's own value is restored in the echo on
 * the way in. Every segment goes on. Append only.
 */
#define SERVER_COOKIES(EVENT) \
	EVENT(STAMPED, stamped, XDP_PASS, "out: a cookie was written") \
	EVENT(SYN_ACK, syn_ack, XDP_PASS, "out: a cookie was written into a SYN-ACK") \
	EVENT(ANSWERED, answered, XDP_PASS, "out: a segment without a connection (TIME_WAIT): a cookie was written behind the last echo") \
	EVENT(BLANKED, blanked, XDP_PASS, "out: no echo has told the connection's clock yet: sent without its timestamp") \
	EVENT(PLAIN, plain, XDP_PASS, "out: no timestamp, as the client wants none") \
	EVENT(OUTGOING, outgoing, XDP_PASS, "out: of a connection that this server opened: left alone") \
	EVENT(OPENED, opened, XDP_PASS, "a connection was established: its clock begins") \
	EVENT(ADOPTED, adopted, XDP_PASS, "a connection older than the agent: its clock was learnt from an echo") \
	EVENT(RESTORED, restored, XDP_PASS, "in: the echo was turned back into the kernel's timestamp") \
	EVENT(RESTORED_OPENING, restored_opening, XDP_PASS, "in: the same, in the segment that completes a handshake") \
	EVENT(HIDDEN, hidden, XDP_PASS, "in: the echo was taken out (timestamp-light)") \
	EVENT(REMEMBERED, remembered, XDP_PASS, "in: an echo for no connection: kept for the answer") \
	EVENT(FOREIGN, foreign, XDP_PASS, "in: an echo that is no cookie of the connection: left as it is") \
	EVENT(RESTORED_QUICKLY, restored_quickly, XDP_PASS, "in: restored without a look at the socket") \
	EVENT(MSS_LOWERED, mss_lowered, XDP_PASS, "out: a SYN-ACK asks for shorter segments than the kernel would, for the tunnel's sake") \
	EVENT(ECHO_LOST, echo_lost, XDP_PASS, "in: an echo of a time that the clock does not know any more: taken out") \
	EVENT(FORWARDED, forwarded, XDP_PASS, "out: this server only forwards it, as from a container: left alone, as its echo could not be restored")

#define SERVER_COOKIES_MAX 32

/* The same for the meter, which lets every packet pass. */
#define METER_VERDICTS(VERDICT) \
	VERDICT(MEASURED, measured, XDP_PASS, "of a client's flow: measured") \
	VERDICT(SERVER_SIDE, server_side, XDP_PASS, "from a server: not measured") \
	VERDICT(OTHER_ETHERTYPE, other_ethertype, XDP_PASS, "neither IPv4 nor IPv6") \
	VERDICT(OTHER_PROTOCOL, other_protocol, XDP_PASS, "neither TCP nor UDP") \
	VERDICT(FRAGMENT, fragment, XDP_PASS, "an IP fragment") \
	VERDICT(MALFORMED, malformed, XDP_PASS, "headers truncated or inconsistent") \
	VERDICT(NO_ROOM, no_room, XDP_PASS, "the kernel had no memory for the flow")

#define ABI_LB_ENUM(name, word, action, meaning) V_##name,
enum verdict { LB_VERDICTS(ABI_LB_ENUM) V_COUNT };
#undef ABI_LB_ENUM

#define ABI_COOKIE_ENUM(name, word, action, meaning) CR_##name,
enum cookie_result { COOKIE_RESULTS(ABI_COOKIE_ENUM) CR_COUNT };
#undef ABI_COOKIE_ENUM
_Static_assert(CR_COUNT <= COOKIE_RESULTS_MAX, "COOKIE_RESULTS_MAX");

#define ABI_SERVER_ENUM(name, word, action, meaning) SV_##name,
enum server_verdict { SERVER_VERDICTS(ABI_SERVER_ENUM) SV_COUNT };
#undef ABI_SERVER_ENUM

#define ABI_SERVER_COOKIE_ENUM(name, word, action, meaning) SC_##name,
enum server_cookie { SERVER_COOKIES(ABI_SERVER_COOKIE_ENUM) SC_COUNT };
#undef ABI_SERVER_COOKIE_ENUM
_Static_assert(SC_COUNT <= SERVER_COOKIES_MAX, "SERVER_COOKIES_MAX");

/* Entries of a verdict map: not the count, or one more verdict refused takeover. */
#define VERDICTS_MAX 64
_Static_assert(V_COUNT <= VERDICTS_MAX && SV_COUNT <= VERDICTS_MAX, "VERDICTS_MAX");

#define ABI_METER_ENUM(name, word, action, meaning) MV_##name,
enum meter_verdict { METER_VERDICTS(ABI_METER_ENUM) MV_COUNT };
#undef ABI_METER_ENUM

/* Flow keys: the packet's own tuple, client to VIP. Ports are 0 where there are none. */
struct flow_key4 {
	u32 saddr_be;
	u32 daddr_be;
	u16 sport_be;
	u16 dport_be;
	u8 proto;
	u8 pad[3];
};
ABI_SIZE(struct flow_key4, 16);

struct flow_key6 {
	u32 saddr_be[4];
	u32 daddr_be[4];
	u16 sport_be;
	u16 dport_be;
	u8 proto;
	u8 pad[3];
};
ABI_SIZE(struct flow_key6, 40);

enum flow_bits {
	FLOW_OPENED = 1 << 0, /* its SYN was sent on: counted in conns_opened */
	FLOW_CLOSED = 1 << 1, /* FIN or RST from the client: counted in conns_closed if opened */
	FLOW_HAS_TOKEN = 1 << 2, /* its server was given `token` with the SYN */
	FLOW_ASKED = 1 << 3, /* the client has sent data since the cookie's clock moved */
	FLOW_ECHO_HELD = 1 << 4, /* and was answered, by which that did not move */
	FLOW_UNSAMPLED = 1 << 5, /* not measured, see struct sampling */
	FLOW_ADOPTED = 1 << 6, /* picked by a segment from its middle: the slot's former owner may have it */
};

/*
 * One connection, in three cache lines: what routing needs, and the estimator's
 * state in two of its own.
 */
struct flow {
	struct flow_key6 key; /* of IPv4: a struct flow_key4 in its place, then zeros */
	u32 real;     /* index into reals */
	u16 real_gen; /* the real's generation when it was picked */
	u16 vip;      /* index into vip_stats */
	u32 isn;      /* sequence number of the SYN */
	u8 bits;      /* enum flow_bits */
	u8 sampling;  /* k of its real when it was made, see struct sampling */
	u16 token;    /* what its timestamps end in, see struct conn_free_ring */
	u32 packets;  /* of a connection in its own slot, after the SYN */
	u32 echo_ms;  /* the server's clock in the newest cookie, see cookie_echo.h */
	struct wc_state chain; /* the estimator's */
};
ABI_SIZE(struct flow, 192);

/* Which flow of a full bucket is evicted: one of the lowest class. */
enum age_class {
	AGE_GONE = 0, /* the client has reset it, or user space found it silent for long */
	AGE_NEW = 1,  /* one packet so far */
	AGE_OLD = 2,  /* silent since all in its bucket were live; or half closed */
	AGE_LIVE = 3,
};
#define AGE_MASK 3u

/*
 * One cache line for 16 flows. A tag is a fingerprint of the flow's key, with bit 2
 * always set, and an enum age_class in the two lowest bits; 0 is an empty slot. The flow
 * of tag i in bucket b is number b * 16 + i of the flows.
 */
#define FLOW_WAYS 16
struct flow_bucket {
	u32 tag[FLOW_WAYS];
};
ABI_SIZE(struct flow_bucket, 64);

/*
 * Stateful mode: a connection's slot is told by the 15 low bits of its timestamps,
 * second-tier balancer first, and by its partition. Free slots of a partition lie in
 * one ring for each CPU: head is the CPU's, tail is user space's.
 */
#define CONN_TOKEN_BITS 15
#define CONN_TOKEN_MASK 0x7fffu
#define CONN_RING 1024
struct conn_free_ring {
	u32 head;  /* taken so far, modulo 2^32 */
	u32 empty; /* SYNs that found none */
	u32 pad[14];
	u32 tail;  /* put in so far, modulo 2^32 */
	u32 pad2[15];
	u16 index[CONN_RING];
};
ABI_SIZE(struct conn_free_ring, 128 + 2 * CONN_RING);

/* A connection with a token has opened or ended at its server. */
struct token_event {
	struct flow_key6 key; /* client to VIP; IPv4 as IPv4-mapped */
	u32 token;
	u32 opened; /* 0: it has ended */
};
ABI_SIZE(struct token_event, 48);

/*
 * How a server is told a connection's token: with its SYN, as private data of GUE
 * variant 0.
 */
enum gue_private_kind {
	GUE_CONN_TOKEN = 0x4357,
};

struct gue_private {
	u8 variant_hlen; /* 2 bits variant, 1 bit control, 5 bits words after this one */
	u8 proto;
	u16 flags_be;
	u16 kind_be; /* enum gue_private_kind */
	u16 token_be;
};
ABI_SIZE(struct gue_private, 8);

/*
 * VIPs are looked up by {address, port, protocol}, then with port 0 (all ports).
 * {address, port 0, protocol 0} says only that the address is a VIP's: it is what
 * makes echo requests answered and fragments dropped. User space keeps that entry
 * beside every VIP; its value's id is not used. {address, port 0, protocol,
 * VIP_OF_FRAGMENTS} is the VIP that takes the address's fragments, which have no
 * port; its value is that VIP's own.
 */
enum vip_key_kind {
	VIP_OF_PACKETS = 0,
	VIP_OF_FRAGMENTS = 1,
};

struct vip_key {
	u8 addr[16];
	u16 port_be;
	u8 proto;
	u8 kind; /* enum vip_key_kind */
};
ABI_SIZE(struct vip_key, 20);

/* Key of a server's own_addresses. */
struct address {
	u8 bytes[16];
};
ABI_SIZE(struct address, 16);

/* Value of own_addresses. */
enum address_uses {
	ADDRESS_TUNNEL_END = 1 << 0, /* tunnels are opened that end here */
	ADDRESS_VIP = 1 << 1,        /* and whose inner packet is for this one */
};

/* A network that tunnels are opened from. */
struct tunnel_source {
	u32 length; /* bits */
	u8 addr[16];
};
ABI_SIZE(struct tunnel_source, 20);

enum vip_flags {
	VIP_FORGET = 1 << 0,     /* no flow is remembered: every packet goes by the ring */
	VIP_COUNT_LOAD = 1 << 1, /* a new flow adds to its real's load */
	/* Picks by client address and protocol alone, so that fragments, which have no
	 * ports, meet the packets that were not fragmented. */
	VIP_PICK_BY_ADDRESS = 1 << 2,
	VIP_STATEFUL = 1 << 3, /* connections with timestamps get a slot of their own */
	VIP_SOURCES = 1 << 4,  /* some clients have reals of their own, see struct source_key */
	VIP_LIMITED = 1 << 5,  /* new flows of a client prefix are limited, see struct vip_limit */
	VIP_SECOND_CHANCE = 1 << 6, /* servers are told the former owner of a slot; for user space */
};

/* Which slot of its VIP's ring a new flow takes. All other packets go by PICK_HASH. */
enum vip_pick {
	PICK_HASH = 0, /* the one of its tuple's hash */
	PICK_TURN = 1, /* the next one: the ring is a sequence of turns */
	PICK_TWO = 2,  /* of two by chance, that of the real with less load for its weight */
};

/*
 * Which connections are measured: 1 in 2^k of a real's, by a keyed hash of the tuple. What
 * a k takes every lesser one takes, too. Of late: as long as most connections last.
 */
struct sampling {
	u8 opening; /* k for connections that open now; of a VIP not used */
	u8 least;   /* of late; what it does not take was measured at no time */
	u8 most;    /* of late; what it takes was measured whenever it opened */
};
ABI_SIZE(struct sampling, 3);

struct vip {
	u32 id;        /* index into rings, turns and vip_stats, below 65536 */
	u32 ring_size; /* entries of the VIP's ring; 0: no real */
	u32 flags;     /* enum vip_flags */
	u8 pick;       /* enum vip_pick */
	struct sampling sampling; /* over all its reals */
	u32 cookie_base; /* of cookie_slots: the slot of the VIP's id 0 */
	struct cookie_format cookie; /* mode 0: no cookies */
	u32 plain_size; /* entries of its ring of configured weights; 0: its own serves */
	u32 former_size; /* entries of its ring of former owners; 0: none */
};
ABI_SIZE(struct vip, 32);

/*
 * Client prefixes of a VIP that have reals of their own: the longest one wins. IPv4 as
 * IPv4-mapped. `length` counts the VIP's 32 bits, too.
 */
struct source_key {
	u32 length;
	u32 vip;
	u8 addr[16];
};
ABI_SIZE(struct source_key, 24);

/*
 * The reals of some prefixes. Their rings are those behind the VIPs' own: ring number
 * cfg_source_rings + the group's number (lb/admit.h).
 */
#define SOURCE_GROUPS 256
struct source_group {
	u32 ring_size; /* 0: none of the reals is there */
	u32 strict;    /* without reals: no real at all, instead of the VIP's ring */
	u32 plain_size; /* as a VIP's */
};
ABI_SIZE(struct source_group, 12);

/*
 * How many new flows a client prefix may have, by GCRA (ITU-T I.371): each takes
 * `interval` of a budget that fills with the time and holds `tolerance`.
 */
struct vip_limit {
	u32 interval;  /* microseconds of 1024 ns; 0: no limit */
	u32 tolerance;
	u8 prefix4;    /* bits of the client's address that count */
	u8 prefix6;
	u8 pad[6];
};
ABI_SIZE(struct vip_limit, 16);

/*
 * Recent client prefixes, eight to a cache line: 24 bits of a hash, and when the next
 * flow is due in 40 bits of time. 0: none.
 */
#define LIMIT_BUCKETS 8192
#define LIMIT_WAYS 8
struct limit_bucket {
	u64 entry[LIMIT_WAYS];
};
ABI_SIZE(struct limit_bucket, 64);

ABI_SIZE(struct cookie_format, 4);
ABI_SIZE(struct cookie_keys, 40);
ABI_SIZE(struct quic_lb_config, 200);

/* Entries of quic_configs for each VIP with cookies; the last one is never set. */
#define QUIC_CODEPOINTS 8

/* Packets of one VIP by enum cookie_result, per CPU. */
struct cookie_counts {
	u64 packets[COOKIE_RESULTS_MAX];
};
ABI_SIZE(struct cookie_counts, 256);

/*
 * Which real has an id. Each VIP with cookies has COOKIE_IDS slots from its
 * cookie_base on. An id that was taken away rests before another real gets it:
 * packets of its connections may still come.
 */
struct cookie_slot {
	u32 real;       /* index into reals, plus one; 0: no real has this id */
	u32 freed_up_s; /* when the id was taken away, CLOCK_MONOTONIC; 0: it never was */
	u8 addr[16];    /* of the real that has or had it; user space alone reads it */
};
ABI_SIZE(struct cookie_slot, 24);

/* What a server needs to know of a VIP: value of the agent's cookie_vips. */
struct server_vip {
	u32 id; /* the server's own, among those of the VIP */
	struct cookie_format cookie;
};
ABI_SIZE(struct server_vip, 8);

/*
 * Where the SYN of a tuple went, so that its retransmission goes there too, and a RST
 * or an ICMP error that has no cookie. Newer entries evict it, and nothing breaks
 * without it. Each half names the tuple, so that two CPUs which write one entry at a
 * time leave none that is wrong.
 */
struct syn_cache_entry {
	u64 syn;   /* high half of the tuple's hash, sequence number of the SYN */
	u64 where; /* low half of the tuple's hash, index into reals plus one */
};

#define SYN_CACHE_WAYS 4
struct syn_cache_bucket {
	struct syn_cache_entry entry[SYN_CACHE_WAYS];
};
ABI_SIZE(struct syn_cache_bucket, 64);

enum real_flags {
	REAL_PRESENT = 1 << 0, /* the slot is in use */
	REAL_L2 = 1 << 1,      /* forward by rewriting the MAC addresses */
	REAL_GUE = 1 << 2,     /* forward in UDP (GUE); with neither flag, IP in IP */
	REAL_DOWN = 1 << 3,    /* health finds it down while others serve: it keeps no SYN */
};

/*
 * A server. Forwarding is a property of the real, so that an established packet
 * needs no VIP. A removed real has no REAL_PRESENT; a slot used again has another
 * generation. A drained one just leaves the rings.
 */
struct real {
	u8 flags;  /* enum real_flags */
	u8 family; /* 4 or 6 */
	u16 gen;
	u8 mac[6]; /* destination MAC of l2 forwarding */
	u16 vip;   /* whose real it is; for user space alone */
	struct sampling sampling;
	u8 pad;
	u8 addr[16] __attribute__((aligned(4))); /* read by words */
};
ABI_SIZE(struct real, 32);

/* The mark of a health probe's packets: these bits, and the id of the real it tests. */
#define PROBE_MARK 0xca500000u
#define PROBE_REAL_MASK 0x000fffffu

#define GUE_PORT 6080 /* IANA's, draft-ietf-intarea-gue-09 */

/*
 * Whether the outer UDP checksum is filled in, by the outer family; 0 on the wire
 * says that it is not (RFC 768; for IPv6 tunnels RFC 6935).
 */
enum gue_checksum {
	GUE_CHECKSUM_4 = 1 << 0,
	GUE_CHECKSUM_6 = 1 << 1,
};

/*
 * How busy a real is, in units of its VIP's choice. User space sets it, and the
 * data plane corrects it meanwhile: else all new flows of an interval would go to
 * the real that was idle at its start.
 */
struct real_load {
	s64 load;   /* may fall below 0 for a moment: a flow from before may end */
	u32 rise;   /* added by a new flow */
	u32 fall;   /* taken off by a flow's end */
	u32 weight; /* relative capacity; 0 counts as 1 */
	u32 pad[3];
};
ABI_SIZE(struct real_load, 32);

/* Turns taken in a VIP's ring; a cache line of its own. */
struct turns {
	u64 taken;
	u64 pad[7];
};
ABI_SIZE(struct turns, 64);

/*
 * Of which protocols VIPs have cookies, or no flows in the table: their packets have the VIP
 * looked up first, others the flow.
 */
enum ctl_vip_first {
	VIP_FIRST_TCP = 1 << 0,
	VIP_FIRST_UDP = 1 << 1,
};

/*
 * Where encapsulated packets go and what they carry. The bits of an entropy mask
 * are filled from the flow's hash, so that routers and NIC queues spread the
 * tunnels; 0 keeps the source address as it is.
 */
struct ctl {
	u8 gateway_mac[6];   /* of outer IPv4; all zero: not known, such packets are dropped */
	u16 mtu;             /* longest IP packet the link carries, bytes; 0: 1500 */
	u32 outer4_be;       /* source of outer IPv4 headers; 0: not known */
	u32 outer4_entropy_be;
	u32 outer6_be[4];    /* source of outer IPv6 headers; all zero: not known */
	u32 outer6_entropy_be; /* mask within the last 32 bits */
	u16 gue_port_be;     /* UDP port of the reals' tunnel ends; 0: 6080 */
	u8 gue_checksum;     /* enum gue_checksum */
	u8 vip_first;        /* enum ctl_vip_first */
	u64 hash_key[2];     /* SipHash key of the pick; balancers that share VIPs share it */
	u64 table_seed;      /* of this balancer's flow table alone */
	/* Sources of IP-in-IP headers whose last 16 bits are a connection's token: with
	 * SYNs of stateful VIPs. 0: not known, and such a SYN carries none. */
	u32 token4_be;
	u32 token6_be[4];
	u32 vips_version; /* another one after each change of vips, see struct vip_seen */
	/* Own addresses where tunnels of a first tier end; 0: none of the family. */
	u32 tunnel4_be;
	u32 tunnel6_be[4];
	u8 gateway6_mac[6]; /* of outer IPv6; all zero: gateway_mac */
	u8 own_mac[6];      /* of the interface, source of all frames */
	u8 pass_unserved;   /* what is for a VIP's address and no VIP goes to the kernel */
	u8 pad3[7];
};
ABI_SIZE(struct ctl, 128);

/*
 * A VIP that a CPU has looked up, in one cache line: a lookup in a hash map costs 30 ns.
 * Valid as long as its stamp is that of the VIPs' version.
 */
#define VIPS_SEEN 256
struct vip_seen {
	u64 tuple[3]; /* family, protocol, port, address; 0: none */
	u32 stamp;    /* vips_version + 1 when it was looked up */
	u32 fills;
	struct vip vip;
};
ABI_SIZE(struct vip_seen, 64);

struct packets_bytes {
	u64 packets;
	u64 bytes; /* of whole frames, as received */
};
ABI_SIZE(struct packets_bytes, 16);

/*
 * Sums of latencies. What a response takes is the path's round trip and what the server
 * adds; they are told apart where the flow's handshake was seen.
 */
struct latency_sums {
	u64 sum_halves_ns; /* as in struct est_sample: the mean latency is */
	u64 weight_halves; /* sum_halves_ns / weight_halves */
	u64 server_sum_halves_ns; /* of samples with a known path: what the server added */
	u64 path_sum_halves_ns;   /* and the path; both sums add up to those samples' */
	u64 path_weight_halves;   /* weight of these samples */
};
ABI_SIZE(struct latency_sums, 40);

/*
 * Per real and CPU, three cache lines, of which the last is for flows whose latencies are
 * all off alike: those samples are graded low, and a controller weighs them apart. Other
 * upper bounds are in no sum.
 */
struct real_stats {
	u64 packets;
	u64 bytes;
	u64 conns_opened;   /* SYNs that picked this real */
	u64 conns_closed;   /* flows with a FIN or RST from the client; at most one each */
	u64 conns_measured; /* of conns_opened */
	u64 requests; /* data packets that start a burst or follow a short one; an estimate */
	u64 requests_seen; /* those that the estimate of requests rests on, of measured connections */
	u64 bound_weight_halves; /* weight of groups with upper bounds of latencies among them */
	struct latency_sums good;
	u64 late_weight_halves; /* of good, low and bounds: what was over long before it was known */
	u64 answers_acked; /* answers that the client acknowledged before it asked again */
	u64 pad[1];
	struct latency_sums low;
	u64 pad2[3];
};
ABI_SIZE(struct real_stats, 192);

/* Where a program takes the time from. */
enum clock_source {
	CLOCK_KTIME = 0,    /* bpf_ktime_get_ns */
	CLOCK_METADATA = 1, /* a u64 in the XDP metadata; replay and tests */
};

/* Which estimator the meter runs. */
enum meter_method {
	METER_WINDOW_CHAIN = 0,
	METER_FIXED_GAP = 1,
	METER_MODES = 2,
	METER_NONE = 3,
};

/* Head of the meter's flows; the estimator's state follows. */
struct meter_sums {
	u64 packets;
	u64 epoch;   /* the one that the sums are of: time / length of an epoch */
	u64 sum_halves_ns; /* this and the next two as in struct est_sample */
	u64 weight_halves;
	u32 bound_halves;
	u8 window;   /* the largest one */
	u8 narrow;   /* 1: there are narrow bounds besides (EST_NARROW) */
	u8 pad[2];
};
ABI_SIZE(struct meter_sums, 40);

/*
 * The latencies of one flow in one epoch, or a part of them: a record goes out
 * when a latency of another epoch comes in. Records of the same flow and epoch
 * add up.
 */
struct meter_record {
	struct flow_key6 key; /* IPv4 as IPv4-mapped */
	u64 epoch;
	u64 sum_halves_ns;
	u64 weight_halves;
	u32 bound_halves;
	u8 window;
	u8 slot; /* which of the meter's estimators, in their order */
	u8 narrow;
	u8 pad;
};
ABI_SIZE(struct meter_record, 72);

/* A server, for the meter's histograms. */
struct meter_server {
	u32 addr_be[4]; /* IPv4 as IPv4-mapped */
	u16 port_be;
	u8 proto;
	u8 slot; /* as in struct meter_record */
};
ABI_SIZE(struct meter_server, 20);

enum rtt_bits {
	RTT_OUTGOING = 1 << 0,	/* from the interface's host to the other end */
	RTT_SAMPLED = 1 << 1,	/* chosen by the 1-in-N sampling */
	RTT_TIMESTAMP = 1 << 2, /* tsval and tsecr are valid */
};

/* One TCP packet that the sampler of `causeway rtt` took. */
struct rtt_record {
	u64 t_ns; /* the kernel's monotonic clock */
	u8 local[16];
	u8 remote[16];
	u16 local_port_be;
	u16 remote_port_be;
	u32 seq;
	u32 ack;
	u32 tsval;
	u32 tsecr;
	u32 ip_len;
	u32 payload_len;
	u8 tcp_flags;
	u8 bits; /* enum rtt_bits */
	u8 pad[2];
};
ABI_SIZE(struct rtt_record, 72);

/* Most bytes of a frame that a mirror copies, before and after each. */
#define MIRROR_SNAP_MAX 2048
#define MIRROR_NO_VIP 0xffffffffu
#define MIRROR_NO_RESULT 0xffu
/* Rates are kept in pieces of 67 ms. */
#define MIRROR_WINDOW_SHIFT 26

enum mirror_flags {
	MIRROR_BY_VIP = 1 << 0,
	MIRROR_BY_CLIENT = 1 << 1,
};

/* Whether the mirror is on, and for which packets; see mirror.h. */
struct mirror_ctl {
	u64 until_ns;       /* of the kernel's monotonic clock; 0: off */
	u64 verdicts;       /* bit mask of those that are wanted */
	u32 owner;          /* process that reads */
	u32 snap;           /* bytes of a frame that are copied */
	u32 threshold;      /* a random number up to this samples a packet */
	u32 exported_max;   /* packets exported in a window, by all CPUs */
	u32 sampled_max;    /* packets sampled in a window, by each CPU */
	u32 vip_be[4];      /* IPv4 as IPv4-mapped */
	u32 client_be[4];
	u32 client_mask_be[4];
	u16 vip_port_be;    /* 0: any */
	u8 vip_proto;       /* 0: any */
	u8 flags;           /* enum mirror_flags */
};
ABI_SIZE(struct mirror_ctl, 88);

/* A packet that went through a mirrored program; the frame before and after follow. */
struct mirror_record {
	u64 t_ns; /* the kernel's monotonic clock, as it came */
	u32 before_len;
	u32 after_len; /* 0: neither sent nor changed in length */
	u32 vip;       /* its id, or MIRROR_NO_VIP */
	u16 before_snap;
	u16 after_snap;
	u8 verdict; /* of the mirrored program */
	u8 result;  /* enum cookie_result, or MIRROR_NO_RESULT */
	u8 pad[6];
};
ABI_SIZE(struct mirror_record, 32);

/* What a mirror did with packets since its program was loaded first, per CPU. */
struct mirror_counts {
	u64 seen;
	u64 matched;   /* of those, wanted by address */
	u64 skipped;   /* of those, not sampled: too many a second on this CPU */
	u64 over_rate; /* sampled, but more than may be exported in a second */
	u64 lost;      /* the ring was full: user space did not read in time */
	u64 exported;
};
ABI_SIZE(struct mirror_counts, 48);

#endif
