//===-- Background.cpp - what runs beside the threads of a block ----------===//
//
// The machine's part of WarpgroupHost.cuh. When something in the background
// happens is up to the schedule: a copy arrives at its start, or only when no
// thread can go on; a product reads its operands at its start, or only when it
// is waited for. Until then the destinations of both are NaN.
//
// To ThreadSanitizer a box is written by the thread that starts its copy, and
// operands are read by the lane whose sums need them: what a barrier in shared
// memory must keep apart is what it reports.
//
//===----------------------------------------------------------------------===//

#include "codegen/cuda/lib/WarpgroupHost.cuh"
#include "test/cuda/shim/Machine.h"
#include "test/cuda/shim/TensorMap.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

using namespace kaon;
using namespace kaon::shim;

namespace {

constexpr int numLanes = 32, numSums = 64;
constexpr size_t unitBytes = 16;
constexpr int notANumberByte = 0xff;
/// Bytes that a barrier can count in one phase.
constexpr int64_t mostBytes = (1 << 20) - 1;

/// A barrier in shared memory; the generation of its place is its phase.
struct Barrier {
  Rendezvous place = {0, 0, {"a barrier in shared memory"}};
  uint32_t arrivals = 0, missing = 0;
  int64_t bytes = 0;
  /// Whether copies may use it.
  bool isShown = false;
  /// Of this phase and the next, in turn.
  std::unique_ptr<OrderingPoint[]> order = std::make_unique<OrderingPoint[]>(2);

  OrderingPoint &phaseOrder() { return order[place.generation % 2]; }

  void endPhaseIfComplete() {
    if (missing == 0 && bytes == 0) {
      missing = arrivals;
      ++place.generation;
    }
  }
};

/// A box on its way: its bytes in the order in which they will lie.
struct PendingBox {
  char *shared;
  std::vector<char> bytes;
  Barrier *barrier;
};

struct PendingProduct {
  machine::WarpgroupProduct product;
  bool isDone = false;
};

/// What a thread has in flight.
struct ThreadBackground {
  std::set<const void *> acquiredMaps;
  std::set<Barrier *> madeBarriers;

  bool isFenced = false;
  /// The sums of the products in flight, and their values by the products that
  /// are done.
  float *sums = nullptr;
  std::array<float, numSums> values;
  std::vector<PendingProduct> products;
  std::vector<size_t> groups;
  size_t ungrouped = 0;

  /// Of this wait of the thread's warp and the next, in turn.
  std::shared_ptr<OrderingPoint[]> order;
  unsigned numWaits = 0;

  OrderingPoint &orderOfWait() const { return order[numWaits % 2]; }
};

/// When something happens.
enum class Moment { atOnce, late, random };

struct Background {
  BackgroundBlock block = {};
  Moment copies = Moment::late, products = Moment::late;
  std::minstd_rand random;
  std::map<const void *, Barrier> barriers;
  std::vector<PendingBox> boxes;
  std::vector<ThreadBackground> threads;
  /// Whether the block has used any of this.
  bool isUsed = false;

  bool happensNow(Moment moment) {
    return moment == Moment::atOnce ||
           (moment == Moment::random && random() % 2 == 0);
  }
};

Background background;

ThreadBackground &currentThread() {
  background.isUsed = true;
  uint32_t index = machine::threadIndex();
  ThreadBackground &thread = background.threads[index];
  if (!thread.order) {
    // The first lane of a warp that comes here makes it for all.
    std::shared_ptr<OrderingPoint[]> order(new OrderingPoint[2]);
    uint32_t first = index / numLanes * numLanes;
    for (uint32_t i = first; i < first + numLanes; ++i) {
      background.threads[i].order = order;
    }
  }
  return thread;
}

Barrier &findBarrier(const char *name, void *barrier) {
  auto found = background.barriers.find(barrier);
  if (found == background.barriers.end()) {
    fail(std::string(name) + " expects a barrier that barrierInit has made");
  }
  return found->second;
}

/// Accesses the bytes of a barrier as the running thread, so that a race
/// detector sees whether it was made before.
void touch(void *barrier) {
  static_cast<void>(*static_cast<volatile uint64_t *>(barrier));
}

/// Flips bits 4 to 3 + `swizzle` of an address where those three bits above
/// them are set.
uint32_t swizzled(uint32_t address, uint32_t swizzle) {
  uint32_t mask = ((1u << swizzle) - 1) << 7;
  return address ^ ((address & mask) >> 3);
}

} // namespace

//===----------------------------------------------------------------------===//
// Blocks
//===----------------------------------------------------------------------===//

void shim::resetBackground(const BackgroundBlock &block,
                           const Schedule &schedule) {
  background.block = block;
  background.random.seed(schedule.seed + 1);
  if (background.isUsed) {
    background.barriers.clear();
    background.boxes.clear();
    background.threads.clear();
    background.isUsed = false;
  }
  background.threads.resize(block.threads);
  // Late products find stages that were overwritten too early, and late copies
  // stages that were read too early.
  switch (schedule.order) {
  case Schedule::forward:
    background.copies = background.products = Moment::late;
    break;
  case Schedule::shuffled:
    background.copies = background.products = Moment::random;
    break;
  case Schedule::reverse:
    background.copies = Moment::atOnce;
    background.products = Moment::late;
    break;
  case Schedule::warpByWarp:
    background.copies = Moment::late;
    background.products = Moment::atOnce;
    break;
  case Schedule::lastWarpFirst:
    background.copies = background.products = Moment::atOnce;
    break;
  }
}

static void letArrive(size_t index) {
  std::vector<PendingBox> &boxes = background.boxes;
  PendingBox box = std::move(boxes[index]);
  boxes.erase(boxes.begin() + static_cast<ptrdiff_t>(index));
  std::memcpy(box.shared, box.bytes.data(), box.bytes.size());
  box.barrier->bytes -= static_cast<int64_t>(box.bytes.size());
  box.barrier->endPhaseIfComplete();
}

bool shim::letCopyArrive() {
  Quiet quiet;
  if (background.boxes.empty()) {
    return false;
  }
  bool anyOrder = background.copies == Moment::random;
  letArrive(anyOrder ? background.random() % background.boxes.size() : 0);
  return true;
}

void shim::checkThreadEnd(uint32_t thread) {
  if (!background.threads[thread].products.empty()) {
    fail("the kernel ended with products in flight");
  }
}

//===----------------------------------------------------------------------===//
// Barriers in shared memory
//===----------------------------------------------------------------------===//

void machine::barrierInit(void *barrier, uint32_t arrivals) {
  // The smallest access that is checked; barriers are aligned to 8 bytes.
  auto address = reinterpret_cast<uintptr_t>(barrier);
  checkShared("barrierInit", reinterpret_cast<void *>(address & ~uintptr_t(8)));
  *static_cast<volatile uint64_t *>(barrier) = arrivals;
  Quiet quiet;
  if (background.barriers.contains(barrier)) {
    fail("barrierInit expects memory without a barrier");
  }
  Barrier &made = background.barriers[barrier];
  made.arrivals = made.missing = arrivals;
  currentThread().madeBarriers.insert(&made);
}

void machine::barrierInitFence() {
  Quiet quiet;
  for (Barrier *barrier : currentThread().madeBarriers) {
    barrier->isShown = true;
  }
}

static void arrive(const char *name, Barrier &barrier) {
  barrier.phaseOrder().release();
  if (barrier.missing == 0) {
    fail(std::string(name) + " expects a phase that is short of threads, but "
                             "all have arrived");
  }
  --barrier.missing;
  barrier.endPhaseIfComplete();
}

void machine::barrierExpect(void *barrier, uint32_t bytes) {
  touch(barrier);
  Quiet quiet;
  Barrier &found = findBarrier("barrierExpect", barrier);
  found.bytes += bytes;
  if (found.bytes > mostBytes) {
    fail("barrierExpect expects at most 2^20 - 1 bytes in a phase, but got " +
         std::to_string(found.bytes));
  }
  arrive("barrierExpect", found);
}

void machine::barrierArrive(void *barrier) {
  touch(barrier);
  Quiet quiet;
  arrive("barrierArrive", findBarrier("barrierArrive", barrier));
}

void machine::barrierWait(void *barrier, uint32_t parity) {
  touch(barrier);
  Quiet quiet;
  Barrier &found = findBarrier("barrierWait", barrier);
  while (found.place.generation % 2 == parity) {
    waitAt(found.place);
  }
  found.order[parity].acquire();
}

//===----------------------------------------------------------------------===//
// Copies of boxes
//===----------------------------------------------------------------------===//

void machine::tensorMapAcquire(const void *map) {
  Quiet quiet;
  currentThread().acquiredMaps.insert(map);
}

static TensorMapContent readTensorMap(const void *map) {
  TensorMapContent content;
  std::memcpy(&content, map, sizeof content);
  Quiet quiet;
  if (content.marked != TensorMapContent::mark) {
    fail("copyBox expects a map that the driver has encoded");
  }
  if (!currentThread().acquiredMaps.contains(map)) {
    fail("copyBox expects a map that the thread has acquired");
  }
  return content;
}

/// The bytes of a box as they will lie from `address` on: rows after each
/// other, elements outside of the matrix zero.
static std::vector<char> readBox(const TensorMapContent &map, uint32_t address,
                                 int64_t column, int64_t row) {
  uint32_t rowBytes = map.boxColumns * map.elementBytes;
  std::vector<char> bytes(size_t(rowBytes) * map.boxRows), line(rowBytes);
  auto columns = static_cast<int64_t>(map.columns);
  int64_t first = std::clamp<int64_t>(-column, 0, map.boxColumns),
          last = std::clamp<int64_t>(columns - column, first, map.boxColumns);
  for (uint32_t i = 0; i < map.boxRows; ++i) {
    std::fill(line.begin(), line.end(), 0);
    int64_t at = row + i;
    if (at >= 0 && at < static_cast<int64_t>(map.rows) && first < last) {
      // The device's addresses are the host's own.
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      const auto *source =
          reinterpret_cast<const char *>(map.address + at * map.pitchBytes +
                                         (column + first) * map.elementBytes);
      size_t size = (last - first) * map.elementBytes;
      observeCopy(source, size);
      std::memcpy(line.data() + first * map.elementBytes, source, size);
    }
    for (uint32_t unit = 0; unit < rowBytes; unit += unitBytes) {
      uint32_t offset = i * rowBytes + unit;
      uint32_t target = swizzled(address + offset, map.swizzle) - address;
      std::memcpy(bytes.data() + target, line.data() + unit, unitBytes);
    }
  }
  return bytes;
}

void machine::copyBox(void *shared, const void *map, int32_t column,
                      int32_t row, void *barrier) {
  checkShared("copyBox", shared);
  touch(barrier);
  TensorMapContent content = readTensorMap(map);
  uint32_t address = sharedAddress(shared);
  std::vector<char> bytes = readBox(content, address, column, row);
  if (address % 128 != 0) {
    fail("copyBox expects a destination aligned to 128 bytes");
  }
  checkShared("copyBox",
              static_cast<char *>(shared) + bytes.size() - unitBytes);
  std::memset(shared, notANumberByte, bytes.size());
  Quiet quiet;
  Barrier &found = findBarrier("copyBox", barrier);
  if (!found.isShown) {
    fail("copyBox expects a barrier that barrierInitFence has shown to it");
  }
  found.phaseOrder().release();
  background.boxes.push_back(
      {static_cast<char *>(shared), std::move(bytes), &found});
  if (background.happensNow(background.copies)) {
    letArrive(background.boxes.size() - 1);
  }
}

//===----------------------------------------------------------------------===//
// Products of warpgroups
//===----------------------------------------------------------------------===//

namespace {

/// A matrix descriptor, and whether it is of a transposed matrix.
class Matrix {
public:
  Matrix(uint64_t descriptor, bool transposed)
      : start(field(descriptor, 0)), leading(field(descriptor, 16)),
        stride(field(descriptor, 32)), transposed(transposed) {
    // Types 0 to 3 swizzle nothing, 128, 64 and 32 bytes.
    uint64_t type = descriptor >> 62;
    swizzle = type == 0 ? 0 : 4 - static_cast<uint32_t>(type);
    if (descriptor >> 49 & 7) {
      fail("multiplyAsync expects a base offset of 0: tiles aligned to 1024 "
           "bytes");
    }
  }

  /// The element at (along, k), where `along` is a row of A or a column of B.
  /// These are the canonical layouts of the PTX ISA for both major-ness modes.
  const uint16_t *element(int along, int k) const {
    constexpr int unitSize = 8;
    uint32_t width = 1u << swizzle, rowBytes = unitBytes * width;
    int row = transposed ? k : along, column = transposed ? along : k;
    uint32_t unit = column / unitSize;
    bool isPlain = swizzle == 0;
    uint32_t unitStride = isPlain == transposed ? stride : leading;
    uint32_t rowStride = isPlain && transposed ? leading : stride;
    uint32_t address = start + row / 8 * rowStride + row % 8 * rowBytes +
                       unit / width * unitStride + unit % width * unitBytes +
                       column % unitSize * sizeof(uint16_t);
    uint32_t offset = swizzled(address, swizzle) - sharedWindow;
    if (offset + sizeof(uint16_t) > background.block.sharedBytes) {
      fail("multiplyAsync expects descriptors of shared memory, but reads "
           "offset " +
           std::to_string(static_cast<int32_t>(offset)));
    }
    return reinterpret_cast<const uint16_t *>(background.block.shared + offset);
  }

private:
  static uint32_t field(uint64_t descriptor, int shift) {
    return static_cast<uint32_t>(descriptor >> shift & 0x3fff) << 4;
  }

  uint32_t start, leading, stride, swizzle = 0;
  bool transposed;
};

using LanePointers =
    std::array<const uint16_t *, machine::productDepth *(machine::laneRows +
                                                         machine::laneColumns)>;

/// Where the operands of the running lane lie, in the order of LaneOperands.
LanePointers locateOperands(const machine::WarpgroupProduct &product) {
  Quiet quiet;
  Matrix a(product.a, product.transposedA), b(product.b, product.transposedB);
  int thread = static_cast<int>(machine::threadIndex());
  int warp = thread / numLanes % 4, lane = thread % numLanes;
  LanePointers pointers;
  auto *next = pointers.begin();
  for (int row = 0; row < machine::laneRows; ++row) {
    for (int k = 0; k < machine::productDepth; ++k) {
      *next++ = a.element(warp * 16 + lane / 4 + row * 8, k);
    }
  }
  for (int k = 0; k < machine::productDepth; ++k) {
    for (int column = 0; column < machine::laneColumns; ++column) {
      *next++ = b.element(column / 2 * 8 + lane % 4 * 2 + column % 2, k);
    }
  }
  return pointers;
}

/// Reads the operands of the running lane, and adds their product.
void multiply(ThreadBackground &thread, PendingProduct &pending) {
  LanePointers pointers = locateOperands(pending.product);
  machine::LaneOperands operands;
  static_assert(sizeof operands == sizeof(uint16_t) * pointers.size());
  auto *target = reinterpret_cast<uint16_t *>(&operands);
  for (const uint16_t *pointer : pointers) {
    *target++ = *pointer;
  }
  Quiet quiet;
  pending.product.multiply(thread.values.data(), operands);
  pending.isDone = true;
}

/// What all lanes of a warp do together.
void meetWarp(const char *name) {
  uint32_t nothing = 0, answer;
  machine::exchange(name, &nothing, 1, &answer, 1,
                    [](const machine::WarpInput &, machine::WarpOutput &) {});
}

bool areUntouched(const float *sums) {
  return std::all_of(sums, sums + numSums, [](float sum) {
    return std::bit_cast<uint32_t>(sum) == 0xffffffff;
  });
}

/// Checks what a thread did with its sums, and takes them away from it.
void takeSums(ThreadBackground &thread, float *sums) {
  if (!thread.products.empty()) {
    if (sums != thread.sums || !areUntouched(sums)) {
      fail("multiplyAsync expects sums that the thread has not touched since "
           "the products in flight");
    }
    return;
  }
  if (!thread.isFenced) {
    fail("multiplyAsync expects a productFence after other uses of its sums");
  }
  thread.sums = sums;
  std::copy_n(sums, numSums, thread.values.begin());
  std::memset(sums, notANumberByte, numSums * sizeof(float));
}

} // namespace

void machine::productFence() {
  Quiet quiet;
  meetWarp("productFence");
  currentThread().isFenced = true;
}

/// Fails unless all lanes of the warp give the same descriptors.
static void checkAgreement(const machine::WarpgroupProduct &product) {
  uint32_t input[4], agree;
  std::memcpy(input, &product.a, sizeof product.a);
  std::memcpy(input + 2, &product.b, sizeof product.b);
  machine::exchange("multiplyAsync", input, 4, &agree, 1,
                    [](const machine::WarpInput &in, machine::WarpOutput &out) {
                      bool agree = true;
                      for (int lane = 0; lane < numLanes; ++lane) {
                        agree &= std::equal(in[lane], in[lane] + 4, in[0]);
                      }
                      for (int lane = 0; lane < numLanes; ++lane) {
                        out[lane][0] = agree;
                      }
                    });
  if (agree == 0) {
    fail("multiplyAsync expects the same descriptors from all lanes of a warp");
  }
}

void machine::multiplyAsync(float *sums, const WarpgroupProduct &product) {
  Quiet quiet;
  checkAgreement(product);
  ThreadBackground &thread = currentThread();
  takeSums(thread, sums);
  thread.products.push_back({product});
  ++thread.ungrouped;
}

void machine::productCommit() {
  ThreadBackground *thread = nullptr;
  bool now = false;
  {
    Quiet quiet;
    meetWarp("productCommit");
    thread = &currentThread();
    thread->groups.push_back(thread->ungrouped);
    thread->ungrouped = 0;
    now = background.happensNow(background.products);
  }
  if (!now) {
    return;
  }
  for (PendingProduct &pending : thread->products) {
    if (!pending.isDone) {
      multiply(*thread, pending);
    }
  }
}

void machine::productWait(int pending) {
  ThreadBackground *thread = nullptr;
  size_t finished = 0;
  {
    Quiet quiet;
    thread = &currentThread();
    auto end = thread->groups.end() -
               std::min<ptrdiff_t>(pending, thread->groups.size());
    for (auto group = thread->groups.begin(); group != end; ++group) {
      finished += *group;
    }
    thread->groups.erase(thread->groups.begin(), end);
  }
  for (size_t i = 0; i < finished; ++i) {
    if (!thread->products[i].isDone) {
      multiply(*thread, thread->products[i]);
    }
  }
  Quiet quiet;
  // A warp goes on as one when its products have read: whoever learns from one
  // of its lanes that it has waited may write what any of them read.
  OrderingPoint &order = thread->orderOfWait();
  order.release();
  meetWarp("productWait");
  order.acquire();
  ++thread->numWaits;
  auto &products = thread->products;
  products.erase(products.begin(),
                 products.begin() + static_cast<ptrdiff_t>(finished));
  if (finished > 0 && products.empty()) {
    std::copy_n(thread->values.begin(), numSums, thread->sums);
    thread->isFenced = false;
  }
}
