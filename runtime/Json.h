//===-- Json.h - JSON values ------------------------------------*- C++ -*-===//
//
// As much of JSON as plans need: values, a writer that gives the same bytes for
// the same value, and a reader that never throws. The runtime has it of its own
// so that it builds with nothing but a compiler.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_JSON_H
#define KAON_RUNTIME_JSON_H

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kaon::runtime {

class Json {
public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  /// Members in the order in which they were written.
  using Object = std::vector<Member>;

  Json() = default;
  Json(bool value) : content(value) {}
  Json(int32_t value) : content(int64_t{value}) {}
  Json(int64_t value) : content(value) {}
  Json(double value) : content(value) {}
  Json(std::string value) : content(std::move(value)) {}
  Json(std::string_view value) : content(std::string(value)) {}
  Json(const char *value) : content(std::string(value)) {}
  Json(Array elements) : content(std::move(elements)) {}
  /// An object, as in `Json{{"rows", 4}, {"cols", 2}}`.
  Json(std::initializer_list<Member> members) : content(Object(members)) {}
  /// An array of values that are no Json yet.
  template <typename T>
  Json(const std::vector<T> &values)
      : content(Array(values.begin(), values.end())) {}

  /// Reads a text that holds one value and nothing else. Nothing is returned
  /// for text that is not JSON, for invalid UTF-8 and unpaired surrogates, and
  /// for values nested more than `maxDepth` deep. Integers that 64 bits cannot
  /// hold become floating point numbers, out of whose range nothing is read.
  static std::optional<Json> parse(std::string_view text);
  static constexpr int maxDepth = 64;

  /// The text on one line, without spaces. Bytes that are no UTF-8 become
  /// U+FFFD; numbers read back as they are, and infinities and NaN, which JSON
  /// has not, become null.
  std::string dump() const;

  /// null, boolean, number, string, array or object.
  const char *typeName() const;

  /// An integer up to the largest of int64_t, or null.
  const int64_t *asInteger() const { return std::get_if<int64_t>(&content); }
  /// An integer above the range of int64_t, or null.
  const uint64_t *asLargeInteger() const {
    return std::get_if<uint64_t>(&content);
  }
  /// Any number.
  std::optional<double> asNumber() const;
  const bool *asBool() const { return std::get_if<bool>(&content); }
  const std::string *asString() const {
    return std::get_if<std::string>(&content);
  }
  const Array *asArray() const { return std::get_if<Array>(&content); }
  const Object *asObject() const { return std::get_if<Object>(&content); }

  /// The member `name` of an object; null where there is none.
  const Json *find(std::string_view name) const;
  /// The member `name` of an object, appended where there is none. Null becomes
  /// an object.
  Json &operator[](std::string_view name);
  /// Appends to an array.
  void append(Json value);

private:
  friend class JsonParser;
  friend class JsonWriter;
  explicit Json(uint64_t value) : content(value) {}

  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string,
               Array, Object>
      content;
};

} // namespace kaon::runtime

#endif // KAON_RUNTIME_JSON_H
