// SPDX-License-Identifier: Apache-2.0
// The program that is compiled: device.cuh holds all that is specific to a GPU, the others build on it in this order.
#include "params.h"
#include "device.cuh"
#include "variant.cuh"
#include "numeric.cuh"
#include "copy.cuh"
#include "attend.cuh"
#include "output.cuh"
#include "merge.cuh"
#include "decode.cuh"
