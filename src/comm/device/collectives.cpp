#include "comm/device/collectives.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <optional>

#include "comm/reduction/reduce_tree.h"

namespace tutti::comm::on_device {
namespace {

// Collectives that only move data see bytes, so that they take every dtype.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

// NCCL reduces these dtypes, with every one of these operations.
constexpr std::array native_dtypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                   at::kByte,  at::kChar,   at::kInt,  at::kLong};

/// The operation of c10d, without the division of a mean; nullopt if backends of devices do not have it.
std::optional<c10d::ReduceOp> native_op(const at::Tensor& tensor, ReduceOp op) {
  if (std::ranges::find(native_dtypes, tensor.scalar_type()) == native_dtypes.end()) return std::nullopt;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      return c10d::ReduceOp(c10d::ReduceOp::SUM);
    case ReduceOp::min:
      return c10d::ReduceOp(c10d::ReduceOp::MIN);
    case ReduceOp::max:
      return c10d::ReduceOp(c10d::ReduceOp::MAX);
    case ReduceOp::product:
      return c10d::ReduceOp(c10d::ReduceOp::PRODUCT);
    default:
      return std::nullopt;
  }
}

/// Reduces `parts`, one row for each rank, in the order of ranks.
void reduce_rows(const at::Tensor& output, const at::Tensor& parts, ReduceOp op) {
  const at::Tensor result = output.view({-1});
  result.copy_(parts.select(0, 0), /*non_blocking=*/true);
  for (std::int64_t rank = 1; rank < parts.size(0); ++rank) reduce_pair(result, result, parts.select(0, rank), op);
}

void divide_if_mean(const at::Tensor& tensor, ReduceOp op, std::int64_t size) {
  if (op == ReduceOp::mean) tensor.div_(size);
}

at::Tensor parts_like(const at::Tensor& tensor, std::int64_t rows, std::int64_t columns) {
  return at::empty({rows, columns}, at::TensorOptions(tensor.scalar_type()).device(tensor.device()));
}

}  // namespace

void all_reduce(DeviceGroup& group, const Operation& operation, const at::Tensor& flat, ReduceOp op) {
  if (flat.numel() == 0) return;
  if (const auto native = native_op(flat, op)) {
    group.run_on_current_stream(operation, {flat}, [&](c10d::Backend& backend) {
      std::vector<at::Tensor> tensors{flat};
      c10d::AllreduceOptions options;
      options.reduceOp = *native;
      return backend.allreduce(tensors, options);
    });
  } else {
    const at::Tensor parts = parts_like(flat, group.size(), flat.numel());
    all_gather(group, operation, parts, flat);
    reduce_rows(flat, parts, op);
  }
  divide_if_mean(flat, op, group.size());
}

void all_gather(DeviceGroup& group, const Operation& operation, const at::Tensor& output, const at::Tensor& input) {
  if (input.numel() == 0) return;
  group.run_on_current_stream(operation, {output, input}, [&](c10d::Backend& backend) {
    at::Tensor to = bytes_of(output);
    at::Tensor from = bytes_of(input);
    return backend._allgather_base(to, from);
  });
}

void reduce_scatter(DeviceGroup& group, const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                    ReduceOp op) {
  if (output.numel() == 0) return;
  if (const auto native = native_op(input, op)) {
    group.run_on_current_stream(operation, {output, input}, [&](c10d::Backend& backend) {
      at::Tensor to = output.view({-1});
      at::Tensor from = input.view({-1});
      c10d::ReduceScatterOptions options;
      options.reduceOp = *native;
      return backend._reduce_scatter_base(to, from, options);
    });
  } else {
    const at::Tensor parts = parts_like(input, group.size(), output.numel());
    all_to_all(group, operation, parts, input);
    reduce_rows(output, parts, op);
  }
  divide_if_mean(output, op, group.size());
}

void all_to_all(DeviceGroup& group, const Operation& operation, const at::Tensor& output, const at::Tensor& input) {
  if (input.numel() == 0) return;
  group.run_on_current_stream(operation, {output, input}, [&](c10d::Backend& backend) {
    at::Tensor to = bytes_of(output);
    at::Tensor from = bytes_of(input);
    std::vector<std::int64_t> equal_parts;
    return backend.alltoall_base(to, from, equal_parts, equal_parts);
  });
}

void broadcast(DeviceGroup& group, const Operation& operation, const at::Tensor& tensor, int root) {
  if (tensor.numel() == 0) return;
  group.run_on_current_stream(operation, {tensor}, [&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors{bytes_of(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return backend.broadcast(tensors, options);
  });
}

// One flat tensor each way, because not every c10d backend has alltoall().
void all_to_all_v(DeviceGroup& group, const Operation& operation, const std::vector<at::Tensor>& outputs,
                  const std::vector<at::Tensor>& inputs) {
  const auto lengths_of = [](const std::vector<at::Tensor>& tensors) {
    std::vector<std::int64_t> lengths;
    for (const at::Tensor& tensor : tensors) lengths.push_back(static_cast<std::int64_t>(tensor.nbytes()));
    return lengths;
  };
  auto sent = lengths_of(inputs);
  auto received = lengths_of(outputs);
  std::vector<at::Tensor> input_bytes;
  for (const at::Tensor& input : inputs) input_bytes.push_back(bytes_of(input));
  at::Tensor from = at::cat(input_bytes);
  at::Tensor to = at::empty({c10::sum_integers(received)}, from.options());
  group.run_on_current_stream(operation, {to, from},
                              [&](c10d::Backend& backend) { return backend.alltoall_base(to, from, received, sent); });
  const auto output_bytes = to.split_with_sizes(received);
  for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
    bytes_of(outputs[rank]).copy_(output_bytes[rank], /*non_blocking=*/true);
  }
}

}  // namespace tutti::comm::on_device
