//===-- PlanChecks.cpp - checks that validate plans -----------------------===//

#include "runtime/PlanChecks.h"

using namespace kaon::runtime;

std::string kaon::runtime::describeShape(int64_t rows, int64_t cols,
                                         ElementType type) {
  return concat(rows, 'x', cols, ' ', stringify(type));
}

bool kaon::runtime::isValidShape(int64_t rows, int64_t cols) {
  return rows >= 1 && cols >= 1 && rows <= maxElements / cols;
}

Status kaon::runtime::checkShape(const std::string &path, int64_t rows,
                                 int64_t cols) {
  if (isValidShape(rows, cols)) {
    return Status::success();
  }
  return Status::failure(
      path, ": expects at least one row and one column and at most ",
      maxElements, " elements, but got ", rows, "x", cols);
}

Status kaon::runtime::checkIndex(const std::string &path, std::string_view what,
                                 int64_t index, size_t count) {
  if (index >= 0 && static_cast<size_t>(index) < count) {
    return Status::success();
  }
  return Status::failure(path, ": expects a ", what, " below ", count,
                         ", but got ", index);
}

Status kaon::runtime::checkAtLeast(const std::string &path, int64_t value,
                                   int64_t least) {
  if (value >= least) {
    return Status::success();
  }
  return Status::failure(path, ": expects at least ", least, ", but got ",
                         value);
}

Status kaon::runtime::checkBetween(const std::string &path, int64_t value,
                                   int64_t least, int64_t most) {
  KAON_RETURN_IF_ERROR(checkAtLeast(path, value, least));
  if (value <= most) {
    return Status::success();
  }
  return Status::failure(path, ": expects at most ", most, ", but got ", value);
}

Status kaon::runtime::checkMultiple(const std::string &path, int64_t value,
                                    int64_t unit, std::string_view what) {
  if (value >= 0 && value % unit == 0) {
    return Status::success();
  }
  return Status::failure(path, ": expects a multiple of ", unit, " ", what,
                         ", but got ", value);
}

Status kaon::runtime::checkEqual(const std::string &path, int64_t value,
                                 int64_t wanted, std::string_view why) {
  if (value == wanted) {
    return Status::success();
  }
  return Status::failure(path, ": expects ", wanted, why, ", but got ", value);
}
