//===-- kaon-lsp-server.cpp - language server for textual IR --------------===//

#include "dialect/Kaon.h"
#include "mlir/Tools/mlir-lsp-server/MlirLspServerMain.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  kaon::registerAllDialects(registry);
  return failed(mlir::MlirLspServerMain(argc, argv, registry));
}
