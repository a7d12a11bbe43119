//===-- Cubin.cpp - what a CUBIN says about its kernels -------------------===//
//
// Every offset of the file is checked against its size before it is followed.
//
//===----------------------------------------------------------------------===//

#include "runtime/cuda/Cubin.h"

#include <algorithm>
#include <cstring>
#include <elf.h>
#include <optional>

using namespace kaon::runtime;
using namespace kaon::runtime::cuda;

using Bytes = std::span<const std::byte>;

// Not documented by NVIDIA: machine, place of the architecture in the flags,
// and the attributes of .nv.info that are read. docs/runtime.md says how they
// were found.
static constexpr uint16_t machineCuda = 190;
static constexpr unsigned char abiOfCuda13 = 8;
static constexpr uint8_t formatSized = 0x04;
static constexpr uint8_t attributeParameter = 0x17;
static constexpr uint8_t attributeMaxThreads = 0x05;

/// The T at `offset`, or nothing where the file ends before.
template <typename T>
static std::optional<T> readAt(Bytes file, uint64_t offset) {
  if (offset > file.size() || file.size() - offset < sizeof(T)) {
    return std::nullopt;
  }
  T value;
  std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

/// The `size` bytes at `offset`, or nothing where the file ends before.
static std::optional<Bytes> slice(Bytes file, uint64_t offset, uint64_t size) {
  if (offset > file.size() || file.size() - offset < size) {
    return std::nullopt;
  }
  return file.subspan(offset, size);
}

static Status malformed(std::string_view what) {
  return Status::failure("cubin: expects ", what,
                         ", but the file is cut off "
                         "or damaged");
}

namespace {
/// A parameter with its place in the list.
struct Ordered {
  uint16_t ordinal;
  CubinParameter parameter;
};
} // namespace

/// Reads the attributes of one kernel.
static bool readInfo(Bytes content, CubinKernel &kernel) {
  std::vector<Ordered> parameters;
  uint64_t position = 0;
  while (content.size() - position >= 4) {
    auto format = static_cast<uint8_t>(content[position]);
    auto attribute = static_cast<uint8_t>(content[position + 1]);
    uint16_t size = *readAt<uint16_t>(content, position + 2);
    position += 4;
    if (format != formatSized) {
      continue; // The size is the value.
    }
    std::optional<Bytes> payload = slice(content, position, size);
    if (!payload) {
      return false;
    }
    if (attribute == attributeParameter) {
      auto ordinal = readAt<uint16_t>(*payload, 4);
      auto offset = readAt<uint16_t>(*payload, 6);
      auto flags = readAt<uint32_t>(*payload, 8);
      if (!ordinal || !offset || !flags) {
        return false;
      }
      parameters.push_back(
          {*ordinal, {*offset, static_cast<int32_t>(*flags >> 18)}});
    } else if (attribute == attributeMaxThreads) {
      auto threads = readAt<int32_t>(*payload, 0);
      if (!threads) {
        return false;
      }
      kernel.maxThreads = *threads;
    }
    position += size;
  }
  std::sort(
      parameters.begin(), parameters.end(),
      [](const Ordered &a, const Ordered &b) { return a.ordinal < b.ordinal; });
  for (const Ordered &ordered : parameters) {
    kernel.parameters.push_back(ordered.parameter);
  }
  return true;
}

bool Cubin::isElf(Bytes image) {
  return image.size() >= SELFMAG &&
         std::memcmp(image.data(), ELFMAG, SELFMAG) == 0;
}

Result<Cubin> Cubin::read(Bytes image) {
  auto header = readAt<Elf64_Ehdr>(image, 0);
  if (!isElf(image) || !header || header->e_ident[EI_CLASS] != ELFCLASS64) {
    return malformed("a 64-bit ELF header");
  }
  if (header->e_machine != machineCuda) {
    return Status::failure("cubin: expects code for machine ", machineCuda,
                           " (CUDA), but got ", header->e_machine);
  }
  Cubin cubin;
  // CUDA 13 moved the architecture up by a byte.
  unsigned shift = header->e_ident[EI_ABIVERSION] >= abiOfCuda13 ? 8 : 0;
  cubin.architecture = static_cast<int32_t>((header->e_flags >> shift) & 0xff);

  auto sectionAt = [&](uint64_t index) {
    return readAt<Elf64_Shdr>(image,
                              header->e_shoff + index * header->e_shentsize);
  };
  auto names = sectionAt(header->e_shstrndx);
  if (!names) {
    return malformed("a table of section names");
  }
  if (!slice(image, header->e_phoff,
             uint64_t(header->e_phnum) * header->e_phentsize)) {
    return malformed("whole program headers");
  }
  constexpr std::string_view prefix = ".nv.info.";
  for (uint64_t index = 0; index < header->e_shnum; ++index) {
    auto section = sectionAt(index);
    if (!section) {
      return malformed("as many sections as its header says");
    }
    auto content = section->sh_type == SHT_NOBITS
                       ? Bytes()
                       : slice(image, section->sh_offset, section->sh_size);
    if (!content) {
      return malformed("whole sections");
    }
    auto text = slice(image, names->sh_offset, names->sh_size);
    if (!text || section->sh_name >= text->size() ||
        text->back() != std::byte(0)) {
      return malformed("names of sections");
    }
    std::string_view name =
        reinterpret_cast<const char *>(text->data()) + section->sh_name;
    if (!name.starts_with(prefix)) {
      continue;
    }
    CubinKernel kernel;
    kernel.name = name.substr(prefix.size());
    if (!readInfo(*content, kernel)) {
      return malformed(concat("whole attributes of '", kernel.name, "'"));
    }
    cubin.kernels.push_back(std::move(kernel));
  }
  return cubin;
}

const CubinKernel *Cubin::find(std::string_view name) const {
  auto found = std::find_if(
      kernels.begin(), kernels.end(),
      [&](const CubinKernel &kernel) { return kernel.name == name; });
  return found == kernels.end() ? nullptr : &*found;
}
