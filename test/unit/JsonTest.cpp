//===-- JsonTest.cpp - JSON values ----------------------------------------===//
//
// What is JSON and what is not, and that every value survives a round trip.
//
//===----------------------------------------------------------------------===//

#include "runtime/Json.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

using namespace kaon::runtime;

namespace {

/// The text as it is written again; empty where it is no JSON.
std::string rewritten(std::string_view text) {
  std::optional<Json> json = Json::parse(text);
  return json ? json->dump() : "";
}

std::string nested(int depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

} // namespace

TEST(JsonTest, WritesWhatItReads) {
  for (const char *text : {"null",
                           "true",
                           "false",
                           "0",
                           "-1",
                           "9223372036854775807",
                           "-9223372036854775808",
                           "18446744073709551615",
                           "0.1",
                           "1e+300",
                           "5e-324",
                           "-0.0",
                           "4.0",
                           R"("")",
                           R"("a\"b\\c")",
                           R"("\u0001")",
                           "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"",
                           "[]",
                           "{}",
                           R"([1,[2,"x"],{"z":null,"a":[{}]}])"}) {
    EXPECT_EQ(rewritten(text), text);
  }
  EXPECT_EQ(rewritten(" {\n\t\"a\" : [ 1 , 2 ] }\r\n"), R"({"a":[1,2]})");
  EXPECT_EQ(rewritten(R"("\u00e9\/\ud83d\ude00\t")"),
            "\"\xc3\xa9/\xf0\x9f\x98\x80\\u0009\"");
}

TEST(JsonTest, RefusesWhatIsNone) {
  for (const char *text : {"",
                           " ",
                           "nul",
                           "tru",
                           "+1",
                           "01",
                           "1.",
                           ".5",
                           "1e",
                           "--1",
                           "0x1",
                           "NaN",
                           "1e999",
                           "1 2",
                           "\"",
                           "\"\\x\"",
                           "\"\\u12g4\"",
                           R"("\ud800")",
                           R"("\ud800\u0041")",
                           R"("\udc00")",
                           "\"\n\"",
                           "\"\xff\"",
                           "\"\xc0\xaf\"",
                           "\"\xed\xa0\x80\"",
                           "\"\xf5\x80\x80\x80\"",
                           "\"\xe2\x82\"",
                           "[",
                           "[1",
                           "[1,]",
                           "[,1]",
                           "{",
                           "{1:2}",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{\"a\":1,}",
                           "[1}",
                           "'a'",
                           "// x"}) {
    EXPECT_FALSE(Json::parse(text).has_value()) << text;
  }
}

TEST(JsonTest, BoundsNesting) {
  EXPECT_EQ(rewritten(nested(Json::maxDepth)), nested(Json::maxDepth));
  EXPECT_EQ(rewritten(nested(1 << 20)), "");
}

TEST(JsonTest, TellsNumbersApart) {
  EXPECT_EQ(*Json::parse("7")->asInteger(), 7);
  EXPECT_EQ(Json::parse("9223372036854775808")->asInteger(), nullptr);
  EXPECT_EQ(*Json::parse("9223372036854775808")->asLargeInteger(),
            uint64_t{1} << 63);
  EXPECT_EQ(Json::parse("7.0")->asInteger(), nullptr);
  EXPECT_EQ(Json::parse("7")->asNumber(), 7.0);
  EXPECT_EQ(Json::parse("1e20")->asNumber(), 1e20);
  EXPECT_EQ(Json::parse("99999999999999999999")->asNumber(), 1e20);
  EXPECT_FALSE(Json::parse("\"7\"")->asNumber());
}

TEST(JsonTest, BuildsValues) {
  Json json = {{"name", "w"}, {"sizes", std::vector<int32_t>{1, 2}}};
  json["rows"] = int64_t{4};
  json["name"] = "v";
  EXPECT_EQ(json.dump(), R"({"name":"v","sizes":[1,2],"rows":4})");
  EXPECT_EQ(json.find("none"), nullptr);
  EXPECT_STREQ(json.typeName(), "object");
  Json list = Json::Array();
  list.append(json);
  list.append(true);
  EXPECT_EQ(list.asArray()->size(), 2u);
}

TEST(JsonTest, WritesWhatJsonCannotSayAsSomethingElse) {
  EXPECT_EQ(Json(std::numeric_limits<double>::infinity()).dump(), "null");
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  EXPECT_EQ(Json("a\xff").dump(), "\"a\xef\xbf\xbd\"");
}
