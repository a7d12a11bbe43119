//===-- SpellingTest.cpp - numbers as CUDA C++ ----------------------------===//

#include "codegen/cuda/Spelling.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <random>

using namespace kaon::cuda;

namespace {

/// What C++ reads of a literal, or of a call of `floatOf` or `doubleOf`, which
/// are given the bits.
uint32_t readFloat(const std::string &text) {
  unsigned long long bits;
  if (std::sscanf(text.c_str(), "floatOf(%llx", &bits) == 1) {
    return static_cast<uint32_t>(bits);
  }
  char *end;
  float value = std::strtof(text.c_str(), &end);
  EXPECT_STREQ(end, "f") << text;
  // As compilers may read it that go by way of f64.
  EXPECT_EQ(value, static_cast<float>(std::strtod(text.c_str(), nullptr)));
  return llvm::bit_cast<uint32_t>(value);
}

uint64_t readDouble(const std::string &text) {
  unsigned long long bits;
  if (std::sscanf(text.c_str(), "doubleOf(%llx", &bits) == 1) {
    return bits;
  }
  char *end;
  double value = std::strtod(text.c_str(), &end);
  EXPECT_STREQ(end, "") << text;
  // Without a point or an exponent it would be an integer.
  EXPECT_NE(text.find_first_of(".e"), std::string::npos) << text;
  return llvm::bit_cast<uint64_t>(value);
}

uint32_t roundTripFloat(uint32_t bits) {
  return readFloat(spellNumber(
      llvm::APFloat(llvm::APFloat::IEEEsingle(), llvm::APInt(32, bits))));
}

uint64_t roundTripDouble(uint64_t bits) {
  return readDouble(spellNumber(
      llvm::APFloat(llvm::APFloat::IEEEdouble(), llvm::APInt(64, bits))));
}

TEST(Spelling, NumbersOfF32ReadBack) {
  // Zeros, subnormals, the smallest normal number, the largest, infinities, and
  // NaN of every kind.
  for (uint32_t bits :
       {0x00000000u, 0x00000001u, 0x007fffffu, 0x00800000u, 0x3dcccccdu,
        0x7f7fffffu, 0x7f800000u, 0x7f800001u, 0x7fc00000u, 0x7fffffffu}) {
    EXPECT_EQ(roundTripFloat(bits), bits);
    EXPECT_EQ(roundTripFloat(bits | 0x80000000u), bits | 0x80000000u);
  }
  std::mt19937 generator(1);
  for (int i = 0; i < 20000; ++i) {
    auto bits = static_cast<uint32_t>(generator());
    ASSERT_EQ(roundTripFloat(bits), bits);
    ASSERT_EQ(roundTripFloat(bits & 0x807fffffu), bits & 0x807fffffu);
  }
}

TEST(Spelling, NumbersOfF64ReadBack) {
  for (uint64_t bits :
       {0x0000000000000000ull, 0x0000000000000001ull, 0x000fffffffffffffull,
        0x0010000000000000ull, 0x3fb999999999999aull, 0x7fefffffffffffffull,
        0x7ff0000000000000ull, 0x7ff0000000000001ull, 0x7fffffffffffffffull}) {
    EXPECT_EQ(roundTripDouble(bits), bits);
    EXPECT_EQ(roundTripDouble(bits | 1ull << 63), bits | 1ull << 63);
  }
  std::mt19937_64 generator(2);
  for (int i = 0; i < 20000; ++i) {
    uint64_t bits = generator();
    ASSERT_EQ(roundTripDouble(bits), bits);
    ASSERT_EQ(roundTripDouble(bits & ~(0x7ffull << 52)),
              bits & ~(0x7ffull << 52));
  }
}

TEST(Spelling, NumbersAreShort) {
  auto spell = [](float x) { return spellNumber(llvm::APFloat(x)); };
  EXPECT_EQ(spell(1), "1.0f");
  EXPECT_EQ(spell(0.1f), "0.1f");
  EXPECT_EQ(spell(-2.5f), "-2.5f");
  EXPECT_EQ(spell(1e-7f), "1e-07f");
  EXPECT_EQ(spellNumber(llvm::APFloat(0.1)), "0.1");
  EXPECT_EQ(spellNumber(llvm::APFloat(3.0)), "3.0");
}

TEST(Spelling, NamesAreFree) {
  NameScope scope;
  EXPECT_EQ(scope.choose("w"), "w");
  EXPECT_EQ(scope.choose("w"), "w1");
  EXPECT_EQ(scope.choose("w"), "w2");
  EXPECT_EQ(scope.choose("w1"), "w1_1");
  EXPECT_EQ(scope.choose("int"), "int1");
  EXPECT_EQ(scope.choose("mulRn"), "mulRn1");
  EXPECT_EQ(scope.choose("__w"), "w3");
  EXPECT_EQ(scope.choose("a__b"), "a_b");
  EXPECT_EQ(scope.choose("NULL"), "NULL_");
  EXPECT_EQ(scope.choose("X"), "X");
  EXPECT_EQ(scope.choose("_"), "v");
  EXPECT_EQ(scope.choose(""), "v1");
  EXPECT_EQ(scope.choose("9x"), "v9x");
  NameScope inner = scope;
  EXPECT_EQ(inner.choose("v"), "v2");
  EXPECT_EQ(scope.choose("v"), "v2");
}

TEST(Spelling, Identifiers) {
  EXPECT_TRUE(isIdentifier("kernel_0_a"));
  EXPECT_FALSE(isIdentifier(""));
  EXPECT_FALSE(isIdentifier("0a"));
  EXPECT_FALSE(isIdentifier("a-b"));
  EXPECT_FALSE(isIdentifier("\xce\xbb"));
}

} // namespace
