//===-- StepInputs.cpp - what a step works on -----------------------------===//
//
// Everything here is called once per parameter and step, which is why it talks
// to the interpreter directly. What is borrowed from containers is held while
// Python code may run.
//
//===----------------------------------------------------------------------===//

#include "python/src/StepInputs.h"

#include "python/src/RuntimeBindings.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <pybind11/stl.h>
#include <unordered_map>
#include <utility>

namespace py = pybind11;
using namespace kaon::runtime;
using namespace kaon::python;

/// What a dict has under a key, borrowed; null where it has nothing.
static PyObject *lookUp(PyObject *dict, PyObject *key) {
  PyObject *value = PyDict_GetItemWithError(dict, key);
  if (!value && PyErr_Occurred()) {
    throw py::error_already_set();
  }
  return value;
}

/// What a mapping has under a key; null where it has nothing.
static py::object getItem(PyObject *mapping, PyObject *key) {
  if (PyDict_Check(mapping)) {
    return py::reinterpret_borrow<py::object>(lookUp(mapping, key));
  }
  py::handle object(mapping);
  return object.contains(py::handle(key)) ? py::object(object[key])
                                          : py::object();
}

/// A row as Python hands it in: (parameter, its states, the key of their count
/// or None, then key and tensor of each state).
struct StepInputs::Entry {
  PyObject *tuple;
  PyObject *parameter;
  PyObject *states;
  PyObject *countKey;    // or None
  py::object count = {}; // what is under the key, if it was looked up

  bool counts() const { return countKey != Py_None; }
  PyObject *stateKey(size_t state) const {
    return PyTuple_GET_ITEM(tuple, 3 + 2 * state);
  }
  PyObject *stateTensor(size_t state) const {
    return PyTuple_GET_ITEM(tuple, 4 + 2 * state);
  }
};

StepInputs::StepInputs(const py::type &tensorType, const py::object &exchange,
                       const py::object &makeHandles)
    : reader(tensorType, exchange, makeHandles), gradOf(tensorType, "grad"),
      requiresGradOf(tensorType, "requires_grad") {}

//===----------------------------------------------------------------------===//
// Laying out
//===----------------------------------------------------------------------===//

size_t StepInputs::add(size_t matrices, size_t states) {
  size_t room = maxNumbers - buffers.size();
  if (states > room || matrices > room / (2 + states)) {
    throw py::value_error(concat("add: expects at most ", room,
                                 " more operands, but got ", matrices,
                                 " matrices with ", states, " states"));
  }
  Row row;
  row.firstBuffer = buffers.size();
  row.numMatrices = matrices;
  row.numOperands = 2 + states;
  row.states.resize(states);
  buffers.resize(buffers.size() + matrices * row.numOperands, {nullptr, 0});
  rows.push_back(std::move(row));
  return rows.size() - 1;
}

StepInputs::Row &StepInputs::rowAt(size_t row) {
  if (row >= rows.size()) {
    throw py::index_error(
        concat("row: expects one below ", rows.size(), ", but got ", row));
  }
  return rows[row];
}

void StepInputs::place(size_t row, size_t matrix, size_t operand,
                       uintptr_t address, int64_t stride) {
  const Row &found = rowAt(row);
  if (matrix >= found.numMatrices || operand >= found.numOperands) {
    throw py::index_error(concat("place: expects a matrix below ",
                                 found.numMatrices, " and an operand below ",
                                 found.numOperands, ", but got ", matrix,
                                 " and ", operand));
  }
  buffers[found.firstBuffer + matrix * found.numOperands + operand] = {
      pointerTo<void *>(address), stride};
}

void StepInputs::addScalars(size_t values, size_t count, int64_t countingRow) {
  bool hasCount = countingRow >= 0;
  Row *counting = hasCount ? &rowAt(static_cast<size_t>(countingRow)) : nullptr;
  size_t first = scalars.size();
  if (count >= maxNumbers - first) {
    throw py::value_error(concat("add_scalars: expects fewer than ",
                                 maxNumbers - first, " more values, but got ",
                                 count));
  }
  scalars.resize(first + count + hasCount, 0.0); // before what points to them
  sets.push_back({values, first, count + hasCount, hasCount});
  if (counting) {
    counting->counts.push_back(first);
  }
}

void StepInputs::setValues(size_t values, const py::sequence &numbers) {
  auto copy = numbers.cast<std::vector<double>>();
  for (const ScalarSet &set : sets) {
    size_t count = set.count - set.hasCount;
    if (set.values == values && copy.size() != count) {
      throw py::value_error(concat("values ", values, ": expects ", count,
                                   " numbers, but got ", copy.size()));
    }
  }
  for (const ScalarSet &set : sets) {
    if (set.values == values) {
      std::ranges::copy(copy, scalars.begin() + set.first + set.hasCount);
    }
  }
}

std::vector<KaonScalars>
StepInputs::setsIn(const std::vector<double> &copy) const {
  std::vector<KaonScalars> spans;
  spans.reserve(sets.size());
  for (const ScalarSet &set : sets) {
    spans.push_back({copy.data() + set.first, static_cast<int64_t>(set.count)});
  }
  return spans;
}

//===----------------------------------------------------------------------===//
// What Python hands in
//===----------------------------------------------------------------------===//

StepInputs::Entry StepInputs::readEntry(const Row &row, PyObject *entry) const {
  auto size = static_cast<Py_ssize_t>(3 + 2 * row.states.size());
  if (!PyTuple_Check(entry) || PyTuple_GET_SIZE(entry) != size) {
    throw py::value_error(concat("entries: expects tuples of ", size,
                                 " for a row with ", row.states.size(),
                                 " states"));
  }
  return {entry, PyTuple_GET_ITEM(entry, 0), PyTuple_GET_ITEM(entry, 1),
          PyTuple_GET_ITEM(entry, 2)};
}

StepInputs::Entry StepInputs::readEntry(size_t row,
                                        const py::list &entries) const {
  // Python code that ran meanwhile may have taken some away.
  if (row >= entries.size()) {
    throw py::value_error("entries: expects a list that stays as it is");
  }
  return readEntry(
      rows[row], PyList_GET_ITEM(entries.ptr(), static_cast<Py_ssize_t>(row)));
}

void StepInputs::checkEntries(const py::list &entries) const {
  if (entries.size() != rows.size()) {
    throw py::value_error(concat("entries: expects one for each of ",
                                 rows.size(), " rows, but got ",
                                 entries.size()));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    (void)readEntry(i, entries);
  }
}

/// The gradient to update a parameter with, or null.
py::object StepInputs::findGradient(const Entry &entry) {
  py::object gradient = gradOf(entry.parameter);
  if (gradient.is_none() || requiresGradOf(entry.parameter).ptr() != Py_True) {
    return {};
  }
  return gradient;
}

//===----------------------------------------------------------------------===//
// The optimizer's states
//===----------------------------------------------------------------------===//

/// Parameter and states of a row; the entries are known to be as they should.
static std::pair<PyObject *, PyObject *> ownerAndStates(const py::list &entries,
                                                        size_t row) {
  PyObject *entry =
      PyList_GET_ITEM(entries.ptr(), static_cast<Py_ssize_t>(row));
  return {PyTuple_GET_ITEM(entry, 0), PyTuple_GET_ITEM(entry, 1)};
}

/// The dict is walked instead of asked: torch's tensors have a hash in Python.
bool StepInputs::areStatesWhereTheyWere(const py::list &entries,
                                        PyObject *states) const {
  if (rowAtPosition.empty() ||
      static_cast<size_t>(PyDict_GET_SIZE(states)) != rowAtPosition.size()) {
    return false;
  }
  Py_ssize_t next = 0;
  PyObject *key = nullptr, *value = nullptr;
  for (size_t i = 0; PyDict_Next(states, &next, &key, &value); ++i) {
    int64_t row = rowAtPosition[i];
    if (row >= 0 && ownerAndStates(entries, static_cast<size_t>(row)) !=
                        std::pair(key, value)) {
      return false;
    }
  }
  return true;
}

void StepInputs::findStates(const py::list &entries, PyObject *states) {
  if (PyDict_Check(states) && areStatesWhereTheyWere(entries, states)) {
    return;
  }
  rowAtPosition.clear();
  std::unordered_map<PyObject *, size_t> rowOf;
  for (size_t i = 0; i < rows.size(); ++i) {
    rowOf.emplace(ownerAndStates(entries, i).first, i);
    rows[i].hasStates = false;
  }
  if (!PyDict_Check(states)) {
    return; // All rows are for Python to look at.
  }
  std::vector<int64_t> positions;
  size_t numFound = 0;
  Py_ssize_t next = 0;
  PyObject *key = nullptr, *value = nullptr;
  while (PyDict_Next(states, &next, &key, &value)) {
    auto found = rowOf.find(key);
    bool isRow = found != rowOf.end() &&
                 value == ownerAndStates(entries, found->second).second;
    positions.push_back(isRow ? static_cast<int64_t>(found->second) : -1);
    if (isRow) {
      rows[found->second].hasStates = true;
      ++numFound;
    }
  }
  // A row without its states has no position: look again next time.
  if (numFound == rows.size()) {
    rowAtPosition = std::move(positions);
  }
}

bool StepInputs::areStatesUnchanged(const Row &row, Entry &entry) {
  if (!row.hasStates || !PyDict_Check(entry.states)) {
    return false;
  }
  // A dict with the same keys in the same order is walked through; whatever
  // else it may be is asked.
  size_t numFound = 0;
  bool isAlike = true;
  Py_ssize_t next = 0;
  PyObject *key = nullptr, *value = nullptr;
  while (isAlike && PyDict_Next(entry.states, &next, &key, &value)) {
    if (key == entry.countKey) {
      entry.count = py::reinterpret_borrow<py::object>(value);
      continue;
    }
    isAlike = numFound < row.states.size() && key == entry.stateKey(numFound) &&
              value == entry.stateTensor(numFound);
    ++numFound;
  }
  isAlike = isAlike && numFound == row.states.size();
  for (size_t i = 0; i < row.states.size(); ++i) {
    PyObject *tensor = entry.stateTensor(i);
    uintptr_t data = 0;
    if ((!isAlike && lookUp(entry.states, entry.stateKey(i)) != tensor) ||
        reader.compare(tensor, row.states[i], data) !=
            TensorReader::Change::None) {
      return false;
    }
  }
  if (!entry.count && entry.counts()) {
    entry.count = getItem(entry.states, entry.countKey);
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Before a step
//===----------------------------------------------------------------------===//

bool StepInputs::readCount(const Row &row, const Entry &entry) {
  if (!entry.counts()) {
    return true;
  }
  if (!entry.count || !PyLong_CheckExact(entry.count.ptr())) {
    return false;
  }
  double number = PyLong_AsDouble(entry.count.ptr());
  if (number == -1.0 && PyErr_Occurred()) {
    throw py::error_already_set();
  }
  for (size_t place : row.counts) {
    scalars[place] = number + 1.0;
  }
  return true;
}

void StepInputs::shiftGradient(Row &row, uintptr_t data) {
  uintptr_t distance = data - row.gradient.data; // forwards, or around
  row.gradient.data = data;
  if (!row.isInPlace) {
    return; // It is copied, from wherever it is.
  }
  for (size_t i = 0; i < row.numMatrices; ++i) {
    void *&address = buffers[row.firstBuffer + i * row.numOperands + 1].data;
    address =
        pointerTo<void *>(reinterpret_cast<uintptr_t>(address) + distance);
  }
}

bool StepInputs::isUnchanged(Row &row, Entry &entry) {
  py::object gradient = findGradient(entry);
  row.held = gradient;
  if (!gradient) {
    return row.isKnown && !row.isActive;
  }
  uintptr_t data = 0;
  if (!row.isKnown || !row.isActive || !areStatesUnchanged(row, entry) ||
      !readCount(row, entry) ||
      reader.compare(entry.parameter, row.parameter, data) !=
          TensorReader::Change::None) {
    return false;
  }
  TensorReader::Change change =
      reader.compare(gradient.ptr(), row.gradient, data);
  if (change == TensorReader::Change::Other) {
    return false;
  }
  if (change == TensorReader::Change::Moved) {
    shiftGradient(row, data);
  }
  return true;
}

std::vector<size_t> StepInputs::compare(const py::list &entries,
                                        const py::object &optimizerStates) {
  checkEntries(entries);
  findStates(entries, optimizerStates.ptr());
  gradOf.forgetTypes();
  requiresGradOf.forgetTypes();
  reader.forgetTypes();
  std::vector<size_t> changed;
  for (size_t i = 0; i < rows.size(); ++i) {
    Entry entry = readEntry(i, entries);
    auto tuple = py::reinterpret_borrow<py::object>(entry.tuple);
    if (!isUnchanged(rows[i], entry)) {
      rows[i].isKnown = false; // until it is accepted
      changed.push_back(i);
    }
  }
  return changed;
}

py::object StepInputs::gradient(size_t row) {
  const py::object &held = rowAt(row).held;
  return held ? held : py::none();
}

void StepInputs::accept(size_t row, const py::tuple &entry,
                        const py::object &gradient, bool inPlace) {
  Row &accepted = rowAt(row);
  Entry read = readEntry(accepted, entry.ptr());
  if (read.counts()) {
    read.count = getItem(read.states, read.countKey);
  }
  if (!readCount(accepted, read)) {
    throw py::type_error(
        concat("count: expects an int, but got ",
               read.count ? Py_TYPE(read.count.ptr())->tp_name : "nothing"));
  }
  accepted.isActive = true;
  accepted.isInPlace = inPlace;
  accepted.held = gradient;
  accepted.isKnown = PyDict_Check(read.states) &&
                     reader.read(read.parameter, accepted.parameter) &&
                     reader.read(gradient.ptr(), accepted.gradient);
  for (size_t i = 0; i < accepted.states.size(); ++i) {
    accepted.isKnown = accepted.isKnown &&
                       reader.read(read.stateTensor(i), accepted.states[i]);
  }
}

void StepInputs::clear(size_t row) {
  Row &cleared = rowAt(row);
  cleared.isActive = false;
  cleared.isKnown = true;
  cleared.held = py::object();
  for (size_t i = 0; i < cleared.numMatrices; ++i) {
    buffers[cleared.firstBuffer + i * cleared.numOperands + 1].data = nullptr;
  }
}

//===----------------------------------------------------------------------===//
// After a step
//===----------------------------------------------------------------------===//

void StepInputs::release() {
  for (size_t i = 0; i < rows.size(); ++i) { // what goes may run Python code
    rows[i].held = py::object();
  }
}

void StepInputs::countUpdates(const py::list &entries) const {
  checkEntries(entries);
  py::int_ one(1);
  py::object before, after; // Most rows are of one age, and share the number.
  auto countUpdate = [&](const Entry &entry) {
    py::object count = getItem(entry.states, entry.countKey);
    if (!count) {
      throw py::key_error("step");
    }
    if (!count.is(before)) {
      after = count + one;
      before = std::move(count);
    }
    if (PyObject_SetItem(entry.states, entry.countKey, after.ptr()) != 0) {
      throw py::error_already_set();
    }
  };
  std::exception_ptr failure;
  for (size_t i = 0; i < rows.size(); ++i) {
    Entry entry = readEntry(i, entries);
    auto tuple = py::reinterpret_borrow<py::object>(entry.tuple);
    if (!rows[i].isActive || !entry.counts()) {
      continue;
    }
    try {
      countUpdate(entry);
    } catch (...) {
      failure = failure ? failure : std::current_exception();
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

//===----------------------------------------------------------------------===//
// Groups of parameters
//===----------------------------------------------------------------------===//

/// Whether a dict has the very items of `snapshot` (key, value, key, value,
/// ...), in their order. The value `...` stands for any.
static bool hasSameItems(const py::dict &dict, const py::tuple &snapshot) {
  if (2 * dict.size() != snapshot.size()) {
    return false;
  }
  Py_ssize_t next = 0, item = 0;
  PyObject *key = nullptr, *value = nullptr;
  while (PyDict_Next(dict.ptr(), &next, &key, &value)) {
    PyObject *known = PyTuple_GET_ITEM(snapshot.ptr(), item + 1);
    if (key != PyTuple_GET_ITEM(snapshot.ptr(), item) ||
        (value != known && known != Py_Ellipsis)) {
      return false;
    }
    item += 2;
  }
  return true;
}

/// Whether a sequence has the very objects of a tuple.
static bool hasSameObjects(const py::object &sequence,
                           const py::tuple &objects) {
  auto fast = py::reinterpret_steal<py::object>(
      PySequence_Fast(sequence.ptr(), "expects a sequence"));
  if (!fast) {
    throw py::error_already_set();
  }
  PyObject **items = PySequence_Fast_ITEMS(fast.ptr());
  auto size = static_cast<size_t>(PySequence_Fast_GET_SIZE(fast.ptr()));
  return size == objects.size() &&
         std::equal(items, items + size, PySequence_Fast_ITEMS(objects.ptr()));
}

/// Whether any of the tensors has a gradient and requires one.
static bool anyToUpdate(const py::tuple &tensors) {
  return std::ranges::any_of(tensors, [](py::handle tensor) {
    return tensor.attr("requires_grad").ptr() == Py_True &&
           !tensor.attr("grad").is_none();
  });
}

static std::vector<int64_t> listAddresses(const StepInputs &inputs) {
  std::vector<int64_t> integers;
  for (const KaonBuffer &buffer : inputs.copyBuffers()) {
    integers.push_back(
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(buffer.data)));
    integers.push_back(buffer.row_stride);
  }
  return integers;
}

static std::vector<std::vector<double>> listScalars(const StepInputs &inputs) {
  std::vector<double> copy = inputs.copyScalars();
  std::vector<std::vector<double>> lists;
  for (const KaonScalars &set : inputs.setsIn(copy)) {
    lists.emplace_back(set.values, set.values + set.count);
  }
  return lists;
}

void kaon::python::bindStepInputs(py::module_ &m) {
  py::class_<StepInputs>(
      m, "StepInputs",
      "The addresses, strides and scalars of steps, and how the tensors were "
      "that they are of. A row is a parameter with its gradient and states. "
      "Keeps no tensor alive but gradients, from compare to release.")
      .def(py::init([](const py::type &tensorType, const py::object &exchange,
                       const py::object &makeHandles) {
             return std::make_unique<StepInputs>(tensorType, exchange,
                                                 makeHandles);
           }),
           py::arg("tensor_type"), py::arg("exchange"),
           py::arg("make_handles") = py::none(),
           "`tensor_type` is torch.Tensor, `exchange` its "
           "__dlpack_c_exchange_api__, or None: then attributes are read. "
           "`make_handles` is torch's function that makes handles for its C "
           "functions, or None: then these are not used.")
      .def_property_readonly("uses_exchange", &StepInputs::usesExchange,
                             "Whether tensors are read by the C interface.")
      .def_property_readonly("uses_shim", &StepInputs::usesShim,
                             "Whether tensors are compared by torch's C "
                             "functions, where these can tell.")
      .def("add", &StepInputs::add, py::arg("matrices"), py::arg("states"),
           "Adds a row and returns its number.")
      .def("place", &StepInputs::place, py::arg("row"), py::arg("matrix"),
           py::arg("operand"), py::arg("address"), py::arg("stride"),
           "Says where a matrix of an operand lies: 0 is the parameter, 1 the "
           "gradient, then come the states.")
      .def("add_scalars", &StepInputs::addScalars, py::arg("values"),
           py::arg("count"), py::arg("counting_row") = -1,
           "Adds a scalar set with the `count` values numbered `values`, after "
           "the number of this update of `counting_row`, if that is not -1.")
      .def("set_values", &StepInputs::setValues, py::arg("values"),
           py::arg("numbers"),
           "Gives the values numbered `values` to the sets that have them.")
      .def("compare", &StepInputs::compare, py::arg("entries"),
           py::arg("states"),
           "Compares every row with what it was, and returns the numbers of "
           "those that have to be looked at. `entries` has, for each row, a "
           "tuple (parameter, its states, the key of their count of updates or "
           "None, then key and tensor of each state), `states` is the "
           "optimizer's. Holds the gradients until release.")
      .def("gradient", &StepInputs::gradient, py::arg("row"),
           "The gradient of a row that compare or accept holds, or None.")
      .def("accept", &StepInputs::accept, py::arg("row"), py::arg("entry"),
           py::arg("gradient"), py::arg("in_place"),
           "Takes a row with a gradient for what it is now, and holds the "
           "gradient. `in_place`: whether that is read where it is.")
      .def("clear", &StepInputs::clear, py::arg("row"),
           "A row without a gradient, which a step leaves alone.")
      .def("release", &StepInputs::release,
           "Lets go of the gradients that compare and accept hold.")
      .def("count_updates", &StepInputs::countUpdates, py::arg("entries"),
           "Adds one to the count of every row with a gradient that has one.")
      .def("addresses", &listAddresses,
           "Address and stride of each operand of each matrix.")
      .def("scalars", &listScalars, "The values of each scalar set.");
  m.def("has_same_items", &hasSameItems, py::arg("dict"), py::arg("snapshot"),
        "Whether a dict has the very items of a tuple (key, value, key, value, "
        "...), in that order; the value `...` stands for any.");
  m.def("has_same_objects", &hasSameObjects, py::arg("sequence"),
        py::arg("objects"),
        "Whether a sequence has the very objects of a tuple, in that order.");
  m.def("any_to_update", &anyToUpdate, py::arg("tensors"),
        "Whether any of a tuple of tensors requires a gradient and has one.");
}
