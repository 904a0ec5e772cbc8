#pragma once
// tutti's errors as Python's: torch_tutti.errors has a class for each.
#include <exception>

namespace tutti::python {

/// From now on every function that pybind11 calls, PyTorch's own ones too, turns tutti's errors into those of
/// torch_tutti.errors.
void register_errors();

/// Throws `error` as the Python exception that it becomes; does nothing where it is none of tutti's. Takes the
/// interpreter's lock.
void throw_as_python(const std::exception_ptr& error);

}  // namespace tutti::python
