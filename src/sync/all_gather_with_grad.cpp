#include "tutti/sync/all_gather_with_grad.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <utility>
#include <vector>

#include "tutti/core/error.h"

namespace tutti {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The communicator and call options of a node of the graph.
struct Exchange : torch::CustomClassHolder {
  Exchange(Communicator ranks, CallOptions options) : communicator(std::move(ranks)), call(std::move(options)) {}

  /// The exchange of the backward pass of this node. Its unique name makes different orders of nodes on two ranks a
  /// mismatch; without it, two nodes of equal shapes would match each other.
  c10::intrusive_ptr<Exchange> backward() const {
    CallOptions options = call;
    options.name += ", backward";
    return c10::make_intrusive<Exchange>(communicator, std::move(options));
  }

  Communicator communicator;
  CallOptions call;
};
using ExchangePointer = c10::intrusive_ptr<Exchange>;

void save_exchange(AutogradContext* context, const ExchangePointer& exchange) {
  context->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
}
ExchangePointer saved_exchange(AutogradContext* context) {
  const auto capsule = context->saved_data["exchange"].toCapsule();
  return c10::static_intrusive_pointer_cast<Exchange>(capsule);
}

/// An uninitialized tensor shaped like `tensor`, with `rows` rows.
at::Tensor with_rows(const at::Tensor& tensor, std::int64_t rows) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, tensor.options());
}

/// GatherRows and SumRows are each other's backward passes, so derivatives of any order work.
struct GatherRows : torch::autograd::Function<GatherRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& local_rows, const ExchangePointer& exchange);
  static variable_list backward(AutogradContext* context, const variable_list& gradients);
};
struct SumRows : torch::autograd::Function<SumRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& all, const ExchangePointer& exchange);
  static variable_list backward(AutogradContext* context, const variable_list& gradients);
};

at::Tensor GatherRows::forward(AutogradContext* context, const at::Tensor& local_rows,
                               const ExchangePointer& exchange) {
  save_exchange(context, exchange);
  const at::Tensor input = local_rows.detach().contiguous();
  at::Tensor all = with_rows(input, input.size(0) * exchange->communicator.size());
  exchange->communicator.all_gather(all, input, exchange->call).wait();
  return all;
}

variable_list GatherRows::backward(AutogradContext* context, const variable_list& gradients) {
  return {SumRows::apply(gradients[0], saved_exchange(context)->backward()), at::Tensor()};
}

at::Tensor SumRows::forward(AutogradContext* context, const at::Tensor& all, const ExchangePointer& exchange) {
  save_exchange(context, exchange);
  const at::Tensor input = all.detach().contiguous();
  at::Tensor local_rows = with_rows(input, input.size(0) / exchange->communicator.size());
  exchange->communicator.reduce_scatter(local_rows, input, ReduceOp::sum, exchange->call).wait();
  return local_rows;
}

variable_list SumRows::backward(AutogradContext* context, const variable_list& gradients) {
  return {GatherRows::apply(gradients[0], saved_exchange(context)->backward()), at::Tensor()};
}

std::string unsupported_reason(const at::Tensor& tensor) {
  if (!tensor.defined()) return "the tensor is undefined";
  if (tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_meta()) return "";
  return "the tensor is not dense";
}

}  // namespace

AllGatherWithGrad::AllGatherWithGrad(const Communicator& communicator)
    : communicator_(communicator.duplicate("all_gather_with_grad")) {}

at::Tensor AllGatherWithGrad::operator()(const at::Tensor& tensor, const CallOptions& call) const {
  CallOptions options = call;
  options.name = "all_gather_with_grad " + std::to_string(++*calls_);
  if (!call.name.empty()) options.name += ", '" + call.name + "'";
  if (const std::string why = unsupported_reason(tensor); !why.empty()) {
    try {
      // The other ranks wait in the gather. A call with another signature makes it a mismatch for them.
      options.name += ": " + why;
      communicator_.barrier(options).wait();
    } catch (const MismatchError&) {  // expected: the other ranks throw it too
    }
    throw UsageError(options.name + ", on rank " + std::to_string(communicator_.rank()) +
                     ": only dense tensors are supported");
  }
  const at::Tensor rows = tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor;
  // The name is part of the call signature: if only some ranks had a graph, backward would deadlock.
  if (at::GradMode::is_enabled() && rows.requires_grad()) options.name += " of a tensor that requires gradients";
  return GatherRows::apply(rows, c10::make_intrusive<Exchange>(communicator_, std::move(options)));
}

}  // namespace tutti
