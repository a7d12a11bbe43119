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

namespace {

/// What a launch of one bucket is.
struct OwnLaunch {
  std::string kernel;
  int64_t blocks; // that a multiprocessor has room for
};

/// A launch of the device, and the buckets that take part. Its blocks have the
/// shared memory of the one that needs most.
struct SharedLaunch {
  StringRef kernel;
  SmallVector<int64_t> buckets;
  int64_t fewestBlocks, mostBlocks; // of its buckets alone

  /// Whether `own` may be a part: each bucket keeps at least half of the blocks
  /// that a multiprocessor has room for.
  bool fits(const OwnLaunch &own) const {
    return kernel == own.kernel && std::max(mostBlocks, own.blocks) <=
                                       2 * std::min(fewestBlocks, own.blocks);
  }
};

/// A bucket, and what its lock-step with others depends on.
struct Member {
  BucketOp op;
  size_t position; // in the phase
  ArrayRef<OwnLaunch> launches;
  int64_t matrixElements; // of one matrix
  int64_t workspaceBytes; // of all matrices in flight
  bool isInOneRound;      // all of its matrices are in flight
};

/// For launches i.. of one list and j.. of another, how many both have in
/// common, in order.
class CommonLaunches {
public:
  CommonLaunches(ArrayRef<SharedLaunch> shared, ArrayRef<OwnLaunch> own);

  int64_t count(size_t i = 0, size_t j = 0) const {
    return counts[i * (numOwn + 1) + j];
  }

private:
  size_t numOwn;
  SmallVector<int64_t> counts;
};

/// Buckets that run in lock-step.
class Group {
public:
  explicit Group(const Member &first);

  /// Launches that the group would not have to add for `member`.
  int64_t countShared(const Member &member) const {
    return CommonLaunches(launches, member.launches).count();
  }
  /// Whether only shared memory keeps a launch of `member` apart.
  bool hasHungrier(const Member &member) const;
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
                               ArrayRef<OwnLaunch> own)
    : numOwn(own.size()), counts((shared.size() + 1) * (own.size() + 1), 0) {
  for (size_t i = shared.size(); i-- > 0;) {
    for (size_t j = numOwn; j-- > 0;) {
      counts[i * (numOwn + 1) + j] =
          shared[i].fits(own[j]) ? count(i + 1, j + 1) + 1
                                 : std::max(count(i + 1, j), count(i, j + 1));
    }
  }
}

Group::Group(const Member &first) { add(first); }

/// Merges the launches of `member` into those of the group: a longest common
/// subsequence of kernels is shared, everything else stays a launch of its own.
void Group::add(const Member &member) {
  auto index = static_cast<int64_t>(members.size());
  ArrayRef<OwnLaunch> own = member.launches;
  CommonLaunches common(launches, own);
  SmallVector<SharedLaunch> merged;
  size_t i = 0, j = 0;
  while (i < launches.size() || j < own.size()) {
    bool hasShared = i < launches.size(), hasOwn = j < own.size();
    if (hasShared && hasOwn && launches[i].fits(own[j])) {
      SharedLaunch &shared = merged.emplace_back(std::move(launches[i++]));
      shared.buckets.push_back(index);
      shared.fewestBlocks = std::min(shared.fewestBlocks, own[j].blocks);
      shared.mostBlocks = std::max(shared.mostBlocks, own[j].blocks);
      ++j;
    } else if (hasShared &&
               (!hasOwn || common.count(i + 1, j) >= common.count(i, j + 1))) {
      merged.push_back(std::move(launches[i++]));
    } else {
      merged.push_back({own[j].kernel, {index}, own[j].blocks, own[j].blocks});
      ++j;
    }
  }
  launches = std::move(merged);
  workspaceBytes += member.workspaceBytes;
  members.push_back(member);
}

bool Group::hasHungrier(const Member &member) const {
  return llvm::any_of(launches, [&](const SharedLaunch &shared) {
    return llvm::any_of(member.launches, [&](const OwnLaunch &own) {
      return shared.kernel == own.kernel && !shared.fits(own);
    });
  });
}

int64_t Group::countLaunchesApart() const {
  int64_t launches = 0;
  for (const Member &member : members) {
    launches += static_cast<int64_t>(member.launches.size());
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
  ArrayRef<OwnLaunch> getLaunches(func::FuncOp update);
  FailureOr<Member> describe(BucketOp bucket, size_t position);
  Group *choose(PhaseOp phase, MutableArrayRef<Group> groups,
                const Member &member);

  SymbolTable &symbols;
  int64_t maxWorkspaceBytes;
  llvm::StringMap<SmallVector<OwnLaunch>> launches; // of updates by name
};

} // namespace

/// How many blocks of a launch threads and shared memory of a multiprocessor
/// leave room for. Registers are the same for all launches of a kernel.
static int64_t countBlocks(const cuda::LaunchShape &shape,
                           CudaTargetAttr target) {
  constexpr int64_t threads = 2048, reserved = 1024; // of every block
  int64_t sharedBytes = target.getSharedBytes() + reserved;
  return std::min(threads / shape.threads,
                  sharedBytes / (shape.sharedBytes + reserved));
}

ArrayRef<OwnLaunch> Grouper::getLaunches(func::FuncOp update) {
  auto [found, isNew] = launches.try_emplace(update.getName());
  if (isNew) {
    for (Operation &op : update.getBody().front()) {
      if (std::optional<cuda::LaunchShape> shape = cuda::getLaunchShape(&op)) {
        found->second.push_back(
            {shape->name, countBlocks(*shape, getCudaTarget(update))});
      }
    }
  }
  return found->second;
}

/// The bytes of `concurrent` slots, aligned; none where they are too many.
static std::optional<int64_t> getSlotBytes(int64_t bytes, int64_t alignment,
                                           int64_t concurrent) {
  // Sums of a phase stay far from the end of int64_t.
  constexpr int64_t most = int64_t(1) << 48;
  if (bytes > most / concurrent) {
    return std::nullopt;
  }
  return static_cast<int64_t>(llvm::alignTo(bytes, alignment)) * concurrent;
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
  if (workspace.getInt() == 0) {
    bucket.setConcurrent(bucket.getParameters().size());
  }
  auto matrix = cast<RankedTensorType>(update.getArgumentTypes()[0]);
  auto concurrent = static_cast<int64_t>(bucket.getConcurrent());
  auto members = static_cast<int64_t>(bucket.getParameters().size());
  std::optional<int64_t> slots = getSlotBytes(
      workspace.getInt(), WorkspaceLayout::get(update).alignment, concurrent);
  if (!slots) {
    return update.emitOpError()
           << "expects " << KaonDialect::getWorkspaceAttrName()
           << " of at most 2^48 bytes for all matrices in flight, but got "
           << workspace.getInt() << " for each of " << concurrent;
  }
  return Member{bucket,
                position,
                getLaunches(update),
                matrix.getNumElements(),
                *slots,
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
  bool isTooLarge = false, isTooHungry = false;
  for (Group &group : groups) {
    int64_t shared = group.isOpen() ? group.countShared(member) : 0;
    isTooHungry |= group.isOpen() && group.hasHungrier(member);
    if (shared <= mostShared) {
      continue;
    }
    // A group of one bucket may be above the limit by itself.
    if (member.workspaceBytes > 0 &&
        group.getWorkspaceBytes() + member.workspaceBytes > maxWorkspaceBytes) {
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
  } else if (!best && isTooHungry) {
    remark::missed(phase.getLoc(), remarkOn(member)) << remark::add(
        "phase {0}: launches kernels of others, but with so different shared "
        "memory that one launch would more than halve the blocks of some",
        phase.getResidue());
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
