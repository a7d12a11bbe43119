/*===-- package_kernels.c - the code of a compiled package ----------------===*\
 *
 * A shared object as a package brings it along, written by hand and in C.
 *
\*===----------------------------------------------------------------------===*/

#include "runtime/KernelAbi.h"

/* w = w - rate * g. Buffers: w, g, then w. */
void kaon_test_descend(const KaonBuffer *buffers, const double *scalars,
                       const int64_t *sizes, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const float *w = (const float *)buffers[0].data + i * buffers[0].row_stride;
    const float *g = (const float *)buffers[1].data + i * buffers[1].row_stride;
    float *result = (float *)buffers[2].data + i * buffers[2].row_stride;
    for (int64_t j = 0; j < sizes[1]; ++j) {
      result[j] = w[j] - (float)scalars[0] * g[j];
    }
  }
}
