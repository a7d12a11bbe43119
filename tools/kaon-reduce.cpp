//===-- kaon-reduce.cpp - shrink IR that shows a fault --------------------===//

#include "dialect/Kaon.h"
#include "mlir/Tools/mlir-reduce/MlirReduceMain.h"
#include "passes/Passes.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  kaon::registerAllDialects(registry);
  kaon::registerAllPasses();
  mlir::MLIRContext context(registry);
  return failed(mlir::mlirReduceMain(argc, argv, context));
}
