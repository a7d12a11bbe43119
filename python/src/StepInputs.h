//===-- StepInputs.h - what a step works on ---------------------*- C++ -*-===//
//
// The addresses, strides and scalars of a program's steps, kept from one step
// to the next, and how the tensors were that the addresses are of. Before a
// step every tensor is compared; what only moved is corrected here, and rows
// where anything else has changed are for Python to look at.
//
// A row is a parameter with its gradient and states, and one or more matrices.
// Gradients are held from the comparison until they are released, since a class
// of parameters may make one whenever it is asked: what was compared is what a
// step works on. Nothing else of Python's is kept alive: tensors are handed in
// for each call, so that they can go when the garbage collector says so. All
// members are called with the GIL.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_PYTHON_SRC_STEPINPUTS_H
#define KAON_PYTHON_SRC_STEPINPUTS_H

#include "python/src/TensorReader.h"
#include "runtime/kaon_runtime.h"

#include <cstdint>
#include <deque>
#include <pybind11/pybind11.h>
#include <vector>

namespace kaon::python {

class StepInputs {
public:
  StepInputs(const pybind11::type &tensorType, const pybind11::object &exchange,
             const pybind11::object &makeHandles);

  bool usesExchange() const { return reader.usesExchange(); }
  bool usesShim() const { return reader.usesShim(); }

  /// Adds a row of so many matrices with so many states each; returns its
  /// number. Refuses more than `maxNumbers` operands in all.
  size_t add(size_t matrices, size_t states);
  /// Says where an operand of a matrix lies: 0 is the parameter, 1 the
  /// gradient, then come the states.
  void place(size_t row, size_t matrix, size_t operand, uintptr_t address,
             int64_t stride);

  /// Adds a scalar set that has the values numbered `values`, as many as
  /// `count` says. Those of a row that counts its updates come after the count.
  /// Refuses `maxNumbers` of them in all, and more.
  void addScalars(size_t values, size_t count, int64_t countingRow);
  /// Gives the values numbered `values`, to all sets that have them.
  void setValues(size_t values, const pybind11::sequence &numbers);

  /// Compares the tensors of all rows with what they were, and the states that
  /// are in use with those that the optimizer has. Returns the numbers of the
  /// rows that have to be looked at. Holds the gradients.
  std::vector<size_t> compare(const pybind11::list &entries,
                              const pybind11::object &optimizerStates);
  /// The gradient of a row that is held; None where it has none to be updated
  /// with.
  pybind11::object gradient(size_t row);
  /// Takes the tensors of a row for what they are now, and holds `gradient`.
  /// `inPlace` says whether that is read where it is.
  void accept(size_t row, const pybind11::tuple &entry,
              const pybind11::object &gradient, bool inPlace);
  /// A row without a gradient, which is left alone.
  void clear(size_t row);

  /// Lets go of the gradients: kernels have read them, or will not.
  void release();

  /// Counts the update of each row that was just stepped. Where states refuse
  /// that, those of other rows are counted all the same.
  void countUpdates(const pybind11::list &entries) const;

  /// Copies for one step, which other threads cannot change.
  std::vector<KaonBuffer> copyBuffers() const { return buffers; }
  std::vector<double> copyScalars() const { return scalars; }
  /// The scalar sets, in a copy of the scalars.
  std::vector<KaonScalars> setsIn(const std::vector<double> &copy) const;

  /// Of operands and of scalars; a GiB of the former.
  static constexpr size_t maxNumbers = size_t(1) << 26;

private:
  struct Row {
    size_t firstBuffer, numMatrices, numOperands;
    bool isKnown = false;   // whether its tensors are as they were accepted
    bool isActive = false;  // whether it has a gradient
    bool isInPlace = false; // whether that is read where it is
    bool hasStates = false; // whether the optimizer's states are those in use
    std::vector<size_t> counts; // where in scalars its count is
    pybind11::object held;      // the gradient, while a step is under way
    TensorLayout parameter, gradient;
    std::vector<TensorLayout> states;
  };
  struct ScalarSet {
    size_t values;
    size_t first, count; // in scalars
    bool hasCount;       // in the first place
  };
  /// The parts of a row that Python hands in.
  struct Entry;

  Row &rowAt(size_t row);
  bool isUnchanged(Row &row, Entry &entry);
  bool areStatesUnchanged(const Row &row, Entry &entry);
  bool readCount(const Row &row, const Entry &entry);
  pybind11::object findGradient(const Entry &entry);
  void shiftGradient(Row &row, uintptr_t data);
  void findStates(const pybind11::list &entries, PyObject *states);
  bool areStatesWhereTheyWere(const pybind11::list &entries,
                              PyObject *states) const;
  void checkEntries(const pybind11::list &entries) const;
  Entry readEntry(size_t row, const pybind11::list &entries) const;
  Entry readEntry(const Row &row, PyObject *entry) const;

  TensorReader reader;
  TensorAttribute gradOf, requiresGradOf;
  std::deque<Row> rows; // which stay where they are
  std::vector<KaonBuffer> buffers;
  std::vector<double> scalars;
  std::vector<ScalarSet> sets;
  std::vector<int64_t> rowAtPosition; // of the optimizer's states; or -1
};

} // namespace kaon::python

#endif // KAON_PYTHON_SRC_STEPINPUTS_H
