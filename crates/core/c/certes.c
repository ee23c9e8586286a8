// SPDX-License-Identifier: Apache-2.0
// What src/certes calls of bpf/shared/syn_track.h.

#include "syn_track.h"

void causeway_syn_track(struct syn_conn *c, u32 event, u32 seq, u64 now_ns, struct syn_outcome *out)
{
	syn_track(c, event, seq, now_ns, out);
}
