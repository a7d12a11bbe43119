//===-- Nvrtc.cpp - CUDA C++ to machine code ------------------------------===//
//
// Opening libnvrtc and its builtins, and compiling with it.
//
//===----------------------------------------------------------------------===//

#include "codegen/cuda/Nvrtc.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <dlfcn.h>
#include <link.h>
#include <string_view>

namespace kaon::cuda {

using runtime::concat;

/// NVRTC's handle of a program, and its result codes, of which 0 is success.
using NvrtcProgram = void *;
using NvrtcResult = int;

/// The entry points in use, as nvrtc.h declares them.
struct NvrtcFunctions {
  NvrtcResult (*version)(int *major, int *minor);
  NvrtcResult (*getNumSupportedArchs)(int *count);
  NvrtcResult (*getSupportedArchs)(int *archs);
  const char *(*getErrorString)(NvrtcResult result);
  NvrtcResult (*createProgram)(NvrtcProgram *program, const char *text,
                               const char *name, int headerCount,
                               const char *const *headers,
                               const char *const *headerNames);
  NvrtcResult (*destroyProgram)(NvrtcProgram *program);
  NvrtcResult (*compileProgram)(NvrtcProgram program, int optionCount,
                                const char *const *options);
  NvrtcResult (*getProgramLogSize)(NvrtcProgram program, size_t *size);
  NvrtcResult (*getProgramLog)(NvrtcProgram program, char *log);
  NvrtcResult (*getPtxSize)(NvrtcProgram program, size_t *size);
  NvrtcResult (*getPtx)(NvrtcProgram program, char *ptx);
  NvrtcResult (*getCubinSize)(NvrtcProgram program, size_t *size);
  NvrtcResult (*getCubin)(NvrtcProgram program, char *cubin);
};

/// The oldest NVRTC that knows sm_90a.
constexpr NvrtcVersion oldestVersion{12, 0};
/// The oldest NVRTC that knows sm_100a.
constexpr NvrtcVersion oldestForBlackwell{12, 8};
constexpr int blackwell = 100;

std::string NvrtcVersion::str() const { return concat(major, '.', minor); }

//===----------------------------------------------------------------------===//
// Opening
//===----------------------------------------------------------------------===//

/// The message of the last failure of the dynamic loader.
static std::string loaderError() {
  const char *message = dlerror();
  return message ? message : "no reason given";
}

static std::string pathOf(void *library) {
  link_map *map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, static_cast<void *>(&map)) != 0 ||
      !map) {
    return {};
  }
  return map->l_name;
}

/// Sets `function` to the symbol `name`; appends to `missing` where there is
/// none.
template <typename FunctionT>
static void load(void *library, const char *name, FunctionT &function,
                 std::string &missing) {
  function = reinterpret_cast<FunctionT>(dlsym(library, name));
  if (!function) {
    missing += missing.empty() ? name : concat(", ", name);
  }
}

static Status loadFunctions(void *library, NvrtcFunctions &f) {
  std::string missing;
  load(library, "nvrtcVersion", f.version, missing);
  load(library, "nvrtcGetNumSupportedArchs", f.getNumSupportedArchs, missing);
  load(library, "nvrtcGetSupportedArchs", f.getSupportedArchs, missing);
  load(library, "nvrtcGetErrorString", f.getErrorString, missing);
  load(library, "nvrtcCreateProgram", f.createProgram, missing);
  load(library, "nvrtcDestroyProgram", f.destroyProgram, missing);
  load(library, "nvrtcCompileProgram", f.compileProgram, missing);
  load(library, "nvrtcGetProgramLogSize", f.getProgramLogSize, missing);
  load(library, "nvrtcGetProgramLog", f.getProgramLog, missing);
  load(library, "nvrtcGetPTXSize", f.getPtxSize, missing);
  load(library, "nvrtcGetPTX", f.getPtx, missing);
  load(library, "nvrtcGetCUBINSize", f.getCubinSize, missing);
  load(library, "nvrtcGetCUBIN", f.getCubin, missing);
  return missing.empty() ? Status::success()
                         : Status::failure("is not NVRTC: it lacks ", missing);
}

/// Loads the builtins that the NVRTC at `path` opens by name when it first
/// compiles. It has no search path of its own, so those of its own folder are
/// loaded before: the loader then finds the name taken.
static Status loadBuiltins(const std::string &path, NvrtcVersion version) {
  std::string name = concat("libnvrtc-builtins.so.", version.str());
  std::string folder = path.substr(0, path.rfind('/') + 1);
  constexpr int flags = RTLD_NOW | RTLD_LOCAL;
  if (!dlopen((folder + name).c_str(), flags)) {
    std::string reason = loaderError();
    if (!dlopen(name.c_str(), flags)) {
      return Status::failure("lacks its ", name, " (", reason, ")");
    }
  }
  return Status::success();
}

Nvrtc::Nvrtc(std::unique_ptr<NvrtcFunctions> functions, std::string path,
             NvrtcVersion version)
    : functions(std::move(functions)), path(std::move(path)), version(version) {
}
Nvrtc::Nvrtc(Nvrtc &&) noexcept = default;
Nvrtc &Nvrtc::operator=(Nvrtc &&) noexcept = default;
Nvrtc::~Nvrtc() = default;

Result<Nvrtc> Nvrtc::openOne(const std::string &candidate) {
  void *library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    return Status::failure("cannot be opened (", loaderError(), ")");
  }
  auto functions = std::make_unique<NvrtcFunctions>();
  KAON_RETURN_IF_ERROR(loadFunctions(library, *functions));
  NvrtcVersion version;
  if (NvrtcResult result = functions->version(&version.major, &version.minor)) {
    return Status::failure("does not tell its version (",
                           functions->getErrorString(result), ")");
  }
  if (version < oldestVersion) {
    return Status::failure("is too old: expects NVRTC ", oldestVersion.str(),
                           " or later, but got ", version.str());
  }
  std::string path = pathOf(library);
  KAON_RETURN_IF_ERROR(loadBuiltins(path, version));
  return Nvrtc(std::move(functions), std::move(path), version);
}

Result<Nvrtc> Nvrtc::open(const std::vector<std::string> &candidates) {
  std::string tried;
  for (const std::string &candidate : candidates) {
    Result<Nvrtc> nvrtc = openOne(candidate);
    if (nvrtc.ok()) {
      return nvrtc;
    }
    tried += concat("\n  ", candidate, ": ", nvrtc.status().message());
  }
  return Status::failure(
      "nvrtc: expects a usable libnvrtc, but ",
      tried.empty() ? "there is no candidate" : "none of these is one:", tried);
}

std::string Nvrtc::findLoaded() {
  for (const char *name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}) {
    if (void *library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) {
      std::string path = pathOf(library);
      dlclose(library); // Only undoes this dlopen: it was loaded before.
      return path;
    }
  }
  return {};
}

//===----------------------------------------------------------------------===//
// Compiling
//===----------------------------------------------------------------------===//

/// The number of an architecture such as sm_90a or compute_80; 0 for others.
static int parseArch(std::string_view arch) {
  for (std::string_view prefix : {"sm_", "compute_"}) {
    if (!arch.starts_with(prefix)) {
      continue;
    }
    std::string digits(arch.substr(prefix.size()));
    char *end = nullptr;
    long number = std::strtol(digits.c_str(), &end, 10);
    std::string_view suffix = end;
    bool known = suffix.empty() || suffix == "a" || suffix == "f";
    return known && number >= 10 && number < 1000 ? static_cast<int>(number)
                                                  : 0;
  }
  return 0;
}

Status Nvrtc::checkArch(const std::string &arch) const {
  int number = parseArch(arch);
  if (number == 0) {
    return Status::failure("expects an architecture such as sm_90a or "
                           "compute_80, but got '",
                           arch, "'");
  }
  if (number >= blackwell && version < oldestForBlackwell) {
    return Status::failure(arch, " expects NVRTC ", oldestForBlackwell.str(),
                           " or later, but got ", version.str(), " (", path,
                           ")");
  }
  int count = 0;
  functions->getNumSupportedArchs(&count);
  std::vector<int> supported(count);
  functions->getSupportedArchs(supported.data());
  if (std::ranges::find(supported, number) != supported.end()) {
    return Status::success();
  }
  std::string list;
  for (int known : supported) {
    list += concat(list.empty() ? "" : ", ", known);
  }
  return Status::failure("NVRTC ", version.str(), " (", path,
                         ") expects an architecture out of ", list,
                         ", but got '", arch, "'");
}

namespace {
/// A program of NVRTC, destroyed at the end of its scope.
class ProgramScope {
public:
  explicit ProgramScope(const NvrtcFunctions &functions)
      : functions(functions) {}
  ProgramScope(const ProgramScope &) = delete;
  ProgramScope &operator=(const ProgramScope &) = delete;
  ~ProgramScope() {
    if (program) {
      functions.destroyProgram(&program);
    }
  }

  NvrtcResult create(const CudaSource &source) {
    std::vector<const char *> texts, names;
    for (const CudaHeader &header : source.headers) {
      texts.push_back(header.text.c_str());
      names.push_back(header.name.c_str());
    }
    return functions.createProgram(
        &program, source.text.c_str(), source.name.c_str(),
        static_cast<int>(names.size()), texts.data(), names.data());
  }

  NvrtcResult compile(const CudaSource &source) {
    std::string arch = concat("--gpu-architecture=", source.arch);
    std::vector<const char *> options = {arch.c_str()};
    for (const std::string &option : source.options) {
      options.push_back(option.c_str());
    }
    return functions.compileProgram(program, static_cast<int>(options.size()),
                                    options.data());
  }

  using SizeGetter = NvrtcResult (*)(NvrtcProgram, size_t *);
  using BytesGetter = NvrtcResult (*)(NvrtcProgram, char *);

  /// What a pair of getters gives.
  std::string getBytes(SizeGetter getSize, BytesGetter get) const {
    size_t size = 0;
    if (getSize(program, &size) != 0) {
      return {};
    }
    std::string bytes(size, '\0');
    return get(program, bytes.data()) == 0 ? bytes : std::string();
  }

  /// The same for text, which ends with a zero byte.
  std::string getText(SizeGetter getSize, BytesGetter get) const {
    std::string text = getBytes(getSize, get);
    text.resize(std::min(text.size(), text.find('\0')));
    return text;
  }

private:
  const NvrtcFunctions &functions;
  NvrtcProgram program = nullptr;
};
} // namespace

bool Nvrtc::compile(const CudaSource &source, CudaBinary &binary,
                    CudaFailure &failure) const {
  auto fail = [&](const auto &...reason) {
    failure.message = concat("cannot compile ", source.name, " for ",
                             source.arch, ": ", reason...);
    return false;
  };
  if (Status status = checkArch(source.arch); !status.ok()) {
    return fail(status.message());
  }
  auto start = std::chrono::steady_clock::now();
  ProgramScope program(*functions);
  if (NvrtcResult result = program.create(source)) {
    return fail(functions->getErrorString(result));
  }
  NvrtcResult result = program.compile(source);
  binary.log =
      program.getText(functions->getProgramLogSize, functions->getProgramLog);
  if (result != 0) {
    failure.log = binary.log;
    return fail(functions->getErrorString(result));
  }
  binary.ptx = program.getText(functions->getPtxSize, functions->getPtx);
  binary.cubin.clear();
  if (source.arch.starts_with("sm_")) {
    binary.cubin =
        program.getBytes(functions->getCubinSize, functions->getCubin);
  }
  if (binary.ptx.empty() && binary.cubin.empty()) {
    return fail("NVRTC gave no code");
  }
  std::chrono::duration<double> elapsed =
      std::chrono::steady_clock::now() - start;
  binary.seconds = elapsed.count();
  return true;
}

} // namespace kaon::cuda
