//===-- StepPlan.h - what a step executes, as data --------------*- C++ -*-===//
//
// A StepPlan is the whole interface between the compiler and the runtime: for
// every phase of the period, which kernels run on which matrices and where
// their operands lie. It is plain data: versioned, validated, printable, and
// the same after a trip through JSON. docs/runtime.md describes the schema.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_STEPPLAN_H
#define KAON_RUNTIME_STEPPLAN_H

#include "runtime/ScalarProgram.h"
#include "runtime/Status.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kaon::runtime {

enum class ElementType : uint8_t { F16, BF16, F32, F64 };

/// What the kernels of a plan run on.
enum class Target : uint8_t { Cpu, Cuda };

/// How a kernel divides a matrix into work items; see KernelAbi.h and, for
/// CUDA, Launch.
enum class Schedule : uint8_t {
  Elementwise,
  Rows,
  Columns,
  Transpose,
  Pack,
  Matmul
};

/// What an operand of a launch is a piece of.
enum class BufferKind : uint8_t { Param, Grad, State, Workspace };

std::string_view stringify(ElementType type);
std::string_view stringify(Target target);
std::string_view stringify(Schedule schedule);
std::string_view stringify(BufferKind kind);
std::optional<ElementType> parseElementType(std::string_view keyword);
std::optional<Target> parseTarget(std::string_view keyword);
std::optional<Schedule> parseSchedule(std::string_view keyword);
std::optional<BufferKind> parseBufferKind(std::string_view keyword);

/// Size of one element in bytes.
int64_t byteSize(ElementType type);

/// Alignment, in bytes, of every workspace buffer.
int64_t bufferAlignment(Target target);

/// Distances between rows of a workspace matrix are multiples of this many
/// elements: on CUDA, rows of 16-bit elements start at multiples of 16 bytes,
/// since products copy them in such pieces.
int64_t pitchUnit(Target target, ElementType type);

/// Rows and columns of the piece of a product that one block computes on CUDA.
inline constexpr int64_t cudaTileSize = 128;

/// Elements that one block of an elementwise kernel handles on CUDA.
inline constexpr int64_t cudaElementwiseGrain = 8192;

/// Rows of one block of a kernel over rows on CUDA, at most.
inline constexpr int64_t cudaMaxRowGrain = 32;

/// Columns of one block of a kernel over columns on CUDA.
inline constexpr int64_t cudaColumnGrain = 32;

/// Rows and columns of the source that one block of a transpose handles on
/// CUDA.
inline constexpr int64_t cudaTransposeRows = 32, cudaTransposeColumns = 128;

/// Threads of a block of every kernel on CUDA but those over rows and products
/// by warpgroups.
inline constexpr int64_t cudaBlockThreads = 256;

/// Threads of a product by warpgroups: eight warps, and one that copies
/// (WarpgroupProduct.cuh). It takes tensor maps of both operands.
inline constexpr int64_t cudaWarpgroupThreads = 288;

/// Dynamic shared memory of a product on CUDA, which holds three stages of both
/// operands; by warpgroups they are larger and have barriers.
inline constexpr int64_t cudaProductSharedBytes = 48 << 10;
inline constexpr int64_t cudaWarpgroupSharedBytes = (96 << 10) + 48;

/// Elements of the two tiles that a block of a transpose holds in shared memory
/// on CUDA.
inline constexpr int64_t cudaTransposeSharedElements = 2112;

/// Dynamic shared memory of each reduction of a kernel over columns, or over
/// rows, on CUDA (Columns.cuh, Reduce.cuh).
inline constexpr int64_t cudaColumnReductionBytes = 2048;
inline constexpr int64_t cudaRowReductionBytes = 256;

/// Elements of a group, which one thread of a kernel over rows on CUDA handles
/// at a time (Vector.cuh).
inline constexpr int64_t cudaGroupSize = 8;

/// A state of a matrix: shaped like it, one value per row (cols = 1), one per
/// column (rows = 1), or a single value.
struct StatePlan {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
  ElementType type = ElementType::F32;

  bool operator==(const StatePlan &) const = default;
};

/// One matrix of the model.
struct ParameterPlan {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
  ElementType paramType = ElementType::F32;
  ElementType gradType = ElementType::F32;
  std::vector<StatePlan> states;
  int32_t scalarSet = 0;

  bool operator==(const ParameterPlan &) const = default;
};

/// Hyperparameters that change together: those of one update in one parameter
/// group. Their values are given at every step.
struct ScalarSet {
  std::vector<std::string> names;

  bool operator==(const ScalarSet &) const = default;
};

struct Launch;

/// What the code of a kernel takes, in each of its launches.
struct Signature {
  /// Of the operands: those read, then those written. The factor of a product
  /// on CUDA, which may be there or not, is none of them.
  std::vector<ElementType> types;
  int32_t numInputs = 0; // how many are read
  int32_t numScalars = 0;

  /// That of a kernel which is made for `launch`.
  static Signature of(const Launch &launch);
  bool operator==(const Signature &) const = default;
};

/// A kernel that launches refer to by position. Its code is found by name; the
/// rest is what launches have to agree with, since nobody else can tell.
struct KernelPlan {
  std::string name;
  Schedule schedule = Schedule::Elementwise;
  int32_t threads = 0; // of a block on CUDA; 0 on the CPU
  Signature signature = {};

  /// On the CPU, the tiles that the code is made for (KernelAbi.h): the width
  /// of a sliver for `pack`; the widths of A's and B's and the size of a block
  /// for `matmul`.
  std::vector<int64_t> tiles = {};
  /// Whether a product computes only the tiles on or below the diagonal.
  bool symmetric = false;
  /// How matrices lie in memory. Of a product on CUDA, whether A is k x m and
  /// not m x k, and B n x k and not k x n; of a `pack`, whether its matrix is
  /// k x extent (transposeA).
  bool transposeA = false, transposeB = false;
  /// Operands that the kernel takes tensor maps of in their place, counted from
  /// the first: 2 of products by warpgroups on CUDA, else 0. They are in the
  /// workspace.
  int32_t mappedOperands = 0;

  /// What shared memory is for on CUDA: reductions of a kernel over rows or
  /// columns; of one over rows, the f32 values of each column that stay on the
  /// chip, and the groups of them that a thread has in registers.
  int32_t reductions = 0, kept = 0, registerGroups = 0;

  bool operator==(const KernelPlan &) const = default;
};

/// Dynamic shared memory of a kernel over rows of `columns` columns on CUDA,
/// which says `threads`, `reductions`, `kept` and `registerGroups`.
int64_t rowSharedBytes(const KernelPlan &kernel, int64_t columns);

/// Where an operand of a launch lies, for each matrix of the bucket.
struct Operand {
  BufferKind kind = BufferKind::Workspace;
  int32_t index = 0;  // of the state
  int64_t offset = 0; // bytes from the start of the matrix's workspace slot
  int64_t rows = 0;   // as the kernel sees it
  int64_t cols = 0;
  ElementType type = ElementType::F32;
  int64_t pitch = 0; // of the workspace: elements from row to row

  /// Bytes of the workspace that it takes.
  int64_t bytes() const { return rows * pitch * byteSize(type); }
  bool operator==(const Operand &) const = default;
};

/// On the CPU, items and grain are as KernelAbi.h says. On CUDA, `items` is the
/// number of blocks of one matrix, and `grain` what one block covers:
///
///   schedule     a block covers
///   -----------  --------------------------------------------------------
///   elementwise  cudaElementwiseGrain elements of the flattened matrix
///   rows         `grain` rows
///   columns      cudaColumnGrain columns, whose rows its warps share
///   transpose    one part of cudaTransposeRows rows and cudaTransposeColumns
///                columns of the source, along its rows first
///   matmul       one tile of cudaTileSize rows and columns of the result;
///                symmetric: only tiles on or below the diagonal
///
/// A product on CUDA reads A, B[, C][, factor] as they lie in memory, and its
/// scalars are alpha[, beta] and then those of its epilogue. C has the type of
/// A; the factor is one f32 number, which multiplies alpha and beta. With an
/// epilogue its result is the parameter, which it also reads.
struct Launch {
  int32_t kernel = 0;
  std::vector<Operand> operands; // the ones read, then the ones written
  int32_t numInputs = 0;         // how many are read
  std::vector<int32_t> scalars;  // registers of the scalar program
  std::vector<int64_t> sizes;    // as KernelAbi.h says for the schedule
  int64_t items = 0;             // work items of one matrix
  int64_t grain = 1;             // items that one thread takes at a time
  int64_t flops = 0;             // of one matrix
  int64_t bytes = 0;             // read and written for one matrix
  int64_t sharedBytes = 0;       // dynamic shared memory of a block on CUDA
  bool hasFactor = false;        // of a product on CUDA

  bool operator==(const Launch &) const = default;
};

/// Which operands of a product on CUDA are there beside A, B and the result.
struct ProductExtras {
  std::optional<size_t> addend, factor; // positions among the operands

  static ProductExtras of(size_t numOperands, bool hasFactor);
};

/// All launches that update one matrix in one phase.
struct Sequence {
  std::string name;
  ScalarProgram program;
  std::vector<Launch> launches;
  int64_t workspaceBytes = 0; // of one matrix

  bool operator==(const Sequence &) const = default;
};

/// Matrices that one sequence handles, `concurrent` at a time.
struct Bucket {
  int32_t sequence = 0;
  std::vector<int32_t> members; // parameters
  int32_t concurrent = 1;
  /// Bytes from the start of the workspace to the first of `concurrent` slots,
  /// which follow each other.
  int64_t workspaceOffset = 0;

  /// How often the sequence runs if all members have gradients.
  int64_t rounds() const;
  bool operator==(const Bucket &) const = default;
};

/// One bucket's share of a launch of the device.
struct LaunchPart {
  int32_t bucket = 0; // of the group
  int32_t launch = 0; // of the bucket's sequence

  bool operator==(const LaunchPart &) const = default;
};

/// Buckets that run in lock-step: what their sequences have in common runs as
/// one launch of the device, which covers the matrices of several buckets. Each
/// launch of each sequence occurs once, and those of one sequence in order.
/// Several buckets are a group only where kernels find shapes in tables, which
/// is on CUDA; all their matrices are in flight at once, in workspaces that are
/// apart.
struct BucketGroup {
  std::vector<Bucket> buckets;
  /// Launches of the device, in order. Parts of one launch are of one kernel
  /// and have ascending buckets.
  std::vector<std::vector<LaunchPart>> launches;

  bool operator==(const BucketGroup &) const = default;
};

/// What a phase runs, in order.
using PhasePlan = std::vector<BucketGroup>;

/// Work of one step: floating point operations, and bytes that kernels read and
/// write.
struct Cost {
  int64_t flops = 0;
  int64_t bytes = 0;
  int64_t launches = 0; // of the device

  bool operator==(const Cost &) const = default;
};

struct StepPlan {
  /// Version of the schema. Readers refuse any other.
  static constexpr int64_t version = 4;

  Target target = Target::Cpu;
  std::vector<ParameterPlan> parameters;
  std::vector<ScalarSet> scalarSets;
  std::vector<KernelPlan> kernels;
  std::vector<Sequence> sequences;
  std::vector<PhasePlan> phases; // step s runs phases[s mod period]
  int64_t workspaceBytes = 0;

  int64_t period() const { return static_cast<int64_t>(phases.size()); }

  /// Bytes of workspace that a bucket takes after its offset.
  int64_t slotBytes(const Bucket &bucket) const {
    return sequences[bucket.sequence].workspaceBytes * bucket.concurrent;
  }

  /// Workspace that the hungriest group needs; what `workspaceBytes` must be.
  int64_t requiredWorkspaceBytes() const;

  /// A group of one bucket, which runs its launches one by one.
  BucketGroup alone(Bucket bucket) const;

  /// The work of one step of `phase`.
  Cost cost(int64_t phase) const;

  /// Checks everything that an executor relies on. The message names the field,
  /// the wish and the finding.
  Status validate() const;

  /// Refuses a plan for another target than `expected`.
  Status requireTarget(Target expected) const;

  /// A text for people: parameters, sequences with their launches, phases,
  /// costs.
  std::string print() const;

  /// One JSON object; the same plan gives the same bytes.
  std::string toJson() const;

  /// Reads and validates what toJson wrote.
  static Result<StepPlan> fromJson(std::string_view text);

  bool operator==(const StepPlan &) const = default;
};

} // namespace kaon::runtime

#endif // KAON_RUNTIME_STEPPLAN_H
