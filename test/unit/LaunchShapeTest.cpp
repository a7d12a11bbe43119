//===-- LaunchShapeTest.cpp - passes over rows and blocks of launches -----===//
//
// What the walks over a row load, keep and store, and which kernel with which
// blocks a launch needs.
//
//===----------------------------------------------------------------------===//

#include "codegen/cuda/LaunchShape.h"

#include "DeviceLibrary.h"
#include "dialect/RowPasses.h"
#include "mlir/Parser/Parser.h"

#include "llvm/Support/FormatVariadic.h"

#include <gtest/gtest.h>

using namespace kaon;
using namespace kaon::cuda;

namespace {

/// A module that is parsed and verified.
class Parsed {
public:
  explicit Parsed(const std::string &text)
      : context(registry(), mlir::MLIRContext::Threading::DISABLED),
        module(mlir::parseSourceString<mlir::ModuleOp>(text, &context)) {
    EXPECT_TRUE(module);
  }

  mlir::func::FuncOp function(llvm::StringRef name) {
    return module->lookupSymbol<mlir::func::FuncOp>(name);
  }

  /// The first op of a kind.
  template <typename OpT> OpT first() {
    OpT found;
    module->walk([&](OpT op) {
      found = op;
      return mlir::WalkResult::interrupt();
    });
    return found;
  }

private:
  static mlir::DialectRegistry registry() {
    mlir::DialectRegistry registry;
    registerAllDialects(registry);
    return registry;
  }

  mlir::MLIRContext context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
};

/// Momentum, the norm of each row, and the step: m1 = m + g, n = sum m1^2,
/// w1 = w - m1 / n.
const char *rowStep = R"(
func.func private @kernel_step(%w: tensor<?x?xf32>, %g: tensor<?x?xbf16>, %m: tensor<?x?xf32>, %s: f64)
    -> (tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x1xf32>) attributes {kaon.kernel = #kaon.schedule<rows>} {
  %g32 = arith.extf %g : tensor<?x?xbf16> to tensor<?x?xf32>
  %m1 = arith.addf %m, %g32 : tensor<?x?xf32>
  %wide = arith.extf %m1 : tensor<?x?xf32> to tensor<?x?xf64>
  %square = arith.mulf %wide, %wide : tensor<?x?xf64>
  %sum = kaon.reduce sum %square along row : tensor<?x?xf64> -> tensor<?x1xf64>
  %n = arith.truncf %sum : tensor<?x1xf64> to tensor<?x1xf32>
  %column = arith.constant 1 : index
  %columns = tensor.dim %m, %column : tensor<?x?xf32>
  %row = arith.constant 0 : index
  %rows = tensor.dim %m, %row : tensor<?x?xf32>
  %b = kaon.broadcast %n : tensor<?x1xf32> to tensor<?x?xf32>
  %u = arith.divf %m1, %b : tensor<?x?xf32>
  %w1 = arith.subf %w, %u : tensor<?x?xf32>
  return %w1, %m1, %n : tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x1xf32>
}
)";

std::vector<unsigned> numbers(llvm::ArrayRef<mlir::BlockArgument> arguments) {
  std::vector<unsigned> found;
  for (mlir::BlockArgument argument : arguments) {
    found.push_back(argument.getArgNumber());
  }
  return found;
}

std::vector<std::string> names(llvm::ArrayRef<mlir::Operation *> ops) {
  std::vector<std::string> found;
  for (mlir::Operation *op : ops) {
    found.push_back(op->getName().getStringRef().str());
  }
  return found;
}

using Numbers = std::vector<unsigned>;
using Names = std::vector<std::string>;

} // namespace

TEST(RowPassesTest, KeepsWhatTheNextPassNeeds) {
  Parsed parsed(rowStep);
  RowPasses passes(parsed.function("kernel_step"), RowPasses::Mode::Keep);
  ASSERT_EQ(passes.getPasses().size(), 2u);
  const RowPass &first = passes.getPasses()[0], &second = passes.getPasses()[1];
  EXPECT_TRUE(passes.isKeepable());

  EXPECT_EQ(numbers(first.loads), (Numbers{1, 2}));
  EXPECT_EQ(names(first.ops),
            (Names{"arith.extf", "arith.addf", "arith.extf", "arith.mulf"}));
  EXPECT_EQ(first.reductions.size(), 1u);
  EXPECT_EQ(llvm::ArrayRef<unsigned>(first.stores).vec(), (Numbers{1}));
  ASSERT_EQ(first.kept.size(), 1u);
  EXPECT_EQ(first.kept[0].getDefiningOp(), first.ops[1]);

  EXPECT_EQ(numbers(second.loads), (Numbers{0}));
  ASSERT_EQ(second.restored.size(), 1u);
  EXPECT_EQ(second.restored[0], first.kept[0]);
  EXPECT_EQ(names(second.ops), (Names{"arith.divf", "arith.subf"}));
  EXPECT_EQ(llvm::ArrayRef<unsigned>(second.stores).vec(), (Numbers{0}));
  EXPECT_TRUE(second.kept.empty());
}

TEST(RowPassesTest, StreamsAllOfEveryPass) {
  Parsed parsed(rowStep);
  RowPasses passes(parsed.function("kernel_step"), RowPasses::Mode::Stream);
  ASSERT_EQ(passes.getPasses().size(), 2u);
  const RowPass &first = passes.getPasses()[0], &second = passes.getPasses()[1];
  EXPECT_TRUE(passes.getKept().empty());
  EXPECT_EQ(numbers(first.loads), (Numbers{1, 2}));
  EXPECT_TRUE(first.stores.empty());
  EXPECT_EQ(numbers(second.loads), (Numbers{0, 1, 2}));
  EXPECT_EQ(names(second.ops),
            (Names{"arith.extf", "arith.addf", "arith.divf", "arith.subf"}));
  EXPECT_EQ(llvm::ArrayRef<unsigned>(second.stores).vec(), (Numbers{0, 1}));
}

TEST(RowPassesTest, TellsWhatVariesAlongARow) {
  Parsed parsed(rowStep);
  mlir::func::FuncOp kernel = parsed.function("kernel_step");
  RowPasses passes(kernel, RowPasses::Mode::Keep);
  for (mlir::Operation &op : kernel.getBody().front().without_terminator()) {
    bool isUniform = llvm::is_contained(
        {"kaon.reduce", "kaon.broadcast", "tensor.dim", "arith.constant"},
        op.getName().getStringRef());
    isUniform |= op.getNumOperands() == 1 &&
                 mlir::isa<ReduceOp>(op.getOperand(0).getDefiningOp()
                                         ? op.getOperand(0).getDefiningOp()
                                         : &op);
    EXPECT_EQ(passes.isUniform(op.getResult(0)), isUniform)
        << op.getName().getStringRef().str();
  }
  EXPECT_TRUE(passes.isUniform(kernel.getArgument(3)));
}

TEST(RowPassesTest, KnowsWhichOperandsMayBeOverwritten) {
  Parsed parsed(rowStep);
  RowPasses passes(parsed.function("kernel_step"), RowPasses::Mode::Keep);
  EXPECT_TRUE(passes.mayStoreOver(0, 0));
  EXPECT_TRUE(passes.mayStoreOver(0, 2));
  EXPECT_TRUE(passes.mayStoreOver(1, 2));
  // The new momentum is stored before the parameter is read.
  EXPECT_FALSE(passes.mayStoreOver(1, 0));
}

TEST(RowPassesTest, RecomputesRatherThanKeepsTwo) {
  Parsed parsed(R"(
func.func private @k(%x: tensor<?x?xf32>, %s: tensor<?x1xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>)
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  %b = kaon.broadcast %s : tensor<?x1xf32> to tensor<?x?xf32>
  %y = arith.mulf %x, %b : tensor<?x?xf32>
  %n = kaon.reduce max %y along row : tensor<?x?xf32> -> tensor<?x1xf32>
  %c = kaon.broadcast %n : tensor<?x1xf32> to tensor<?x?xf32>
  %p = arith.divf %x, %c : tensor<?x?xf32>
  %q = arith.divf %y, %c : tensor<?x?xf32>
  return %p, %q : tensor<?x?xf32>, tensor<?x?xf32>
}
)");
  mlir::func::FuncOp kernel = parsed.function("k");
  RowPasses passes(kernel, RowPasses::Mode::Keep);
  ASSERT_EQ(passes.getKept().size(), 1u);
  EXPECT_EQ(passes.getKept()[0], kernel.getArgument(0));
  EXPECT_EQ(names(passes.getPasses()[1].ops),
            (Names{"arith.mulf", "arith.divf", "arith.divf"}));
}

TEST(RowPassesTest, ReducesNothingThatIsReduced) {
  Parsed parsed(R"(
func.func private @k(%x: tensor<?x?xf32>, %s: tensor<?x1xf32>) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  %t = kaon.reduce sum %s along row : tensor<?x1xf32> -> tensor<?x1xf32>
  %b = kaon.broadcast %t : tensor<?x1xf32> to tensor<?x?xf32>
  %y = arith.mulf %x, %b : tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}
)");
  RowPasses passes(parsed.function("k"), RowPasses::Mode::Keep);
  ASSERT_EQ(passes.getPasses().size(), 1u);
  EXPECT_TRUE(passes.getPasses()[0].reductions.empty());
}

TEST(RowPassesTest, CannotKeepWideOperands) {
  Parsed parsed(R"(
func.func private @k(%x: tensor<?x?xf64>) -> tensor<?x?xf64> attributes {kaon.kernel = #kaon.schedule<rows>} {
  %n = kaon.reduce sum %x along row : tensor<?x?xf64> -> tensor<?x1xf64>
  %b = kaon.broadcast %n : tensor<?x1xf64> to tensor<?x?xf64>
  %y = arith.divf %x, %b : tensor<?x?xf64>
  return %y : tensor<?x?xf64>
}
)");
  RowPasses passes(parsed.function("k"), RowPasses::Mode::Keep);
  EXPECT_FALSE(passes.isKeepable());
  EXPECT_TRUE(passes.getKept().empty());
}

namespace {

/// The shape of rowStep's rows.
RowShape shapeOfRows(int64_t columns, int64_t sharedBytes) {
  Parsed parsed(rowStep);
  mlir::func::FuncOp kernel = parsed.function("kernel_step");
  return getRowShape(kernel, columns,
                     CudaTargetAttr::get(kernel.getContext(), HalfType::BF16,
                                         sharedBytes, MainLoop::Mma));
}

} // namespace

TEST(LaunchShapeTest, ChoosesThreadsByColumns) {
  struct {
    int64_t columns, threads, registerGroups, sharedBytes;
  } cases[] = {
      {1, 32, 4, 256},         {256, 32, 4, 256},       {257, 128, 4, 256},
      {2048, 128, 4, 256},     {2049, 256, 4, 256},     {8192, 256, 4, 256},
      {8193, 512, 4, 256},     {16384, 512, 4, 256},    {16385, 512, 4, 16640},
      {32768, 512, 4, 65792},  {57344, 512, 4, 164096}, {57345, 384, 9, 123136},
      {65536, 384, 9, 160000}, {67584, 384, 9, 160000},
  };
  for (const auto &[columns, threads, registerGroups, sharedBytes] : cases) {
    RowShape shape = shapeOfRows(columns, defaultSharedBytes);
    EXPECT_EQ(shape.threads, threads) << columns;
    EXPECT_EQ(shape.registerGroups, registerGroups) << columns;
    EXPECT_EQ(shape.sharedBytes, sharedBytes) << columns;
    EXPECT_EQ(shape.kept, 1) << columns;
    EXPECT_FALSE(shape.streaming) << columns;
  }
}

TEST(LaunchShapeTest, StreamsRowsThatDoNotFit) {
  EXPECT_FALSE(shapeOfRows(67584, defaultSharedBytes).streaming);
  EXPECT_TRUE(shapeOfRows(67585, defaultSharedBytes).streaming);
  EXPECT_EQ(shapeOfRows(73728, 227 << 10).threads, 512);
  EXPECT_FALSE(shapeOfRows(82944, 227 << 10).streaming);
  EXPECT_TRUE(shapeOfRows(82945, 227 << 10).streaming);
  RowShape shape = shapeOfRows(1 << 20, 227 << 10);
  EXPECT_TRUE(shape.streaming);
  EXPECT_EQ(shape.threads, 512);
  EXPECT_EQ(shape.kept, 0);
  EXPECT_EQ(shape.sharedBytes, 256);
}

namespace {

/// The launch of a module's first op of a kind.
template <typename OpT> std::optional<LaunchShape> launch(const char *body) {
  Parsed parsed(std::string("module attributes {kaon.cuda = "
                            "#kaon.cuda_target<half = bf16, shared_bytes = "
                            "166912>} {") +
                body + "}");
  return getLaunchShape(parsed.first<OpT>());
}

} // namespace

TEST(LaunchShapeTest, CutsElementwiseKernels) {
  std::optional<LaunchShape> shape = launch<LaunchOp>(R"(
func.func private @kernel_a(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  return %x : tensor<?x?xf32>
}
func.func @f(%x: tensor<300x70xf32>) -> tensor<300x70xf32> {
  %y = kaon.launch @kernel_a ins(%x : tensor<300x70xf32>) -> tensor<300x70xf32>
  return %y : tensor<300x70xf32>
})");
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->name, "kernel_a");
  EXPECT_EQ(shape->schedule, runtime::Schedule::Elementwise);
  EXPECT_EQ(shape->threads, 256);
  EXPECT_EQ(shape->items, 3);
  EXPECT_EQ(shape->grain, 8192);
  EXPECT_EQ(shape->sharedBytes, 0);
}

TEST(LaunchShapeTest, NamesRowKernelsByTheirThreads) {
  const std::string kernel = rowStep;
  auto shapeOf = [&](int64_t columns) {
    std::string shape = "300x" + std::to_string(columns);
    std::string full = "tensor<" + shape + "xf32>",
                half = "tensor<" + shape + "xbf16>";
    std::string body = kernel + "func.func @f(%w: " + full + ", %g: " + half +
                       ", %m: " + full + ", %s: f64) -> " + full +
                       " { %a, %b, %c = kaon.launch "
                       "@kernel_step ins(%w, %g, %m : " +
                       full + ", " + half + ", " + full +
                       ") scalars(%s : f64) -> " + full + ", " + full +
                       ", tensor<300x1xf32>\n return %a : " + full + " }";
    return *launch<LaunchOp>(body.c_str());
  };
  LaunchShape small = shapeOf(70);
  EXPECT_EQ(small.name, "kernel_step_t32");
  EXPECT_EQ(small.grain, 14);
  EXPECT_EQ(small.items, 22);
  LaunchShape large = shapeOf(100000);
  EXPECT_EQ(large.name, "kernel_step_t512_streaming");
  EXPECT_EQ(large.grain, 1);
  EXPECT_EQ(large.items, 300);
  // Gradient and momentum are read by both passes, a norm is stored per row.
  EXPECT_EQ(small.bytes, (4 * (2 + 2) + 2) * 300 * 70 + 4 * 300);
  EXPECT_EQ(large.bytes, (4 * (3 + 2) + 2 * 2) * 300 * 100000 + 4 * 300);
  EXPECT_TRUE(large.rows->streaming);
}

TEST(LaunchShapeTest, CutsColumnKernels) {
  std::optional<LaunchShape> shape = launch<LaunchOp>(R"(
func.func private @kernel_c(%x: tensor<?x?xf32>) -> tensor<1x?xf32> attributes {kaon.kernel = #kaon.schedule<columns>} {
  %0 = kaon.reduce max %x along column : tensor<?x?xf32> -> tensor<1x?xf32>
  return %0 : tensor<1x?xf32>
}
func.func @f(%x: tensor<300x700xf32>) -> tensor<1x700xf32> {
  %y = kaon.launch @kernel_c ins(%x : tensor<300x700xf32>) -> tensor<1x700xf32>
  return %y : tensor<1x700xf32>
})");
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->name, "kernel_c");
  EXPECT_EQ(shape->schedule, runtime::Schedule::Columns);
  EXPECT_EQ(shape->threads, 256);
  EXPECT_EQ(shape->grain, 32);
  EXPECT_EQ(shape->items, 22);
  EXPECT_EQ(shape->sharedBytes, 2048);
}

TEST(LaunchShapeTest, CutsTransposes) {
  std::optional<LaunchShape> shape = launch<TransposeOp>(R"(
func.func @f(%x: tensor<300x129xbf16>) -> tensor<129x300xbf16> {
  %y = kaon.transpose %x : tensor<300x129xbf16> -> tensor<129x300xbf16>
  return %y : tensor<129x300xbf16>
})");
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->name, "transpose_bf16");
  EXPECT_EQ(shape->schedule, runtime::Schedule::Transpose);
  EXPECT_EQ(shape->items, 20);
  EXPECT_EQ(shape->grain, 1);
  EXPECT_EQ(shape->sharedBytes, 4224);
  EXPECT_FALSE(launch<TransposeOp>(R"(
func.func @f(%x: tensor<300x1xf32>) -> tensor<1x300xf32> {
  %y = kaon.transpose %x : tensor<300x1xf32> -> tensor<1x300xf32>
  return %y : tensor<1x300xf32>
})"));
}

TEST(LaunchShapeTest, LooksBeforeItRunsInPlace) {
  // The second kernel keeps what the first has stored, wherever it stores.
  auto shapeOf = [](int offset, const char *condition) {
    std::string text = llvm::formatv(R"(
module attributes {{kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {{
func.func private @kernel_a(%g: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {{kaon.kernel = #kaon.schedule<elementwise>} {{
  %0 = arith.negf %g : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
func.func private @kernel_b(%h: tensor<?x?xf32>, %g: tensor<?x?xf32>, %n: tensor<1x1xf32>) -> tensor<?x?xf32>
    attributes {{kaon.kernel = #kaon.schedule<elementwise>} {{
  %ns = kaon.broadcast %n : tensor<1x1xf32> to tensor<?x?xf32>
  %c = arith.cmpf oeq, {1}, %ns : tensor<?x?xf32>
  %p = arith.mulf %ns, %g : tensor<?x?xf32>
  %0 = arith.select %c, %h, %p : tensor<?x?xi1>, tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
func.func @f(%g: tensor<300x70xf32>, %n: tensor<1x1xf32>) -> tensor<300x70xf32> {{
  %h = kaon.launch @kernel_a ins(%g : tensor<300x70xf32>) {{kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<300x70xf32>
  %y = kaon.launch @kernel_b ins(%h, %g, %n : tensor<300x70xf32>, tensor<300x70xf32>, tensor<1x1xf32>)
      {{kaon.buffers = [#kaon.buffer<workspace, {0}>]} -> tensor<300x70xf32>
  return %y : tensor<300x70xf32>
}
})",
                                     offset, condition);
    Parsed parsed(text);
    LaunchOp last;
    parsed.function("f").walk([&](LaunchOp op) { last = op; });
    return *getLaunchShape(last);
  };
  LaunchShape inPlace = shapeOf(0, "%ns");
  EXPECT_TRUE(inPlace.isInPlace);
  EXPECT_EQ(inPlace.name, "kernel_b_in_place");
  EXPECT_EQ(inPlace.schedule, runtime::Schedule::Elementwise);
  // Elsewhere, or by a condition that is not the same for all elements.
  for (const LaunchShape &other : {shapeOf(84224, "%ns"), shapeOf(0, "%g")}) {
    EXPECT_FALSE(other.isInPlace);
    EXPECT_EQ(other.name, "kernel_b");
  }
}

TEST(LaunchShapeTest, NamesProductsByWhatTheyDo) {
  const char *plain = R"(
func.func @f(%x: tensor<300x70xbf16>, %c: tensor<300x300xbf16>, %s: f64) -> tensor<300x300xbf16> {
  %y = kaon.matmul %x, %x transpose_b symmetric beta %s %c
      : (tensor<300x70xbf16>, tensor<300x70xbf16>, tensor<300x300xbf16>) -> tensor<300x300xbf16>
  return %y : tensor<300x300xbf16>
})";
  std::optional<LaunchShape> shape = launch<MatmulOp>(plain);
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->name, "matmul_bf16_transposed_rhs_symmetric_add");
  EXPECT_EQ(shape->schedule, runtime::Schedule::Matmul);
  EXPECT_EQ(shape->sizes, (llvm::SmallVector<int64_t, 3>{300, 300, 70}));
  EXPECT_EQ(shape->items, 6);
  EXPECT_EQ(shape->grain, 1);
  EXPECT_EQ(shape->sharedBytes, 49152);

  shape = launch<MatmulOp>(R"(
func.func private @kernel_0123(%p: tensor<?x?xbf16>, %w: tensor<?x?xf32>) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  return %w : tensor<?x?xf32>
}
func.func @f(%x: tensor<300x70xbf16>, %a: tensor<70x70xbf16>, %w: tensor<70x300xf32>) -> tensor<70x300xf32> {
  %y = kaon.matmul %a, %x transpose_a transpose_b epilogue @kernel_0123(%w : tensor<70x300xf32>)
      : (tensor<70x70xbf16>, tensor<300x70xbf16>) -> tensor<70x300xf32>
  return %y : tensor<70x300xf32>
})");
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->name, "matmul_bf16_transposed_lhs_transposed_rhs_0123");
  EXPECT_EQ(shape->items, 3);
}

TEST(LaunchShapeTest, MapsOperandsThatAreInTheWorkspace) {
  Parsed parsed(R"(
module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 232448, main_loop = wgmma>} {
func.func @f(%x: tensor<300x70xbf16>) -> tensor<300x300xbf16> {
  %y = kaon.matmul %x, %x transpose_b symmetric {kaon.buffers = [#kaon.buffer<workspace, 0>]}
      : (tensor<300x70xbf16>, tensor<300x70xbf16>) -> tensor<300x300xbf16>
  %z = kaon.matmul %y, %y {kaon.buffers = [#kaon.buffer<workspace, 512>]}
      : (tensor<300x300xbf16>, tensor<300x300xbf16>) -> tensor<300x300xbf16>
  return %z : tensor<300x300xbf16>
}
})");
  std::vector<LaunchShape> shapes;
  parsed.function("f").walk(
      [&](MatmulOp op) { shapes.push_back(*getLaunchShape(op)); });
  ASSERT_EQ(shapes.size(), 2u);
  // The first one's operand is the model's, which may move.
  EXPECT_EQ(shapes[0].name, "matmul_bf16_transposed_rhs_symmetric");
  EXPECT_FALSE(shapes[0].tensorMaps);
  EXPECT_EQ(shapes[0].threads, test::deviceProductThreads);
  EXPECT_EQ(shapes[0].sharedBytes, test::deviceProductSharedBytes);
  EXPECT_EQ(shapes[1].name, "matmul_wgmma_bf16");
  EXPECT_TRUE(shapes[1].tensorMaps);
  EXPECT_EQ(shapes[1].items, 9);
  EXPECT_EQ(shapes[1].threads, test::deviceWarpgroupThreads);
  EXPECT_EQ(shapes[1].sharedBytes, test::deviceWarpgroupSharedBytes);
}

TEST(LaunchShapeTest, AgreesWithTheDeviceLibraryOnRows) {
  Parsed parsed(rowStep);
  mlir::func::FuncOp kernel = parsed.function("kernel_step");
  auto target = CudaTargetAttr::get(kernel.getContext(), HalfType::BF16,
                                    227 << 10, MainLoop::Mma);
  for (int64_t columns = 1; columns < 100000; columns += columns / 7 + 1) {
    RowShape shape = getRowShape(kernel, columns, target);
    EXPECT_EQ(shape.sharedBytes,
              test::deviceRowSharedBytes(columns, shape.threads,
                                         shape.registerGroups, shape.kept,
                                         /*reductions=*/1))
        << columns;
    // 384 threads that keep 8 values each in 27 groups, of which 9 are in
    // registers, need 216 KiB.
    EXPECT_EQ(shape.streaming, columns > 27 * 8 * 384) << columns;
  }
}

TEST(LaunchShapeTest, AgreesWithTheDeviceLibraryOnTheRest) {
  EXPECT_EQ(test::deviceElementwiseGrain, runtime::cudaElementwiseGrain);
  EXPECT_EQ(test::deviceElementwiseThreads, 256);
  EXPECT_EQ(test::deviceProductThreads, 256);
  EXPECT_EQ(test::deviceProductSharedBytes, 49152);
  EXPECT_EQ(test::deviceTransposeTile, runtime::cudaTransposeRows);
  EXPECT_EQ(test::deviceTransposeColumns, runtime::cudaTransposeColumns);
  EXPECT_EQ(test::deviceColumnThreads, 256);
  EXPECT_EQ(test::deviceColumnsOfBlock, runtime::cudaColumnGrain);
  EXPECT_EQ(test::deviceColumnSharedBytes(3), 3 * 2048);
  auto shapeOf = [](const char *type, const char *turned) {
    std::string body = std::string("func.func @f(%x: ") + type + ") -> " +
                       turned + " { %y = kaon.transpose %x : " + type + " -> " +
                       turned + "\n return %y : " + turned + " }";
    return *launch<TransposeOp>(body.c_str());
  };
  EXPECT_EQ(shapeOf("tensor<300x70xbf16>", "tensor<70x300xbf16>").sharedBytes,
            test::deviceTransposeSharedBytesOfHalf);
  EXPECT_EQ(shapeOf("tensor<300x70xf32>", "tensor<70x300xf32>").sharedBytes,
            test::deviceTransposeSharedBytesOfFloat);
  for (int64_t m : {1, 128, 129, 1000}) {
    for (bool symmetric : {false, true}) {
      int64_t n = symmetric ? m : 300;
      std::string result =
          "tensor<" + std::to_string(m) + "x" + std::to_string(n) + "xbf16>";
      std::string lhs = "tensor<" + std::to_string(m) + "x5xbf16>";
      std::string rhs = "tensor<5x" + std::to_string(n) + "xbf16>";
      std::string body = "func.func @f(%x: " + lhs + ", %y: " + rhs + ") -> " +
                         result + " { %z = kaon.matmul %x, %y " +
                         (symmetric ? "symmetric" : "") + ": (" + lhs + ", " +
                         rhs + ") -> " + result + "\n return %z : " + result +
                         " }";
      EXPECT_EQ(launch<MatmulOp>(body.c_str())->items,
                test::deviceProductTiles(m, n, symmetric));
    }
  }
}
