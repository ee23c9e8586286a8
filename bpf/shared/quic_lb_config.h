/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* How QUIC connection ids carry a server's id: see quic_lb.h. */
#ifndef CAUSEWAY_QUIC_LB_CONFIG_H
#define CAUSEWAY_QUIC_LB_CONFIG_H

#include "types.h"

#define QUIC_LB_CONFIGS 7          /* 0b111 says: no configuration */
#define QUIC_LB_BLOCK_MIN 5
#define QUIC_LB_BLOCK_MAX 19
#define QUIC_LB_SIPHASH_MAX 12     /* a half, its length and the pass fill one word */
#define QUIC_LB_SERVER_ID_MAX 4
#define QUIC_LB_AES_ONE_BLOCK 16
#define QUIC_LB_AES_WORDS 44

enum quic_lb_algorithm {
	QUIC_LB_NONE = 0, /* this codepoint has no configuration */
	QUIC_LB_PLAIN = 1,
	QUIC_LB_SIPHASH = 2,
	QUIC_LB_AES = 3,
};

/* One configuration of a VIP. The AES keys are expanded by user space. */
struct quic_lb_config {
	u8 algorithm; /* enum quic_lb_algorithm */
	u8 server_id_len;
	u8 nonce_len;
	u8 pad[5];
	u64 siphash_key[2];
	u32 aes_rounds[QUIC_LB_AES_WORDS]; /* for QUIC_LB_AES_ONE_BLOCK those of decryption */
};

#endif
