//===-- GroupBuckets.cpp - buckets that share launches --------------------===//
//
// Numeric class: bitwise.
//
//===----------------------------------------------------------------------===//

#include "codegen/cuda/LaunchShape.h"
#include "mlir/IR/Remarks.h"
#include "mlir/IR/SymbolTable.h"
#include "passes/Passes.h"
#include "passes/Support.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/Support/MathExtras.h"

namespace kaon {
#define GEN_PASS_DEF_GROUPBUCKETSPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

/// The kernels of an update's launches, in order.
using KernelList = SmallVector<std::string>;

namespace {

/// A launch of the device, and the buckets that take part.
struct SharedLaunch {
  StringRef kernel;
  SmallVector<int64_t> buckets;
};

/// A bucket, and what its lock-step with others depends on.
struct Member {
  BucketOp op;
  size_t position; // in the phase
  ArrayRef<std::string> kernels;
  int64_t matrixElements; // of one matrix
  int64_t workspaceBytes; // of all matrices in flight
  bool isInOneRound;      // all of its matrices are in flight
};

/// For launches i.. of one list and j.. of another, how many both have in
/// common, in order.
class CommonLaunches {
public:
  CommonLaunches(ArrayRef<SharedLaunch> shared, ArrayRef<std::string> kernels);

  int64_t count(size_t i = 0, size_t j = 0) const {
    return counts[i * (numKernels + 1) + j];
  }

private:
  size_t numKernels;
  SmallVector<int64_t> counts;
};

/// Buckets that run in lock-step.
class Group {
public:
  explicit Group(const Member &first);

  /// Launches that the group would not have to add for `member`.
  int64_t countShared(const Member &member) const {
    return CommonLaunches(launches, member.kernels).count();
  }
  void add(const Member &member);

  ArrayRef<Member> getMembers() const { return members; }
  ArrayRef<SharedLaunch> getLaunches() const { return launches; }
  int64_t getWorkspaceBytes() const { return workspaceBytes; }
  int64_t countLaunchesApart() const;
  /// Whether other buckets may join.
  bool isOpen() const { return members.front().isInOneRound; }

private:
  SmallVector<Member> members;
  SmallVector<SharedLaunch> launches;
  int64_t workspaceBytes = 0;
};

} // namespace

//===----------------------------------------------------------------------===//
// Alignment
//===----------------------------------------------------------------------===//

CommonLaunches::CommonLaunches(ArrayRef<SharedLaunch> shared,
                               ArrayRef<std::string> kernels)
    : numKernels(kernels.size()),
      counts((shared.size() + 1) * (kernels.size() + 1), 0) {
  for (size_t i = shared.size(); i-- > 0;) {
    for (size_t j = numKernels; j-- > 0;) {
      counts[i * (numKernels + 1) + j] =
          shared[i].kernel == kernels[j]
              ? count(i + 1, j + 1) + 1
              : std::max(count(i + 1, j), count(i, j + 1));
    }
  }
}

Group::Group(const Member &first) { add(first); }

/// Merges the launches of `member` into those of the group: a longest common
/// subsequence of kernels is shared, everything else stays a launch of its own.
void Group::add(const Member &member) {
  auto index = static_cast<int64_t>(members.size());
  CommonLaunches common(launches, member.kernels);
  SmallVector<SharedLaunch> merged;
  size_t i = 0, j = 0;
  while (i < launches.size() || j < member.kernels.size()) {
    bool hasShared = i < launches.size(), hasOwn = j < member.kernels.size();
    if (hasShared && hasOwn && launches[i].kernel == member.kernels[j]) {
      merged.push_back(std::move(launches[i++]));
      merged.back().buckets.push_back(index);
      ++j;
    } else if (hasShared &&
               (!hasOwn || common.count(i + 1, j) >= common.count(i, j + 1))) {
      merged.push_back(std::move(launches[i++]));
    } else {
      merged.push_back({member.kernels[j++], {index}});
    }
  }
  launches = std::move(merged);
  workspaceBytes += member.workspaceBytes;
  members.push_back(member);
}

int64_t Group::countLaunchesApart() const {
  int64_t launches = 0;
  for (const Member &member : members) {
    launches += static_cast<int64_t>(member.kernels.size());
  }
  return launches;
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

/// Moves the buckets of `group` to the builder's insertion point.
static void writeGroup(OpBuilder &builder, const Group &group) {
  Location loc = group.getMembers().front().op->getLoc();
  OpBuilder::InsertionGuard guard(builder);
  if (group.getMembers().size() > 1) {
    SmallVector<Attribute> launches;
    for (const SharedLaunch &launch : group.getLaunches()) {
      launches.push_back(builder.getDenseI64ArrayAttr(launch.buckets));
    }
    auto op = GroupOp::create(builder, loc, builder.getArrayAttr(launches));
    builder.createBlock(&op.getBody());
  }
  for (const Member &member : group.getMembers()) {
    member.op->moveBefore(builder.getBlock(), builder.getInsertionPoint());
  }
}

namespace {

/// Groups the buckets of a program's phases.
class Grouper {
public:
  Grouper(SymbolTable &symbols, int64_t maxWorkspaceBytes)
      : symbols(symbols), maxWorkspaceBytes(maxWorkspaceBytes) {}

  LogicalResult run(PhaseOp phase);

private:
  ArrayRef<std::string> getKernels(func::FuncOp update);
  FailureOr<Member> describe(BucketOp bucket, size_t position);
  Group *choose(PhaseOp phase, MutableArrayRef<Group> groups,
                const Member &member);

  SymbolTable &symbols;
  int64_t maxWorkspaceBytes;
  llvm::StringMap<KernelList> kernels; // of updates by name
};

} // namespace

ArrayRef<std::string> Grouper::getKernels(func::FuncOp update) {
  auto [found, isNew] = kernels.try_emplace(update.getName());
  if (isNew) {
    for (Operation &op : update.getBody().front()) {
      if (std::optional<cuda::LaunchShape> shape = cuda::getLaunchShape(&op)) {
        found->second.push_back(shape->name);
      }
    }
  }
  return found->second;
}

/// What without any workspace runs in rounds does so for nothing: it gets one.
FailureOr<Member> Grouper::describe(BucketOp bucket, size_t position) {
  auto update = symbols.lookup<func::FuncOp>(bucket.getUpdate());
  auto workspace =
      update->getAttrOfType<IntegerAttr>(KaonDialect::getWorkspaceAttrName());
  if (!workspace) {
    return update.emitOpError()
           << "expects " << KaonDialect::getWorkspaceAttrName()
           << "; kaon-plan-memory comes first";
  }
  int64_t slot =
      llvm::alignTo(workspace.getInt(), WorkspaceLayout::get(update).alignment);
  if (slot == 0) {
    bucket.setConcurrent(bucket.getParameters().size());
  }
  auto matrix = cast<RankedTensorType>(update.getArgumentTypes()[0]);
  auto concurrent = static_cast<int64_t>(bucket.getConcurrent());
  auto members = static_cast<int64_t>(bucket.getParameters().size());
  return Member{bucket,
                position,
                getKernels(update),
                matrix.getNumElements(),
                slot * concurrent,
                concurrent == members};
}

static remark::RemarkOpts remarkOn(const Member &member) {
  return remark::RemarkOpts::name("Group")
      .category("kaon-group-buckets")
      .function(BucketOp(member.op).getUpdate());
}

/// The group that saves `member` most launches, the first of several; null if
/// there is none.
Group *Grouper::choose(PhaseOp phase, MutableArrayRef<Group> groups,
                       const Member &member) {
  if (!member.isInOneRound) {
    return nullptr;
  }
  Group *best = nullptr;
  int64_t mostShared = 0;
  bool isTooLarge = false;
  for (Group &group : groups) {
    int64_t shared = group.isOpen() ? group.countShared(member) : 0;
    if (shared <= mostShared) {
      continue;
    }
    if (group.getWorkspaceBytes() + member.workspaceBytes > maxWorkspaceBytes) {
      isTooLarge = true;
      continue;
    }
    best = &group;
    mostShared = shared;
  }
  if (!best && isTooLarge) {
    remark::missed(phase.getLoc(), remarkOn(member)) << remark::add(
        "phase {0}: shares launches with others, but {1} more "
        "bytes of workspace would exceed the limit of {2}",
        phase.getResidue(), member.workspaceBytes, maxWorkspaceBytes);
  }
  return best;
}

static void report(PhaseOp phase, const Group &group) {
  if (group.getMembers().size() > 1) {
    remark::passed(phase.getLoc(), remarkOn(group.getMembers().front()))
        << remark::add("phase {0}: {1} buckets in {2} launches instead of {3}, "
                       "{4} bytes of workspace",
                       phase.getResidue(), group.getMembers().size(),
                       group.getLaunches().size(), group.countLaunchesApart(),
                       group.getWorkspaceBytes());
  }
}

LogicalResult Grouper::run(PhaseOp phase) {
  SmallVector<Member> members;
  // Groups that are there already, say in an edited dump, stay.
  for (auto bucket : phase.getBody().getOps<BucketOp>()) {
    FailureOr<Member> member = describe(bucket, members.size());
    if (failed(member)) {
      return failure();
    }
    members.push_back(*member);
  }
  // Blocks start in the order of the buckets, and those of large matrices take
  // longest: what starts last is short.
  llvm::sort(members, [](const Member &a, const Member &b) {
    return std::tuple(-a.matrixElements, a.position) <
           std::tuple(-b.matrixElements, b.position);
  });
  SmallVector<Group> groups;
  for (const Member &member : members) {
    if (Group *group = choose(phase, groups, member)) {
      group->add(member);
    } else {
      groups.emplace_back(member);
    }
  }
  OpBuilder builder = OpBuilder::atBlockEnd(&phase.getBody().front());
  for (const Group &group : groups) {
    writeGroup(builder, group);
    report(phase, group);
  }
  return success();
}

namespace {

struct GroupBucketsPass : kaon::impl::GroupBucketsPassBase<GroupBucketsPass> {
  using GroupBucketsPassBase::GroupBucketsPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (maxWorkspaceBytes < 0) {
      module.emitError() << "max-workspace-bytes must not be negative, but got "
                         << maxWorkspaceBytes.getValue();
      return signalPassFailure();
    }
    // On a CPU, a launch has one shape.
    if (!getCudaTarget(module)) {
      return;
    }
    SymbolTable symbols(module);
    Grouper grouper(symbols, maxWorkspaceBytes);
    for (auto program : module.getOps<ProgramOp>()) {
      for (PhaseOp phase : program.getPhases()) {
        if (failed(grouper.run(phase))) {
          return signalPassFailure();
        }
      }
    }
  }
};

} // namespace
