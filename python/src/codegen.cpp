//===-- codegen.cpp - code generation in kaon._C --------------------------===//
//
// The host's description, kernels as text, their compilation and loading, and
// the plan of a module.
//
//===----------------------------------------------------------------------===//

#include "codegen/PlanBuilder.h"
#include "codegen/cpu/CompileKernel.h"
#include "codegen/cpu/KernelLibrary.h"
#include "codegen/cpu/KernelSources.h"
#include "codegen/cuda/EmitCuda.h"
#include "dialect/Kaon.h"
#include "python/src/Bindings.h"
#include "python/src/RuntimeBindings.h"

#include "llvm/Config/llvm-config.h"

#include <pybind11/stl.h>

namespace py = pybind11;
using namespace mlir;

namespace kaon::python {

using cpu::CompiledKernel;
using cpu::CpuTarget;
using cpu::KernelLibrary;
using cpu::KernelSource;

//===----------------------------------------------------------------------===//
// Targets
//===----------------------------------------------------------------------===//

static py::dict toDict(const CpuTarget &target) {
  py::dict dict;
  dict["triple"] = target.triple;
  dict["cpu"] = target.cpu;
  dict["features"] = target.features;
  dict["vector_bits"] = target.tile.vectorBits;
  dict["mr"] = target.tile.mr;
  dict["nr"] = target.tile.nr;
  dict["kc"] = target.tile.kc;
  dict["block"] = target.tile.block;
  return dict;
}

static CpuTarget toTarget(const py::dict &dict) {
  auto field = [&](const char *name) -> py::object {
    if (!dict.contains(name)) {
      throw py::key_error(std::string("expects a target with '") + name +
                          "', as host_target() gives it");
    }
    return dict[name];
  };
  CpuTarget target;
  target.triple = field("triple").cast<std::string>();
  target.cpu = field("cpu").cast<std::string>();
  target.features = field("features").cast<std::string>();
  target.tile.vectorBits = field("vector_bits").cast<int64_t>();
  target.tile.mr = field("mr").cast<int64_t>();
  target.tile.nr = field("nr").cast<int64_t>();
  target.tile.kc = field("kc").cast<int64_t>();
  target.tile.block = field("block").cast<int64_t>();
  return target;
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

/// The kernels of a module for CUDA, as text that leads back to the user's.
static FailureOr<std::vector<KernelSource>>
collectCudaSources(ModuleOp module) {
  FailureOr<std::vector<cuda::KernelModule>> kernels =
      cuda::collectKernels(module);
  if (failed(kernels)) {
    return failure();
  }
  std::vector<KernelSource> sources;
  for (cuda::KernelModule &kernel : *kernels) {
    std::string text;
    llvm::raw_string_ostream os(text);
    kernel.module->print(os,
                         OpPrintingFlags().enableDebugInfo().useLocalScope());
    sources.push_back({kernel.name, text + "\n"});
  }
  return sources;
}

static std::vector<KernelSource> getKernels(Module &self) {
  return self.withLock([](ModuleOp module) {
    DiagnosticCollector collector(module.getContext());
    FailureOr<std::vector<KernelSource>> sources =
        getCudaTarget(module) ? collectCudaSources(module)
                              : cpu::collectKernelSources(module);
    if (failed(sources)) {
      collector.raise("cannot list the kernels of this module");
    }
    return std::move(*sources);
  });
}

static const DialectRegistry &getCompilerRegistry() {
  static const DialectRegistry registry = [] {
    DialectRegistry all;
    registerAllDialects(all);
    cpu::registerCpuTranslations(all);
    return all;
  }();
  return registry;
}

static CompiledKernel compileKernel(const std::string &text,
                                    const py::dict &targetDict,
                                    unsigned optLevel,
                                    const std::optional<std::string> &dump) {
  if (optLevel > 3) {
    throw py::value_error("expects an opt_level from 0 to 3, but got " +
                          std::to_string(optLevel));
  }
  if (dump && *dump != "llvm" && *dump != "assembly") {
    throw py::value_error("expects dump to be 'llvm' or 'assembly', but got '" +
                          *dump + "'");
  }
  CpuTarget target = toTarget(targetDict);
  py::gil_scoped_release release;
  // A context of its own, so that kernels compile side by side.
  MLIRContext context(getCompilerRegistry(), MLIRContext::Threading::DISABLED);
  OwningOpRef<ModuleOp> module =
      parseModule(&context, text, "<kernel>", "a kernel");
  DiagnosticCollector collector(&context);
  cpu::CompileOptions options;
  options.optLevel = optLevel;
  options.keepLLVMIR = dump && *dump == "llvm";
  options.keepAssembly = dump && *dump == "assembly";
  FailureOr<CompiledKernel> kernel =
      cpu::compileKernel(*module, target, options);
  if (failed(kernel)) {
    collector.raise("cannot compile a kernel");
  }
  return std::move(*kernel);
}

[[noreturn]] static void raise(llvm::Error error) {
  throw CompileError(llvm::toString(std::move(error)), {});
}

static std::unique_ptr<KernelLibrary> createLibrary() {
  auto library = KernelLibrary::create();
  if (!library) {
    raise(library.takeError());
  }
  return std::move(*library);
}

//===----------------------------------------------------------------------===//
// Plans
//===----------------------------------------------------------------------===//

static runtime::StepPlan buildPlan(Module &module) {
  return module.withLock([](ModuleOp op) {
    DiagnosticCollector collector(op.getContext());
    FailureOr<runtime::StepPlan> plan = buildStepPlan(op);
    if (failed(plan)) {
      collector.raise("cannot build a step plan");
    }
    return std::move(*plan);
  });
}

/// What needs both halves of the extension; the runtime's is bound already.
static void bindPlans(py::module_ &m) {
  m.def("build_plan", &buildPlan, py::arg("module"),
        "The plan of a memory-planned module. Kernels are referred to by name. "
        "Raises CompileError.");
  auto executor =
      py::reinterpret_borrow<py::class_<runtime::Executor>>(m.attr("Executor"));
  executor.def(py::init([](const runtime::StepPlan &plan,
                           const KernelLibrary &library, int threads) {
                 return makeHostExecutor(plan, library.table(), threads);
               }),
               py::arg("plan"), py::arg("library"), py::arg("threads") = 0,
               py::keep_alive<1, 3>(),
               "The same with kernels that were compiled here.");
}

void bindCodegen(py::module_ &m) {
  m.def(
      "llvm_version", [] { return LLVM_VERSION_STRING; },
      "Version of the LLVM that generates code.");
  m.def(
      "host_target", [] { return toDict(CpuTarget::host()); },
      "Describes the processor this process runs on.");
  m.def(
      "cpu_target",
      [](const std::string &cpu, const std::string &features) {
        return toDict(CpuTarget::get(CpuTarget::host().triple, cpu, features));
      },
      py::arg("cpu"), py::arg("features"),
      "Describes another processor of the host's kind, such as ('x86-64-v3', "
      "'+avx2,+fma').");

  py::class_<KernelSource>(m, "KernelSource", "A kernel as canonical IR text.")
      .def_readonly("name", &KernelSource::name)
      .def_readonly("text", &KernelSource::text);

  auto module = py::reinterpret_borrow<py::class_<Module>>(m.attr("Module"));
  module.def(
      "set_cpu_target",
      [](Module &self, const py::dict &target) {
        cpu::TileParameters tile = toTarget(target).tile;
        self.withLock([&](ModuleOp op) {
          DiagnosticCollector collector(op.getContext());
          if (failed(cpu::setCpuTarget(op, tile))) {
            collector.raise("cannot generate code for this target");
          }
        });
      },
      py::arg("target"),
      "Records the register tile and cache blocks of a target in the module. "
      "Raises CompileError for a tile that kernels cannot be made for.");
  module.def("kernels", &getKernels,
             "Every kernel that a lowered module needs, in a fixed order.");

  py::class_<CompiledKernel>(m, "CompiledKernel", "Machine code of one kernel.")
      .def_readonly("name", &CompiledKernel::name)
      .def_property_readonly(
          "object",
          [](const CompiledKernel &self) { return py::bytes(self.object); })
      .def_readonly("seconds", &CompiledKernel::seconds)
      .def_readonly("llvm_ir", &CompiledKernel::llvmIR)
      .def_readonly("assembly", &CompiledKernel::assembly);
  m.def("compile_kernel", &compileKernel, py::arg("text"), py::arg("target"),
        py::arg("opt_level") = 3, py::arg("dump") = py::none(),
        "Compiles the text of a kernel for a target. Releases the GIL.");

  py::class_<KernelLibrary>(
      m, "KernelLibrary", "Kernels loaded into this process. Owns their code.")
      .def(py::init(&createLibrary))
      .def(
          "add",
          [](KernelLibrary &self, const std::string &name,
             const py::bytes &object) {
            std::string bytes = object;
            py::gil_scoped_release release;
            if (llvm::Error error = self.add(name, bytes)) {
              raise(std::move(error));
            }
          },
          py::arg("name"), py::arg("object"),
          "Loads an object file that defines the kernel `name`.")
      .def(
          "address",
          [](const KernelLibrary &self, const std::string &name) {
            runtime::KernelTable table = self.table();
            KaonKernelFn function = table.find(name);
            if (!function) {
              throw py::key_error("expects the name of a loaded kernel, but "
                                  "got '" +
                                  name + "'; loaded: " + table.describe());
            }
            return reinterpret_cast<uintptr_t>(function);
          },
          py::arg("name"), "Address of a loaded kernel, a KaonKernelFn.")
      .def_property_readonly(
          "table",
          py::cpp_function(&KernelLibrary::table, py::keep_alive<0, 1>()),
          "The kernels that are loaded by now, by name, for an Executor.");
  bindPlans(m);
}

} // namespace kaon::python
