#pragma once
// Tells a dataset which epoch is read, also through LibTorch's wrappers, which forward reset() only.
#include <cstdint>

namespace torch::data::datasets {
/// What dataset.map(transform) returns.
template <typename SourceDataset, typename AppliedTransform>
class MapDataset;
/// What make_shared_dataset() returns.
template <typename UnderlyingDataset>
class SharedBatchDataset;
}  // namespace torch::data::datasets

namespace tutti::detail {

template <typename SourceDataset, typename AppliedTransform>
void set_epoch_of(torch::data::datasets::MapDataset<SourceDataset, AppliedTransform>& map, std::int64_t epoch);
template <typename UnderlyingDataset>
void set_epoch_of(torch::data::datasets::SharedBatchDataset<UnderlyingDataset>& shared, std::int64_t epoch);

/// Calls set_epoch(epoch) of a dataset or a transform, if it has it; for dataset.map(transform) and
/// make_shared_dataset(), of their parts.
template <typename Dataset>
void set_epoch_of(Dataset& dataset, std::int64_t epoch) {
  if constexpr (requires { dataset.set_epoch(epoch); }) dataset.set_epoch(epoch);
}

template <typename SourceDataset, typename AppliedTransform>
void set_epoch_of(torch::data::datasets::MapDataset<SourceDataset, AppliedTransform>& map, std::int64_t epoch) {
  // LibTorch returns constant references to these members, which are not constant themselves.
  set_epoch_of(const_cast<SourceDataset&>(map.dataset()), epoch);
  set_epoch_of(const_cast<AppliedTransform&>(map.transform()), epoch);
}

template <typename UnderlyingDataset>
void set_epoch_of(torch::data::datasets::SharedBatchDataset<UnderlyingDataset>& shared, std::int64_t epoch) {
  set_epoch_of(*shared, epoch);
}

}  // namespace tutti::detail
