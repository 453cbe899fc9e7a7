/* SPDX-License-Identifier: Apache-2.0 */
/* Embedded sources + program + target -> cubin. */
#ifndef SMLA_COMPILE_H
#define SMLA_COMPILE_H

#include "entry.h"
#include "nvrtc.h"

/* Without the target and without options that leave the cubin as it is. */
void smla_compile_options(struct smla_options_list *options, const struct smla_program *program);

/* Compiles for sm_`target`. NVRTC's output goes to the log. COMPILE_FAILED, OUT_OF_MEMORY. */
sparse_mla_status smla_compile(const struct smla_nvrtc *nvrtc, const struct smla_log *log,
                               const struct smla_program *program, int target, struct smla_cubin *cubin);

#endif
