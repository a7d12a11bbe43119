//===-- nvrtc.cpp - NVIDIA's run-time compiler in kaon._C -----------------===//
//
// `kaon._C.Nvrtc`: CUDA C++ text to CUBIN and PTX.
//
//===----------------------------------------------------------------------===//

#include "codegen/cuda/Nvrtc.h"

#include "python/src/Bindings.h"

#include <pybind11/stl.h>
#include <regex>

namespace py = pybind11;

namespace kaon::python {

using cuda::CudaBinary;
using cuda::CudaFailure;
using cuda::CudaSource;
using cuda::Nvrtc;

/// The errors and warnings of a log, whose lines are `file(line): error: text`
/// with an optional number before the second colon. Lines of quoted source
/// belong to none of them; the message of the exception has the whole log.
static std::vector<DiagnosticRecord> parseLog(const std::string &log) {
  static const std::regex pattern(
      R"(^(.+)\((\d+)\): (?:catastrophic )?(error|warning)[^:]*: (.*)$)");
  std::vector<DiagnosticRecord> records;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, pattern)) {
      records.push_back(
          {match[3], match[1].str() + ":" + match[2].str(), match[4], {}});
    }
  }
  return records;
}

static Nvrtc openNvrtc(const std::vector<std::string> &candidates) {
  py::gil_scoped_release release;
  runtime::Result<Nvrtc> nvrtc = Nvrtc::open(candidates);
  if (!nvrtc.ok()) {
    py::gil_scoped_acquire acquire;
    py::set_error(PyExc_OSError, nvrtc.status().message().c_str());
    throw py::error_already_set();
  }
  return std::move(*nvrtc);
}

static CudaBinary compile(const Nvrtc &nvrtc, std::string text,
                          std::string name, std::string arch,
                          std::vector<std::string> options,
                          const std::map<std::string, std::string> &headers) {
  py::gil_scoped_release release;
  CudaSource source{std::move(text),
                    std::move(name),
                    std::move(arch),
                    std::move(options),
                    {}};
  for (const auto &[header, content] : headers) {
    source.headers.push_back({header, content});
  }
  CudaBinary binary;
  CudaFailure failure;
  if (!nvrtc.compile(source, binary, failure)) {
    std::string message = failure.message;
    if (!failure.log.empty()) {
      message += "\n" + failure.log;
    }
    throw CompileError(std::move(message), parseLog(failure.log));
  }
  return binary;
}

void bindNvrtc(py::module_ &m) {
  py::class_<CudaBinary>(m, "CudaBinary", "What NVRTC made of a text.")
      .def_property_readonly(
          "image",
          [](const CudaBinary &self) {
            return py::bytes(self.cubin.empty() ? self.ptx : self.cubin);
          },
          "What a CUDA driver loads.")
      .def_property_readonly(
          "kind",
          [](const CudaBinary &self) {
            return self.cubin.empty() ? "ptx" : "cubin";
          },
          "What the image is: 'cubin' or 'ptx'.")
      .def_readonly("ptx", &CudaBinary::ptx)
      .def_readonly("log", &CudaBinary::log)
      .def_readonly("seconds", &CudaBinary::seconds);

  py::class_<Nvrtc>(m, "Nvrtc", "NVIDIA's run-time compiler.")
      .def(py::init(&openNvrtc), py::arg("candidates"),
           "Opens the first of `candidates`, paths or names that the loader "
           "knows, that is a usable NVRTC. Raises OSError, which says for each "
           "why it is none.")
      .def_static("find_loaded", &Nvrtc::findLoaded,
                  "The path of an NVRTC in this process, or ''.")
      .def_property_readonly("path", &Nvrtc::getPath)
      .def_property_readonly(
          "version",
          [](const Nvrtc &self) {
            return py::make_tuple(self.getVersion().major,
                                  self.getVersion().minor);
          },
          "Major and minor version.")
      .def("supports", &Nvrtc::supports, py::arg("arch"),
           "Whether code can be generated for an architecture.")
      .def("compile", &compile, py::arg("source"), py::arg("name"),
           py::arg("arch"), py::arg("options") = std::vector<std::string>(),
           py::arg("headers") = std::map<std::string, std::string>(),
           "Compiles a text, which may include `headers` by name, for sm_90a "
           "or another architecture; for compute_80 and the like to PTX. "
           "Raises CompileError with the log. Releases the GIL.");
}

} // namespace kaon::python
