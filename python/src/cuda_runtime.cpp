//===-- cuda_runtime.cpp - the runtime on GPUs in kaon._C -----------------===//
//
// The driver, found at run time, and executors on its devices.
//
//===----------------------------------------------------------------------===//

#include "python/src/RuntimeBindings.h"
#include "runtime/cuda/CudaBackend.h"
#include "runtime/cuda/CudaDriver.h"

#include <cstring>
#include <optional>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <string>

namespace py = pybind11;
using namespace kaon::runtime;
using kaon::runtime::cuda::Address;
using kaon::runtime::cuda::Allocate;
using kaon::runtime::cuda::CudaBackend;
using kaon::runtime::cuda::CudaDriver;
using kaon::runtime::cuda::CudaOptions;
using kaon::runtime::cuda::DeviceInfo;
using kaon::runtime::cuda::Images;

namespace kaon::python {

/// The class of exceptions about devices; owned by the module.
static PyObject *cudaError = nullptr;

void raise(const Status &status) {
  // Wherever the failure was found, raising it needs the interpreter.
  py::gil_scoped_acquire acquire;
  if (status.kind() == Status::Kind::Device) {
    py::set_error(cudaError, status.message().c_str());
    throw py::error_already_set();
  }
  throw py::value_error(status.message());
}

namespace {

/// An executor whose backend is known to be a GPU's.
class CudaExecutor {
public:
  CudaExecutor(const StepPlan &plan, Images images,
               std::shared_ptr<CudaDriver> driver, CudaOptions options) {
    auto owned = std::make_unique<CudaBackend>(
        std::move(driver), std::move(images), std::move(options));
    backend = owned.get();
    executor = unwrap(Executor::create(plan, std::move(owned)));
  }

  Executor &operator*() const { return *executor; }
  Executor *operator->() const { return executor.get(); }
  CudaBackend &cuda() const { return *backend; }

private:
  std::unique_ptr<Executor> executor;
  CudaBackend *backend = nullptr; // the executor's
};

} // namespace

static py::dict describeDevice(const CudaDriver &driver, int ordinal) {
  DeviceInfo info = unwrap(driver.deviceInfo(ordinal));
  py::dict device;
  device["name"] = info.name;
  device["arch"] = info.architecture();
  device["compute_capability"] = py::make_tuple(info.major, info.minor);
  device["multiprocessors"] = info.multiprocessors;
  device["threads_per_block"] = info.threadsPerBlock;
  device["shared_bytes"] = info.sharedBytes;
  device["shared_bytes_per_multiprocessor"] = info.sharedBytesPerMultiprocessor;
  device["l2_cache_bytes"] = info.cacheBytes;
  device["memory_bytes"] = info.memoryBytes;
  return device;
}

static Images copyImages(const py::dict &images) {
  Images copies;
  for (auto [name, image] : images) {
    auto text = image.cast<std::string_view>();
    std::vector<std::byte> bytes(text.size());
    std::memcpy(bytes.data(), text.data(), text.size());
    copies.emplace(name.cast<std::string>(), std::move(bytes));
  }
  return copies;
}

/// Asks Python for memory. What it raises becomes a failure with its text.
static Allocate wrapAllocator(py::object allocate) {
  if (allocate.is_none()) {
    return {};
  }
  // The last copy may go while the interpreter is not held.
  std::shared_ptr<py::object> shared(new py::object(std::move(allocate)),
                                     [](py::object *object) {
                                       py::gil_scoped_acquire acquire;
                                       delete object;
                                     });
  return [shared](int64_t bytes) -> Result<Address> {
    py::gil_scoped_acquire acquire;
    try {
      return (*shared)(bytes).cast<Address>();
    } catch (const std::exception &error) {
      return Status::deviceFailure(
          "allocate: expects an address for ", bytes,
          " bytes of device memory, but got: ", error.what());
    }
  };
}

static std::unique_ptr<CudaExecutor>
makeCudaExecutor(const StepPlan &plan, const py::dict &images,
                 std::shared_ptr<CudaDriver> driver, int device,
                 const py::object &allocate, bool graphs) {
  Images copies = copyImages(images);
  CudaOptions options{device, wrapAllocator(allocate), graphs};
  py::gil_scoped_release release;
  return std::make_unique<CudaExecutor>(plan, std::move(copies),
                                        std::move(driver), std::move(options));
}

/// A number that the backend has, as a property. The answer waits for a step of
/// another thread, which may wait for the interpreter.
template <typename Number>
static auto askBackend(Number (CudaBackend::*question)() const) {
  return [question](const CudaExecutor &self) {
    py::gil_scoped_release release;
    return (self.cuda().*question)();
  };
}

static int64_t cudaStep(const CudaExecutor &executor, int64_t count,
                        const py::sequence &parameters,
                        const py::sequence &scalars, bool checkFinite,
                        uintptr_t stream) {
  StepArguments arguments(count, parameters, scalars, checkFinite);
  py::gil_scoped_release release;
  return unwrap(executor->step(arguments.step(), pointerTo<void *>(stream)));
}

static int64_t cudaStepWith(const CudaExecutor &executor, int64_t count,
                            const StepInputs &inputs, bool checkFinite,
                            uintptr_t stream) {
  StepArguments arguments(count, inputs, checkFinite);
  py::gil_scoped_release release;
  return unwrap(executor->step(arguments.step(), pointerTo<void *>(stream)));
}

void bindCudaRuntime(py::module_ &m) {
  cudaError = PyErr_NewExceptionWithDoc(
      "kaon._C.CudaError", "A GPU or its driver is not there or failed.",
      PyExc_RuntimeError, nullptr);
  if (!cudaError) {
    throw py::error_already_set();
  }
  m.add_object("CudaError", py::handle(cudaError));

  py::class_<CudaDriver, std::shared_ptr<CudaDriver>>(
      m, "CudaDriver", "The CUDA driver, opened at run time.")
      .def(py::init([](const std::optional<std::string> &path) {
             return unwrap(CudaDriver::open(
                 path.value_or(std::string(CudaDriver::defaultPath))));
           }),
           py::arg("path") = py::none(),
           py::call_guard<py::gil_scoped_release>(),
           "`path` is a file or a name for the loader, libcuda.so.1 if it is "
           "None. Raises CudaError, saying what helps.")
      .def_property_readonly("path", &CudaDriver::path, "What was opened.")
      .def_property_readonly("version", &CudaDriver::version,
                             "The version of CUDA that it implements, 13000 "
                             "for 13.0.")
      .def_property_readonly("is_fake", &CudaDriver::isFake,
                             "Whether it only imitates a driver, for tests.")
      .def_property_readonly("device_count", &CudaDriver::deviceCount,
                             "Number of devices, at least 1.")
      .def("device", &describeDevice, py::arg("index"),
           "A device as a dict: name, arch (\"sm_90a\"), compute_capability, "
           "multiprocessors, threads_per_block, shared_bytes (that a block may "
           "have), shared_bytes_per_multiprocessor, l2_cache_bytes, "
           "memory_bytes.");

  py::class_<CudaExecutor>(
      m, "CudaExecutor",
      "Replays a plan on a GPU. Takes its memory when it is made.")
      .def(
          py::init(&makeCudaExecutor), py::arg("plan"), py::arg("images"),
          py::arg("driver"), py::arg("device") = 0,
          py::arg("allocate") = py::none(), py::arg("graphs") = true,
          "`images`: CUBIN or PTX of each of the plan's kernels and, for steps "
          "that check gradients, of check_finite_<type>. `allocate(bytes)` "
          "gives the address of device memory, aligned to 256 bytes, that "
          "stays as long as the executor; without it the driver gives memory. "
          "`graphs`: launch each phase as one CUDA graph. Raises ValueError "
          "for a plan or code that does not fit, CudaError for a failing "
          "device.")
      .def("step", &cudaStep, py::arg("step"), py::arg("parameters"),
           py::arg("scalars"), py::arg("check_finite") = true,
           py::arg("stream") = 0,
           "As Executor.step, on a CUDA stream, given by its handle. Returns "
           "before the work is done; only `check_finite` waits for the "
           "stream. A failure of the device may be raised by a later step.")
      .def("step_with", &cudaStepWith, py::arg("step"), py::arg("inputs"),
           py::arg("check_finite") = true, py::arg("stream") = 0,
           "As step, on the addresses and scalars of StepInputs.")
      .def(
          "synchronize",
          [](const CudaExecutor &self) { check(self->synchronize()); },
          py::call_guard<py::gil_scoped_release>(),
          "Waits until all steps are done.")
      .def_property_readonly(
          "plan",
          [](const CudaExecutor &self) -> const StepPlan & {
            return self->plan();
          },
          py::return_value_policy::reference_internal,
          "The plan that is replayed.")
      .def_property_readonly(
          "matrix_counts",
          [](const CudaExecutor &self) { return getMatrixCounts(*self); },
          "For each kernel, how many matrices it ran on since the executor "
          "was made.")
      .def_property_readonly(
          "kernel_launches", askBackend(&CudaBackend::numKernelLaunches),
          "How many times a kernel of the plan was launched, alone or in a "
          "graph; one launch covers any number of matrices.")
      .def_property_readonly("graph_launches",
                             askBackend(&CudaBackend::numGraphLaunches),
                             "How many times a graph was launched.")
      .def(
          "kernels",
          [](const CudaExecutor &self, size_t phase) {
            py::gil_scoped_release release;
            return unwrap(self.cuda().kernelsOf(phase));
          },
          py::arg("phase") = 0,
          "The kernels that a step of a phase launches, in order.")
      .def(
          "repeat",
          [](const CudaExecutor &self, size_t phase, size_t launch,
             int64_t count, uintptr_t stream) {
            check(self.cuda().repeat(phase, launch, count,
                                     pointerTo<void *>(stream)));
          },
          py::arg("phase"), py::arg("launch"), py::arg("count") = 1,
          py::arg("stream") = 0, py::call_guard<py::gil_scoped_release>(),
          "Launches one kernel of a phase again, `count` times, on what the "
          "last step left: for measurements of it alone. Parameters and states "
          "change as it changes them. The tensors of the last step must still "
          "be there, gradients too. Raises ValueError before the first step of "
          "the phase and for a negative `count`.")
      .def_property_readonly(
          "workspace_bytes",
          [](const CudaExecutor &self) { return self->plan().workspaceBytes; },
          "Bytes of workspace on the device.")
      .def_property_readonly("table_bytes",
                             askBackend(&CudaBackend::tableBytes),
                             "Bytes of tables on the device.")
      .def_property_readonly(
          "is_fake",
          [](const CudaExecutor &self) {
            return self.cuda().cudaDriver().isFake();
          },
          "Whether the driver only imitates one, for tests.");
}

} // namespace kaon::python
