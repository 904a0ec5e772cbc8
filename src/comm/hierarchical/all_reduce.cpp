#include "comm/hierarchical/all_reduce.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "comm/reduction/partition.h"
#include "comm/reduction/reduce_tree.h"

namespace tutti::comm {

HierarchicalAllReduce::HierarchicalAllReduce(std::shared_ptr<NodeGroups> groups, Operation operation,
                                             ShmLocation location, const at::Tensor& flat,
                                             std::shared_ptr<const WireCodec> codec, std::uint32_t number)
    : groups_(std::move(groups)),
      operation_(std::move(operation)),
      location_(std::move(location)),
      flat_(flat.view({-1})),
      codec_(std::move(codec)),
      number_(number) {
  NodeState& node = *groups_->node;
  const auto elements = static_cast<std::size_t>(flat_.numel());
  const Range range = shard_of(elements, flat_.element_size(), node.rank(), node.size());
  shard_begin_ = range.offset * flat_.element_size();
  shard_ = flat_.narrow(0, static_cast<std::int64_t>(range.offset), static_cast<std::int64_t>(range.length));
  node.local().last_operation.set(operation_);
  node.local().reductions_started.advance_to(number_);
}

void HierarchicalAllReduce::wait_for_node(SequenceCounter RankState::*progress) const {
  groups_->node_subgroup.run([&] { groups_->node->wait_for_all(progress, number_, {operation_}); });
}

void HierarchicalAllReduce::finish_reduce_scatter(double scale) {
  wait_for_node(&RankState::reductions_started);
  reduce_shard();
  auto pending = groups_->inter_node_subgroup.run(
      [&] { return groups_->inter_node->start_all_reduce(operation_, wide_shard_, codec_); });
  inter_node_sum_ = std::make_shared<InterNodeSum>(InterNodeSum{.pending = std::move(pending), .scale = scale});
  groups_->pending_sums.push_back(inter_node_sum_);
  while (groups_->pending_sums.size() > 1) groups_->reduce_oldest();
}

void HierarchicalAllReduce::reduce_shard() {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const NodeState& node = *groups_->node;
  const auto sum_dtype = dtype_of_sums(shard_.scalar_type());
  const bool is_widened = sum_dtype != shard_.scalar_type();
  // Values are rounded once, at the end: the bits are those of one sum over all ranks.
  std::vector<at::Tensor> wide;
  std::vector<const std::byte*> contributions;
  for (int rank = 0; rank < node.size(); ++rank) {
    std::byte* const contribution = location_.of(rank) + shard_begin_;
    if (!is_widened) {
      contributions.push_back(contribution);
      continue;
    }
    wide.push_back(at::from_blob(contribution, shard_.sizes(), shard_.options()).to(sum_dtype));
    contributions.push_back(static_cast<const std::byte*>(wide.back().const_data_ptr()));
  }
  wide_shard_ = is_widened ? wide.front() : shard_;
  reduce_tree(contributions, static_cast<std::byte*>(wide_shard_.data_ptr()), static_cast<std::size_t>(shard_.numel()),
              wide_shard_.scalar_type(), {});
}

void HierarchicalAllReduce::wait() {
  while (!inter_node_sum_->reduced) groups_->reduce_oldest();
  groups_->inter_node_subgroup.run([&] { inter_node_sum_->pending->wait(); });
  copy_to_node();
  groups_->node->local().reductions_finished.advance_to(number_);
  wait_for_node(&RankState::reductions_finished);
}

void HierarchicalAllReduce::copy_to_node() {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const NodeState& node = *groups_->node;
  if (!wide_shard_.is_same(shard_)) shard_.copy_(wide_shard_);
  const auto* const shard = static_cast<const std::byte*>(shard_.const_data_ptr());  // null if it is empty
  for (int rank = 0; rank < node.size(); ++rank) {
    if (rank != node.rank()) std::copy_n(shard, shard_.nbytes(), location_.of(rank) + shard_begin_);
  }
  const auto copied = static_cast<std::int64_t>(shard_.nbytes()) * (node.size() - 1);
  bytes_sent_ =
      inter_node_sum_->pending->bytes_sent() + copied + static_cast<std::int64_t>(flat_.nbytes() - shard_.nbytes());
}

}  // namespace tutti::comm
