#pragma once
// Optional members of datasets: set_epoch() and skip(). LibTorch's wrappers forward reset() only, so these functions
// look inside them.
#include <cstddef>
#include <cstdint>
#include <type_traits>

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

/// True if skip_samples() skips samples of a stream of this type.
template <typename Stream>
constexpr bool can_skip = requires(Stream& stream, std::size_t samples) {
  stream.skip(samples);
};
template <typename SourceDataset, typename AppliedTransform>
constexpr bool can_skip<torch::data::datasets::MapDataset<SourceDataset, AppliedTransform>> = can_skip<SourceDataset>;
template <typename UnderlyingDataset>
constexpr bool can_skip<torch::data::datasets::SharedBatchDataset<UnderlyingDataset>> = can_skip<UnderlyingDataset>;

/// Calls skip(samples) of a stream, or of the stream inside stream.map(transform) and make_shared_dataset().
template <typename Stream>
void skip_samples(Stream& stream, std::size_t samples) {
  if constexpr (requires { stream.skip(samples); }) {
    stream.skip(samples);
  } else if constexpr (requires { stream.transform(); }) {
    // LibTorch returns a constant reference to this member, which is not constant itself.
    using Source = std::remove_cvref_t<decltype(stream.dataset())>;
    skip_samples(const_cast<Source&>(stream.dataset()), samples);
  } else {
    skip_samples(*stream, samples);
  }
}

}  // namespace tutti::detail
