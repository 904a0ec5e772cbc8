// The collectives of a Communicator with a root or with parts of different sizes.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "comm/backend/describe.h"
#include "comm/describe_call.h"
#include "comm/device_call.h"
#include "comm/operation_queue.h"
#include "comm/reduction/reduce_tree.h"
#include "comm/tensor_checks.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

using comm::Backend;
using comm::CallTensors;
using comm::ContiguousTensor;
using comm::Operation;
using ContiguousTensors = std::vector<ContiguousTensor>;

std::vector<at::Tensor> memory_of(const ContiguousTensors& tensors) {
  std::vector<at::Tensor> memory;
  for (const auto& tensor : tensors) memory.push_back(tensor.memory());
  return memory;
}

std::vector<at::Tensor> empty_parts(const at::Tensor& like, int size) {
  return std::vector<at::Tensor>(static_cast<std::size_t>(size), at::empty({0}, like.options()));
}

void require_part_for_each(const char* what, const char* name, const std::vector<at::Tensor>& parts, int size) {
  if (parts.size() == static_cast<std::size_t>(size)) return;
  throw UsageError(std::string(what) + ": " + std::to_string(parts.size()) + " " + name + " for " +
                   std::to_string(size) + " ranks; there must be one for each.");
}

// Requires that the root passes a tensor like `own` for each rank, and that other ranks pass none.
void require_parts_of_root(const char* what, const char* name, const std::vector<at::Tensor>& parts,
                           const at::Tensor& own, bool is_root, int size) {
  if (!is_root) {
    if (parts.empty()) return;
    throw UsageError(std::string(what) + ": only the root passes " + name + ".");
  }
  require_part_for_each(what, name, parts, size);
  for (const auto& part : parts) {
    if (part.defined() && part.numel() == own.numel() && part.scalar_type() == own.scalar_type()) continue;
    throw UsageError(std::string(what) + ": one of the " + name + " is " +
                     (part.defined() ? comm::describe_tensor(part) : "undefined") + ", this rank's own tensor " +
                     comm::describe_tensor(own) + "; they must have the same dtype and number of elements.");
  }
}

/// Compares the sizes of the parts that all ranks send and receive. Returns the longest part of any rank, in bytes.
/// Throws MismatchError, on all ranks, if a part has different sizes on its sender and its receiver.
std::size_t check_parts(Backend& backend, const Operation& operation, const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& outputs) {
  std::vector<std::uint64_t> part_bytes;  // of the parts to send, then of the parts to receive
  for (const auto* parts : {&inputs, &outputs}) {
    for (const auto& part : *parts) part_bytes.push_back(part.nbytes());
  }
  const auto size = static_cast<std::size_t>(backend.size());
  if (size == 1) return part_bytes.front();
  const auto exchange = backend.start_small_all_gather(operation, std::as_bytes(std::span(part_bytes)));
  const auto gathered = exchange->wait();
  std::vector<std::uint64_t> all(part_bytes.size() * size);
  std::memcpy(all.data(), gathered.data(), gathered.size());
  std::uint64_t longest = 0;
  for (std::size_t from = 0; from < size; ++from) {
    for (std::size_t to = 0; to < size; ++to) {
      const auto sent = all[from * 2 * size + to];
      const auto taken = all[to * 2 * size + size + from];
      longest = std::max(longest, sent);
      if (sent == taken) continue;
      throw MismatchError(operation.describe() + operation.job_ranks.describe_group() + ": " +
                          operation.job_ranks.describe({static_cast<int>(from)}) + " sends " + std::to_string(sent) +
                          " bytes to " + operation.job_ranks.describe({static_cast<int>(to)}) + ", which expects " +
                          std::to_string(taken) + " from it. Nothing was exchanged.");
    }
  }
  return longest;
}

}  // namespace

Work Communicator::all_to_all_v(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                                const CallOptions& call) const {
  constexpr const char* what = "all_to_all_v";
  require_part_for_each(what, "outputs", outputs, size());
  require_part_for_each(what, "inputs", inputs, size());
  CallTensors tensors(what, queue_->backend().traits());
  const auto from = tensors.inputs(comm::apart_from(outputs, inputs));
  const auto to = tensors.outputs(outputs);
  for (const auto* parts : {&outputs, &inputs}) {
    for (const auto& part : *parts) {
      if (part.scalar_type() == inputs.front().scalar_type()) continue;
      throw UsageError(std::string(what) + ": tensors of " + comm::describe_tensor(part) + " and " +
                       comm::describe_tensor(inputs.front()) + "; they must have the same dtype.");
    }
  }
  if (size() == 1 && inputs.front().numel() != outputs.front().numel()) {
    throw UsageError(std::string(what) + ": the input is " + comm::describe_tensor(inputs.front()) + ", the output " +
                     comm::describe_tensor(outputs.front()) + ".");
  }
  const auto exchange = [to, from](Backend& backend, const Operation& operation) {
    const auto outs = memory_of(to);
    const auto ins = memory_of(from);
    backend.all_to_all_v(operation, outs, ins, check_parts(backend, operation, ins, outs));
  };
  const auto arguments = c10::toString(inputs.front().scalar_type()) + comm::describe_device_type(inputs.front());
  return Work(queue_->call_backend(what, arguments, call, tensors, exchange));
}

Work Communicator::gather(const std::vector<at::Tensor>& outputs, at::Tensor input, int root,
                          const CallOptions& call) const {
  constexpr const char* what = "gather";
  comm::require_rank(root, size(), what);
  const bool is_root = rank() == root;
  CallTensors tensors(what, queue_->backend().traits());
  const auto from = tensors.input(input);
  require_parts_of_root(what, "outputs", outputs, input, is_root, size());
  const auto to = tensors.outputs(outputs);
  const auto arguments = comm::describe_tensor(input) + ", root " + std::to_string(root);
  const auto copy = [to, bytes = input.nbytes()](const auto& payloads) {
    for (std::size_t other = 0; other < to.size(); ++other) {
      std::copy_n(payloads[other], bytes, static_cast<std::byte*>(to[other].memory().data_ptr()));
    }
  };
  const auto exchange = [to, from, root](Backend& backend, const Operation& operation) {
    const int ranks = backend.size();
    auto inputs = empty_parts(from.memory(), ranks);
    inputs[static_cast<std::size_t>(root)] = from.memory();
    const auto outputs_here = to.empty() ? empty_parts(from.memory(), ranks) : memory_of(to);
    backend.all_to_all_v(operation, outputs_here, inputs, from.memory().nbytes());
  };
  return Work(queue_->call_backend(what, arguments, call, tensors, exchange, {from.memory(), copy}));
}

Work Communicator::scatter(at::Tensor output, const std::vector<at::Tensor>& inputs, int root,
                           const CallOptions& call) const {
  constexpr const char* what = "scatter";
  comm::require_rank(root, size(), what);
  const bool is_root = rank() == root;
  CallTensors tensors(what, queue_->backend().traits());
  const auto to = tensors.output(output);
  require_parts_of_root(what, "inputs", inputs, output, is_root, size());
  const auto from = tensors.inputs(inputs);
  const auto exchange = [to, from, root](Backend& backend, const Operation& operation) {
    const int ranks = backend.size();
    auto outputs = empty_parts(to.memory(), ranks);
    outputs[static_cast<std::size_t>(root)] = to.memory();
    const auto inputs_here = from.empty() ? empty_parts(to.memory(), ranks) : memory_of(from);
    backend.all_to_all_v(operation, outputs, inputs_here, to.memory().nbytes());
  };
  const auto arguments = comm::describe_tensor(output) + ", root " + std::to_string(root);
  return Work(queue_->call_backend(what, arguments, call, tensors, exchange));
}

Work Communicator::reduce(at::Tensor tensor, int root, ReduceOp op, const CallOptions& call) const {
  constexpr const char* what = "reduce";
  comm::require_rank(root, size(), what);
  const bool is_root = rank() == root;
  CallTensors tensors(what, queue_->backend().traits());
  const auto flat = is_root ? tensors.in_place(tensor) : tensors.input(tensor);
  comm::require_reducible(what, tensor, op);
  const auto arguments =
      comm::describe_tensor(tensor) + ", " + comm::describe_op(op) + ", root " + std::to_string(root);
  const auto reduce_payloads = [flat, op, is_root](const auto& payloads) {
    if (!is_root) return;
    comm::reduce_tree(payloads, static_cast<std::byte*>(flat.memory().data_ptr()),
                      static_cast<std::size_t>(flat.memory().numel()), flat.memory().scalar_type(),
                      comm::make_reduction(op, static_cast<int>(payloads.size())));
  };
  if (!flat.memory().is_cpu()) {
    const auto reduce_on_device = [flat, op, is_root](Backend& backend, const Operation& operation) {
      const at::Tensor sum = flat.memory().clone();
      backend.all_reduce(operation, sum, op);
      if (is_root) flat.memory().copy_(sum);
    };
    return Work(queue_->call_backend(what, arguments, call, tensors, reduce_on_device));
  }
  // Each rank reduces a shard, and the root gathers the shards.
  const auto exchange = [flat, op, root](Backend& backend, const Operation& operation) {
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    const at::Tensor values = flat.memory().view({-1});
    const std::int64_t ranks = backend.size();
    const std::int64_t share = (values.numel() + ranks - 1) / ranks;
    const bool is_copied = ranks * share != values.numel();
    const at::Tensor whole = is_copied ? at::zeros({ranks * share}, values.options()) : values;
    if (is_copied) whole.narrow(0, 0, values.numel()).copy_(values);
    const at::Tensor slice = at::empty({share}, values.options());
    backend.reduce_scatter(operation, slice, whole, op);
    auto inputs = empty_parts(values, backend.size());
    inputs[static_cast<std::size_t>(root)] = slice;
    auto outputs = empty_parts(values, backend.size());
    for (std::int64_t part = 0; backend.rank() == root && part < ranks; ++part) {
      outputs[static_cast<std::size_t>(part)] = whole.narrow(0, part * share, share);
    }
    backend.all_to_all_v(operation, outputs, inputs, slice.nbytes());
    if (is_copied && backend.rank() == root) values.copy_(whole.narrow(0, 0, values.numel()));
  };
  return Work(queue_->call_backend(what, arguments, call, tensors, exchange, {flat.memory(), reduce_payloads}));
}

}  // namespace tutti
