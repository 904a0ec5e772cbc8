#include "comm/hierarchical/sum.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "comm/sums/combine.h"
#include "comm/sums/slices.h"

namespace tutti::comm {
namespace {

bool is_narrow(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

}  // namespace

HierarchicalSum::HierarchicalSum(std::shared_ptr<Levels> levels, Operation operation, SharedPlace place,
                                 const at::Tensor& flat, std::shared_ptr<const WireCodec> codec, std::uint32_t number)
    : levels_(std::move(levels)),
      operation_(std::move(operation)),
      place_(std::move(place)),
      flat_(flat.view({-1})),
      codec_(std::move(codec)),
      number_(number) {
  SharedNode& node = *levels_->node;
  const auto elements = static_cast<std::size_t>(flat_.numel());
  const Range range = slice_of(elements, flat_.element_size(), node.rank(), node.size());
  slice_ = flat_.narrow(0, static_cast<std::int64_t>(range.offset), static_cast<std::int64_t>(range.length));
  if (codec_) share_ = 1.0 / static_cast<double>(std::bit_ceil(static_cast<unsigned>(node.size())));
  node.own().last_call.set(operation_);
  node.own().sums_started.advance_to(number_);
}

void HierarchicalSum::wait_for_node(SharedProgress SharedRank::*progress) const {
  levels_->in_node([&] { levels_->node->wait_for_all(progress, number_, {operation_}); });
}

std::size_t HierarchicalSum::slice_begin() const {
  return static_cast<std::size_t>(slice_.storage_offset() - flat_.storage_offset()) * flat_.element_size();
}

void HierarchicalSum::reduce(double scale) {
  wait_for_node(&SharedRank::sums_started);
  add_up_slice();
  auto pending = levels_->across_ranks.run([&] { return levels_->across->start_sum(operation_, wide_slice_, codec_); });
  across_ = std::make_shared<SumAcross>(
      SumAcross{.slice = wide_slice_, .pending = std::move(pending), .scale = scale / share_});
  levels_->between.push_back(across_);
  while (levels_->between.size() > 1) levels_->reduce_oldest();
}

void HierarchicalSum::add_up_slice() {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const SharedNode& node = *levels_->node;
  const bool narrow = is_narrow(flat_.scalar_type());
  // Narrow versions are rounded once, at the end: as if all ranks' versions were added at once.
  std::vector<at::Tensor> wide;
  std::vector<const std::byte*> versions;
  for (int rank = 0; rank < node.size(); ++rank) {
    std::byte* const version = place_.of(rank) + slice_begin();
    if (!narrow) {
      versions.push_back(version);
      continue;
    }
    wide.push_back(at::from_blob(version, slice_.sizes(), slice_.options()).to(at::kFloat));
    versions.push_back(static_cast<const std::byte*>(wide.back().const_data_ptr()));
  }
  wide_slice_ = narrow ? wide.front() : slice_;
  combine(versions, static_cast<std::byte*>(wide_slice_.data_ptr()), static_cast<std::size_t>(slice_.numel()),
          wide_slice_.scalar_type(), {.op = ReduceOp::sum, .rescale = {.factor = share_}});
}

void HierarchicalSum::finish() {
  while (!across_->reduced) levels_->reduce_oldest();
  levels_->across_ranks.run([&] { across_->pending->finish(); });
  hand_out();
  levels_->node->own().sums_reduced.advance_to(number_);
  wait_for_node(&SharedRank::sums_reduced);
}

void HierarchicalSum::hand_out() {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const SharedNode& node = *levels_->node;
  if (!wide_slice_.is_same(slice_)) slice_.copy_(wide_slice_);
  for (int rank = 0; rank < node.size(); ++rank) {
    if (rank != node.rank()) std::memcpy(place_.of(rank) + slice_begin(), slice_.const_data_ptr(), slice_.nbytes());
  }
  const auto given = static_cast<std::int64_t>(slice_.nbytes()) * (node.size() - 1);
  bytes_sent_ = across_->pending->bytes_sent() + given + static_cast<std::int64_t>(flat_.nbytes() - slice_.nbytes());
}

}  // namespace tutti::comm
