//===-- kaon-opt.cpp - run passes on textual IR ---------------------------===//

#include "dialect/Kaon.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "passes/Passes.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  kaon::registerAllDialects(registry);
  kaon::registerAllPasses();
  return mlir::asMainReturnCode(
      mlir::MlirOptMain(argc, argv, "Kaon optimizer driver\n", registry));
}
