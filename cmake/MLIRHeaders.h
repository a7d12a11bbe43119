//===-- MLIRHeaders.h - precompiled MLIR headers
//----------------------------===//
//
// Parsing MLIR's headers is most of the cost of compiling a pass, so that they
// are precompiled once for the whole compiler half.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CMAKE_MLIRHEADERS_H
#define KAON_CMAKE_MLIRHEADERS_H

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

#endif // KAON_CMAKE_MLIRHEADERS_H
