//===-- FakeKernels.cpp - modules, launches and graphs --------------------===//

#include "runtime/cuda/Cubin.h"
#include "test/cuda/fake/Fake.h"

#include <array>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <regex>

using namespace kaon::fake;
using kaon::runtime::Result;
using kaon::runtime::cuda::Cubin;
using kaon::runtime::cuda::CubinKernel;
using kaon::runtime::cuda::CubinParameter;

//===----------------------------------------------------------------------===//
// Images
//===----------------------------------------------------------------------===//

/// The size of an ELF file, which its reader is not told: section headers come
/// last, or the last section does.
static size_t sizeOfElf(const void *image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof(header));
  size_t end = header.e_shoff + size_t(header.e_shnum) * header.e_shentsize;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section,
                static_cast<const char *>(image) + header.e_shoff +
                    size_t(i) * header.e_shentsize,
                sizeof(section));
    if (section.sh_type != SHT_NOBITS) {
      end = std::max<size_t>(end, section.sh_offset + section.sh_size);
    }
  }
  end = std::max<size_t>(end, header.e_phoff +
                                  size_t(header.e_phnum) * header.e_phentsize);
  return end;
}

static Code loadCubin(const void *image, FakeModule &module, std::string &log) {
  Result<Cubin> cubin =
      Cubin::read({static_cast<const std::byte *>(image), sizeOfElf(image)});
  if (!cubin.ok()) {
    log = cubin.status().message();
    return Code::InvalidImage;
  }
  State &fake = state();
  if (cubin->architecture / 10 != fake.major ||
      cubin->architecture % 10 > fake.minor) {
    log = concat("code for sm_", cubin->architecture);
    return Code::NoBinaryForDevice;
  }
  for (const CubinKernel &kernel : cubin->kernels) {
    auto function = std::make_unique<FakeFunction>();
    function->name = kernel.name;
    function->module = &module;
    for (const CubinParameter &parameter : kernel.parameters) {
      function->parameters.push_back({parameter.offset, parameter.bytes});
    }
    if (kernel.maxThreads > 0) {
      function->maxThreads = kernel.maxThreads;
    }
    module.functions.emplace(kernel.name, std::move(function));
  }
  return Code::Success;
}

/// Size of the type in a declaration such as `.param .u64`.
static int32_t bytesOfPtxType(const std::string &type) {
  return std::stoi(type.substr(2)) / 8;
}

static Code loadPtx(const std::string &text, FakeModule &module,
                    std::string &log) {
  State &fake = state();
  std::smatch match;
  if (!std::regex_search(text, match,
                         std::regex(R"(\.version\s+(\d+)\.(\d+))"))) {
    log = "no .version in the text";
    return Code::InvalidPtx;
  }
  // Version 9.0 came with CUDA 13.0, 8.x with CUDA 12.x.
  if (std::stoi(match[1]) > fake.version / 1000 - 4) {
    log = concat("PTX ", match[1], ".", match[2], " is too new");
    return Code::UnsupportedPtxVersion;
  }
  static const std::regex entry(R"(\.entry\s+(\w+)\s*\(([^)]*)\)([^{]*)\{)");
  static const std::regex parameter(
      R"(\.param\s+(?:\.align\s+\d+\s+)?(\.[a-z]\d+)[^,\[\n]*(?:\[(\d+)\])?)");
  static const std::regex limit(R"(\.maxntid\s+(\d+))");
  for (std::sregex_iterator it(text.begin(), text.end(), entry), end; it != end;
       ++it) {
    auto function = std::make_unique<FakeFunction>();
    function->name = (*it)[1];
    function->module = &module;
    std::string parameters = (*it)[2], directives = (*it)[3];
    int32_t offset = 0;
    for (std::sregex_iterator p(parameters.begin(), parameters.end(),
                                parameter);
         p != end; ++p) {
      int32_t bytes = bytesOfPtxType((*p)[1]);
      if ((*p)[2].matched) {
        bytes *= std::stoi((*p)[2]);
      }
      int32_t unit = std::min(bytes, 8);
      offset = (offset + unit - 1) / unit * unit;
      function->parameters.push_back({offset, bytes});
      offset += bytes;
    }
    if (std::regex_search(directives, match, limit)) {
      function->maxThreads = std::stoi(match[1]);
    }
    module.functions.emplace(function->name, std::move(function));
  }
  return Code::Success;
}

Code kaon::fake::loadModule(int device, const void *image,
                            std::unique_ptr<FakeModule> &module,
                            std::string &log) {
  module = std::make_unique<FakeModule>();
  module->device = device;
  return std::memcmp(image, ELFMAG, SELFMAG) == 0
             ? loadCubin(image, *module, log)
             : loadPtx(static_cast<const char *>(image), *module, log);
}

/// The code for the CPU and that for the GPU are of one text if they take the
/// same parameters. `sizes` ends with 0.
static Code checkParameters(const FakeFunction &function,
                            const uint32_t *sizes) {
  size_t count = 0;
  while (sizes[count] != 0) {
    ++count;
  }
  bool isSame = count == function.parameters.size();
  for (size_t i = 0; isSame && i < count; ++i) {
    isSame = sizes[i] == static_cast<uint32_t>(function.parameters[i].bytes);
  }
  return isSame ? Code::Success
                : fault(Code::InvalidImage,
                        concat("has code of the kernel '", function.name,
                               "' for the CPU with other parameters"));
}

Code kaon::fake::findFunction(FakeModule &module, const char *name,
                              FakeFunction *&function) {
  auto found = module.functions.find(name);
  if (found == module.functions.end()) {
    return Code::NotFound;
  }
  function = found->second.get();
  if (function->code) {
    return Code::Success;
  }
  std::string path = concat(state().kernelDirectory, "/", name, ".so");
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void *code = nullptr, *sizes = nullptr;
  if (library) {
    code = dlsym(library, concat("kaon_shim_run_", name).c_str());
    sizes = dlsym(library, concat("kaon_shim_parameters_", name).c_str());
  }
  if (!code || !sizes) {
    return fault(Code::NotFound, concat("has no code of the kernel '", name,
                                        "' that a CPU can run: ", dlerror()));
  }
  function->code = reinterpret_cast<ShimLaunch *>(code);
  return checkParameters(*function, static_cast<const uint32_t *>(sizes));
}

//===----------------------------------------------------------------------===//
// Launches
//===----------------------------------------------------------------------===//

/// Whether an argument that is an address, or starts with one, is of device
/// memory. Every kernel of Kaon gets only such.
static Code checkArgument(const FakeFunction &function, size_t index,
                          const std::vector<std::byte> &argument) {
  cuda::Address address = 0;
  if (argument.size() < sizeof(address)) {
    return fault(Code::InvalidValue,
                 concat("launches '", function.name, "' whose parameter ",
                        index, " is no address"));
  }
  std::memcpy(&address, argument.data(), sizeof(address));
  std::string why;
  if (!Memory::contains(MemoryKind::Device,
                        reinterpret_cast<const void *>(address), 1, &why)) {
    return fault(Code::InvalidValue,
                 concat("launches '", function.name, "' with argument ", index,
                        " at ", why));
  }
  if (address % 8 != 0) {
    return fault(Code::InvalidValue,
                 concat("launches '", function.name, "' with argument ", index,
                        " at an address that is no multiple of 8"));
  }
  return Code::Success;
}

Code kaon::fake::checkLaunch(const cuda::KernelNode &node, FakeLaunch &launch) {
  auto *function = reinterpret_cast<FakeFunction *>(node.function);
  if (!state().functions.contains(function)) {
    return fault(Code::InvalidHandle, "launches something that is no kernel");
  }
  auto refuse = [&](const auto &...what) {
    return fault(Code::InvalidValue,
                 concat("launches '", function->name, "' ", what...));
  };
  if (node.gridY != 1 || node.gridZ != 1 || node.blockY != 1 ||
      node.blockZ != 1) {
    return refuse("in more than one dimension");
  }
  if (node.gridX == 0 || node.gridX > 0x7fffffffu) {
    return refuse("with ", node.gridX, " blocks");
  }
  if (node.blockX == 0 || node.blockX % 32 != 0 ||
      node.blockX > static_cast<unsigned>(function->maxThreads)) {
    return refuse("with ", node.blockX, " threads, but its code is for whole ",
                  "warps and at most ", function->maxThreads);
  }
  if (node.sharedBytes > static_cast<unsigned>(function->sharedLimit)) {
    return refuse("with ", node.sharedBytes, " bytes of shared memory, but it ",
                  "was allowed ", function->sharedLimit);
  }
  if (!node.parameters || node.extra) {
    return refuse("without a list of its arguments");
  }
  launch.function = function;
  launch.blocks = node.gridX;
  launch.threads = node.blockX;
  launch.sharedBytes = node.sharedBytes;
  launch.arguments.clear();
  for (size_t i = 0; i < function->parameters.size(); ++i) {
    const auto *bytes = static_cast<const std::byte *>(node.parameters[i]);
    if (!bytes) {
      return refuse("without its argument ", i);
    }
    launch.arguments.emplace_back(bytes, bytes + function->parameters[i].bytes);
    Code code = checkArgument(*function, i, launch.arguments.back());
    if (code != Code::Success) {
      return code;
    }
  }
  return Code::Success;
}

void FakeLaunch::run() const {
  std::vector<void *> parameters; // copies, which the kernel may change
  for (const std::vector<std::byte> &argument : arguments) {
    parameters.push_back(const_cast<std::byte *>(argument.data()));
  }
  std::array<char, 1024> text = {};
  int failed = function->code(blocks, threads, sharedBytes, parameters.data(),
                              state().seed, text.data(), text.size());
  --function->module->pending;
  if (failed) {
    asynchronousFault(Code::LaunchFailed,
                      concat("kernel '", function->name, "': ", text.data()));
  }
}
