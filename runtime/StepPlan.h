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
#include <string>
#include <string_view>
#include <vector>

namespace kaon::runtime {

enum class ElementType : uint8_t { F16, BF16, F32, F64 };

/// How a kernel divides a matrix into work items; see KernelAbi.h.
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
std::string_view stringify(Schedule schedule);
std::string_view stringify(BufferKind kind);
std::optional<ElementType> parseElementType(std::string_view keyword);
std::optional<Schedule> parseSchedule(std::string_view keyword);
std::optional<BufferKind> parseBufferKind(std::string_view keyword);

/// Size of one element in bytes.
int64_t byteSize(ElementType type);

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

/// A kernel that launches refer to by position. Its code is found by name.
struct KernelPlan {
  std::string name;
  Schedule schedule = Schedule::Elementwise;

  bool operator==(const KernelPlan &) const = default;
};

/// Where an operand of a launch lies, for each matrix of the bucket.
struct Operand {
  BufferKind kind = BufferKind::Workspace;
  int32_t index = 0;  // of the state
  int64_t offset = 0; // bytes from the start of the matrix's workspace slot
  int64_t rows = 0;   // as the kernel sees it
  int64_t cols = 0;
  ElementType type = ElementType::F32;

  int64_t bytes() const { return rows * cols * byteSize(type); }
  bool operator==(const Operand &) const = default;
};

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

  bool operator==(const Launch &) const = default;
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

  bool operator==(const Bucket &) const = default;
};

/// Work of one step: floating point operations, and bytes that kernels read and
/// write.
struct Cost {
  int64_t flops = 0;
  int64_t bytes = 0;
  int64_t launches = 0; // one per launch and group of concurrent matrices

  bool operator==(const Cost &) const = default;
};

struct StepPlan {
  /// Version of the schema. Readers refuse any other.
  static constexpr int64_t version = 1;

  std::vector<ParameterPlan> parameters;
  std::vector<ScalarSet> scalarSets;
  std::vector<KernelPlan> kernels;
  std::vector<Sequence> sequences;
  std::vector<std::vector<Bucket>> phases; // step s runs phases[s mod period]
  int64_t workspaceBytes = 0;

  int64_t period() const { return static_cast<int64_t>(phases.size()); }

  /// Workspace that the hungriest bucket needs; what `workspaceBytes` must be.
  int64_t requiredWorkspaceBytes() const;

  /// The work of one step of `phase`.
  Cost cost(int64_t phase) const;

  /// Checks everything that an executor relies on. The message names the field,
  /// the wish and the finding.
  Status validate() const;

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
