//===-- TestProducts.h - products with references ---------------*- C++ -*-===//
//
// Lists of products with random operands, ragged where the library allows it,
// and the elements that their results must have, computed by plain loops. What
// the kernels of every main loop have to do with them is checked by the same
// functions.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_CUDA_TESTPRODUCTS_H
#define KAON_TEST_CUDA_TESTPRODUCTS_H

#include "codegen/cuda/lib/TileScheduler.cuh"
#include "codegen/cuda/lib/WarpgroupProduct.cuh"
#include "test/cuda/TestMemory.h"
#include "test/cuda/shim/TensorMap.h"

#include <deque>
#include <optional>

namespace kaon::test {

/// A row-major matrix as product kernels take it. Its padding is NaN.
template <typename T> struct TestMatrix {
  TestMatrix(int rows, int columns)
      : rows(rows), columns(columns), pitch(device::divideUp(columns, 8) * 8),
        data(static_cast<size_t>(rows) * pitch) {}

  T &at(int row, int column) const {
    return data[static_cast<size_t>(row) * pitch + column];
  }

  template <typename Function> void forEach(Function function) const {
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < columns; ++column) {
        function(row, column, at(row, column));
      }
    }
  }

  int rows, columns, pitch;
  DeviceArray<T> data;
};

struct Shape {
  int m, n, k;
};

/// How the products of a list are made.
struct Form {
  /// A is stored k x m, B is stored k x n; otherwise m x k and n x k.
  bool tallA = false, tallB = false;
  /// B is A: the result is symmetric.
  bool sameOperands = false;
  /// Only the tiles of a triangle are computed.
  bool symmetric = false;
  bool addend = false;
};

/// One product, its operands and its scalars. The scalars are not numbers of
/// f32, to which kernels round them.
template <typename T> struct TestProduct {
  TestProduct(const Shape &shape, const Form &form, unsigned seed)
      : shape(shape), form(form),
        a(form.tallA ? shape.k : shape.m, form.tallA ? shape.m : shape.k),
        b(form.tallB ? shape.k : shape.n, form.tallB ? shape.n : shape.k),
        c(shape.m, shape.n), d(shape.m, shape.n), factor(1) {
    Normal normal(seed);
    auto randomize = [&](int, int, T &value) {
      value = device::narrow<T>(normal());
    };
    a.forEach(randomize);
    b.forEach(randomize);
    c.forEach(randomize);
    if (form.symmetric) {
      c.forEach([&](int row, int column, T &value) {
        value = c.at(std::min(row, column), std::max(row, column));
      });
    }
    factor[0] = 0.3f;
    alpha = 1.1 + seed % 3;
  }

  static constexpr double beta = -0.3;

  T elementA(int row, int k) const {
    return form.tallA ? a.at(k, row) : a.at(row, k);
  }
  T elementB(int k, int column) const {
    if (form.sameOperands) {
      return elementA(column, k);
    }
    return form.tallB ? b.at(k, column) : b.at(column, k);
  }

  std::vector<double> scalars() const {
    std::vector<double> values = {alpha};
    if (form.addend) {
      values.push_back(beta);
    }
    return values;
  }

  device::Product product() const {
    const TestMatrix<T> &right = form.sameOperands ? a : b;
    return {a.data.data(),
            right.data.data(),
            form.addend ? c.data.data() : nullptr,
            d.data.data(),
            factor.data(),
            shape.m,
            shape.n,
            shape.k,
            a.pitch,
            right.pitch,
            c.pitch,
            d.pitch,
            0,
            0};
  }

  /// The scaled element in f32: products in the order of k, then one rounding
  /// per operation, which is what the host's primitives do.
  float expected(int row, int column) const {
    float sum = 0;
    for (int k = 0; k < shape.k; ++k) {
      sum = std::fma(toFloat(elementA(row, k)), toFloat(elementB(k, column)),
                     sum);
    }
    float scale = static_cast<float>(alpha) * factor[0];
    float result = scale * sum;
    if (form.addend) {
      float addendScale = static_cast<float>(beta) * factor[0];
      result = std::fma(addendScale, toFloat(c.at(row, column)), result);
    }
    return result;
  }

  /// The same in f64, and the sum of the terms' magnitudes.
  void exact(int row, int column, double &result, double &magnitude) const {
    double scale = alpha * factor[0];
    result = magnitude = 0;
    auto add = [&](double term) {
      result += term;
      magnitude += std::abs(term);
    };
    for (int k = 0; k < shape.k; ++k) {
      add(scale * toFloat(elementA(row, k)) * toFloat(elementB(k, column)));
    }
    if (form.addend) {
      add(beta * factor[0] * toFloat(c.at(row, column)));
    }
  }

  Shape shape;
  Form form;
  TestMatrix<T> a, b, c, d;
  DeviceArray<float> factor;
  double alpha;
};

/// The tables of one launch.
struct ProductTables {
  device::ProductList list() const {
    return {products.data(), static_cast<uint32_t>(products.size()),
            tilesPerProduct};
  }

  DeviceArray<device::Product> products;
  DeviceArray<double> scalars;
  uint32_t tilesPerProduct, tiles;
};

/// Tables for products of which each has its scalars. All are searched for,
/// unless `batched` says that they have equally many tiles.
inline ProductTables
makeTables(std::vector<device::Product> products,
           const std::vector<std::vector<double>> &scalarSets, bool symmetric,
           bool batched = false) {
  std::vector<double> scalars;
  uint32_t tiles = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    products[i].firstTile = tiles;
    products[i].firstScalar = static_cast<uint32_t>(scalars.size());
    tiles += device::productTiles(products[i].m, products[i].n, symmetric);
    scalars.insert(scalars.end(), scalarSets[i].begin(), scalarSets[i].end());
  }
  uint32_t perProduct =
      batched ? tiles / static_cast<uint32_t>(products.size()) : 0;
  return {deviceArray(products), deviceArray(scalars), perProduct, tiles};
}

/// A list of products of one form.
template <typename T>
std::deque<TestProduct<T>> makeProducts(const std::vector<Shape> &shapes,
                                        const Form &form) {
  std::deque<TestProduct<T>> products;
  for (const Shape &shape : shapes) {
    products.emplace_back(shape, form, 1 + products.size());
  }
  return products;
}

template <typename T>
ProductTables makeTables(const std::deque<TestProduct<T>> &products,
                         bool batched = false) {
  std::vector<device::Product> table;
  std::vector<std::vector<double>> scalars;
  for (const TestProduct<T> &product : products) {
    table.push_back(product.product());
    scalars.push_back(product.scalars());
  }
  return makeTables(table, scalars, products.front().form.symmetric, batched);
}

/// Elements of the results that do not have the expected bits.
template <typename T>
size_t countWrong(const std::deque<TestProduct<T>> &products) {
  size_t wrong = 0;
  for (const TestProduct<T> &product : products) {
    product.d.forEach([&](int row, int column, T value) {
      T expected = device::narrow<T>(product.expected(row, column));
      wrong += value.bits != expected.bits;
    });
  }
  return wrong;
}

/// Elements of a matrix's padding, which starts as NaN, that were written.
template <typename T> size_t countWritten(const TestMatrix<T> &matrix) {
  size_t written = 0;
  for (int row = 0; row < matrix.rows; ++row) {
    for (int column = matrix.columns; column < matrix.pitch; ++column) {
      written += matrix.at(row, column).bits != 0xffff;
    }
  }
  return written;
}

/// Parameters to which products are applied as kernels::DecoupledUpdate does.
/// Their rows are contiguous and of any length; the first starts `offset`
/// elements off an aligned address.
template <typename T, typename Parameter> class AppliedProducts {
public:
  explicit AppliedProducts(const std::deque<TestProduct<T>> &products,
                           size_t offset = 1)
      : products(products) {
    for (const TestProduct<T> &product : products) {
      Normal normal(7);
      parameters.push_back(
          DeviceArray<Parameter>(product.shape.m * product.shape.n, offset)
              .fill([&] { return device::narrow<Parameter>(normal()); }));
      before.push_back(parameters.back().values());
    }
  }

  ProductTables tables() const {
    std::vector<device::Product> table;
    std::vector<std::vector<double>> scalars;
    for (size_t i = 0; i < products.size(); ++i) {
      table.push_back(products[i].product());
      table.back().d = parameters[i].data();
      table.back().pitchD = products[i].shape.n;
      scalars.push_back(products[i].scalars());
      scalars.back().insert(scalars.back().end(), {keep, step});
    }
    return makeTables(table, scalars, /*symmetric=*/false);
  }

  /// Elements of the parameters that do not have the expected bits.
  size_t countWrong() const {
    size_t wrong = 0;
    for (size_t i = 0; i < products.size(); ++i) {
      products[i].d.forEach([&](int row, int column, T) {
        size_t at = static_cast<size_t>(row) * products[i].shape.n + column;
        float direction =
            static_cast<float>(step) * products[i].expected(row, column);
        float kept = static_cast<float>(keep) * device::toFloat(before[i][at]);
        auto expected = device::narrow<Parameter>(kept - direction);
        wrong += !sameBits<Parameter>({expected}, {parameters[i][at]});
      });
    }
    return wrong;
  }

private:
  static constexpr double keep = 0.99, step = 0.1;
  const std::deque<TestProduct<T>> &products;
  std::deque<DeviceArray<Parameter>> parameters;
  std::vector<std::vector<Parameter>> before;
};

/// Writes the map of an operand whose boxes are those of WarpgroupProduct.
template <typename T>
void mapOperand(device::TensorMap &map, const TestMatrix<T> &matrix) {
  shim::TensorMapContent content;
  content.address = reinterpret_cast<uintptr_t>(matrix.data.data());
  content.columns = static_cast<uint64_t>(matrix.columns);
  content.rows = static_cast<uint64_t>(matrix.rows);
  content.pitchBytes = static_cast<uint64_t>(matrix.pitch) * sizeof(T);
  content.boxColumns = content.boxRows = device::boxSize;
  content.elementBytes = sizeof(T);
  content.swizzle = 3;
  EXPECT_EQ(shim::checkTensorMap(&map, content), "");
  shim::writeTensorMap(&map, content);
}

/// Puts maps, which it returns, in the place of the operands of `products`.
template <typename T>
DeviceArray<device::TensorMap>
mapOperands(const std::deque<TestProduct<T>> &products,
            const ProductTables &tables) {
  DeviceArray<device::TensorMap> maps(2 * products.size());
  for (size_t i = 0; i < products.size(); ++i) {
    const TestProduct<T> &product = products[i];
    device::Product &entry = tables.products[i];
    mapOperand(maps[2 * i], product.a);
    mapOperand(maps[2 * i + 1],
               product.form.sameOperands ? product.a : product.b);
    entry.a = &maps[2 * i];
    entry.b = &maps[2 * i + 1];
  }
  return maps;
}

//===----------------------------------------------------------------------===//
// What every main loop has to do
//===----------------------------------------------------------------------===//

using ProductKernel = void (*)(device::ProductList, const double *);

/// How kernels are launched; `takesMaps`: their operands are tensor maps.
struct ProductLaunch {
  uint32_t threads;
  size_t sharedBytes;
  bool takesMaps = false;
};

/// Runs a kernel on tables as they are.
inline void launchProducts(const ProductLaunch &launch, ProductKernel kernel,
                           const ProductTables &tables,
                           const shim::Schedule &schedule) {
  device::ProductList list = tables.list();
  const double *scalars = tables.scalars.data();
  shim::launch({tables.tiles, launch.threads, launch.sharedBytes}, schedule,
               [=] { kernel(list, scalars); });
}

/// The same on the tables of `products`, with maps if the kernel takes them.
template <typename T>
void runProducts(const ProductLaunch &launch, ProductKernel kernel,
                 const std::deque<TestProduct<T>> &products,
                 const ProductTables &tables,
                 const shim::Schedule &schedule = {}) {
  std::optional<DeviceArray<device::TensorMap>> maps;
  if (launch.takesMaps) {
    maps.emplace(mapOperands(products, tables));
  }
  launchProducts(launch, kernel, tables, schedule);
}

/// All elements have the expected bits, and no padding is written.
template <typename T>
void expectExact(const ProductLaunch &launch, ProductKernel kernel,
                 const std::vector<Shape> &shapes, const Form &form) {
  for (const shim::Schedule &schedule : shim::schedules) {
    auto products = makeProducts<T>(shapes, form);
    runProducts(launch, kernel, products, makeTables(products), schedule);
    EXPECT_EQ(countWrong(products), 0u) << schedule.str();
    for (const TestProduct<T> &product : products) {
      EXPECT_EQ(countWritten(product.d), 0u) << "padding was written";
    }
  }
}

/// Symmetric products that are searched for have the bits of those that have
/// equally many tiles.
template <typename T>
void expectBatchEqualsGroup(const ProductLaunch &launch, ProductKernel kernel,
                            int k) {
  const std::vector<Shape> shapes(3, Shape{140, 140, k});
  const Form form = {.sameOperands = true, .symmetric = true};
  auto batch = makeProducts<T>(shapes, form);
  auto group = makeProducts<T>(shapes, form);
  ProductTables tables = makeTables(batch, /*batched=*/true);
  EXPECT_EQ(tables.tilesPerProduct, 3u);
  runProducts(launch, kernel, batch, tables);
  runProducts(launch, kernel, group, makeTables(group));
  for (size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_TRUE(sameBits(batch[i].d.data.values(), group[i].d.data.values()));
  }
  EXPECT_EQ(countWrong(batch), 0u);
}

/// The parameter after the last product of an iteration.
template <typename T, typename Parameter>
void expectApplied(const ProductLaunch &launch, ProductKernel kernel,
                   const std::vector<Shape> &shapes) {
  for (const shim::Schedule &schedule : shim::schedules) {
    auto products = makeProducts<T>(shapes, {.tallB = true, .addend = true});
    AppliedProducts<T, Parameter> applied(products);
    runProducts(launch, kernel, products, applied.tables(), schedule);
    EXPECT_EQ(applied.countWrong(), 0u) << schedule.str();
  }
}

} // namespace kaon::test

#endif // KAON_TEST_CUDA_TESTPRODUCTS_H
