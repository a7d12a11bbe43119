//===-- SplitPhases.cpp - one function per kind of step -------------------===//
//
// Numeric class: bitwise.
//
//===----------------------------------------------------------------------===//

#include "mlir/IR/SymbolTable.h"
#include "passes/Passes.h"
#include "passes/Support.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/Support/InterleavedRange.h"

#include <numeric>

namespace kaon {
#define GEN_PASS_DEF_SPLITPHASESPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

static int64_t floorMod(int64_t a, int64_t b) { return ((a % b) + b) % b; }

/// Whether an `every` takes its first region at a residue of its update.
static bool isTaken(EveryOp every, int64_t residue) {
  return floorMod(residue - every.getPhase(), every.getPeriod()) == 0;
}

static Region &getRegionAt(EveryOp every, int64_t residue) {
  return isTaken(every, residue) ? every.getTaken() : every.getOtherwise();
}

/// Appends which branch each reachable `every` takes at a residue.
static void appendDecisions(Region &region, int64_t residue,
                            SmallVectorImpl<char> &decisions) {
  for (Operation &op : region.getOps()) {
    if (auto every = dyn_cast<EveryOp>(op)) {
      decisions.push_back(isTaken(every, residue) ? '1' : '0');
      appendDecisions(getRegionAt(every, residue), residue, decisions);
    }
  }
}

/// Replaces every `every` by the branch it takes at a residue.
static void resolve(func::FuncOp update, int64_t residue) {
  IRRewriter rewriter(update.getContext());
  // A branch may hold further ones, which its inlining brings to the surface.
  while (true) {
    auto everys = update.getBody().front().getOps<EveryOp>();
    if (everys.empty()) {
      break;
    }
    EveryOp every = *everys.begin();
    Block &branch = getRegionAt(every, residue).front();
    auto yield = cast<YieldOp>(branch.getTerminator());
    SmallVector<Value> results(yield.getOperands());
    rewriter.eraseOp(yield);
    rewriter.inlineBlockBefore(&branch, every);
    rewriter.replaceOp(every, results);
  }
  eraseDeadOps(update);
}

namespace {

struct SplitPhasesPass : kaon::impl::SplitPhasesPassBase<SplitPhasesPass> {
  using SplitPhasesPassBase::SplitPhasesPassBase;

  /// The functions of an update, one per residue of its own period.
  using Variants = SmallVector<FlatSymbolRefAttr>;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (maxPeriod < 1) {
      module.emitError() << "max-period must be positive, but got "
                         << maxPeriod.getValue();
      return signalPassFailure();
    }
    SymbolTable symbols(module);
    llvm::MapVector<StringAttr, Variants> variants;
    for (auto update :
         llvm::make_early_inc_range(module.getOps<func::FuncOp>())) {
      if (!isUpdate(update)) {
        continue;
      }
      StringAttr name = update.getSymNameAttr();
      FailureOr<Variants> split = splitUpdate(update, symbols);
      if (failed(split)) {
        return signalPassFailure();
      }
      variants[name] = std::move(*split);
    }
    for (auto program : module.getOps<ProgramOp>()) {
      if (failed(splitProgram(program, variants))) {
        return signalPassFailure();
      }
    }
  }

  FailureOr<Variants> splitUpdate(func::FuncOp update, SymbolTable &symbols) {
    // What asks for anything but the step cannot be decided by the residue.
    unsigned step = getArgumentsWithRole(update, Role::Step).front();
    WalkResult asked = update.walk([&](EveryOp every) {
      if (every.getStep() == update.getArgument(step)) {
        return WalkResult::advance();
      }
      every.emitOpError() << "expects the step of its update, argument #"
                          << step;
      return WalkResult::interrupt();
    });
    if (asked.wasInterrupted()) {
      return failure();
    }

    int64_t period = 1;
    SmallVector<int64_t> periods;
    WalkResult walked = update.walk([&](EveryOp every) {
      int64_t own = every.getPeriod();
      periods.push_back(own);
      // Checked before multiplying: the product cannot overflow.
      if (own > maxPeriod) {
        return WalkResult::interrupt();
      }
      period = std::lcm(period, own);
      if (period > maxPeriod) {
        return WalkResult::interrupt();
      }
      return WalkResult::advance();
    });
    if (walked.wasInterrupted()) {
      return update.emitError()
             << "periods [" << llvm::interleaved(periods) << "] of update '"
             << update.getName()
             << "' need more kinds of steps than max-period ("
             << maxPeriod.getValue() << ")";
    }

    // Residues that decide alike share one function.
    llvm::MapVector<StringRef, int64_t> firstResidue;
    std::vector<std::string> decisions(period);
    for (int64_t residue = 0; residue < period; ++residue) {
      SmallString<8> decided;
      appendDecisions(update.getBody(), residue, decided);
      decisions[residue] = decided.str();
      firstResidue.insert({decisions[residue], residue});
    }
    if (firstResidue.size() == 1) {
      resolve(update, /*residue=*/0);
      return Variants{FlatSymbolRefAttr::get(update)};
    }

    OpBuilder builder(update);
    llvm::StringMap<FlatSymbolRefAttr> functions;
    for (auto [index, entry] : llvm::enumerate(firstResidue)) {
      func::FuncOp clone = update.clone();
      clone.setSymName((update.getName() + "." + Twine(index)).str());
      resolve(clone, entry.second);
      symbols.insert(clone, update->getIterator());
      functions[entry.first] = FlatSymbolRefAttr::get(clone);
    }
    Variants variants;
    for (const std::string &decided : decisions) {
      variants.push_back(functions[decided]);
    }
    symbols.erase(update);
    return variants;
  }

  LogicalResult
  splitProgram(ProgramOp program,
               const llvm::MapVector<StringAttr, Variants> &variants) {
    int64_t period = 1;
    for (ParameterOp parameter : program.getParameters()) {
      if (parameter.getUpdates().size() != 1) {
        return parameter.emitOpError()
               << "expects one update before phases are split, but got "
               << parameter.getUpdates().size();
      }
      const Variants &own = lookup(variants, parameter);
      if (own.empty()) {
        return parameter.emitOpError()
               << "refers to " << parameter.getUpdates()[0]
               << ", which is not an update";
      }
      period = std::lcm(period, static_cast<int64_t>(own.size()));
      if (period > maxPeriod) {
        return parameter.emitOpError()
               << "has a period of " << own.size()
               << ", with which the program needs " << period
               << " kinds of steps, more than max-period ("
               << maxPeriod.getValue() << ")";
      }
    }
    OpBuilder builder(program.getContext());
    for (ParameterOp parameter : program.getParameters()) {
      const Variants &own = lookup(variants, parameter);
      parameter.setPhase(floorMod(parameter.getPhase(), period));
      SmallVector<Attribute> updates;
      for (int64_t residue = 0; residue < (own.size() == 1 ? 1 : period);
           ++residue) {
        updates.push_back(own[residue % own.size()]);
      }
      parameter.setUpdatesAttr(builder.getArrayAttr(updates));
    }
    if (period > 1) {
      program.setPeriod(period);
    }
    return success();
  }

  static Variants lookup(const llvm::MapVector<StringAttr, Variants> &variants,
                         ParameterOp parameter) {
    return variants.lookup(
        cast<FlatSymbolRefAttr>(parameter.getUpdates()[0]).getAttr());
  }
};

} // namespace
