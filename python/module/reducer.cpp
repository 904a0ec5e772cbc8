// The Reducer, for torch_tutti.DistributedDataParallel. Methods release the GIL while they run, because threads that
// complete an operation may need it.
#include "tutti/detail/sync/reducer.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bindings.h"
#include "errors.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/wire_codec.h"
#include "tutti/core/error.h"

namespace tutti::python {
namespace {

using without_lock = py::call_guard<py::gil_scoped_release>;

SyncPolicy policy_of(const std::string& name) {
  if (name == "automatic") return SyncPolicy::automatic;
  if (name == "every_pass") return SyncPolicy::every_pass;
  throw UsageError("windows='" + name + "': it must be 'automatic' or 'every_pass'");
}

std::shared_ptr<const WireCodec> codec_of(const std::string& name) {
  if (name.empty()) return nullptr;
  if (name == "fp16") return fp16_codec();
  if (name == "bf16") return bf16_codec();
  if (name == "int8") return int8_codec();
  throw UsageError("codec='" + name + "': it must be 'fp16', 'bf16', 'int8' or empty");
}

std::unique_ptr<Reducer> make_reducer(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors,
                                      const std::vector<bool>& sparse, const Communicator& communicator,
                                      const std::string& policy, std::int64_t bucket_bytes, const std::string& codec,
                                      bool check_replicas) {
  std::vector<NamedParameter> parameters;
  for (std::size_t i = 0; i < names.size(); ++i) {
    parameters.push_back({.name = names[i], .tensor = tensors.at(i), .sparse = sparse.at(i)});
  }
  ReducerOptions options;
  options.policy = policy_of(policy);
  if (bucket_bytes > 0) {
    options.buckets.bucket_bytes = bucket_bytes;
    options.buckets.first_bucket_bytes = std::min(options.buckets.first_bucket_bytes, bucket_bytes);
  }
  options.gradient_codec = codec_of(codec);
  options.check_replicas = check_replicas;
  options.pass_error = throw_as_python;
  return std::make_unique<Reducer>(std::move(parameters), communicator.duplicate("ddp"), options);
}

py::dict dict_of(const SyncStats& stats) {
  using namespace py::literals;
  return py::dict("passes"_a = stats.passes, "syncs"_a = stats.syncs, "syncs_skipped"_a = stats.syncs_skipped,
                  "syncs_in_step"_a = stats.syncs_in_step, "gradients_copied"_a = stats.gradients_copied,
                  "bytes_sent"_a = stats.bytes_sent, "seconds_waiting"_a = stats.seconds_waiting,
                  "straggler_seconds"_a = stats.straggler_seconds);
}

}  // namespace

void bind_reducer(py::module_& module) {
  // The destructor communicates with other ranks.
  py::class_<Reducer>(module, "Reducer", py::release_gil_before_calling_cpp_dtor())
      .def(py::init(&make_reducer), py::arg("names"), py::arg("tensors"), py::arg("sparse"), py::arg("communicator"),
           py::arg("policy"), py::arg("bucket_bytes"), py::arg("codec"), py::arg("check_replicas"), without_lock())
      .def("enter_no_sync", &Reducer::enter_no_sync, without_lock())
      .def("leave_no_sync", &Reducer::leave_no_sync, without_lock())
      .def("trigger_sync_in_backward", &Reducer::trigger_sync_in_backward, without_lock())
      // Accelerate's trigger_sync_in_backward() calls this method of PyTorch's reducer.
      .def(
          "prepare_for_backward",
          [](Reducer& reducer, const py::object&) {
            const py::gil_scoped_release unlocked;
            reducer.trigger_sync_in_backward();
          },
          py::arg("outputs") = py::none())
      .def("synchronize", &Reducer::synchronize, without_lock())
      .def("prepare_step", &Reducer::prepare_step, without_lock())
      .def("on_optimizer_step", &Reducer::on_optimizer_step, without_lock())
      .def("clear", &Reducer::clear, py::arg("set_to_none") = true, without_lock())
      .def("set_check_replicas", &Reducer::set_check_replicas, without_lock())
      .def("steps", &Reducer::steps, without_lock())
      .def(
          "syncs", [](const Reducer& reducer) { return reducer.stats().syncs; }, without_lock())
      .def("stats", [](const Reducer& reducer) {
        SyncStats stats;
        {
          const py::gil_scoped_release unlocked;
          stats = reducer.stats();
        }
        return dict_of(stats);
      });
}

}  // namespace tutti::python
