// The backend for torch.distributed, and the communicator under it.
#include <pybind11/chrono.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "bindings.h"
#include "tutti/comm/communicator.h"
#include "tutti/process_group/process_group_tutti.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::python {
namespace {

using without_lock = py::call_guard<py::gil_scoped_release>;
using std::chrono::milliseconds;

c10::intrusive_ptr<c10d::Backend> create_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                 std::chrono::duration<double> timeout, const std::string& backend,
                                                 [[maybe_unused]] bool enable_reconfigure) {
  auto options = c10::make_intrusive<ProcessGroupTutti::Options>(std::chrono::ceil<milliseconds>(timeout), backend);
  // As in PyTorch's backends, the timeout of an operation is also the timeout of connecting.
  options->connect_timeout = options->timeout;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  options->enable_reconfigure = enable_reconfigure;
#endif
  return c10::make_intrusive<ProcessGroupTutti>(store, rank, size, options);
}

std::optional<Communicator> communicator_of(const c10::intrusive_ptr<c10d::Backend>& backend) {
  const auto* ours = dynamic_cast<const ProcessGroupTutti*>(backend.get());
  return ours == nullptr ? std::nullopt : std::optional(ours->communicator());
}

void replicate_model_of_python(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names,
                               const std::vector<at::Tensor>& buffers, bool buffers_may_differ,
                               const Communicator& communicator) {
  std::vector<NamedParameter> named;
  for (std::size_t i = 0; i < buffers.size(); ++i) named.push_back({.name = names.at(i), .tensor = buffers[i]});
  replicate_model(parameters, named, buffers_may_differ, communicator);
}

}  // namespace

void bind_process_group(py::module_& module) {
  // The destructor communicates with other ranks.
  py::class_<Communicator>(module, "Communicator", py::release_gil_before_calling_cpp_dtor())
      .def_property_readonly("backend_name", &Communicator::backend_name);
  module.def("create_backend", &create_backend, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
             py::arg("backend"), py::arg("enable_reconfigure"), without_lock());
  module.def("communicator_of", &communicator_of, py::arg("backend"), "Returns None if the backend is not tutti.");
  module.def("replicate_model", &replicate_model_of_python, py::arg("parameters"), py::arg("names"), py::arg("buffers"),
             py::arg("buffers_may_differ"), py::arg("communicator"), without_lock());
  module.def("replicate", &replicate_tensors, py::arg("tensors"), py::arg("communicator"), without_lock());
}

}  // namespace tutti::python
