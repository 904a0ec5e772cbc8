#pragma once
// The parts of torch_tutti._C.
#include <torch/csrc/utils/pybind.h>

namespace tutti::python {

/// create_backend(), and Communicator with what is asked of it.
void bind_process_group(py::module_& module);

/// Reducer.
void bind_reducer(py::module_& module);

}  // namespace tutti::python
