#include "tutti/process_group/process_group_tutti.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "comm/connect_peers.h"
#include "comm/tensor_checks.h"
#include "device/side_stream.h"
#include "process_group/arguments.h"
#include "process_group/generation.h"
#include "process_group/group_work.h"
#include "process_group/sparse.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti {
namespace {

using c10d::OpType;
using process_group::require_each_like;
using process_group::require_pairs;
using process_group::require_root;
using process_group::require_single;
using process_group::require_usable;
using process_group::to_reduce_op;
using std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;

using OptionsPtr = c10::intrusive_ptr<ProcessGroupTutti::Options>;

const OptionsPtr& require_options(const OptionsPtr& options) {
  if (!options) throw UsageError("ProcessGroupTutti: the options are null.");
  return options;
}

bool connects_later([[maybe_unused]] const ProcessGroupTutti::Options& options) {
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  return options.enable_reconfigure;
#else
  return false;
#endif
}

Communicator connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                     const ProcessGroupTutti::Options& options) {
  if (connects_later(options)) return {};
  return Communicator::connect(store, rank, size, process_group::communicator_options(options));
}

/// Must be called for outputs that the operation writes with copy_to_each(): the communicator does not see them.
void prepare_outputs(const char* what, const Tensors& tensors) {
  for (const auto& tensor : tensors) {
    comm::require_writable(what, tensor);
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

/// Concatenates the tensors, flattened, outside autograd.
at::Tensor concatenate(const Tensors& tensors) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  Tensors flat;
  for (const auto& tensor : tensors) flat.push_back(tensor.detach().reshape({-1}));
  return at::cat(flat);
}

/// The inverse of concatenate(). On a device, on the calling thread's current stream.
void copy_to_each(const at::Tensor& flat, const Tensors& tensors) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  devices::record_use_on_current_stream(flat);
  std::int64_t begin = 0;
  for (const auto& tensor : tensors) {
    tensor.detach().copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

at::Tensor make_flat(const at::Tensor& one, std::int64_t times) {
  return at::empty({one.numel() * times}, one.options().requires_grad(false));
}

}  // namespace

struct ProcessGroupTutti::Parts : process_group::Parts {
  milliseconds timeout{0};
  Tensors inputs;  // for profilers
};

ProcessGroupTutti::Options::Options(milliseconds deadline, std::string requested)
    : c10d::Backend::Options("tutti", deadline), communicator_backend(std::move(requested)) {}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupTutti::Options::clone() const {
  return c10::make_intrusive<Options>(*this);
}

ProcessGroupTutti::ProcessGroupTutti(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                     const c10::intrusive_ptr<Options>& options)
    : c10d::Backend(rank, size),
      options_(require_options(options)),
      timeout_(options->timeout),
      generation_(std::make_unique<Generation>(comm::host_of_store(store))),
      is_connected_(!connects_later(*options)),
      communicator_(connect(store, rank, size, *options)) {
  init();
}

ProcessGroupTutti::ProcessGroupTutti(Communicator communicator, const c10::intrusive_ptr<Options>& options)
    : ProcessGroupTutti(std::move(communicator), options, "") {}

ProcessGroupTutti::ProcessGroupTutti(Communicator communicator, const c10::intrusive_ptr<Options>& options,
                                     std::string store_host)
    : c10d::Backend(communicator.rank(), communicator.size()),
      options_(require_options(options)),
      timeout_(options->timeout),
      generation_(std::make_unique<Generation>(std::move(store_host))),
      communicator_(std::move(communicator)) {
  init();
}

ProcessGroupTutti::~ProcessGroupTutti() = default;

const Communicator& ProcessGroupTutti::communicator() const {
  if (!is_connected_) throw UsageError("communicator: this process group has no ranks yet: call reconfigure first.");
  return communicator_;
}

void ProcessGroupTutti::setTimeout(milliseconds timeout) {
  if (timeout <= milliseconds::zero()) {
    throw UsageError("setTimeout: the timeout must be positive, not " + std::to_string(timeout.count()) + " ms.");
  }
  timeout_ = timeout;
  options_->timeout = timeout;
}

CallOptions ProcessGroupTutti::call_options(milliseconds timeout) const {
  auto call = comm::internal_call();  // call sites in C++ would be lines of c10d; the program is in Python
  call.timeout = timeout > milliseconds::zero() ? timeout : timeout_.load();
  return call;
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::start_work(Parts parts) {
  const auto timeout = *call_options(parts.timeout).timeout;
  const auto inputs = std::move(parts.inputs);
  if (!parts.works.empty()) {
    const std::lock_guard lock(coalescing_mutex_);
    last_collective_ = parts.works.back();
  }
  auto work = process_group::GroupWork::start(rank_, ++calls_, timeout, inputs, std::move(parts));
  add_to_coalescing(*work);
  return work;
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  constexpr const char* what = "all_reduce";
  require_not_shut_down(what);
  if (tensors.size() == 1 && tensors[0].defined() && tensors[0].layout() == at::kSparse) {
    if (!tensors[0].is_inference()) tensors[0].unsafeGetTensorImpl()->bump_version();
    return start_work(
        {process_group::sparse_all_reduce(communicator_, tensors[0], options.reduceOp, call_options(options.timeout)),
         options.timeout, tensors});
  }
  const at::Tensor& tensor = require_single(what, tensors);
  Parts parts{{.type = OpType::ALLREDUCE, .what = what, .outputs = tensors}, options.timeout, tensors};
  parts.works.push_back(
      communicator_.all_reduce(tensor, to_reduce_op(what, options.reduceOp), call_options(options.timeout)));
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::allreduce_coalesced(Tensors& tensors,
                                                                  const c10d::AllreduceCoalescedOptions& options) {
  constexpr const char* what = "all_reduce_coalesced";
  require_not_shut_down(what);
  const auto op = to_reduce_op(what, options.reduceOp);
  for (const auto& tensor : tensors) {
    require_usable(what, tensor);
    comm::require_writable(what, tensor);
    comm::require_reducible(what, tensor, op);
  }
  Parts parts{{.type = OpType::ALLREDUCE_COALESCED, .what = what, .outputs = tensors}, options.timeout, tensors};
  for (const auto& tensor : tensors) {
    parts.works.push_back(communicator_.all_reduce(tensor, op, call_options(options.timeout)));
  }
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  constexpr const char* what = "reduce";
  require_not_shut_down(what);
  const at::Tensor& tensor = require_single(what, tensors);
  const int root = require_root(what, options.rootRank, size_);
  const auto op = to_reduce_op(what, options.reduceOp);
  Parts parts{{.type = OpType::REDUCE, .what = what, .outputs = tensors}, options.timeout, tensors};
  parts.works.push_back(communicator_.reduce(tensor, root, op, call_options(options.timeout)));
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  constexpr const char* what = "broadcast";
  require_not_shut_down(what);
  const at::Tensor& tensor = require_single(what, tensors);
  const int root = require_root(what, options.rootRank, size_);
  Parts parts{{.type = OpType::BROADCAST, .what = what, .outputs = tensors}, options.timeout, tensors};
  parts.works.push_back(communicator_.broadcast(tensor, root, call_options(options.timeout)));
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  constexpr const char* what = "all_gather";
  require_not_shut_down(what);
  const at::Tensor& input = require_single(what, inputs);
  const Tensors& list = require_single(what, outputs);
  require_each_like(what, list, input, size_);
  const at::Tensor all = make_flat(input, size_);
  Parts parts{{.type = OpType::ALLGATHER, .what = what, .outputs = list}, options.timeout, inputs};
  prepare_outputs(what, list);
  parts.works.push_back(communicator_.all_gather(all, input, call_options(options.timeout)));
  parts.on_completed = [all, list] { copy_to_each(all, list); };
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                                  const c10d::AllgatherOptions& options) {
  constexpr const char* what = "all_gather_coalesced";
  require_not_shut_down(what);
  // outputs[rank][i] receives input i of `rank`.
  if (outputs.size() != static_cast<std::size_t>(size_)) {
    throw UsageError(std::string(what) + ": " + std::to_string(outputs.size()) + " lists of outputs for " +
                     std::to_string(size_) + " ranks; there is one for each.");
  }
  for (const auto& list : outputs) require_pairs(what, list, inputs);
  std::vector<Tensors> by_input(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    require_usable(what, inputs[i]);
    for (const auto& list : outputs) by_input[i].push_back(list[i]);
    require_each_like(what, by_input[i], inputs[i], size_);
    prepare_outputs(what, by_input[i]);
  }
  Parts parts{{.type = OpType::ALLGATHER_COALESCED, .what = what}, options.timeout, inputs};
  std::vector<at::Tensor> gathered;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    gathered.push_back(make_flat(inputs[i], size_));
    parts.works.push_back(communicator_.all_gather(gathered[i], inputs[i], call_options(options.timeout)));
  }
  for (const auto& list : outputs) parts.outputs.insert(parts.outputs.end(), list.begin(), list.end());
  parts.on_completed = [gathered, by_input] {
    for (std::size_t i = 0; i < gathered.size(); ++i) copy_to_each(gathered[i], by_input[i]);
  };
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                              const c10d::AllgatherOptions& options) {
  constexpr const char* what = "_all_gather_base";
  require_not_shut_down(what);
  require_usable(what, output);
  require_usable(what, input);
  Parts parts{{.type = OpType::_ALLGATHER_BASE, .what = what, .outputs = {output}}, options.timeout, {input}};
  parts.works.push_back(communicator_.all_gather(output, input, call_options(options.timeout)));
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                              const c10d::AllgatherOptions& options) {
  constexpr const char* what = "all_gather_into_tensor_coalesced";
  require_not_shut_down(what);
  require_pairs(what, outputs, inputs);
  process_group::require_concatenated(what, outputs, inputs, size_);
  for (const auto& output : outputs) comm::require_writable(what, output);
  Parts parts{
      {.type = OpType::ALLGATHER_INTO_TENSOR_COALESCED, .what = what, .outputs = outputs}, options.timeout, inputs};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    parts.works.push_back(communicator_.all_gather(outputs[i], inputs[i], call_options(options.timeout)));
  }
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                     const c10d::GatherOptions& options) {
  constexpr const char* what = "gather";
  require_not_shut_down(what);
  const at::Tensor& input = require_single(what, inputs);
  const int root = require_root(what, options.rootRank, size_);
  const Tensors list = process_group::list_of_root(what, "outputs", outputs, input, rank_, root, size_);
  Parts parts{{.type = OpType::GATHER, .what = what, .outputs = list}, options.timeout, inputs};
  parts.works.push_back(communicator_.gather(list, input, root, call_options(options.timeout)));
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                      const c10d::ScatterOptions& options) {
  constexpr const char* what = "scatter";
  require_not_shut_down(what);
  const at::Tensor& output = require_single(what, outputs);
  const int root = require_root(what, options.rootRank, size_);
  const Tensors list = process_group::list_of_root(what, "inputs", inputs, output, rank_, root, size_);
  Parts parts{{.type = OpType::SCATTER, .what = what, .outputs = outputs}, options.timeout, outputs};
  parts.works.push_back(communicator_.scatter(output, list, root, call_options(options.timeout)));
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                             const c10d::ReduceScatterOptions& options) {
  constexpr const char* what = "reduce_scatter";
  require_not_shut_down(what);
  const at::Tensor& output = require_single(what, outputs);
  const Tensors& list = require_single(what, inputs);
  require_each_like(what, list, output, size_);
  const auto op = to_reduce_op(what, options.reduceOp);
  Parts parts{{.type = OpType::REDUCE_SCATTER, .what = what, .outputs = outputs}, options.timeout, list};
  parts.works.push_back(communicator_.reduce_scatter(output, concatenate(list), op, call_options(options.timeout)));
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                   const c10d::ReduceScatterOptions& options) {
  constexpr const char* what = "_reduce_scatter_base";
  require_not_shut_down(what);
  const auto op = to_reduce_op(what, options.reduceOp);
  require_usable(what, output);
  require_usable(what, input);
  Parts parts{{.type = OpType::_REDUCE_SCATTER_BASE, .what = what, .outputs = {output}}, options.timeout, {input}};
  parts.works.push_back(communicator_.reduce_scatter(output, input, op, call_options(options.timeout)));
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  constexpr const char* what = "reduce_scatter_tensor_coalesced";
  require_not_shut_down(what);
  require_pairs(what, outputs, inputs);
  const auto op = to_reduce_op(what, options.reduceOp);
  process_group::require_concatenated(what, inputs, outputs, size_);
  for (const auto& output : outputs) {
    comm::require_writable(what, output);
    comm::require_reducible(what, output, op);
  }
  Parts parts{
      {.type = OpType::REDUCE_SCATTER_TENSOR_COALESCED, .what = what, .outputs = outputs}, options.timeout, inputs};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    parts.works.push_back(communicator_.reduce_scatter(outputs[i], inputs[i], op, call_options(options.timeout)));
  }
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                            std::vector<std::int64_t>& output_splits,
                                                            std::vector<std::int64_t>& input_splits,
                                                            const c10d::AllToAllOptions& options) {
  constexpr const char* what = "all_to_all_single";
  require_not_shut_down(what);
  const Tensors outputs = process_group::split_rows(what, "output", output, output_splits, size_);
  comm::require_writable(what, output);
  require_usable(what, input);
  const Tensors inputs = process_group::split_rows(what, "input", input, input_splits, size_);
  Parts parts{{.type = OpType::ALLTOALL_BASE, .what = what, .outputs = {output}}, options.timeout, {input}};
  parts.works.push_back(communicator_.all_to_all_v(outputs, inputs, call_options(options.timeout)));
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::alltoall(Tensors& outputs, Tensors& inputs,
                                                       const c10d::AllToAllOptions& options) {
  constexpr const char* what = "all_to_all";
  require_not_shut_down(what);
  for (const auto* list : {&outputs, &inputs}) process_group::require_one_each(what, *list, size_);
  Parts parts{{.type = OpType::ALLTOALL, .what = what, .outputs = outputs}, options.timeout, inputs};
  parts.works.push_back(communicator_.all_to_all_v(outputs, inputs, call_options(options.timeout)));
  return start_work(std::move(parts));
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::barrier(const c10d::BarrierOptions& options) {
  require_not_shut_down("barrier");
  Parts parts{{.type = OpType::BARRIER, .what = "barrier"}, options.timeout, {}};
  parts.works.push_back(communicator_.barrier(call_options(options.timeout)));
  return start_work(std::move(parts));
}

}  // namespace tutti
