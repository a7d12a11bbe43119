//===-- StepPlanJson.cpp - plans as JSON ----------------------------------===//
//
// Writes and reads the schema that docs/runtime.md describes. Reading never
// throws: every field is looked up by a Reader, which knows the path to what it
// reads and keeps the first failure.
//
//===----------------------------------------------------------------------===//

#include "runtime/Json.h"
#include "runtime/StepPlan.h"

#include <cmath>
#include <limits>

using namespace kaon::runtime;

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

/// JSON has no infinity and no NaN: they are written as strings.
static Json writeDouble(double value) {
  if (std::isfinite(value)) {
    return value;
  }
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

static bool isProduct(Schedule schedule) {
  return schedule == Schedule::Matmul;
}

/// Whether plans say how what kernels of `schedule` read lies in memory.
static bool readsMatrices(Schedule schedule) {
  return isProduct(schedule) || schedule == Schedule::Pack;
}

namespace {
/// Overloads for every part of a plan, in a class so that they see each other.
struct Writer {
  static Json write(const ScalarInstruction &instruction) {
    Json json = {{"op", stringify(instruction.opcode)}};
    if (instruction.opcode == ScalarOpcode::Constant) {
      json["value"] = writeDouble(instruction.value);
    }
    if (instruction.opcode == ScalarOpcode::Argument) {
      json["index"] = instruction.index;
    }
    if (int count = numOperands(instruction.opcode)) {
      json["operands"] = std::vector<int32_t>(instruction.operands,
                                              instruction.operands + count);
    }
    return json;
  }

  static Json write(const StatePlan &state) {
    return {{"name", state.name},
            {"rows", state.rows},
            {"cols", state.cols},
            {"type", stringify(state.type)}};
  }

  template <typename T> static Json writeList(const std::vector<T> &values) {
    Json json = Json::Array();
    for (const T &value : values) {
      json.append(write(value));
    }
    return json;
  }

  static Json write(const ParameterPlan &parameter) {
    return {{"name", parameter.name},
            {"rows", parameter.rows},
            {"cols", parameter.cols},
            {"paramType", stringify(parameter.paramType)},
            {"gradType", stringify(parameter.gradType)},
            {"states", writeList(parameter.states)},
            {"scalarSet", parameter.scalarSet}};
  }

  static Json write(const ScalarSet &set) { return {{"names", set.names}}; }

  static Json write(ElementType type) { return stringify(type); }

  static Json write(const KernelPlan &kernel) {
    Json json = {{"name", kernel.name},
                 {"schedule", stringify(kernel.schedule)},
                 {"operands", writeList(kernel.signature.types)},
                 {"inputs", kernel.signature.numInputs},
                 {"scalars", kernel.signature.numScalars},
                 {"threads", kernel.threads}};
    if (!kernel.tiles.empty()) {
      json["tiles"] = kernel.tiles;
    }
    auto writeFlag = [&](const char *name, bool flag, bool isNeeded) {
      if (flag || isNeeded) {
        json[name] = flag;
      }
    };
    writeFlag("symmetric", kernel.symmetric, isProduct(kernel.schedule));
    writeFlag("transposeA", kernel.transposeA, readsMatrices(kernel.schedule));
    writeFlag("transposeB", kernel.transposeB, isProduct(kernel.schedule));
    auto writeCount = [&](const char *name, int32_t count) {
      if (count != 0) {
        json[name] = count;
      }
    };
    writeCount("mappedOperands", kernel.mappedOperands);
    writeCount("reductions", kernel.reductions);
    writeCount("kept", kernel.kept);
    writeCount("registerGroups", kernel.registerGroups);
    return json;
  }

  static Json write(const Operand &operand) {
    Json json = {{"kind", stringify(operand.kind)}};
    if (operand.kind == BufferKind::State) {
      json["index"] = operand.index;
    }
    if (operand.kind == BufferKind::Workspace) {
      json["offset"] = operand.offset;
    }
    json["rows"] = operand.rows;
    json["cols"] = operand.cols;
    json["type"] = stringify(operand.type);
    if (operand.kind == BufferKind::Workspace) {
      json["pitch"] = operand.pitch;
    }
    return json;
  }

  static Json write(const Launch &launch) {
    Json json = {
        {"kernel", launch.kernel},    {"operands", writeList(launch.operands)},
        {"inputs", launch.numInputs}, {"scalars", launch.scalars},
        {"sizes", launch.sizes},      {"items", launch.items},
        {"grain", launch.grain},      {"flops", launch.flops},
        {"bytes", launch.bytes},      {"sharedBytes", launch.sharedBytes}};
    if (launch.hasFactor) {
      json["factor"] = true;
    }
    return json;
  }

  static Json write(const Sequence &sequence) {
    return {{"name", sequence.name},
            {"scalarProgram", writeList(sequence.program.instructions())},
            {"launches", writeList(sequence.launches)},
            {"workspaceBytes", sequence.workspaceBytes}};
  }

  static Json write(const Bucket &bucket) {
    return {{"sequence", bucket.sequence},
            {"members", bucket.members},
            {"concurrent", bucket.concurrent},
            {"workspaceOffset", bucket.workspaceOffset}};
  }

  static Json write(const LaunchPart &part) {
    return {{"bucket", part.bucket}, {"launch", part.launch}};
  }

  static Json write(const std::vector<LaunchPart> &parts) {
    return writeList(parts);
  }

  static Json write(const BucketGroup &group) {
    return {{"buckets", writeList(group.buckets)},
            {"launches", writeList(group.launches)}};
  }

  static Json write(const PhasePlan &phase) { return writeList(phase); }
};
} // namespace

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

namespace {
/// Reads one JSON value at a path like `phases[1][0].members`.
class Reader {
public:
  Reader(const Json &json, std::string path, Status &status)
      : json(json), path(std::move(path)), status(status) {}

  /// Calls `read` with the reader of a field, which must be there.
  template <typename Function>
  void withField(const char *name, Function read) const {
    if (!status.ok()) {
      return;
    }
    std::string fieldPath = path.empty() ? name : path + "." + name;
    if (!json.asObject()) {
      return fail("an object");
    }
    const Json *found = json.find(name);
    if (!found) {
      status = Status::failure(fieldPath, ": expects a value, but found none");
      return;
    }
    read(Reader(*found, std::move(fieldPath), status));
  }

  /// Reads a field into `value`.
  template <typename T> void field(const char *name, T &value) const {
    withField(name, [&](const Reader &reader) { reader.read(value); });
  }

  /// Reads a field that keeps its default where there is none.
  template <typename T> void optionalField(const char *name, T &value) const {
    if (json.find(name)) {
      field(name, value);
    }
  }

  /// Reads a field that is false where there is none, unless it `isNeeded`.
  void flag(const char *name, bool &value, bool isNeeded) const {
    if (isNeeded) {
      field(name, value);
    } else {
      optionalField(name, value);
    }
  }

  void read(bool &value) const {
    const bool *flag = json.asBool();
    if (!flag) {
      return fail("true or false");
    }
    value = *flag;
  }

  void read(std::string &value) const {
    const std::string *text = json.asString();
    if (!text) {
      return fail("a string");
    }
    value = *text;
  }

  void read(int64_t &value) const { readInteger(value); }
  void read(int32_t &value) const { readInteger(value); }

  void read(double &value) const {
    if (std::optional<double> number = json.asNumber()) {
      value = *number;
      return;
    }
    const std::string *text = json.asString();
    if (text && *text == "inf") {
      value = std::numeric_limits<double>::infinity();
    } else if (text && *text == "-inf") {
      value = -std::numeric_limits<double>::infinity();
    } else if (text && *text == "nan") {
      value = std::numeric_limits<double>::quiet_NaN();
    } else {
      fail(R"(a number, "inf", "-inf" or "nan")");
    }
  }

  void read(ElementType &value) const {
    readKeyword(value, parseElementType, "an element type");
  }
  void read(Target &value) const {
    readKeyword(value, parseTarget, "a target");
  }
  void read(Schedule &value) const {
    readKeyword(value, parseSchedule, "a schedule");
  }
  void read(BufferKind &value) const {
    readKeyword(value, parseBufferKind, "a kind of buffer");
  }
  void read(ScalarOpcode &value) const {
    readKeyword(value, parseScalarOpcode, "a scalar operation");
  }

  void read(ScalarInstruction &value) const {
    field("op", value.opcode);
    if (!status.ok()) {
      return;
    }
    if (value.opcode == ScalarOpcode::Constant) {
      field("value", value.value);
    }
    if (value.opcode == ScalarOpcode::Argument) {
      field("index", value.index);
    }
    size_t count = static_cast<size_t>(numOperands(value.opcode));
    if (count == 0) {
      return;
    }
    withField("operands", [&](const Reader &reader) {
      std::vector<int32_t> operands;
      reader.read(operands);
      if (!status.ok()) {
        return;
      }
      if (operands.size() != count) {
        return reader.fail(concat(count, " registers for the operation ",
                                  stringify(value.opcode)));
      }
      std::copy(operands.begin(), operands.end(), value.operands);
    });
  }

  void read(ScalarProgram &value) const {
    std::vector<ScalarInstruction> instructions;
    read(instructions);
    for (const ScalarInstruction &instruction : instructions) {
      value.append(instruction);
    }
  }

  void read(StatePlan &value) const {
    field("name", value.name);
    field("rows", value.rows);
    field("cols", value.cols);
    field("type", value.type);
  }

  void read(ParameterPlan &value) const {
    field("name", value.name);
    field("rows", value.rows);
    field("cols", value.cols);
    field("paramType", value.paramType);
    field("gradType", value.gradType);
    field("states", value.states);
    field("scalarSet", value.scalarSet);
  }

  void read(ScalarSet &value) const { field("names", value.names); }

  void read(KernelPlan &value) const {
    field("name", value.name);
    field("schedule", value.schedule);
    field("operands", value.signature.types);
    field("inputs", value.signature.numInputs);
    field("scalars", value.signature.numScalars);
    field("threads", value.threads);
    optionalField("tiles", value.tiles);
    flag("symmetric", value.symmetric, isProduct(value.schedule));
    flag("transposeA", value.transposeA, readsMatrices(value.schedule));
    flag("transposeB", value.transposeB, isProduct(value.schedule));
    optionalField("mappedOperands", value.mappedOperands);
    optionalField("reductions", value.reductions);
    optionalField("kept", value.kept);
    optionalField("registerGroups", value.registerGroups);
  }

  void read(Operand &value) const {
    field("kind", value.kind);
    if (value.kind == BufferKind::State) {
      field("index", value.index);
    }
    if (value.kind == BufferKind::Workspace) {
      field("offset", value.offset);
    }
    field("rows", value.rows);
    field("cols", value.cols);
    field("type", value.type);
    if (value.kind == BufferKind::Workspace) {
      field("pitch", value.pitch);
    }
  }

  void read(Launch &value) const {
    field("kernel", value.kernel);
    field("operands", value.operands);
    field("inputs", value.numInputs);
    field("scalars", value.scalars);
    field("sizes", value.sizes);
    field("items", value.items);
    field("grain", value.grain);
    field("flops", value.flops);
    field("bytes", value.bytes);
    field("sharedBytes", value.sharedBytes);
    optionalField("factor", value.hasFactor);
  }

  void read(Sequence &value) const {
    field("name", value.name);
    field("scalarProgram", value.program);
    field("launches", value.launches);
    field("workspaceBytes", value.workspaceBytes);
  }

  void read(Bucket &value) const {
    field("sequence", value.sequence);
    field("members", value.members);
    field("concurrent", value.concurrent);
    field("workspaceOffset", value.workspaceOffset);
  }

  void read(LaunchPart &value) const {
    field("bucket", value.bucket);
    field("launch", value.launch);
  }

  void read(BucketGroup &value) const {
    field("buckets", value.buckets);
    field("launches", value.launches);
  }

  void read(StepPlan &value) const {
    field("target", value.target);
    field("parameters", value.parameters);
    field("scalarSets", value.scalarSets);
    field("kernels", value.kernels);
    field("sequences", value.sequences);
    field("phases", value.phases);
    field("workspaceBytes", value.workspaceBytes);
  }

  template <typename T> void read(std::vector<T> &values) const {
    const Json::Array *elements = json.asArray();
    if (!elements) {
      return fail("a list");
    }
    values.clear();
    for (size_t i = 0; i < elements->size() && status.ok(); ++i) {
      Reader((*elements)[i], concat(path, "[", i, "]"), status)
          .read(values.emplace_back());
    }
  }

private:
  void fail(const std::string &wish) const {
    if (!status.ok()) {
      return;
    }
    // Lists and objects may be large and deep.
    bool isStructured = json.asArray() || json.asObject();
    std::string finding = isStructured ? json.typeName() : json.dump();
    if (finding.size() > 60) {
      finding = finding.substr(0, 57) + "...";
    }
    status = Status::failure(path.empty() ? "the plan" : path, ": expects ",
                             wish, ", but got ", finding);
  }

  template <typename T> void readInteger(T &value) const {
    const int64_t *number = json.asInteger();
    if (!number && !json.asLargeInteger()) {
      return fail("an integer");
    }
    if (!number || *number < std::numeric_limits<T>::min() ||
        *number > std::numeric_limits<T>::max()) {
      return fail(concat("an integer of ", 8 * sizeof(T), " bits"));
    }
    value = static_cast<T>(*number);
  }

  template <typename Enum>
  void readKeyword(Enum &value, std::optional<Enum> (*parse)(std::string_view),
                   const char *what) const {
    std::optional<Enum> parsed;
    if (const std::string *text = json.asString()) {
      parsed = parse(*text);
    }
    if (!parsed) {
      return fail(what);
    }
    value = *parsed;
  }

  const Json &json;
  std::string path;
  Status &status;
};
} // namespace

static constexpr const char *formatName = "kaon-step-plan";

std::string StepPlan::toJson() const {
  Json json = {{"format", formatName},
               {"version", version},
               {"target", stringify(target)},
               {"period", period()},
               {"parameters", Writer::writeList(parameters)},
               {"scalarSets", Writer::writeList(scalarSets)},
               {"kernels", Writer::writeList(kernels)},
               {"sequences", Writer::writeList(sequences)},
               {"phases", Writer::writeList(phases)},
               {"workspaceBytes", workspaceBytes}};
  return json.dump();
}

Result<StepPlan> StepPlan::fromJson(std::string_view text) {
  std::optional<Json> json = Json::parse(text);
  if (!json) {
    return Status::failure(
        "the plan: expects valid JSON, but cannot be parsed");
  }
  Status status = Status::success();
  Reader reader(*json, "", status);

  std::string format;
  int64_t foundVersion = 0, period = 0;
  reader.field("format", format);
  KAON_RETURN_IF_ERROR(status);
  if (format != formatName) {
    return Status::failure("format: expects '", formatName, "', but got '",
                           format, "'");
  }
  reader.field("version", foundVersion);
  KAON_RETURN_IF_ERROR(status);
  if (foundVersion != version) {
    return Status::failure("version: expects ", version, ", but got ",
                           foundVersion);
  }

  StepPlan plan;
  reader.field("period", period);
  reader.read(plan);
  KAON_RETURN_IF_ERROR(status);
  if (period != plan.period()) {
    return Status::failure("period: expects the number of phases, ",
                           plan.period(), ", but got ", period);
  }
  KAON_RETURN_IF_ERROR(plan.validate());
  return plan;
}
