//===-- kaon-opt.cpp - run passes on textual IR ---------------------------===//

#include "codegen/cpu/Passes.h"
#include "codegen/cuda/Passes.h"
#include "dialect/Kaon.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "passes/Passes.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  kaon::registerAllDialects(registry);
  kaon::registerAllPasses();
  kaon::cpu::registerCpuPasses();
  kaon::cuda::registerCudaPasses();
  return mlir::asMainReturnCode(
      mlir::MlirOptMain(argc, argv, "Kaon optimizer driver\n", registry));
}
