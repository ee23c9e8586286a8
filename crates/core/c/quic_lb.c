// SPDX-License-Identifier: Apache-2.0
// What src/cookie/quic.rs calls of bpf/shared/quic_lb.h and aes128.h.

#include "quic_lb.h"

void causeway_aes128_expand(const u8 *key, u32 *keys, u32 inverse)
{
	if (inverse)
		aes128_expand_inverse(key, keys);
	else
		aes128_expand(key, keys);
}

u32 causeway_quic_lb_server(const struct quic_lb_config *config, const u64 *words)
{
	struct quic_lb_block block = { words[0], words[1], (u32)words[2] };

	return quic_lb_server(config, &block);
}
