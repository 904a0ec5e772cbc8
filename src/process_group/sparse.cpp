#include "process_group/sparse.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>

#include "process_group/arguments.h"
#include "tutti/core/error.h"

namespace tutti::process_group {
namespace {

constexpr const char* what = "all_reduce of sparse tensors";
constexpr std::int64_t max_dimensions = 12;

// The properties that must be equal on all ranks, followed by the number of elements.
at::Tensor description_of(const at::Tensor& tensor) {
  const at::Tensor description = at::zeros({max_dimensions + 4}, at::kLong);
  auto* numbers = description.mutable_data_ptr<std::int64_t>();
  *numbers++ = static_cast<std::int64_t>(tensor.scalar_type());
  *numbers++ = tensor.sparse_dim();
  *numbers++ = tensor.dense_dim();
  std::ranges::copy(tensor.sizes(), numbers);
  description.mutable_data_ptr<std::int64_t>()[max_dimensions + 3] = tensor._nnz();
  return description;
}

/// The number of elements of each rank.
std::vector<std::int64_t> counts_of(const Communicator& communicator, const at::Tensor& tensor,
                                    const CallOptions& call) {
  const at::Tensor own_description = description_of(tensor);
  const at::Tensor all = at::empty({communicator.size(), own_description.numel()}, at::kLong);
  communicator.all_gather(all, own_description, call).wait();
  const auto width = own_description.numel() - 1;
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const auto* of_rank = all.const_data_ptr<std::int64_t>() + rank * (width + 1);
    if (!std::equal(of_rank, of_rank + width, all.const_data_ptr<std::int64_t>())) {
      throw MismatchError(std::string(what) + ": rank " + std::to_string(rank) +
                          " passes a tensor of another shape, dtype or number of sparse dimensions than rank 0.");
    }
    counts.push_back(of_rank[width]);
  }
  return counts;
}

/// `rows`, padded to the number of rows of the longest rank, and memory for the rows of all ranks.
struct Gathered {
  Gathered(const at::Tensor& rows, std::int64_t longest, int size) {
    auto shape = rows.sizes().vec();
    shape[0] = longest;
    padded = at::zeros(shape, rows.options());
    padded.narrow(0, 0, rows.size(0)).copy_(rows);
    shape[0] = longest * size;
    all = at::empty(shape, rows.options());
  }
  at::Tensor without_padding(const std::vector<std::int64_t>& counts) const {
    const auto longest = padded.size(0);
    std::vector<at::Tensor> parts;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      parts.push_back(all.narrow(0, static_cast<std::int64_t>(rank) * longest, counts[rank]));
    }
    return at::cat(parts);
  }
  at::Tensor padded;
  at::Tensor all;
};

}  // namespace

Parts sparse_all_reduce(const Communicator& communicator, const at::Tensor& tensor, const c10d::ReduceOp& op,
                        const CallOptions& call) {
  if (op.op_ != c10d::ReduceOp::SUM) throw UsageError(std::string(what) + ": the only supported ReduceOp is SUM.");
  if (!tensor.device().is_cpu())
    throw UsageError(std::string(what) + ": the tensor is on " + tensor.device().str() + ".");
  if (tensor.dim() > max_dimensions) {
    throw UsageError(std::string(what) + ": the tensor has " + std::to_string(tensor.dim()) + " dimensions; at most " +
                     std::to_string(max_dimensions) + " are supported.");
  }
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const at::Tensor coalesced = tensor.detach().coalesce();
  const auto counts = counts_of(communicator, coalesced, call);
  const auto longest = std::ranges::max(counts);
  // Row i holds the indices or the values of element i.
  const Gathered indices(coalesced._indices().t(), longest, communicator.size());
  const Gathered values(coalesced._values(), longest, communicator.size());
  Parts parts{.type = c10d::OpType::_ALLREDUCE_SPARSE, .what = "all_reduce", .outputs = {tensor}};
  parts.works.push_back(communicator.all_gather(indices.all, indices.padded, call));
  parts.works.push_back(communicator.all_gather(values.all, values.padded, call));
  parts.on_completed = [tensor, counts, indices, values] {
    const at::AutoDispatchBelowADInplaceOrView without;
    const auto sum =
        at::_sparse_coo_tensor_unsafe(indices.without_padding(counts).t().contiguous(), values.without_padding(counts),
                                      tensor.sizes(), values.all.options().layout(at::kSparse));
    // detach() would make another sparse tensor with its own elements.
    tensor.copy_(sum.coalesce());
  };
  return parts;
}

}  // namespace tutti::process_group
