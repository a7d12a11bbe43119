//===-- TestPlans.cpp - plans and kernels made by hand --------------------===//
//
// Builds the plans of TestPlans.h.
//
//===----------------------------------------------------------------------===//

#include "TestPlans.h"

#include <algorithm>
#include <atomic>
#include <cmath>

using namespace kaon::runtime;
using namespace kaon::runtime::test;

namespace {

std::atomic<int64_t> numCalls{0};
std::atomic<int64_t> mostColumns{0};

void count(const int64_t *sizes) {
  numCalls.fetch_add(1, std::memory_order_relaxed);
  int64_t seen = mostColumns.load(std::memory_order_relaxed);
  while (seen < sizes[1] &&
         !mostColumns.compare_exchange_weak(seen, sizes[1])) {
    continue;
  }
}

float *row(const KaonBuffer &buffer, int64_t index) {
  return static_cast<float *>(buffer.data) + index * buffer.row_stride;
}

// Buffers: w, g, m, then w, m. Scalars: rate, mu.
void momentumKernel(const KaonBuffer *buffers, const double *scalars,
                    const int64_t *sizes, int64_t begin, int64_t end) {
  count(sizes);
  auto rate = static_cast<float>(scalars[0]),
       mu = static_cast<float>(scalars[1]);
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t j = 0; j < sizes[1]; ++j) {
      float m = mu * row(buffers[2], i)[j] + row(buffers[1], i)[j];
      row(buffers[4], i)[j] = m;
      row(buffers[3], i)[j] = row(buffers[0], i)[j] - rate * m;
    }
  }
}

// Buffers: source, then result.
void transposeKernel(const KaonBuffer *buffers, const double *,
                     const int64_t *sizes, int64_t begin, int64_t end) {
  count(sizes);
  for (int64_t i = begin * KAON_TRANSPOSE_BLOCK;
       i < std::min(end * KAON_TRANSPOSE_BLOCK, sizes[0]); ++i) {
    for (int64_t j = 0; j < sizes[1]; ++j) {
      row(buffers[1], j)[i] = row(buffers[0], i)[j];
    }
  }
}

// Buffers: w, u, then w. Scalar: rate.
void subtractKernel(const KaonBuffer *buffers, const double *scalars,
                    const int64_t *sizes, int64_t begin, int64_t end) {
  count(sizes);
  auto rate = static_cast<float>(scalars[0]);
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t j = 0; j < sizes[1]; ++j) {
      row(buffers[2], i)[j] =
          row(buffers[0], i)[j] - rate * row(buffers[1], i)[j];
    }
  }
}

// Buffers: w, g, then w. Scalar: rate.
void rowKernel(const KaonBuffer *buffers, const double *scalars,
               const int64_t *sizes, int64_t begin, int64_t end) {
  count(sizes);
  auto rate = static_cast<float>(scalars[0]);
  for (int64_t i = begin; i < end; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < sizes[1]; ++j) {
      sum += std::fabs(row(buffers[1], i)[j]);
    }
    for (int64_t j = 0; j < sizes[1]; ++j) {
      row(buffers[2], i)[j] =
          row(buffers[0], i)[j] - rate * row(buffers[1], i)[j] / sum;
    }
  }
}

} // namespace

Operand kaon::runtime::test::operand(BufferKind kind, int64_t rows,
                                     int64_t cols, int32_t index,
                                     int64_t offset) {
  Operand result;
  result.kind = kind;
  result.rows = rows;
  result.cols = cols;
  result.index = index;
  result.offset = offset;
  result.pitch = kind == BufferKind::Workspace ? cols : 0;
  return result;
}

void kaon::runtime::test::signKernels(StepPlan &plan) {
  for (const Sequence &sequence : plan.sequences) {
    for (const Launch &launch : sequence.launches) {
      Signature &signature = plan.kernels[launch.kernel].signature;
      if (signature.types.empty()) {
        signature = Signature::of(launch);
      }
    }
  }
}

StepPlan MomentumPlan::base() {
  StepPlan plan;
  plan.scalarSets = {{{"lr", "mu"}}};
  plan.kernels = {{"momentum", Schedule::Elementwise}};
  plan.phases.resize(1);
  return plan;
}

MomentumPlan &MomentumPlan::add(std::string name, int64_t rows, int64_t cols,
                                int32_t scalarSet) {
  while (plan.scalarSets.size() <= static_cast<size_t>(scalarSet)) {
    plan.scalarSets.push_back({{"lr", "mu"}});
  }
  auto index = static_cast<int32_t>(plan.parameters.size());
  plan.parameters.push_back({std::move(name),
                             rows,
                             cols,
                             ElementType::F32,
                             ElementType::F32,
                             {{"m", rows, cols, ElementType::F32}},
                             scalarSet});

  std::string sequenceName = concat("momentum_", rows, "x", cols);
  for (BucketGroup &group : plan.phases[0]) {
    Bucket &bucket = group.buckets[0];
    if (plan.sequences[bucket.sequence].name == sequenceName) {
      bucket.members.push_back(index);
      ++bucket.concurrent;
      return *this;
    }
  }
  Sequence &sequence = plan.sequences.emplace_back();
  sequence.name = sequenceName;
  ScalarProgram &program = sequence.program;
  int32_t lr = program.argument(0), step = program.step();
  int32_t rate = program.operation(ScalarOpcode::Div, lr, step);
  Launch &launch = sequence.launches.emplace_back();
  launch.operands = {operand(BufferKind::Param, rows, cols),
                     operand(BufferKind::Grad, rows, cols),
                     operand(BufferKind::State, rows, cols),
                     operand(BufferKind::Param, rows, cols),
                     operand(BufferKind::State, rows, cols)};
  launch.numInputs = 3;
  launch.scalars = {rate, program.argument(1)};
  launch.sizes = {rows, cols};
  launch.items = rows;
  launch.grain = 1;
  launch.flops = 4 * rows * cols;
  launch.bytes = 20 * rows * cols;
  signKernels(plan);
  plan.phases[0].push_back(plan.alone(
      {static_cast<int32_t>(plan.sequences.size()) - 1, {index}, 1}));
  return *this;
}

StepPlan kaon::runtime::test::periodicPlan(int64_t rows, int64_t cols,
                                           int32_t numParameters,
                                           int32_t concurrent) {
  StepPlan plan;
  plan.scalarSets = {{{"rate"}}};
  plan.kernels = {{"transpose", Schedule::Transpose},
                  {"subtract", Schedule::Rows},
                  {"row", Schedule::Rows}};
  Bucket bucket;
  bucket.concurrent = concurrent;
  for (int32_t i = 0; i < numParameters; ++i) {
    plan.parameters.push_back({concat("w", i),
                               rows,
                               cols,
                               ElementType::F32,
                               ElementType::F32,
                               {},
                               0});
    bucket.members.push_back(i);
  }
  Operand w = operand(BufferKind::Param, rows, cols),
          g = operand(BufferKind::Grad, rows, cols);
  int64_t bytes = (rows * cols * 4 + 63) / 64 * 64;

  Sequence even, odd;
  even.name = "row_step";
  odd.name = "refresh_step";
  even.launches = {{2,
                    {w, g, w},
                    2,
                    {even.program.argument(0)},
                    {rows, cols},
                    rows,
                    2,
                    4 * rows * cols,
                    12 * rows * cols}};
  Operand forth = operand(BufferKind::Workspace, cols, rows, 0, 0);
  Operand back = operand(BufferKind::Workspace, rows, cols, 0, bytes);
  int64_t sourceBlocks = (rows + 31) / 32, resultBlocks = (cols + 31) / 32;
  odd.launches = {
      {0, {g, forth}, 1, {}, {rows, cols}, sourceBlocks, 1, 0, 8 * rows * cols},
      {0,
       {forth, back},
       1,
       {},
       {cols, rows},
       resultBlocks,
       1,
       0,
       8 * rows * cols},
      {1,
       {w, back, w},
       2,
       {odd.program.argument(0)},
       {rows, cols},
       rows,
       3,
       2 * rows * cols,
       12 * rows * cols}};
  odd.workspaceBytes = 2 * bytes;
  plan.sequences = {even, odd};
  bucket.sequence = 0;
  plan.phases.push_back({plan.alone(bucket)});
  bucket.sequence = 1;
  plan.phases.push_back({plan.alone(bucket)});
  plan.workspaceBytes = 2 * bytes * concurrent;
  signKernels(plan);
  return plan;
}

KernelTable kaon::runtime::test::testKernels() {
  KernelTable table;
  table.add("momentum", momentumKernel);
  table.add("transpose", transposeKernel);
  table.add("subtract", subtractKernel);
  table.add("row", rowKernel);
  return table;
}

CallCounter kaon::runtime::test::readCallCounter() {
  return {numCalls.load(), mostColumns.load()};
}

void kaon::runtime::test::resetCallCounter() {
  numCalls = 0;
  mostColumns = 0;
}

Model::Model(const StepPlan &plan, int64_t padding) {
  auto add = [&](int64_t rows, int64_t cols) {
    int64_t stride = cols + padding;
    std::vector<float> &values =
        memory.emplace_back(static_cast<size_t>(rows * stride));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] =
          static_cast<float>((i * 37 + memory.size() * 11) % 101) / 50.0f -
          1.0f;
    }
    buffers.push_back({values.data(), stride});
  };
  for (const ParameterPlan &parameter : plan.parameters) {
    add(parameter.rows, parameter.cols);
    add(parameter.rows, parameter.cols);
    for (const StatePlan &state : parameter.states) {
      add(state.rows, state.cols);
    }
  }
}
