/* SPDX-License-Identifier: Apache-2.0 */
/* Call + plan + workspace -> kernel parameters. Pure.
 *
 * Workspace: [0, SMLA_COUNTER_BYTES) counters, zero between launches; then, in floats, the partial outputs
 * [token * head_blocks + block][split][head of block][value_dim]; then their lse [..][split][head of block]. */
#ifndef SMLA_LAUNCH_H
#define SMLA_LAUNCH_H

#include "plan.h"

#include "params.h"

#define SMLA_WORKSPACE_ALIGNMENT 256

/* WORKSPACE_TOO_SMALL or INVALID_ARGUMENT when the plan needs a workspace that the call does not bring. */
sparse_mla_status smla_launch_check(const struct smla_call *call, const struct smla_plan *plan);

void smla_launch_params(struct smla_params *params, const struct smla_call *call, const struct smla_plan *plan);

#endif
