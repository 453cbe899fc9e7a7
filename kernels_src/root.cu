// SPDX-License-Identifier: Apache-2.0
// The program that is compiled: device.cuh holds all that is specific to a GPU, the others build on it in this order.
// SMLA_PROGRAM says which program: src/program.h.
#include "params.h"
#include "device.cuh"
#if SMLA_PROGRAM == 0
#include "variant.cuh"
#include "numeric.cuh"
#include "copy.cuh"
#include "attend.cuh"
#include "output.cuh"
#include "merge.cuh"
#include "decode.cuh"
#else
#include "tools_params.h"
#include "numeric.cuh"
#if SMLA_PROGRAM == 1
#include "tool_merge.cuh"
#elif SMLA_PROGRAM == 2
#include "tool_slots.cuh"
#elif SMLA_PROGRAM == 3
#include "tool_append.cuh"
#endif
#endif
