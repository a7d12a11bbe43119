/*===-- FakeCuda.h - controls of the imitated CUDA driver -------*- C -*-===*\
 *
 * libkaon_fake_cuda.so answers cuGetProcAddress_v2 as libcuda.so.1 does, with
 * the functions that Kaon's runtime uses. Device memory is host memory, streams
 * are threads with queues, and kernels are run by the shim (test/cuda/shim).
 * It is stricter than a driver: what a GPU would let pass, or punish much
 * later, is a fault here, with a text that says what was wrong.
 *
 * Results of tests that used it show nothing about a GPU. It says that it is a
 * fake by the name of its device and by the symbol kaon_fake_cuda_marker.
 *
\*===----------------------------------------------------------------------===*/

#ifndef KAON_TEST_CUDA_FAKE_FAKECUDA_H
#define KAON_TEST_CUDA_FAKE_FAKECUDA_H

#include <stddef.h>
#include <stdint.h>

#define KAON_FAKE_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

KAON_FAKE_EXPORT extern const int kaon_fake_cuda_marker;

/* Where the code of kernels is: <directory>/<kernel>.so, as
 * test/cuda/shim/KernelLibrary.h describes. */
KAON_FAKE_EXPORT void kaon_fake_cuda_set_kernel_directory(const char *path);

/* What the devices are from now on: their number and compute capability. */
KAON_FAKE_EXPORT void kaon_fake_cuda_set_devices(int count, int major,
                                                 int minor);

/* The version that the driver says it has, 13000 at first. */
KAON_FAKE_EXPORT void kaon_fake_cuda_set_version(int version);

/* Before each piece of work a stream waits for a random time of up to
 * `microseconds`, 0 at first. The seed also decides in which order the threads
 * of kernels run; 0 is the plain order. */
KAON_FAKE_EXPORT void kaon_fake_cuda_set_delays(uint32_t seed,
                                                uint32_t microseconds);

/* Lets the call number `call` (1: the next one) of a function return `code`
 * instead of doing anything. Code 0 takes that back. */
KAON_FAKE_EXPORT void kaon_fake_cuda_fail(const char *function, int code,
                                          int call);

/* Lets the driver have no such function, or have it again. */
KAON_FAKE_EXPORT void kaon_fake_cuda_hide(const char *function, int hidden);

/* How often a function was called since the last reset. */
KAON_FAKE_EXPORT int64_t kaon_fake_cuda_calls(const char *function);
KAON_FAKE_EXPORT void kaon_fake_cuda_reset_calls(void);

/* Notes kernels that are launched one by one, from none on, or stops it. */
KAON_FAKE_EXPORT void kaon_fake_cuda_record_launches(int on);
/* Length of the notes, and the notes, cut off at `bytes`: a line with the name
 * of the kernel, its blocks and the bytes of its first argument in hexadecimal
 * digits for each launch, in order. */
KAON_FAKE_EXPORT int64_t kaon_fake_cuda_launches(char *text, size_t bytes);

/* Number of faults since the last call; the text of all of them, cut off at
 * `bytes`. Waits for all streams. The device works again afterwards. */
KAON_FAKE_EXPORT int64_t kaon_fake_cuda_take_faults(char *text, size_t bytes);

/* Bytes of device memory and page-locked memory that are allocated now. */
KAON_FAKE_EXPORT int64_t kaon_fake_cuda_allocated_bytes(void);

/* A stream of the current device, as the program around Kaon would make one. */
KAON_FAKE_EXPORT void *kaon_fake_cuda_stream_create(void);
KAON_FAKE_EXPORT void kaon_fake_cuda_stream_destroy(void *stream);
KAON_FAKE_EXPORT void kaon_fake_cuda_stream_set_capturing(void *stream,
                                                          int capturing);
/* A stream that does nothing more until it is let go. */
KAON_FAKE_EXPORT void kaon_fake_cuda_stream_block(void *stream);
KAON_FAKE_EXPORT void kaon_fake_cuda_stream_unblock(void *stream);

/* Device memory, as the program around Kaon would have: 256-byte aligned, NaN
 * at first, between guards. */
KAON_FAKE_EXPORT void *kaon_fake_cuda_memory_create(size_t bytes);
KAON_FAKE_EXPORT void kaon_fake_cuda_memory_destroy(void *memory);

#ifdef __cplusplus
}
#endif

#endif /* KAON_TEST_CUDA_FAKE_FAKECUDA_H */
