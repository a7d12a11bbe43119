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
  static Status success() { return Status(); }

  /// A failure whose message is the concatenation of `args`.
  template <typename... Args> static Status failure(const Args &...args) {
    Status status;
    status.text = concat(args...);
    return status;
  }

  bool ok() const { return !text.has_value(); }

  /// The message of a failure; empty on success.
  const std::string &message() const {
    static const std::string none;
    return text ? *text : none;
  }

private:
  Status() = default;
  std::optional<std::string> text;
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
