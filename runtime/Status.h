//===-- Status.h - errors without exceptions --------------------*- C++ -*-===//
//
// The runtime reports every failure as a value: a Status, or a Result that
// holds either a value or a Status. Messages are lower case and name the thing,
// the wish and the finding.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_STATUS_H
#define KAON_RUNTIME_STATUS_H

#include <cassert>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace kaon::runtime {

/// Prints all arguments one after the other into a string.
template <typename... Args> std::string concat(const Args &...args) {
  std::ostringstream stream;
  (stream << ... << args);
  return std::move(stream).str();
}

/// Success, or a message saying what went wrong.
class [[nodiscard]] Status {
public:
  /// Whom a failure blames: the caller's arguments, or the device and what is
  /// needed to use it.
  enum class Kind : uint8_t { Success, Argument, Device };

  static Status success() { return Status(); }

  /// A failure whose message is the concatenation of `args`.
  template <typename... Args> static Status failure(const Args &...args) {
    return Status(Kind::Argument, concat(args...));
  }

  /// The same for a failure of a device or its driver.
  template <typename... Args> static Status deviceFailure(const Args &...args) {
    return Status(Kind::Device, concat(args...));
  }

  bool ok() const { return statusKind == Kind::Success; }
  Kind kind() const { return statusKind; }

  /// The message of a failure; empty on success.
  const std::string &message() const { return text; }

private:
  Status() = default;
  Status(Kind kind, std::string text)
      : statusKind(kind), text(std::move(text)) {}

  Kind statusKind = Kind::Success;
  std::string text;
};

/// A value, or the Status that says why there is none.
template <typename T> class [[nodiscard]] Result {
public:
  Result(T value) : content(std::move(value)), failure(Status::success()) {}
  Result(Status status) : failure(std::move(status)) {
    assert(!failure.ok() && "a result without a value needs a failure");
  }

  bool ok() const { return content.has_value(); }
  const Status &status() const { return failure; }

  T &operator*() {
    assert(content && "a failure has no value");
    return *content;
  }
  T *operator->() { return &**this; }

private:
  std::optional<T> content;
  Status failure;
};

} // namespace kaon::runtime

/// Returns from the enclosing function when `expression` is a failure.
#define KAON_RETURN_IF_ERROR(expression)                                       \
  do {                                                                         \
    if (::kaon::runtime::Status kaonStatus = (expression); !kaonStatus.ok())   \
      return kaonStatus;                                                       \
  } while (false)

#endif // KAON_RUNTIME_STATUS_H
