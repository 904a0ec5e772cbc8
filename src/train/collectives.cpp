#include "tutti/train/collectives.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "comm/describe_call.h"
#include "train/tensor_headers.h"

namespace tutti::detail {

namespace {

/// Where all ranks exchange tensor `index`: on their devices, or on the host if these have different types.
at::Device place_of_exchange(const std::vector<TensorHeaders>& ranks, std::size_t index, const at::Tensor& tensor) {
  return on_same_device_type(ranks, index) ? tensor.device() : at::Device(at::kCPU);
}

/// The tensor on `place` and contiguous.
at::Tensor contiguous_on(at::Device place, const at::Tensor& tensor) {
  return tensor.detach().to(place).contiguous();
}

/// A copy of the tensor on `place`.
at::Tensor copy_on(at::Device place, const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(place).pinned_memory(false)).copy_(tensor.detach());
}

at::Tensor with_rows(const at::Tensor& tensor) {
  return tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor;
}

std::string spelled(double number) {
  std::ostringstream text;
  text.precision(17);
  text << number;
  return text.str();
}

std::string why_not_reducible(const NestedTensors& local, ReduceOp op, double scale) {
  for (const NestedTensor& one : local) {
    if (!one.tensor.defined()) continue;
    const auto dtype = one.tensor.scalar_type();
    const bool ordered = op == ReduceOp::min || op == ReduceOp::max;
    if (ordered && at::isComplexType(dtype)) return "complex numbers have no order";
    const bool bitwise = op == ReduceOp::bit_and || op == ReduceOp::bit_or || op == ReduceOp::bit_xor;
    if (bitwise && !at::isIntegralType(dtype, /*includeBool=*/true)) {
      return "bitwise operations need an integer dtype or bool";
    }
    if (at::isFloatingType(dtype) || (at::isComplexType(dtype) && op != ReduceOp::mean)) continue;
    if (op == ReduceOp::mean) return "the mean needs a floating dtype: convert the tensor, or use sum";
    if (scale != 1.0) return "a scale needs a floating dtype: convert the tensor";
  }
  if (!std::isfinite(scale)) return "scale is " + std::to_string(scale) + ": it must be finite";
  return "";
}

/// The reason why a tensor of `dtype` cannot hold `pad_index`, or empty.
std::string why_not_padding(at::ScalarType dtype, double pad_index) {
  const std::string what = "pad_index is " + spelled(pad_index) + ", but " + at::toString(dtype) + " holds ";
  const std::string remedy = ": choose another pad_index, or convert the tensor";
  if (at::isIntegralType(dtype, /*includeBool=*/true)) {
    const int bits = dtype == at::kBool ? 1 : static_cast<int>(8 * at::elementSize(dtype));
    const bool has_sign = dtype != at::kBool && at::isSignedType(dtype);
    const double end = std::ldexp(1.0, has_sign ? bits - 1 : bits);  // the first integer above the range
    const double first = has_sign ? -end : 0;
    if (pad_index >= first && pad_index < end && pad_index == std::trunc(pad_index)) return "";
    const std::string most = bits == 64 ? (has_sign ? "2^63 - 1" : "2^64 - 1") : spelled(end - 1);
    return what + "integers from " + (bits == 64 && has_sign ? "-2^63" : spelled(first)) + " to " + most + remedy;
  }
  if (!at::isFloatingType(dtype) || !std::isfinite(pad_index)) return "";
  if (std::isfinite(at::scalar_tensor(pad_index, at::kDouble).to(dtype).to(at::kDouble).item<double>())) return "";
  return what + "smaller numbers only" + remedy;
}

std::string why_not_paddable(const NestedTensors& local, const PadOptions& options) {
  for (const NestedTensor& one : local) {
    if (!one.tensor.defined() || options.dim >= one.tensor.dim() || options.dim < -one.tensor.dim()) continue;
    std::string why = why_not_padding(one.tensor.scalar_type(), options.pad_index);
    if (!why.empty()) return one.path.empty() ? why : one.path + " " + why;
  }
  return "";
}

std::string why_no_rank(int rank, int size) {
  if (rank >= 0 && rank < size) return "";
  return "from_process is " + std::to_string(rank) + ", but there are " + std::to_string(size) + " ranks";
}

/// Gathers `local` of all ranks, which must have the same shape.
at::Tensor all_ranks(const Communicator& communicator, const at::Tensor& local, const CallOptions& call) {
  std::vector<std::int64_t> sizes{communicator.size()};
  sizes.insert(sizes.end(), local.sizes().begin(), local.sizes().end());
  const at::Tensor all = at::empty(sizes, local.options());
  communicator.all_gather(all, local, call).wait();
  return all;
}

/// Pads `tensor` with rows of zeros at the end.
at::Tensor filled_up(const at::Tensor& tensor, std::int64_t rows) {
  if (tensor.size(0) == rows) return tensor;
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes[0] = rows;
  at::Tensor filled = at::zeros(sizes, tensor.options());
  filled.narrow(0, 0, tensor.size(0)).copy_(tensor);
  return filled;
}

}  // namespace

Tensors gather_tensors(const Communicator& communicator, const NestedTensors& local, const CallOptions& call) {
  const auto ranks = exchange_headers(communicator, "gather", local, SameShape::all, call);
  Tensors gathered;
  for (std::size_t index = 0; index < local.size(); ++index) {
    const at::Tensor& tensor = local[index].tensor;
    const at::Tensor rows = with_rows(contiguous_on(place_of_exchange(ranks, index, tensor), tensor));
    gathered.push_back(all_ranks(communicator, rows, named("gather", call)).flatten(0, 1).to(tensor.device()));
  }
  return gathered;
}

Tensors reduce_tensors(const Communicator& communicator, const NestedTensors& local, ReduceOp op, double scale,
                       const CallOptions& call) {
  std::string what = "reduce(" + comm::describe_op(op);
  if (scale != 1.0) what += ", scale " + spelled(scale);
  what += ')';
  const auto ranks =
      exchange_headers(communicator, what, local, SameShape::all, call, why_not_reducible(local, op, scale));
  Tensors reduced;
  for (std::size_t index = 0; index < local.size(); ++index) {
    const at::Tensor& tensor = local[index].tensor;
    at::Tensor combined = copy_on(place_of_exchange(ranks, index, tensor), tensor);
    communicator.all_reduce(combined, op, named(what, call)).wait();
    if (scale != 1.0) combined.mul_(scale);
    reduced.push_back(combined.to(tensor.device()));
  }
  return reduced;
}

Tensors broadcast_tensors(const Communicator& communicator, const NestedTensors& local, int from_process,
                          const CallOptions& call) {
  const std::string what = "broadcast(from " + std::to_string(from_process) + ")";
  const auto ranks =
      exchange_headers(communicator, what, local, SameShape::all, call, why_no_rank(from_process, communicator.size()));
  Tensors received;
  for (std::size_t index = 0; index < local.size(); ++index) {
    const at::Tensor& tensor = local[index].tensor;
    const at::Tensor copy = copy_on(place_of_exchange(ranks, index, tensor), tensor);
    communicator.broadcast(copy, from_process, named(what, call)).wait();
    received.push_back(copy.to(tensor.device()));
  }
  return received;
}

at::Tensor padded(const at::Tensor& tensor, std::int64_t dim, std::int64_t size, double pad_index, bool pad_first) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  const auto own = std::exchange(sizes[static_cast<std::size_t>(dim)], size);
  at::Tensor filled = at::full(sizes, pad_index, tensor.options());
  filled.narrow(dim, pad_first ? size - own : 0, own).copy_(tensor.detach());
  return filled;
}

Tensors pad_tensors(const Communicator& communicator, const NestedTensors& local, const PadOptions& options,
                    const CallOptions& call) {
  std::string what = "pad_across_processes(dim " + std::to_string(options.dim);
  what += ", pad_index " + spelled(options.pad_index);
  what += options.pad_first ? ", pad_first)" : ")";
  const auto ranks =
      exchange_headers(communicator, what, local, SameShape::dims, call, why_not_paddable(local, options));
  Tensors all;
  for (std::size_t place = 0; place < local.size(); ++place) {
    const at::Tensor& tensor = local[place].tensor;
    const auto dim = options.dim < 0 ? options.dim + tensor.dim() : options.dim;
    std::int64_t longest = 0;
    if (dim >= 0 && dim < tensor.dim()) {
      for (const TensorHeaders& headers : ranks) {
        longest = std::max(longest, headers[place].sizes[static_cast<std::size_t>(dim)]);
      }
      all.push_back(padded(tensor, dim, longest, options.pad_index, options.pad_first));
    } else {
      all.push_back(tensor.detach().clone());
    }
  }
  return all;
}

CountedSamples counted_samples(const LoaderPosition* position, std::int64_t rows) {
  if (position == nullptr) {
    return {.error =
                "no loop over a loader of this Accelerator is running, so repeated samples are unknown: call it in the "
                "loop's body, or use gather()"};
  }
  // Every rank in the loop throws here. A rank without batches does not call, so that no exchange can tell it.
  if (position->uneven) {
    throw UsageError(
        "gather_for_metrics: ranks receive different numbers of batches in this loop, so the last calls would wait for "
        "ranks without data: leave even_batches on or, without LocalSGD, open join_uneven_inputs() around the loop");
  }
  if (rows < 0) {
    return {.error = "a tensor without dimensions has no dimension of samples: use gather() or reduce()"};
  }
  if (position->samples && *position->samples != rows) {
    std::string error = "the batch has " + std::to_string(*position->samples);
    error += " samples, and the gathered value has " + std::to_string(rows);
    return {.error = error + " rows along dim 0: pass one row per sample, or use gather()"};
  }
  if (position->filler || position->all_repeated) return {};
  return {.count = rows - position->repeated};
}

Tensors gather_counted(const Communicator& communicator, const NestedTensors& local, const LoaderPosition* position,
                       const CallOptions& call) {
  const std::string what = "gather_for_metrics";
  NestedTensors counted = local;
  std::string error;
  for (NestedTensor& one : counted) {
    const bool has_rows = one.tensor.defined() && one.tensor.dim() > 0;
    const auto samples = counted_samples(position, has_rows ? one.tensor.size(0) : -1);
    if (error.empty() && !samples.error.empty()) error = one.path + (one.path.empty() ? "" : " ") + samples.error;
    if (has_rows && samples.error.empty()) one.tensor = one.tensor.narrow(0, 0, samples.count);
  }
  const auto ranks = exchange_headers(communicator, what, counted, SameShape::but_rows, call, error);
  Tensors gathered;
  for (std::size_t place = 0; place < counted.size(); ++place) {
    const at::Tensor& tensor = counted[place].tensor;
    std::int64_t most = 0;
    for (const TensorHeaders& headers : ranks) most = std::max(most, headers[place].sizes[0]);
    const at::Tensor all =
        all_ranks(communicator, filled_up(contiguous_on(place_of_exchange(ranks, place, tensor), tensor), most),
                  named(what, call));
    Tensors parts;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      parts.push_back(all[static_cast<std::int64_t>(rank)].narrow(0, 0, ranks[rank][place].sizes[0]));
    }
    gathered.push_back(at::cat(parts).to(tensor.device()));
  }
  return gathered;
}

std::vector<std::string> gather_bytes(const Communicator& communicator, const std::string& what, const Packed& local,
                                      const CallOptions& call) {
  const auto all = communicator.all_gather_object(pack(std::pair(local.error, local.bytes)), named(what, call));
  std::vector<std::string> errors, bytes;
  for (const std::string& rank : all) {
    auto [error, object] = unpack<std::pair<std::string, std::string>>(rank);
    errors.push_back(std::move(error));
    bytes.push_back(std::move(object));
  }
  throw_errors(what, errors);
  return bytes;
}

std::string broadcast_bytes(const Communicator& communicator, const std::string& what, const Packed& local,
                            int from_process, const CallOptions& call) {
  const auto error = why_no_rank(from_process, communicator.size());
  // All ranks must throw: the other ranks would wait for a rank that throws alone.
  if (!error.empty()) gather_bytes(communicator, what, {.error = error}, call);
  const auto sent =
      communicator.broadcast_object(pack(std::pair(local.error, local.bytes)), from_process, named(what, call));
  auto [why, bytes] = unpack<std::pair<std::string, std::string>>(sent);
  if (!why.empty()) throw UsageError(what + ": rank " + std::to_string(from_process) + ": " + why);
  return bytes;
}

}  // namespace tutti::detail
