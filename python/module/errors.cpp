#include "errors.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "tutti/core/error.h"

namespace tutti::python {
namespace {

const char* name_of(const Error& error) {
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) return "TimeoutError";
  if (dynamic_cast<const PeerError*>(&error) != nullptr) return "PeerError";
  if (dynamic_cast<const MismatchError*>(&error) != nullptr) return "MismatchError";
  if (dynamic_cast<const UsageError*>(&error) != nullptr) return "UsageError";
  return "Error";
}

/// Sets Python's error. The caller must hold the GIL.
void set_error(const Error& error) {
  try {
    const py::object type = py::module_::import("torch_tutti.errors").attr(name_of(error));
    const py::object raised = type(error.what());
    if (const auto* failure = dynamic_cast<const PeerError*>(&error)) {
      raised.attr("ranks") = py::tuple(py::cast(failure->ranks()));
    }
    PyErr_SetObject(type.ptr(), raised.ptr());
  } catch (py::error_already_set& other) {  // modules may be unloaded at interpreter shutdown
    other.restore();
  }
}

}  // namespace

void register_errors() {
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(std::move(error));
    } catch (const Error& ours) {
      set_error(ours);
    }
  });
}

void throw_as_python(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& ours) {
    const py::gil_scoped_acquire lock;
    set_error(ours);
    python_error raised;
    raised.persist();
    throw raised;
  } catch (...) {
    return;  // not one of tutti's errors: pybind11 translates it
  }
}

}  // namespace tutti::python
