//===-- CompileKernel.cpp - from kernels to object files ------------------===//

#include "codegen/cpu/CompileKernel.h"

#include "codegen/cpu/Passes.h"
#include "dialect/Kaon.h"
#include "mlir/Conversion/ArithToLLVM/ArithToLLVM.h"
#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/FuncToLLVM/ConvertFuncToLLVMPass.h"
#include "mlir/Conversion/MathToLLVM/MathToLLVM.h"
#include "mlir/Conversion/ReconcileUnrealizedCasts/ReconcileUnrealizedCasts.h"
#include "mlir/Conversion/SCFToControlFlow/SCFToControlFlow.h"
#include "mlir/Conversion/VectorToLLVM/ConvertVectorToLLVMPass.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "mlir/Transforms/Passes.h"

#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/Utils/Cloning.h"

#include <chrono>

using namespace mlir;

namespace kaon::cpu {

void registerCpuTranslations(DialectRegistry &registry) {
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
}

void addLowerToLLVMPasses(OpPassManager &pm) {
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
  pm.addPass(createLoopInvariantCodeMotionPass());
  pm.addPass(createSCFToControlFlowPass());
  pm.addPass(createConvertMathToLLVMPass());
  pm.addPass(createConvertVectorToLLVMPass());
  pm.addPass(createArithToLLVMConversionPass());
  pm.addPass(createConvertControlFlowToLLVMPass());
  pm.addPass(createConvertFuncToLLVMPass());
  pm.addPass(createReconcileUnrealizedCastsPass());
}

static std::unique_ptr<llvm::TargetMachine>
createTargetMachine(const CpuTarget &target, unsigned optLevel, Location loc) {
  initializeHostCodegen();
  std::string error;
  llvm::Triple triple(target.triple);
  const llvm::Target *llvmTarget =
      llvm::TargetRegistry::lookupTarget(triple, error);
  if (!llvmTarget) {
    emitError(loc) << "cannot generate code for target '" << target.triple
                   << "': " << error;
    return nullptr;
  }
  llvm::TargetOptions options;
  // Only what the program writes as a fused multiply-add is one.
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  auto level = llvm::CodeGenOpt::getLevel(optLevel).value_or(
      llvm::CodeGenOptLevel::Default);
  return std::unique_ptr<llvm::TargetMachine>(llvmTarget->createTargetMachine(
      triple, target.cpu, target.features, options, llvm::Reloc::PIC_,
      std::nullopt, level, /*JIT=*/true));
}

/// Runs LLVM's own pipeline. Vectors, unrolling and their order are explicit in
/// the kernels, so that the passes that would choose them again are off.
static void optimize(llvm::Module &module, llvm::TargetMachine &machine,
                     unsigned optLevel) {
  llvm::PipelineTuningOptions tuning;
  tuning.LoopVectorization = false;
  tuning.SLPVectorization = false;
  tuning.LoopInterleaving = false;
  tuning.LoopUnrolling = false;
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager sccs;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine, tuning);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(sccs);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, sccs, modules);
  llvm::ModulePassManager passes;
  if (optLevel == 0) {
    passes = builder.buildO0DefaultPipeline(llvm::OptimizationLevel::O0);
  } else {
    static const llvm::OptimizationLevel levels[] = {
        llvm::OptimizationLevel::O1, llvm::OptimizationLevel::O2,
        llvm::OptimizationLevel::O3};
    passes = builder.buildPerModuleDefaultPipeline(
        levels[std::min(optLevel, 3u) - 1]);
  }
  passes.run(module, modules);
}

/// Marks a kernel with the processor it is for; without the vector width LLVM
/// would split 512-bit vectors on processors that prefer shorter ones.
static void setFunctionAttributes(llvm::Module &module,
                                  const CpuTarget &target) {
  for (llvm::Function &function : module) {
    if (function.isDeclaration()) {
      continue;
    }
    function.addFnAttr("target-cpu", target.cpu);
    function.addFnAttr("target-features", target.features);
    std::string width = std::to_string(target.tile.vectorBits);
    function.addFnAttr("prefer-vector-width", width);
    function.addFnAttr("min-legal-vector-width", width);
    function.addFnAttr(llvm::Attribute::NoUnwind);
  }
}

static LogicalResult emitFile(llvm::Module &module,
                              llvm::TargetMachine &machine,
                              llvm::CodeGenFileType type, Location loc,
                              std::string &out) {
  llvm::SmallString<0> buffer;
  llvm::raw_svector_ostream stream(buffer);
  llvm::legacy::PassManager passes;
  if (machine.addPassesToEmitFile(passes, stream, nullptr, type)) {
    return emitError(loc) << "target '" << machine.getTargetTriple().str()
                          << "' cannot emit this kind of file";
  }
  passes.run(module);
  out = buffer.str().str();
  return success();
}

FailureOr<CompiledKernel> compileKernel(ModuleOp module,
                                        const CpuTarget &target,
                                        const CompileOptions &options) {
  auto start = std::chrono::steady_clock::now();
  Location loc = module.getLoc();
  CompiledKernel result;
  const TileParameters &tile = target.tile;
  if (failed(CpuTargetAttr::verify([&] { return emitError(loc); },
                                   tile.vectorBits, tile.mr, tile.nr, tile.kc,
                                   tile.block))) {
    return failure();
  }

  PassManager lowering(module.getContext());
  lowering.addPass(createLowerKernels());
  if (failed(lowering.run(module))) {
    return failure();
  }
  auto kernels = llvm::to_vector(module.getOps<func::FuncOp>());
  if (kernels.size() != 1) {
    return emitError(loc) << "expects exactly one kernel, but got "
                          << kernels.size();
  }
  result.name = kernels.front().getName().str();

  PassManager pm(module.getContext());
  addLowerToLLVMPasses(pm);
  if (failed(pm.run(module))) {
    return failure();
  }

  std::unique_ptr<llvm::TargetMachine> machine =
      createTargetMachine(target, options.optLevel, loc);
  if (!machine) {
    return failure();
  }
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> llvmModule =
      translateModuleToLLVMIR(module, context, result.name);
  if (!llvmModule) {
    return emitError(loc) << "cannot translate kernel '" << result.name
                          << "' to LLVM IR";
  }
  llvmModule->setTargetTriple(machine->getTargetTriple());
  llvmModule->setDataLayout(machine->createDataLayout());
  setFunctionAttributes(*llvmModule, target);
  optimize(*llvmModule, *machine, options.optLevel);

  if (options.keepLLVMIR) {
    llvm::raw_string_ostream(result.llvmIR.emplace()) << *llvmModule;
  }
  if (options.keepAssembly) {
    // Code generation changes the module: keep it for the object file.
    std::unique_ptr<llvm::Module> copy = llvm::CloneModule(*llvmModule);
    if (failed(emitFile(*copy, *machine, llvm::CodeGenFileType::AssemblyFile,
                        loc, result.assembly.emplace()))) {
      return failure();
    }
  }
  if (failed(emitFile(*llvmModule, *machine, llvm::CodeGenFileType::ObjectFile,
                      loc, result.object))) {
    return failure();
  }
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  return result;
}

} // namespace kaon::cpu
