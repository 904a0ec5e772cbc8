// torch_tutti._C: what the package torch_tutti is made of. Import torch first.
#include "bindings.h"
#include "errors.h"

PYBIND11_MODULE(_C, module) {
  tutti::python::register_errors();
  tutti::python::bind_process_group(module);
  tutti::python::bind_reducer(module);
}
