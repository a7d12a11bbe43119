//===-- runtime.cpp - the runtime in kaon._C ------------------------------===//
//
// Step plans, kernels by address, and the executor.
//
//===----------------------------------------------------------------------===//

#include "python/src/RuntimeBindings.h"
#include "runtime/HostBackend.h"
#include "runtime/ThreadPool.h"

#include <pybind11/stl.h>

namespace py = pybind11;
using namespace kaon::runtime;

namespace kaon::python {

// The flat list of pointers and strides that `step` takes is an array of these.
static_assert(sizeof(KaonBuffer) == 2 * sizeof(int64_t));

static py::list getCosts(const StepPlan &plan) {
  py::list costs;
  for (int64_t phase = 0; phase < plan.period(); ++phase) {
    runtime::Cost cost = plan.cost(phase);
    py::dict entry;
    entry["flops"] = cost.flops;
    entry["bytes"] = cost.bytes;
    entry["launches"] = cost.launches;
    costs.append(entry);
  }
  return costs;
}

static void addKernel(KernelTable &table, const std::string &name,
                      uintptr_t address) {
  if (!table.add(name, pointerTo<KaonKernelFn>(address))) {
    throw py::value_error(concat("expects distinct names, but got the kernel '",
                                 name, "' twice"));
  }
}

std::unique_ptr<Executor>
makeHostExecutor(const StepPlan &plan, const KernelTable &table, int threads) {
  if (threads < 0) {
    throw py::value_error(
        concat("threads: expects at least 0, but got ", threads));
  }
  // Copies the table, which another thread may add to without the GIL.
  auto backend = std::make_unique<HostBackend>(table, threads);
  py::gil_scoped_release release;
  return unwrap(Executor::create(plan, std::move(backend)));
}

/// Appends the integers of `list`, pointers or strides.
static void appendIntegers(const py::sequence &list,
                           std::vector<int64_t> &integers) {
  py::object fast = py::reinterpret_steal<py::object>(
      PySequence_Fast(list.ptr(), "expects a list of integers"));
  if (!fast) {
    throw py::error_already_set();
  }
  PyObject **items = PySequence_Fast_ITEMS(fast.ptr());
  Py_ssize_t size = PySequence_Fast_GET_SIZE(fast.ptr());
  integers.reserve(integers.size() + size);
  for (Py_ssize_t i = 0; i < size; ++i) {
    int64_t integer = PyLong_AsLongLong(items[i]);
    if (integer == -1 && PyErr_Occurred()) {
      throw py::error_already_set();
    }
    integers.push_back(integer);
  }
}

StepArguments::StepArguments(int64_t count, const py::sequence &parameters,
                             const py::sequence &scalars, bool checkFinite) {
  std::vector<int64_t> integers;
  appendIntegers(parameters, integers);
  if (integers.size() % 2 != 0) {
    throw py::value_error(
        concat("parameters: expects a pointer and a row stride each, but got ",
               integers.size(), " integers"));
  }
  buffers.reserve(integers.size() / 2);
  for (size_t i = 0; i < integers.size(); i += 2) {
    buffers.push_back({pointerTo<void *>(static_cast<uintptr_t>(integers[i])),
                       integers[i + 1]});
  }
  values.reserve(py::len(scalars));
  for (py::handle set : scalars) {
    values.push_back(set.cast<std::vector<double>>());
    sets.push_back(
        {values.back().data(), static_cast<int64_t>(values.back().size())});
  }
  point(count, checkFinite);
}

StepArguments::StepArguments(int64_t count, const StepInputs &inputs,
                             bool checkFinite)
    : buffers(inputs.copyBuffers()), values{inputs.copyScalars()},
      sets(inputs.setsIn(values.front())) {
  point(count, checkFinite);
}

void StepArguments::point(int64_t count, bool checkFinite) {
  arguments = {count,
               buffers.data(),
               static_cast<int64_t>(buffers.size()),
               sets.data(),
               static_cast<int64_t>(sets.size()),
               checkFinite};
}

static int64_t step(Executor &executor, int64_t count,
                    const py::sequence &parameters, const py::sequence &scalars,
                    bool checkFinite) {
  StepArguments arguments(count, parameters, scalars, checkFinite);
  py::gil_scoped_release release;
  return unwrap(executor.step(arguments.step()));
}

static int64_t stepWith(Executor &executor, int64_t count,
                        const StepInputs &inputs, bool checkFinite) {
  StepArguments arguments(count, inputs, checkFinite);
  py::gil_scoped_release release;
  return unwrap(executor.step(arguments.step()));
}

py::dict getMatrixCounts(const Executor &executor) {
  py::dict counts;
  const std::vector<KernelPlan> &kernels = executor.plan().kernels;
  for (size_t i = 0; i < kernels.size(); ++i) {
    counts[py::str(kernels[i].name)] = executor.matrixCount(i);
  }
  return counts;
}

static void setPoolThreads(int threads) {
  if (threads < 0) {
    throw py::value_error(
        concat("threads: expects at least 0, but got ", threads));
  }
  py::gil_scoped_release release;
  ThreadPool::setLimit(threads);
}

void bindRuntime(py::module_ &m) {
  py::class_<StepPlan>(m, "StepPlan",
                       "What each phase of a program runs, as data. "
                       "`str(plan)` is a listing for people.")
      .def_static(
          "from_json",
          [](const std::string &text) {
            return unwrap(StepPlan::fromJson(text));
          },
          py::arg("text"),
          "Reads a plan. Raises ValueError, naming the field, for one that is "
          "not valid.")
      .def("to_json", &StepPlan::toJson,
           "The plan as one JSON object; the same plan gives the same text.")
      .def_property_readonly("period", &StepPlan::period, "Number of phases.")
      .def_readonly("workspace_bytes", &StepPlan::workspaceBytes,
                    "Workspace of an executor.")
      .def_property_readonly("costs", &getCosts,
                             "For each phase a dict of the flops, the bytes "
                             "read and written by kernels, and the "
                             "launches of a step.")
      .def("__str__", &StepPlan::print)
      .def(
          "__eq__",
          [](const StepPlan &self, const StepPlan &other) {
            return self == other;
          },
          py::is_operator());

  py::class_<KernelTable>(
      m, "KernelTable",
      "Addresses of kernels by name. Does not own their code.")
      .def(py::init<>())
      .def("add", &addKernel, py::arg("name"), py::arg("address"),
           "Adds a kernel at an address.")
      .def("__contains__",
           [](const KernelTable &self, const std::string &name) {
             return self.find(name) != nullptr;
           });

  py::class_<Executor>(m, "Executor",
                       "Replays a plan on the host. Allocates its workspace "
                       "and starts the process's worker threads "
                       "when it is made; a step allocates nothing.")
      .def(py::init(&makeHostExecutor), py::arg("plan"), py::arg("library"),
           py::arg("threads") = 0, py::keep_alive<1, 3>(),
           "`library` has all of the plan's kernels. `threads` counts the "
           "calling thread; 0 stands for all that set_pool_threads allows.")
      .def("step", &step, py::arg("step"), py::arg("parameters"),
           py::arg("scalars"), py::arg("check_finite") = true,
           "Runs step number `step`, 1 at first. `parameters`: for each matrix "
           "the pointer and the row stride (in "
           "elements) of the parameter, of the gradient (pointer 0: leave this "
           "matrix alone) and of each state, "
           "as one flat list of integers. `scalars`: the values of each scalar "
           "set. Returns the number of matrices "
           "whose gradient is not finite; if there are any and `check_finite` "
           "is set, nothing was changed. Raises "
           "ValueError before anything is changed. Releases the GIL.")
      .def("step_with", &stepWith, py::arg("step"), py::arg("inputs"),
           py::arg("check_finite") = true,
           "As step, on the addresses and scalars of StepInputs.")
      .def_property_readonly("plan", &Executor::plan,
                             "The plan that is replayed.")
      .def_property_readonly("matrix_counts", &getMatrixCounts,
                             "For each kernel, how many matrices it ran on "
                             "since the executor was made.")
      .def_property_readonly(
          "workspace_bytes",
          [](const Executor &self) { return self.plan().workspaceBytes; },
          "Bytes of workspace.");

  m.def("set_pool_threads", &setPoolThreads, py::arg("threads"),
        "How many threads steps may use at most in this process, the calling "
        "one included; 0 restores the number of "
        "processors. Waits for a running step.");
  m.def(
      "lend_threads",
      [](uintptr_t parallel) {
        ThreadPool::lend(pointerTo<ThreadPool::Parallel>(parallel));
      },
      py::arg("parallel"),
      "Lets steps run on threads of the process's own: `parallel` is the "
      "address of OpenMP's GOMP_parallel or a function like it; 0 ends that. "
      "Ignored in a forked child.");
  m.def("pool_threads", &ThreadPool::limit,
        "How many threads steps may use at most in this process.");
}

} // namespace kaon::python
