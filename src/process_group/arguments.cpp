#include "process_group/arguments.h"

#include <string>

#include "comm/backend/describe.h"
#include "comm/tensor_checks.h"
#include "tutti/core/error.h"

namespace tutti::process_group {
namespace {

using comm::describe_tensor;

template <typename T>
T& require_one(const char* what, std::vector<T>& list, const char* of) {
  if (list.size() == 1) return list.front();
  throw UsageError(std::string(what) + ": a rank passes one " + of + ", not " + std::to_string(list.size()) + ".");
}

}  // namespace

at::Tensor& require_single(const char* what, Tensors& tensors) {
  at::Tensor& tensor = require_one(what, tensors, "tensor");
  require_usable(what, tensor);
  return tensor;
}

Tensors& require_single(const char* what, std::vector<Tensors>& lists) {
  return require_one(what, lists, "list of tensors");
}

void require_usable(const char* what, const at::Tensor& tensor) {
  comm::require_dense(what, tensor);
  comm::require_available_device(what, tensor);
}

void require_one_each(const char* what, const Tensors& list, int size) {
  if (list.size() != static_cast<std::size_t>(size)) {
    throw UsageError(std::string(what) + ": a list of " + std::to_string(list.size()) + " tensors for " +
                     std::to_string(size) + " ranks; it must hold one for each.");
  }
  for (const auto& tensor : list) require_usable(what, tensor);
}

void require_each_like(const char* what, const Tensors& list, const at::Tensor& one, int size) {
  require_one_each(what, list, size);
  for (std::size_t rank = 0; rank < list.size(); ++rank) {
    const bool is_like = list[rank].scalar_type() == one.scalar_type() && list[rank].sizes() == one.sizes();
    if (is_like && list[rank].device() == one.device()) continue;
    throw UsageError(std::string(what) + ": the tensor of rank " + std::to_string(rank) + " is " +
                     describe_tensor(list[rank]) + ", but this rank's own tensor is " + describe_tensor(one) +
                     "; they must have the same dtype, shape and device.");
  }
}

Tensors list_of_root(const char* what, const char* name, std::vector<Tensors>& lists, const at::Tensor& one, int rank,
                     int root, int size) {
  if (rank != root) {
    if (lists.empty()) return {};
    throw UsageError(std::string(what) + ": " + name + " on rank " + std::to_string(rank) +
                     ", which is not the root: only rank " + std::to_string(root) + " passes them.");
  }
  const Tensors& list = require_single(what, lists);
  require_each_like(what, list, one, size);
  return list;
}

void require_pairs(const char* what, const Tensors& outputs, const Tensors& inputs) {
  if (outputs.size() == inputs.size()) return;
  throw UsageError(std::string(what) + ": " + std::to_string(outputs.size()) + " outputs for " +
                   std::to_string(inputs.size()) + " inputs.");
}

void require_concatenated(const char* what, const Tensors& wholes, const Tensors& parts, int size) {
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    const at::Tensor &whole = wholes[i], &part = parts[i];
    require_usable(what, whole);
    require_usable(what, part);
    if (whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * size) continue;
    throw UsageError(std::string(what) + ": " + describe_tensor(whole) + " is not " + std::to_string(size) + " times " +
                     describe_tensor(part) + ": one part for each rank, of the same dtype.");
  }
}

Tensors split_rows(const char* what, const char* name, const at::Tensor& tensor, const std::vector<std::int64_t>& sizes,
                   int size) {
  require_usable(what, tensor);
  const std::string prefix = std::string(what) + ": ";
  if (tensor.dim() == 0) throw UsageError(prefix + "the " + name + " has no dimensions.");
  const std::int64_t rows = tensor.size(0);
  const auto ranks = static_cast<std::size_t>(size);
  std::vector<std::int64_t> counts = sizes;
  if (counts.empty()) {
    if (rows % size != 0) {
      throw UsageError(prefix + "the " + name + " " + describe_tensor(tensor) + " cannot be divided among " +
                       std::to_string(size) + " ranks evenly. Pass the split sizes.");
    }
    counts.assign(ranks, rows / size);
  }
  std::int64_t sum = 0;
  bool negative = false;
  for (const auto count : counts) {
    negative = negative || count < 0 || count > rows;
    sum += count;
  }
  if (counts.size() != ranks || negative || sum != rows) {
    throw UsageError(prefix + std::to_string(counts.size()) + " split sizes for the " + name + " " +
                     describe_tensor(tensor) + ": there must be one for each of " + std::to_string(size) +
                     " ranks, with the sum " + std::to_string(rows) + ".");
  }
  Tensors parts;
  std::int64_t begin = 0;
  for (const auto count : counts) {
    parts.push_back(tensor.detach().narrow(0, begin, count));
    begin += count;
  }
  return parts;
}

int require_root(const char* what, std::int64_t root, int size) {
  if (root >= 0 && root < size) return static_cast<int>(root);
  throw UsageError(std::string(what) + ": root " + std::to_string(root) + " is not a rank of this group of " +
                   std::to_string(size) + ".");
}

ReduceOp to_reduce_op(const char* what, const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::mean;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::BAND:
      return ReduceOp::bit_and;
    case c10d::ReduceOp::BOR:
      return ReduceOp::bit_or;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::bit_xor;
    case c10d::ReduceOp::PREMUL_SUM:
      throw UsageError(std::string(what) + ": ReduceOp.PREMUL_SUM is not supported: multiply the tensor, and use SUM.");
    default:
      break;
  }
  throw UsageError(std::string(what) + ": the backend tutti has no such ReduceOp.");
}

}  // namespace tutti::process_group
