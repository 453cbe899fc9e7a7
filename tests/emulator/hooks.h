/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels compiled for the emulator call. Included by device.cuh (in the kernel's shared object) and by the
 * emulator, which exports them. The caller is the current thread of the emulated GPU. */
#ifndef EMULATOR_HOOKS_H
#define EMULATOR_HOOKS_H

typedef unsigned emu_words __attribute__((vector_size(16))); /* by value: in registers, so that no local's address */
typedef float emu_floats __attribute__((vector_size(16)));   /* escapes and plain locals stay uninstrumented */

/* What SMLA_KERNEL leaves beside its function, NAME_entry, as NAME_kernel. */
struct emu_kernel {
    int threads, blocks_per_sm, profile, params_bytes;
};

extern "C" {
int emu_thread_index(void);
int emu_block_x(void);
int emu_block_y(void);
unsigned char *emu_shared_buffer(void);
unsigned emu_shared_address(const void *pointer);

void emu_wait_for_earlier_kernels(void);

void emu_sync_block(void);
void emu_sync_warp(void);
void emu_sync_named(int id, int threads);
unsigned emu_ballot(int predicate);
unsigned long long emu_shuffle(unsigned long long value, int source_lane);
int emu_elect(void);

void emu_mbarrier_init(void *barrier, int expected);
void emu_mbarrier_arrive(void *barrier, int expected_bytes);
void emu_mbarrier_wait(void *barrier, unsigned parity);
void emu_mbarrier_arrive_copies(void *barrier);
void emu_copy(void *shared, const void *global, int bytes, int there); /* cp.async; zeros unless `there` */
void emu_bulk_copy(void *shared, const void *global, int bytes, void *barrier);
void emu_fence_bulk_copies(void);

void emu_sync_cluster(int orders_memory);
unsigned emu_cluster_address(const void *own, int block);
emu_words emu_load_cluster(unsigned address, int bytes);

emu_words emu_ldmatrix(unsigned address, int transposed);
unsigned emu_movmatrix(unsigned word);
emu_floats emu_mma(emu_floats c, emu_words a, unsigned b0, unsigned b1, int bf16);

void emu_constant_load(const void *pointer, int bytes); /* checks; the load itself is the caller's */
unsigned emu_atomic_add(unsigned *counter, unsigned value, int orders_memory);
}

#endif
