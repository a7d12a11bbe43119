//===-- Bucket.cpp - matrices that are handled together -------------------===//
//
// Numeric class: bitwise.
//
//===----------------------------------------------------------------------===//

#include "mlir/IR/Remarks.h"
#include "mlir/IR/SymbolTable.h"
#include "passes/Passes.h"
#include "passes/Support.h"

#include "llvm/ADT/MapVector.h"

namespace kaon {
#define GEN_PASS_DEF_BUCKETPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

namespace {

struct BucketPass : kaon::impl::BucketPassBase<BucketPass> {
  using BucketPassBase::BucketPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (maxConcurrentBytes < 1) {
      module.emitError() << "max-concurrent-bytes must be positive, but got "
                         << maxConcurrentBytes.getValue();
      return signalPassFailure();
    }
    SymbolTable symbols(module);
    for (auto program : module.getOps<ProgramOp>()) {
      if (failed(bucketProgram(program, symbols))) {
        return signalPassFailure();
      }
    }
  }

  LogicalResult bucketProgram(ProgramOp program, SymbolTable &symbols) {
    if (!program.getPhases().empty()) {
      return program.emitOpError()
             << "expects no phases before bucketing, but has "
             << llvm::range_size(program.getPhases());
    }
    OpBuilder builder = OpBuilder::atBlockEnd(&program.getBody().front());
    for (int64_t residue = 0; residue < program.getNumPhases(); ++residue) {
      llvm::MapVector<StringAttr, SmallVector<int64_t>> members;
      for (auto [index, parameter] : llvm::enumerate(program.getParameters())) {
        members[parameter.getUpdateAt(residue).getAttr()].push_back(index);
      }
      auto phase = PhaseOp::create(builder, program.getLoc(), residue);
      OpBuilder::InsertionGuard guard(builder);
      builder.createBlock(&phase.getBody());
      for (auto &[name, parameters] : members) {
        auto update = symbols.lookup<func::FuncOp>(name);
        if (!update) {
          return program.emitOpError() << "refers to @" << name.getValue()
                                       << ", which is not an update";
        }
        int64_t bytes = getMatrixBytes(
            cast<RankedTensorType>(update.getArgumentTypes()[0]));
        int64_t concurrent = balanceConcurrency(
            parameters.size(),
            maxConcurrentBytes / std::max<int64_t>(1, bytes));
        BucketOp::create(builder, program.getLoc(), name.getValue(), parameters,
                         concurrent);
        remark::passed(program.getLoc(), remark::RemarkOpts::name("Bucket")
                                             .category("kaon-bucket")
                                             .function(update.getName()))
            << remark::add("phase {0}: {1} matrices of {2} bytes, {3} at once",
                           residue, parameters.size(), bytes, concurrent);
      }
    }
    return success();
  }
};

} // namespace
