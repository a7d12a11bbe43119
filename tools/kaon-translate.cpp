//===-- kaon-translate.cpp - textual IR to other text ---------------------===//

#include "codegen/cuda/EmitCuda.h"
#include "mlir/Tools/mlir-translate/MlirTranslateMain.h"

int main(int argc, char **argv) {
  kaon::cuda::registerCudaTranslation();
  return failed(
      mlir::mlirTranslateMain(argc, argv, "Kaon translation driver\n"));
}
