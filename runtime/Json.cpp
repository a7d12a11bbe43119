//===-- Json.cpp - JSON values --------------------------------------------===//

#include "runtime/Json.h"

#include <cassert>
#include <charconv>
#include <cmath>

using namespace kaon::runtime;

/// How many bytes the UTF-8 character at the start of `text` takes; 0 where
/// there is none. Overlong forms and surrogates are none.
static size_t characterBytes(std::string_view text) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  auto continues = [&](size_t i, unsigned low = 0x80, unsigned high = 0xbf) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  if (text.empty()) {
    return 0;
  }
  unsigned first = byte(0);
  if (first < 0x80) {
    return 1;
  }
  if (first >= 0xc2 && first <= 0xdf) {
    return continues(1) ? 2 : 0;
  }
  if (first >= 0xe0 && first <= 0xef) {
    unsigned low = first == 0xe0 ? 0xa0 : 0x80;
    unsigned high = first == 0xed ? 0x9f : 0xbf;
    return continues(1, low, high) && continues(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    unsigned low = first == 0xf0 ? 0x90 : 0x80;
    unsigned high = first == 0xf4 ? 0x8f : 0xbf;
    return continues(1, low, high) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

/// Appends a character above U+007F or below, as UTF-8.
static void appendCharacter(std::string &text, uint32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
    return;
  }
  int rest = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  static constexpr uint32_t marks[] = {0, 0xc0, 0xe0, 0xf0};
  text += static_cast<char>(marks[rest] | code >> 6 * rest);
  while (rest-- > 0) {
    text += static_cast<char>(0x80 | (code >> 6 * rest & 0x3f));
  }
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

namespace kaon::runtime {
/// A recursive descent over the text. Every function takes what it reads off
/// the front and returns false where that is something else.
class JsonParser {
public:
  explicit JsonParser(std::string_view text) : rest(text) {}

  bool parseDocument(Json &json) {
    if (!parseValue(json, 0)) {
      return false;
    }
    skipSpace();
    return rest.empty();
  }

private:
  void skipSpace() {
    rest.remove_prefix(
        std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
  }

  bool take(std::string_view expected) {
    if (!rest.starts_with(expected)) {
      return false;
    }
    rest.remove_prefix(expected.size());
    return true;
  }

  bool parseValue(Json &json, int depth) {
    skipSpace();
    if (rest.empty() || depth > Json::maxDepth) {
      return false;
    }
    switch (rest.front()) {
    case '{':
      return parseObject(json, depth);
    case '[':
      return parseArray(json, depth);
    case '"':
      return parseString(json.content.emplace<std::string>());
    case 't':
      json = Json(true);
      return take("true");
    case 'f':
      json = Json(false);
      return take("false");
    case 'n':
      json = Json();
      return take("null");
    default:
      return parseNumber(json);
    }
  }

  /// Reads what stands between brackets, separated by commas.
  template <typename Function>
  bool parseList(std::string_view open, std::string_view close,
                 Function parseItem) {
    if (!take(open)) {
      return false;
    }
    skipSpace();
    if (take(close)) {
      return true;
    }
    do {
      if (!parseItem()) {
        return false;
      }
      skipSpace();
    } while (take(","));
    return take(close);
  }

  bool parseArray(Json &json, int depth) {
    Json::Array &array = json.content.emplace<Json::Array>();
    return parseList(
        "[", "]", [&] { return parseValue(array.emplace_back(), depth + 1); });
  }

  bool parseObject(Json &json, int depth) {
    Json::Object &object = json.content.emplace<Json::Object>();
    return parseList("{", "}", [&] {
      Json::Member &member = object.emplace_back();
      skipSpace();
      if (!parseString(member.first)) {
        return false;
      }
      skipSpace();
      return take(":") && parseValue(member.second, depth + 1);
    });
  }

  bool parseString(std::string &text) {
    if (!take("\"")) {
      return false;
    }
    while (!rest.empty()) {
      if (take("\"")) {
        return true;
      }
      if (take("\\")) {
        if (!parseEscape(text)) {
          return false;
        }
        continue;
      }
      size_t bytes = characterBytes(rest);
      if (bytes == 0 || static_cast<unsigned char>(rest.front()) < 0x20) {
        return false;
      }
      text += rest.substr(0, bytes);
      rest.remove_prefix(bytes);
    }
    return false;
  }

  bool parseEscape(std::string &text) {
    if (rest.empty()) {
      return false;
    }
    static constexpr std::string_view letters = "\"\\/bfnrt";
    static constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    if (size_t at = letters.find(rest.front()); at != letters.npos) {
      text += meanings[at];
      rest.remove_prefix(1);
      return true;
    }
    uint32_t code = 0;
    if (!parseUnit(code)) {
      return false;
    }
    if (code >= 0xd800 && code < 0xe000) {
      uint32_t low = 0;
      if (code >= 0xdc00 || !take("\\") || !parseUnit(low) || low < 0xdc00 ||
          low >= 0xe000) {
        return false;
      }
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    appendCharacter(text, code);
    return true;
  }

  /// The letter u and four hexadecimal digits.
  bool parseUnit(uint32_t &unit) {
    if (!take("u") || rest.size() < 4) {
      return false;
    }
    const char *begin = rest.data();
    const char *end = begin + 4;
    auto [stop, error] = std::from_chars(begin, end, unit, 16);
    if (error != std::errc() || stop != end) {
      return false;
    }
    rest.remove_prefix(4);
    return true;
  }

  bool takeDigits() {
    size_t count = std::min(rest.find_first_not_of("0123456789"), rest.size());
    rest.remove_prefix(count);
    return count > 0;
  }

  bool parseNumber(Json &json) {
    const char *begin = rest.data();
    take("-");
    bool isZero = take("0");
    if (!isZero && !takeDigits()) {
      return false;
    }
    bool isInteger = true;
    if (take(".")) {
      isInteger = false;
      if (!takeDigits()) {
        return false;
      }
    }
    if (take("e") || take("E")) {
      isInteger = false;
      (void)(take("+") || take("-"));
      if (!takeDigits()) {
        return false;
      }
    }
    const char *end = rest.data();
    return (isInteger && (read<int64_t>(begin, end, json) ||
                          read<uint64_t>(begin, end, json))) ||
           read<double>(begin, end, json);
  }

  template <typename T>
  static bool read(const char *begin, const char *end, Json &json) {
    T value = 0;
    auto [stop, error] = std::from_chars(begin, end, value);
    if (error != std::errc() || stop != end) {
      return false;
    }
    json = Json(value);
    return true;
  }

  std::string_view rest;
};
} // namespace kaon::runtime

std::optional<Json> Json::parse(std::string_view text) {
  Json json;
  if (!JsonParser(text).parseDocument(json)) {
    return std::nullopt;
  }
  return json;
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

namespace kaon::runtime {
class JsonWriter {
public:
  void write(const Json &json) { std::visit(*this, json.content); }

  void operator()(std::monostate) { text += "null"; }
  void operator()(bool value) { text += value ? "true" : "false"; }
  void operator()(int64_t value) { writeNumber(value); }
  void operator()(uint64_t value) { writeNumber(value); }

  void operator()(double value) {
    if (!std::isfinite(value)) {
      text += "null";
      return;
    }
    size_t start = text.size();
    writeNumber(value);
    // Read back as what it is, not as an integer.
    if (text.find_first_of(".e", start) == text.npos) {
      text += ".0";
    }
  }

  void operator()(const std::string &value) {
    text += '"';
    for (std::string_view rest = value; !rest.empty();) {
      size_t bytes = characterBytes(rest);
      if (bytes == 0) {
        text += "\xef\xbf\xbd"; // U+FFFD
        bytes = 1;
      } else {
        writeCharacter(rest.substr(0, bytes));
      }
      rest.remove_prefix(bytes);
    }
    text += '"';
  }

  void operator()(const Json::Array &array) {
    writeList('[', ']', array, [&](const Json &element) { write(element); });
  }

  void operator()(const Json::Object &object) {
    writeList('{', '}', object, [&](const Json::Member &member) {
      (*this)(member.first);
      text += ':';
      write(member.second);
    });
  }

  std::string text;

private:
  template <typename T> void writeNumber(T value) {
    char buffer[32];
    auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
    assert(error == std::errc() && "32 characters hold every number");
    text.append(buffer, end);
  }

  void writeCharacter(std::string_view character) {
    static constexpr std::string_view digits = "0123456789abcdef";
    unsigned char first = character.front();
    if (first == '"' || first == '\\') {
      text += '\\';
    } else if (first < 0x20) {
      text += "\\u00";
      text += digits[first >> 4];
      text += digits[first & 0xf];
      return;
    }
    text += character;
  }

  template <typename List, typename Function>
  void writeList(char open, char close, const List &list, Function writeItem) {
    text += open;
    bool isFirst = true;
    for (const auto &item : list) {
      if (!isFirst) {
        text += ',';
      }
      isFirst = false;
      writeItem(item);
    }
    text += close;
  }
};
} // namespace kaon::runtime

std::string Json::dump() const {
  JsonWriter writer;
  writer.write(*this);
  return std::move(writer.text);
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

const char *Json::typeName() const {
  static constexpr const char *names[] = {"null",   "boolean", "number",
                                          "number", "number",  "string",
                                          "array",  "object"};
  return names[content.index()];
}

std::optional<double> Json::asNumber() const {
  if (const auto *number = std::get_if<double>(&content)) {
    return *number;
  }
  if (const int64_t *integer = asInteger()) {
    return static_cast<double>(*integer);
  }
  if (const uint64_t *integer = asLargeInteger()) {
    return static_cast<double>(*integer);
  }
  return std::nullopt;
}

const Json *Json::find(std::string_view name) const {
  if (const Object *object = asObject()) {
    for (const Member &member : *object) {
      if (member.first == name) {
        return &member.second;
      }
    }
  }
  return nullptr;
}

Json &Json::operator[](std::string_view name) {
  if (const Json *found = find(name)) {
    return const_cast<Json &>(*found);
  }
  if (std::holds_alternative<std::monostate>(content)) {
    content.emplace<Object>();
  }
  Object *object = std::get_if<Object>(&content);
  assert(object && "only objects have members");
  return object->emplace_back(std::string(name), Json()).second;
}

void Json::append(Json value) {
  Array *array = std::get_if<Array>(&content);
  assert(array && "only arrays are appended to");
  array->push_back(std::move(value));
}
